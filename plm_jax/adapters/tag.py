"""A label for every word: parts of speech, names, chunks (BERT §5.3; BART §3.2).

The state of a word's first piece is classified by one dense layer. Encoders and decoders give the states of their own
tokens; an encoder-decoder reads the text on both sides, and the top state of its decoder labels each token.

Where the labels are BIO, a span counts as found if its first word, its last word and its type are right, as in the
shared task of CoNLL (Tjong Kim Sang and De Meulder 2003): F1 = 2 tp / (2 tp + fp + fn) over all rows.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.adapters.texts import read_text
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Dense, normal
from plm_jax.layers.losses import cross_entropy
from plm_jax.layers.means import batch_scale, metric
from plm_jax.scores.seqeval import tags_of
from plm_jax.types import Array, Batch, Example, Forward, LayerNumber, Loss, Paper, PyTree, Rate, Std, Task, Vocab

PAPER = Paper(year=2018, title='BERT §5.3, BART §3.2', architecture='any', objective_family='supervised')
READS = ('tokens', 'segment_ids', 'labels')
QUICK = dict(tags=('O', 'B-name', 'I-name', 'B-type', 'I-type'), layers=(-1,))  # of a smoke test (`file.py:quick`)


class Model(nn.Module):
  """Trunk, dropout and one dense layer over every token.

  Attributes:
    trunk: any trunk.
    outputs: columns of the last layer.
    dropout: rate before it.
    layers: whose states are read, side by side; -1 is the trunk's output, 0 the embeddings.
    frozen: the trunk runs without dropout and gets no gradient.
    init_std: of the last layer's kernel.
  """

  trunk: nn.Module
  outputs: int
  dropout: float
  layers: tuple[int, ...]
  frozen: bool
  init_std: float

  def setup(self) -> None:
    self.head = Dense(self.outputs, axes=('embed', 'classes'), kernel_init=normal(self.init_std))
    self.head_dropout = Dropout(self.dropout)

  def __call__(self, train: bool = False, **inputs: Array) -> Array:
    """Logits f32[b, l, c] of each token."""
    out = self.trunk(**inputs, train=train and not self.frozen)
    count = len(out['layers'])
    if not all(-count <= layer < count for layer in self.layers):
      raise ValueError(
        f'adapter.layers={self.layers}: the trunk has states {-count} to {count - 1}, its embeddings are 0'
      )
    states = [out['hidden'] if layer == -1 else out['layers'][layer] for layer in self.layers]
    hidden = jnp.concatenate(states, axis=-1)  # [b, l, d * layers]
    if self.frozen:
      hidden = jax.lax.stop_gradient(hidden)
    return self.head(self.head_dropout(hidden.astype(jnp.float32), train=train))


class Scheme(NamedTuple):
  """BIO labels: the type int32[c] of each from 1, 0 for O, and bool[c], whether it is a B."""

  types: np.ndarray
  opens: np.ndarray


class Setup(NamedTuple):
  """What is read and scored: whether the trunk has two stacks, and the scheme where the labels are BIO."""

  two_stacks: bool
  scheme: Scheme | None


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  tags: tuple[str, ...],
  dropout: Rate = 0.1,
  layers: tuple[LayerNumber, ...] = (-1,),
  frozen: bool = False,
  init_std: Std = 0.02,
) -> Task:
  """Labels of words from the states of their first pieces.

  Args:
    trunk: any trunk.
    vocab: of the rows, as `data/labelled.py` makes them with kind='words'.
    tags: names of the labels in the order of their numbers. Where all are 'O', 'B-...' or 'I-...', spans are scored.
    dropout: rate before the last layer.
    layers: whose states are read, side by side; -1 is the trunk's output. (-4, -3, -2, -1) is the best choice of
      BERT's Table 7 for a frozen trunk.
    frozen: feature extraction: the trunk runs without dropout and under a stopped gradient. Freeze its parameters
      with optim.scale = (('trunk/.*', None), ('.*', 1.0)) as well, so that no optimiser state is kept for them.
    init_std: of the last layer's kernel.

  Raises:
    ValueError: fewer than two tags, a tag twice, or no layer.
  """
  del vocab
  if len(tags) < 2 or len(set(tags)) < len(tags):
    raise ValueError(f'adapter.tags={tags!r}: two names or more, each once')
  if not layers:
    raise ValueError('adapter.layers=(): name a layer or more; -1 is the last')
  s = Setup('encoder_tokens' in trunk.INPUTS, bio(tuple(tags)))
  model = Model(trunk, len(tags), dropout, tuple(layers), frozen, init_std)
  task = Task(model, partial(prepare, s), partial(loss, s), predict, summary=span_scores, in_words=in_words)
  return task._replace(classes=len(tags), class_names=tuple(tags))


def prepare(s: Setup, root: Array, batch: Batch) -> Example:
  """The text and the label of each token that is a word's first piece."""
  del root
  row_weight = batch['row_weight'][:, None]
  labelled = (batch['labels'] >= 0) & (batch['segment_ids'] > 0) & (row_weight > 0)
  weights = labelled * row_weight
  targets = {
    'labels': jnp.where(labelled, batch['labels'], -1),
    'weights': weights,
    'scale': batch_scale(weights),
    'segment_ids': batch['segment_ids'],
  }
  return Example(read_text(batch, two_stacks=s.two_stacks), targets)


