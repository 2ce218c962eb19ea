"""Progress of the tokenizer, for people."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator

import rich.console
import rich.progress

log = logging.getLogger(__name__)
_REPORT_SECONDS = 10.0


@contextlib.contextmanager
def showing_progress(total: int, done: int) -> Iterator[Callable[[int, int], None]]:
  """Yield (documents, tokens) -> None, a bar on terminals, else log lines."""
  console = rich.console.Console(stderr=True)
  start = reported = time.monotonic()
  tokens = 0
  columns = (*rich.progress.Progress.get_default_columns(), rich.progress.TextColumn('{task.fields[rate]}'))
  with rich.progress.Progress(*columns, console=console, disable=not console.is_terminal) as bar:
    task = bar.add_task('Tokenising', total=total, completed=done, rate='')

    def advance(documents: int, count: int) -> None:
      nonlocal done, tokens, reported
      done, tokens, now = done + documents, tokens + count, time.monotonic()
      rate = f'{tokens / max(now - start, 1e-3) / 1e6:.2f} M tokens/s'
      bar.update(task, completed=done, rate=rate)
      if not console.is_terminal and (now - reported > _REPORT_SECONDS or done == total):
        log.info('Tokenising: %d of %d documents, %s.', done, total, rate)
        reported = now

    yield advance
