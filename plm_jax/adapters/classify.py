"""Classification or regression of one text or a pair from the trunk's own pooling (BERT §4.1, GPT §3.2).

BERT reads the [CLS] vector through its tanh pooler, GPT the state of the last real token. `lm_weight` adds the language
model's loss on the task text, L3 = L2 + lambda L1 (GPT eq. 5; both are negative log-likelihoods to minimise). Several
layers may be read together (`layers`, `join`): each is pooled by itself, and the vectors are joined. ULMFiT reads a
text in windows (`window`, `last`) and, for the second of two classifiers, from its end (`backward`).
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.adapters import bpt3c, texts
from plm_jax.adapters.texts import Pool, label_weights, read_text, scaled_class_weights
from plm_jax.core import errors
from plm_jax.core.types import (
  Array,
  Batch,
  Count,
  Example,
  Forward,
  LayerNumber,
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
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.losses import cross_entropy, smoothed_cross_entropy
from plm_jax.layers.means import batch_scale, metric, scaled_sum
from plm_jax.layers.mlp import Norms
from plm_jax.layers.scalar_mix import Join, JoinedStates, check_join, read_layers

PAPER = Paper(
  year=2018, title='BERT §4.1, GPT §3.2', architecture='any', objective_family='supervised', supervision='supervised'
)
READS = ('tokens', 'segment_ids', 'label')
OF_A_ROW = True  # what it predicts is of a whole row, so that adapters/distil.py can compare it
QUICK = dict(kind='class', layers=(), layer_weights=(), class_weights=())  # of a smoke test (`file.py:quick`)

Kind = Literal['class', 'regression']


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
    pool: 'trunk' pools as the trunk's paper does, 'mean' takes the mean of the real tokens, 'concat' the last of them,
      the largest values and the mean side by side (ULMFiT).
    init_std: of the head's kernels.
    bias: the last layer has one.
    norms: before both layers, see `make`.
    window: tokens that are read at a time; None for whole rows.
    last: tokens of a row in whose windows states are pooled; None for all.
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
  norms: Norms
  window: int | None
  last: int | None
  input_dropout: float | None = None

  def setup(self) -> None:
    self.states = JoinedStates(self.join, self.layer_weights)
    self.head = texts.make_head(
      self.outputs,
      hidden=self.hidden,
      activation=self.activation,
      dropout=self.dropout,
      init_std=self.init_std,
      bias=self.bias,
      norms=self.norms,
      input_dropout=self.input_dropout,
    )
    self.head_dropout = Dropout(self.dropout)

  def __call__(self, train: bool = False, counts: Array | None = None, **inputs: Array) -> tuple[Any, ...]:
    """(outputs f32[b, c], the states they came from [b, l, d]), and with batch norms what they keep (`Loss.kept`).

    Args:
      train: drops out, and normalises by the batch.
      counts: bool[b], rows of which batch norms are; of rows without a token they never are.
      **inputs: what the trunk reads.
    """
    noisy, segment_ids = train and not self.frozen, texts.segments_of(inputs)
    if self.window is None:
      out = self.trunk(**inputs, train=noisy)
    else:
      out = bpt3c.read(self.trunk, inputs['tokens'], segment_ids, window=self.window, train=noisy)
      segment_ids = bpt3c.kept(segment_ids, window=self.window, last=self.last)
    pool = partial(texts.pooled, self.trunk, pool=self.pool, frozen=self.frozen)
    each = [pool(hidden, segment_ids) for hidden in read_layers(out, self.layers)]  # [b, l, d] -> [b, d]
    vectors = self.states(each).astype(jnp.float32)
    if self.norms == 'batch':
      is_text = (segment_ids > 0).any(axis=1)
      outputs, kept = self.head(vectors, train=train, counts=is_text if counts is None else is_text & counts)
      return outputs, out['hidden'], {f'head/{name}': value for name, value in kept.items()}
    if self.hidden:
      return self.head(vectors, train=train), out['hidden']
    return self.head(self.head_dropout(vectors, train=train)), out['hidden']

  def attend(self, features: Array, train: bool = False) -> Array:
    """Vocabulary logits f32[..., v], for the auxiliary language model."""
    del train
    return self.trunk.attend(features)


class Setup(NamedTuple):
  """What is read and scored.

  Attributes:
    inputs: what the trunk reads.
    regression: one number is predicted and no class.
    lm_weight: of the auxiliary language model.
    class_weights: of the loss of each class; () where all weigh the same.
    label_smoothing: share of the loss that all classes have alike.
    backward: rows are read from their last token to their first.
    batch_norms: the head has some, of which rows that fill a batch up are no part.
  """

  inputs: tuple[str, ...]
  regression: bool
  lm_weight: float
  class_weights: tuple[float, ...]
  label_smoothing: float
  backward: bool
  batch_norms: bool


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  classes: Annotated[int, '1 <= x'] | None = 2,
  kind: Kind = 'class',
  dropout: PartRate = 0.1,
  hidden: NonNegativeInt = 0,
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
  norms: Norms = False,
  class_weights: tuple[Weight, ...] = (),
  label_smoothing: PartRate | None = None,
  window: Count | None = None,
  last: Count | None = None,
  backward: bool = False,
  input_dropout: PartRate | None = None,
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
    frozen: feature extraction: the trunk runs without dropout and keeps its values, whatever `optim` says.
    lm_weight: lambda of the auxiliary language model; needs a causal trunk that is not frozen (GPT: .5).
    pool: 'trunk' pools as the trunk's paper does; 'mean' takes the mean of the real tokens, which needs no pooler that
      pre-training has not seen; 'concat' puts the last real token, the largest values and the mean side by side
      (ULMFiT).
    init_std: of the head's kernels.
    bias: the last layer has one; published decoders that classify (GPT-2, LLaMA) have none.
    norms: before each layer of a head with `hidden`: True for a LayerNorm, 'batch' for a batch norm (ULMFiT), which
      refuses `accumulate` and stands in no `multitask`.
    class_weights: of the loss of each class, in the order of their numbers; the loss is the weighted mean. Weights of
      rows / (classes x rows of the class) balance the classes. Accuracy counts every row alike.
    label_smoothing: share a of the loss that all classes have alike: rows train on 1 - a of the right class and a / c
      of each of the c classes (Szegedy et al. 2016, §7); None and 0 for none. The metric is the loss without it.
    window: read rows in windows of so many tokens, each from the state behind the one before, without a gradient from
      one into another (ULMFiT's BPT3C: 70); for a causal trunk with a carry. None reads whole rows.
    last: pool, and so train on, the windows that begin among so many last tokens of a row (there: 1,400); None for all.
    backward: read rows from their last token to their first, for a trunk that was trained so (`data.bptt`, reverse).
    input_dropout: rate before the first layer of a head with `hidden`, where it is not `dropout` (ULMFiT: .4 and .1).
  """
  del vocab
  if input_dropout is not None and not hidden:
    raise ValueError(f'adapter.input_dropout={input_dropout} with adapter.hidden=0: one layer has one rate, dropout')
  if hidden and not bias:
    raise ValueError(f'adapter.bias=False with adapter.hidden={hidden}: both of two layers have biases')
  if norms and not hidden:
    raise ValueError(
      f'adapter.norms={norms!r} with adapter.hidden=0: norms stand before each of two layers; give a width'
    )
  if hidden < 0:
    raise ValueError(f'adapter.hidden={hidden}: a width, or 0 for no layer')
  texts.check_head('classify', trunk, activation=activation, pool=pool, frozen=frozen, lm_weight=lm_weight)
  count = class_count(kind, classes=classes)
  if layers and layer != -1:
    raise ValueError(f'adapter.layer={layer} and adapter.layers={layers}: give one of them')
  layers = tuple(layers) or (layer,)
  check_join(layers=layers, join=join, weights=layer_weights)
  class_weights = scaled_class_weights(class_weights, classes=count)
  if class_weights and lm_weight:
    raise ValueError(f'adapter.class_weights do not go with adapter.lm_weight={lm_weight}: leave one of them out')
  if label_smoothing and not count:
    raise ValueError(f'adapter.label_smoothing={label_smoothing}: a regression has no classes; leave it out')
  check_reading(trunk, window=window, last=last, backward=backward)
  batch_norms = norms == 'batch'
  of_loss = lm_weight, class_weights, label_smoothing or 0.0
  s = Setup(texts.inputs_of(trunk), kind == 'regression', *of_loss, backward, batch_norms)
  states = layers, join, tuple(layer_weights)
  head = dropout, hidden, activation
  model = Model(trunk, count or 1, *head, *states, frozen, pool, init_std, bias, norms, window, last, input_dropout)
  functions = partial(prepare, s), partial(loss, s), partial(predict, s.regression)
  task = Task(model, *functions, in_words=in_words, trains=texts.trained(frozen, trunk))
  task = task._replace(couples_rows=batch_norms, keeps=batch_norms)
  return scored(task, regression=s.regression, classes=count)


