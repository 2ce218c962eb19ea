"""Whole runs at gs:// and s3://, with the clients that a user has, against stores of this machine.

gs://: gcsfs and TensorStore's driver 'gcs' against `tests/google_storage.py`, a replacement of the service. s3://: s3fs
against moto's server. To run these tests: pip install -r requirements/buckets.txt 'moto[server]'.
"""

import importlib.metadata
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

import plm_jax
from plm_jax import checkpoint, weights
from plm_jax.checkpoint import saved_steps
from plm_jax.core.errors import ConfigError
from plm_jax.io import checksums, downloads, files, object_store
from plm_jax.runs import metrics
from tests import conftest, runs


def skip_without(*packages: str) -> None:
  """Skip visibly if a package is missing."""
  for package in packages:
    try:
      importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
      pytest.skip(f"{package} is not installed: pip install -r requirements/buckets.txt 'moto[server]'")


@pytest.fixture(scope='module')
def google() -> Iterator[str]:
  """Provide an empty bucket at gs://."""
  skip_without('gcsfs')
  words = [sys.executable, '-m', 'tests.google_storage']
  server = subprocess.Popen(words, cwd=conftest.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
  assert server.stdout is not None
  url = f'http://127.0.0.1:{int(server.stdout.readline())}'
  with pytest.MonkeyPatch.context() as patched:
    patched.setenv('STORAGE_EMULATOR_HOST', url)  # gcsfs
    patched.setenv('FSSPEC_GCS_TOKEN', 'anon')
    patched.setenv('GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT', 'false')
    patched.setenv('TENSORSTORE_GCS_HTTP_URL', url)
    patched.setenv('GOOGLE_AUTH_TOKEN_FOR_TESTING', 'none')  # TensorStore
    configured(patched, 'gcs', token='anon')
    yield 'gs://bucket'
  server.kill()
  server.wait()


def configured(patched: pytest.MonkeyPatch, protocol: str, **settings: object) -> None:
  """Set for this process what fsspec reads from the environment."""
  from fsspec.config import conf

  patched.setitem(conf, protocol, {**conf.get(protocol, {}), **settings})


@pytest.fixture(scope='module')
def data(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  return runs.write_data(tmp_path_factory.mktemp('data'))


@pytest.fixture(scope='module')
def undisturbed(data: pathlib.Path) -> pathlib.Path:
  """Train the reference run on this machine."""
  runs.write_config(data / 'config.json', runs.settings('mlm', data, log=()))
  done = runs.command('train', f'--config={data}/config.json', f'--workdir={data}/undisturbed')
  assert done.returncode == 0, done.stderr
  return data / 'undisturbed'


def test_a_run_that_is_killed_goes_on_bit_for_bit(
  google: str, data: pathlib.Path, undisturbed: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  run, log = files.path(f'{google}/killed'), tmp_path / 'log'
  words = runs.words('train', f'--config={data}/config.json', f'--workdir={run}')
  moments = [
    lambda: files.is_file(run / '.lock'),  # before anything is there
    lambda: files.is_folder(run / 'checkpoints' / '4'),  # while the first step is written
    lambda: files.is_file(run / 'checkpoints' / '6' / saved_steps.RECORD),  # around the mark of another
  ]
  for moment in moments:
    with runs.started(words, log=log) as process:
      runs.wait_until(moment, process=process, log=log)
      process.send_signal(signal.SIGKILL)
      process.wait()
    for step in saved_steps.numbered(run / 'checkpoints'):  # whatever is marked is whole
      saved_steps.check(run / 'checkpoints' / str(step))
  done = runs.command('train', f'--config={data}/config.json', f'--workdir={run}')
  assert done.returncode == 0, done.stderr
  assert re.search(r'from step \d', log.read_text() + done.stderr)
  assert not runs.differing(runs.saved_state(run), runs.saved_state(undisturbed))
  assert runs.curve(run) == runs.curve(undisturbed)
  assert not files.exists(run / '.lock') and files.is_file(run / 'curves.png')
  assert re.search(r'from step \d', files.read_text(run / 'log.txt'))
  again = runs.command('train', f'--config={data}/config.json', f'--workdir={run}')
  assert again.returncode == 0 and '12 steps' in again.stderr


def test_training_reads_tokens_where_they_are(google: str, data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  """The batches of a copy, with no ids on this machine."""
  kept = []
  for number, flags in enumerate(([], ['--in_place'])):
    config, cache = tmp_path / f'{number}.json', tmp_path / f'cache{number}'
    runs.write_config(config, runs.settings('mlm', data, data={'cache': str(cache), 'shuffle_window': 512}))
    done = runs.command('prepare', f'--config={config}', f'--shared={google}/stores', *flags)
    assert done.returncode == 0, done.stderr
    done = runs.command('train', f'--config={config}', f'--workdir={tmp_path}/run{number}')
    assert done.returncode == 0, done.stderr
    kept.append(len(list((cache / 'tokens').rglob('tokens.bin'))))
  assert kept[0] > kept[1] == 0
  first, second = (tmp_path / f'run{number}' for number in range(2))
  assert runs.curve(first) == runs.curve(second)
  assert not runs.differing(runs.saved_state(first), runs.saved_state(second))


def test_what_is_done_with_a_run(
  google: str, data: pathlib.Path, undisturbed: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  """Use URLs in every command and in the Python API."""
  for file in files.files_below(data / 'corpus'):
    files.copy(file, files.path(f'{google}/corpus') / file.name)
  for file in files.files_below(data / 'vocab'):
    files.copy(file, files.path(f'{google}/vocab') / file.name)
  run, cache = f'{google}/run', tmp_path / 'cache'
  there = {'data': {'path': f'{google}/corpus', 'cache': str(cache)}, 'vocab': {'path': f'{google}/vocab'}}
  runs.write_config(tmp_path / 'config.json', runs.settings('mlm', data, **there))
  done = runs.command('train', f'--config={tmp_path}/config.json', f'--workdir={run}')
  assert done.returncode == 0, done.stderr
  assert not runs.differing(runs.saved_state(files.path(run)), runs.saved_state(undisturbed))
  assert files.listing(run, 'events.*') and len(list((cache / 'copies').rglob('*.txt'))) == 2
  done = runs.command('evaluate', f'--workdir={run}')
  assert done.returncode == 0, done.stderr
  assert len(files.read_text(f'{run}/evaluations.jsonl').splitlines()) == 1
  done = runs.command('convert', 'export', run, f'{google}/release')
  assert done.returncode == 0, done.stderr
  _, ours = weights.load(undisturbed)
  _, theirs = weights.load(f'{google}/release')
  np.testing.assert_array_equal(ours['token_embed']['table'], theirs['token_embed']['table'])
  done = runs.command('convert', 'import', f'{google}/release', f'{google}/import')
  assert done.returncode == 0, done.stderr
  vectors = [plm_jax.load(place).encode(['Anna is in the garden.']) for place in (run, f'{google}/import')]
  np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)
  done = runs.command('rewind', f'--workdir={run}', '--to_step=8')
  assert done.returncode == 0, done.stderr
  assert saved_steps.numbered(files.path(run) / 'checkpoints')[-1] == 8
  done = runs.command('train', f'--config={tmp_path}/config.json', f'--workdir={run}')
  assert done.returncode == 0, done.stderr
  assert not runs.differing(runs.saved_state(files.path(run)), runs.saved_state(undisturbed))
  assert saved_steps.numbered(files.path(run) / 'checkpoints' / checkpoint.SET_ASIDE) == [12]
  done = runs.command('compare', run, undisturbed, f'--out={tmp_path}/x.png')
  assert done.returncode == 0, done.stderr


def test_two_processes_train_in_one_folder(google: str, data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    port = free.getsockname()[1]
  runs.write_config(tmp_path / 'config.json', runs.settings('mlm', data, log=(), steps=6))
  alone = runs.command('train', f'--config={tmp_path}/config.json', f'--workdir={tmp_path}/alone', devices=2)
  assert alone.returncode == 0, alone.stderr
  for stop in (4, 6):
    flags = (f'--config={tmp_path}/config.json', f'--workdir={google}/two', f'--stop_at={stop}')
    where = [('--processes=2', f'--process={number}', f'--coordinator=localhost:{port + stop}') for number in range(2)]
    log = tmp_path / 'log'
    with (
      runs.started(runs.words('train', *flags, *where[0]), log=log) as first,
      runs.started(runs.words('train', *flags, *where[1]), log=log) as second,
    ):
      codes = first.wait(240), second.wait(240)
    assert codes == (0, 0), log.read_text()[-3000:]
  assert not runs.differing(runs.saved_state(files.path(f'{google}/two')), runs.saved_state(tmp_path / 'alone'))
  assert metrics.history(f'{google}/two', 'loss') == metrics.history(tmp_path / 'alone', 'loss')


DOWNLOAD = """
import sys
from plm_jax.io import downloads
downloads._PIECE, downloads._AT_ONCE = 2**18, 1
print(downloads.fetched(sys.argv[1], sys.argv[2]))
"""


def test_a_download_that_is_killed_goes_on(google: str, tmp_path: pathlib.Path) -> None:
  killed_in_download(f'{google}/large.txt', tmp_path)


def killed_in_download(address: str, folder: pathlib.Path) -> None:
  content = np.random.default_rng(0).bytes(30 * 2**20)
  files.write_bytes(files.path(address), content)
  words, log = [sys.executable, '-c', DOWNLOAD, address, str(folder / 'cache')], folder / 'log'

  def part() -> int:
    return sum(file.stat().st_size for file in (folder / 'cache').rglob('*.part'))

  with runs.started(words, log=log) as process:
    runs.wait_until(lambda: part() > 2**20, process=process, log=log)
    process.send_signal(signal.SIGKILL)
    process.wait()
  left = part()
  assert 2**20 <= left < len(content)
  with pytest.MonkeyPatch.context() as patched:
    asked: list[int] = []
    read = object_store.read
    patched.setattr(object_store, 'read', lambda where, start, stop: (asked.append(start), read(where, start, stop))[1])
    file = downloads.fetched(address, folder / 'cache')
  assert min(asked) == left and file.read_bytes() == content


@pytest.fixture(scope='module')
def amazon() -> Iterator[str]:
  """Provide an empty bucket at s3:// of moto's server."""
  skip_without('s3fs', 'moto', 'flask')
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    port = free.getsockname()[1]
  words = [sys.executable, '-c', 'from moto.server import main; import sys; main(sys.argv[1:])', f'-p{port}']
  server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  url = f'http://127.0.0.1:{port}'
  with pytest.MonkeyPatch.context() as patched:
    for name, value in {'ACCESS_KEY_ID': 'x', 'SECRET_ACCESS_KEY': 'x', 'DEFAULT_REGION': 'us-east-1'}.items():
      patched.setenv(f'AWS_{name}', value)
    patched.setenv('AWS_ENDPOINT_URL', url)
    patched.setenv('FSSPEC_S3_ENDPOINT_URL', url)
    configured(patched, 's3', endpoint_url=url)
    import fsspec

    for _ in range(60):
      try:
        fsspec.filesystem('s3').mkdir('bucket')
        break
      except OSError:
        assert server.poll() is None
        fsspec.filesystem('s3').clear_instance_cache()
        signal.sigtimedwait([], 0.5)
    yield 's3://bucket'
  server.kill()
  server.wait()


def test_files_at_s3(amazon: str) -> None:
  root = files.path(f'{amazon}/run')
  files.write_json(root / 'a' / 'b.json', {'x': 1})
  files.append(root / 'lines', 'one\n')
  files.append(root / 'lines', 'two\n')
  assert files.read_json(root / 'a' / 'b.json') == {'x': 1} and files.read_text(root / 'lines') == 'one\ntwo\n'
  assert files.listing(root) == [root / 'a', root / 'lines'] and files.listing(root, '*/*.json') == [root / 'a/b.json']
  assert files.sizes_below(root) == {'a/b.json': files.size(root / 'a' / 'b.json'), 'lines': 8}
  assert checksums.digest(root / 'lines').startswith(checksums.MD5)
  files.move(root / 'a', root / 'c', marks=('b.json',))
  assert not files.exists(root / 'a') and files.is_folder(root / 'c')
  with files.locked(root / '.lock', doing='testing'):
    assert not object_store.create(root / '.lock', b'')
  with pytest.raises(ConfigError, match=r'/run/checkpoints.*gs://'):
    checkpoint.Checkpoints(root / 'checkpoints', keep=1)
  files.remove_folder(root)
  assert not files.exists(root)


def test_weights_at_s3(amazon: str, undisturbed: pathlib.Path) -> None:
  for words in (('export', undisturbed, f'{amazon}/release'), ('import', f'{amazon}/release', f'{amazon}/import')):
    done = runs.command('convert', *words)
    assert done.returncode == 0, done.stderr
  for place in ('release', 'import'):
    ours, theirs = (
      weights.open(folder).params['trunk/token_embed/table'] for folder in (undisturbed, f'{amazon}/{place}')
    )
    np.testing.assert_array_equal(ours.read(None), theirs.read(None))


def test_a_download_from_s3_that_is_killed_goes_on(amazon: str, tmp_path: pathlib.Path) -> None:
  killed_in_download(f'{amazon}/large.txt', tmp_path)


def test_nothing_is_left_here() -> None:
  assert not [name for name in os.listdir(conftest.ROOT) if name.endswith(':')]
