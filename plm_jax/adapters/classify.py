"""Classification or regression of a text or a pair from the trunk's pooled output (BERT §4.1, GPT §3.2).

BERT pools the [CLS] vector with its tanh pooler, GPT the state of the last real token. `lm_weight` adds the language
model's loss on the task text, L3 = L2 + lambda L1 (GPT eq. 5; both are negative log-likelihoods to minimise). Several
layers can be combined (`layers`, `join`): each is pooled separately, and the vectors are joined. ULMFiT reads a text in
windows (`window`, `last`) and, for the second of two classifiers, backwards (`backward`). A new BiLSTM can read the
states before they are pooled (`lstm_layers`; BERT §5.1).
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.adapters import bpt3c, sequences, texts
from plm_jax.adapters.texts import Pool, PoolWindows, label_weights, read_text, scaled_class_weights
from plm_jax.core import errors
from plm_jax.core.keywords import Count, LayerNumber, NonNegativeInt, PartRate, Rate, Std, Weight
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, PyTree, Supervised, Task, Vocab
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.losses import binary_cross_entropy, cross_entropy, smoothed_cross_entropy
from plm_jax.layers.means import batch_scale, metric, scaled_sum
from plm_jax.layers.mlp import Norms
from plm_jax.layers.scalar_mix import Join, JoinedStates, check_join, read_layers

PAPER = Supervised(year=2018, title='BERT §4.1, GPT §3.2')
READS = ('tokens', 'segment_ids', 'label')
READS_WITH = {'several': ('classes', '-label'), 'pool_windows': ('tokens[bwl]', 'segment_ids[bwl]')}
DATA = dict(name='labelled')  # keys of the data block of a published head; `kind` is that of the adapter
OF_A_ROW = True  # one prediction per example, so that adapters/distil.py can compare it
QUICK = dict(kind='class', layers=(), layer_weights=(), class_weights=())  # settings of a smoke test (`file.py:quick`)

Kind = Literal['class', 'regression']


class Model(nn.Module):
  """Trunk, pooling, dropout and one dense layer, or two with an activation between them.

  Attributes are keywords of `make`; `outputs` is the width of the last layer, and `layers` are all that are pooled.
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
  pool_windows: PoolWindows | None = None
  lstm_layers: int = 0

  def setup(self) -> None:
    self.states = JoinedStates(self.join, self.layer_weights)
    self.lstm = texts.make_lstm(self.trunk, self.lstm_layers, dropout=self.dropout)
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
    """Compute outputs f32[b, c] and trunk states [b, l, d].

    With batch norms a third item holds their new averages by parameter path (`Loss.kept`).

    Args:
      train: applies dropout, and normalises by the batch.
      counts: bool[b], examples that batch norms average over; examples without a token never count.
    """
    # windows of texts are read as texts: [b, w, l] -> [b w, l]
    whole = texts.segments_of(inputs)
    if self.pool_windows:
      inputs = {name: sequences.fold(value) for name, value in inputs.items()}
      counts = None if counts is None else jnp.repeat(counts, whole.shape[1])
    # 1. states of the trunk, [b, l, d] per layer
    noisy, segment_ids = train and not self.frozen, texts.pooled_segments(self.trunk, inputs)
    if self.window is None:
      out = self.trunk(**inputs, train=noisy)
    else:
      out = bpt3c.read(self.trunk, inputs['tokens'], segment_ids, window=self.window, train=noisy)
      segment_ids = bpt3c.pooled_windows(segment_ids, window=self.window, last=self.last)
    # 2. pool each layer, then join
    states = read_layers(out, self.layers)
    if self.lstm_layers:  # on one layer
      below = jax.lax.stop_gradient(states[0]) if self.frozen else states[0]
      states = [self.lstm(below, segment_ids, train=train)]
    pool = partial(texts.pooled, self.trunk, pool=self.pool, frozen=self.frozen and not self.lstm_layers)
    layer_vectors = [pool(hidden, segment_ids) for hidden in states]  # [b, l, d] -> [b, d]
    vectors = self.states(layer_vectors).astype(jnp.float32)
    # 3. head
    if self.norms == 'batch':
      is_text = (segment_ids > 0).any(axis=1)
      outputs, averages = self.head(vectors, train=train, counts=is_text if counts is None else is_text & counts)
      kept = {f'head/{name}': value for name, value in averages.items()}
      return self._of_texts(outputs, whole), out['hidden'], kept
    if self.hidden:
      return self._of_texts(self.head(vectors, train=train), whole), out['hidden']
    return self._of_texts(self.head(self.head_dropout(vectors, train=train)), whole), out['hidden']

  def _of_texts(self, outputs: Array, segment_ids: Array) -> Array:
    """Join the outputs of windows: [b w, c] -> [b, c]."""
    if self.pool_windows is None:
      return outputs
    return texts.pooled_outputs(outputs.reshape(*segment_ids.shape[:2], -1), segment_ids, self.pool_windows)

  def attend(self, features: Array, train: bool = False) -> Array:
    """Compute vocabulary logits f32[..., v] for the auxiliary language model."""
    return self.trunk.attend(features)


