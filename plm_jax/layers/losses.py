"""Losses over vocabularies and labels, in float32, as weighted sums."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from plm_jax.core import sharding
from plm_jax.core.types import Array, PyTree


def cross_entropy(logits: Array, targets: Array) -> Array:
  """Compute -log softmax(logits)[target] in nats: [..., v], int[...] -> f32[...]."""
  logits = logits.astype(jnp.float32)
  # subtract the largest logit, so that no exponent overflows: log sum exp(s - top) + top - s_target
  top = jax.lax.stop_gradient(logits.max(axis=-1))
  target = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
  # (top - target) first: adding a small number to two large ones would lose the small one
  return jnp.log(jnp.exp(logits - top[..., None]).sum(axis=-1)) + (top - target)


def binary_cross_entropy(logits: Array, targets: Array) -> Array:
  """Compute -log p of targets 0 or 1, where p(1) = sigmoid(logit)."""
  logits = logits.astype(jnp.float32)
  return jax.nn.softplus(logits) - logits * targets


def smoothed_cross_entropy(logits: Array, targets: Array, *, smoothing: float) -> tuple[Array, Array]:
  """Compute the nats of the targets, without and with label smoothing.

  The second is for (1 - a) target + a uniform (Szegedy et al. 2016, §7). [..., v], int[...] -> two f32[...].
  """
  nats = cross_entropy(logits, targets)
  if not smoothing:
    return nats, nats
  # cross-entropy with the uniform distribution: the mean of -log p over the vocabulary
  uniform = -jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1).mean(axis=-1)
  return nats, (1 - smoothing) * nats + smoothing * uniform


def most_likely(logits: Array, targets: Array) -> Array:
  """Check whether the first argmax of the logits is the target.

  [..., v], int[...] -> bool[...]. It compares with the target's logit, which a CPU computes several times faster than
  an argmax over a vocabulary. False if any of two or more logits is not a number.
  """
  # logits 1 3 3   target 0 false (3 is larger), 1 true (the first 3), 2 false
  target = jnp.take_along_axis(logits, targets[..., None], axis=-1)
  ids, chosen = jnp.arange(logits.shape[-1]), targets[..., None]
  return ((ids == chosen) | (logits < target) | ((logits == target) & (ids > chosen))).all(axis=-1)


def perplexity(nats: float) -> float:
  """Compute exp of a mean loss; infinite if a float overflows."""
  return math.exp(nats) if nats < 700 else math.inf


def squared_log_partition(logits: Array) -> Array:
  """Compute (log sum exp logits)^2 of PaLM (Chowdhery et al. 2022, §5)."""
  return jnp.square(jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1))


def next_tokens(tokens: Array, segment_ids: Array) -> tuple[Array, Array]:
  """Return the token that follows each position in its document.

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
  """Compute cross-entropy and correctness without all logits in memory.

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
  """Apply `function` to a batch in chunks of rows.

  Intermediate values of only one chunk are in memory at a time.

  Args:
    function: arrays that lead with rows -> arrays that lead with the same number; computed again in the backward pass.
      Rows must be independent.
    arrays: [b, ...] each.
    rows: of each device at a time; the largest number up to it that divides the rows of a device is used.
  """
  # 12 rows of a device, rows=5: chunks of 4
  batch = jax.tree.leaves(arrays)[0].shape[0]
  own = batch // sharding.row_parts(batch)
  chunk = next(size for size in range(min(rows, own), 0, -1) if own % size == 0)

  def loop(function: Callable[[PyTree], PyTree], arrays: PyTree) -> PyTree:
    # the backward pass computes each chunk again, so it also holds one chunk at a time
    function = jax.checkpoint(function)
    if chunk == own:
      return function(arrays)
    # [own, ...] -> [own / chunk, chunk, ...], and back after the loop
    chunks = jax.tree.map(lambda x: x.reshape(own // chunk, chunk, *x.shape[1:]), arrays)
    return jax.tree.map(lambda x: x.reshape(own, *x.shape[2:]), jax.lax.map(function, chunks))

  return sharding.map_rows(loop, function, arrays, rows=chunk)


def divergence(student: Array, teacher: Array, *, temperature: float) -> Array:
  """Compute T^2 KL(softmax(teacher / T) || softmax(student / T)) in nats.

  Two f32[..., v] -> f32[...]. The factor T^2 keeps the size of gradients independent of T (Hinton et al. 2015, §2).
  """
  # sum_v p_teacher (log p_teacher - log p_student)
  student_log = jax.nn.log_softmax(student.astype(jnp.float32) / temperature)
  teacher_log = jax.nn.log_softmax(teacher.astype(jnp.float32) / temperature)
  return temperature**2 * (jnp.exp(teacher_log) * (teacher_log - student_log)).sum(axis=-1)
