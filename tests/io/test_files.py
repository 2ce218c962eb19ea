"""All file access goes through `files`."""

import ast
import concurrent.futures
import multiprocessing
import pathlib
import subprocess
import sys

import pytest

from plm_jax.core.errors import ConfigError
from plm_jax.io import files, run_paths, store

PACKAGE = pathlib.Path(files.__file__).parent.parent
MODULES = {'shutil', 'tempfile', 'fcntl', 'glob', 'fileinput', 'io.open', 'codecs.open'}
OF_OS = {
  'fsync', 'link', 'listdir', 'lstat', 'makedirs', 'mkdir', 'open', 'remove', 'removedirs', 'rename', 'renames',
  'replace', 'rmdir', 'scandir', 'stat', 'symlink', 'truncate', 'unlink', 'walk',
  'path.exists', 'path.getmtime', 'path.getsize', 'path.isdir', 'path.isfile', 'path.expanduser',
}  # fmt: skip
OF_A_PATH = {
  'absolute', 'exists', 'expanduser', 'glob', 'hardlink_to', 'is_dir', 'is_file', 'iterdir', 'lstat', 'mkdir', 'open',
  'read_bytes', 'read_text', 'rename', 'rglob', 'rmdir', 'stat', 'symlink_to', 'touch', 'unlink', 'walk',
  'write_bytes', 'write_text',
}  # fmt: skip
OF_A_NAME = {'name', 'stem', 'suffix'}
OF_NUMPY = {'fromfile', 'memmap'}
OWN_JSON = {
  'byte_bpe.py',
  'wordpiece.py',
  'words.py',
  'sentencepiece.py',
  'tokenizer.py',
  'vocab.py',
  'docstrings.py',
  'probe.py',
}  # read what they wrote


def modules_of(tree: ast.Module) -> set[str]:
  """Return the names of modules in a file, whose methods are functions."""
  found = set()
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      found |= {(alias.asname or alias.name).split('.')[0] for alias in node.names}
    elif isinstance(node, ast.Assign) and ast.unparse(node.value).startswith('build.import_file('):
      found |= {ast.unparse(target) for target in node.targets}
    elif isinstance(node, ast.ImportFrom) and (node.module or '').split('.')[0] == 'plm_jax':
      folder = PACKAGE.parent.joinpath(*node.module.split('.'))
      found |= {
        alias.asname or alias.name
        for alias in node.names
        if (folder / f'{alias.name}.py').exists() or (folder / alias.name).is_dir()
      }
  return found


def forbidden(call: ast.Call, modules: set[str]) -> str | None:
  """Return the replacement of a forbidden call, else None."""
  name = ast.unparse(call.func)
  first = ast.unparse(call.args[0]) if call.args else ''
  if name == 'open':
    return 'files.open'
  if name in ('Path', 'pathlib.Path') and first != '__file__':
    return 'files.path, since Path takes a slash from an address'
  module, _, function = name.partition('.')
  if module == 'os':
    return f'files, for {name}' if function in OF_OS and first != 'os.devnull' else None
  if module == 'np' and function in OF_NUMPY:
    return 'files.read_array or files.map_array'
  if not isinstance(call.func, ast.Attribute) or (module in modules and '.' not in function):
    return None
  if name.endswith('].open'):  # of a plug-in, found in a table by its name
    return None
  method = call.func.attr
  path_replaces = method == 'replace' and len(call.args) == 1 and not call.keywords  # of a string it takes two
  return f'files, for .{method}()' if method in OF_A_PATH or path_replaces else None


def violations(source: str) -> list[str]:
  """List the lines that access files directly."""
  tree = ast.parse(source)
  modules = modules_of(tree)
  own = {statement.name for statement in tree.body if isinstance(statement, ast.FunctionDef)}  # `open` of a module
  found = []
  parts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in OF_A_NAME]
  for node in ast.walk(tree):
    if any(node is part for part in parts):  # Path(name).suffix opens nothing
      continue
    of_own = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in own
    if isinstance(node, ast.Call) and not of_own and (instead := forbidden(node, modules)):
      found.append(f'{node.lineno}: use {instead}')
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    if isinstance(node, ast.ImportFrom):
      names = [f'{node.module}.{alias.name}' for alias in node.names] + [str(node.module)]
    found += [f'{node.lineno}: use files instead of {name}' for name in names if name in MODULES]
    if isinstance(node, ast.ImportFrom) and node.module in ('os', 'os.path'):
      found += [f'{node.lineno}: import os, not its {alias.name}' for alias in node.names if alias.name != 'PathLike']
  return found


