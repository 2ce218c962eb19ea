"""Classification by a word in a blank: p(y | x) is a softmax over the words of all labels.

An encoder compares vocabulary logits at the mask (Schick and Schütze 2020, §3.1), with the head of its pre-training. A
GLM scores each label's word in the blank, so words may have several tokens (Du et al. 2021, §2.3). An encoder-decoder
scores the word after the sentinel of the blank (Raffel et al. 2020, §3.1.4).

The data contain the pattern and its blank: `data.name='text_to_text'`, form.inputs='{sentence} It was [MASK].' The
words are those of `words`, one for each label, or the options of each example.
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
from plm_jax.core.keywords import Count
from plm_jax.core.trunk import Attends
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, PyTree, Supervised, Task, Vocab
from plm_jax.layers.losses import cross_entropy
from plm_jax.layers.means import batch_scale, metric, scaled_sum
from plm_jax.layers.vocab_head import make_head

PAPER = Supervised(year=2020, title='PET §3.1, GLM §2.3')
READS = ('tokens', 'segment_ids', 'option_tokens', 'option_segment_ids', 'label')
OF_A_ROW = True  # one prediction per example, so that adapters/distil.py can compare it
SENTINEL = '<extra_id_0>'


class Model(nn.Module):
  """An encoder that `Attends`, and its pre-training head `mlm`, at one position of each text."""

  trunk: nn.Module
  mlm: nn.Module

  def __call__(self, place: Array, train: bool = False, **inputs: Array) -> Array:
    """Compute vocabulary logits f32[b, v] at the positions `place` int[b]."""
    hidden = self.trunk(**inputs, train=train)['hidden']
    states = jnp.take_along_axis(hidden, place[:, None, None], axis=1)[:, 0]  # [b, l, d] -> [b, d]
    return self.mlm(states, self.trunk.attend)


class ClozeSettings(NamedTuple):
  """Blank, words and reader."""

  kind: Literal['token', 'written']  # content of the blank: a 'token' of an encoder, or 'written' words
  mask_id: int  # id of the blank
  words: np.ndarray | None  # int32[k, t], ids of the words, padded with `pad_id`; None if examples have options
  sizes: np.ndarray | None  # int32[k], number of tokens of each word
  lead: tuple[int, ...]  # tokens before each word
  reader: Reader | None  # reader of a text and a word; None for an encoder


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  words: tuple[str, ...] = (),
  mask: str | None = None,
  start: Start | None = None,
  logit_rows: Count = 8,
) -> Task:
  """Choose the word that fills the blank of a text.

  Args:
    trunk: an encoder that `Attends`, an encoder-decoder, or one that fills blanks.
    words: one for each label, in order, as written in the text: ' great' in byte-level vocabularies. An encoder
      requires words of one token each. () uses the options of each example.
    mask: token of the blank in the data (`data.blank`); None is the vocabulary's mask, or '<extra_id_0>' for an
      encoder-decoder.
    start: first token of the decoder, see `adapters/sequence.py`.
    logit_rows: options on each device whose logits are in memory at a time.

  Raises:
    ValueError: a trunk that fills no blanks, a word of several tokens for an encoder, or no mask.
  """
  user = "adapter 'cloze'"
  require(trunk, user=user, attention=('bidirectional', 'encoder-decoder', 'prefix'), offers=(Attends,))
  written = trunk.ATTENTION != 'bidirectional'
  if trunk.ATTENTION == 'encoder-decoder' and mask is None:
    mask = SENTINEL
  mask_id = vocab.mask_id if mask is None else vocab.id(mask)
  if mask_id is None:
    raise ValueError(
      f'{user} needs a vocabulary with a mask token: add one in vocab.extra, or name one in adapter.mask'
    )
  texts.check_mask(vocab, mask_id, user=user, key='adapter.mask')
  ids = word_ids(words, vocab, single=not written)
  table, sizes = padded(ids, vocab.pad_id) if ids else (None, None)
  if not written:
    s = ClozeSettings(kind='token', mask_id=mask_id, words=table, sizes=sizes, lead=(), reader=None)
    model: nn.Module = Model(trunk, make_head(trunk))
  else:
    reader = answers.make_reader(trunk, vocab, user=user, start=start, mask=mask, rows=logit_rows)
    if reader.kind == 'prefix':
      raise ValueError(f"{user}: {type(trunk).__name__} fills no blanks: use adapter 'prompt' to compare options")
    lead = (mask_id,) if reader.kind == 'encoder-decoder' else ()
    s = ClozeSettings(kind='written', mask_id=mask_id, words=table, sizes=sizes, lead=lead, reader=reader)
    model = answers.Model(trunk)
  return Task(
    model=model,
    prepare=partial(prepare, s),
    loss=partial(loss, s),
    predict=partial(predict, s),
    classes=len(words),
    in_words=partial(in_words, words),
    check=partial(check, s, 'the mask' if mask is None else repr(mask)),
  )


def check(s: ClozeSettings, mask: str, batch: Mapping[str, Any]) -> None:
  """Raise ValueError for a batch without blanks or with other labels."""
  blanks = (np.asarray(batch['tokens']) == s.mask_id) & (np.asarray(batch['segment_ids']) > 0)
  if not blanks.any():
    raise ValueError(
      f'no text has the blank {mask} (adapter.mask): write [MASK] in the pattern, as in '
      "form.inputs='{sentence} It was [MASK].', and name the same token in data.blank"
    )
  options = batch['option_tokens'].shape[1]
  if s.words is not None and not 1 < options <= len(s.words):  # 1: the text to be written, no label
    labels = 'no labels' if options == 1 else f'{options} labels'
    raise ValueError(
      f'adapter.words names {len(s.words)} words, one for each label, and the data has {labels}: name all labels in '
      "form.options, as in ('negative', 'positive')"
    )


def word_ids(words: tuple[str, ...], vocab: Vocab, *, single: bool) -> list[list[int]]:
  """Encode words, with an end token if any has several tokens.

  Raises:
    ValueError: fewer than two words, a word without tokens, a word twice, or with `single` a word of several tokens.
  """
  if not words and not single:
    return []
  if len(words) < 2:
    raise ValueError(
      f'adapter.words={words!r}: an encoder compares two words or more: name one for each label, or choose a '
      'model.name that generates text'
    )
  ids = [vocab.encode(word) for word in words]
  for word, tokens in zip(words, ids, strict=True):
    if not tokens or (single and len(tokens) > 1):
      pieces = ' '.join(repr(vocab.token(token)) for token in tokens) or 'nothing'
      raise ValueError(
        f'adapter.words: {word!r} is {pieces} in this vocabulary and must be one token: choose another word. '
        "Byte-level vocabularies need the space, as in ' great'"
      )
  if len({tuple(tokens) for tokens in ids}) < len(ids):
    raise ValueError(f'adapter.words={words!r} has the same tokens twice: give a different word for each label')
  several = any(len(tokens) > 1 for tokens in ids)
  return [[*tokens, vocab.eos_id] for tokens in ids] if several and vocab.eos_id is not None else ids


def padded(ids: list[list[int]], pad_id: int) -> tuple[np.ndarray, np.ndarray]:
  """Pad lists of ids to int32[k, t]; also return their sizes int32[k]."""
  sizes = np.array([len(tokens) for tokens in ids], np.int32)
  return np.array([tokens + [pad_id] * (sizes.max() - len(tokens)) for tokens in ids], np.int32), sizes


def prepare(s: ClozeSettings, root: Array, batch: Batch) -> Example:
  """Prepare texts and the options for their blanks."""
  tokens, segments = batch['tokens'], batch['segment_ids']
  targets = texts.labelled(batch)
  targets['scale'] = batch_scale(targets['weights'])
  if s.kind == 'token':
    position = jnp.argmax((tokens == s.mask_id) & (segments > 0), axis=1)
    read = {name: batch[name] for name in ('tokens', 'segment_ids', 'type_ids') if name in batch}
    return Example(read | {'place': position}, targets)
  options, real = choices(s, batch)
  assert s.reader is not None
  # one call of the trunk initialises the parameters; the first option is enough for it
  first = answers.read(s.reader, tokens, segments, options[:, 0], real[:, 0])
  compared = {'tokens': tokens, 'segment_ids': segments, 'options': options, 'real': real}
  return Example(first, targets | compared)


def choices(s: ClozeSettings, batch: Batch) -> tuple[Array, Array]:
  """Build the options and their segments, int32[b, k, t] each, after `lead`."""
  # 1. the same words for every text, or the options of each
  if s.words is not None and s.sizes is not None:
    shape = (len(batch['tokens']), *s.words.shape)
    options = jnp.broadcast_to(jnp.asarray(s.words), shape)
    real = jnp.broadcast_to(jnp.arange(shape[2]) < jnp.asarray(s.sizes)[:, None], shape)
  else:
    options, real = batch['option_tokens'], batch['option_segment_ids']
  # 2. the sentinel before each option that has tokens
  lead = jnp.broadcast_to(jnp.array(s.lead, jnp.int32), (*options.shape[:2], len(s.lead)))
  present = jnp.broadcast_to((real > 0).any(axis=2, keepdims=True), lead.shape)
  return jnp.concatenate([lead, options], axis=2), jnp.concatenate([present, real > 0], axis=2).astype(jnp.int32)


def compare(s: ClozeSettings, forward: Forward, example: Example) -> Array:
  """Compute log p of options f32[b, k], up to a constant."""
  if s.kind == 'token':
    assert s.words is not None
    return forward(**example.inputs)[:, s.words[:, 0]]
  targets = example.targets
  compared = (targets[name] for name in ('tokens', 'segment_ids', 'options', 'real'))
  assert s.reader is not None
  return -answers.option_nats(s.reader, forward, *compared)


def loss(s: ClozeSettings, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute the cross-entropy of the right word among the words."""
  targets, weights = example.targets, example.targets['weights']
  compared = compare(s, forward, example)
  values = cross_entropy(compared, targets['label'])
  right = compared.argmax(axis=1) == targets['label']
  return Loss(
    scaled_sum(values, weights, targets['scale']), {'loss': metric(values, weights), 'accuracy': metric(right, weights)}
  )


def predict(s: ClozeSettings, forward: Forward, example: Example) -> dict[str, Array]:
  """Predict 'label' int32[b] and 'probability' f32[b, k] over the words."""
  compared = compare(s, forward, example)
  return {'label': compared.argmax(axis=1).astype(jnp.int32), 'probability': jax.nn.softmax(compared, axis=1)}


def in_words(words: tuple[str, ...], prediction: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
  """Return the predicted word."""
  label, options = int(prediction['label']), words or tuple(record.get('options', ()))
  return {'text': options[label]} if label < len(options) else {}
