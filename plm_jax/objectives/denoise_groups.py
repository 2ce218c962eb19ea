"""Groups of denoisers that differ only in their choice of tokens, so that one branch computes them all."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.types import Array
from plm_jax.noise.row import Row, Spans
from plm_jax.noise.where import spans as where_spans
from plm_jax.objectives.denoising import Denoiser


def group(denoisers: Sequence[Denoiser]) -> list[list[int]]:
  """Group the indices of denoisers by the steps after choosing tokens."""

  def steps_of(denoiser: Denoiser) -> tuple[partial[Any], ...]:
    return *denoiser.rearrange, denoiser.write, *denoiser.finish

  def same(left: Denoiser, right: Denoiser) -> bool:
    return (
      (left.target, len(left.mode), len(left.rearrange), len(left.finish))
      == (right.target, len(right.mode), len(right.rearrange), len(right.finish))
    ) and all(
      a.func is b.func and a.keywords == b.keywords for a, b in zip(steps_of(left), steps_of(right), strict=True)
    )

  groups: list[list[int]] = []
  for index, denoiser in enumerate(denoisers):
    members = next((members for members in groups if same(denoisers[members[0]], denoiser)), None)
    if members is None:
      groups.append([index])
    else:
      members.append(index)
  return groups


def select(denoisers: Sequence[Denoiser], which: Array) -> Denoiser:
  """Select the denoiser with index `which`, int[], from one group.

  vmap computes all branches of a choice. The denoisers of a group differ only in the choice of tokens, and those that
  choose by `exact_spans` are one branch, whose counts are looked up.
  """
  if len(denoisers) == 1:
    return denoisers[0]
  exact = [denoiser for denoiser in denoisers if denoiser.choose.func is where_spans.exact_spans]

  def cut(key: Array, row: Row) -> Spans:
    counts = np.stack([where_spans.exact_tables(row.ids.shape[0], **denoiser.choose.keywords) for denoiser in exact])
    index = np.cumsum([denoiser in exact for denoiser in denoisers]) - 1
    return where_spans.cut_spans(row, key, counts, jnp.asarray(index)[which])

  others = (denoiser.choose for denoiser in denoisers if denoiser not in exact)
  branches: list[Callable[[Array, Row], Spans]] = [*([cut] if exact else []), *others]
  next_branch = iter(range(bool(exact), len(branches)))
  branch = np.array([0 if denoiser in exact else next(next_branch) for denoiser in denoisers])

  def choose(key: Array, row: Row) -> Spans:
    return jax.lax.switch(jnp.asarray(branch)[which], branches, key, row)

  mode = tuple(jnp.asarray(ids)[which] for ids in zip(*(denoiser.mode for denoiser in denoisers), strict=True))
  return denoisers[0]._replace(choose=partial(choose), mode=mode)