class ClassifySettings(NamedTuple):
  """Inputs and loss of a classification or regression, as in `make`."""

  inputs: texts.Inputs
  kind: str  # 'class', 'regression', or 'several' for several classes
  threshold: float
  classes: int
  lm_weight: float
  class_weights: tuple[float, ...]
  label_smoothing: float
  backward: bool
  batch_norms: bool  # the head has batch norms, which ignore examples that pad a batch
  windows: bool  # texts have windows


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  classes: Annotated[int, '1 <= x'] | None = 2,
  kind: Kind = 'class',
  several: bool | None = None,
  threshold: Rate | None = None,
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
  pool_windows: PoolWindows | None = None,
  lstm_layers: NonNegativeInt | None = None,
) -> Task:
  """Classify a text, or predict one number.

  Args:
    classes: number of labels; ignored by regression. None: a run finds it in its training data.
    kind: 'class' is cross-entropy, 'regression' squared error.
    several: a text has any number of classes (kind='multilabel'); the loss is their mean binary cross-entropy.
    threshold: with `several`, the probability above which a class is predicted; None is .5.
    dropout: rate before each layer of the head.
    hidden: width of a layer of the head before the last one, as in BART and ELECTRA; 0 for none.
    activation: activation after that layer, a name of `layers.mlp.ACTIVATIONS`.
    layer: layer of the trunk that is pooled; -1 is its output, 0 its embeddings.
    layers: several layers instead of `layer`, each pooled separately, such as (-4, -3, -2, -1).
    join: of pooled vectors: 'concat', 'sum', 'weighted' sum by `layer_weights`, 'mix' (see layers/scalar_mix.py).
    layer_weights: a number for each of `layers`.
    frozen: feature extraction: the trunk runs without dropout and does not train, whatever `optim` says.
    lm_weight: lambda of the auxiliary language model; needs a causal trunk that is not frozen (GPT: .5).
    pool: 'trunk' as in its paper, 'mean' of the real tokens, 'concat' of last token, maximum and mean (ULMFiT).
    init_std: standard deviation of the head's kernels.
    bias: the last layer has a bias; published decoders that classify (GPT-2, LLaMA) have none.
    norms: before each layer of a head with `hidden`: True for a LayerNorm, 'batch' for a batch norm (ULMFiT), which
      supports neither `accumulate` nor `multitask`.
    class_weights: weight of the loss of each class, by class id; the loss is the weighted mean. Weights of
      examples / (classes x examples of the class) balance the classes. Accuracy is unweighted.
    label_smoothing: share of the loss spread evenly over all classes (Szegedy et al. 2016, §7); not in metric 'loss'.
    window: read texts in windows of this many tokens. Each starts from the state of the previous one, without a
      gradient between them (ULMFiT's BPT3C: 70). For a causal trunk with a carry. None reads whole texts.
    last: pool, and so train on, the windows that start in this many last tokens (ULMFiT: 1,400); None for all.
    backward: read texts from the last token to the first, for a trunk trained this way (`data.bptt`, reverse).
    input_dropout: rate before the first layer of a head with `hidden`; None for `dropout` (ULMFiT: .4 and .1).
    pool_windows: pool outputs, before softmax, over the windows of a text (`data.windows`); None for no windows.
    lstm_layers: number of new BiLSTM layers, as wide as the trunk, between it and the pooling; None for none.

  Raises:
    ValueError: settings that contradict each other.
  """
  check_layers(hidden=hidden, bias=bias, norms=norms, input_dropout=input_dropout)
  texts.check_head('classify', trunk, activation=activation, pool=pool, frozen=frozen, lm_weight=lm_weight)
  check_reading(trunk, window=window, last=last, backward=backward, pool_windows=pool_windows)
  if lstm_layers and len(layers) > 1:
    raise ValueError(f'adapter.lstm_layers={lstm_layers} reads one layer: remove it or adapter.layers={layers}')
  count = class_count(kind, classes=classes, least=1 if several else 2)
  s = ClassifySettings(
    class_weights=scaled_class_weights(class_weights, classes=count), inputs=texts.inputs_of(trunk), backward=backward,
    kind='several' if several and count else kind, threshold=0.5 if threshold is None else threshold, classes=count,
    lm_weight=lm_weight, label_smoothing=label_smoothing or 0.0, batch_norms=norms == 'batch',
    windows=pool_windows is not None,
  )  # fmt: skip
  check_loss(s, classes=count)
  model = Model(
    trunk=trunk, outputs=count or 1, dropout=dropout, hidden=hidden, activation=activation, init_std=init_std,
    layers=chosen_layers(layer, layers), join=join, layer_weights=tuple(layer_weights), frozen=frozen, pool=pool,
    bias=bias, norms=norms, window=window, last=last, input_dropout=input_dropout, pool_windows=pool_windows,
    lstm_layers=lstm_layers or 0,
  )  # fmt: skip
  return _make_task(s, model, classes=count)


