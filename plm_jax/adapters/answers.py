"""A text and what is written after it, for every kind of trunk: what `sequence`, `prompt` and `cloze` share.

encoder-decoder   the encoder reads the text, the decoder writes the answer
causal            one row: the text, then the answer (Radford et al. 2018)
prefix            the same, the text seen both ways, with a start token between (Raffel et al. 2020, §3.2.1)
blank             the answer is written into the blank of the text (Du et al. 2021, §2)
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.core.errors import require
from plm_jax.core.trunk import Attends, Decodes
from plm_jax.core.types import Array, Forward, Vocab
from plm_jax.generate.constraints import NEVER, Generated
from plm_jax.generate.decode import generate
from plm_jax.generate.reader import align_right, fills_blanks
from plm_jax.layers.losses import cross_entropy, in_chunks, most_likely

Kind = Literal['encoder-decoder', 'causal', 'prefix', 'blank']
Start = Literal['pad', 'bos', 'eos']


class Model(nn.Module):
  """A trunk that writes, and its output matrix.

  Attributes:
    trunk: a causal trunk, one with a prefix, or an encoder-decoder.
  """

  trunk: nn.Module

  def __call__(self, train: bool = False, **inputs: Array) -> Array:
    """States before the output matrix [b, l, d], those of the decoder where there are two stacks."""
    return self.trunk(**inputs, train=train)['hidden']

  def attend(self, features: Array, train: bool = False) -> Array:
    """Vocabulary logits f32[..., v]."""
    del train
    return self.trunk.attend(features)

  def write(self, tokens: Array, segment_ids: Array, settings: Mapping[str, Any], train: bool = False) -> Generated:
    """Text for prompts int[b, p]; `settings` are keywords of `generate`."""
    del train
    trunk, variables = self.trunk.unbind()
    return generate(trunk, variables['params'], tokens, segment_ids=segment_ids, **settings)


class Reader(NamedTuple):
  """How a trunk reads a text and an answer.

  Attributes:
    kind: see the head of this file.
    start_id: what an answer begins with; None for a causal trunk.
    mask_id: of the blank; None where answers stand behind the text.
    vocab_size: ids of the vocabulary.
    rows: rows of a batch whose logits are in memory at a time.
  """

  kind: Kind
  start_id: int | None
  mask_id: int | None
  vocab_size: int
  rows: int


class Scored(NamedTuple):
  """What the tokens of answers cost, f32[b, t] each.

  Attributes:
    nats: -log p of each token.
    others: -log p, the mean over all tokens of the vocabulary.
    correct: 1 where the likeliest token is the right one.
  """

  nats: Array
  others: Array
  correct: Array


def make_reader(
  trunk: nn.Module, vocab: Vocab, *, user: str, start: Start | None, mask: str | None, rows: int
) -> Reader:
  """How a trunk reads a text and an answer.

  Args:
    trunk: see `Model`.
    vocab: with the start token, and the mask where the trunk fills blanks.
    user: who asks, for the message.
    start: role of the token that an answer begins with; None is 'pad' for an encoder-decoder, else 'bos'.
    mask: token of the blank; None is the vocabulary's mask.
    rows: rows of a batch whose logits are in memory at a time.

  Raises:
    ValueError: a trunk that writes no text, or a vocabulary without one of the tokens.
  """
  require(trunk, user=user, attention=('encoder-decoder', 'causal', 'prefix'), offers=(Attends, Decodes))
  kind: Kind = 'blank' if fills_blanks(trunk) else trunk.ATTENTION
  roles = {'pad': vocab.pad_id, 'bos': vocab.bos_id, 'eos': vocab.eos_id}
  chosen = start or ('pad' if kind == 'encoder-decoder' else 'bos')
  if kind == 'causal' and start is not None:
    raise ValueError(f'{user}: start={start!r} belongs to an encoder-decoder or a trunk with a prefix; leave it out')
  if kind != 'causal' and roles[chosen] is None:
    known = ', '.join(name for name, token in roles.items() if token is not None)
    raise ValueError(f'{user}: start={chosen!r}; choices with this vocabulary are {known}')
  mask_id = vocab.mask_id if mask is None else vocab.id(mask)
  if kind == 'blank' and mask_id is None:
    raise ValueError(f'{user}: {type(trunk).__name__} fills blanks, and the vocabulary has no mask token: name one')
  return Reader(
    kind, None if kind == 'causal' else roles[chosen], mask_id if kind == 'blank' else None, trunk.vocab_size, rows
  )


def read(s: Reader, tokens: Array, segment_ids: Array, answer: Array, answer_segments: Array) -> dict[str, Array]:
  """What the trunk reads so that its states predict the tokens of an answer.

  Args:
    s: how it reads.
    tokens: int[b, l], padded on either side.
    segment_ids: int[b, l], 1, and 0 on padding.
    answer: int[b, t], padded on the right.
    answer_segments: int[b, t].
  """
  if s.kind == 'causal':
    # text a b _, answer x y   ->   _ a b x; the state of b predicts x, that of x predicts y
    tokens, segment_ids = align_right(tokens, segment_ids)
    both = (tokens, answer[:, :-1]), (segment_ids, answer_segments[:, :-1])
    both_tokens, both_segments = (jnp.concatenate(parts, axis=1) for parts in both)
    return {'tokens': both_tokens, 'segment_ids': both_segments}
  assert s.start_id is not None  # `make_reader` finds it
  # answer x y   ->   start x
  before = jnp.pad(answer[:, :-1], ((0, 0), (1, 0)), constant_values=s.start_id)
  before = jnp.where(answer_segments > 0, before, 0)
  if s.kind == 'encoder-decoder':
    sides = {'encoder_tokens': tokens, 'encoder_segment_ids': segment_ids}
    return sides | {'decoder_tokens': before, 'decoder_segment_ids': answer_segments}
  rows, length = tokens.shape
  tokens, segment_ids = align_right(tokens, segment_ids)
  joined = {
    'tokens': jnp.concatenate([tokens, before], axis=1),
    'segment_ids': jnp.concatenate([segment_ids, answer_segments], axis=1),
    'prefix': jnp.full(rows, length, jnp.int32),
  }
  if s.kind == 'prefix':
    return joined
  # text a [M] b, answer x y   ->   a [M] b start x, positions 0 1 2 1 1, block positions 0 0 0 1 2
  within = jnp.broadcast_to(jnp.arange(1, answer.shape[1] + 1), answer.shape)
  place = blank_of(s, tokens, segment_ids)[:, None]
  return joined | {
    'positions': jnp.concatenate([places(segment_ids), jnp.broadcast_to(place, answer.shape)], axis=1),
    'block_positions': jnp.concatenate([jnp.zeros_like(tokens), within], axis=1).astype(jnp.int32),
  }


def places(segment_ids: Array) -> Array:
  """int32[b, l]: numbers of the real tokens of one text a row, from 0."""
  return jnp.maximum(jnp.cumsum(segment_ids > 0, axis=1) - 1, 0).astype(jnp.int32)


def blank_of(s: Reader, tokens: Array, segment_ids: Array) -> Array:
  """int32[b]: the place of the last mask of each text, counted in real tokens."""
  there = (tokens == s.mask_id) & (segment_ids > 0)
  return jnp.max(jnp.where(there, places(segment_ids), 0), axis=1)


def states(s: Reader, hidden: Array, *, length: int, answers: int) -> Array:
  """The states [b, t, d] that predict the tokens of an answer.

  Args:
    s: how the trunk reads.
    hidden: [b, l, d] of what `read` made.
    length: tokens of the text.
    answers: t, tokens of the answer.
  """
  if s.kind == 'encoder-decoder':
    return hidden
  first = length - 1 if s.kind == 'causal' else length
  return hidden[:, first : first + answers]


def score(s: Reader, forward: Forward, inputs: Mapping[str, Any], answer: Array, *, length: int) -> Scored:
  """What the tokens of answers cost.

  Args:
    s: how the trunk reads.
    forward: a `Model`.
    inputs: of `read`.
    answer: int[b, t].
    length: tokens of the text.
  """
  features = states(s, forward(**inputs), length=length, answers=answer.shape[1])

  def one(chunk: tuple[Array, Array]) -> Scored:
    logits, ids = forward(method='attend', features=chunk[0]), chunk[1]
    nats = cross_entropy(logits, ids)
    # without the rows that only fill a vocabulary up
    others = jax.nn.logsumexp(logits, axis=-1) - logits[..., : s.vocab_size].mean(axis=-1)
    return Scored(nats, others, most_likely(logits, ids).astype(jnp.float32))

  return in_chunks(one, (features, answer), rows=s.rows)


def option_nats(
  s: Reader,
  forward: Forward,
  tokens: Array,
  segment_ids: Array,
  options: Array,
  option_segments: Array,
  *,
  leads: Array | int = 0,
) -> Array:
  """-log p of each of several answers to each text, f32[b, k]; 1e9 for an option without tokens that count.

  Args:
    s: how the trunk reads.
    forward: a `Model`.
    tokens: int[b, l].
    segment_ids: int[b, l].
    options: int[b, k, t].
    option_segments: int[b, k, t].
    leads: int[b, k], first tokens of each answer that are read and not counted.
  """
  rows, count, size = options.shape
  flat, real = options.reshape(rows * count, size), option_segments.reshape(rows * count, size)
  each = jnp.repeat(tokens, count, axis=0), jnp.repeat(segment_ids, count, axis=0)
  nats = score(s, forward, read(s, *each, flat, real), flat, length=tokens.shape[1]).nats
  counted = (real > 0) & (jnp.arange(size) >= jnp.broadcast_to(leads, (rows, count)).reshape(-1, 1))
  total = jnp.where(counted, nats, 0.0).sum(axis=1)
  return jnp.where(counted.any(axis=1), total, -NEVER).reshape(rows, count)
