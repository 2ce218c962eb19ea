"""Object stores through `files` and `downloads`: a store in memory that renames nothing and may fail at any write."""

import contextlib
import errno
import hashlib
import json
import pathlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from plm_jax import checkpoint
from plm_jax.checkpoint import saved_steps
from plm_jax.commands import train
from plm_jax.core.errors import ConfigError, RunError
from plm_jax.data.corpora import sources
from plm_jax.data.rows import store
from plm_jax.io import checksums, downloads, files, object_store, run_paths
from plm_jax.runs import metrics, run_folder
from plm_jax.training import loop
from plm_jax.training.before import prepare
from plm_jax.training.hosts import doctor
from tests import runs


class Killed(BaseException):
  """A substitute for SIGKILL that nothing catches."""


class Bucket(MemoryFileSystem):
  """Objects in memory, as in a store: no rename, atomic writes, the MD5 of each."""

  protocol = ('gs', 'gcs')
  store: dict[str, Any] = {}
  pseudo_dirs = ['']
  left = -1  # writes and removals until the process dies
  reads = 0
  asked: list[tuple[int | None, int | None]] = []

  @classmethod
  def _strip_protocol(cls, path: Any) -> Any:
    return '/' + str(path).removeprefix('gs://').strip('/')

  def mv(self, *arguments: Any, **keywords: Any) -> None:
    raise NotImplementedError('a store renames nothing')

  rename = move = mv

  def _count(self) -> None:
    if Bucket.left == 0:
      raise Killed
    Bucket.left -= 1

  def info(self, path: str, **keywords: Any) -> dict[str, Any]:
    found = super().info(path, **keywords)
    return self._told({**found, 'name': found['name'].strip('/')})

  def _told(self, found: dict[str, Any]) -> dict[str, Any]:
    if found['type'] == 'file':
      content = self.store[f'/{found["name"]}'].getvalue()
      found |= {'ETag': f'"{hashlib.md5(content).hexdigest()}"'}
    return found

  def ls(self, path: str, detail: bool = True, **keywords: Any) -> Any:
    found = [self._told({**one, 'name': one['name'].strip('/')}) for one in super().ls(path, detail=True, **keywords)]
    return found if detail else [one['name'] for one in found]

  def find(self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **k: Any) -> Any:
    inside = f'{self._strip_protocol(path)}/'
    found = {name.strip('/'): self.info(name) for name in sorted(self.store) if name.startswith(inside)}
    return found if detail else list(found)

  def isdir(self, path: str) -> bool:
    return any(name.startswith(f'{self._strip_protocol(path)}/') for name in self.store)

  def pipe_file(self, path: str, value: bytes, mode: str = 'overwrite', **keywords: Any) -> None:
    if mode == 'create' and self._strip_protocol(path) in self.store:
      raise FileExistsError(path)
    self._count()
    super().pipe_file(path, value, mode='overwrite')

  def put_file(self, lpath: str, rpath: str, **keywords: Any) -> None:
    self.pipe_file(rpath, pathlib.Path(lpath).read_bytes())

  def cp_file(self, path1: str, path2: str, **keywords: Any) -> None:
    self.pipe_file(path2, self.cat_file(path1))

  def rm_file(self, path: str) -> None:
    self._count()
    if self.store.pop(self._strip_protocol(path), None) is None:
      raise FileNotFoundError(path)

  def cat_file(self, path: str, start: int | None = None, end: int | None = None, **keywords: Any) -> bytes:
    Bucket.asked.append((start, end))
    return super().cat_file(path, start=start, end=end)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
  """Provide the objects of a store at gs://."""
  known = fsspec.registry.get('gs')
  fsspec.register_implementation('gs', Bucket, clobber=True)
  monkeypatch.setattr(object_store, 'CLIENTS', {'gs': 'fsspec'})
  monkeypatch.setattr(Bucket, 'store', {})
  monkeypatch.setattr(Bucket, 'left', -1)
  monkeypatch.setattr(Bucket, 'asked', [])
  monkeypatch.setattr(object_store, '_AT_ONCE', 1)
  monkeypatch.setattr(downloads, '_AT_ONCE', 1)
  yield Bucket.store
  if known is not None:
    fsspec.register_implementation('gs', known, clobber=True)


