"""Losses over vocabularies and labels, in float32, as sums under weights."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from plm_jax.core import sharding
from plm_jax.core.types import Array, PyTree


def cross_entropy(logits: Array, targets: Array) -> Array:
  """-log softmax(logits)[target] in nats: [..., v], int[...] -> f32[...]."""
  logits = logits.astype(jnp.float32)
  top = jax.lax.stop_gradient(logits.max(axis=-1))
  target = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
  # top - target first: the sum of a small number and two large ones would lose the small one
  return jnp.log(jnp.exp(logits - top[..., None]).sum(axis=-1)) + (top - target)


def smoothed_cross_entropy(logits: Array, targets: Array, *, smoothing: float) -> tuple[Array, Array]:
  """Nats of the targets, and of (1 - a) target + a uniform (Szegedy et al. 2016, §7): f32[..., v] -> two f32[...]."""
  nats = cross_entropy(logits, targets)
  if not smoothing:
    return nats, nats
  uniform = -jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1).mean(axis=-1)
  return nats, (1 - smoothing) * nats + smoothing * uniform


def most_likely(logits: Array, targets: Array) -> Array:
  """Whether argmax(logits) is the target, of equal logits the first: [..., v], int[...] -> bool[...].

  A comparison with the target's logit, which a CPU computes several times faster than an argmax over a vocabulary.
  False where any of two or more logits is not a number.
  """
  # logits 1 3 3   target 0 false (3 is larger), 1 true (the first 3), 2 false
  target = jnp.take_along_axis(logits, targets[..., None], axis=-1)
  ids, chosen = jnp.arange(logits.shape[-1]), targets[..., None]
  return ((ids == chosen) | (logits < target) | ((logits == target) & (ids > chosen))).all(axis=-1)


def perplexity(nats: float) -> float:
  """exp of a mean loss; infinite where it overflows a float."""
  return math.exp(nats) if nats < 700 else math.inf


def squared_log_partition(logits: Array) -> Array:
  """(log sum exp logits)^2, what PaLM (Chowdhery et al. 2022, §5) keeps near 0: [..., v] -> f32[...]."""
  return jnp.square(jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1))


def next_tokens(tokens: Array, segment_ids: Array) -> tuple[Array, Array]:
  """What follows each position inside its document.

  Args:
    tokens: int[b, l].
    segment_ids: int[b, l]; 0 is padding.

  Returns:
    targets int[b, l] and weights f32[b, l], 0 at the last token of each document and on padding.
  """
  # tokens a b c d, segments 1 1 2 0   targets b c d 0, weights 1 0 0 0
  following = jnp.pad(tokens, ((0, 0), (0, 1)))[:, 1:]
  segment = jnp.pad(segment_ids, ((0, 0), (0, 1)))[:, 1:]
  return following, ((segment == segment_ids) & (segment > 0)).astype(jnp.float32)


def chunked_cross_entropy(
  attend: Callable[[Array], Array], features: Array, targets: Array, *, rows: int = 1
) -> tuple[Array, Array]:
  """Cross-entropy and correctness of every position without all logits in memory at once.

  Args:
    attend: features -> vocabulary logits.
    features: [b, l, d].
    targets: int[b, l].
    rows: of each device whose logits exist at a time, also in the backward pass.

  Returns:
    (f32[b, l] nats, f32[b, l] 1 where the most likely token is the target).
  """

  def score(chunk: tuple[Array, Array]) -> tuple[Array, Array]:
    logits = attend(chunk[0])
    return cross_entropy(logits, chunk[1]), most_likely(logits, chunk[1]).astype(jnp.float32)

  return in_chunks(score, (features, targets), rows=rows)


def in_chunks(function: Callable[[PyTree], PyTree], arrays: PyTree, *, rows: int) -> PyTree:
  """Applies `function` to a batch in chunks of rows, with the intermediate values of one chunk in memory at a time.

  Args:
    function: arrays that lead with rows -> arrays that lead with as many; computed again in the backward pass. No row
      needs another.
    arrays: [b, ...] each.
    rows: of each device at a time; the largest number up to it that divides the rows of a device is taken.
  """
  batch = jax.tree.leaves(arrays)[0].shape[0]
  own = batch // sharding.row_parts(batch)
  chunk = next(size for size in range(min(rows, own), 0, -1) if own % size == 0)

  def loop(function: Callable[[PyTree], PyTree], arrays: PyTree) -> PyTree:
    function = jax.checkpoint(function)
    if chunk == own:
      return function(arrays)
    chunks = jax.tree.map(lambda x: x.reshape(own // chunk, chunk, *x.shape[1:]), arrays)
    return jax.tree.map(lambda x: x.reshape(own, *x.shape[2:]), jax.lax.map(function, chunks))

  return sharding.map_rows(loop, function, arrays, rows=chunk)


def divergence(student: Array, teacher: Array, *, temperature: float) -> Array:
  """T^2 KL(softmax(teacher / T) || softmax(student / T)) in nats: f32[..., v] twice -> f32[...].

  T^2 keeps the size of gradients where T changes (Hinton et al. 2015, §2).
  """
  ours = jax.nn.log_softmax(student.astype(jnp.float32) / temperature)
  theirs = jax.nn.log_softmax(teacher.astype(jnp.float32) / temperature)
  return temperature**2 * (jnp.exp(theirs) * (theirs - ours)).sum(axis=-1)
