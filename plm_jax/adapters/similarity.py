"""How alike two texts are, whatever their order: both orders are read and what stands for them is added (GPT §3.3).

<s> A $ B <e> and <s> B $ A <e> each give the state of their last token; one dense layer on the sum of the two gives a
value (STS-B) or classes (MRPC, QQP).
"""

from functools import partial
from typing import Annotated, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax import errors
from plm_jax.adapters import sequences
from plm_jax.adapters.classify import in_words
from plm_jax.adapters.sequences import Pool
from plm_jax.adapters.texts import class_count
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.losses import cross_entropy
from plm_jax.layers.means import batch_scale, metric, scaled_sum
from plm_jax.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Rate, Std, Task, Vocab, Weight, Whole

PAPER = Paper(year=2018, title='GPT §3.3', architecture='any', objective_family='supervised')
READS = ('tokens', 'segment_ids', 'swapped_tokens', 'swapped_segment_ids', 'label')
QUICK = dict(kind='class')  # of a smoke test (`file.py:quick`)

Kind = Literal['class', 'regression']


class Model(nn.Module):
  """Trunk, its pooling, the sum over both orders, dropout and a head.

  Attributes:
    trunk: any trunk with `pool`.
    outputs: columns of the last layer.
    dropout: rate before each layer of the head.
    hidden: width of a layer of the head before the last one; 0 leaves it out.
    activation: behind that layer, a name of `layers.mlp.ACTIVATIONS`.
    frozen: the trunk runs without dropout and gets no gradient.
    pool: 'trunk' pools as the trunk's paper does, 'mean' takes the mean of the real tokens.
    init_std: of the head's kernels.
  """

  trunk: nn.Module
  outputs: int
  dropout: float
  hidden: int
  activation: str
  frozen: bool
  pool: Pool
  init_std: float

  def setup(self) -> None:
    self.head = sequences.make_head(
      self.outputs, hidden=self.hidden, activation=self.activation, dropout=self.dropout, init_std=self.init_std
    )
    self.head_dropout = Dropout(self.dropout)

  def __call__(self, train: bool = False, **inputs: Array) -> tuple[Array, Array]:
    """(outputs f32[b, c], the states they came from [2 b, l, d])."""
    pooled, hidden = sequences.states(self.trunk, inputs, pool=self.pool, frozen=self.frozen, train=train)
    both = pooled.sum(axis=1)  # [b, 2, d] -> [b, d]
    if self.hidden:
      return self.head(both, train=train), hidden
    return self.head(self.head_dropout(both, train=train)), hidden

  def attend(self, features: Array, train: bool = False) -> Array:
    """Vocabulary logits f32[..., v], for the auxiliary language model."""
    del train
    return self.trunk.attend(features)


class Setup(NamedTuple):
  """What is read and scored.

  Attributes:
    two_stacks: the trunk has an encoder and a decoder.
    regression: one number is predicted and no class.
    lm_weight: of the auxiliary language model.
  """

  two_stacks: bool
  regression: bool
  lm_weight: float


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  classes: Annotated[int, '1 <= x'] | None = 2,
  kind: Kind = 'class',
  dropout: Rate = 0.1,
  hidden: Whole = 0,
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
    frozen: feature extraction: the trunk runs without dropout and under a stopped gradient. Freeze its parameters
      with optim.scale = (('trunk/.*', None), ('.*', 1.0)) as well, so that no optimiser state is kept for them.
    lm_weight: lambda of the auxiliary language model on both orders; needs a causal trunk that is not frozen (GPT: .5).
    pool: 'trunk' pools as the trunk's paper does, 'mean' takes the mean of the real tokens.
    init_std: of the head's kernels.

  Raises:
    ValueError: settings that contradict each other.
  """
  del vocab
  sequences.check('similarity', trunk, activation=activation, pool=pool, frozen=frozen, lm_weight=lm_weight)
  errors.one_of('adapter.kind', kind, Kind)
  count = class_count(classes, kind=kind)
  s = Setup('encoder_tokens' in trunk.INPUTS, kind == 'regression', lm_weight)
  model = Model(
    trunk,
    outputs=count or 1,
    dropout=dropout,
    hidden=hidden,
    activation=activation,
    frozen=frozen,
    pool=pool,
    init_std=init_std,
  )
  task = Task(model, partial(prepare, s), partial(loss, s), partial(predict, s), in_words=in_words)
  return task._replace(scores=('correlation',)) if s.regression else task._replace(classes=count)


def prepare(s: Setup, root: Array, batch: Batch) -> Example:
  """Both orders of each pair [b, 2, l] and its label; the next tokens where the language model is trained as well."""
  del root
  names = [name for name in ('tokens', 'segment_ids', 'type_ids') if name in batch and f'swapped_{name}' in batch]
  both = {name: jnp.stack([batch[name], batch[f'swapped_{name}']], axis=1) for name in names}
  weights = batch['row_weight']
  targets = {'label': batch['label'], 'weights': weights, 'scale': batch_scale(weights)}
  if s.lm_weight:
    targets |= sequences.lm_targets(both['tokens'], both['segment_ids'])
  return Example(sequences.read(both, two_stacks=s.two_stacks), targets)


def loss(s: Setup, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Cross-entropy or squared error of each pair, and the language model's loss where it is trained."""
  del carry, rng
  targets, weights = example.targets, example.targets['weights']
  outputs, hidden = forward(**example.inputs)
  if s.regression:
    values = jnp.square(outputs[:, 0] - targets['label'])
    metrics = {'squared_error': metric(values, weights)}
  else:
    values = cross_entropy(outputs, targets['label'])
    metrics = {'accuracy': metric(outputs.argmax(axis=-1) == targets['label'], weights)}
  if s.lm_weight:
    lm_values = sequences.lm_loss(forward, hidden, targets)
    metrics |= {'task_loss': metric(values, weights), 'lm_loss': metric(lm_values, weights)}
    values = values + s.lm_weight * lm_values
  return Loss(scaled_sum(values, weights, targets['scale']), metrics | {'loss': metric(values, weights)})


def predict(s: Setup, forward: Forward, example: Example) -> dict[str, Array]:
  """The number, or the class and the probability of each class."""
  outputs, _ = forward(**example.inputs)
  if s.regression:
    return {'value': outputs[:, 0]}
  return {'label': outputs.argmax(axis=-1), 'probability': jax.nn.softmax(outputs, axis=-1)}
