"""No signal is lost and none is without a word, from the first line of a command on."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable

import pytest

from plm_jax.cli import signals
from tests import conftest, runs

BOTH = pytest.mark.parametrize('number', signals.SIGNALS, ids=lambda number: number.name)
STAGES, SECONDS = 12, 15.0  # signals, spread over the time in which a command begins


# The handlers, without jax.


def script(body: str) -> subprocess.Popen[str]:
  """A program that has taken the signals, and runs `body` after it said 'ready'."""
  text = 'from plm_jax.cli import command, signals\nsignals.begin()\nimport hashlib, os, signal, sys, time\n' + (
    "print('ready', flush=True)\n"
  )
  process = subprocess.Popen(
    [sys.executable, '-c', text + textwrap.dedent(body)],
    cwd=conftest.ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  assert process.stdout is not None and process.stdout.readline() == 'ready\n'
  return process


@BOTH
def test_a_signal_only_sets_a_flag(number: signal.Signals) -> None:
  process = script("""
    def main():
      for _ in range(200):  # as an import that loses what is raised in it
        try:
          time.sleep(0.01)
        except BaseException:
          print('raised', flush=True)
        if signals.asked():
          print('asked', flush=True)
          signals.check()
      return 0
    sys.exit(command.run(main))
  """)
  process.send_signal(number)
  out, err = process.communicate(timeout=60)
  assert (process.returncode, out) == (130, 'asked\n')
  assert err.startswith(f'{number.name}: stopping as soon as nothing is lost; a second one ends the process at once\n')
  assert err.endswith('interrupted before there was anything new to save\n')


@BOTH
def test_a_second_one_ends_the_process_while_a_library_computes(number: signal.Signals) -> None:
  process = script("""
    hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)  # minutes in which nothing of Python runs in the main thread
  """)
  began = time.monotonic()
  process.send_signal(number)
  assert process.stderr is not None
  assert 'stopping as soon as' in process.stderr.readline()  # at once, too
  time.sleep(3 * signals.ONE)
  process.send_signal(number)
  out, err = process.communicate(timeout=60)
  assert (process.returncode, out) == (130, '')
  assert err == f'{number.name}: ended at once\n'
  assert time.monotonic() - began < 20


def test_one_request_may_come_twice() -> None:
  process = script("""
    time.sleep(1)
    sys.exit(3 if signals.asked() else 0)
  """)
  for _ in range(3):  # as `timeout` sends it, to the process and to its group
    process.send_signal(signal.SIGTERM)
  _, err = process.communicate(timeout=60)
  assert process.returncode == 3
  assert err.count('SIGTERM') == 1


def test_children_keep_signals_of_their_own() -> None:
  process = script("""
    child = os.fork()
    if not child:
      time.sleep(30)
      os._exit(0)
    time.sleep(0.3)
    os.kill(child, signal.SIGTERM)
    status = os.waitpid(child, 0)[1]
    time.sleep(0.3)
    print(os.WTERMSIG(status), signals.asked())
  """)
  out, err = process.communicate(timeout=60)
  assert (out, err) == ('15 False\n', '')


def test_what_was_taken_is_given_back() -> None:
  before = [signal.getsignal(number) for number in signals.SIGNALS]
  with signals.caught():
    with signals.caught():
      signal.raise_signal(signal.SIGINT)
    assert signals.asked()
    with pytest.raises(signals.Interrupted):
      signals.check()
  assert [signal.getsignal(number) for number in signals.SIGNALS] == before
  assert signal.set_wakeup_fd(-1) == -1
  with signals.caught():
    assert not signals.asked()


# The commands.


@pytest.fixture(scope='module')
def data(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  return runs.write_data(tmp_path_factory.mktemp('data'))


@pytest.fixture(scope='module')
def commands(data: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
  """Commands that would take hours, by their name."""
  folder = tmp_path_factory.mktemp('runs')
  endless = {'steps': 10**6, 'log_every': 1, 'save_every': 10**6, 'eval_every': 10**6, 'best': None}
  config = runs.write_config(folder / 'mlm.json', runs.settings('mlm', data, **endless))
  return {'train': runs.words('train', f'--config={config}', '--workdir={workdir}')}


@pytest.fixture(scope='module')
def more_commands(
  commands: dict[str, list[str]], data: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[str]]:
  """The other commands that take a while: one follows a run that is not finished, one starts from it."""
  folder = tmp_path_factory.mktemp('more')
  begun = folder / 'begun'
  train = [word.replace('{workdir}', str(begun)) for word in commands['train']]
  assert subprocess.run([*train, '--stop_at=1'], cwd=conftest.ROOT, check=False, timeout=240).returncode == 0
  splits = {name: {'data': {'split': name}} for name in ('validation', 'test')}
  changes = {'steps': 10**6, 'init_from': [{'source': str(begun)}], 'eval': splits, 'best': None}
  config = runs.write_config(folder / 'classify.json', runs.settings('classify', data, **changes))
  return {
    **commands,
    'evaluate': runs.words('evaluate', f'--workdir={begun}', '--follow'),
    'sample_efficiency': runs.words(
      'sample_efficiency', f'--config={config}', '--workdir={workdir}', '--sizes=2', '--seeds=1', '--rates=1e-3'
    ),
    'quickstart': runs.words('quickstart', '--workdir={workdir}'),
  }


def takes_signals(process: subprocess.Popen[bytes]) -> bool:
  """Whether the process has a handler for SIGTERM; what comes earlier meets the interpreter alone."""
  status = pathlib.Path(f'/proc/{process.pid}/status').read_text()
  found = re.search(r'^SigCgt:\s*(\w+)', status, re.MULTILINE)
  return found is not None and bool(int(found[1], 16) >> (signal.SIGTERM - 1) & 1)


def loads_jax(process: subprocess.Popen[bytes]) -> bool:
  return 'jaxlib' in pathlib.Path(f'/proc/{process.pid}/maps').read_text()


def check_stopped(
  command: list[str],
  tmp_path: pathlib.Path,
  number: signal.Signals,
  when: Callable[[subprocess.Popen[bytes]], bool],
  *,
  delay: float = 0.0,
) -> None:
  workdir, output = tmp_path / 'run', tmp_path / 'output'
  words = [word.replace('{workdir}', str(workdir)) for word in command]
  with runs.started(words, log=output) as process:
    runs.wait_until(lambda: takes_signals(process), process=process, log=output)
    runs.wait_until(lambda: when(process), process=process, log=output)
    time.sleep(delay)
    process.send_signal(number)
    code = process.wait(timeout=240)
  said = output.read_text()
  assert f'{number.name}: stopping' in said
  if code != 3:
    assert code == 130, said
    assert 'interrupted before there was anything new to save' in said
    assert not list(workdir.glob('checkpoints/*'))
  else:
    assert 'stopped by a signal' in said
    if result := list(workdir.glob('result.json')):
      step = json.loads(result[0].read_text())['step']
      assert f'stopped by a signal at step {step}; the state is saved' in said
      assert (workdir / 'checkpoints' / str(step)).is_dir()


@pytest.mark.skipif(not os.path.isdir('/proc/self'), reason='looks into /proc')
@pytest.mark.parametrize(('number', 'when'), [(signal.SIGTERM, takes_signals), (signal.SIGINT, loads_jax)])
def test_a_signal_to_a_run_that_begins(
  number: signal.Signals,
  when: Callable[[subprocess.Popen[bytes]], bool],
  commands: dict[str, list[str]],
  tmp_path: pathlib.Path,
) -> None:
  check_stopped(commands['train'], tmp_path, number, when)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['train', 'evaluate', 'sample_efficiency', 'quickstart'])
def test_a_signal_at_any_moment(name: str, more_commands: dict[str, list[str]], tmp_path: pathlib.Path) -> None:
  for stage in range(STAGES):
    folder = tmp_path / str(stage)
    folder.mkdir()
    number, delay = signals.SIGNALS[stage % 2], SECONDS * stage / STAGES
    check_stopped(more_commands[name], folder, number, takes_signals, delay=delay)
