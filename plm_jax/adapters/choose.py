"""Multiple choice: one score per option, softmax over the options of an example (BERT §4.4, GPT §3.3).

Every option is a separate sequence that starts with the context: [CLS] stem [SEP] option [SEP] for BERT,
<s> passage $ question $ option <e> for GPT. One dense layer on the pooled sequence gives its score.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.adapters import sequences, texts
from plm_jax.adapters.texts import Pool, PoolWindows
from plm_jax.core.keywords import NonNegativeInt, PartRate, Std, Weight
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, PyTree, Supervised, Task, Vocab
from plm_jax.layers.losses import cross_entropy
from plm_jax.layers.means import batch_scale, metric, scaled_sum

PAPER = Supervised(year=2018, title='BERT §4.4, GPT §3.3')
READS = ('tokens[bkl]', 'segment_ids[bkl]', 'label')
READS_WITH = {'pool_windows': ('tokens[bkwl]', 'segment_ids[bkwl]')}
DATA = dict(name='labelled', kind='options')  # keys of the data block of a published head
TEXTS = 2  # of an example
OF_A_ROW = True  # one prediction per example, so that adapters/distil.py can compare it
NEVER = -1e30  # score of a missing option


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  dropout: PartRate = 0.1,
  same_dropout: bool = False,
  hidden: NonNegativeInt = 0,
  activation: Annotated[str, 'layers.mlp:ACTIVATIONS'] = 'tanh',
  frozen: bool = False,
  lm_weight: Weight = 0.0,
  pool: Pool = 'trunk',
  pool_windows: PoolWindows | None = None,
  init_std: Std = 0.02,
) -> Task:
  """Choose the right option of an example.

  The data are those of `data/labelled.py` with kind='options'.

  Args:
    dropout: rate before each layer of the head.
    same_dropout: the options of an example share one dropout mask, as in the released code of GPT.
    hidden: width of a layer of the head before the last one, as in RoBERTa; 0 for none.
    activation: activation after that layer, a name of `layers.mlp.ACTIVATIONS`.
    frozen: feature extraction: the trunk runs without dropout and does not train, whatever `optim` says.
    lm_weight: lambda of the auxiliary language model on the text of every option; needs a causal trunk that is not
      frozen (GPT: .5).
    pool: 'trunk' pools as in the trunk's paper, 'mean' averages the real tokens, 'concat' concatenates the last token,
      the maximum and the mean (ULMFiT).
    pool_windows: the score of an option is the mean or the maximum over its windows (`data.windows`); None reads
      options without windows.
    init_std: standard deviation of the head's kernels.

  Raises:
    ValueError: settings that contradict each other.
  """
  texts.check_head('choose', trunk, activation=activation, pool=pool, frozen=frozen, lm_weight=lm_weight)
  if same_dropout and hidden:
    raise ValueError(
      f'adapter.same_dropout=True needs a head of one layer and adapter.hidden={hidden} makes two: remove one of them'
    )
  head = (dropout, hidden, activation, frozen, pool, init_std)
  model = sequences.Model(trunk, 'each', 1, *head, same_dropout=same_dropout, pool_windows=pool_windows)
  return Task(
    model=model,
    prepare=partial(prepare, texts.inputs_of(trunk), lm_weight),
    loss=partial(loss, lm_weight),
    predict=predict,
    in_words=in_words,
    trains=texts.trained(frozen, trunk),
  )


def prepare(inputs: texts.Inputs, lm_weight: float, root: Array, batch: Batch) -> Example:
  """Prepare options and labels; with `lm_weight` also the next tokens."""
  targets = texts.labelled(batch)
  targets |= {
    'scale': batch_scale(targets['weights']),
    'present': (batch['segment_ids'] > 0).any(axis=tuple(range(2, batch['segment_ids'].ndim))),  # [b, k]
  }
  if lm_weight:
    rows, length = batch['tokens'].shape[0], batch['tokens'].shape[-1]
    targets |= texts.lm_targets(*(batch[name].reshape(rows, -1, length) for name in ('tokens', 'segment_ids')))
  return Example(sequences.read(batch, inputs), targets)


def loss(lm_weight: float, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute the cross-entropy over options; with `lm_weight` add the language model's loss."""
  targets, weights = example.targets, example.targets['weights']
  scores, hidden = _scores(forward, example)
  values = cross_entropy(scores, targets['label'])
  metrics = {'accuracy': metric(scores.argmax(axis=-1) == targets['label'], weights)}
  values, metrics = texts.with_language_model(lm_weight, forward, hidden, targets, values, metrics)
  return Loss(scaled_sum(values, weights, targets['scale']), metrics | {'loss': metric(values, weights)})


def predict(forward: Forward, example: Example) -> dict[str, Array]:
  """Predict the option 'label' int[b] and the 'probability' f32[b, k] of each."""
  scores, _ = _scores(forward, example)
  return {'label': scores.argmax(axis=-1), 'probability': jax.nn.softmax(scores, axis=-1)}


def in_words(prediction: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
  """Return the text of the predicted option."""
  return {'option': record['options'][int(prediction['label'])]}


def _scores(forward: Forward, example: Example) -> tuple[Array, Array]:
  """Compute option scores f32[b, k], `NEVER` for missing ones, and states."""
  outputs, hidden = forward(**example.inputs)
  return jnp.where(example.targets['present'], outputs[..., 0], NEVER), hidden