def check_reading(trunk: nn.Module, *, window: int | None, last: int | None, backward: bool) -> None:
  """Raises ValueError where rows cannot be read so; arguments as of `make`."""
  if last is not None and window is None:
    raise ValueError(f'adapter.last={last} counts tokens in whose windows states are pooled: give adapter.window too')
  if window is not None:
    errors.require(trunk, user="adapter 'classify' with window", attention=('causal',), inputs=('carry',))
  if backward:
    user, inputs = "adapter 'classify' with backward", ('tokens', 'segment_ids')
    errors.require(trunk, user=user, attention=('causal',), inputs=inputs)


def class_count(kind: str, *, classes: int | None) -> int:
  """How many classes are told apart; 0 where real values are predicted.

  Raises:
    ValueError: a kind of label that is none, fewer than two classes, or none said.
  """
  errors.one_of('adapter.kind', kind, Kind)
  if kind == 'regression':
    return 0
  if classes is None:
    raise ValueError('adapter.classes=None is found by `train` where a run begins; here it has to be said')
  if classes < 2:
    raise ValueError(f'adapter.classes={classes}: a classification has two classes or more')
  return classes


def scored(task: Task, *, regression: bool, classes: int) -> Task:
  """The task with the scores of values, or with its number of classes."""
  return task._replace(scores=('correlation',)) if regression else task._replace(classes=classes)


