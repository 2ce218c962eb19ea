"""How alike two texts are, whatever their order: both orders are read and what stands for them is added (GPT §3.3).

<s> A $ B <e> and <s> B $ A <e> each give the state of their last token; one dense layer on the sum of the two gives a
value (STS-B) or classes (MRPC, QQP).
"""

from functools import partial
from typing import Annotated, NamedTuple

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.adapters import classify, sequences, texts
from plm_jax.adapters.classify import Kind
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
from plm_jax.layers.means import batch_scale, metric, scaled_sum

PAPER = Paper(year=2018, title='GPT §3.3', architecture='any', objective_family='supervised', supervision='supervised')
READS = ('tokens', 'segment_ids', 'swapped_tokens', 'swapped_segment_ids', 'label')
OF_A_ROW = True  # what it predicts is of a whole row, so that adapters/distil.py can compare it
QUICK = dict(kind='class')  # of a smoke test (`file.py:quick`)


class Setup(NamedTuple):
  """What is read and scored.

  Attributes:
    inputs: what the trunk reads.
    regression: one number is predicted and no class.
    lm_weight: of the auxiliary language model.
  """

  inputs: tuple[str, ...]
  regression: bool
  lm_weight: float


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
  """Classification of a pair, or regression of one number, from rows made with `data.both_orders=True`.

  Args:
    trunk: any trunk.
    vocab: of the rows.
    classes: number of labels; ignored by regression. None: a run finds it in its training data.
    kind: 'class' is cross-entropy, 'regression' squared error.
    dropout: rate before each layer of the head.
    hidden: width of a layer of the head before the last one; 0 leaves it out.
    activation: behind that layer, a name of `layers.mlp.ACTIVATIONS`.
    frozen: feature extraction: the trunk runs without dropout and keeps its values, whatever `optim` says.
    lm_weight: lambda of the auxiliary language model on both orders; needs a causal trunk that is not frozen (GPT: .5).
    pool: 'trunk' pools as the trunk's paper does, 'mean' takes the mean of the real tokens, 'concat' the last of them,
      the largest values and the mean side by side (ULMFiT).
    init_std: of the head's kernels.

  Raises:
    ValueError: settings that contradict each other.
  """
  del vocab
  texts.check_head('similarity', trunk, activation=activation, pool=pool, frozen=frozen, lm_weight=lm_weight)
  count = classify.class_count(kind, classes=classes)
  s = Setup(texts.inputs_of(trunk), kind == 'regression', lm_weight)
  head = dropout, hidden, activation, frozen, pool, init_std
  model = sequences.Model(trunk, 'sum', count or 1, *head)
  functions = partial(prepare, s), partial(loss, s), partial(classify.predict, s.regression)
  task = Task(model, *functions, in_words=classify.in_words, trains=texts.trained(frozen, trunk))
  return classify.scored(task, regression=s.regression, classes=count)


def prepare(s: Setup, root: Array, batch: Batch) -> Example:
  """Both orders of each pair [b, 2, l] and its label; the next tokens where the language model is trained as well."""
  del root
  names = [name for name in texts.OF_TEXT if name in batch and f'swapped_{name}' in batch]
  both = {name: jnp.stack([batch[name], batch[f'swapped_{name}']], axis=1) for name in names}
  targets = texts.labelled(batch, regression=s.regression)
  targets['scale'] = batch_scale(targets['weights'])
  if s.lm_weight:
    targets |= texts.lm_targets(both['tokens'], both['segment_ids'])
  return Example(sequences.read(both, s.inputs), targets)


def loss(s: Setup, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Cross-entropy or squared error of each pair, and the language model's loss where it is trained."""
  del carry, rng
  targets, weights = example.targets, example.targets['weights']
  outputs, hidden = forward(**example.inputs)
  values, metrics = classify.costs(s.regression, outputs, targets)
  values, metrics = texts.with_language_model(s.lm_weight, forward, hidden, targets, values, metrics)
  return Loss(scaled_sum(values, weights, targets['scale']), metrics | {'loss': metric(values, weights)})
