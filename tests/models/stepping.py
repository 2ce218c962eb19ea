"""Generation by a causal trunk, in steps, against its whole forward."""

import jax
import jax.numpy as jnp
import numpy as np

from tests import tiny

SIZES = np.array([6, 1, 4])  # of the prompts
LENGTH = 10


def check(trunk, params, *, left: bool, tolerance: float = 1e-5) -> None:
  """Logits of prompts read at once and of four tokens after them, one at a time, are those of whole rows.

  Args:
    trunk: with `init_cache` and `decode_step`.
    params: its own.
    left: prompts end together, with padding on the left; else they begin together.
    tolerance: of the largest difference, relative to the largest logit.
  """
  tokens = np.random.default_rng(4).integers(7, tiny.VOCAB.size, (3, LENGTH)).astype(np.int32)
  run = {'params': params}

  @jax.jit
  def read(tokens):
    hidden = trunk.apply(run, tokens, segment_ids=jnp.ones_like(tokens))['hidden']
    return trunk.apply(run, hidden, method='attend')

  @jax.jit
  def step(tokens, cache, segment_ids, positions):
    return trunk.apply(run, tokens, cache, segment_ids=segment_ids, positions=positions, method='decode_step')

  full, width = np.asarray(read(tokens)), SIZES.max()
  real = np.arange(width) < SIZES[:, None]
  prompt, segments, positions = np.where(real, tokens[:, :width], 0), real.astype(np.int32), np.arange(width) * real
  if left:
    fields = prompt, segments, positions
    prompt, segments, positions = (
      np.stack([np.roll(row, width - size) for row, size in zip(field, SIZES, strict=True)]) for field in fields
    )
  cache = trunk.apply({}, 3, LENGTH + 1, method='init_cache')
  logits, cache = step(prompt, cache, segments, positions)
  for row, size in enumerate(SIZES):
    found = logits[row, width - size :] if left else logits[row, :size]
    assert tiny.worst(found, full[row, :size]) < tolerance, row
  for number in range(4):
    places = SIZES + number
    given = tokens[np.arange(3), places][:, None]
    logits, cache = step(given, cache, np.ones((3, 1), np.int32), places[:, None])
    assert tiny.worst(logits[:, 0], full[np.arange(3), places]) < tolerance, number
  assert int(cache['index']) == width + 4
