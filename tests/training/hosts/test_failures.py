"""Two processes of a run that do not begin alike, or one of which fails: both end soon, and both say why."""

import contextlib
import pathlib
import re
import sys
import time
from typing import Any

import pytest

from plm_jax.runs import metrics
from tests import runs
from tests.training.hosts.test_join import free_port

pytestmark = pytest.mark.turns

QUICK = {'JAX_DISABLE_MOST_OPTIMIZATIONS': '1'}
LIMIT_S = 60
# `train` in a process that is another one in some way
START = """
import sys, time
from plm_jax.commands import train
from plm_jax.cli import command, signals
{change}
signals.begin()
command.leave(command.run(train.main))
"""
READER = """
from plm_jax.runs import history
read = history.read
def broken(*words, **keywords):
  for number, batch in enumerate(read(*words, **keywords)):
    if number == 4:  # two batches are read ahead
      print('raised at', time.time(), file=sys.stderr)
      raise OSError('the disk of the reader\\nbroke')
    yield batch
history.read = broken
"""
VERSION = """
from plm_jax.training import outcome
versions = outcome.versions
outcome.versions = lambda: {**versions(), 'optax': '0.0.1'}
"""


def together(
  folder: pathlib.Path, flags: list[str], *, changes: dict[int, str], more: dict[int, list[str]], **homes: Any
) -> tuple[list[int], list[str], float]:
  """Exit codes and outputs of both processes, and the time at which the last one ended.

  Args:
    folder: for the outputs.
    flags: of `train`.
    changes: code that runs before it, by process.
    more: flags of one process.
    **homes: variable -> value of process 1.
  """
  join = [f'--coordinator=localhost:{free_port()}', '--processes=2']
  logs = [folder / 'output0', folder / 'output1']
  with contextlib.ExitStack() as stack:
    processes = []
    for number in range(2):
      start = [sys.executable, '-c', START.format(change=changes.get(number, ''))]
      words = [*start, *flags, *more.get(number, []), *join, f'--process={number}']
      environment = {**QUICK, **(homes if number else {})}
      processes.append(stack.enter_context(runs.started(words, log=logs[number], devices=2, **environment)))
    codes = [process.wait(timeout=240) for process in processes]
    ended = time.time()
  said = [log.read_text() for log in logs]
  print(*said, sep='\n-----\n')
  return codes, said, ended


@pytest.mark.parametrize('failing', [0, 1])
def test_a_reader_that_fails_in_one_process_ends_both(data: pathlib.Path, tmp_path: pathlib.Path, failing: int) -> None:
  file = runs.write_config(tmp_path / 'config.json', runs.settings('mlm', data, log_every=1, steps=1000))
  codes, said, ended = together(
    tmp_path, [f'--config={file}', f'--workdir={tmp_path / "run"}'], changes={failing: READER}, more={}
  )
  assert codes == [1, 1]
  [raised] = re.findall(r'raised at (\S+)', said[failing])
  print(f'both ended {ended - float(raised):.1f} s after one had failed')
  assert ended - float(raised) < LIMIT_S
  for text in said:
    assert f'process {failing} (' in text
    assert 'ended: OSError: the disk of the reader' in text
    assert 'terminate' not in text.lower()
  assert 'Traceback' in said[failing]
  assert 'Traceback' not in said[1 - failing]
  assert 'ended: OSError: the disk of the reader' in (tmp_path / 'run' / 'log.txt').read_text()
  assert [row['step'] for row in metrics.read(tmp_path / 'run')][-1] <= 2


def test_processes_that_differ_end_before_anything_is_written(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  """Another key of the config, another flag, another version of a library."""
  file = runs.write_config(tmp_path / 'config.json', runs.settings('mlm', data))
  codes, said, _ = together(
    tmp_path,
    [f'--config={file}', f'--workdir={tmp_path / "run"}'],
    changes={1: VERSION},
    more={1: ['--config.optim.rate=0.5', '--stop_at=3']},
  )
  assert codes == [2, 2]
  assert not (tmp_path / 'run').exists()
  for text in said:
    assert 'the processes of this run differ' in text
    assert 'config: optim.rate: process 0 (' in text
    assert '): 0.01; process 1 (' in text and '): 0.5' in text
    assert 'flags: stop_at: process 0 (' in text
    assert 'versions: optax: process 0 (' in text and '): 0.0.1' in text
    assert 'code:' not in text
    assert 'Traceback' not in text


def test_processes_with_another_text_end_before_the_first_step(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  """The vocabulary is the same."""
  homes = [tmp_path / 'home0', tmp_path / 'home1']
  for number, home in enumerate(homes):
    (home / 'corpus').mkdir(parents=True)
    for split in ('train', 'validation'):
      text = (data / 'corpus' / f'{split}.txt').read_text()
      more = 'Another text stands here.\n' if number and split == 'train' else ''
      (home / 'corpus' / f'{split}.txt').write_text(text + more)
  settings = runs.settings('mlm', data, data={'path': '~/corpus', 'cache': str(tmp_path / 'cache')})
  file = runs.write_config(tmp_path / 'config.json', settings)
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('HOME', str(homes[0]))
    codes, said, _ = together(
      tmp_path, [f'--config={file}', f'--workdir={tmp_path / "run"}'], changes={}, more={}, HOME=str(homes[1])
    )
  assert codes == [2, 2]
  for text in said:
    assert 'vocabulary and data: data_digest: process 0 (' in text
    assert 'vocab_digest' not in text
    assert 'Traceback' not in text
  assert not (tmp_path / 'run' / 'config.json').exists()