def _make_task(s: ClassifySettings, model: Model, *, classes: int) -> Task:
  check_join(layers=model.layers, join=model.join, weights=model.layer_weights)
  task = Task(
    model=model,
    prepare=partial(prepare, s),
    loss=partial(loss, s),
    predict=partial(predict, s.kind, s.threshold),
    in_words=in_words,
    trains=texts.trained(model.frozen, model.trunk),
    couples_rows=s.batch_norms,
    keeps=s.batch_norms,
  )
  return scored(task, kind=s.kind, classes=classes)


def check_layers(*, hidden: int, bias: bool, norms: Norms, input_dropout: float | None) -> None:
  """Raise ValueError if settings do not fit the head's number of layers."""
  if input_dropout is not None and not hidden:
    raise ValueError(
      f'adapter.input_dropout={input_dropout} needs a head of two layers and adapter.hidden=0: use adapter.dropout'
    )
  if hidden and not bias:
    raise ValueError(f'adapter.bias=False needs a head of one layer and adapter.hidden={hidden}: remove one of them')
  if norms and not hidden:
    raise ValueError(
      f'adapter.norms={norms!r} needs a head of two layers and adapter.hidden=0: set adapter.hidden to a width'
    )
  if hidden < 0:
    raise ValueError(f'adapter.hidden={hidden} is negative: give a width, or 0 for no layer')


def chosen_layers(layer: int, layers: tuple[int, ...]) -> tuple[int, ...]:
  """Return the layers to pool; raise ValueError if both keywords are given."""
  if layers and layer != -1:
    raise ValueError(f'adapter.layer={layer} and adapter.layers={layers} are both given: remove one of them')
  return tuple(layers) or (layer,)


def check_loss(s: ClassifySettings, *, classes: int) -> None:
  """Raise ValueError if settings of the loss contradict each other."""
  if s.class_weights and s.lm_weight:
    raise ValueError(f'adapter.class_weights cannot be used with adapter.lm_weight={s.lm_weight}: remove one of them')
  if s.label_smoothing and not classes:
    raise ValueError(f'adapter.label_smoothing={s.label_smoothing} needs classes and this is a regression: remove it')
  if s.label_smoothing and s.kind == 'several':
    raise ValueError(
      f'adapter.label_smoothing={s.label_smoothing} needs one class per text: remove it or adapter.several'
    )


def check_reading(
  trunk: nn.Module, *, window: int | None, last: int | None, backward: bool, pool_windows: str | None
) -> None:
  """Raise ValueError if the trunk cannot read texts this way."""
  if pool_windows is not None and (window is not None or backward):
    other = 'adapter.backward=True' if backward else f'adapter.window={window}'
    raise ValueError(f'adapter.pool_windows={pool_windows!r} cannot be used with {other}: remove one of them')
  if last is not None and window is None:
    raise ValueError(
      f'adapter.last={last} selects windows and adapter.window=None reads whole texts: set adapter.window'
    )
  if window is not None:
    errors.require(trunk, user="adapter 'classify' with window", attention=('causal',), inputs=('carry',))
  if backward:
    user, inputs = "adapter 'classify' with backward", ('tokens', 'segment_ids')
    errors.require(trunk, user=user, attention=('causal',), inputs=inputs)


def class_count(kind: str, *, classes: int | None, least: int = 2) -> int:
  """Return the number of classes; 0 for a regression.

  Raises:
    ValueError: an unknown kind, fewer than `least` classes, or no number.
  """
  errors.one_of('adapter.kind', kind, Kind)
  if kind == 'regression':
    return 0
  if classes is None:
    raise ValueError('adapter.classes=None is only for `plm-jax train`, which counts them: give the number of classes')
  if classes < least:
    raise ValueError(f"adapter.classes={classes} is too few: give 2 or more, or set adapter.kind='regression'")
  return classes


