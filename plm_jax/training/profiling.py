"""Traces of some steps of a run, for xprof (`--profile`).

Process 0 traces its host and its own devices. The trace goes to a temporary folder of this machine first, and from
there to the run folder, whatever storage that is on.
"""

import contextlib
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

from plm_jax.core.errors import ConfigError
from plm_jax.io import files

log = logging.getLogger(__name__)

STEP = 'train'  # the name of a step in the trace; xprof groups by it
WARM = 3  # steps that a process makes before it traces by itself: the first compiles, the next fill queues and caches
MOST = 1000  # steps of a trace: viewers cannot read more, and it is held in memory


class Steps(NamedTuple):
  """Steps to trace."""

  # number of the first step, counted from 1 over the whole run; None is the one after `WARM` steps of the process
  first: int | None
  steps: int  # their number


def steps(text: str) -> Steps:
  """Parse the flag `--profile`.

      '3'        three steps, after warm-up
      '10:13'    steps 10, 11 and 12 of the run

  Raises ConfigError: it is neither, or no step or more than `MOST`.
  """
  found = re.fullmatch(r'(?:(\d{1,18}):)?(\d{1,18})', text)
  if found is None:
    raise ConfigError(
      f'--profile={text}: give a number of steps, such as 3, or FIRST:END, such as 10:13 for the steps 10, 11 and 12'
    )
  first = None if found[1] is None else int(found[1])
  count = int(found[2]) - (first or 0)
  if first == 0:
    raise ConfigError(f'--profile={text}: steps are counted from 1')
  if first is not None and count < 1:
    raise ConfigError(f'--profile={text}: END has to be larger than FIRST; the step END is not traced')
  if not 1 <= count <= MOST:
    raise ConfigError(f'--profile={text} are {count:,} steps; a trace is of 1 to {MOST:,}')
  return Steps(first, count)


class Tracer:
  """Context manager that traces the requested steps and writes a trace that is still open at its end.

  A trace that fails is only a warning, and the run continues.
  """

  def __init__(
    self,
    asked: Steps | None,
    folder: Path,
    *,
    start: int,
    main: bool,
    paused: Callable[[], contextlib.AbstractContextManager[None]],
  ):
    """Start nothing yet.

    Args:
      asked: from `steps`; None traces nothing.
      folder: where traces go; made when there is one.
      main: False in all processes but the first, which trace nothing.
      paused: the time of its body, in which a trace is begun or written, does not count as training.
    """
    self._folder, self._paused = folder, paused
    self._under_way: tuple[contextlib.ExitStack, Path] | None = None  # the local folder of a trace, and what removes it
    self._first = self._end = 0  # steps first, ..., end - 1
    self._made = start
    if asked is None or not main:
      return
    self._first = start + WARM + 1 if asked.first is None else asked.first
    self._end = self._first + asked.steps
    if self._first <= start:
      log.warning(
        f'--profile: step {self._first} is done already, the run resumes from step {start}; nothing is traced'
      )
      self._first = self._end = 0

  @contextlib.contextmanager
  def step(self, number: int, state: Any) -> Iterator[None]:
    """Trace the body, step `number` from 1, if requested.

    Where a trace begins, the arrays of `state` are waited for.
    """
    import jax

    if number == self._first:
      jax.block_until_ready(state)
      self._begin()
    with jax.profiler.StepTraceAnnotation(STEP, step_num=number):
      yield

  def stepped(self, number: int, state: Any) -> None:
    """Write the trace if step `number` is its last."""
    self._made = number
    if self._under_way is not None and number == self._end - 1:
      import jax

      jax.block_until_ready(state)
      self._write(number)

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *error: object) -> None:
    if self._under_way is not None:
      self._write(None)
    elif self._made < self._first:
      log.warning(f'--profile: nothing is traced: the run ended at step {self._made}, before step {self._first}')

  def _begin(self) -> None:
    import jax

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # every Python call would fill the trace
    with self._paused(), contextlib.ExitStack() as stack:
      local = stack.enter_context(files.temporary_folder())
      try:
        jax.profiler.start_trace(str(local), profiler_options=options)
      except RuntimeError as error:
        log.warning(f'--profile: nothing is traced: {error}')
        return
      self._under_way = stack.pop_all(), local

  def _write(self, number: int | None) -> None:
    """End and copy the trace; `number` None if the run ended early."""
    import jax

    assert self._under_way is not None
    (stack, local), self._under_way = self._under_way, None
    with self._paused(), stack:
      try:
        jax.profiler.stop_trace()
        for file in files.files_below(local):
          target = self._folder / file.relative_to(local)
          files.make_folder(target.parent)
          files.copy(file, target)
      except (OSError, RuntimeError) as error:
        log.warning(f'--profile: the trace could not be written to {self._folder}: {error}')
        return
    until = 'the end of the run' if number is None else f'step {number}'
    log.info(f'traced from step {self._first} to {until}: xprof --logdir={self._folder}')
