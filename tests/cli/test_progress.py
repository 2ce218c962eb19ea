"""Output of a run on terminals of every width, and in a pipe."""

import io
import logging

import pytest
from rich.console import Console
from rich.table import Table

from plm_jax.cli import logs, progress, tables

VALUES = {
  'accuracy': 0.4123, 'gradient_norm': 1.234, 'learning_rate': 0.000123, 'loss': 3.21456, 'perplexity': 24.89,
  'tokens_per_second': 123456.0, 'gradient_norm/trunk/embed': 9.0,
}  # fmt: skip
SCORES = {'validation/loss': 3.25, 'validation/accuracy': 0.4}


@pytest.mark.parametrize('width', [20, 40, 41, 60, 80, 100, 132, 200])
@pytest.mark.parametrize(('done', 'total'), [(0, 12), (7, 12), (123_456, 1_000_000), (1_000_000, 1_000_000)])
def test_the_line_keeps_step_bar_and_time_left(width: int, done: int, total: int) -> None:
  names = progress.items(VALUES)
  text = progress.live_line(done, total, left='1:02:03', metrics=names, width=width).plain
  step, rest = text.split(' ━', 1)
  assert step == f'step {done}/{total}'
  assert ' left 1:02:03' in rest
  shown = rest.split(' left 1:02:03')[1]
  kept = [name for name in names if f'  {name}' in shown]
  assert shown == ''.join(f'  {name}' for name in kept)  # whole ones, and nothing else
  assert kept == names[: len(kept)]  # dropped from the tail
  if width >= 40:
    assert len(text) <= width
  if width >= 200:
    assert kept == names
  if kept != names:
    assert len(text) + 2 + len(names[len(kept)]) > width  # and no earlier than they must


@pytest.mark.parametrize('width', [40, 60, 80])
def test_a_terminal_shows_one_line_and_keeps_evaluations(width: int) -> None:
  stream = io.StringIO()
  console = Console(file=stream, width=width, force_terminal=True, color_system=None)
  with progress.Bar(total=20_000, start=0, shown=True, console=console) as bar:
    bar.advance(1234)
    bar.show(1234, VALUES)
    bar._progress.refresh()
  last = stream.getvalue().split('\r')[-1].replace('\x1b[2K', '').split('\n')[0]
  assert last.startswith('step 1234/20000 ━') and ' left ' in last and len(last) <= width


def test_evaluations_stay_above_the_live_line(monkeypatch: pytest.MonkeyPatch) -> None:
  stream = io.StringIO()
  stream.isatty = lambda: True  # type: ignore[method-assign]
  monkeypatch.setattr('sys.stderr', stream)
  package = logging.getLogger(logs.PACKAGE)
  before = package.level, package.propagate, list(package.handlers)
  package.handlers = []
  try:
    logs.start()
    console = Console(stderr=True, width=60, force_terminal=True, color_system=None)
    with progress.Bar(total=100, start=0, shown=True, best='validation/loss', console=console) as bar:
      for done in (10, 20):
        bar.advance(done)
        bar.show(done, VALUES)
        bar.keep(done, {'validation/loss': 3.25 + done})
        bar._progress.refresh()
  finally:
    package.level, package.propagate, package.handlers = before
  lines = [line for line in stream.getvalue().replace('\r', '\n').replace('\x1b[2K', '').split('\n') if 'valid' in line]
  assert lines == [f'step {done}/100  validation/loss {3.25 + done:.4g}  {left} left' for done, left in
                   ((10, lines[0].split('  ')[-1][:-5]), (20, lines[1].split('  ')[-1][:-5]))]  # fmt: skip
  assert 'perplexity' not in ''.join(lines)


def test_a_pipe_gets_whole_lines(caplog: pytest.LogCaptureFixture) -> None:
  console = Console(file=io.StringIO(), width=40)
  with caplog.at_level(logging.INFO, 'plm_jax'), progress.Bar(total=20, start=0, shown=True, console=console) as bar:
    bar.advance(4)
    bar.show(4, VALUES)
    bar.keep(4, SCORES)
  assert [record.levelname for record in caplog.records] == ['INFO', 'INFO']
  assert 'tokens/s 123,456' in caplog.text and 'validation/accuracy 0.4' in caplog.text


def test_a_table_in_a_pipe_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
  table = Table(title='title')
  for number in range(12):
    table.add_column(f'a column with number {number}')
  table.add_row(*(f'{number} and some words that go on' for number in range(12)))
  tables.show(table)
  out = capsys.readouterr().out
  assert '…' not in out
  assert all(f'{number} and some words that go on' in out for number in range(12))


def test_cells_of_a_table_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
  """Print names and tokens literally, even if they look like markup."""
  table = Table(title='[a]')
  texts = ['[unused1]', '[/b]', ':smile:', 'runs/[x]/y']
  for text in texts:
    table.add_column(text)
  table.add_row(*texts)
  tables.show(table)
  out = capsys.readouterr().out
  assert all(out.count(text) == 2 for text in texts)
