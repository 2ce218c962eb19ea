"""Sequence labelling, a label for every word: parts of speech, names, chunks (BERT §5.3; BART §3.2).

The state of a word's first piece is classified by one or two dense layers. Bidirectional LSTM layers can be added below
them (BERT's Table 7, for a frozen trunk). `crf` scores the labels of a text as one path (Lample et al. 2016, §2.2).
Encoders and decoders use the states of their tokens. An encoder-decoder reads the text on both sides, and the top
decoder state labels each token.

With labels of entities (BIO, BIOES and the like, `core/entities.py`) a span is correct if its first word, its last word
and its type are right, as in the CoNLL shared task (Tjong Kim Sang and De Meulder 2003): F1 = 2 tp / (2 tp + fp + fn)
over all examples.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.adapters.texts import (
  Inputs,
  check_names,
  inputs_of,
  label_weights,
  make_head,
  read_text,
  scaled_class_weights,
  segments_of,
  trained,
)
from plm_jax.core import entities
from plm_jax.core.errors import one_of
from plm_jax.core.keywords import Count, LayerNumber, NonNegativeInt, PartRate, Std, Weight
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, PyTree, Supervised, Task, Vocab
from plm_jax.layers.crf import Chain, Crf, best_path, log_likelihood, probabilities, side_by_side
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.losses import smoothed_cross_entropy
from plm_jax.layers.lstm import StackedLstm
from plm_jax.layers.means import batch_scale, metric
from plm_jax.layers.mlp import Activation
from plm_jax.layers.scalar_mix import Join, JoinedStates, check_join, read_layers
from plm_jax.scores.seqeval import tags_of

PAPER = Supervised(year=2018, title='BERT §5.3, BART §3.2')
READS = ('tokens', 'segment_ids', 'labels')
DATA = dict(name='labelled', kind='words', fields=('tokens',))  # keys of the data block of a published head
QUICK = dict(  # settings of a smoke test (`file.py:quick`)
  tags=('O', 'B-name', 'I-name', 'B-type', 'I-type'), layers=(-1,), layer_weights=(), lstm_dim=16, class_weights=()
)


class Model(nn.Module):
  """Trunk, optional LSTM layers, dropout and one or two dense layers over every token; an optional CRF.

  Attributes are keywords of `make`; `outputs` is the width of the last layer.
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
  lstm_layers: int
  lstm_dim: int
  crf: bool
  init_std: float

  def setup(self) -> None:
    self.states = JoinedStates(self.join, self.layer_weights)
    self.lstm = StackedLstm(self.lstm_dim, self.lstm_layers, self.dropout, self.trunk.execution.dtype)
    self.label_path = Crf(self.outputs)
    self.head = make_head(
      self.outputs, hidden=self.hidden, activation=self.activation, dropout=self.dropout, init_std=self.init_std
    )
    self.head_dropout = Dropout(self.dropout)

  def __call__(self, train: bool = False, **inputs: Array) -> Array:
    """Compute logits f32[b, l, c] per token."""
    out = self.trunk(**inputs, train=train and not self.frozen)
    states = read_layers(out, self.layers)
    if self.frozen:
      states = jax.lax.stop_gradient(states)
    hidden = self.states(states)  # [b, l, d], or [b, l, d * layers] concatenated
    if self.lstm_layers:
      hidden = self.lstm(hidden, segments_of(inputs), train=train)
    if self.crf and self.is_initializing():
      self.label_path()
    hidden = hidden.astype(jnp.float32)
    if self.hidden:
      return self.head(hidden, train=train)
    return self.head(self.head_dropout(hidden, train=train))

  def chain(self, train: bool = False) -> Chain:
    """Return the transition scores of the CRF."""
    return self.label_path()


class Scheme(NamedTuple):
  """A scheme of labels of entities."""

  types: np.ndarray  # int32[c], type of each label from 1; 0 for O
  opens: np.ndarray  # bool[c], True for a B or S
  closes: np.ndarray  # bool[c], True for an E or S


