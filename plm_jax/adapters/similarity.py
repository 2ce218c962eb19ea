"""Similarity of two texts: both orders are read and their vectors are added (GPT §3.3).

<s> A $ B <e> and <s> B $ A <e> are each represented by the state of their last token. One dense layer on the sum of
both computes a value (STS-B) or classes (MRPC, QQP).
"""

from functools import partial
from typing import Annotated

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.adapters import classify, sequences, texts
from plm_jax.adapters.classify import Kind
from plm_jax.adapters.texts import Pool
from plm_jax.core.keywords import NonNegativeInt, PartRate, Std, Weight
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, PyTree, Supervised, Task, Vocab
from plm_jax.layers.means import batch_scale, metric, scaled_sum

PAPER = Supervised(year=2018, title='GPT §3.3')
READS = ('tokens', 'segment_ids', 'swapped_tokens', 'swapped_segment_ids', 'label')
OF_A_ROW = True  # one prediction per example, so that adapters/distil.py can compare it
QUICK = dict(kind='class')  # settings of a smoke test (`file.py:quick`)


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  classes: Annotated[int, '1 <= x'] | None = 2,
  kind: Kind = 'class',
  dropout: PartRate = 0.1,
  hidden: NonNegativeInt = 0,
  activation: Annotated[str, 'layers.mlp:ACTIVATIONS'] = 'tanh',
  frozen: bool = False,
  lm_weight: Weight = 0.0,
  pool: Pool = 'trunk',
  init_std: Std = 0.02,
) -> Task:
  """Classify a pair in both orders, or predict one number.

  The data need `data.both_orders=True`.

  Args:
    classes: number of labels; ignored by regression. None: a run finds it in its training data.
    kind: 'class' is cross-entropy, 'regression' squared error.
    dropout: rate before each layer of the head.
    hidden: width of a layer of the head before the last one; 0 for none.
    activation: activation after that layer, a name of `layers.mlp.ACTIVATIONS`.
    frozen: feature extraction: the trunk runs without dropout and does not train, whatever `optim` says.
    lm_weight: lambda of the auxiliary language model on both orders; needs a causal trunk that is not frozen (GPT: .5).
    pool: 'trunk' pools as in the trunk's paper, 'mean' averages the real tokens, 'concat' concatenates the last token,
      the maximum and the mean (ULMFiT).
    init_std: standard deviation of the head's kernels.

  Raises:
    ValueError: settings that contradict each other.
  """
  texts.check_head('similarity', trunk, activation=activation, pool=pool, frozen=frozen, lm_weight=lm_weight)
  count = classify.class_count(kind, classes=classes)
  model = sequences.Model(trunk, 'sum', count or 1, dropout, hidden, activation, frozen, pool, init_std)
  task = Task(
    model=model,
    prepare=partial(prepare, texts.inputs_of(trunk), kind, lm_weight),
    loss=partial(loss, kind, lm_weight),
    predict=partial(classify.predict, kind, 0.0),
    in_words=classify.in_words,
    trains=texts.trained(frozen, trunk),
  )
  return classify.scored(task, kind=kind, classes=count)


def prepare(inputs: texts.Inputs, kind: Kind, lm_weight: float, root: Array, batch: Batch) -> Example:
  """Prepare pairs in both orders, [b, 2, l], labels and next tokens."""
  names = [name for name in texts.OF_TEXT if name in batch and f'swapped_{name}' in batch]
  both = {name: jnp.stack([batch[name], batch[f'swapped_{name}']], axis=1) for name in names}
  targets = texts.labelled(batch, kind=kind)
  targets['scale'] = batch_scale(targets['weights'])
  if lm_weight:
    targets |= texts.lm_targets(both['tokens'], both['segment_ids'])
  return Example(sequences.read(both, inputs), targets)


def loss(kind: Kind, lm_weight: float, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute cross-entropy or squared error, and the weighted language model's loss."""
  targets, weights = example.targets, example.targets['weights']
  outputs, hidden = forward(**example.inputs)
  values, metrics = classify.costs(kind, outputs, targets)
  values, metrics = texts.with_language_model(lm_weight, forward, hidden, targets, values, metrics)
  return Loss(scaled_sum(values, weights, targets['scale']), metrics | {'loss': metric(values, weights)})