@pytest.mark.parametrize(
  'file',
  sorted({*PACKAGE.rglob('*.py')} - {PACKAGE / 'io' / name for name in ('files.py', 'store.py', 'object_store.py')}),
  ids=lambda file: file.relative_to(PACKAGE).as_posix(),
)
def test_no_file_goes_around_the_door(file: pathlib.Path) -> None:
  assert not violations(file.read_text())
  if file.name not in OWN_JSON:
    others = file.read_text().replace('json.loads(json.dumps(', '')  # makes plain data of a value
    assert 'json.load' not in others, 'use files.parse_json, which refuses what is too deep'


@pytest.mark.parametrize(
  'source',
  [
    "open('x')",
    'import shutil',
    'from tempfile import mkdtemp',
    'from os import rename',
    "os.makedirs('x')",
    "os.path.exists('x')",
    'path.read_text()',
    "(folder / 'x').open('rb')",
    'self.file.exists()',
    'source.replace(target)',
    'folder.absolute()',
    'Path(workdir)',
    'np.memmap(file)',
  ],
)
def test_going_around_is_found(source: str) -> None:
  assert len(violations(source)) == 1


def test_what_is_no_file_passes() -> None:
  source = """
from plm_jax import weights
from plm_jax.io import files
from plm_jax.text import tokenizer
import gzip, dataclasses
files.open(path); weights.open(folder); tokenizer.exists(folder); text.replace('a', 'b'); gzip.open(path)
dataclasses.replace(vocab, record=1); entry._replace(theirs=2); os.path.join('a', 'b'); os.open(os.devnull, os.O_WRONLY)
"""
  assert not violations(source)


def test_files_imports_nothing_slow() -> None:
  code = 'import sys, plm_jax.io.files; print(sorted({name.partition(".")[0] for name in sys.modules}))'
  loaded = subprocess.run([sys.executable, '-c', code], check=True, capture_output=True, text=True).stdout
  assert not {'jax', 'numpy', 'etils', 'tensorflow'} & set(ast.literal_eval(loaded))


def test_text_json_and_bytes(tmp_path: pathlib.Path) -> None:
  file = tmp_path / 'a.json'
  files.write_json(file, {'b': 1, 'a': 'é'})
  assert file.read_bytes() == '{\n  "b": 1,\n  "a": "é"\n}\n'.encode()
  assert files.read_json(file) == {'b': 1, 'a': 'é'}
  with pytest.raises(ValueError, match='JSON'):
    files.write_json(file, float('nan'))
  assert files.read_json(file) == {'b': 1, 'a': 'é'}  # as it was
  with pytest.raises(FileNotFoundError):
    files.read_json(tmp_path / 'none')
  assert files.read_json(tmp_path / 'none', default={}) == {}
  files.append(tmp_path / 'lines', 'a\n')
  files.append(tmp_path / 'lines', 'b\n')
  assert files.read_text(tmp_path / 'lines') == 'a\nb\n'
  assert files.size(tmp_path / 'lines') == 4
  for begun in ('', 'a\n', 'a\ntor'):
    files.write_text(tmp_path / 'torn', begun)
    files.append_line(tmp_path / 'torn', 'whole')
    assert files.read_text(tmp_path / 'torn').splitlines() == [*begun.splitlines(), 'whole']
  assert files.modified_ns(tmp_path / 'lines') > 0


def test_a_write_that_fails_changes_nothing(tmp_path: pathlib.Path) -> None:
  files.write_text(tmp_path / 'a', 'old')
  with pytest.raises(RuntimeError), files.replacing(tmp_path / 'a') as temporary:
    temporary.write_text('half')
    raise RuntimeError
  assert files.read_text(tmp_path / 'a') == 'old'
  assert [found.name for found in files.listing(tmp_path)] == ['a']


def test_many_threads_write_one_file(tmp_path: pathlib.Path) -> None:  # each removes what it thinks was left behind
  with concurrent.futures.ThreadPoolExecutor(16) as pool:
    list(pool.map(lambda _: files.write_text(tmp_path / 'a', 'whole'), range(400)))
  assert [path.name for path in tmp_path.iterdir()] == ['a'] and (tmp_path / 'a').read_text() == 'whole'


def test_parts_of_files(tmp_path: pathlib.Path) -> None:
  file = tmp_path / 'numbers'
  with files.open(file, 'wb') as stream:
    stream.write(bytes(range(8)))
    files.flush_to_disk(stream)
  with files.open(file, 'r+b') as stream:
    stream.seek(6)
    stream.truncate()
  assert files.read_array(file, 'u1').tolist() == [0, 1, 2, 3, 4, 5]
  assert files.read_array(file, '<u2', count=1, offset=2).tolist() == [0x0302]
  assert files.map_array(file, 'u1')[4] == 4


