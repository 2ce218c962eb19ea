"""Texts as vectors: the hidden states of a network at any of its layers, per token or pooled."""

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Array, PyTree
from plm_jax.inference import batches, nearest, overlapping_windows, tasks
from plm_jax.inference.opened import Opened, Read
from plm_jax.layers.mlp import ACTIVATIONS
from plm_jax.layers.scalar_mix import read_layers
from plm_jax.text import chars
from plm_jax.weights import sentences

log = logging.getLogger(__name__)
Pool = Literal['mean', 'first', 'last', 'none']
_spelling = functools.lru_cache(maxsize=4)(chars.table)  # the characters of each word of a vocabulary, int32[v, 50]


class TokenVectors(NamedTuple):
  """The tokens of a text and their vectors.

  Attributes:
    tokens: names of the l tokens, special tokens included.
    vectors: f32[l, d], or f32[l, k, d] for k layers.
  """

  tokens: list[str]
  vectors: np.ndarray


class Piece(NamedTuple):
  """A sequence of one batch row: a text, or a window of it."""

  text: int  # index of the text
  ids: list[int]  # tokens, special tokens included
  types: list[int]
  own: np.ndarray  # bool[l], True for the tokens whose vectors are taken from this piece
  first: bool
  last: bool


def pieces(reads: Sequence[Read], *, limit: int | None, causal: bool = False) -> list[Piece]:
  """Split long texts into windows, with their special tokens around each.

  `limit` is the maximum of tokens per sequence, None for no bound; see overlapping_windows.py.
  """
  split = []
  for index, read in enumerate(reads):
    inner = len(read.ids) - read.before - read.after
    room = None if limit is None else max(limit - read.before - read.after, 1)
    spans = overlapping_windows.cut(np.ones(inner, int), room=room, causal=causal)
    for position, window in enumerate(spans):
      shown = slice(read.before + window.start, read.before + window.stop)
      # 1. the special tokens before the text, the window, the special tokens after it
      ids, types = (
        values[: read.before] + values[shown] + values[len(values) - read.after :] for values in (read.ids, read.types)
      )
      # 2. the tokens of the window that belong to it; special tokens belong to the first and the last window
      is_own = np.zeros(len(ids), bool)
      is_own[read.before + window.first - window.start : read.before + window.last - window.start] = True
      first, last = position == 0, position == len(spans) - 1
      is_own[: read.before] = first
      is_own[len(is_own) - read.after :] = last
      split.append(Piece(text=index, ids=ids, types=types, own=is_own, first=first, last=last))
  return split


def layers_of(opened: Opened, layer: int | str | Sequence[int] | np.ndarray) -> tuple[int, ...]:
  """Resolve layers to indices from 0 (embeddings) on, -1 for the output.

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
  requested: Any = layer if isinstance(layer, Sequence) or np.ndim(layer) == 1 else [layer]
  valid = not isinstance(requested, str) and all(is_number(index) and -count <= index < count for index in requested)
  if not valid or not len(requested):
    raise ConfigError(
      f"encode: layer={layer!r}; expected integers from {-count} to {count - 1} (0: embeddings, -1: output), or 'all'"
    )
  return tuple(-1 if index == count - 1 else int(index) for index in requested)


def is_number(layer: Any) -> bool:
  """Return True for an integer of Python or numpy."""
  return isinstance(layer, int | np.integer) and not isinstance(layer, bool)


def encode_sentences(
  opened: Opened, recipe: sentences.Recipe, texts: Sequence[str], *, rows: int = batches.ROWS
) -> list[np.ndarray]:
  """Compute texts' vectors f32[e] as sentence-transformers, cut at its length."""
  texts = [recipe.prompt + text for text in texts]
  if not opened.settings:  # as that library, which a run is not trained with
    texts = [text.strip() for text in texts]
  if recipe.lower:
    texts = [text.lower() for text in texts]
  skipped = 0
  if not recipe.with_prompt and recipe.prompt:
    prompt = opened.read([recipe.prompt])[0]
    skipped = len(prompt.ids) - prompt.after
  length = min((size for size in (recipe.length, opened.limit) if size), default=None)

  def pool(states: np.ndarray) -> np.ndarray:
    return vector(recipe, states[:, 0], prompt=skipped)

  return encode(opened, texts, layers=(-1,), pool=pool, rows=rows, length=length)  # type: ignore[return-value]


