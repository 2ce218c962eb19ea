"""Texts as vectors: the states of a network at any of its layers, of each token or pooled."""

import functools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Array, PyTree, Vocab
from plm_jax.inference import batches, overlapping_windows, tasks
from plm_jax.inference.opened import Opened, Read
from plm_jax.layers.scalar_mix import read_layers
from plm_jax.text import chars

Pool = Literal['mean', 'first', 'last', 'none']


class TokenVectors(NamedTuple):
  """The tokens of a text and their vectors.

  Attributes:
    tokens: l names of tokens, special ones included.
    vectors: f32[l, d], or f32[l, layers, d] where several layers are asked for.
  """

  tokens: list[str]
  vectors: np.ndarray


class Piece(NamedTuple):
  """What is read at once: a text, or a window of one.

  Attributes:
    text: the number of the text.
    ids: tokens, special ones included.
    types: of the tokens.
    own: bool[l], the tokens whose vectors are taken from here.
    first: it is the text, or the first window of it.
    last: it is the text, or the last window of it.
  """

  text: int
  ids: list[int]
  types: list[int]
  own: np.ndarray
  first: bool
  last: bool


def pieces(reads: Sequence[Read], *, limit: int | None, causal: bool = False) -> list[Piece]:
  """Texts in windows (windows.py) where they are too long; the special tokens of a text stand around each.

  Args:
    reads: the texts.
    limit: most tokens that the network reads; None for no bound.
    causal: the network reads from left to right.
  """
  found = []
  for number, read in enumerate(reads):
    inner = len(read.ids) - read.before - read.after
    room = None if limit is None else max(limit - read.before - read.after, 1)
    spans = overlapping_windows.cut(np.ones(inner, int), room=room, causal=causal)
    for place, window in enumerate(spans):
      shown = slice(read.before + window.start, read.before + window.stop)
      ids, types = (
        values[: read.before] + values[shown] + values[len(values) - read.after :] for values in (read.ids, read.types)
      )
      own = np.zeros(len(ids), bool)
      own[read.before + window.first - window.start : read.before + window.last - window.start] = True
      first, last = place == 0, place == len(spans) - 1
      own[: read.before] = first
      own[len(own) - read.after :] = last
      found.append(Piece(number, ids, types, own, first, last))
  return found


def layers_of(opened: Opened, layer: int | str | Sequence[int] | np.ndarray) -> tuple[int, ...]:
  """The numbers of the layers that are asked for, from 0, the embeddings, or from -1 down; -1 is the output.

  Raises:
    ConfigError: the network has no such layer.
  """
  trunk, params = opened.network
  ones = np.ones((1, 2), np.int32)
  _, table = _spelt(opened, [])
  inputs = _inputs(opened, ones, ones, ones, table)
  count = len(jax.eval_shape(functools.partial(_run, trunk), params, inputs)['layers'])
  if isinstance(layer, str) and layer == 'all':
    return (*range(count - 1), -1)
  asked: Any = layer if isinstance(layer, Sequence) or np.ndim(layer) == 1 else [layer]
  whole = not isinstance(asked, str) and all(is_number(one) and -count <= one < count for one in asked)
  if not whole or not len(asked):
    raise ConfigError(
      f'encode: layer={layer!r}; choose numbers from {-count} to {count - 1}, of which 0 are the embeddings and -1 the '
      "output, or 'all'"
    )
  return tuple(-1 if one == count - 1 else int(one) for one in asked)


def is_number(layer: Any) -> bool:
  """Whether a layer is one number, of Python or of numpy."""
  return isinstance(layer, int | np.integer) and not isinstance(layer, bool)


def encode(
  opened: Opened, texts: Sequence[str], *, layers: tuple[int, ...], pool: Pool, rows: int = batches.ROWS
) -> list[np.ndarray] | list[TokenVectors]:
  """The vectors of texts.

  Args:
    opened: a model.
    texts: of any length.
    layers: of `layers_of`, k of them.
    pool: 'mean' of all tokens, special ones included; the 'first' or the 'last' token; 'none' for all tokens.
    rows: texts that are computed at a time.

  Returns:
    for each text f32[k, d]; with pool='none' its `TokenVectors`, f32[l, k, d].

  Raises:
    ConfigError: the network reads text from its end.
  """
  tasks.check_direction(opened, 'encode')
  trunk, params = opened.network
  written = opened.read(texts)
  reads, table = _spelt(opened, written)
  every = pieces(reads, limit=opened.limit, causal=opened.kind == 'causal')
  shares = [_shares(piece, len(reads[piece.text].ids), pool) for piece in every]

  def compute(members: np.ndarray, width: int) -> Array:
    tokens, segments = batches.padded([every[row].ids for row in members], width, filler=opened.vocab.pad_id)
    types, _ = batches.padded([every[row].types for row in members], width, filler=0)
    inputs = _inputs(opened, tokens, segments, types, table)
    if pool == 'none':
      return states(trunk, layers, params, inputs)
    weights = np.zeros((len(members), width), np.float32)
    for place, row in enumerate(members):
      weights[place, : len(shares[row])] = shares[row]
    return pooled(trunk, layers, params, inputs, weights)

  sizes = [len(piece.ids) for piece in every]
  found = batches.run(compute, sizes, limit=opened.limit, rows=rows, doing='encode')
  parts: list[list[np.ndarray]] = [[] for _ in texts]
  for piece, made in zip(every, found, strict=True):
    parts[piece.text].append(made[: len(piece.ids)][piece.own] if pool == 'none' else made)
  if pool != 'none':
    return [np.sum(part, axis=0) for part in parts]
  names = [[opened.vocab.token(token) for token in read.ids] for read in written]
  return [TokenVectors(name, np.concatenate(part)) for name, part in zip(names, parts, strict=True)]


