"""A label for every word: parts of speech, names, chunks (BERT §5.3; BART §3.2).

The state of a word's first piece is classified by one dense layer. Encoders and decoders give the states of their own
tokens; an encoder-decoder reads the text on both sides, and the top state of its decoder labels each token.

Where the labels are BIO, a span counts as found if its first word, its last word and its type are right, as in the
shared task of CoNLL (Tjong Kim Sang and De Meulder 2003): F1 = 2 tp / (2 tp + fp + fn) over all rows.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.adapters.classify import both_sides
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Dense, normal
from plm_jax.layers.losses import cross_entropy
from plm_jax.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Vocab

PAPER = Paper(year=2018, title='BERT §5.3, BART §3.2', architecture='any', objective_family='supervised')
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
    if self.is_initializing():
      self.trunk.attend(jnp.zeros((1, self.trunk.token_embed.features)))  # an untied output matrix must exist
    return self.head(self.head_dropout(hidden.astype(jnp.float32), train=train))


def spans(tags: Array, segment_ids: Array, *, types: Array, opens: Array) -> tuple[Array, Array, Array]:
  """Where the spans of BIO labels are.

  A span begins at a B, and at an I that continues nothing: after an O, another type or another text (conlleval).

  Args:
    tags: int[b, w], labels of words.
    segment_ids: int[b, w], the text that each word is of; 0 is no word.
    types: int[c], the type of each label from 1; 0 for O.
    opens: bool[c], the label is a B.

  Returns:
    starts bool[b, w], the last word int[b, w] of the span that begins here, and its type int[b, w].
  """
  kind = jnp.where(segment_ids > 0, types[tags], 0)
  same = (kind[:, 1:] == kind[:, :-1]) & (segment_ids[:, 1:] == segment_ids[:, :-1])
  goes_on = jnp.pad(same & ~opens[tags[:, 1:]], ((0, 0), (1, 0)))  # [b, w], with the word before
  starts = (kind > 0) & ~goes_on
  index, width = jnp.arange(tags.shape[1]), tags.shape[1]
  closes = ~jnp.pad(goes_on[:, 1:], ((0, 0), (0, 1)))
  last = jax.lax.cummin(jnp.where(closes, index, width), axis=1, reverse=True)
  return starts, last, kind


def bio(tags: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray] | None:
  """(types int32[c], opens bool[c]) of label names 'O', 'B-...' and 'I-...', as `spans` takes them; None for others."""
  parts = [tag.partition('-') for tag in tags]
  if not all(tag == 'O' or (prefix in ('B', 'I') and kind) for tag, (prefix, _, kind) in zip(tags, parts, strict=True)):
    return None
  kinds = sorted({kind for _, _, kind in parts if kind})
  if not kinds:
    return None
  types = [kinds.index(kind) + 1 if kind else 0 for _, _, kind in parts]
  return np.array(types, np.int32), np.array([prefix == 'B' for prefix, _, _ in parts])


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  tags: tuple[str, ...],
  dropout: float = 0.1,
  layers: tuple[int, ...] = (-1,),
  frozen: bool = False,
  init_std: float = 0.02,
) -> Task:
  """Labels of words from the states of their first pieces.

  Batches need `labels` int[b, l], the label of each token that is a word's first piece and -1 elsewhere, as
  `data/labelled.py` makes them with kind='words'.

  Args:
    trunk: any trunk.
    vocab: of the rows.
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
  if len(tags) < 2 or len(set(tags)) < len(tags):
    raise ValueError(f'adapter.tags={tags!r}: two names or more, each once')
  if not layers:
    raise ValueError('adapter.layers=(): name a layer or more; -1 is the last')
  del vocab
  scheme = bio(tuple(tags))

  def prepare(root: Array, batch: Batch) -> Example:
    del root
    if 'encoder_tokens' in trunk.INPUTS:
      inputs = both_sides(batch['tokens'], batch['segment_ids'])
    else:
      inputs = {name: batch[name] for name in ('tokens', 'segment_ids', 'type_ids') if name in batch}
    labelled = (batch['labels'] >= 0) & (batch['segment_ids'] > 0) & (batch['row_weight'][:, None] > 0)
    weights = labelled * batch['row_weight'][:, None]
    targets = {
      'labels': jnp.where(labelled, batch['labels'], -1),
      'weights': weights,
      'scale': jnp.broadcast_to(1 / jnp.maximum(weights.sum(), 1.0), batch['row_weight'].shape),
      'segment_ids': batch['segment_ids'],
    }
    return Example(inputs, targets)

  def loss(forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
    del carry, rng
    labels, weights = example.targets['labels'], example.targets['weights']
    logits = forward(**example.inputs)
    values = cross_entropy(logits, jnp.maximum(labels, 0)) * weights
    predicted, total = logits.argmax(axis=-1), weights.sum()
    metrics = {
      'loss': (values.sum(), total),
      'accuracy': (((predicted == labels) * weights).sum(), total),
    }
    if scheme is not None:
      counts = span_counts(predicted, labels, example.targets['segment_ids'], scheme)
      metrics |= {name: (count, total) for name, count in zip(('tp', 'fp', 'fn'), counts, strict=True)}
    return Loss((values.sum(axis=1) * example.targets['scale']).sum(), metrics)

  def predict(forward: Forward, example: Example) -> dict[str, Array]:
    logits = forward(**example.inputs)
    return {'labels': jnp.where(example.targets['labels'] >= 0, logits.argmax(axis=-1), -1)}

  def summary(means: dict[str, float]) -> dict[str, float]:
    if scheme is None:
      return {}
    tp, fp, fn = (means[name] for name in ('tp', 'fp', 'fn'))  # each over the number of words, which cancels out
    ratio = lambda part, whole: part / whole if whole else 0.0  # noqa: E731
    return {
      'precision': ratio(tp, tp + fp),
      'recall': ratio(tp, tp + fn),
      'f1': ratio(2 * tp, 2 * tp + fp + fn),
    }

  model = Model(trunk, len(tags), dropout, tuple(layers), frozen, init_std)
  return Task(model, prepare, loss, predict, summary=summary, classes=len(tags), class_names=tuple(tags))


def span_counts(
  predicted: Array, labels: Array, segment_ids: Array, scheme: tuple[np.ndarray, np.ndarray]
) -> tuple[Array, Array, Array]:
  """Spans found, spans that are none and spans missed, f32[] each.

  Args:
    predicted: int[b, l], a label for every token.
    labels: int[b, l], the right one of each word; -1 for tokens that are not a word's first piece.
    segment_ids: int[b, l], the text that each token is of.
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
