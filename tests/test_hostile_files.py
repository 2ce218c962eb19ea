"""Files from strangers and from broken disks: one line, exit code 1 or 2, and bounded memory.

Each case is a file or a folder and its reader. Readers are functions of the package; `command.run` turns the error into
the output of a command.
"""

import errno
import gzip
import json
import os
import pathlib
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from plm_jax import config, weights
from plm_jax.checkpoint import params, tensor_files
from plm_jax.cli import command
from plm_jax.core.errors import ConfigError, RunError, stage
from plm_jax.data.corpora import sources
from plm_jax.inference import opened
from plm_jax.io import checksums, files, run_paths
from plm_jax.runs import curves, metrics, run_folder
from plm_jax.training.before import model_from
from plm_jax.weights import release
from tests import conftest

DEEP = '[' * 100_000
NESTED = '{"a":' * 150 + '1' + '}' * 150
Make = Callable[[pathlib.Path], object]


def text(content: str | bytes) -> Make:
  return lambda file: file.write_bytes(content if isinstance(content, bytes) else content.encode())


def sparse(size: int) -> Make:
  """Create a file of zeros that takes no space on disk."""

  def make(file: pathlib.Path) -> None:
    with open(file, 'wb') as stream:
      stream.truncate(size)

  return make


def loop(file: pathlib.Path) -> None:
  file.symlink_to(file.name)


def zipped(*pieces: bytes, times: int = 1) -> Make:
  def make(file: pathlib.Path) -> None:
    with gzip.open(file, 'wb', compresslevel=1) as stream:
      for _ in range(times):
        for piece in pieces:
          stream.write(piece)

  return make


NO_FILES: dict[str, Make] = {
  'pipe': os.mkfifo,
  'device': lambda file: file.symlink_to('/dev/zero'),
  'folder': os.mkdir,
  'loop': loop,
  'no end': sparse(2**40),
}
NO_JSON: dict[str, Make] = {
  'deep': text(DEEP),
  'nested': text(NESTED),
  'torn': text('{"a": 1, "b'),
  'empty': text(''),
  'not UTF-8': text(b'{"a": "\xff"}'),
  'UTF-16': text('{"a": 1}'.encode('utf-16')),
  'half a character': text('{"a": "\\ud800"}'),
  'digits': text('{"a": ' + '9' * 5000 + '}'),
  'a list': text('[1]'),
  'nothing': text('null'),
}


def one_line(read: Callable[[], object], *words: str, capsys: pytest.CaptureFixture[str]) -> int:
  """Run a reader as a command; return its exit code.

  The code is 1 or 2, and the output is one line with all words.
  """

  def main() -> None:
    with stage('here'):
      read()

  code = command.run(main)
  said = capsys.readouterr().err
  assert code in (1, 2), f'nothing was found; {said}'
  assert 'Traceback' not in said and len(said.strip().splitlines()) == 1, said
  for word in words:
    assert word in said
  return code


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
  """Limit the memory of each test to 3 GB, against endless reads."""
  before = resource.getrlimit(resource.RLIMIT_DATA)
  status = pathlib.Path('/proc/self/status').read_text().splitlines()
  used = int(next(line for line in status if line.startswith('VmData')).split()[1]) * 1024
  resource.setrlimit(resource.RLIMIT_DATA, (used + 3 * 2**30, before[1]))
  yield
  resource.setrlimit(resource.RLIMIT_DATA, before)


# Who reads JSON: the name of the file, and what reads it.
READERS: dict[str, tuple[str, Callable[[pathlib.Path], object]]] = {
  'config': ('config.json', lambda folder: config.resolve(config.load(str(folder / 'config.json')))),
  'settings of a run': ('config.json', lambda folder: run_folder.read_json(folder / 'config.json')),
  'data of a run': ('data.json', lambda folder: run_folder.read_json(folder / 'data.json')),
  'release': ('config.json', release.Release),
  'index of a release': ('model.safetensors.index.json', lambda folder: (config_of(folder), release.Release(folder))),
  'index of an import': ('params.index.json', params.open_params),
  'names of classes': (
    'labels.json',
    lambda folder: (rows_of(folder), sources.open_source(str(folder), cache=str(folder / 'cache'))),
  ),
}


def config_of(folder: pathlib.Path) -> None:
  (folder / 'config.json').write_text('{"model_type": "bert"}')


def rows_of(folder: pathlib.Path) -> None:
  (folder / 'train.jsonl').write_text('{"text": "a"}\n')