def scored(task: Task, *, kind: str, classes: int) -> Task:
  """Add the number of classes, or the score of other labels."""
  scores = {'regression': ('correlation',), 'several': ('multilabel',)}
  return task._replace(scores=scores.get(kind, ()), classes=classes)


def prepare(s: ClassifySettings, root: Array, batch: Batch) -> Example:
  """Prepare texts and labels; with `lm_weight` also the next tokens."""
  if s.backward:
    batch = {**batch, 'tokens': bpt3c.reversed_tokens(batch['tokens'], batch['segment_ids'])}
  targets = texts.labelled(batch, kind=s.kind, classes=s.classes)
  weights = targets['weights']
  if s.class_weights and s.kind == 'class':
    weights = targets['loss_weights'] = weights * label_weights(targets['label'], s.class_weights)
  targets['scale'] = batch_scale(weights)
  if s.lm_weight:
    own = (batch[name] if s.windows else batch[name][:, None] for name in ('tokens', 'segment_ids'))
    targets |= texts.lm_targets(*own)
  inputs = sequences.read(batch, s.inputs) if s.windows else read_text(batch, s.inputs)
  return Example(inputs | {'counts': batch['row_weight'] > 0} if s.batch_norms else inputs, targets)


def loss(s: ClassifySettings, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute cross-entropy or squared error, and the weighted language model's loss."""
  targets, weights = example.targets, example.targets['weights']
  loss_weights = targets.get('loss_weights', weights)
  outputs, hidden, *averages = forward(**example.inputs)
  values, metrics = costs(s.kind, outputs, targets, threshold=s.threshold, class_weights=s.class_weights)
  values, metrics = texts.with_language_model(s.lm_weight, forward, hidden, targets, values, metrics)
  trained = values
  if s.label_smoothing:
    nats, smoothed = smoothed_cross_entropy(outputs, targets['label'], smoothing=s.label_smoothing)
    trained = values + smoothed - nats
    metrics['smoothed_loss'] = metric(trained, loss_weights)
  metrics['loss'] = metric(values, loss_weights)
  result = Loss(scaled_sum(trained, loss_weights, targets['scale']), metrics)
  return result._replace(kept=averages[0]) if averages else result


def costs(
  kind: str,
  outputs: Array,
  targets: Mapping[str, Array],
  *,
  threshold: float = 0.5,
  class_weights: tuple[float, ...] = (),
) -> tuple[Array, dict[str, tuple[Array, Array]]]:
  """Compute squared error or cross-entropy per example, f32[b], and metrics.

  `outputs` are f32[b, c]; `targets` has 'weights' [b], and 'label' [b] or 'classes' [b, c].
  """
  weights = targets['weights']
  if kind == 'several':
    right = (jax.nn.sigmoid(outputs) > threshold) == targets['classes']
    shares = jnp.asarray(class_weights or (1.0,) * outputs.shape[1]) / (sum(class_weights) or outputs.shape[1])
    values = (binary_cross_entropy(outputs, targets['classes']) * shares).sum(axis=-1)
    return values, {'subset_accuracy': metric(right.all(axis=-1), weights)}
  if kind == 'regression':
    values = jnp.square(outputs[:, 0] - targets['label'])
    return values, {'squared_error': metric(values, weights)}
  right = outputs.argmax(axis=-1) == targets['label']
  return cross_entropy(outputs, targets['label']), {'accuracy': metric(right, weights)}


def predict(kind: str, threshold: float, forward: Forward, example: Example) -> dict[str, Array]:
  """Predict 'value' f32[b], or 'label' int[b] and 'probability' f32[b, c].

  With 'several' each class has its own 'probability', which is compared with 'threshold' f32[b].
  """
  outputs = forward(**example.inputs)[0]
  if kind == 'regression':
    return {'value': outputs[:, 0]}
  if kind == 'several':
    return {'probability': jax.nn.sigmoid(outputs), 'threshold': jnp.full(outputs.shape[0], threshold, jnp.float32)}
  return {'label': outputs.argmax(axis=-1), 'probability': jax.nn.softmax(outputs, axis=-1)}


def in_words(prediction: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
  """Return the name of the class, or ids and names of several."""
  names = record.get('names', ())
  if 'threshold' in prediction:
    ids = (prediction['probability'] > prediction['threshold']).nonzero()[0].tolist()
    return {'classes': ids} | ({'names': [names[index] for index in ids]} if names else {})
  return {'name': names[int(prediction['label'])]} if names and 'label' in prediction else {}
