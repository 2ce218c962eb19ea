"""Random cuts into hidden spans and the text between them.

Both have an exact number of tokens and equally many parts.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.types import Array
from plm_jax.noise.runs import Runs

_AT_ONCE = 57  # parts per check that all rows are done: all of T5's 56, and a third of UL2's 170 at most


def cut(uniform: Array, runs: Runs, hidden: Array, cuts: Array) -> tuple[Array, Array]:
  """Cut each run into parts that alternate, text first.

  Every choice of cuts has the same probability. A part is hidden or text. With `left` tokens of its kind there are
  `left` positions for its remaining `cuts`. So from left to right, a part ends before a token with probability cuts /
  left. It also ends if the tokens of its kind are used up.

  # run      a b c d e f     3 hidden tokens and 3 of text, 1 cut of each: text a | d e, hidden b c | f
  # turns    0 1 0 1 0 1
  # hidden   0 1 1 0 0 1

  Args:
    uniform: f32[l] in [0, 1).
    hidden: int32[l], hidden tokens of the run; fewer than its tokens.
    cuts: int32[l], cuts of the hidden tokens, and also of the text; fewer than the tokens of either kind, or 0.

  Returns:
    bool[l] hidden tokens, bool[l] the first of each hidden part.
  """
  arguments = uniform, runs.inside, runs.fresh, hidden, runs.size - hidden, cuts
  # Both give the same cuts. A loop over tokens is fastest on a CPU, but on a TPU each of its steps takes as long as
  # one over the whole row.
  return jax.lax.platform_dependent(*arguments, cpu=cut_by_token, default=cut_by_part)


def cut_by_token(
  uniform: Array, inside: Array, fresh: Array, hidden: Array, clean: Array, cuts: Array
) -> tuple[Array, Array]:
  """Compute `cut` token by token; `clean` tokens are not hidden."""

  def visit(carry: tuple[Array, ...], token: tuple[Array, ...]) -> tuple[Any, tuple[Array, Array]]:
    random, inside, begins, *counts = token
    # 1. a new run starts with its counts, and with text
    start = (*counts, counts[-1], jnp.zeros((), bool))
    hidden, clean, hidden_cuts, clean_cuts, hiding = (
      jnp.where(begins, new, old) for new, old in zip(start, carry, strict=True)
    )
    # 2. end the part here by a random cut, or because its kind is used up
    left, cuts = jnp.where(hiding, hidden, clean), jnp.where(hiding, hidden_cuts, clean_cuts)
    cut = inside & ~begins & (random * left < cuts)
    turns = cut | (inside & (left == 0))
    # 3. update the counts of the current kind
    hidden_cuts, clean_cuts = hidden_cuts - (cut & hiding), clean_cuts - (cut & ~hiding)
    hiding = hiding ^ turns
    hidden, clean = hidden - (inside & hiding), clean - (inside & ~hiding)
    return (hidden, clean, hidden_cuts, clean_cuts, hiding), (inside & hiding, turns & hiding)

  zero = jnp.zeros((), jnp.int32)
  tokens = uniform, inside, fresh, hidden, clean, cuts
  return jax.lax.scan(visit, (zero, zero, zero, zero, jnp.zeros((), bool)), tokens)[1]


class _Part(NamedTuple):
  """A part of a run."""

  begin: Array  # int32[], its first token; the length of the row if there is no further part
  end: Array  # int32[], its end if it took all remaining tokens of its kind
  cuts: Array  # f32[], remaining cuts of its kind
  others: Array  # int32[], remaining tokens of the other kind
  other_cuts: Array  # f32[], remaining cuts of the other kind


def cut_by_part(
  uniform: Array, inside: Array, fresh: Array, hidden: Array, clean: Array, cuts: Array
) -> tuple[Array, Array]:
  """Compute `cut` part by part.

  Each step searches the whole row for the start of the next part. On a TPU this is one kernel per part: all fields of a
  part are computed at every position where it could begin.
  """
  length = uniform.shape[0]
  index = jnp.arange(length, dtype=jnp.int32)
  cuts, more = cuts.astype(jnp.float32), (~fresh).astype(jnp.int32)

  def following(part: _Part) -> _Part:
    left = part.end - index
    begins = (index > part.begin) & (fresh | (inside & ((uniform * left < part.cuts) | (left == 0))))
    candidates = _Part(
      begin=jnp.where(begins, index, length),
      end=index + jnp.where(fresh, clean, part.others),
      cuts=jnp.where(fresh, cuts, part.other_cuts),
      others=jnp.where(fresh, hidden, left),
      # if the part before did not use up its kind, it ended at a cut
      other_cuts=jnp.where(fresh, cuts, jnp.maximum(part.cuts - more, 0)),
    )
    return _first(candidates, none=length)

  def visit(state: tuple[_Part, Array]) -> tuple[_Part, Array]:
    part, begun = state
    for _ in range(_AT_ONCE):
      part = following(part)
      begun |= index == part.begin
    return part, begun

  zero, nothing = jnp.zeros((), jnp.int32), jnp.zeros(())
  before = _Part(begin=zero - 1, end=zero, cuts=nothing, others=zero, other_cuts=nothing)
  start = before, jnp.zeros(length, bool)
  begun = jax.lax.while_loop(lambda state: state[0].begin < length, visit, start)[1]
  # a run that hides tokens has as many parts of text as hidden ones, text first
  hides = inside & (hidden > 0) & (jnp.cumsum(begun & (hidden > 0)) % 2 == 0)
  return hides, hides & begun


def _first(parts: _Part, *, none: int) -> _Part:
  """Return the part of parts [l] that begins first, below `none`."""

  def earlier(left: Sequence[Array], right: Sequence[Array]) -> Sequence[Array]:
    return [jnp.where(left[0] <= right[0], a, b) for a, b in zip(left, right, strict=True)]

  start = [np.array(none if index == 0 else 0, leaf.dtype) for index, leaf in enumerate(parts)]
  return _Part(*jax.lax.reduce(list(parts), start, earlier, (0,)))
