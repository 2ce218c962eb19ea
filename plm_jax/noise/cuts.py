"""Hidden spans and the text between them: an exact number of tokens of each kind, cut at random into as many parts."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.types import Array
from plm_jax.noise.stretches import Stretches

_AT_ONCE = 57  # parts between two questions whether all rows are cut: all of T5's 56, and a third of UL2's 170 at most


def cut(uniform: Array, stretches: Stretches, hidden: Array, cuts: Array) -> tuple[Array, Array]:
  """Cuts each stretch into parts that alternate, text first; every choice of cuts has the same probability.

  `left` tokens of the present kind, hidden or text, have `left` places for its remaining `cuts`: from left to right, a
  part ends before a token with probability cuts / left, and where the tokens of its kind are used up.

  # stretch  a b c d e f     3 hidden tokens and 3 of text, 1 cut of each: text a | d e, hidden b c | f
  # turns    0 1 0 1 0 1
  # hidden   0 1 1 0 0 1

  Args:
    uniform: f32[l] in [0, 1).
    stretches: of the row.
    hidden: int32[l], hidden tokens of the stretch; fewer than its tokens.
    cuts: int32[l], of the hidden tokens and as many of the text; fewer than the tokens of either kind, or 0.

  Returns:
    bool[l] hidden tokens, bool[l] the first of each hidden part.
  """
  arguments = uniform, stretches.inside, stretches.fresh, hidden, stretches.size - hidden, cuts
  # the same cuts: a pass over the tokens is fastest on a CPU, and on a TPU each of its rounds costs as much as one
  # over the whole row
  return jax.lax.platform_dependent(*arguments, cpu=cut_by_token, default=cut_by_part)


def cut_by_token(
  uniform: Array, inside: Array, fresh: Array, hidden: Array, clean: Array, cuts: Array
) -> tuple[Array, Array]:
  """`cut`, one token after the other; `clean` tokens of a stretch are not hidden."""

  def visit(carry: tuple[Array, ...], token: tuple[Array, ...]) -> tuple[Any, tuple[Array, Array]]:
    number, inside, begins, *fresh = token
    start = (*fresh, fresh[-1], jnp.zeros((), bool))
    hidden, clean, hidden_cuts, clean_cuts, hiding = (
      jnp.where(begins, new, old) for new, old in zip(start, carry, strict=True)
    )
    left, cuts = jnp.where(hiding, hidden, clean), jnp.where(hiding, hidden_cuts, clean_cuts)
    cut = inside & ~begins & (number * left < cuts)
    turns = cut | (inside & (left == 0))
    hidden_cuts, clean_cuts = hidden_cuts - (cut & hiding), clean_cuts - (cut & ~hiding)
    hiding = hiding ^ turns
    hidden, clean = hidden - (inside & hiding), clean - (inside & ~hiding)
    return (hidden, clean, hidden_cuts, clean_cuts, hiding), (inside & hiding, turns & hiding)

  zero = jnp.zeros((), jnp.int32)
  tokens = uniform, inside, fresh, hidden, clean, cuts
  return jax.lax.scan(visit, (zero, zero, zero, zero, jnp.zeros((), bool)), tokens)[1]


class _Part(NamedTuple):
  """A part of a stretch.

  Attributes:
    begin: int32[], its first token; the length of the row where there is no further part.
    end: int32[], where it would end if it held all that is left of its kind.
    cuts: f32[], cuts left of its kind.
    others: int32[], tokens left of the other kind.
    other_cuts: f32[], cuts left of the other kind.
  """

  begin: Array
  end: Array
  cuts: Array
  others: Array
  other_cuts: Array


def cut_by_part(
  uniform: Array, inside: Array, fresh: Array, hidden: Array, clean: Array, cuts: Array
) -> tuple[Array, Array]:
  """`cut`, one part after the other: each time the whole row is searched for where the next one begins.

  On a TPU that is one kernel for a part: whatever a part needs is computed at all positions where it could begin.
  """
  length = uniform.shape[0]
  index = jnp.arange(length, dtype=jnp.int32)
  cuts, more = cuts.astype(jnp.float32), (~fresh).astype(jnp.int32)

  def following(part: _Part) -> _Part:
    left = part.end - index
    begins = (index > part.begin) & (fresh | (inside & ((uniform * left < part.cuts) | (left == 0))))
    here = _Part(
      jnp.where(begins, index, length),
      end=index + jnp.where(fresh, clean, part.others),
      cuts=jnp.where(fresh, cuts, part.other_cuts),
      others=jnp.where(fresh, hidden, left),
      # a part that did not use up the tokens of its kind ends at a cut
      other_cuts=jnp.where(fresh, cuts, jnp.maximum(part.cuts - more, 0)),
    )
    return _first(here, none=length)

  def visit(state: tuple[_Part, Array]) -> tuple[_Part, Array]:
    part, begun = state
    for _ in range(_AT_ONCE):
      part = following(part)
      begun |= index == part.begin
    return part, begun

  zero, nothing = jnp.zeros((), jnp.int32), jnp.zeros(())
  before = _Part(zero - 1, zero, nothing, zero, nothing)
  start = before, jnp.zeros(length, bool)
  begun = jax.lax.while_loop(lambda state: state[0].begin < length, visit, start)[1]
  # a stretch that hides tokens has as many parts of text as hidden ones, text first
  hides = inside & (hidden > 0) & (jnp.cumsum(begun & (hidden > 0)) % 2 == 0)
  return hides, hides & begun


def _first(parts: _Part, *, none: int) -> _Part:
  """Of parts [l], the one that begins first; where none begins below `none`, a part that begins there."""

  def earlier(one: Sequence[Array], other: Sequence[Array]) -> Sequence[Array]:
    return [jnp.where(one[0] <= other[0], a, b) for a, b in zip(one, other, strict=True)]

  start = [np.array(none if place == 0 else 0, leaf.dtype) for place, leaf in enumerate(parts)]
  return _Part(*jax.lax.reduce(list(parts), start, earlier, (0,)))