def vector(recipe: sentences.Recipe, states: np.ndarray, *, prompt: int = 0) -> np.ndarray:
  """Compute the vector of states f32[l, d], the first `prompt` not pooled."""
  own = states[prompt:] if len(states) > prompt else states[-1:]
  places = np.arange(prompt + 1, prompt + 1 + len(own), dtype=np.float32)  # weights of 'weightedmean'
  pooled = {
    'cls': lambda: own[0],
    'max': lambda: own.max(axis=0),
    'mean': lambda: own.mean(axis=0),
    'mean_sqrt_len_tokens': lambda: own.sum(axis=0) / np.sqrt(np.float32(len(own))),
    'weightedmean': lambda: places @ own / places.sum(),
    'lasttoken': lambda: own[-1],
  }
  out = np.concatenate([pooled[mode]() for mode in recipe.modes])
  for layer in recipe.layers:
    if layer is None:
      out = out / max(np.linalg.norm(out), 1e-12)
    else:
      out = np.asarray(ACTIVATIONS[layer.activation](out @ layer.kernel + layer.bias))
  return np.asarray(out, np.float32)


def compare(name: str, first: np.ndarray, second: np.ndarray, *, pairs: bool = False) -> np.ndarray:
  """Compare vectors: f32[n, d], f32[m, d] -> f32[n, m], pairs f32[n].

  `name` is one of `sentences.SIMILARITIES`; distances are negated. Pairs have the same index, n is m.
  """
  if name == 'cosine':
    first, second = nearest.unit(first), nearest.unit(second)
  if name in ('cosine', 'dot'):
    return (first * second).sum(axis=1) if pairs else first @ second.T
  order = 2 if name == 'euclidean' else 1
  others = [second] if pairs else [row[None] for row in second]  # one at a time: [n, m, d] may not fit in memory
  columns = [-np.linalg.norm(first - other, order, axis=1) for other in others]
  return columns[0] if pairs else np.stack(columns, axis=1)


def similarity(
  opened: Opened, encode: Callable[[list[str]], Any], first: Sequence[str], second: Sequence[str], *, pairs: bool
) -> np.ndarray:
  """Compare texts by their vectors: f32[n, m], or f32[n] of pairs."""
  name, unique = opened.similarity, list(dict.fromkeys([*first, *second]))
  if not unique:
    return np.zeros((0,) if pairs else (0, 0), np.float32)
  if opened.recipe is None:
    log.info(f'{opened.folder} specifies no sentence vectors: each is the mean of all token states of a text')
  index, states = {text: row for row, text in enumerate(unique)}, np.asarray(encode(unique))
  sides = (states.reshape(len(unique), -1)[[index[text] for text in side]] for side in (first, second))
  return compare(name, *sides, pairs=pairs)


def _cut(read: Read, length: int | None) -> Read:
  """Remove the last tokens of a text, but not its special tokens."""
  if length is None or len(read.ids) <= length:
    return read
  stop = max(length - read.after, read.before)
  end = len(read.ids) - read.after
  ids, types = (values[:stop] + values[end:] for values in (read.ids, read.types))
  return read._replace(ids=ids, types=types, unknown={i: word for i, word in read.unknown.items() if i < stop})


def encode(
  opened: Opened,
  texts: Sequence[str],
  *,
  layers: tuple[int, ...],
  pool: Pool | Callable[[np.ndarray], np.ndarray],
  rows: int = batches.ROWS,
  length: int | None = None,
) -> list[np.ndarray] | list[TokenVectors]:
  """Compute the vectors of texts.

  Args:
    layers: k indices from `layers_of`.
    pool: 'mean' of all tokens, special tokens included; the 'first' or the 'last' token; 'none' for all tokens. A
      function of f32[l, k, d] for texts that fit into one sequence.
    length: maximum tokens of a text; None reads all of it.

  Returns:
    Per text f32[k, d], or the result of the function; with pool='none' its `TokenVectors`, f32[l, k, d].

  Raises:
    ConfigError: the network was trained on reversed text.
  """
  tasks.check_direction(opened, 'encode')
  trunk, params = opened.network
  written = [_cut(read, length) for read in opened.read(texts)]
  reads, table = _spelt(opened, written)
  all_pieces = pieces(reads, limit=opened.limit, causal=opened.kind == 'causal')
  on_device = pool if isinstance(pool, str) and pool != 'none' else None
  shares = [_shares(piece, len(reads[piece.text].ids), on_device) for piece in all_pieces]

  def compute(members: np.ndarray, width: int) -> Array:
    tokens, segments = batches.padded([all_pieces[row].ids for row in members], width, filler=opened.vocab.pad_id)
    types, _ = batches.padded([all_pieces[row].types for row in members], width, filler=0)
    inputs = _inputs(opened, tokens, segments, types, table)
    if on_device is None:
      return states(trunk, layers, params, inputs)
    weights = np.zeros((len(members), width), np.float32)
    for index, row in enumerate(members):
      weights[index, : len(shares[row])] = shares[row]
    return pooled(trunk, layers, params, inputs, weights)

  def finish(row: int, vectors: np.ndarray) -> np.ndarray:
    if on_device is not None:
      return vectors
    own = vectors[: len(all_pieces[row].ids)][all_pieces[row].own]
    return pool(own) if callable(pool) else own

  sizes = [len(piece.ids) for piece in all_pieces]
  computed = batches.run(compute, sizes, limit=opened.limit, rows=rows, finish=finish, doing='encode')
  parts: list[list[np.ndarray]] = [[] for _ in texts]
  for piece, vectors in zip(all_pieces, computed, strict=True):
    parts[piece.text].append(vectors)
  if pool != 'none':
    return [np.sum(part, axis=0) for part in parts]
  names = [[opened.vocab.token(token) for token in read.ids] for read in written]
  return [TokenVectors(name, np.concatenate(part)) for name, part in zip(names, parts, strict=True)]


