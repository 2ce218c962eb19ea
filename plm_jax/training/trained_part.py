"""Checkpoints of only the parameters that train (`save='trained'` of a config).

The saved state lacks the frozen parameters. They are read from `init_from` again when the run resumes or is evaluated,
and `checkpoint/frozen.py` checks that they are the same.
"""

import dataclasses
from typing import Any

import jax

from plm_jax import optim
from plm_jax.checkpoint.init_from import Report
from plm_jax.core.errors import ConfigError
from plm_jax.core.param_paths import flat, nested
from plm_jax.core.types import PyTree
from plm_jax.training.step import TrainState


def cut(state: TrainState, tx: optim.Optimiser) -> TrainState:
  """Remove the parameters that `tx` freezes from a state."""
  return dataclasses.replace(state, params=nested(flat(tx.split(state.params)[0])))


def joined(part: TrainState, params: PyTree) -> TrainState:
  """Invert `cut`, with the frozen parameters of `params`, which has all."""
  leaves: dict[str, Any] = {**flat(params), **flat(part.params)}
  return dataclasses.replace(part, params=jax.tree.unflatten(jax.tree.structure(params), leaves.values()))


def new_and_frozen(report: Report | None, params: PyTree, tx: optim.Optimiser) -> list[str]:
  """List the parameters that neither a source gives nor `tx` trains."""
  return [path for path in flat(tx.split(params)[1]) if report is None or path not in report.restored]


def check(report: Report | None, params: PyTree, tx: optim.Optimiser) -> None:
  """Raise ConfigError if a frozen parameter comes from the seed alone."""
  if new := new_and_frozen(report, params, tx):
    raise ConfigError(
      f"save='trained': {new[0]} ({len(new)} in all) neither trains nor comes from init_from, so it would "
      "be lost: name a source that has it, or save='all'"
    )
