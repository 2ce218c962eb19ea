"""Classification or regression of one text or a pair from the trunk's own pooling (BERT §4.1, GPT §3.2).

BERT reads the [CLS] vector through its tanh pooler, GPT the state of the last real token. `lm_weight` adds the language
model's loss on the task text, L3 = L2 + lambda L1 (GPT eq. 5; both are negative log-likelihoods to minimise). Several
layers may be read together (`layers`, `join`): each is pooled by itself, and the vectors are joined.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax import errors
from plm_jax.adapters.texts import class_count, label_weights, read_text, scaled_class_weights
from plm_jax.errors import require
from plm_jax.layers import pooling
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Dense, normal
from plm_jax.layers.losses import chunked_cross_entropy, cross_entropy, next_tokens
from plm_jax.layers.means import batch_scale, metric, scaled_sum
from plm_jax.layers.mlp import ACTIVATIONS, PredictionHead
from plm_jax.layers.scalar_mix import Join, JoinedStates, check_join, read_layers
from plm_jax.types import (
  Array,
  Attends,
  Batch,
  Example,
  Forward,
  LayerNumber,
  Loss,
  Paper,
  PyTree,
  Rate,
  Std,
  Task,
  Vocab,
  Weight,
  Whole,
)

PAPER = Paper(year=2018, title='BERT §4.1, GPT §3.2', architecture='any', objective_family='supervised')
READS = ('tokens', 'segment_ids', 'label')
QUICK = dict(kind='class', layers=(), layer_weights=(), class_weights=())  # of a smoke test (`file.py:quick`)

Kind = Literal['class', 'regression']
Pool = Literal['trunk', 'mean']
LM_ROWS = 8  # batch rows whose vocabulary logits are in memory at a time


class Model(nn.Module):
  """Trunk, its pooling, dropout and one dense layer, or two with an activation between them.

  Attributes:
    trunk: any trunk with `pool`.
    outputs: columns of the last layer.
    dropout: rate before it.
    hidden: width of a layer before it; 0 leaves it out.
    activation: behind that layer, a name of `ACTIVATIONS`.
    layers: which of the trunk's layers are pooled; -1 is the trunk's output, 0 the embeddings.
    join: how their vectors become one, see `JoinedStates`.
    layer_weights: of join='weighted'.
    frozen: the trunk runs without dropout and gets no gradient.
    pool: 'trunk' pools as the trunk's paper does, 'mean' takes the mean of the real tokens.
    init_std: of the head's kernels.
    bias: the last layer has one.
  """

  trunk: nn.Module
  outputs: int
  dropout: float
  hidden: int
  activation: str
  layers: tuple[int, ...]
  join: Join
  layer_weights: tuple[float, ...]
  frozen: bool
  pool: Pool
  init_std: float
  bias: bool

  def setup(self) -> None:
    kernel_init = normal(self.init_std)
    self.states = JoinedStates(self.join, self.layer_weights)
    if self.hidden:
      self.two_layers = PredictionHead(
        self.hidden, self.outputs, self.activation, self.dropout, kernel_init, name='head'
      )
    else:
      self.head = Dense(self.outputs, axes=('embed', 'classes'), kernel_init=kernel_init, use_bias=self.bias)
      self.head_dropout = Dropout(self.dropout)

  def __call__(self, train: bool = False, **inputs: Array) -> tuple[Array, Array]:
    """(outputs f32[b, c], the states they came from [b, l, d])."""
    out = self.trunk(**inputs, train=train and not self.frozen)
    segment_ids = inputs['decoder_segment_ids'] if 'decoder_segment_ids' in inputs else inputs['segment_ids']
    pool = pooling.mean if self.pool == 'mean' else self.trunk.pool
    each = [pool(hidden, segment_ids) for hidden in read_layers(out, self.layers)]  # [b, l, d] -> [b, d]
    if self.frozen:
      each = jax.lax.stop_gradient(each)
    pooled = self.states(each).astype(jnp.float32)
    if self.hidden:
      return self.two_layers(pooled, train=train), out['hidden']
    return self.head(self.head_dropout(pooled, train=train)), out['hidden']

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
    class_weights: of the loss of each class; () where all weigh the same.
  """

  two_stacks: bool
  regression: bool
  lm_weight: float
  class_weights: tuple[float, ...]


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  classes: Annotated[int, '1 <= x'] | None = 2,
  kind: Kind = 'class',
  dropout: Rate = 0.1,
  hidden: Whole = 0,
  activation: Annotated[str, 'layers.mlp:ACTIVATIONS'] = 'tanh',
  layer: LayerNumber = -1,
  layers: tuple[LayerNumber, ...] = (),
  join: Join = 'concat',
  layer_weights: tuple[Annotated[float, 'any'], ...] = (),
  frozen: bool = False,
  lm_weight: Weight = 0.0,
  pool: Pool = 'trunk',
  init_std: Std = 0.02,
  bias: bool = True,
  class_weights: tuple[Weight, ...] = (),
) -> Task:
  """Classification over `classes` labels, or regression of one number.

  Args:
    trunk: any trunk.
    vocab: of the rows.
    classes: number of labels; ignored by regression. None: a run finds it in its training data.
    kind: 'class' is cross-entropy, 'regression' squared error.
    dropout: rate before each layer of the head.
    hidden: width of a layer of the head before the last one, as BART and ELECTRA have it; 0 leaves it out.
    activation: behind that layer, a name of `layers.mlp.ACTIVATIONS`.
    layer: which of the trunk's layers is pooled; -1 is its output, 0 its embeddings.
    layers: several layers in place of `layer`, each pooled by itself, such as (-4, -3, -2, -1).
    join: 'concat' puts the pooled vectors side by side, 'sum' adds them, 'weighted' adds them times `layer_weights`,
      'mix' learns weights and a factor (layers/scalar_mix.py).
    layer_weights: a number for each of `layers`.
    frozen: feature extraction: the trunk runs without dropout and under a stopped gradient. Freeze its parameters
      with optim.scale = (('trunk/.*', None), ('.*', 1.0)) as well, so that no optimiser state is kept for them; a run
      whose weight decay would move them is refused.
    lm_weight: lambda of the auxiliary language model; needs a causal trunk that is not frozen (GPT: .5).
    pool: 'trunk' pools as the trunk's paper does; 'mean' takes the mean of the real tokens, which needs no pooler that
      pre-training has not seen.
    init_std: of the head's kernels.
    bias: the last layer has one; published decoders that classify (GPT-2, LLaMA) have none.
    class_weights: of the loss of each class, in the order of their numbers; the loss is the weighted mean. Weights of
      rows / (classes x rows of the class) balance the classes. Accuracy counts every row alike.
  """
  del vocab
  if hidden and not bias:
    raise ValueError(f'adapter.bias=False with adapter.hidden={hidden}: both of two layers have biases')
  count = class_count(classes, kind=kind)
  check(kind=kind, hidden=hidden, activation=activation, frozen=frozen, lm_weight=lm_weight, pool=pool)
  if layers and layer != -1:
    raise ValueError(f'adapter.layer={layer} and adapter.layers={layers}: give one of them')
  layers = tuple(layers) or (layer,)
  check_join(layers=layers, join=join, weights=layer_weights)
  class_weights = scaled_class_weights(class_weights, classes=count)
  if class_weights and lm_weight:
    raise ValueError(f'adapter.class_weights do not go with adapter.lm_weight={lm_weight}: leave one of them out')
  if lm_weight:
    user, inputs = "adapter 'classify' with lm_weight", ('tokens', 'segment_ids')
    require(trunk, user=user, attention=('causal',), inputs=inputs, offers=(Attends,))
  s = Setup('encoder_tokens' in trunk.INPUTS, kind == 'regression', lm_weight, class_weights)
  states = layers, join, tuple(layer_weights)
  model = Model(trunk, count or 1, dropout, hidden, activation, *states, frozen, pool, init_std, bias)
  task = Task(model, partial(prepare, s), partial(loss, s), partial(predict, s), in_words=in_words)
  task = task._replace(frozen=('trunk/.*',) if frozen else ())
  return task._replace(scores=('correlation',)) if s.regression else task._replace(classes=count)