class TagSettings(NamedTuple):
  """Inputs and loss; settings not listed are explained in `make`."""

  inputs: Inputs
  scheme: Scheme | None  # scheme of the labels; None if they are not of entities
  crf: bool
  class_weights: tuple[float, ...]
  label_smoothing: float


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  tags: tuple[str, ...] = (),
  dropout: PartRate = 0.1,
  hidden: NonNegativeInt = 0,
  activation: Annotated[str, 'layers.mlp:ACTIVATIONS'] = 'tanh',
  layers: tuple[LayerNumber, ...] = (-1,),
  join: Join = 'concat',
  layer_weights: tuple[Annotated[float, 'any'], ...] = (),
  frozen: bool = False,
  lstm_layers: NonNegativeInt = 0,
  lstm_dim: Count = 768,
  crf: bool = False,
  class_weights: tuple[Weight, ...] = (),
  label_smoothing: PartRate = 0.0,
  init_std: Std = 0.02,
) -> Task:
  """Label words from the states of their first pieces.

  Args:
    vocab: vocabulary of the data, from `data/labelled.py` with kind='words'.
    tags: names of the labels by id. If all are 'O', 'B-...', 'I-...', 'E-...' and so on, spans are scored. (): a run
      finds them in its training data.
    dropout: rate before each dense layer, and before each LSTM layer.
    hidden: width of a dense layer before the last one; 0 for none.
    activation: activation after that layer, a name of `layers.mlp.ACTIVATIONS`.
    layers: layers whose states are read; -1 is the trunk's output, 0 its embeddings. (-4, -3, -2, -1) concatenated is
      the best choice of BERT's Table 7 for a frozen trunk.
    join: 'concat' concatenates the states, 'sum' adds them, 'weighted' adds them times `layer_weights`, 'mix' learns
      weights and a factor (layers/scalar_mix.py).
    layer_weights: a number for each of `layers`.
    frozen: feature extraction: the trunk runs without dropout and does not train, whatever `optim` says.
    lstm_layers: number of LSTM layers below the dense layers; Table 7 of BERT has 2 over a frozen trunk.
    lstm_dim: state width of each of their directions.
    crf: the labels of a text are one path of a conditional random field; the loss is its negative log-likelihood over
      the number of words, so that rates carry over.
    class_weights: weight of the loss of each tag; the loss is the weighted mean. Not for a CRF.
    label_smoothing: share a of the loss that is spread over all labels: targets are 1 - a of the right label and a / c
      of each of the c labels (Szegedy et al. 2016, §7). The metric 'loss' excludes it. Not for a CRF.
    init_std: standard deviation of the kernels of the dense layers.

  Raises:
    ValueError: fewer than two tags, a tag twice, or settings that contradict each other.
  """
  check_names('tags', tags)
  check_join(layers=layers, join=join, weights=layer_weights)
  for name, value in (('class_weights', class_weights), ('label_smoothing', label_smoothing)):
    if crf and value:
      raise ValueError(f'adapter.{name}={value} cannot be used with adapter.crf=True: remove one of them')
  one_of('adapter.activation', activation, Activation)
  class_weights = scaled_class_weights(class_weights, classes=len(tags))
  s = TagSettings(inputs_of(trunk), bio(tuple(tags)), crf, class_weights, label_smoothing)
  model = Model(
    trunk=trunk, outputs=len(tags), dropout=dropout, hidden=hidden, activation=activation, layers=tuple(layers),
    join=join, layer_weights=tuple(layer_weights), frozen=frozen, lstm_layers=lstm_layers, lstm_dim=lstm_dim, crf=crf,
    init_std=init_std,
  )  # fmt: skip
  return _make_task(s, model, tags)


