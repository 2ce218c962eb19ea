"""Classification as a word in a blank: p(y | x) is the share of label y's word among the words of all labels.

An encoder compares the logits of its vocabulary at the mask (Schick and Schütze 2020, §3.1), with the head that it was
pre-trained with. A GLM writes each label's word into the blank, so that words may have several tokens (Du et al. 2021,
§2.3), and an encoder-decoder writes it behind the sentinel of the blank (Raffel et al. 2020, §3.1.4).

The data write the pattern with its blank: `data.name='text_to_text'`, form.inputs='{sentence} It was [MASK].' The words
are those of `words`, one for each label, or else the options of each row.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.adapters import answers, texts
from plm_jax.adapters.answers import Reader, Start
from plm_jax.core.errors import require
from plm_jax.core.trunk import Attends
from plm_jax.core.types import Array, Batch, Count, Example, Forward, Loss, Paper, PyTree, Task, Vocab
from plm_jax.layers.losses import cross_entropy
from plm_jax.layers.means import batch_scale, metric, scaled_sum
from plm_jax.layers.vocab_head import make_head

PAPER = Paper(
  year=2020, title='PET §3.1, GLM §2.3', architecture='any', objective_family='supervised', supervision='supervised'
)
READS = ('tokens', 'segment_ids', 'option_tokens', 'option_segment_ids', 'label')
OF_A_ROW = True  # what it predicts is of a whole row, so that adapters/distil.py can compare it
SENTINEL = '<extra_id_0>'


class Model(nn.Module):
  """An encoder with the head of its pre-training, at one place of each row.

  Attributes:
    trunk: a bidirectional trunk that `Attends`.
    mlm: the head, which has the name that it has in pre-training.
  """

  trunk: nn.Module
  mlm: nn.Module

  def __call__(self, place: Array, train: bool = False, **inputs: Array) -> Array:
    """Vocabulary logits f32[b, v] at the places int[b]."""
    hidden = self.trunk(**inputs, train=train)['hidden']
    states = jnp.take_along_axis(hidden, place[:, None, None], axis=1)[:, 0]  # [b, l, d] -> [b, d]
    return self.mlm(states, self.trunk.attend)


class Setup(NamedTuple):
  """What is read and compared.

  Attributes:
    kind: what stands in the blank: a 'token' of an encoder, or words that are 'written'.
    mask_id: of the blank.
    words: int32[k, t], ids of the words, filled up with `pad_id`; None where rows have options of their own.
    sizes: int32[k], tokens of each word.
    lead: tokens that are written before a word.
    reader: how the trunk reads a text and a word; None for an encoder.
  """

  kind: Literal['token', 'written']
  mask_id: int
  words: np.ndarray | None
  sizes: np.ndarray | None
  lead: tuple[int, ...]
  reader: Reader | None


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  words: tuple[str, ...] = (),
  mask: str | None = None,
  start: Start | None = None,
  logit_rows: Count = 8,
) -> Task:
  """Chooses the word that fills the blank of a text.

  Args:
    trunk: an encoder that `Attends`, an encoder-decoder, or one that fills blanks.
    vocab: of the rows.
    words: one for each label, in order, as they stand in the text: ' great' in byte-level vocabularies. An encoder
      needs them, and each has to be one token. () takes the options of each row.
    mask: token of the blank, which the data put there (`data.blank`); None is the vocabulary's mask, or '<extra_id_0>'
      for an encoder-decoder.
    start: what the decoder reads first, see `adapters/sequence.py`.
    logit_rows: rows of each device whose logits are in memory at a time, each option a row.

  Raises:
    ValueError: a trunk that fills no blank, a word that is not one token where it has to be, or no mask.
  """
  user = "adapter 'cloze'"
  require(trunk, user=user, attention=('bidirectional', 'encoder-decoder', 'prefix'), offers=(Attends,))
  written = trunk.ATTENTION != 'bidirectional'
  if trunk.ATTENTION == 'encoder-decoder' and mask is None:
    mask = SENTINEL
  mask_id = vocab.mask_id if mask is None else vocab.id(mask)
  if mask_id is None:
    raise ValueError(f'{user} needs a vocabulary with a mask token; vocab.extra adds one, adapter.mask names one')
  ids = word_ids(words, vocab, single=not written)
  table, sizes = padded(ids, vocab.pad_id) if ids else (None, None)
  if not written:
    s = Setup('token', mask_id, table, sizes, (), None)
    model: nn.Module = Model(trunk, make_head(trunk, vocab))
  else:
    reader = answers.make_reader(trunk, vocab, user=user, start=start, mask=mask, rows=logit_rows)
    if reader.kind == 'prefix':
      raise ValueError(
        f"{user}: {type(trunk).__name__} fills no blanks; adapter 'prompt' compares options behind a text"
      )
    s = Setup('written', mask_id, table, sizes, (mask_id,) if reader.kind == 'encoder-decoder' else (), reader)
    model = answers.Model(trunk)
  functions = partial(prepare, s), partial(loss, s), partial(predict, s)
  task = Task(model, *functions, classes=len(words), in_words=partial(in_words, words))
  return task._replace(check=partial(check, s, 'the mask' if mask is None else repr(mask)))


def check(s: Setup, mask: str, batch: Mapping[str, Any]) -> None:
  """Raises ValueError where no row has a blank, or where rows have other labels than there are words."""
  blanks = (np.asarray(batch['tokens']) == s.mask_id) & (np.asarray(batch['segment_ids']) > 0)
  if not blanks.any():
    raise ValueError(
      f'no row has the blank that is filled, {mask} (adapter.mask): write [MASK] where it stands, as in '
      "form.inputs='{sentence} It was [MASK].', and name the same token in data.blank"
    )
  options = batch['option_tokens'].shape[1]
  if s.words is not None and not 1 < options <= len(s.words):  # one: the text to be written, and no label
    labels = 'no labels' if options == 1 else f'{options} labels'
    raise ValueError(
      f'adapter.words names {len(s.words)} words, one for each label, and rows have {labels}: name all labels in '
      "form.options, as in ('negative', 'positive')"
    )


def word_ids(words: tuple[str, ...], vocab: Vocab, *, single: bool) -> list[list[int]]:
  """The ids of each word; an end token behind them where one of them has several.

  Raises:
    ValueError: fewer than two words, a word without tokens, a word twice, or with `single` one that is not one token.
  """
  if not words and not single:
    return []
  if len(words) < 2:
    raise ValueError(
      f'adapter.words={words!r}: an encoder compares two words or more, one for each label: name them, or choose '
      'another model.name, one that writes'
    )
  ids = [vocab.encode(word) for word in words]
  for word, found in zip(words, ids, strict=True):
    if not found or (single and len(found) > 1):
      pieces = ' '.join(repr(vocab.token(token)) for token in found) or 'nothing'
      raise ValueError(
        f'adapter.words: {word!r} is {pieces} in this vocabulary; a word has to be one token. Vocabularies of bytes '
        "have most words with the space before them, as in ' great'"
      )
  if len({tuple(found) for found in ids}) < len(ids):
    raise ValueError(f'adapter.words={words!r}: two of them are the same tokens')
  several = any(len(found) > 1 for found in ids)
  return [[*found, vocab.eos_id] for found in ids] if several and vocab.eos_id is not None else ids


def padded(ids: list[list[int]], pad_id: int) -> tuple[np.ndarray, np.ndarray]:
  """Lists of ids as int32[k, t] and their sizes int32[k]."""
  sizes = np.array([len(found) for found in ids], np.int32)
  return np.array([found + [pad_id] * (sizes.max() - len(found)) for found in ids], np.int32), sizes


def prepare(s: Setup, root: Array, batch: Batch) -> Example:
  """The text, and what may stand in its blank."""
  del root
  tokens, segments = batch['tokens'], batch['segment_ids']
  targets = texts.labelled(batch)
  targets['scale'] = batch_scale(targets['weights'])
  if s.kind == 'token':
    place = jnp.argmax((tokens == s.mask_id) & (segments > 0), axis=1)
    read = {name: batch[name] for name in ('tokens', 'segment_ids', 'type_ids') if name in batch}
    return Example(read | {'place': place}, targets)
  options, real = choices(s, batch)
  assert s.reader is not None
  # parameters are made by one call of the trunk, which the first option is enough for
  first = answers.read(s.reader, tokens, segments, options[:, 0], real[:, 0])
  kept = {'tokens': tokens, 'segment_ids': segments, 'options': options, 'real': real}
  return Example(first, targets | kept)


def choices(s: Setup, batch: Batch) -> tuple[Array, Array]:
  """What may be written, and where it has tokens, int32[b, k, t]: after the sentinel of the blank where it has one."""
  if s.words is not None and s.sizes is not None:
    shape = (len(batch['tokens']), *s.words.shape)
    options = jnp.broadcast_to(jnp.asarray(s.words), shape)
    real = jnp.broadcast_to(jnp.arange(shape[2]) < jnp.asarray(s.sizes)[:, None], shape)
  else:
    options, real = batch['option_tokens'], batch['option_segment_ids']
  lead = jnp.broadcast_to(jnp.array(s.lead, jnp.int32), (*options.shape[:2], len(s.lead)))
  there = jnp.broadcast_to((real > 0).any(axis=2, keepdims=True), lead.shape)
  return jnp.concatenate([lead, options], axis=2), jnp.concatenate([there, real > 0], axis=2).astype(jnp.int32)


def compare(s: Setup, forward: Forward, example: Example) -> Array:
  """log p of what may stand in the blank, f32[b, k], up to what all options have in common."""
  if s.kind == 'token':
    assert s.words is not None
    return forward(**example.inputs)[:, s.words[:, 0]]
  targets = example.targets
  given = (targets[name] for name in ('tokens', 'segment_ids', 'options', 'real'))
  assert s.reader is not None
  return -answers.option_nats(s.reader, forward, *given)


def loss(s: Setup, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Cross-entropy of the right word among the words."""
  del carry, rng
  targets, weights = example.targets, example.targets['weights']
  compared = compare(s, forward, example)
  values = cross_entropy(compared, targets['label'])
  right = compared.argmax(axis=1) == targets['label']
  return Loss(
    scaled_sum(values, weights, targets['scale']),
    {'loss': metric(values, weights), 'accuracy': metric(right, weights)},
  )


def predict(s: Setup, forward: Forward, example: Example) -> dict[str, Array]:
  """The label, and the share of each label's word."""
  compared = compare(s, forward, example)
  return {'label': compared.argmax(axis=1).astype(jnp.int32), 'probability': jax.nn.softmax(compared, axis=1)}


def in_words(words: tuple[str, ...], prediction: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
  """The word that was chosen."""
  label, options = int(prediction['label']), words or tuple(record.get('options', ()))
  return {'text': options[label]} if label < len(options) else {}
