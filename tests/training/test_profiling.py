"""`--profile`: the flag, the trace that is read back, and what a run measures of itself beside it."""

import gzip
import json
import logging
import pathlib

import pytest

from plm_jax.commands import train
from plm_jax.core.errors import ConfigError
from plm_jax.runs import metrics
from plm_jax.training import loop, profiling
from plm_jax.training.cost import flops, memory
from tests import runs

pytestmark = [pytest.mark.turns, pytest.mark.usefixtures('log')]


@pytest.mark.parametrize(
  ('text', 'expected'), [('3', (None, 3)), ('10:13', (10, 3)), ('1:2', (1, 1)), ('1000', (None, 1000))]
)
def test_the_flag_is_a_count_or_a_range(text: str, expected: tuple[int | None, int]) -> None:
  assert profiling.steps(text) == expected


@pytest.mark.parametrize('text', ['', '0', '-1', '3.5', 'all', '10:', ':3', '0:3', '10:10', '13:10', '1001', '1:2:3'])
def test_a_wrong_flag_is_refused(text: str) -> None:
  with pytest.raises(ConfigError, match='--profile='):
    profiling.steps(text)


def test_a_wrong_flag_ends_the_command_before_anything_is_made(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  file = runs.write_config(tmp_path / 'config.json', runs.settings('mlm', data))
  with pytest.raises(ConfigError, match='FIRST:END'):
    train.main([f'--config={file}', f'--workdir={tmp_path / "run"}', '--profile=ten'])
  assert not (tmp_path / 'run').exists()


def events(folder: pathlib.Path) -> list[dict]:
  """What the only trace in a run folder holds."""
  [file] = folder.glob('profile/plugins/profile/*/*.trace.json.gz')
  [planes] = folder.glob('profile/plugins/profile/*/*.xplane.pb')
  assert planes.stat().st_size > 1000
  return json.loads(gzip.decompress(file.read_bytes()))['traceEvents']


def traced_steps(folder: pathlib.Path) -> list[int]:
  """The numbers of the steps that a trace names."""
  named = [event['args'] for event in events(folder) if event.get('name') == profiling.STEP]
  return sorted(int(arguments['step_num']) for arguments in named)


@pytest.fixture(scope='module')
def plain(data: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """A run without a trace."""
  workdir = tmp_path_factory.mktemp('plain')
  assert loop.train(runs.settings('mlm', data), workdir).result['finished']
  return workdir


def test_the_trace_names_the_steps_and_changes_nothing(
  plain: pathlib.Path, data: pathlib.Path, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
  with runs.logging_on(), caplog.at_level(logging.INFO):
    loop.train(runs.settings('mlm', data), tmp_path, profile=profiling.steps('3:6'))
  assert traced_steps(tmp_path) == [3, 4, 5]
  assert f'xprof --logdir={tmp_path}/profile' in caplog.text
  names = [str(event.get('name')) for event in events(tmp_path)]
  assert any('logged_step' in name for name in names)  # the compiled step itself
  assert names.count('next batch') == 3
  ours, theirs = (runs.saved_state(folder) for folder in (tmp_path, plain))
  assert not runs.differing(ours, theirs)
  assert runs.curve(tmp_path) == runs.curve(plain)


@pytest.mark.parametrize(('flag', 'steps'), [('1', [4]), ('4:20', [4, 5])])
def test_a_count_begins_when_the_process_is_warm_and_a_run_that_ends_ends_its_trace(
  data: pathlib.Path, tmp_path: pathlib.Path, flag: str, steps: list[int]
) -> None:
  loop.train(runs.settings('mlm', data), tmp_path, stop_at=5, profile=profiling.steps(flag))
  assert traced_steps(tmp_path) == steps


def test_a_resumed_run_traces_no_step_that_is_over(
  data: pathlib.Path, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
  settings, asked = runs.settings('mlm', data), profiling.steps('3:6')
  loop.train(settings, tmp_path / 'run', stop_at=3)
  with runs.logging_on(), caplog.at_level(logging.INFO):
    assert loop.train(settings, tmp_path / 'run', stop_at=4, profile=asked).exit_code == loop.DONE
  assert 'step 3 is done already' in caplog.text
  assert not (tmp_path / 'run' / 'profile').exists()


def test_a_run_that_ends_before_its_trace_says_so(
  data: pathlib.Path, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
  with runs.logging_on(), caplog.at_level(logging.INFO):
    loop.train(runs.settings('mlm', data), tmp_path, stop_at=2, profile=profiling.steps('3:6'))
  assert 'nothing is traced: the run ended at step 2, before step 3' in caplog.text


@pytest.mark.parametrize('text', ['10:10', '13:10'])
def test_a_range_without_steps_is_explained(text: str) -> None:
  with pytest.raises(ConfigError, match='END has to be larger than FIRST'):
    profiling.steps(text)


def test_a_trace_that_cannot_be_written_stops_nothing(
  data: pathlib.Path, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
  (tmp_path / 'run').mkdir()
  (tmp_path / 'run' / 'profile').write_text('in the way')
  with runs.logging_on():
    outcome = loop.train(runs.settings('mlm', data), tmp_path / 'run', stop_at=4, profile=profiling.steps('2:3'))
  assert outcome.exit_code == loop.DONE
  assert 'could not be written' in caplog.text


def test_lines_of_metrics_say_what_waits_and_what_memory_is_used(plain: pathlib.Path) -> None:
  for row in metrics.read(plain):
    assert 0 < row['host_wait_seconds'] < 60
    assert 0.05 < row['host_memory_gib'] < 1000


class Device:
  """All that `in_use` asks of a device."""

  def __init__(self, stats: dict[str, int] | None):
    self._stats = stats

  def memory_stats(self) -> dict[str, int] | None:
    return self._stats


def test_memory_is_that_of_the_fullest_device() -> None:
  stats = [{'bytes_in_use': 2**30, 'peak_bytes_in_use': 3 * 2**30}, {'bytes_in_use': 2**31}, None]
  found = memory.in_use([Device(one) for one in stats])
  assert (found['device_memory_gib'], found['device_memory_peak_gib']) == (2.0, 3.0)
  assert memory.in_use([Device(None)]).keys() == {'host_memory_gib'}


def test_the_peak_of_tpu7x_is_that_of_half_a_chip() -> None:
  assert flops.peak_flops('TPU7x', 'bfloat16') == 1153.5e12