@pytest.fixture(autouse=True)
def nothing_is_made_here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
  """Check that no test leaves a folder called 'gs:'."""
  monkeypatch.chdir(tmp_path)
  yield
  assert not [name for name in tmp_path.rglob('*') if name.name.endswith(':')]


# Addresses.


@pytest.mark.parametrize(
  ('where', 'words'),
  [
    ('az://bucket/run', 'gs://, s3://'),
    ('gs:/bucket/run', 'write gs://bucket/run'),
    ('gs://', 'gs://BUCKET/FOLDER'),
    ('GS://bucket/run', 'write gs://bucket/run'),
    ('Gs:/bucket/run', 'write gs://bucket/run'),
    ('https://host/x', 'https://.*gs://, s3://'),
  ],
)
def test_other_addresses_end_at_once(where: str, words: str) -> None:
  with pytest.raises(ConfigError, match=words):
    files.path(where)


def test_a_client_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(object_store, 'CLIENTS', {'gs': 'no_such_client'})
  with pytest.raises(ConfigError, match=r'no_such_client.*requirements/buckets\.txt'):
    run_paths.RunFolder.at('gs://bucket/run')


def test_a_path_that_lost_a_slash_writes_nothing(tmp_path: pathlib.Path) -> None:
  with pytest.raises(ConfigError, match=r'write (gs|s3)://bucket/run'):
    files.write_text(pathlib.Path('gs://bucket/run') / 'x', 'text')
  with pytest.raises(ConfigError, match=r'write (gs|s3)://bucket/run'):
    files.make_folder(pathlib.Path('s3://bucket/run'))


def test_the_cache_is_of_this_machine(bucket: dict[str, Any]) -> None:
  with pytest.raises(ConfigError, match=r'data\.cache=gs://bucket/cache'):
    files.local_path('gs://bucket/cache', what='data.cache')