def _make_task(s: TagSettings, model: Model, tags: tuple[str, ...]) -> Task:
  return Task(
    model=model,
    prepare=partial(prepare, s),
    loss=partial(loss, s),
    predict=partial(predict, s),
    summary=span_scores,
    in_words=in_words,
    classes=len(tags),
    class_names=tuple(tags),
    trains=trained(model.frozen, model.trunk),
  )


def prepare(s: TagSettings, root: Array, batch: Batch) -> Example:
  """Prepare texts, and the labels of first pieces of words."""
  row_weight = batch['row_weight'][:, None]
  labelled = (batch['labels'] >= 0) & (batch['segment_ids'] > 0) & (row_weight > 0)
  weights = labelled * row_weight
  targets = {
    'labels': jnp.where(labelled, batch['labels'], -1),
    'weights': weights,
    'scale': batch_scale(weights),
    'segment_ids': batch['segment_ids'],
  }
  if s.class_weights:
    targets['loss_weights'] = weights * label_weights(batch['labels'], s.class_weights)
    targets['scale'] = batch_scale(targets['loss_weights'])
  return Example(read_text(batch, s.inputs), targets)


def loss(s: TagSettings, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute the cross-entropy of labels, or of CRF paths; count BIO spans."""
  targets = example.targets
  labels, weights = targets['labels'], targets['weights']
  loss_weights = targets.get('loss_weights', weights)
  logits = forward(**example.inputs)
  # 1. loss and predicted labels
  if s.crf:
    words, order = side_by_side(labels >= 0, targets['segment_ids'])
    scores, right = to_words(logits, order), to_words(labels, order)
    chain = forward(method='chain')
    values = trained_values = -log_likelihood(scores, right, words, chain)[:, None]  # [b, 1]
    predicted = to_tokens(best_path(scores, words, chain), order)
  else:
    nats, smoothed = smoothed_cross_entropy(logits, jnp.maximum(labels, 0), smoothing=s.label_smoothing)
    values, trained_values = nats * loss_weights, smoothed * loss_weights  # [b, l]
    predicted = logits.argmax(axis=-1)
  # 2. metrics
  total = weights.sum()
  metrics = {'loss': (values.sum(), loss_weights.sum()), 'accuracy': metric(predicted == labels, weights)}
  if s.scheme is not None:
    counts = span_counts(predicted, labels, targets['segment_ids'], s.scheme)
    metrics |= {name: (count, total) for name, count in zip(('tp', 'fp', 'fn'), counts, strict=True)}
  return Loss((trained_values.sum(axis=1) * targets['scale']).sum(), metrics)


def predict(s: TagSettings, forward: Forward, example: Example) -> dict[str, Array]:
  """Predict labels int[b, l] and probabilities f32[b, l] of words.

  They are at first pieces, and -1 and 0 elsewhere. A CRF predicts the best path.
  """
  targets = example.targets
  is_word = targets['labels'] >= 0
  logits = forward(**example.inputs)
  if s.crf:
    words, order = side_by_side(is_word, targets['segment_ids'])
    scores, chain = to_words(logits, order), forward(method='chain')
    labels = to_tokens(best_path(scores, words, chain), order)
    marginals = to_tokens(probabilities(scores, words, chain), order)
  else:
    labels, marginals = logits.argmax(axis=-1), jax.nn.softmax(logits, axis=-1)
  chosen = jnp.take_along_axis(marginals, labels[..., None], axis=-1)[..., 0]  # [b, l, c] -> [b, l]
  return {'labels': jnp.where(is_word, labels, -1), 'probability': jnp.where(is_word, chosen, 0.0)}


def to_words(values: Array, order: Array) -> Array:
  """Reorder token values [b, l, ...] by the order of `side_by_side`."""
  return jnp.take_along_axis(values, order.reshape(*order.shape, *(1,) * (values.ndim - 2)), axis=1)


def to_tokens(values: Array, order: Array) -> Array:
  """Invert `to_words`."""
  return to_words(values, jnp.argsort(order, axis=1))


def in_words(prediction: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
  """Return one tag per word; None for a truncated word."""
  return {'tags': tags_of(prediction['labels'], record)}


def span_scores(means: dict[str, float]) -> dict[str, float]:
  """Compute precision, recall and F1 of spans, if they were counted."""
  if 'tp' not in means:
    return {}
  tp, fp, fn = (means[name] for name in ('tp', 'fp', 'fn'))  # each over the number of words, which cancels out
  ratio = lambda part, whole: part / whole if whole else 0.0  # noqa: E731
  return {'precision': ratio(tp, tp + fp), 'recall': ratio(tp, tp + fn), 'f1': ratio(2 * tp, 2 * tp + fp + fn)}


def spans(
  tags: Array, segment_ids: Array, *, types: Array, opens: Array, closes: Array | None = None
) -> tuple[Array, Array, Array]:
  """Find the spans of labels of entities.

  A span starts at a B or S, and at a label that continues no span: after an O, E or S, another type or another text
  (conlleval). `tags` int[b, w] are labels of words and `segment_ids` int[b, w] their texts, 0 for no word; the others
  are those of `Scheme`, `closes` None without any. Returns the starts bool[b, w], the last word int[b, w] of the span
  that starts here, and its type int[b, w].
  """
  # labels  O B-x I-x I-y   kind 0 1 1 2   starts 0 1 0 1   last, at the starts: - 2 - 3
  kind = jnp.where(segment_ids > 0, types[tags], 0)
  same = (kind[:, 1:] == kind[:, :-1]) & (segment_ids[:, 1:] == segment_ids[:, :-1])
  same &= ~opens[tags[:, 1:]]
  if closes is not None:
    same &= ~closes[tags[:, :-1]]
  continues = jnp.pad(same, ((0, 0), (1, 0)))  # [b, w], the span of the word before
  starts = (kind > 0) & ~continues
  index, width = jnp.arange(tags.shape[1]), tags.shape[1]
  ends = ~jnp.pad(continues[:, 1:], ((0, 0), (0, 1)))
  last = jax.lax.cummin(jnp.where(ends, index, width), axis=1, reverse=True)
  return starts, last, kind


def bio(tags: tuple[str, ...]) -> Scheme | None:
  """Parse names of labels of entities; return None for others."""
  if not entities.are_tags(tags):
    return None
  parts = [entities.parts(tag) for tag in tags]
  kinds = sorted({kind for _, kind in parts if kind})
  types = [kinds.index(kind) + 1 if kind else 0 for _, kind in parts]
  opens, closes = (np.array([prefix in letters for prefix, _ in parts]) for letters in (('B', 'S'), ('E', 'S')))
  return Scheme(types=np.array(types, np.int32), opens=opens, closes=closes)


def span_counts(predicted: Array, labels: Array, segment_ids: Array, scheme: Scheme) -> tuple[Array, Array, Array]:
  """Count true positive, false positive and false negative spans, f32[] each.

  Arrays are int[b, l], of tokens; right labels are -1 except at the first piece of a word.
  """
  # BIO closes nothing, and its program stays that of earlier versions
  own = {name: jnp.asarray(value) for name, value in scheme._asdict().items() if name != 'closes' or value.any()}
  # 1. the words of each example, in order, without other tokens
  words = jnp.argsort(labels < 0, axis=1, stable=True)
  is_word, text = to_words(labels >= 0, words), to_words(segment_ids, words)
  text = jnp.where(is_word, text, 0)
  # 2. spans that start at the same word match if their ends and types are equal
  (starts, last, kind), (right, right_last, right_kind) = (
    spans(to_words(jnp.maximum(tags, 0), words), text, **own) for tags in (predicted, labels)
  )
  both = starts & right & (last == right_last) & (kind == right_kind)
  tp, fp, fn = both, starts & ~both, right & ~both
  return tp.sum().astype(jnp.float32), fp.sum().astype(jnp.float32), fn.sum().astype(jnp.float32)
