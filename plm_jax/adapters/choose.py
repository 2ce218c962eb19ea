"""A choice between options: one score per option, softmax over the options of a row (BERT §4.4, GPT §3.3).

Every option is a sequence of its own, with what stands before it: [CLS] stem [SEP] option [SEP] for BERT,
<s> passage $ question $ option <e> for GPT. One dense layer on what stands for a sequence gives its score.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.adapters import sequences, texts
from plm_jax.adapters.texts import Pool
from plm_jax.core.types import (
  Array,
  Batch,
  Example,
  Forward,
  Loss,
  Paper,
  PartRate,
  PyTree,
  Std,
  Task,
  Vocab,
  Weight,
  NonNegativeInt,
)
from plm_jax.layers.losses import cross_entropy
from plm_jax.layers.means import batch_scale, metric, scaled_sum

PAPER = Paper(
  year=2018, title='BERT §4.4, GPT §3.3', architecture='any', objective_family='supervised', supervision='supervised'
)
READS = ('tokens[bkl]', 'segment_ids[bkl]', 'label')
OF_A_ROW = True  # what it predicts is of a whole row, so that adapters/distil.py can compare it
NEVER = -1e30  # the score of an option that is not there


class Setup(NamedTuple):
  """What is read and scored.

  Attributes:
    inputs: what the trunk reads.
    lm_weight: of the auxiliary language model.
  """

  inputs: tuple[str, ...]
  lm_weight: float


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
  init_std: Std = 0.02,
) -> Task:
  """The right one of the options of a row, as `data/labelled.py` makes them with kind='options'.

  Args:
    trunk: any trunk.
    vocab: of the rows.
    dropout: rate before each layer of the head.
    same_dropout: the options of a row lose the same components of their vectors, as in the released code of GPT.
    hidden: width of a layer of the head before the last one, as RoBERTa has it; 0 leaves it out.
    activation: behind that layer, a name of `layers.mlp.ACTIVATIONS`.
    frozen: feature extraction: the trunk runs without dropout and keeps its values, whatever `optim` says.
    lm_weight: lambda of the auxiliary language model on the text of every option; needs a causal trunk that is not
      frozen (GPT: .5).
    pool: 'trunk' pools as the trunk's paper does, 'mean' takes the mean of the real tokens, 'concat' the last of them,
      the largest values and the mean side by side (ULMFiT).
    init_std: of the head's kernels.

  Raises:
    ValueError: settings that contradict each other.
  """
  del vocab
  texts.check_head('choose', trunk, activation=activation, pool=pool, frozen=frozen, lm_weight=lm_weight)
  if same_dropout and hidden:
    raise ValueError(f'adapter.same_dropout is for a head of one layer, and adapter.hidden={hidden}: leave one out')
  s = Setup(texts.inputs_of(trunk), lm_weight)
  head = dropout, hidden, activation, frozen, pool, init_std, same_dropout
  model = sequences.Model(trunk, 'each', 1, *head)
  functions = partial(prepare, s), partial(loss, s), predict
  return Task(model, *functions, in_words=in_words, trains=texts.trained(frozen, trunk))


def prepare(s: Setup, root: Array, batch: Batch) -> Example:
  """The options of each row and which one is right; the next tokens where the language model is trained as well."""
  del root
  targets = texts.labelled(batch)
  targets |= {
    'scale': batch_scale(targets['weights']),
    'present': (batch['segment_ids'] > 0).any(axis=2),  # [b, k]
  }
  if s.lm_weight:
    targets |= texts.lm_targets(batch['tokens'], batch['segment_ids'])
  return Example(sequences.read(batch, s.inputs), targets)


def loss(s: Setup, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Cross-entropy over the options of each row, and the language model's loss where it is trained."""
  del carry, rng
  targets, weights = example.targets, example.targets['weights']
  scores, hidden = _scores(forward, example)
  values = cross_entropy(scores, targets['label'])
  metrics = {'accuracy': metric(scores.argmax(axis=-1) == targets['label'], weights)}
  values, metrics = texts.with_language_model(s.lm_weight, forward, hidden, targets, values, metrics)
  return Loss(scaled_sum(values, weights, targets['scale']), metrics | {'loss': metric(values, weights)})


def predict(forward: Forward, example: Example) -> dict[str, Array]:
  """The option that is chosen and the probability of each."""
  scores, _ = _scores(forward, example)
  return {'label': scores.argmax(axis=-1), 'probability': jax.nn.softmax(scores, axis=-1)}


def in_words(prediction: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
  """The text of the option that is chosen."""
  return {'option': record['options'][int(prediction['label'])]}


def _scores(forward: Forward, example: Example) -> tuple[Array, Array]:
  """The scores of the options f32[b, k], `NEVER` for those that a row does not have, and the states."""
  outputs, hidden = forward(**example.inputs)
  return jnp.where(example.targets['present'], outputs[..., 0], NEVER), hidden
