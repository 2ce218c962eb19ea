"""A text and its answer, for every kind of trunk; shared by `sequence`, `prompt` and `cloze`.

encoder-decoder   the encoder reads the text, the decoder writes the answer
causal            one sequence: the text, then the answer (Radford et al. 2018)
prefix            the same with bidirectional attention in the text and a start token after it (Raffel et al. 2020,
                  §3.2.1)
blank             the answer is written into the blank of the text (Du et al. 2021, §2)
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.adapters import texts
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
  """A causal, prefix or encoder-decoder trunk and its output matrix."""

  trunk: nn.Module

  def __call__(self, train: bool = False, **inputs: Array) -> Array:
    """Compute states [b, l, d] before the output matrix, by any decoder."""
    return self.trunk(**inputs, train=train)['hidden']

  def attend(self, features: Array, train: bool = False) -> Array:
    """Compute vocabulary logits f32[..., v]."""
    return self.trunk.attend(features)

  def write(self, tokens: Array, segment_ids: Array, settings: Mapping[str, Any], train: bool = False) -> Generated:
    """Generate text for prompts int[b, p]; `settings` are keywords of `generate`."""
    trunk, variables = self.trunk.unbind()
    return generate(trunk, variables['params'], tokens, segment_ids=segment_ids, **settings)


class Reader(NamedTuple):
  """Settings of how a trunk reads a text and an answer."""

  kind: Kind
  start_id: int | None  # first token of an answer; None for a causal trunk
  mask_id: int | None  # id of the blank; None if answers follow the text
  vocab_size: int
  rows: int  # examples of a batch whose logits are in memory at a time


class Scored(NamedTuple):
  """Losses of the tokens of answers, f32[b, t] each."""

  nats: Array  # -log p of each token
  others: Array  # -log p, the mean over all tokens of the vocabulary
  correct: Array  # 1 if the likeliest token is the right one


def make_reader(
  trunk: nn.Module, vocab: Vocab, *, user: str, start: Start | None, mask: str | None, rows: int
) -> Reader:
  """Build the reader of a trunk.

  Args:
    vocab: has the start token, and the mask if the trunk fills blanks.
    user: the caller, such as "adapter 'prompt'", for error messages.
    start: role of the first token of an answer; None is 'pad' for an encoder-decoder, else 'bos'.
    mask: token of the blank; None is the vocabulary's mask.

  Raises:
    ValueError: the trunk generates no text, or the vocabulary lacks one of the tokens.
  """
  require(trunk, user=user, attention=('encoder-decoder', 'causal', 'prefix'), offers=(Attends, Decodes))
  block = user.partition(' ')[0]  # "adapter 'prompt'" -> adapter
  kind: Kind = 'blank' if fills_blanks(trunk) else trunk.ATTENTION
  roles = {'pad': vocab.pad_id, 'bos': vocab.bos_id, 'eos': vocab.eos_id}
  chosen = start or ('pad' if kind == 'encoder-decoder' else 'bos')
  if kind == 'causal' and start is not None:
    raise ValueError(
      f'{user}: {block}.start={start!r} is not for the causal trunk {type(trunk).__name__}: remove {block}.start'
    )
  if kind != 'causal' and roles[chosen] is None:
    available = ', '.join(name for name, token in roles.items() if token is not None)
    raise ValueError(f'{user}: {block}.start={chosen!r} is not in this vocabulary: set it to one of {available}')
  mask_id = vocab.mask_id if mask is None else vocab.id(mask)
  if kind == 'blank' and mask_id is None:
    raise ValueError(
      f'{user}: {type(trunk).__name__} fills blanks and the vocabulary has no mask token: name one in {block}.mask'
    )
  if kind == 'blank' and mask_id is not None:
    texts.check_mask(vocab, mask_id, user=user, key=f'{block}.mask')
  start_id = None if kind == 'causal' else roles[chosen]
  return Reader(kind, start_id, mask_id if kind == 'blank' else None, trunk.vocab_size, rows)


def read(s: Reader, tokens: Array, segment_ids: Array, answer: Array, answer_segments: Array) -> dict[str, Array]:
  """Build the inputs from which the trunk predicts an answer.

  Texts int[b, l] are padded on either side, answers int[b, t] on the right; segments are 0 on padding.
  """
  if s.kind == 'causal':
    # text a b _, answer x y   ->   _ a b x; the state of b predicts x, that of x predicts y
    tokens, segment_ids = align_right(tokens, segment_ids)
    both = (tokens, answer[:, :-1]), (segment_ids, answer_segments[:, :-1])
    both_tokens, both_segments = (jnp.concatenate(parts, axis=1) for parts in both)
    return {'tokens': both_tokens, 'segment_ids': both_segments}
  assert s.start_id is not None  # set by `make_reader`
  # answer x y   ->   start x
  before = jnp.pad(answer[:, :-1], ((0, 0), (1, 0)), constant_values=s.start_id)
  before = jnp.where(answer_segments > 0, before, 0)
  if s.kind == 'encoder-decoder':
    sides = {'encoder_tokens': tokens, 'encoder_segment_ids': segment_ids}
    return sides | {'decoder_tokens': before, 'decoder_segment_ids': answer_segments}
  batch_size, length = tokens.shape
  tokens, segment_ids = align_right(tokens, segment_ids)
  joined = {
    'tokens': jnp.concatenate([tokens, before], axis=1),
    'segment_ids': jnp.concatenate([segment_ids, answer_segments], axis=1),
    'prefix': jnp.full(batch_size, length, jnp.int32),
  }
  if s.kind == 'prefix':
    return joined
  # text a [M] b, answer x y   ->   a [M] b start x, positions 0 1 2 1 1, block positions 0 0 0 1 2
  within = jnp.broadcast_to(jnp.arange(1, answer.shape[1] + 1), answer.shape)
  blank = blank_of(s, tokens, segment_ids)[:, None]
  return joined | {
    'positions': jnp.concatenate([places(segment_ids), jnp.broadcast_to(blank, answer.shape)], axis=1),
    'block_positions': jnp.concatenate([jnp.zeros_like(tokens), within], axis=1).astype(jnp.int32),
  }


def places(segment_ids: Array) -> Array:
  """Compute the positions int32[b, l] of real tokens in their text."""
  return jnp.maximum(jnp.cumsum(segment_ids > 0, axis=1) - 1, 0).astype(jnp.int32)


def blank_of(s: Reader, tokens: Array, segment_ids: Array) -> Array:
  """Find the position int32[b] of the last mask of each text."""
  is_mask = (tokens == s.mask_id) & (segment_ids > 0)
  return jnp.max(jnp.where(is_mask, places(segment_ids), 0), axis=1)


def states(s: Reader, hidden: Array, *, length: int, answers: int) -> Array:
  """Select the states [b, t, d] that predict an answer."""
  if s.kind == 'encoder-decoder':
    return hidden
  first = length - 1 if s.kind == 'causal' else length
  return hidden[:, first : first + answers]


def score(s: Reader, forward: Forward, inputs: Mapping[str, Any], answer: Array, *, length: int) -> Scored:
  """Compute the losses of answers int[b, t] from the inputs of `read`."""
  features = states(s, forward(**inputs), length=length, answers=answer.shape[1])

  def score_chunk(chunk: tuple[Array, Array]) -> Scored:
    logits, ids = forward(method='attend', features=chunk[0]), chunk[1]
    nats = cross_entropy(logits, ids)
    # without the rows that pad the output matrix
    others = jax.nn.logsumexp(logits, axis=-1) - logits[..., : s.vocab_size].mean(axis=-1)
    return Scored(nats, others, most_likely(logits, ids).astype(jnp.float32))

  return in_chunks(score_chunk, (features, answer), rows=s.rows)


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
  """Compute -log p of k answers to each text, f32[b, k].

  Texts are int[b, l], options int[b, k, t]. The first `leads` int[b, k] tokens of each answer are read and not counted.
  An option without tokens that count has 1e9.
  """
  batch_size, count, size = options.shape
  # 1. one sequence per option: [b, k, t] -> [b k, t], each with its text
  flat, real = options.reshape(batch_size * count, size), option_segments.reshape(batch_size * count, size)
  text = jnp.repeat(tokens, count, axis=0), jnp.repeat(segment_ids, count, axis=0)
  nats = score(s, forward, read(s, *text, flat, real), flat, length=tokens.shape[1]).nats
  # 2. sum over the tokens that count
  counted = (real > 0) & (jnp.arange(size) >= jnp.broadcast_to(leads, (batch_size, count)).reshape(-1, 1))
  total = jnp.where(counted, nats, 0.0).sum(axis=1)
  return jnp.where(counted.any(axis=1), total, -NEVER).reshape(batch_size, count)
