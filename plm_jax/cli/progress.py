"""The progress of a run: a live line on a terminal, elsewhere one plain line per logged step."""

import functools
import logging
import time
from collections.abc import Mapping
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from plm_jax.config import signatures

log = logging.getLogger(__name__)

SHOWN = (
  'loss', 'sampled_loss', 'perplexity', 'unit_perplexity', 'word_perplexity', 'answer_perplexity', 'bits_per_byte',
  'accuracy', 'word_accuracy', 'answer_accuracy', 'f1', 'learning_rate', 'gradient_norm', 'tokens_per_second', 'mfu',
)  # fmt: skip
WIDEST, NARROWEST = 24, 4  # columns of the bar
PATIENCE = 1.0  # seconds of work before a bar appears


def items(values: Mapping[str, float], *, best: str | None = None) -> list[str]:
  """Write metrics of `SHOWN` and `best` as 'loss 3.214', in order."""
  parts = []
  order = {short: position for position, short in enumerate(_shown())}
  for name, value in sorted(values.items(), key=lambda item: order.get(item[0].rpartition('/')[2], len(order))):
    short = name.rpartition('/')[2]
    if (short not in order and name != best) or name.startswith(('gradient_norm/', 'update_norm/', 'parameter_norm/')):
      continue
    text = f'{value:,.0f}' if short == 'tokens_per_second' else f'{value:.4g}'
    parts.append(f'{name.replace("_per_second", "/s")} {text}')
  return parts


@functools.cache
def _shown() -> tuple[str, ...]:
  """Extend `SHOWN` by the metrics of `plm_jax/scores/`."""
  metrics = [
    metric for name in signatures.names('scores') for metric in signatures.literal(f'scores.{name}', 'METRICS')
  ]
  return tuple(dict.fromkeys((*SHOWN, *metrics)))


def line(values: Mapping[str, float], *, best: str | None = None) -> str:
  """Join `items` as 'loss 3.214  accuracy 0.41 ...'."""
  return '  '.join(items(values, best=best))


def live_line(done: int, total: int, *, left: str, metrics: list[str], width: int) -> Text:
  """Build the live line: step, bar, time left and metrics.

  Metrics are added as far as `width` columns allow. A terminal of less than about 40 columns crops the bar and the
  steps, never the end of a line.
  """
  step, ending = f'step {done}/{total}', f'left {left}'
  room = width - len(step) - len(ending) - 2
  bar = min(max(room, NARROWEST), WIDEST)
  full = round(bar * done / max(total, 1))
  text = Text(no_wrap=True, overflow='crop')
  text.append(f'{step} ').append('━' * full, 'bar.complete').append('━' * (bar - full), 'bar.back').append(f' {ending}')
  for item in metrics:
    if len(text) + 2 + len(item) > width:
      break
    text.append(f'  {item}')
  return text


class _Line(ProgressColumn):
  """The column of `live_line`, for the current width of the terminal."""

  max_refresh = 0.1

  def __init__(self, console: Console):
    super().__init__()
    self._console = console

  def render(self, task: Task) -> Text:
    left = '-:--:--' if task.time_remaining is None else clock(task.time_remaining)
    return live_line(
      int(task.completed), int(task.total or 0), left=left, metrics=task.fields['items'], width=self._console.width
    )


def clock(seconds: float) -> str:
  """Write seconds as '1:02:03'."""
  minutes, second = divmod(round(seconds), 60)
  hours, minute = divmod(minutes, 60)
  return f'{hours}:{minute:02}:{second:02}'


class Bar:
  """A context manager that shows the progress of a run, with the time left."""

  def __init__(self, *, total: int, start: int, shown: bool, best: str | None = None, console: Console | None = None):
    """Prepare the bar; nothing is drawn yet.

    `shown` is True in the first process only. Without `console` the bar is on stderr, if that is a terminal.
    """
    self._best = best
    self._total, self._start, self._shown = total, start, shown
    console = console or Console(stderr=True)
    self._live = shown and console.is_terminal
    self._began = time.monotonic()
    self._progress = Progress(_Line(console), console=console, disable=not self._live)
    self._task = self._progress.add_task('train', total=total, completed=start, items=[])

  def __enter__(self) -> Self:
    self._progress.start()
    return self

  def __exit__(self, *exception: object) -> None:
    self._progress.stop()

  def advance(self, done: int) -> None:
    """Move the bar to `done` steps."""
    self._progress.update(self._task, completed=done)

  def show(self, done: int, values: Mapping[str, float]) -> None:
    """Show a step's metrics, on a terminal until the next ones."""
    self._progress.update(self._task, items=items(values, best=self._best))
    # with a live line, only the log file gets this one
    self._log(done, values, logging.DEBUG if self._live else logging.INFO)

  def keep(self, done: int, values: Mapping[str, float]) -> None:
    """Print the scores of an evaluation on a separate line."""
    self._log(done, values, logging.INFO)

  def _log(self, done: int, values: Mapping[str, float], level: int) -> None:
    if not self._shown:
      return
    seconds = (time.monotonic() - self._began) / max(done - self._start, 1) * (self._total - done)
    left = next(
      f'{seconds / unit:.{digits}f} {name}'
      for unit, digits, name, above in ((3600, 1, 'h', 5400), (60, 1, 'min', 90), (1, 0, 's', -1))
      if seconds > above
    )
    log.log(level, f'step {done}/{self._total}  {line(values, best=self._best)}  {left} left')


class Waiting:
  """A context manager that shows a bar for work that may take long, with the time left.

  It appears after a second, on a terminal only, and is removed at the end.
  """

  def __init__(self, total: int, doing: str, *, console: Console | None = None):
    """Prepare the bar for `total` pieces of work; nothing is drawn yet."""
    console = console or Console(stderr=True)
    columns = TextColumn('{task.description}'), BarColumn(WIDEST), MofNCompleteColumn(), TimeRemainingColumn()
    self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    self._task = self._progress.add_task(doing, total=total)
    self._began, self._drawn = time.monotonic(), False

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *exception: object) -> None:
    if self._drawn:
      self._progress.stop()

  def advance(self, count: int) -> None:
    """Count `count` more completed pieces."""
    self._progress.advance(self._task, count)
    if not self._drawn and time.monotonic() - self._began > PATIENCE:
      self._progress.start()
      self._drawn = True
