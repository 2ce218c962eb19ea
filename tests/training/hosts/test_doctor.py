"""`doctor`: what one host knows, what several agree on, and the names and values of those that differ."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from plm_jax.commands import doctor
from plm_jax.core.errors import ConfigError
from plm_jax.io import files
from plm_jax.training.hosts import agreement
from plm_jax.training.hosts import doctor as engine
from plm_jax.training.hosts.host_facts import Answer
from tests import conftest, runs
from tests.training.hosts.test_join import free_port

pytestmark = pytest.mark.turns


@pytest.fixture(scope='module')
def config(data: pathlib.Path) -> pathlib.Path:
  return runs.write_config(data / 'config.json', runs.settings('mlm', data))


def examined(config: pathlib.Path, workdir: pathlib.Path, capsys: pytest.CaptureFixture[str], *flags: str) -> Any:
  """(exit code, check -> (result, answers)) of a doctor in this process."""
  code = doctor.main([f'--config={config}', f'--workdir={workdir}', '--json', *flags])
  return code, by_name(capsys.readouterr().out)


def by_name(text: str) -> dict[str, tuple[str, list[dict[str, Any]]]]:
  report = json.loads(text[text.index('{\n') :])
  assert report['sound'] == all(check['result'] == 'ok' for check in report['checks'])
  return {check['name']: (check['result'], check['said']) for check in report['checks']}


def test_one_host_that_can_begin(
  config: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
  code, found = examined(config, tmp_path / 'run', capsys)
  assert code == 0
  assert {result for result, _ in found.values()} == {'ok'}
  assert {'code', 'config', 'versions', 'devices', 'clock', 'workdir', 'data', 'vocabulary', 'disk'} <= found.keys()
  assert not (tmp_path / 'run').exists()  # nothing stays
  (tmp_path / 'run').mkdir()
  assert doctor.main([f'--config={config}', f'--workdir={tmp_path / "run"}']) == 0
  assert list((tmp_path / 'run').iterdir()) == []
  said = capsys.readouterr().out
  assert 'one process: the run can start' in said
  assert 'parameters, mesh data 4 x model 1, 2 rows per device' in said


def test_data_that_would_be_made_is_not_made(
  config: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
  cache = tmp_path / 'cache'
  code, found = examined(config, tmp_path / 'run', capsys, f'--config.data.cache={cache}')
  assert code == 0
  [said] = found['data'][1]
  assert 'tokens are not made yet' in said['text']
  assert not (cache / 'tokens').exists()


@pytest.mark.parametrize(
  ('flags', 'check', 'said'),
  [
    (['--config.data.path=/nowhere/at/all'], 'run', '/nowhere/at/all'),
    (['--config.vocab.path=/nowhere/at/all'], 'vocabulary', 'there is no vocabulary in /nowhere/at/all'),
    (["--config.sharding.mesh={'data': 3}"], 'run', 'sharding'),
    (['--config.data.batch_size=6'], 'run', 'data.batch_size=6 rows cannot be cut'),
    (['--config.model.overrides.mlp_dim=1000000000'], 'run', 'of memory'),
  ],
)
def test_what_keeps_a_run_from_beginning_is_told(
  flags: list[str],
  check: str,
  said: str,
  config: pathlib.Path,
  tmp_path: pathlib.Path,
  capsys: pytest.CaptureFixture[str],
) -> None:
  code, found = examined(config, tmp_path / 'run', capsys, *flags)
  assert code == 2
  assert [name for name, (result, _) in found.items() if result != 'ok'] == [check]
  assert said in found[check][1][0]['text']


def test_a_folder_that_cannot_be_written_to_is_told(
  config: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
  (tmp_path / 'file').write_text('in the way')
  code, found = examined(config, tmp_path / 'file' / 'run', capsys)
  assert code == 2
  assert 'cannot be written to' in found['workdir'][1][0]['text']


def test_a_run_that_is_there_is_told(
  config: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
  """Another process trains in the folder, or it was begun with another config."""
  workdir = tmp_path / 'run'
  with files.locked(workdir / '.lock', doing='training'):
    code, found = examined(config, workdir, capsys)
  assert code == 2
  assert 'another process is training here' in found['resuming'][1][0]['text']
  old = json.loads(config.read_text())
  (workdir / 'checkpoints' / '4').mkdir(parents=True)
  (workdir / 'config.json').write_text(json.dumps(old))
  code, found = examined(config, workdir, capsys)
  assert (code, found['resuming'][1][0]['text']) == (0, 'resumes from step 4')
  (workdir / 'config.json').write_text(json.dumps({**old, 'seed': 5}))
  code, found = examined(config, workdir, capsys)
  assert code == 2
  assert 'seed: 5 -> 0' in found['resuming'][1][0]['text']


def test_a_disk_that_is_too_small_is_told(
  config: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr(files, 'free_bytes', lambda folder: 100_000)
  code, found = examined(config, tmp_path / 'run', capsys)
  assert code == 2
  assert found['disk'][0] == 'failed'


def test_a_mistake_in_the_config_of_one_process_is_its_message(tmp_path: pathlib.Path, config: pathlib.Path) -> None:
  with pytest.raises(ConfigError, match='learning_rate'):
    doctor.main([f'--config={config}', f'--workdir={tmp_path}', '--config.optim.learning_rate=1'])


def test_hosts_are_grouped_by_what_they_say() -> None:
  answers: list[Answer | None] = [Answer('a', '1 file')] * 6
  answers[3] = Answer('b', '2 files')
  check = agreement.judged('code', answers)
  assert (check.result, [one.hosts for one in check.said]) == ('differs', [[0, 1, 2, 4, 5], [3]])
  answers[5] = Answer('a', problem='no disk')
  report = engine.Report(['w'] * 6, [agreement.judged('code', answers)])
  assert not report.sound
  [(name, result, said)] = engine.rows(report)
  assert (name, result) == ('code', 'failed')
  assert said.splitlines() == ['processes 0 to 2, 4: a, 1 file', 'process 3 (w): b, 2 files', 'process 5 (w): no disk']
  assert agreement.judged('memory', [Answer(note='1 GiB'), Answer(note='2 GiB')]).result == 'ok'
  assert agreement.judged('data', [Answer('a'), None]).result == 'ok'
  assert agreement.judged('data', [Answer('a'), agreement.ABSENT]).result == 'failed'


# Two hosts: processes of this machine, one of which is another in some way.


def together(flags: Sequence[str], *second: str, **environment: str) -> Any:
  """(exit codes, checks, the log of the first) of two doctors; more flags and an environment for the second."""
  join = [f'--coordinator=localhost:{free_port()}', '--processes=2']
  running = [
    subprocess.Popen(
      runs.words('doctor', *flags, *more, *join, f'--process={number}', '--json'),
      cwd=conftest.ROOT, env=runs.environment(devices=2, **changes), stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    for number, (more, changes) in enumerate([((), {}), (second, environment)])
  ]  # fmt: skip
  try:
    ends = [process.communicate(timeout=120) for process in running]
  finally:
    for process in running:
      process.kill()
  codes, out, err = [process.returncode for process in running], ends[0][0], ends[0][1] + ends[1][1]
  assert '{\n' in out, err[-3000:]
  report = json.loads(out[out.index('{\n') : out.rindex('}') + 1])
  return codes, {check['name']: check for check in report['checks']}, err


def wrong(checks: dict[str, Any]) -> dict[str, str]:
  return {name: check['result'] for name, check in checks.items() if check['result'] != 'ok'}


def texts(check: dict[str, Any]) -> dict[int, str]:
  """Host -> what it said."""
  return {host: one['text'] for one in check['said'] for host in one['hosts']}


def test_two_hosts_that_agree(config: pathlib.Path, tmp_path: pathlib.Path) -> None:
  codes, checks, _ = together([f'--config={config}', f'--workdir={tmp_path / "run"}'])
  assert codes == [0, 0], wrong(checks)
  assert wrong(checks) == {}
  assert texts(checks['all devices'])[0].startswith('4 add up to 4')
  assert not (tmp_path / 'run').exists()


SKEWED = """
import time
_time = time.time
time.time = lambda: _time() + 3600
"""


def test_a_host_that_differs_is_named_with_both_values(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  """Another source file, a key of the config, a variable, a clock that is an hour ahead, and another text."""
  package = tmp_path / 'other' / 'plm_jax'
  shutil.copytree(conftest.ROOT / 'plm_jax', package, ignore=shutil.ignore_patterns('__pycache__'))
  with open(package / 'config' / 'aliases.py', 'a') as source:
    source.write('# another version\n')
  (tmp_path / 'other' / 'sitecustomize.py').write_text(SKEWED)
  homes = [tmp_path / 'home0', tmp_path / 'home1']
  for home in homes:
    shutil.copytree(data / 'corpus', home / 'corpus')
  (homes[1] / 'corpus' / 'train.txt').write_text('Another text stands here.\n')
  settings = runs.settings('mlm', data, data={'path': '~/corpus', 'cache': str(tmp_path / 'cache')})
  config = runs.write_config(tmp_path / 'config.json', settings)
  flags = [f'--config={config}', f'--workdir={tmp_path / "run"}']
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('HOME', str(homes[0]))
    path = os.pathsep.join([str(tmp_path / 'other'), os.environ.get('PYTHONPATH', '')])
    codes, checks, _ = together(
      flags, '--config.optim.rate=0.5', HOME=str(homes[1]), PYTHONPATH=path, PYTHONSAFEPATH='1',
      JAX_DEFAULT_MATMUL_PRECISION='highest',
    )  # fmt: skip
  assert codes == [2, 2]
  assert wrong(checks) == dict.fromkeys(('code', 'config', 'environment', 'clock', 'data'), 'differs')

  def keys(name: str) -> dict[str, dict[int, str]]:
    return {key: texts({'said': said}) for key, said in checks[name]['keys'].items()}

  assert keys('code').keys() == {'config/aliases.py'}
  assert keys('config') == {'optim.rate': {0: '0.01', 1: '0.5'}}
  assert keys('environment') == {'JAX_DEFAULT_MATMUL_PRECISION': {0: 'not there', 1: 'highest'}}
  assert texts(checks['clock']) == {0: 'with the others', 1: '+3,600.0 s'}
  said = texts(checks['data'])
  assert said[0].split(',')[0] != said[1].split(',')[0]
  assert said[0].startswith('tokens ')
  assert 'all devices' not in checks


def test_a_host_that_cannot_begin_does_not_keep_the_others_waiting(
  data: pathlib.Path, config: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  """One has a mistake in its config, and no such folder as the other."""
  (tmp_path / 'home').mkdir()
  flags = [f'--config={config}']
  workdir = '~/run'
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('HOME', str(tmp_path))
    codes, checks, err = together(
      [*flags, f'--workdir={workdir}'], '--config.optim.learning_rate=1', HOME=str(tmp_path / 'home')
    )
  assert codes == [2, 2], err[-2000:]
  assert wrong(checks) == {'config': 'failed', 'workdir': 'failed'}
  assert 'learning_rate' in texts(checks['config'])[1]
  assert 'hosts have folders of their own' in texts(checks['workdir'])[0]
  assert sys.version.split()[0] in texts(checks['versions'])[0]
