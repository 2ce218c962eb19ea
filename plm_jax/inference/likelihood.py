"""How likely texts are: log p(x) of a decoder, and what stands in for it in a masked language model."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Array, PyTree
from plm_jax.generate import conventions
from plm_jax.inference import batches, fill_mask, vectors
from plm_jax.inference.opened import Opened, Read
from plm_jax.layers.losses import chunked_cross_entropy, cross_entropy, next_tokens

LOGIT_ROWS = 8  # rows of a batch whose logits are in memory at a time


class LogProbability(NamedTuple):
  """How likely a text is to a decoder.

  Attributes:
    log_probability: sum_t log p(x_t | x_<t), in nats, over every token but the first.
    tokens: how many that are.
  """

  log_probability: float
  tokens: int


class PseudoLogLikelihood(NamedTuple):
  """How well each token of a text fits all others; no probability, and not comparable with one.

  Attributes:
    pseudo_log_likelihood: sum_t log p(x_t | all others), in nats (Salazar et al. 2020, eq. 1).
    tokens: how many there are, special ones left out.
  """

  pseudo_log_likelihood: float
  tokens: int


def score(
  opened: Opened, texts: Sequence[str], *, rows: int = batches.ROWS
) -> list[LogProbability] | list[PseudoLogLikelihood]:
  """How likely texts are.

  A text is read as the tokenizer of the folder writes it, without the token that ends it; a token that begins it is the
  first. What is longer than the network reads in windows (windows.py), each token once.

  Args:
    opened: a decoder, or a masked language model.
    texts: of any length.
    rows: that are computed at a time.

  Raises:
    ConfigError: a model of another kind.
  """
  if opened.kind == 'causal':
    return _decoded(opened, texts, rows)
  if opened.kind == 'bidirectional' and not opened.adapted:
    return _masked(opened, texts, rows)
  what = 'was trained with an adapter' if opened.adapted else f'has {opened.kind} attention'
  raise ConfigError(
    f'score: {opened.folder} {what} and gives texts no probability: name the folder of a decoder, or of a masked '
    'language model'
  )


def _decoded(opened: Opened, texts: Sequence[str], rows: int) -> list[LogProbability]:
  """By a decoder."""
  trunk, params = opened.network
  with errors.stage('score'):
    reads = [Read(ids, [0] * len(ids), 0, 0) for ids in (conventions.prompt(text, opened.encoder) for text in texts)]
  every = vectors.pieces(reads, limit=opened.limit, causal=True)

  def compute(members: np.ndarray, width: int) -> Array:
    return next_nats(trunk, params, *batches.padded([every[row].ids for row in members], width, filler=0))

  with errors.stage('score'):
    found = batches.run(compute, [len(piece.ids) for piece in every], limit=opened.limit, rows=rows, doing='score')
  sums = np.zeros(len(texts))
  for piece, nats in zip(every, found, strict=True):
    sums[piece.text] -= nats[: len(piece.ids) - 1][piece.own[1:]].sum(dtype=np.float64)
  return [LogProbability(float(total), len(read.ids) - 1) for total, read in zip(sums, reads, strict=True)]


@functools.partial(jax.jit, static_argnums=0)
def next_nats(trunk: nn.Module, params: PyTree, tokens: Array, segment_ids: Array) -> Array:
  """f32[b, l]: -log p of the token behind each of int[b, l], 0 where there is none."""
  hidden: Any = trunk.apply({'params': params}, tokens=tokens, segment_ids=segment_ids)
  targets, weights = next_tokens(tokens, segment_ids)
  attend: Any = functools.partial(trunk.apply, {'params': params}, method='attend')
  nats, _ = chunked_cross_entropy(attend, hidden['hidden'], targets, rows=LOGIT_ROWS)
  return nats * weights


def _masked(opened: Opened, texts: Sequence[str], rows: int) -> list[PseudoLogLikelihood]:
  """By a masked language model: each token is hidden once, a row for each."""
  vocab = opened.vocab
  if vocab.mask_id is None:
    raise ConfigError('score: the vocabulary has no mask token; name the folder of a masked language model')
  model, params = fill_mask.head_of(opened, user='score')
  reads = opened.read(texts)
  every = vectors.pieces(reads, limit=opened.limit)
  asked = []
  for number, piece in enumerate(every):
    read = reads[piece.text]
    inside = np.flatnonzero(piece.own[read.before : len(piece.ids) - read.after]) + read.before
    asked += [(number, int(place)) for place in inside]

  def compute(members: np.ndarray, width: int) -> Array:
    tokens, segments = batches.padded([every[asked[row][0]].ids for row in members], width, filler=vocab.pad_id)
    places = np.array([asked[row][1] for row in members])
    return hidden_nats(model, params, tokens, segments, places, mask=vocab.mask_id)

  sizes = [len(every[number].ids) for number, _ in asked]
  found = batches.run(compute, sizes, limit=opened.limit, rows=rows, doing='score')
  sums, counts = np.zeros(len(texts)), np.zeros(len(texts), int)
  for (number, _), nats in zip(asked, found, strict=True):
    sums[every[number].text] -= float(nats)
    counts[every[number].text] += 1
  return [PseudoLogLikelihood(*pair) for pair in zip(sums.tolist(), counts.tolist(), strict=True)]


@functools.partial(jax.jit, static_argnums=0, static_argnames='mask')
def hidden_nats(
  model: nn.Module, params: PyTree, tokens: Array, segment_ids: Array, places: Array, *, mask: int
) -> Array:
  """f32[b]: -log p of the token at one place int[b] of each row int[b, l], which is hidden there."""
  rows = jnp.arange(len(tokens))
  target, hidden = tokens[rows, places], tokens.at[rows, places].set(mask)
  logits: Any = model.apply({'params': params}, predict=places[:, None], tokens=hidden, segment_ids=segment_ids)
  return cross_entropy(logits[:, 0], target)
