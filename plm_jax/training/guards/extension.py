"""More steps for a run that has begun (`train --extend`)."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import jax

from plm_jax import optim
from plm_jax.core.errors import ConfigError
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import history

log = logging.getLogger(__name__)


def check(extend: int | None, folder: RunFolder, old: Mapping[str, Any]) -> None:
  """Raise ConfigError if a run cannot be extended by `extend` steps."""
  if extend is None:
    return
  if extend < 1:
    raise ConfigError(f'--extend={extend}: the number of steps to add, from 1 on')
  if not old:
    raise ConfigError(f'--extend={extend}: no run began in {folder.root}; leave the flag out, and set steps')
  if history.total(old) + extend > history.MOST_STEPS:
    raise ConfigError(f'--extend={extend}: a run has at most {history.MOST_STEPS:,} steps')


def extended(
  settings: Mapping[str, Any], extend: int, *, at: int, finished: bool, optimiser_of: Callable[[int], optim.Optimiser]
) -> dict[str, Any]:
  """Return the settings with more steps; log the new learning rate.

  `optimiser_of` maps the number of steps of a run to its optimiser.
  """
  longer = history.extended(settings, extend, at=at, finished=finished)
  before, after = history.total(settings), history.total(longer)
  if before == after:
    log.info(f'--extend: the run continues with its extension to {after} steps, which is under way')
    return longer
  old_rate, new_rate = (float(optimiser_of(steps).rate(jax.numpy.int32(at))) for steps in (before, after))
  log.info(
    f'the run is extended from {before} to {after} steps. From step {at} on its schedule '
    f'({settings["optim"]["schedule"]}) is that of a run of {after} steps: the learning rate is {new_rate:.4g} there, '
    f'and was {old_rate:.4g}'
  )
  return longer


def how_to_extend(folder: RunFolder, result: Mapping[str, Any]) -> str:
  """Return the message for a run that is finished and not extended."""
  step, total = result['step'], result['steps']
  done = f'{step} steps are done' if step == total else f'it stopped early, at step {step} of {total}'
  return f'{folder.root} is finished: {done}, nothing is changed; --extend=N continues to step {total} + N'
