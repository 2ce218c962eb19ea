"""A linear-chain conditional random field: the labels of a text are one path, scored as a whole.

A path y of labels over the words of a text has the score start[y_1] + sum_t scores[t, y_t] + sum_t transitions[y_t-1,
y_t] + end[y_n], and the probability exp(score) over the sum of exp(score) of all paths (Lafferty et al. 2001; Lample et
al. 2016, §2.2). A row may hold several texts: a step from one to the next scores end + start in place of a transition,
so that each text is a path of its own.

The words of a row stand side by side from its first index on, as `side_by_side` puts them.
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.core.types import Array


class Chain(NamedTuple):
  """What neighbouring labels score.

  Attributes:
    transitions: f32[c, c], from the label of the row to that of the column.
    start: f32[c], of the first label of a text.
    end: f32[c], of the last one.
  """

  transitions: Array
  start: Array
  end: Array


class Crf(nn.Module):
  """The parameters of a chain; from 0 they score a path as if each word were labelled by itself.

  Attributes:
    labels: c.
  """

  labels: int

  @nn.compact
  def __call__(self) -> Chain:
    def zeros(name: str, *axes: str | None) -> Array:
      init = nn.with_logical_partitioning(nn.initializers.zeros, axes)
      return self.param(name, init, (self.labels,) * len(axes), jnp.float32)

    return Chain(zeros('transitions', None, 'classes'), zeros('start', 'classes'), zeros('end', 'classes'))


class Words(NamedTuple):
  """Which words of a row are labelled.

  Attributes:
    real: bool[b, w], a word stands here; none stands behind an index without one.
    inside: bool[b, w], and it is of the same text as the word before it.
  """

  real: Array
  inside: Array


def side_by_side(is_word: Array, segment_ids: Array) -> tuple[Words, Array]:
  """The labelled tokens of each row, moved to its beginning.

  Args:
    is_word: bool[b, l], tokens that are labelled.
    segment_ids: int[b, l], the text of each token.

  Returns:
    The words, and int[b, l], the token that each word is: `take_along_axis` moves values of tokens to words. After the
    words it lists the other tokens.
  """
  # is_word . x . x x, segments 1 1 1 1 2   order 1 3 4 0 2, real x x x . ., inside . x . . .
  order = jnp.argsort(~is_word, axis=1, stable=True)
  real, text = (jnp.take_along_axis(values, order, axis=1) for values in (is_word, segment_ids))
  same = jnp.pad(text[:, 1:] == text[:, :-1], ((0, 0), (1, 0)))
  return Words(real, real & same), order


def log_likelihood(scores: Array, labels: Array, words: Words, chain: Chain) -> Array:
  """Log-probability of the labels of all texts of each row, f32[b]; 0 for a row without words.

  Args:
    scores: f32[b, w, c], of each label at each word.
    labels: int[b, w]; those that are not `real` are not read.
    words: see `Words`.
    chain: see `Chain`.
  """
  labels = jnp.where(words.real, labels, 0)
  return path_score(scores, labels, words, chain) - log_partition(scores, words, chain)


def path_score(scores: Array, labels: Array, words: Words, chain: Chain) -> Array:
  """Score of one path in each text of each row, summed over its texts: f32[b]."""
  each = jnp.take_along_axis(scores, labels[..., None], axis=2)[..., 0]  # [b, w, c] -> [b, w]
  before, after = labels[:, :-1], labels[:, 1:]
  steps = jnp.where(words.inside[:, 1:], chain.transitions[before, after], chain.end[before] + chain.start[after])
  edges = chain.start[labels[:, 0]] + chain.end[_last(labels, words)]
  inner = jnp.where(words.real, each, 0).sum(axis=1) + jnp.where(words.real[:, 1:], steps, 0).sum(axis=1)
  return jnp.where(words.real[:, 0], inner + edges, 0)


def log_partition(scores: Array, words: Words, chain: Chain) -> Array:
  """Log of the sum of exp(score) over all paths of each text, summed over the texts of a row: f32[b]."""

  def step(before: Array, word: tuple[Array, Array, Array]) -> tuple[Array, None]:
    score, real, inside = word
    after = jax.nn.logsumexp(before[:, :, None] + _moves(inside, chain), axis=1) + score  # [b, c, c] -> [b, c]
    return jnp.where(real[:, None], after, before), None

  paths, _ = jax.lax.scan(step, chain.start + scores[:, 0], _by_word(scores, words))
  return jnp.where(words.real[:, 0], jax.nn.logsumexp(paths + chain.end, axis=1), 0)


def probabilities(scores: Array, words: Words, chain: Chain) -> Array:
  """Probability of each label at each word, over all paths of its text: f32[b, w, c]; 0 where no word is."""
  return jax.grad(lambda scores: log_partition(scores, words, chain).sum())(scores)


def best_path(scores: Array, words: Words, chain: Chain) -> Array:
  """The labels of the best path of each text, int[b, w]; 0 where no word is (Viterbi 1967)."""
  count = scores.shape[2]

  def step(before: Array, word: tuple[Array, Array, Array]) -> tuple[Array, Array]:
    score, real, inside = word
    ways = before[:, :, None] + _moves(inside, chain)  # [b, c, c]
    after = jnp.where(real[:, None], ways.max(axis=1) + score, before)
    return after, jnp.where(real[:, None], ways.argmax(axis=1), jnp.arange(count))

  paths, origins = jax.lax.scan(step, chain.start + scores[:, 0], _by_word(scores, words))  # origins int[w-1, b, c]
  last = (paths + chain.end).argmax(axis=1)

  def back(label: Array, origin: Array) -> tuple[Array, Array]:
    before = jnp.take_along_axis(origin, label[:, None], axis=1)[:, 0]
    return before, before

  _, others = jax.lax.scan(back, last, origins, reverse=True)  # [w-1, b]
  return jnp.where(words.real, jnp.concatenate([others, last[None]]).T, 0)


def _moves(inside: Array, chain: Chain) -> Array:
  """f32[b, c, c]: what a step to the next word scores, where bool[b] says whether it stays in the text."""
  return jnp.where(inside[:, None, None], chain.transitions, chain.end[:, None] + chain.start)


def _by_word(scores: Array, words: Words) -> tuple[Array, Array, Array]:
  """Scores and flags of all words but the first, with the words along axis 0."""
  return jnp.moveaxis(scores[:, 1:], 1, 0), words.real[:, 1:].T, words.inside[:, 1:].T


def _last(labels: Array, words: Words) -> Array:
  """The label of the last word of each row: int[b]."""
  place = jnp.maximum(words.real.sum(axis=1) - 1, 0)
  return jnp.take_along_axis(labels, place[:, None], axis=1)[:, 0]
