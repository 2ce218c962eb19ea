"""The stacks of a run that stands still: written once, not while steps end, and for evaluations by themselves."""

import contextlib
import pathlib
import time
from collections.abc import Iterator

import pytest

from plm_jax.training import begin, loop
from plm_jax.training.hosts.watchdog import Watchdog
from tests import runs

LIMIT = 0.6


def stands_still(seconds: float) -> None:
  time.sleep(seconds)


def test_stacks_of_a_step_that_does_not_end_are_written_once(capfd: pytest.CaptureFixture[str]) -> None:
  with Watchdog(least=LIMIT):
    stands_still(4 * LIMIT)
  said = capfd.readouterr().err
  assert said.count('Timeout') == 1
  assert said.count('in stands_still') == 1


def test_steps_that_end_and_the_end_of_a_run_write_nothing(capfd: pytest.CaptureFixture[str]) -> None:
  with Watchdog(least=LIMIT, times=1.0) as watchdog:
    for _ in range(6):
      time.sleep(LIMIT / 3)
      watchdog.stepped()
  time.sleep(2 * LIMIT)
  assert capfd.readouterr().err == ''


def test_a_step_may_take_as_long_as_many_others(capfd: pytest.CaptureFixture[str]) -> None:
  with Watchdog(least=0.01, times=20.0) as watchdog:
    for _ in range(3):
      time.sleep(0.05)
      watchdog.stepped()
    capfd.readouterr()
    assert watchdog.limit() >= 1.0
    time.sleep(0.5)
    assert capfd.readouterr().err == ''
    time.sleep(watchdog.limit())
    assert capfd.readouterr().err.count('Timeout') == 1


def test_an_evaluation_is_timed_by_itself_and_is_no_part_of_a_step(capfd: pytest.CaptureFixture[str]) -> None:
  with Watchdog(least=LIMIT) as watchdog:
    time.sleep(0.6 * LIMIT)
    with watchdog.paused():
      time.sleep(0.6 * LIMIT)
    time.sleep(0.1 * LIMIT)
    watchdog.stepped()
    assert capfd.readouterr().err == ''
    assert watchdog.limit() < 20 * 0.5 * LIMIT
    with watchdog.paused():
      stands_still(watchdog.limit() + LIMIT)
  assert capfd.readouterr().err.count('in stands_still') == 1


def test_batches_of_an_evaluation_are_timed_one_by_one(capfd: pytest.CaptureFixture[str]) -> None:
  with Watchdog(least=LIMIT) as watchdog, watchdog.paused():
    for _ in range(4):
      watchdog.moved()
      time.sleep(0.4 * LIMIT)
    assert capfd.readouterr().err == ''
    stands_still(2 * LIMIT)
  assert capfd.readouterr().err.count('in stands_still') == 1


def test_a_run_has_one(data: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
  """It is told of 12 steps, 2 evaluations with their batches and 4 saves, and is off at the end."""
  told: list[str] = []

  class Told(Watchdog):
    def stepped(self) -> None:
      told.append('step')

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
      told.append('pause')
      yield

    def moved(self) -> None:
      told.append('batch')

    def __exit__(self, *error: object) -> None:
      told.append('end')
      super().__exit__(*error)

  monkeypatch.setattr(begin, 'Watchdog', Told)
  assert loop.train(runs.settings('mlm', data), tmp_path / 'run').result['finished']
  assert (told.count('step'), told.count('pause'), told[-1]) == (12, 2 + 4, 'end')
  assert told[:5] == ['step'] * 4 + ['pause']
  assert told.count('batch') >= 2
