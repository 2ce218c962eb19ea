"""Sinks never stop a run: `metrics.jsonl` is complete and the run ends."""

import logging
import pathlib
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from plm_jax.runs import metrics, sinks
from tests import conftest

Act = Callable[[], Any]


@pytest.fixture
def release() -> Iterator[threading.Event]:
  """Release a blocked sink, so that no thread outlives its test."""
  event = threading.Event()
  yield event
  event.set()


class Fake:
  """A sink that misbehaves when it is opened, at its third line or when it is closed."""

  def __init__(self, at: str, act: Act):
    self.at, self.act, self.lines = at, act, []
    if at == 'open':
      act()

  def write(self, step: int, numbers: sinks.Numbers) -> None:
    if self.at == 'write' and step == 3:
      self.act()
    self.lines.append(step)

  def close(self) -> None:
    if self.at == 'close':
      self.act()


def fail() -> None:
  raise OSError('no space left')


@pytest.mark.parametrize('at', ['open', 'write', 'close'])
@pytest.mark.parametrize('how', ['blocks', 'raises', 'exits'])
def test_a_sink_never_stops_a_run(
  at: str,
  how: str,
  release: threading.Event,
  tmp_path: pathlib.Path,
  monkeypatch: pytest.MonkeyPatch,
  caplog: pytest.LogCaptureFixture,
) -> None:
  act: Act = {'blocks': release.wait, 'raises': fail, 'exits': lambda: sys.exit(1)}[how]
  made: list[Fake] = []
  healthy = Fake('never', fail)

  def start() -> Fake:
    made.append(Fake(at, act))
    return made[0]

  monkeypatch.setattr(sinks, 'CLOSE', 0.3)
  monkeypatch.setattr(sinks, 'LINES', 50)
  monkeypatch.setitem(sinks.SINKS, 'wandb', lambda root, **_: start)
  monkeypatch.setitem(sinks.SINKS, 'tensorboard', lambda root, **_: lambda: healthy)
  began = time.monotonic()
  with caplog.at_level(logging.WARNING, 'plm_jax'), metrics.Writer(tmp_path, sinks=('wandb', 'tensorboard')) as writer:
    for step in range(1, 201):
      writer.write(step, {'loss': 1.0})
      time.sleep(0.001)
  assert time.monotonic() - began < 5
  assert [row['step'] for row in metrics.read(tmp_path)] == list(range(1, 201))
  assert healthy.lines == list(range(1, 201))
  warnings = [record.getMessage() for record in caplog.records]
  assert len(warnings) == 1 and 'wandb: ' in warnings[0], warnings
  assert 'metrics.jsonl' in warnings[0]
  if (at, how) == ('write', 'raises'):  # what fails once may be well again
    assert made[0].lines == [1, 2, *range(4, 201)]


def test_a_slow_sink_is_named_on_the_way(
  release: threading.Event, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
  monkeypatch.setattr(sinks, 'CLOSE', 0.1)
  monkeypatch.setattr(sinks, 'SLOW', 0.05)
  monkeypatch.setitem(sinks.SINKS, 'wandb', lambda root, **_: lambda: Fake('write', release.wait))
  with caplog.at_level(logging.WARNING, 'plm_jax'), metrics.Writer(tmp_path, sinks=('wandb',)) as writer:
    for step in range(1, 4):
      writer.write(step, {'loss': 1.0})
    time.sleep(0.3)
    writer.write(4, {'loss': 1.0})
    assert 'wandb' in caplog.text


# Separate programs: threads that a library leaves running must not keep the process alive.

DEAD_WRITER = """
  from tensorboardX import event_file_writer
  event_file_writer._EventLoggerThread.run = lambda self: None  # as after a clock that was set back
  names = ('tensorboard',)
"""
THREAD_THAT_STAYS = """
  def start():
    threading.Thread(target=time.sleep, args=(600,)).start()  # no daemon: the interpreter waits for it
    time.sleep(600)
  sinks.SINKS['wandb'] = lambda root, **settings: start
  names = ('wandb',)
"""


@pytest.mark.parametrize('body', [DEAD_WRITER, THREAD_THAT_STAYS], ids=['dead writer', 'thread that stays'])
def test_a_process_ends_with_its_own_code(body: str, tmp_path: pathlib.Path) -> None:
  text = (
    'import sys, threading, time\nfrom plm_jax.cli import command\nfrom plm_jax.runs import metrics, sinks\n'
    + 'sinks.CLOSE = 0.5\n'
    + textwrap.dedent(body)
    + textwrap.dedent("""
      with metrics.Writer(sys.argv[1], sinks=names) as writer:
        for step in range(1500):
          writer.write(step, {'loss': 1.0})
      command.leave(3)
      """)
  )
  done = subprocess.run(
    [sys.executable, '-c', text, str(tmp_path)],
    cwd=conftest.ROOT,
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )
  assert done.returncode == 3, done.stderr
  assert f'{"wandb" if body == THREAD_THAT_STAYS else "tensorboard"}: ' in done.stderr
  assert len(metrics.read(tmp_path)) == 1500
