"""A linear-chain conditional random field: the labels of a text are one path with one score.

A path y of labels over the words of a text has the score

    start[y_1] + sum_t scores[t, y_t] + sum_t transitions[y_t-1, y_t] + end[y_n]

and the probability exp(score) divided by the sum of exp(score) over all paths (Lafferty et al. 2001; Lample et al.
2016, §2.2). A row may hold several texts. A step from one text to the next scores end + start instead of a transition,
so each text is a separate path.

The words of a row are adjacent from its first index on, as `side_by_side` arranges them.
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.core.types import Array


class Chain(NamedTuple):
  """Scores of neighbouring labels."""

  transitions: Array  # f32[c, c], from the label of the row to that of the column
  start: Array  # f32[c], of the first label of a text
  end: Array  # f32[c], of the last one


class Crf(nn.Module):
  """The parameters of a chain, which start at 0: a path then scores as if each word were labelled separately."""

  labels: int  # c

  @nn.compact
  def __call__(self) -> Chain:
    def zeros(name: str, *axes: str | None) -> Array:
      init = nn.with_logical_partitioning(nn.initializers.zeros, axes)
      return self.param(name, init, (self.labels,) * len(axes), jnp.float32)

    return Chain(
      transitions=zeros('transitions', None, 'classes'), start=zeros('start', 'classes'), end=zeros('end', 'classes')
    )


class Words(NamedTuple):
  """The labelled words of a row."""

  real: Array  # bool[b, w], True for a word; all words come first
  inside: Array  # bool[b, w], True for a word of the same text as the word before it


def side_by_side(is_word: Array, segment_ids: Array) -> tuple[Words, Array]:
  """Move the labelled tokens of each row to its beginning.

  Args:
    is_word: bool[b, l], tokens that are labelled.
    segment_ids: int[b, l], the text of each token.

  Returns:
    The words, and int[b, l], the token index of each word, with the other tokens after them. `take_along_axis` with
    these indices moves values of tokens to words.
  """
  # is_word . x . x x, segments 1 1 1 1 2   order 1 3 4 0 2, real x x x . ., inside . x . . .
  order = jnp.argsort(~is_word, axis=1, stable=True)
  real, text = (jnp.take_along_axis(values, order, axis=1) for values in (is_word, segment_ids))
  same = jnp.pad(text[:, 1:] == text[:, :-1], ((0, 0), (1, 0)))
  return Words(real=real, inside=real & same), order


def log_likelihood(scores: Array, labels: Array, words: Words, chain: Chain) -> Array:
  """Compute the log-probability of the labels of all texts of each row.

  Args:
    scores: f32[b, w, c], of each label at each word.
    labels: int[b, w]; those that are not `real` are ignored.
    words: see `Words`.
    chain: see `Chain`.

  Returns:
    f32[b]; 0 for a row without words.
  """
  # log p(y) = score(y) - log sum over all paths of exp(score)
  labels = jnp.where(words.real, labels, 0)
  return path_score(scores, labels, words, chain) - log_partition(scores, words, chain)


def path_score(scores: Array, labels: Array, words: Words, chain: Chain) -> Array:
  """Compute the score of one path per text, summed over each row.

  Returns f32[b].
  """
  # 1. scores of the labels
  emissions = jnp.take_along_axis(scores, labels[..., None], axis=2)[..., 0]  # [b, w, c] -> [b, w]
  # 2. transitions, or end + start between two texts
  before, after = labels[:, :-1], labels[:, 1:]
  steps = jnp.where(words.inside[:, 1:], chain.transitions[before, after], chain.end[before] + chain.start[after])
  # 3. start of the first text and end of the last one
  edges = chain.start[labels[:, 0]] + chain.end[_last(labels, words)]
  # 4. sums over words
  inner = jnp.where(words.real, emissions, 0).sum(axis=1) + jnp.where(words.real[:, 1:], steps, 0).sum(axis=1)
  return jnp.where(words.real[:, 0], inner + edges, 0)


def log_partition(scores: Array, words: Words, chain: Chain) -> Array:
  """Compute the log of the sum of exp(score) over all paths.

  Returns f32[b], summed over the texts of a row.
  """

  def step(before: Array, word: tuple[Array, Array, Array]) -> tuple[Array, None]:
    score, real, inside = word
    after = jax.nn.logsumexp(before[:, :, None] + _moves(inside, chain), axis=1) + score  # [b, c, c] -> [b, c]
    return jnp.where(real[:, None], after, before), None

  # `before` is f32[b, c]: the log-sum over all paths so far that end with each label (forward algorithm)
  paths, _ = jax.lax.scan(step, chain.start + scores[:, 0], _by_word(scores, words))
  return jnp.where(words.real[:, 0], jax.nn.logsumexp(paths + chain.end, axis=1), 0)


def probabilities(scores: Array, words: Words, chain: Chain) -> Array:
  """Compute the probability of each label at each word.

  The sum is over all paths of the text: f32[b, w, c], 0 where there is no word. It is the gradient of `log_partition`.
  """
  # d log Z / d scores[t, y] = p(y_t = y)
  return jax.grad(lambda scores: log_partition(scores, words, chain).sum())(scores)


def best_path(scores: Array, words: Words, chain: Chain) -> Array:
  """Compute the labels of the best path of each text (Viterbi 1967).

  Returns int[b, w]; 0 where there is no word.
  """
  count = scores.shape[2]

  # 1. from left to right: the score of the best path to each label, and the label before it
  def step(before: Array, word: tuple[Array, Array, Array]) -> tuple[Array, Array]:
    score, real, inside = word
    candidates = before[:, :, None] + _moves(inside, chain)  # [b, c, c]
    after = jnp.where(real[:, None], candidates.max(axis=1) + score, before)
    return after, jnp.where(real[:, None], candidates.argmax(axis=1), jnp.arange(count))

  paths, origins = jax.lax.scan(step, chain.start + scores[:, 0], _by_word(scores, words))  # origins int[w-1, b, c]
  last = (paths + chain.end).argmax(axis=1)

  # 2. from right to left: follow the labels back from the best last one
  def back(label: Array, origin: Array) -> tuple[Array, Array]:
    before = jnp.take_along_axis(origin, label[:, None], axis=1)[:, 0]
    return before, before

  _, others = jax.lax.scan(back, last, origins, reverse=True)  # [w-1, b]
  return jnp.where(words.real, jnp.concatenate([others, last[None]]).T, 0)


def _moves(inside: Array, chain: Chain) -> Array:
  """Score the step to the next word: f32[b, c, c].

  `inside` bool[b] tells whether it stays in the text.
  """
  return jnp.where(inside[:, None, None], chain.transitions, chain.end[:, None] + chain.start)


def _by_word(scores: Array, words: Words) -> tuple[Array, Array, Array]:
  """Return scores and flags of all later words, words along axis 0."""
  return jnp.moveaxis(scores[:, 1:], 1, 0), words.real[:, 1:].T, words.inside[:, 1:].T


def _last(labels: Array, words: Words) -> Array:
  """Return the label of the last word of each row: int[b]."""
  # words come first, so the last one has the index of their count - 1
  index = jnp.maximum(words.real.sum(axis=1) - 1, 0)
  return jnp.take_along_axis(labels, index[:, None], axis=1)[:, 0]
