"""Rewinding a run to an older step: the engine of `plm-jax rewind`."""

import logging
from pathlib import Path

from plm_jax import checkpoint
from plm_jax.checkpoint import saved_steps
from plm_jax.config import earlier
from plm_jax.core.errors import ConfigError
from plm_jax.io import files
from plm_jax.io.files import Where
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import history, run_folder

log = logging.getLogger(__name__)


def rewind(workdir: Where, step: int | None, *, skip: int = 0) -> None:
  """Rewind a run to a saved step.

  Everything after that step moves to `checkpoints/set_aside/`: newer steps, lines of metrics, the result. The config is
  written last, so the same call can resume an interrupted one. Raises ConfigError: no such step, no run, or another
  process trains in the folder.

  Args:
    workdir: the run folder, in which no process trains.
    step: a sound step whose numbers are finite; None raises the error that lists them.
    skip: batches that the run leaves out from there on.
  """
  folder = RunFolder.at(workdir)
  if not files.is_file(folder.config):
    raise ConfigError(f'--workdir={workdir}: it has no {folder.config.name}, so no run began there')
  if skip < 0:
    raise ConfigError(f'--skip={skip}: the number of batches to leave out, from 0 on')
  with run_folder.claim(folder, main=True), run_folder.log_file(folder, main=True):
    settings = {'extend': (), 'skip': (), **earlier.current(run_folder.read_json(folder.config))}
    step = _sound(folder, step)
    settings = history.back_at(settings, step, skip=skip)
    if sum(count for _, count in settings['skip']) > history.MOST_STEPS:
      raise ConfigError(f'--skip={skip}: a run leaves out at most {history.MOST_STEPS:,} batches in all')
    # move what came after the step, the config last
    aside = folder.checkpoints / checkpoint.SET_ASIDE
    if files.exists(folder.result):
      checkpoint.make_aside(folder.checkpoints)
      files.move(folder.result, files.unused(aside / folder.result.name))
    moved = checkpoint.set_aside(folder.checkpoints, step)
    for file in (folder.metrics, folder.evaluations):
      _cut(file, aside, after=step)
    run_folder.write_config(folder, settings)
    log.info(
      f'{folder.root} is at step {step} of {history.total(settings)} now; '
      f'steps set aside in {aside}: {", ".join(map(str, sorted(moved))) or "none"}. The next step reads '
      f'{f"what comes after the next {skip} batches" if skip else "the batch that it read before"}; '
      'the training command resumes from here'
    )


def _sound(folder: RunFolder, step: int | None) -> int:
  """Return the step after reading and checking all of it."""
  there, damaged = saved_steps.records(folder.checkpoints)
  choices = f'sound steps are {", ".join(map(str, there)) or "none"}'
  if step is None:
    raise ConfigError(f'needs --to_step=S; in {folder.checkpoints} {choices}')
  if step in damaged:
    raise ConfigError(f'--to_step={step}: it is damaged ({damaged[step]}); {choices}')
  if step not in there:
    raise ConfigError(f'--to_step={step}: there is no such step in {folder.checkpoints}; {choices}')
  try:
    saved_steps.check(folder.step(step))
  except saved_steps.Damaged as error:
    raise ConfigError(f'--to_step={step}: it is damaged ({error}); {choices}') from error
  if broken := checkpoint.broken_leaves(folder.checkpoints, step):
    raise ConfigError(f'--to_step={step}: numbers are not finite, in {", ".join(broken[:4])}; {choices}')
  return step


def _cut(file: Path, aside: Path, *, after: int) -> None:
  """Move the lines of later steps to the file in `aside`, repeatably."""
  if not files.exists(file):
    return
  lines = files.read_bytes(file).splitlines(keepends=True)
  gone = [line for line in lines if _step_of(line) > after]
  if gone:
    checkpoint.make_aside(aside.parent)
    files.append(aside / file.name, b''.join(gone).decode(errors='replace'))
    files.write_bytes(file, b''.join(line for line in lines if _step_of(line) <= after))


def _step_of(line: bytes) -> int:
  """Return the step of a line of metrics, or 0."""
  try:
    step = files.parse_json(line.decode())['step']
  except (ValueError, KeyError, TypeError):
    return 0
  return step if history.is_step(step) else 0
