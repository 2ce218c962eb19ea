"""Likelihood of texts: log p(x) of a decoder, and the pseudo-log-likelihood of a masked language model."""

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

LOGIT_ROWS = 8  # rows of a batch whose logits are in memory at once


class LogProbability(NamedTuple):
  """The log-probability of a text under a decoder.

  Attributes:
    log_probability: sum_t log p(x_t | x_<t), in nats, over every token except the first.
    tokens: number of tokens in the sum.
  """

  log_probability: float
  tokens: int


class PseudoLogLikelihood(NamedTuple):
  """A score of how well each token of a text fits all others; not a probability, and not comparable with one.

  Attributes:
    pseudo_log_likelihood: sum_t log p(x_t | all others), in nats (Salazar et al. 2020, eq. 1).
    tokens: number of tokens in the sum; special tokens are left out.
  """

  pseudo_log_likelihood: float
  tokens: int


def score(
  opened: Opened, texts: Sequence[str], *, rows: int = batches.ROWS
) -> list[LogProbability] | list[PseudoLogLikelihood]:
  """Compute the likelihood of texts.

  A text is tokenised by the folder's tokenizer, without the token that ends it. A token that begins it is the first. A
  text longer than the network reads is split into windows (overlapping_windows.py); each token is scored once.

  Raises:
    ConfigError: a model of another kind.
  """
  if opened.kind == 'causal':
    return _decoded(opened, texts, rows)
  if opened.kind == 'bidirectional' and not opened.adapted:
    return _masked(opened, texts, rows)
  reason = 'was trained with an adapter' if opened.adapted else f'has {opened.kind} attention'
  raise ConfigError(
    f'score: {opened.folder} {reason} and cannot score texts; name the folder of a decoder or of a masked '
    'language model'
  )


def _decoded(opened: Opened, texts: Sequence[str], rows: int) -> list[LogProbability]:
  """Compute the log-probabilities of texts under a decoder."""
  trunk, params = opened.network
  with errors.stage('score'):
    reads = [Read(ids, [0] * len(ids), 0, 0) for ids in (conventions.prompt(text, opened.encoder) for text in texts)]
  pieces = vectors.pieces(reads, limit=opened.limit, causal=True)

  def compute(members: np.ndarray, width: int) -> Array:
    return next_nats(trunk, params, *batches.padded([pieces[row].ids for row in members], width, filler=0))

  with errors.stage('score'):
    computed = batches.run(compute, [len(piece.ids) for piece in pieces], limit=opened.limit, rows=rows, doing='score')
  sums = np.zeros(len(texts))
  for piece, nats in zip(pieces, computed, strict=True):
    sums[piece.text] -= nats[: len(piece.ids) - 1][piece.own[1:]].sum(dtype=np.float64)
  return [LogProbability(float(total), len(read.ids) - 1) for total, read in zip(sums, reads, strict=True)]


@functools.partial(jax.jit, static_argnums=0)
def next_nats(trunk: nn.Module, params: PyTree, tokens: Array, segment_ids: Array) -> Array:
  """Compute -log p of each next token: f32[b, l], 0 without one."""
  hidden: Any = trunk.apply({'params': params}, tokens=tokens, segment_ids=segment_ids)
  targets, weights = next_tokens(tokens, segment_ids)
  attend: Any = functools.partial(trunk.apply, {'params': params}, method='attend')
  nats, _ = chunked_cross_entropy(attend, hidden['hidden'], targets, rows=LOGIT_ROWS)
  return nats * weights


def _masked(opened: Opened, texts: Sequence[str], rows: int) -> list[PseudoLogLikelihood]:
  """Compute pseudo-log-likelihoods: mask each token once, one row per token."""
  vocab = opened.vocab
  if vocab.mask_id is None:
    raise ConfigError('score: the vocabulary has no mask token; name the folder of a masked language model')
  model, params = fill_mask.head_of(opened, user='score')
  reads, table = opened.read(texts), getattr(model, 'position_embed', None)  # of a mask decoder
  limit = opened.limit if table is None else table.num_rows
  pieces = vectors.pieces(reads, limit=limit)
  targets = []
  for index, piece in enumerate(pieces):
    read = reads[piece.text]
    inside = np.flatnonzero(piece.own[read.before : len(piece.ids) - read.after]) + read.before
    targets += [(index, int(position)) for position in inside]

  def compute(members: np.ndarray, width: int) -> Array:
    tokens, segments = batches.padded([pieces[targets[row][0]].ids for row in members], width, filler=vocab.pad_id)
    positions = np.array([targets[row][1] for row in members])
    return hidden_nats(model, params, tokens, segments, positions, mask=vocab.mask_id)

  sizes = [len(pieces[index].ids) for index, _ in targets]
  computed = batches.run(compute, sizes, limit=limit, rows=rows, doing='score')
  sums, counts = np.zeros(len(texts)), np.zeros(len(texts), int)
  for (index, _), nats in zip(targets, computed, strict=True):
    sums[pieces[index].text] -= float(nats)
    counts[pieces[index].text] += 1
  return [PseudoLogLikelihood(*each) for each in zip(sums.tolist(), counts.tolist(), strict=True)]


@functools.partial(jax.jit, static_argnums=0, static_argnames='mask')
def hidden_nats(
  model: nn.Module, params: PyTree, tokens: Array, segment_ids: Array, positions: Array, *, mask: int
) -> Array:
  """Compute -log p f32[b], in nats, of one masked token per row.

  Tokens and segments int[b, l]; positions int[b] of the token in its row.
  """
  rows = jnp.arange(len(tokens))
  target, hidden = tokens[rows, positions], tokens.at[rows, positions].set(mask)
  logits: Any = model.apply({'params': params}, predict=positions[:, None], tokens=hidden, segment_ids=segment_ids)
  return cross_entropy(logits[:, 0], target)