def check(*, kind: str, hidden: int, activation: str, frozen: bool, lm_weight: float, pool: str) -> None:
  """Raises ValueError where a setting of `make` is out of bounds or contradicts another one."""
  if activation not in ACTIVATIONS:
    raise ValueError(f'adapter.activation={activation!r}; choices are {", ".join(ACTIVATIONS)}')
  if hidden < 0:
    raise ValueError(f'adapter.hidden={hidden}: a width, or 0 for no layer')
  errors.one_of('adapter.pool', pool, Pool)
  errors.one_of('adapter.kind', kind, Kind)
  if lm_weight and frozen:
    raise ValueError(
      f'adapter.lm_weight={lm_weight} trains the trunk, which adapter.frozen keeps: leave one of them out'
    )


def prepare(s: Setup, root: Array, batch: Batch) -> Example:
  """The text and its label; the next tokens where the language model is trained as well."""
  del root
  weights = batch['row_weight']
  targets = {'label': batch['label'], 'weights': weights}
  if s.class_weights:
    weights = targets['loss_weights'] = weights * label_weights(batch['label'], s.class_weights)
  targets['scale'] = batch_scale(weights)
  if s.lm_weight:
    # released GPT code: the mean over a text's own tokens, then over texts
    following, real = next_tokens(batch['tokens'], batch['segment_ids'])
    targets['next'] = following
    targets['next_weights'] = real / jnp.maximum(real.sum(axis=1, keepdims=True), 1.0)
  return Example(read_text(batch, two_stacks=s.two_stacks), targets)


def loss(s: Setup, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Cross-entropy or squared error of each row, and the language model's loss where it is trained."""
  del carry, rng
  targets, weights = example.targets, example.targets['weights']
  loss_weights = targets.get('loss_weights', weights)
  outputs, hidden = forward(**example.inputs)
  if s.regression:
    values = jnp.square(outputs[:, 0] - targets['label'])
    metrics = {'squared_error': metric(values, weights)}
  else:
    values = cross_entropy(outputs, targets['label'])
    metrics = {'accuracy': metric(outputs.argmax(axis=-1) == targets['label'], weights)}
  if s.lm_weight:
    attend = lambda part: forward(method='attend', features=part)  # noqa: E731
    nats, _ = chunked_cross_entropy(attend, hidden, targets['next'], rows=LM_ROWS)
    lm_values = (nats * targets['next_weights']).sum(axis=1)
    metrics |= {'task_loss': metric(values, weights), 'lm_loss': metric(lm_values, weights)}
    values = values + s.lm_weight * lm_values
  return Loss(scaled_sum(values, loss_weights, targets['scale']), metrics | {'loss': metric(values, loss_weights)})


def predict(s: Setup, forward: Forward, example: Example) -> dict[str, Array]:
  """The number, or the class and the probability of each class."""
  outputs, _ = forward(**example.inputs)
  if s.regression:
    return {'value': outputs[:, 0]}
  return {'label': outputs.argmax(axis=-1), 'probability': jax.nn.softmax(outputs, axis=-1)}


def in_words(prediction: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
  """The name of the class, where the data names classes."""
  names = record.get('names', ())
  return {'name': names[int(prediction['label'])]} if names and 'label' in prediction else {}