def test_folders(tmp_path: pathlib.Path) -> None:
  files.make_folder(tmp_path / 'a' / 'b')
  files.make_folder(tmp_path / 'a' / 'b')
  files.write_text(tmp_path / 'a' / 'b' / 'one.txt', '1')
  files.copy(tmp_path / 'a' / 'b' / 'one.txt', tmp_path / 'a' / 'two.txt')
  assert files.is_folder(tmp_path / 'a') and not files.is_file(tmp_path / 'a') and files.exists(tmp_path / 'a')
  assert [found.name for found in files.listing(tmp_path / 'a', '*.txt')] == ['two.txt']
  assert files.listing(tmp_path / 'none') == []
  assert [found.name for found in files.files_below(tmp_path)] == ['one.txt', 'two.txt']
  files.move(tmp_path / 'a' / 'b', tmp_path / 'c')
  assert sorted(next(iter(files.walk(tmp_path)))[1]) == ['a', 'c']
  files.remove(tmp_path / 'a' / 'two.txt')
  files.remove(tmp_path / 'a' / 'two.txt')
  files.remove_folder(tmp_path / 'c')
  files.remove_folder(tmp_path / 'c')
  assert files.files_below(tmp_path) == []


def try_lock(file: pathlib.Path, answer: 'multiprocessing.Queue[str]') -> None:
  try:
    with files.locked(file, doing='testing', wait=False):
      answer.put('held')
  except BlockingIOError:
    answer.put('refused')


def test_lock_between_processes(tmp_path: pathlib.Path) -> None:
  context = multiprocessing.get_context('spawn')
  answer: multiprocessing.Queue[str] = context.Queue()

  def ask() -> str:
    process = context.Process(target=try_lock, args=(tmp_path / 'folder' / 'lock', answer))
    process.start()
    process.join()
    return answer.get(timeout=30)

  with files.locked(tmp_path / 'folder' / 'lock', doing='testing'):
    assert ask() == 'refused'
  assert ask() == 'held'


def test_a_path_as_a_user_writes_it() -> None:  # addresses: test_object_store.py
  with pytest.raises(ConfigError, match='ftp://bucket/run'):
    files.path('ftp://bucket/run')
  assert files.path('~/x') == pathlib.Path.home() / 'x'


def test_run_folder_names_every_file_once(tmp_path: pathlib.Path) -> None:
  run = run_paths.RunFolder.at(str(tmp_path))
  names = [name for name, value in vars(run_paths.RunFolder).items() if isinstance(value, property)]
  assert len({getattr(run, name) for name in names}) == len(names)
  assert run.step(30) == tmp_path / 'checkpoints' / '30'
  assert run.config == tmp_path / 'config.json'


# Places of results ---------------------------------------------------------------------------------------------------


def test_a_place_that_cannot_be_written_is_told_first(tmp_path):
  (tmp_path / 'file').write_text('')
  run_paths.check_new_folder(tmp_path / 'new' / 'one', name='--out')
  run_paths.check_place(tmp_path / 'table.csv', name='--out')
  assert [one.name for one in tmp_path.iterdir()] == ['file'], 'nothing is left there'
  with pytest.raises(ConfigError, match=r'--out=.*/file/one.*\bfile is a file'):
    run_paths.check_new_folder(tmp_path / 'file' / 'one', name='--out')
  with pytest.raises(ConfigError, match=r'--out=.*/file\b.*file is a file'):
    run_paths.check_new_folder(tmp_path / 'file', name='--out')


@pytest.mark.skipif(not pathlib.Path('/proc/self').exists(), reason='no read-only folder')
def test_a_folder_that_nobody_can_write_to_is_told_first():
  for check, place in ((run_paths.check_new_folder, '/proc/new'), (run_paths.check_place, '/proc/table.csv')):
    with pytest.raises(ConfigError, match=r'--out.* cannot be written'):
      check(place, name='--out')


def test_a_study_has_a_folder_of_its_own(tmp_path):
  run_paths.check_no_run(tmp_path, name='--workdir')
  (tmp_path / 'config.json').write_text('{}')
  with pytest.raises(ConfigError, match=r'--workdir=.*config\.json'):
    run_paths.check_no_run(tmp_path, name='--workdir')


def test_sizes_leave_out_a_file_that_another_process_removes(tmp_path, monkeypatch):
  (tmp_path / 'kept').write_bytes(b'four')
  there = [tmp_path / 'gone.tmp', tmp_path / 'kept']  # listed, and removed before its size is read
  monkeypatch.setattr(store.LocalStore, 'files_below', lambda self, folder: there)
  assert files.sizes_below(tmp_path) == {'kept': 4}