def prepare(s: Setup, root: Array, batch: Batch) -> Example:
  """The text and its label; the next tokens where the language model is trained as well."""
  del root
  if s.backward:
    batch = {**batch, 'tokens': bpt3c.turned(batch['tokens'], batch['segment_ids'])}
  targets = texts.labelled(batch, regression=s.regression)
  weights = targets['weights']
  if s.class_weights:
    weights = targets['loss_weights'] = weights * label_weights(targets['label'], s.class_weights)
  targets['scale'] = batch_scale(weights)
  if s.lm_weight:
    targets |= texts.lm_targets(batch['tokens'][:, None], batch['segment_ids'][:, None])
  inputs = read_text(batch, s.inputs)
  return Example(inputs | {'counts': batch['row_weight'] > 0} if s.batch_norms else inputs, targets)


def loss(s: Setup, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Cross-entropy or squared error of each row, and the language model's loss where it is trained."""
  del carry, rng
  targets, weights = example.targets, example.targets['weights']
  loss_weights = targets.get('loss_weights', weights)
  outputs, hidden, *kept = forward(**example.inputs)
  values, metrics = costs(s.regression, outputs, targets)
  values, metrics = texts.with_language_model(s.lm_weight, forward, hidden, targets, values, metrics)
  trained = values
  if s.label_smoothing:
    nats, smoothed = smoothed_cross_entropy(outputs, targets['label'], smoothing=s.label_smoothing)
    trained = values + smoothed - nats
    metrics['smoothed_loss'] = metric(trained, loss_weights)
  metrics['loss'] = metric(values, loss_weights)
  found = Loss(scaled_sum(trained, loss_weights, targets['scale']), metrics)
  return found._replace(kept=kept[0]) if kept else found


def costs(
  regression: bool, outputs: Array, targets: Mapping[str, Array]
) -> tuple[Array, dict[str, tuple[Array, Array]]]:
  """Squared error or cross-entropy of each row f32[b], and what is measured of the rows.

  Args:
    regression: of one number, and not of classes.
    outputs: f32[b, c].
    targets: with 'label' and 'weights' [b].
  """
  weights = targets['weights']
  if regression:
    values = jnp.square(outputs[:, 0] - targets['label'])
    return values, {'squared_error': metric(values, weights)}
  right = outputs.argmax(axis=-1) == targets['label']
  return cross_entropy(outputs, targets['label']), {'accuracy': metric(right, weights)}


def predict(regression: bool, forward: Forward, example: Example) -> dict[str, Array]:
  """The number, or the class and the probability of each class."""
  outputs = forward(**example.inputs)[0]
  if regression:
    return {'value': outputs[:, 0]}
  return {'label': outputs.argmax(axis=-1), 'probability': jax.nn.softmax(outputs, axis=-1)}


def in_words(prediction: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
  """The name of the class, where the data names classes."""
  names = record.get('names', ())
  return {'name': names[int(prediction['label'])]} if names and 'label' in prediction else {}