def _shares(piece: Piece, size: int, pool: Pool) -> np.ndarray:
  """f32[l]: what each token of a piece adds to the pooled vector of its text of `size` tokens."""
  if pool == 'mean':
    return piece.own.astype(np.float32) / size
  shares = np.zeros(len(piece.ids), np.float32)
  if pool == 'first' and piece.first:
    shares[:1] = 1
  if pool == 'last' and piece.last:
    shares[-1:] = 1
  return shares


def _spelt(opened: Opened, reads: list[Read]) -> tuple[list[Read], np.ndarray | None]:
  """Texts with an id from v on for each of their unknown words, and int32[v + k, 50], the characters of all ids.

  Where the network reads no characters, the texts as they are and None.
  """
  if 'characters' not in opened.trunk.INPUTS:
    return reads, None
  words = list(dict.fromkeys(word for read in reads for word in read.unknown.values()))
  ids = {word: opened.vocab.size + number for number, word in enumerate(words)}
  spelt = []
  for read in reads:
    own = {place: ids[word] for place, word in read.unknown.items()}
    spelt.append(read._replace(ids=[own.get(place, one) for place, one in enumerate(read.ids)]))
  known = _spelling(opened.vocab)
  return spelt, np.concatenate([known, *(chars.of_word(word)[None] for word in words)])


def _inputs(
  opened: Opened, tokens: np.ndarray, segments: np.ndarray, types: np.ndarray, table: np.ndarray | None
) -> dict[str, np.ndarray]:
  """What a network reads; the decoder of an encoder-decoder, which is not asked, reads a token.

  `table` has the characters of ids, for a network that reads them.
  """
  trunk = opened.trunk
  if table is not None:
    inputs = {'tokens': tokens, 'characters': table[tokens], 'segment_ids': segments, 'type_ids': types}
    inputs['tokens'] = np.where(tokens < opened.vocab.size, tokens, opened.vocab.unk_id or 0)  # those from v on
    return {name: value for name, value in inputs.items() if name in trunk.INPUTS}
  if 'encoder_tokens' not in trunk.INPUTS:
    # what sees a prefix both ways reads all of the text as one
    prefix = {'prefix': np.full(len(tokens), tokens.shape[1], np.int32)} if 'prefix' in trunk.INPUTS else {}
    return {'tokens': tokens, 'segment_ids': segments, 'type_ids': types, **prefix}
  start = np.full((len(tokens), 1), opened.vocab.pad_id, np.int32)
  decoder = {'decoder_tokens': start, 'decoder_segment_ids': np.ones_like(start)}
  return {'encoder_tokens': tokens, 'encoder_segment_ids': segments, **decoder}


@functools.lru_cache(maxsize=4)
def _spelling(vocab: Vocab) -> np.ndarray:
  """int32[v, 50]: the characters of each word of a vocabulary."""
  return chars.table(vocab)


def _run(trunk: nn.Module, params: PyTree, inputs: dict[str, Any]) -> dict[str, Any]:
  """'hidden' and 'layers' of what reads the text: of an encoder-decoder, its encoder."""
  out: Any = trunk.apply({'params': params}, **inputs)
  side = 'encoder_' if 'encoder_tokens' in inputs else ''
  return {name: out[f'{side}{name}'] for name in ('hidden', 'layers')}


@functools.partial(jax.jit, static_argnums=(0, 1))
def states(trunk: nn.Module, layers: tuple[int, ...], params: PyTree, inputs: dict[str, Any]) -> Array:
  """f32[b, l, k, d]: the states of k layers."""
  return jnp.stack(read_layers(_run(trunk, params, inputs), layers), axis=2).astype(jnp.float32)


@functools.partial(jax.jit, static_argnums=(0, 1))
def pooled(trunk: nn.Module, layers: tuple[int, ...], params: PyTree, inputs: dict[str, Any], weights: Array) -> Array:
  """f32[b, k, d]: the sums of the states of k layers, each token times its weight f32[b, l]."""
  every = read_layers(_run(trunk, params, inputs), layers)
  each = [jnp.einsum('bl,bld->bd', weights, hidden.astype(jnp.float32), precision='highest') for hidden in every]
  return jnp.stack(each, axis=1)