def test_a_path_of_this_machine_asks_no_store(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(object_store, '_client', lambda where: pytest.fail('asked'))
  files.write_text(tmp_path / 'a:b', 'x')
  assert files.read_text(tmp_path / 'a:b') == 'x'
  assert files.path('a/b') == pathlib.Path('a/b')


# What `files` does with them.


def test_whole_files(bucket: dict[str, Any]) -> None:
  root = files.path('gs://bucket/run/')
  assert str(root / 'a' / 'b.json') == 'gs://bucket/run/a/b.json'
  assert files.absolute(root) == root == files.followed(root)
  files.write_json(root / 'a' / 'b.json', {'x': 1})
  assert files.read_json(root / 'a' / 'b.json') == {'x': 1}
  assert files.read_json(root / 'none.json', default=3) == 3
  with pytest.raises(FileNotFoundError):
    files.read_text(root / 'none.json')
  files.append(root / 'lines', 'one\n')
  files.append(root / 'lines', 'two\n')
  with files.open(root / 'lines') as stream:
    assert list(stream) == ['one\n', 'two\n']
  assert files.is_file(root / 'lines') and not files.is_folder(root / 'lines')
  assert files.is_folder(root / 'a') and not files.is_file(root / 'a') and files.exists(root / 'a')
  assert not files.exists(root / 'none')
  assert files.listing(root) == [root / 'a', root / 'lines']
  assert files.listing(root, '*/*.json') == [root / 'a' / 'b.json']
  assert files.listing(root / 'none') == []
  assert files.sizes_below(root) == {'a/b.json': files.size(root / 'a' / 'b.json'), 'lines': 8}
  assert files.unused(root / 'lines') == root.with_name('run') / 'lines.1'
  assert files.is_inside(root / 'a' / 'b.json', root) and not files.is_inside(root, root / 'a')
  with pytest.raises(ValueError, match='gs://bucket/run/lines'):
    files.open(root / 'lines', 'a')
  files.remove_folder(root)
  assert not bucket


def test_a_write_that_fails_changes_nothing(bucket: dict[str, Any]) -> None:
  file = files.path('gs://bucket/x')
  files.write_text(file, 'old')
  with pytest.raises(RuntimeError), files.replacing(file) as temporary:
    temporary.write_text('new')
    raise RuntimeError
  assert files.read_text(file) == 'old'


def test_parts_of_files(bucket: dict[str, Any]) -> None:
  file = files.path('gs://bucket/x')
  files.write_bytes(file, np.arange(10, dtype=np.int32).tobytes())
  part = files.read_array(file, np.int32, count=3, offset=8)
  assert part.tolist() == [2, 3, 4] and part.flags.writeable
  assert files.read_array(file, np.int32).tolist() == list(range(10))
  with files.with_head(file, 4) as head:
    assert head.stat().st_size == 40 and head.read_bytes()[:8] == bytes(8)
  assert checksums.digest(file) == f'md5:{hashlib.md5(files.read_bytes(file)).hexdigest()}'
  assert checksums.digest(file, like='0' * 64) == files.sha256(file)


def test_a_digest_of_a_store_is_checked_on_this_machine(bucket: dict[str, Any], tmp_path: pathlib.Path) -> None:
  file = files.path('gs://bucket/x')
  files.write_text(file, 'text')
  files.copy(file, tmp_path / 'x')
  assert checksums.digest(tmp_path / 'x', like=checksums.digest(file)) == checksums.digest(file)
  assert checksums.digest(tmp_path / 'x') == files.sha256(tmp_path / 'x')


def test_errors_of_a_client_are_of_the_system(bucket: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
  def refuse(*arguments: Any, **keywords: Any) -> None:
    raise RuntimeError('no credentials')

  monkeypatch.setattr(Bucket, 'pipe_file', refuse)
  with pytest.raises(OSError, match='no credentials') as caught:
    files.write_text('gs://bucket/x', 'text')
  assert caught.value.filename == 'gs://bucket/x'


def test_sealed_files(bucket: dict[str, Any]) -> None:
  checksums.write('gs://bucket/run', {'config.json': '{}\n'})
  assert checksums.read_json('gs://bucket/run/config.json') == {}
  files.write_text('gs://bucket/run/config.json', '{"x": 1}\n')
  with pytest.raises(RunError, match=r'config\.json.*SHA256SUMS'):
    checksums.read_json('gs://bucket/run/config.json')


def test_a_store_that_does_not_answer_is_not_an_empty_one(
  bucket: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
  def refuse(*arguments: Any, **keywords: Any) -> None:
    raise RuntimeError('no answer')

  monkeypatch.setattr(Bucket, 'info', refuse)
  monkeypatch.setattr(Bucket, 'ls', refuse)
  for ask in (files.exists, files.is_file, files.is_folder, files.listing, files.size):
    with pytest.raises(OSError, match='no answer'):
      ask('gs://bucket/run')  # type: ignore[operator]


def test_keys_of_a_config_are_checked_before_anything_else(bucket: dict[str, Any], tmp_path: pathlib.Path) -> None:
  runs.settings('mlm', tmp_path, data={'path': 'gs://bucket/corpus'}, vocab={'path': 'gs://bucket/vocab'})
  runs.settings('mlm', tmp_path, data={'path': 'parallel:/folder'})
  for key, value in {'path': 'ftp://x/corpus', 'cache': 'gs://bucket/cache'}.items():
    with pytest.raises(ConfigError, match=r'ftp://|cache=gs://bucket/cache'):
      runs.settings('mlm', tmp_path, data={key: value})


def test_a_store_that_does_not_answer_damages_no_step(bucket: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
  """Check that an older step is not used instead."""
  step = files.path('gs://bucket/checkpoints/8')
  files.write_text(step / 'state' / 'a', 'a')
  saved_steps.write(step, saved_steps.Record(8, {}, {}))
  assert saved_steps.check(step).files == {'state/a': (1, checksums.digest(step / 'state' / 'a'))}

  def refuse(*arguments: Any, **keywords: Any) -> None:
    raise PermissionError(errno.EACCES, 'no rights')

  with monkeypatch.context() as patched, pytest.raises(object_store.StoreError, match='no rights'):
    patched.setattr(Bucket, 'cat_file', refuse)
    saved_steps.read(step)
  with monkeypatch.context() as patched, pytest.raises(RunError, match=r'gs://bucket/checkpoints/8.*no rights'):
    patched.setattr(Bucket, 'info', refuse)
    saved_steps.check(step)
  files.write_text(step / 'state' / 'a', 'b')
  with pytest.raises(saved_steps.Damaged, match='MD5'):
    saved_steps.check(step)
  files.remove(step / 'state' / 'a')
  with pytest.raises(saved_steps.Damaged, match='state/a'):
    saved_steps.read(step)


# The order of writes, with a kill at each.


def deaths(bucket: dict[str, Any], action: Any) -> Iterator[int]:
  """Repeat an action from the same objects, killed at each write."""
  before = dict(bucket)
  for left in range(100):
    bucket.clear()
    bucket.update(before)
    Bucket.left = left
    try:
      action()
    except Killed:
      Bucket.left = -1
      yield left
    else:
      Bucket.left = -1
      yield left
      return
  pytest.fail('it never ended')


def test_a_folder_that_is_moved_is_whole_at_one_end(bucket: dict[str, Any]) -> None:
  source, target = files.path('gs://bucket/8'), files.path('gs://bucket/aside/8')
  content = {'state/a': 'a', 'state/b': 'b', 'mark': 'm'}
  for name, text in content.items():
    files.write_text(source / name, text)

  def found(folder: pathlib.Path) -> dict[str, str]:
    return {name: files.read_text(folder / name) for name in files.sizes_below(folder)}

  kills = 0
  for _ in deaths(bucket, lambda: files.move(source, target, marks=('mark',))):
    assert any(found(folder) == content for folder in (source, target))
    for folder in (source, target):  # what has its mark is whole
      assert 'mark' not in found(folder) or found(folder) == content
    kills += 1
  assert kills > 6 and found(source) == {} and found(target) == content


def test_a_folder_that_is_sent_is_whole_or_has_no_mark(bucket: dict[str, Any], tmp_path: pathlib.Path) -> None:
  target = files.path('gs://bucket/weights')
  for name in ('mark', 'old-1', 'both'):
    files.write_text(target / name, 'old')
  files.write_text(target / 'notes', 'of another program')
  for name in ('mark', 'new-1', 'vocab/x', 'both'):
    files.make_folder((tmp_path / 'new' / name).parent)
    files.write_text(tmp_path / 'new' / name, 'new')

  def send() -> None:
    downloads.publish(tmp_path / 'new', target, mark='mark', replaced=('old-1', 'both'))

  for _ in deaths(bucket, send):
    if files.is_file(target / 'mark'):
      age = files.read_text(target / 'mark')
      names = {'old': {'mark', 'old-1', 'both'}, 'new': {'mark', 'new-1', 'vocab/x', 'both'}}[age]
      assert set(files.sizes_below(target)) == names | {'notes'}
      assert {files.read_text(target / name) for name in names} == {age}
  assert files.read_text(target / 'mark') == 'new'


def test_parameters_are_written_and_read_in_place(bucket: dict[str, Any]) -> None:
  params = {'trunk': {'kernel': np.arange(6, dtype=np.float32).reshape(2, 3)}}
  checkpoint.save_params('gs://bucket/params', params)
  found = checkpoint.open_params('gs://bucket/params')
  np.testing.assert_array_equal(found.tree('trunk')['kernel'], params['trunk']['kernel'])
  whole = dict(bucket)
  name = '/bucket/params/params.safetensors'
  files.write_bytes('gs://bucket/params/params.safetensors', whole[name].getvalue()[:-1] + b'x')
  with pytest.raises(RunError, match=r'params\.safetensors'):
    checkpoint.open_params('gs://bucket/params')


def test_orbax_is_asked_for_no_store_that_it_does_not_know(
  bucket: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr(object_store, 'CLIENTS', {'gs': 'fsspec', 's3': 'fsspec'})
  with pytest.raises(ConfigError, match=r's3://bucket/run/checkpoints.*gs://'):
    checkpoint.Checkpoints('s3://bucket/run/checkpoints', keep=1)


def test_a_run_at_an_address_without_checkpoints_is_refused_before_its_client_is_asked_for(
  monkeypatch: pytest.MonkeyPatch,
) -> None:
  monkeypatch.setattr(object_store, '_is_installed', lambda package: False)
  with pytest.raises(ConfigError, match=r's3://bucket/run.*gs://'):
    train.main(['--config=experiments/bert/base.py:quick', '--workdir=s3://bucket/run'])


# Files that grow.


def test_metrics_are_there_when_a_step_is_saved(bucket: dict[str, Any]) -> None:
  with metrics.Writer('gs://bucket/run', sinks=()) as writer:
    writer.write(1, {'loss': 2.0})
    assert '/bucket/run/metrics.jsonl' not in bucket  # not for each line
    writer.write(1, {'validation/loss': 3.0})
    writer.flush()
    assert metrics.read('gs://bucket/run') == [{'step': 1, 'loss': 2.0, 'validation/loss': 3.0}]
    writer.write(2, {'loss': 1.0})
  assert [row['loss'] for row in metrics.read('gs://bucket/run') if 'loss' in row] == [2.0, 1.0]
  with metrics.Writer('gs://bucket/run', sinks=(), resume_step=1) as writer:
    writer.write(2, {'loss': 0.5})
  assert [row['loss'] for row in metrics.read('gs://bucket/run') if 'loss' in row] == [2.0, 0.5]


def test_a_growing_file_is_sent_now_and_then(bucket: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
  now = 0.0
  monkeypatch.setattr(time, 'monotonic', lambda: now)
  mirror = downloads.Mirror('gs://bucket/log')
  sent = []
  for _ in range(200):
    files.append(mirror.file, 'line\n')
    mirror.due()
    now += 1.0
    if not sent or bucket.get('/bucket/log') is not sent[-1]:
      sent.append(bucket.get('/bucket/log'))
  assert len([one for one in sent if one]) == 3
  mirror.close()
  assert files.read_text('gs://bucket/log').count('line') == 200 and not mirror.file.exists()


def test_a_store_that_does_not_answer_ends_no_run(
  bucket: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
  monkeypatch.setattr(downloads, 'EVERY', -1.0)

  def refuse(*arguments: Any, **keywords: Any) -> None:
    raise ConnectionError('no answer')

  mirror = downloads.Mirror('gs://bucket/log')
  files.append(mirror.file, 'line\n')
  with monkeypatch.context() as patched:
    patched.setattr(Bucket, 'put_file', refuse)
    mirror.due()
    assert 'gs://bucket/log' in caplog.text
    with pytest.raises(OSError, match='no answer'):
      mirror.send()
  mirror.due()
  assert files.read_text('gs://bucket/log') == 'line\n'


# Downloads.


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(downloads, '_PIECE', 10)


def test_a_download_goes_on_where_it_stopped(
  bucket: dict[str, Any], tmp_path: pathlib.Path, small_pieces: None, monkeypatch: pytest.MonkeyPatch
) -> None:
  content = bytes(range(95))
  files.write_bytes('gs://bucket/train.txt', content)
  read, before = Bucket.cat_file, []

  def dying(self: Bucket, path: str, start: int | None = None, end: int | None = None, **keywords: Any) -> bytes:
    before.append(start)
    if start == 40:
      raise Killed
    return read(self, path, start=start, end=end, **keywords)

  with monkeypatch.context() as patched, pytest.raises(Killed):
    patched.setattr(Bucket, 'cat_file', dying)
    downloads.fetched('gs://bucket/train.txt', tmp_path)
  Bucket.asked.clear()
  file = downloads.fetched('gs://bucket/train.txt', tmp_path)
  assert before == [0, 10, 20, 30, 40] and [start for start, _ in Bucket.asked] == [40, 50, 60, 70, 80, 90]
  assert file.read_bytes() == content and file.name == 'train.txt'
  Bucket.asked.clear()
  assert downloads.fetched('gs://bucket/train.txt', tmp_path) == file and not Bucket.asked  # nothing is read again


def test_an_object_that_changed_is_copied_again(
  bucket: dict[str, Any], tmp_path: pathlib.Path, small_pieces: None, monkeypatch: pytest.MonkeyPatch
) -> None:
  files.write_text('gs://bucket/x', 'first' * 10)
  read = Bucket.cat_file

  def dying(self: Bucket, path: str, start: int | None = None, end: int | None = None, **keywords: Any) -> bytes:
    if start == 20:
      raise Killed
    return read(self, path, start=start, end=end, **keywords)

  with monkeypatch.context() as patched, pytest.raises(Killed):
    patched.setattr(Bucket, 'cat_file', dying)
    downloads.fetched('gs://bucket/x', tmp_path)
  files.write_text('gs://bucket/x', 'other' * 10)  # while half of the first is here
  assert downloads.fetched('gs://bucket/x', tmp_path).read_text() == 'other' * 10
  files.write_text('gs://bucket/x', 'third')
  assert downloads.fetched('gs://bucket/x', tmp_path).read_text() == 'third'


def test_a_damaged_copy_is_made_again(bucket: dict[str, Any], tmp_path: pathlib.Path) -> None:
  files.write_text('gs://bucket/x', 'text')
  file = downloads.fetched('gs://bucket/x', tmp_path)
  file.write_text('tent')
  assert downloads.fetched('gs://bucket/x', tmp_path).read_text() == 'text'


def test_bytes_that_are_not_those_of_the_store(
  bucket: dict[str, Any], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  files.write_text('gs://bucket/x', 'text')
  with monkeypatch.context() as patched, pytest.raises(RunError, match=r'gs://bucket/x.*MD5'):
    patched.setattr(Bucket, 'cat_file', lambda *arguments, **keywords: b'tent')
    downloads.fetched('gs://bucket/x', tmp_path)
  assert downloads.fetched('gs://bucket/x', tmp_path).read_text() == 'text'


def test_a_folder_is_copied_with_what_is_below(bucket: dict[str, Any], tmp_path: pathlib.Path) -> None:
  for name in ('a.txt', 'deep/b.txt'):
    files.write_text(f'gs://bucket/set/{name}', name)
  folder = downloads.fetched('gs://bucket/set', tmp_path)
  assert sorted(files.sizes_below(folder)) == ['a.txt', 'deep/b.txt']
  files.remove('gs://bucket/set/a.txt')
  assert sorted(files.sizes_below(downloads.fetched('gs://bucket/set', tmp_path))) == ['deep/b.txt']
  with pytest.raises(FileNotFoundError):
    downloads.fetched('gs://bucket/none', tmp_path)
  assert downloads.fetched(tmp_path / 'here', tmp_path) == tmp_path / 'here'


def test_rows_are_read_from_a_copy(bucket: dict[str, Any], tmp_path: pathlib.Path) -> None:
  files.write_text('gs://bucket/corpus/train.jsonl', ''.join(f'{json.dumps({"text": str(n)})}\n' for n in range(3)))
  files.write_text('gs://bucket/corpus/validation.txt', 'one\n\ntwo\n')
  assert sources.splits_of('gs://bucket/corpus') == ('train', 'validation')
  here = sources.open_source('gs://bucket/corpus', split='train', cache=str(tmp_path))
  assert [row['text'] for row in here] == ['0', '1', '2']
  assert not list(tmp_path.rglob('validation*'))  # only the requested split
  for side in ('en', 'de'):
    files.write_text(f'gs://bucket/pairs/train.{side}', f'{side}\n')
  assert sources.open_source('parallel:gs://bucket/pairs', cache=str(tmp_path))[0] == {'de': 'de', 'en': 'en'}


def test_a_host_takes_a_token_store_and_trains(
  bucket: dict[str, Any],
  data: pathlib.Path,
  tmp_path: pathlib.Path,
  small_pieces: None,
  monkeypatch: pytest.MonkeyPatch,
) -> None:
  """Kill the download with an empty cache.

  Nothing is tokenised, and no byte is read twice.
  """
  for file in files.files_below(data / 'vocab'):
    files.write_bytes(f'gs://bucket/vocab/{file.relative_to(data / "vocab")}', file.read_bytes())

  def settings(host: str) -> dict[str, Any]:
    cache = {'cache': str(tmp_path / host)}
    return runs.settings(
      'mlm', data, vocab={'path': 'gs://bucket/vocab'}, data=cache,
      eval={'validation': {'data': {'split': 'validation', **cache}}},
    )  # fmt: skip

  def prepared(host: str) -> tuple[set[str], dict[str, str]]:
    found = prepare.prepare(settings(host), shared='gs://bucket/prepared')
    return {line.state for line in found.lines}, found.facts

  states, facts = prepared('first')
  assert states == {'made'}
  read, died_at = Bucket.cat_file, 500

  def dying(self: Bucket, path: str, start: int | None = None, end: int | None = None, **keywords: Any) -> bytes:
    if path.endswith('tokens.bin') and start == died_at:
      raise Killed
    return read(self, path, start=start, end=end, **keywords)

  with monkeypatch.context() as patched, pytest.raises(Killed):
    patched.setattr(Bucket, 'cat_file', dying)
    prepared('second')
  [part] = (tmp_path / 'second' / 'tokens').rglob('*.part')
  assert part.name == 'tokens.bin.part' and not list((tmp_path / 'second' / 'tokens').rglob('manifest.json'))
  asked: list[tuple[str, int | None]] = []

  def noted(self: Bucket, path: str, start: int | None = None, end: int | None = None, **keywords: Any) -> bytes:
    asked.append((path, start))
    return read(self, path, start=start, end=end, **keywords)

  monkeypatch.delattr(store, '_encode')  # nothing is tokenised from here on
  with monkeypatch.context() as patched:
    patched.setattr(Bucket, 'cat_file', noted)
    assert prepared('second') == ({'taken'}, facts)
  cut_off = part.parent.name
  begun = [start for path, start in asked if path.endswith(f'{cut_off}/tokens.bin') and start is not None]
  assert min(begun) == died_at and len(set(begun)) == len(begun)
  for file in (tmp_path / 'first' / 'tokens').rglob('*.bin'):
    assert (tmp_path / 'second' / file.relative_to(tmp_path / 'first')).read_bytes() == file.read_bytes()
  before = runs.snapshot(tmp_path / 'second')
  loop.train(settings('second'), tmp_path / 'run', stop_at=1)
  assert runs.snapshot(tmp_path / 'second') == before
  kept = json.loads((tmp_path / 'run' / 'data.json').read_text())
  assert {name: kept[name] for name in facts} == facts


# Locks.


def test_one_process_trains_in_a_folder(bucket: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(object_store, 'BEAT', 0.05)
  monkeypatch.setattr(object_store, 'LEASE', 5.0)
  folder = run_paths.RunFolder.at('gs://bucket/run')
  with run_folder.claim(folder, main=True):
    time.sleep(0.2)
    with pytest.raises(ConfigError, match='gs://bucket/run'), run_folder.claim(folder, main=True):
      pass
    with run_folder.claim(folder, main=False):
      pass
  assert not bucket


def test_the_doctor_tries_the_folder_of_a_run(bucket: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
  assert doctor._folder('gs://bucket/run').problem == ''
  assert not bucket, 'it removes what it wrote'

  def refuse(*arguments: Any, **keywords: Any) -> None:
    raise PermissionError(errno.EACCES, 'no right to write')

  monkeypatch.setattr(Bucket, 'pipe_file', refuse)
  told = doctor._folder('gs://bucket/run').problem
  assert told.startswith('gs://bucket/run') and 'no right to write' in told


def test_the_lock_of_a_dead_process_is_taken(bucket: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(object_store, 'LEASE', 0.3)
  monkeypatch.setattr(object_store, 'BEAT', 0.05)
  lock = files.path('gs://bucket/run/.lock')
  files.write_json(lock, {'host': 'elsewhere', 'pid': 1, 'token': 'x', 'beat': 3})
  began = time.monotonic()
  with files.locked(lock, doing='testing', wait=False):
    assert time.monotonic() - began >= 0.3
    assert files.read_json(lock)['doing'] == 'testing'
  assert not bucket


def test_the_lock_of_a_process_of_this_machine_that_is_gone_is_taken_at_once(bucket: dict[str, Any]) -> None:
  lock = files.path('gs://bucket/run/.lock')
  files.write_json(lock, {'host': object_store.socket.gethostname(), 'pid': 2**22 + 1, 'token': 'x', 'beat': 3})
  began = time.monotonic()
  with files.locked(lock, doing='testing', wait=False):
    assert time.monotonic() - began < 5


def test_a_lock_is_waited_for(bucket: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(object_store, 'BEAT', 0.05)
  lock, order = files.path('gs://bucket/.lock'), []

  def second() -> None:
    with files.locked(lock, doing='coming second'):
      order.append('second')

  with contextlib.ExitStack() as stack:
    stack.enter_context(files.locked(lock, doing='testing'))
    thread = threading.Thread(target=second)
    thread.start()
    time.sleep(0.3)
    order.append('first')
  thread.join(10)
  assert order == ['first', 'second']