def loss(s: Setup, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Cross-entropy of each word's label; counts of spans where the labels are BIO."""
  del carry, rng
  labels, weights = example.targets['labels'], example.targets['weights']
  logits = forward(**example.inputs)
  values = cross_entropy(logits, jnp.maximum(labels, 0)) * weights
  predicted, total = logits.argmax(axis=-1), weights.sum()
  metrics = {'loss': (values.sum(), total), 'accuracy': metric(predicted == labels, weights)}
  if s.scheme is not None:
    counts = span_counts(predicted, labels, example.targets['segment_ids'], s.scheme)
    metrics |= {name: (count, total) for name, count in zip(('tp', 'fp', 'fn'), counts, strict=True)}
  return Loss((values.sum(axis=1) * example.targets['scale']).sum(), metrics)


def predict(forward: Forward, example: Example) -> dict[str, Array]:
  """The label of each word at its first piece, -1 elsewhere, and the probability of that label, 0 elsewhere."""
  logits = forward(**example.inputs)
  first, probability = example.targets['labels'] >= 0, jax.nn.softmax(logits, axis=-1).max(axis=-1)
  labels = jnp.where(first, logits.argmax(axis=-1), -1)
  return {'labels': labels, 'probability': jnp.where(first, probability, 0.0)}


def in_words(prediction: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
  """One tag a word; None for a word that was cut off, or has no token."""
  return {'tags': tags_of(prediction['labels'], record)}


# Spans -------------------------------------------------------------------------------------------------------------


def span_scores(means: dict[str, float]) -> dict[str, float]:
  """Precision, recall and F1 of spans, where they were counted."""
  if 'tp' not in means:
    return {}
  tp, fp, fn = (means[name] for name in ('tp', 'fp', 'fn'))  # each over the number of words, which cancels out
  ratio = lambda part, whole: part / whole if whole else 0.0  # noqa: E731
  return {'precision': ratio(tp, tp + fp), 'recall': ratio(tp, tp + fn), 'f1': ratio(2 * tp, 2 * tp + fp + fn)}


def spans(tags: Array, segment_ids: Array, *, types: Array, opens: Array) -> tuple[Array, Array, Array]:
  """Where the spans of BIO labels are.

  A span begins at a B, and at an I that continues nothing: after an O, another type or another text (conlleval).

  Args:
    tags: int[b, w], labels of words.
    segment_ids: int[b, w], the text of each word; 0 is no word.
    types: int[c], the type of each label from 1; 0 for O.
    opens: bool[c], the label is a B.

  Returns:
    starts bool[b, w], the last word int[b, w] of the span that begins here, and its type int[b, w].
  """
  # labels  O B-x I-x I-y   kind 0 1 1 2   starts 0 1 0 1   last, where one starts: - 2 - 3
  kind = jnp.where(segment_ids > 0, types[tags], 0)
  same = (kind[:, 1:] == kind[:, :-1]) & (segment_ids[:, 1:] == segment_ids[:, :-1])
  goes_on = jnp.pad(same & ~opens[tags[:, 1:]], ((0, 0), (1, 0)))  # [b, w], with the word before
  starts = (kind > 0) & ~goes_on
  index, width = jnp.arange(tags.shape[1]), tags.shape[1]
  closes = ~jnp.pad(goes_on[:, 1:], ((0, 0), (0, 1)))
  last = jax.lax.cummin(jnp.where(closes, index, width), axis=1, reverse=True)
  return starts, last, kind


def bio(tags: tuple[str, ...]) -> Scheme | None:
  """The scheme of label names 'O', 'B-...' and 'I-...'; None for others."""
  parts = [tag.partition('-') for tag in tags]
  if not all(tag == 'O' or (prefix in ('B', 'I') and kind) for tag, (prefix, _, kind) in zip(tags, parts, strict=True)):
    return None
  kinds = sorted({kind for _, _, kind in parts if kind})
  if not kinds:
    return None
  types = [kinds.index(kind) + 1 if kind else 0 for _, _, kind in parts]
  return Scheme(np.array(types, np.int32), np.array([prefix == 'B' for prefix, _, _ in parts]))


def span_counts(predicted: Array, labels: Array, segment_ids: Array, scheme: Scheme) -> tuple[Array, Array, Array]:
  """Spans found, spans that are none and spans missed, f32[] each.

  Args:
    predicted: int[b, l], a label for every token.
    labels: int[b, l], the right one of each word; -1 for tokens that are not a word's first piece.
    segment_ids: int[b, l], the text of each token.
    scheme: of `bio`.
  """
  types, opens = map(jnp.asarray, scheme)
  words = jnp.argsort(labels < 0, axis=1, stable=True)  # the words side by side, in order
  is_word, text = (jnp.take_along_axis(values, words, axis=1) for values in (labels >= 0, segment_ids))
  text = jnp.where(is_word, text, 0)
  (found, found_last, found_type), (right, right_last, right_type) = (
    spans(jnp.take_along_axis(jnp.maximum(tags, 0), words, axis=1), text, types=types, opens=opens)
    for tags in (predicted, labels)
  )
  both = found & right & (found_last == right_last) & (found_type == right_type)
  tp, fp, fn = both, found & ~both, right & ~both
  return tp.sum().astype(jnp.float32), fp.sum().astype(jnp.float32), fn.sum().astype(jnp.float32)