def _shares(piece: Piece, size: int, pool: str | None) -> np.ndarray:
  """Compute pooling weights f32[l], whose sum over a text's pieces is 1."""
  if pool == 'mean':
    return piece.own.astype(np.float32) / size
  shares = np.zeros(len(piece.ids), np.float32)
  if pool == 'first' and piece.first:
    shares[:1] = 1
  if pool == 'last' and piece.last:
    shares[-1:] = 1
  return shares


def _spelt(opened: Opened, reads: list[Read]) -> tuple[list[Read], np.ndarray | None]:
  """Give each distinct unknown word an id from v on.

  Also return the characters of all ids, int32[v + k, 50]; without character inputs, unchanged texts and None.
  """
  if 'characters' not in opened.trunk.INPUTS:
    return reads, None
  words = list(dict.fromkeys(word for read in reads for word in read.unknown.values()))
  ids = {word: opened.vocab.size + index for index, word in enumerate(words)}
  spelt = []
  for read in reads:
    ids_here = {position: ids[word] for position, word in read.unknown.items()}
    spelt.append(read._replace(ids=[ids_here.get(position, token) for position, token in enumerate(read.ids)]))
  table = _spelling(opened.vocab)
  return spelt, np.concatenate([table, *(chars.of_word(word)[None] for word in words)])


def _inputs(
  opened: Opened, tokens: np.ndarray, segments: np.ndarray, types: np.ndarray, table: np.ndarray | None
) -> dict[str, np.ndarray]:
  """Build the inputs of a network.

  The decoder of an encoder-decoder is not used and reads one token. `table` holds the characters of each id, for a
  network that reads characters.
  """
  trunk = opened.trunk
  if table is not None:
    inputs = {'tokens': tokens, 'characters': table[tokens], 'segment_ids': segments, 'type_ids': types}
    # ids from v on are unknown words
    inputs['tokens'] = np.where(tokens < opened.vocab.size, tokens, opened.vocab.unk_id or 0)
    return {name: value for name, value in inputs.items() if name in trunk.INPUTS}
  if 'encoder_tokens' not in trunk.INPUTS:
    # a prefix model reads the whole text as its prefix, with bidirectional attention
    prefix = {'prefix': np.full(len(tokens), tokens.shape[1], np.int32)} if 'prefix' in trunk.INPUTS else {}
    return {'tokens': tokens, 'segment_ids': segments, 'type_ids': types, **prefix}
  start = np.full((len(tokens), 1), opened.vocab.pad_id, np.int32)
  decoder = {'decoder_tokens': start, 'decoder_segment_ids': np.ones_like(start)}
  return {'encoder_tokens': tokens, 'encoder_segment_ids': segments, **decoder}


def _run(trunk: nn.Module, params: PyTree, inputs: dict[str, Any]) -> dict[str, Any]:
  """Compute 'hidden' and 'layers' of the trunk or its encoder."""
  out: Any = trunk.apply({'params': params}, **inputs)
  side = 'encoder_' if 'encoder_tokens' in inputs else ''
  return {name: out[f'{side}{name}'] for name in ('hidden', 'layers')}


@functools.partial(jax.jit, static_argnums=(0, 1))
def states(trunk: nn.Module, layers: tuple[int, ...], params: PyTree, inputs: dict[str, Any]) -> Array:
  """Compute the states f32[b, l, k, d] of k layers."""
  return jnp.stack(read_layers(_run(trunk, params, inputs), layers), axis=2).astype(jnp.float32)


@functools.partial(jax.jit, static_argnums=(0, 1))
def pooled(trunk: nn.Module, layers: tuple[int, ...], params: PyTree, inputs: dict[str, Any], weights: Array) -> Array:
  """Compute f32[b, k, d]: sums over tokens, weighted by f32[b, l]."""
  hidden_states = read_layers(_run(trunk, params, inputs), layers)
  sums = [
    jnp.einsum('bl,bld->bd', weights, hidden.astype(jnp.float32), precision='highest') for hidden in hidden_states
  ]
  return jnp.stack(sums, axis=1)