@pytest.mark.parametrize('reader', READERS)
@pytest.mark.parametrize('damage', [*NO_JSON, *NO_FILES])
def test_json(reader: str, damage: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
  name, read = READERS[reader]
  (NO_JSON | NO_FILES)[damage](tmp_path / name)
  one_line(lambda: read(tmp_path), capsys=capsys)


@pytest.mark.parametrize(
  'read',
  [
    opened.open,
    lambda folder: weights.open(folder).model,
    lambda folder: model_from.expand({}, [('model.from', str(folder))], None),
    lambda folder: config.load(str(folder)),
  ],
)
def test_the_digest_of_a_config_is_compared_before_it_is_parsed(
  read: Callable[[pathlib.Path], object], tmp_path: pathlib.Path
) -> None:
  metrics.write_json(tmp_path / 'config.json', {'model': {}})
  (tmp_path / 'config.json').write_text('(' + (tmp_path / 'config.json').read_text()[1:])
  with pytest.raises(RunError, match=r'config\.json.*SHA256SUMS'):
    read(tmp_path)
  (tmp_path / checksums.SUMS).unlink()
  with pytest.raises((ConfigError, RunError), match=r'config\.json.* (not JSON|cannot be read)'):
    read(tmp_path)


@pytest.mark.parametrize('damage', [*NO_JSON, *NO_FILES])
def test_a_result_that_cannot_be_read_is_no_result(
  damage: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
  (NO_JSON | NO_FILES)[damage](tmp_path / 'result.json')
  assert run_folder.read_result(run_paths.RunFolder(tmp_path)) == {}
  assert 'result.json' in caplog.text


@pytest.mark.parametrize(
  'line',
  [
    *(DEEP, NESTED, '{"step": 1', '[1]', '{"step": "a"}', '\x00', '{"step": 1}}'),
    *('{"step": 99999999999999999999, "loss": 1}', '{"step": -1}', '{"step": true}'),
  ],
)
def test_metrics(line: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
  """A damaged line is named and left out: it does not stop a resume."""
  sound, later = (json.dumps({'step': step, 'loss': 2.0}) for step in (1, 2))
  (tmp_path / 'metrics.jsonl').write_text(f'{sound}\n{line}\n{later}\n')
  assert metrics.read(tmp_path) == [{'step': 1, 'loss': 2.0}, {'step': 2, 'loss': 2.0}]
  assert 'metrics.jsonl, line 2 is damaged' in caplog.text
  metrics.Writer(tmp_path, sinks=(), resume_step=2).write(3, {'loss': 1.0})
  assert [row['step'] for row in metrics.read(tmp_path)] == [1, 2, 3]
  (tmp_path / 'metrics.jsonl').write_text(f'{sound}\n{line}')  # torn by a kill
  assert metrics.read(tmp_path) == [{'step': 1, 'loss': 2.0}]
  metrics.Writer(tmp_path, sinks=()).close()
  assert (tmp_path / 'metrics.jsonl').read_text() == f'{sound}\n'


@pytest.mark.parametrize('damage', NO_FILES)
def test_metrics_that_are_no_file(damage: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
  NO_FILES[damage](tmp_path / 'metrics.jsonl')
  if damage != 'loop':  # as good as none
    one_line(lambda: metrics.read(tmp_path), 'metrics.jsonl', capsys=capsys)
  one_line(lambda: metrics.Writer(tmp_path, sinks=()), 'metrics.jsonl', capsys=capsys)


# Texts and rows.

MANY = b'a line of text\n' * 70_000
TEXTS: dict[str, tuple[str, Make]] = {
  'a bomb': ('x.txt.gz', zipped(bytes(2**20), times=64)),
  'a bomb of lines': ('x.txt.gz', zipped(MANY, times=64)),
  'a bomb of a row': ('x.jsonl.gz', zipped(b'{"text": "' + bytes(2**20), times=64)),
  'a bomb in a bomb': ('x.csv.gz', zipped(gzip.compress(bytes(2**24)), times=4096)),
  'an endless line': ('x.txt', sparse(2**40)),
  'an endless row': ('x.jsonl', sparse(2**40)),
  'an endless table': ('x.csv', sparse(2**40)),
  'an endless column': ('x.tsv', sparse(2**40)),
  'an endless sentence': ('x.conll', sparse(2**40)),
  'an endless document': ('x.txt', text(MANY * 40)),
  'quotation marks that stay open': ('x.csv', text(b'a,b\n"' + (b'x' * 4000 + b'\n') * 5000)),
  'deep rows': ('x.jsonl', text(f'{{"text": "a"}}\n{DEEP}\n')),
  'nested rows': ('x.jsonl', text(f'{{"text": "a"}}\n{NESTED}\n')),
  'half a character': ('x.jsonl', text('{"text": "a"}\n{"text": "\\udc00"}\n')),
  'digits': ('x.jsonl', text('{"text": "a"}\n{"text": ' + '9' * 5000 + '}\n')),
  'no gzip': ('x.txt.gz', text('plain')),
  'a torn gzip': ('x.txt.gz', text(gzip.compress(MANY)[:-9])),
  'damaged gzip': ('x.txt.gz', text(gzip.compress(MANY)[:30] + b'\xff' * 50)),
  'no Parquet': ('x.parquet', text(b'PAR1' + b'\xff' * 60 + b'PAR1')),
  **{f'{damage}: {name}': (name, NO_FILES[damage]) for damage in ('pipe', 'device', 'folder', 'loop')
     for name in ('x.txt', 'x.jsonl.gz', 'x.csv', 'x.parquet', 'x.conll')},
}  # fmt: skip


@pytest.mark.parametrize('case', TEXTS)
def test_texts(case: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
  name, make = TEXTS[case]
  make(tmp_path / name)

  def read() -> None:
    records = sources.open_source(str(tmp_path / name), cache=str(tmp_path / 'cache'), max_bytes=2**24)
    for row in records:
      json.dumps(row, ensure_ascii=False).encode()

  one_line(read, 'x.' if 'folder' not in case else '', capsys=capsys)


def test_max_bytes_is_a_setting(tmp_path: pathlib.Path) -> None:
  (tmp_path / 'x.txt.gz').write_bytes(gzip.compress(b'ab\n\ncd\n'))
  (tmp_path / 'x.txt').write_bytes(b'ab\n\ncd\n')
  for name in ('x.txt.gz', 'x.txt'):
    enough = 3
    with pytest.raises(ValueError, match='max_bytes'):
      sources.open_source(str(tmp_path / name), cache=str(tmp_path), max_bytes=enough - 1)
    found = sources.open_source(str(tmp_path / name), cache=str(tmp_path), max_bytes=enough)
    assert [row['text'] for row in found] == ['ab', 'cd']


# Index files and places outside of a folder.


def import_of(folder: pathlib.Path, name: str = 'params-00001.safetensors') -> pathlib.Path:
  """Write a converted checkpoint with one stacked leaf."""
  ones = tensor_files.Plan(np.dtype(np.float32), (3,), lambda: iter([np.ones(3, np.float32)]))
  folder.mkdir()
  tensor_files.write(folder / name, {'a@0': ones, 'a@1': ones, 'b': ones})
  params.write_index(folder, {'a': 2, 'b': None})
  return folder


def change(file: pathlib.Path, **values: Any) -> None:
  file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.mark.parametrize(
  'leaves',
  [{'a': 3, 'b': None}, {'a': 1, 'b': None}, {'a': 10**9, 'b': None}, {'a': -1, 'b': None}, {'a': 2},
   {'a': 2.0, 'b': None}, {'a': True, 'b': None}, {'a': 2, 'c': None}, {'a': None, 'b': None}, {'a': 2, 'b': 'x'},
   [], 3],
)  # fmt: skip
def test_an_index_that_does_not_fit(leaves: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
  folder = import_of(tmp_path / 'ours')
  assert params.open_params(folder).arrays()['a'].shape == (2, 3)
  change(folder / 'params.index.json', leaves=leaves)
  one_line(lambda: params.open_params(folder).arrays(), 'params.index.json', capsys=capsys)


@pytest.mark.parametrize('how', ['up', 'absolute', 'link', 'pipe'])
def test_an_index_that_leaves_its_folder(how: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
  folder = import_of(tmp_path / 'ours')
  (file,) = folder.glob('*.safetensors')
  outside = tmp_path / file.name
  file.rename(outside)
  name = {'up': f'../{file.name}', 'absolute': str(outside), 'link': file.name, 'pipe': file.name}[how]
  if how == 'link':
    file.symlink_to(outside)
  if how == 'pipe':
    os.mkfifo(file)
  change(folder / 'params.index.json', sha256={name: files.sha256(outside)})
  one_line(lambda: params.open_params(folder), file.name, capsys=capsys)


@pytest.mark.parametrize('how', ['up', 'absolute', 'link'])
def test_a_weight_map_that_leaves_its_folder(
  how: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
  outside = import_of(tmp_path / 'other') / 'params-00001.safetensors'
  folder = tmp_path / 'release'
  folder.mkdir()
  config_of(folder)
  name = {'up': f'../other/{outside.name}', 'absolute': str(outside), 'link': outside.name}[how]
  if how == 'link':
    (folder / name).symlink_to(outside)
  (folder / release.INDEX).write_text(json.dumps({'weight_map': {'b': name}}))
  one_line(lambda: release.Release(folder), release.INDEX, capsys=capsys)


def test_a_snapshot_of_the_hub_is_a_folder_of_links(tmp_path: pathlib.Path) -> None:
  blob = import_of(tmp_path / 'models--a' / 'blobs' if (tmp_path / 'models--a').mkdir() is None else tmp_path)
  folder = tmp_path / 'models--a' / 'snapshots' / 'abc'
  folder.mkdir(parents=True)
  config_of(folder)
  (folder / 'model-1.safetensors').symlink_to('../../blobs/params-00001.safetensors')
  (folder / release.INDEX).write_text(json.dumps({'weight_map': {'b': 'model-1.safetensors'}}))
  assert release.Release(folder).read('b').tolist() == [1, 1, 1]
  assert blob.is_dir()


# Disks without room, and folders that cannot be written to.


def full(patch: pytest.MonkeyPatch, *names: str) -> None:
  """Simulate a full disk for files of these names."""
  flush = os.fsync

  def fsync(handle: int) -> None:
    if any(name in os.readlink(f'/proc/self/fd/{handle}') for name in names):
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    flush(handle)

  patch.setattr(os, 'fsync', fsync)


WRITERS: dict[str, Callable[[pathlib.Path], object]] = {
  'text.txt': lambda folder: files.write_text(folder / 'text.txt', 'a'),
  'config.json': lambda folder: metrics.write_json(folder / 'config.json', {'a': 1}),
  'result.json': lambda folder: checksums.write(folder, {'result.json': '{}\n'}),
  'SHA256SUMS': lambda folder: metrics.write_json(folder / 'data.json', {'a': 1}),
  'curves.txt': lambda folder: files.write_json(folder / 'curves.txt', [1]),
}


@pytest.mark.parametrize('name', WRITERS)
def test_a_full_disk(
  name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
  WRITERS[name](tmp_path)
  before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
  full(monkeypatch, name)
  one_line(lambda: WRITERS[name](tmp_path), name, 'No space left on device', capsys=capsys)
  after = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
  assert {file: after[file] for file in before if file != checksums.SUMS} == {
    file: before[file] for file in before if file != checksums.SUMS
  }
  assert not list(tmp_path.glob('*.tmp'))
  for file in tmp_path.iterdir():
    checksums.check(file)  # whatever was written, what is there is sound


def test_metrics_on_a_full_disk(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
  writer = metrics.Writer(tmp_path, sinks=())
  writer.write(1, {'loss': 1.0})
  limit = resource.getrlimit(resource.RLIMIT_FSIZE)
  import signal

  signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
  resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / 'metrics.jsonl').stat().st_size + 9, limit[1]))
  try:
    one_line(lambda: writer.write(2, {'loss': 0.5}), 'metrics.jsonl', capsys=capsys)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
  assert metrics.read(tmp_path) == [{'step': 1, 'loss': 1.0}]
  metrics.Writer(tmp_path, sinks=(), resume_step=1).write(2, {'loss': 0.5})
  assert [row['step'] for row in metrics.read(tmp_path)] == [1, 2]


def test_a_picture_is_not_worth_a_run(
  tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
  with metrics.Writer(tmp_path, sinks=()) as writer:
    writer.write(1, {'loss': 1.0})
    writer.write(2, {'loss': 0.5})
  full(monkeypatch, 'curves.png')
  assert curves.curves(tmp_path) is None
  assert 'curves.png' in caplog.text and 'No space left' in caplog.text
  assert not list(tmp_path.glob('*.tmp'))


# Digests.


def test_flipped_bits_of_settings_are_found(tmp_path: pathlib.Path) -> None:
  draw = np.random.default_rng(0)
  settings = {'steps': 100, 'optim': {'rate': 1e-3, 'name': 'adamw'}, 'seed': 0}
  metrics.write_json(tmp_path / 'data.json', {'data_digest': 'a' * 64})
  metrics.write_json(tmp_path / 'config.json', settings)
  for name in ('config.json', 'data.json', checksums.SUMS):
    file = tmp_path / name
    before = file.read_bytes()
    for place in draw.integers(len(before), size=100):
      damaged = bytearray(before)
      damaged[place] ^= 1 << draw.integers(8)
      file.write_bytes(damaged)
      try:
        assert run_folder.read_json(tmp_path / 'config.json') == settings
        assert run_folder.read_json(tmp_path / 'data.json') == {'data_digest': 'a' * 64}
        assert name == checksums.SUMS  # a name in it: the files are as they were
      except RunError as error:
        assert str(tmp_path) in str(error)
    file.write_bytes(before)
  with pytest.raises(RunError, match='copy it'):
    change(tmp_path / 'config.json', seed=1)
    config.load(str(tmp_path / 'config.json'))
  (tmp_path / 'mine.json').write_bytes((tmp_path / 'config.json').read_bytes())
  assert config.load(str(tmp_path / 'mine.json'))['seed'] == 1
  (tmp_path / checksums.SUMS).unlink()  # as a folder of before there were digests
  assert run_folder.read_json(tmp_path / 'config.json')['seed'] == 1


def test_a_kill_between_any_two_writes_leaves_sound_digests(
  tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  write, left = files.write_text, [0]

  def write_some(file: files.Where, content: str) -> None:
    if not left[0]:
      raise KeyboardInterrupt
    left[0] -= 1
    write(file, content)

  (tmp_path / 'config.json').write_text('{"a": -1}')  # of before there were digests
  monkeypatch.setattr(files, 'write_text', write_some)
  done = 0
  for number in range(60):
    left[0] = number % 5
    try:
      checksums.write(tmp_path, {'data.json': f'{{"b": {number}}}', 'config.json': f'{{"a": {number}}}'})
      done += 1
    except KeyboardInterrupt:
      pass
    for name in ('config.json', 'data.json'):
      checksums.check(tmp_path / name)
  assert done == 12


# Temporary files.


def test_what_a_killed_process_left_is_removed_and_what_another_writes_is_not(tmp_path: pathlib.Path) -> None:
  (tmp_path / 'a.json.123.tmp').write_text('left by an earlier version')
  (tmp_path / 'a.json.123.0.tmp').write_text('left')
  (tmp_path / 'b.json.123.0.tmp').write_text('of another file')
  with files.replacing(tmp_path / 'a.json') as mine:
    mine.write_text('mine')
    with files.replacing(tmp_path / 'a.json') as other:
      other.write_text('other')
      assert sorted(file.name for file in tmp_path.glob('a.json.*')) == sorted([mine.name, other.name])
  assert (tmp_path / 'a.json').read_text() == 'mine'
  assert [file.name for file in tmp_path.glob('*.tmp')] == ['b.json.123.0.tmp']


def test_a_kill_while_a_file_is_written(tmp_path: pathlib.Path) -> None:
  code = (
    'import os, signal, sys; from plm_jax.io import files\n'
    f'with files.replacing({str(tmp_path / "a.json")!r}) as part:\n'
    '  part.write_text("half"); os.kill(os.getpid(), signal.SIGKILL)'
  )
  subprocess.run([sys.executable, '-c', code], cwd=conftest.ROOT, check=False)
  assert len(list(tmp_path.glob('*.tmp'))) == 1
  files.write_text(tmp_path / 'a.json', 'whole')
  assert [file.name for file in tmp_path.iterdir()] == ['a.json']


@pytest.mark.parametrize('killed', ['before', 'between', 'after'])
def test_a_folder_that_is_replaced_is_never_lost(killed: str, tmp_path: pathlib.Path) -> None:
  folder = tmp_path / 'ours'
  folder.mkdir()
  (folder / 'old').write_text('old')
  aside = tmp_path / '.ours.replaced'
  if killed == 'between':
    folder.rename(aside)
  if killed == 'after':
    folder.rename(aside)
    folder.mkdir()
    (folder / 'new').write_text('new')
  (tmp_path / 'ours.partial').mkdir()
  (tmp_path / 'ours.partial' / 'half').write_text('half')
  with pytest.raises(ConfigError, match='cannot be written'), release.making(folder) as partial:
    assert [file.name for file in folder.iterdir()] == ['new' if killed == 'after' else 'old']
    assert not list(partial.iterdir())
    raise OSError(errno.ENOSPC, 'No space left on device')
  assert [file.name for file in tmp_path.iterdir()] == ['ours']
  with release.making(folder) as partial:
    (partial / 'newest').write_text('newest')
    with pytest.raises(ConfigError, match='another process'), release.making(folder):
      pass
    release.put_in_place(partial, folder, mark='config.json')
  assert [file.name for file in tmp_path.iterdir()] == ['ours']
  assert [file.name for file in folder.iterdir()] == ['newest']


def write_release(folder: pathlib.Path, version: int, *, shard: int) -> None:
  """Write a checkpoint whose files all contain the version."""
  plan = tensor_files.Plan(np.dtype(np.float32), (4,), lambda: iter([np.full(4, version, np.float32)]))
  release.write(folder, {'model_type': 'bert', 'version': version}, {'a': plan, 'b': plan}, shard=shard)


def version_of(folder: pathlib.Path) -> int:
  """Return the version of a checkpoint.

  Fails if its files have several, or one is missing.
  """
  found = release.Release(folder)
  assert sorted(found) == ['a', 'b']
  versions = {found.config['version'], *(int(number) for name in found for number in found.read(name))}
  assert len(versions) == 1
  assert {file.name for file in folder.glob('model*')} <= {release.SINGLE, release.INDEX, *found._places.values()}
  return versions.pop()


@pytest.mark.parametrize('shards', [(100, 16), (16, 100), (16, 16), (100, 100)])
@pytest.mark.parametrize('moves', [0, 1, 2, None])
def test_an_export_replaces_one_before_it_as_a_whole(
  shards: tuple[int, int], moves: int | None, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  """Kill an export before, between and after its renames.

  The folder, or the one next to it, has all files of one version.
  """

  class Killed(BaseException):
    pass

  folder = tmp_path / 'out'
  write_release(folder, 1, shard=shards[0])
  (folder / 'onnx').mkdir()
  for other in ('README.md', 'generation_config.json', 'onnx/model.safetensors'):
    (folder / other).write_text('mine')
  move, done = files.move, []

  def move_or_die(source: files.Where, target: files.Where) -> None:
    if len(done) == moves:
      monkeypatch.setattr(files, 'remove_folder', lambda folder: None)  # nobody cleans up
      raise Killed
    done.append(move(source, target))

  with monkeypatch.context():
    monkeypatch.setattr(files, 'move', move_or_die)
    if moves in (0, 1):
      with pytest.raises(Killed):
        write_release(folder, 2, shard=shards[1])
    else:
      write_release(folder, 2, shard=shards[1])
    monkeypatch.undo()
  there = folder if folder.exists() else tmp_path / '.out.replaced'
  assert version_of(there) == (1 if moves in (0, 1) else 2)
  assert [(there / other).read_text() for other in ('README.md', 'onnx/model.safetensors')] == ['mine', 'mine']
  write_release(folder, 3, shard=shards[1])
  assert version_of(folder) == 3 and (folder / 'generation_config.json').read_text() == 'mine'
  assert [file.name for file in tmp_path.iterdir()] == ['out']


def test_an_export_goes_through_a_link_and_never_over_a_file(tmp_path: pathlib.Path) -> None:
  (tmp_path / 'real').mkdir()
  (tmp_path / 'link').symlink_to('real')
  write_release(tmp_path / 'link', 1, shard=100)
  write_release(tmp_path / 'link', 2, shard=100)
  assert (tmp_path / 'link').is_symlink() and version_of(tmp_path / 'real') == 2
  (tmp_path / 'file').write_text('mine')
  with pytest.raises(ConfigError, match='file'):
    write_release(tmp_path / 'file', 1, shard=100)
  assert (tmp_path / 'file').read_text() == 'mine'


def test_a_folder_comes_back_where_the_new_one_cannot_be_put(
  tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  (tmp_path / 'ours').mkdir()
  (tmp_path / 'ours' / 'old').write_text('old')
  move = files.move

  def fail(source: files.Where, target: files.Where) -> None:
    if str(source).endswith('.partial'):
      raise OSError(errno.EIO, 'Input/output error')
    move(source, target)

  monkeypatch.setattr(files, 'move', fail)
  with pytest.raises(ConfigError, match='Input/output error'), release.making(tmp_path / 'ours') as partial:
    release.put_in_place(partial, tmp_path / 'ours', mark='config.json')
  assert [str(file.relative_to(tmp_path)) for file in sorted(tmp_path.rglob('*'))] == ['ours', 'ours/old']
