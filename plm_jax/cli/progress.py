"""The progress of a run: a live bar on a terminal, elsewhere a plain line per logged step."""

import logging
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

log = logging.getLogger(__name__)

SHOWN = (
  'loss', 'perplexity', 'unit_perplexity', 'word_perplexity', 'bits_per_byte', 'accuracy', 'word_accuracy', 'f1',
  'learning_rate', 'gradient_norm', 'tokens_per_second', 'mfu',
)  # fmt: skip


def line(values: Mapping[str, float], *, best: str | None = None) -> str:
  """The metrics named in `SHOWN` and the one that a run is judged by, as 'loss 3.214  accuracy 0.41 ...'."""
  parts = []
  for name, value in values.items():
    short = name.rpartition('/')[2]
    if (short not in SHOWN and name != best) or name.startswith(('gradient_norm/', 'update_norm/', 'parameter_norm/')):
      continue
    text = f'{value:,.0f}' if short == 'tokens_per_second' else f'{value:.4g}'
    parts.append(f'{name.replace("_per_second", "/s")} {text}')
  return '  '.join(parts)


class Bar:
  """The progress of a run, with the time left. A context manager."""

  def __init__(self, *, total: int, start: int, shown: bool, best: str | None = None):
    """`shown` is False in all processes but the first; `best` is a metric to show beside those of `SHOWN`."""
    self._best = best
    self._total, self._start, self._shown = total, start, shown
    self._live = shown and sys.stderr.isatty()
    self._began = time.monotonic()
    self._progress = Progress(
      TextColumn('step'),
      MofNCompleteColumn(),
      BarColumn(bar_width=24),
      TimeElapsedColumn(),
      TextColumn('left'),
      TimeRemainingColumn(),
      TextColumn('{task.fields[line]}'),
      console=Console(stderr=True),
      disable=not self._live,
    )
    self._task = self._progress.add_task('train', total=total, completed=start, line='')

  def __enter__(self) -> Self:
    self._progress.start()
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    self._progress.stop()

  def advance(self, done: int) -> None:
    """Moves the bar to `done` steps."""
    self._progress.update(self._task, completed=done)

  def show(self, done: int, values: Mapping[str, float]) -> None:
    """Shows the metrics of a step."""
    text = line(values, best=self._best)
    self._progress.update(self._task, line=text)
    if self._shown:
      seconds = (time.monotonic() - self._began) / max(done - self._start, 1) * (self._total - done)
      left = next(
        f'{seconds / unit:.{digits}f} {name}'
        for unit, digits, name, above in ((3600, 1, 'h', 5400), (60, 1, 'min', 90), (1, 0, 's', -1))
        if seconds > above
      )
      level = logging.DEBUG if self._live else logging.INFO  # beside a live bar, only the log file gets the line
      log.log(level, f'step {done}/{self._total}  {text}  {left} left')
