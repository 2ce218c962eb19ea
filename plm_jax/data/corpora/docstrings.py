"""Documents from the docstrings of installed packages, read with `ast`: nothing is imported or run.

A package is a name, its version and an explicit list of files: the standard library by walking its folder, others by
the record of pip. Other installed packages therefore have no influence.
"""

import ast
import concurrent.futures
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import re
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from plm_jax.data.corpora import markup
from plm_jax.io import files

log = logging.getLogger(__name__)

STANDARD_LIBRARY = 'python'

# Folders with tests, vendored packages or generated code.
SKIPPED_FOLDERS = frozenset(
  [
    *('test', 'tests', '_tests', 'testdata', 'idlelib', 'lib2to3', 'turtledemo', 'ensurepip', 'lib-dynload'),
    *('site-packages', 'dist-packages', '__pycache__', 'pydoc_data', 'encodings'),
    *('_vendor', 'vendor', 'vendored', 'extern', 'externals', 'third_party', '_external'),
    *('array_api_compat', 'array_api_extra'),
  ]
)
SKIPPED_FILES = re.compile(r'(conftest|sitecustomize|usercustomize|test_.*|.*_test)\.py$')

_BATCH = 256  # files per interpreter


class Package(NamedTuple):
  """A package to read."""

  name: str  # name of the distribution for pip; 'python' is the standard library
  paths: tuple[str, ...]  # files and folders, relative to the standard library or to site-packages


class Document(NamedTuple):
  """One docstring as prose."""

  package: str  # name of the distribution
  name: str  # dotted path of the module, class or function
  text: str  # paragraphs with blank lines between them
  summary: str  # the first paragraph if it is a plain sentence, else ''
  parameters: tuple[markup.Parameter, ...]  # the documented arguments


def version(package: Package) -> str:
  """Return the installed version, or raise ModuleNotFoundError."""
  if package.name == STANDARD_LIBRARY:
    return platform.python_version()
  return _distribution(package.name).version


def fingerprint(packages: Sequence[Package]) -> str:
  """Compute the digest of names, paths and versions of packages, in hex."""
  versions = sorted((package.name, version(package), package.paths) for package in packages)
  return hashlib.sha256(repr(versions).encode()).hexdigest()


def python_files(package: Package) -> list[tuple[str, str]]:
  """List sorted (path inside the installation, absolute path), or raise ModuleNotFoundError."""
  if package.name == STANDARD_LIBRARY:
    root = sysconfig.get_path('stdlib')
    paths = [(path, os.path.join(root, path)) for top in package.paths for path in _walk(root, top)]
  else:
    distribution = _distribution(package.name)
    if distribution.files is None:
      fix = f'pip install --force-reinstall {package.name}=={distribution.version}'
      raise ModuleNotFoundError(f'{package.name} has no record of its files: {fix}')
    paths = [(str(path), str(distribution.locate_file(path))) for path in distribution.files]
  selected = [(path, absolute) for path, absolute in paths if _wanted(path, package.paths)]
  for top in package.paths:
    if not any(path == top or top == '.' or path.startswith(f'{top}/') for path, _ in selected):
      raise ModuleNotFoundError(f'{package.name} {version(package)} has no Python file in {top!r}')
  return sorted(selected)


def extract(
  packages: Sequence[Package], *, processes: int = 1, progress: Callable[[int, int], None] = lambda done, total: None
) -> list[Document]:
  """Read every docstring with prose, ordered by package, file and line.

  `processes` is the number of interpreters; the files are read in this one if no other can be started. `progress` is
  called with the number of files done and their total.
  """
  jobs = [(package.name, *names) for package in packages for names in python_files(package)]
  batches = [jobs[start : start + _BATCH] for start in range(0, len(jobs), _BATCH)]
  extracted: list[Document] = []
  done = 0
  threads = concurrent.futures.ThreadPoolExecutor(processes)
  try:
    for batch, documents in zip(batches, threads.map(_read_apart if processes > 1 else _read, batches), strict=True):
      extracted += documents
      done += len(batch)
      progress(done, len(jobs))
  finally:
    threads.shutdown(wait=False, cancel_futures=True)
  return extracted


def _read_apart(jobs: Sequence[tuple[str, str, str]]) -> list[Document]:
  """Read files in a new interpreter.

  Not a process pool: a fork of a process in which JAX runs threads may never return, and a spawned worker would first
  run the script of the caller again.
  """
  command = [sys.executable, '-m', __name__]
  environment = {**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path), 'PYTHONHASHSEED': '0'}
  try:
    # A new session: Ctrl-C goes to this process only, which starts no further ones.
    answer = subprocess.run(
      command,
      input=json.dumps(jobs).encode(),
      stdout=subprocess.PIPE,
      env=environment,
      start_new_session=True,
      check=True,
    )
  except (OSError, subprocess.CalledProcessError) as error:
    log.warning('Reading docstrings in this process: no other can be started (%s).', error)
    return _read(jobs)
  return [
    Document(package, name, text, summary, tuple(map(markup.Parameter._make, parameters)))
    for package, name, text, summary, parameters in json.loads(answer.stdout)
  ]


def _read(jobs: Sequence[tuple[str, str, str]]) -> list[Document]:
  return [document for job in jobs for document in _read_file(*job)]


def docstrings(tree: ast.Module, module: str) -> Iterator[tuple[str, str]]:
  """Yield names and docstrings of modules, classes, functions and `add_newdoc` calls."""
  pending: list[tuple[str, ast.AST]] = [(module, tree)]
  while pending:
    name, node = pending.pop()
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
      text = ast.get_docstring(node, clean=False)
      if text:
        yield name, text
    elif isinstance(node, ast.Call):
      yield from _added(node, module)
    inner: list[tuple[str, ast.AST]] = []
    for child in ast.iter_child_nodes(node):
      if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        inner.append((f'{name}.{child.name}', child))
      elif isinstance(child, ast.stmt) or (isinstance(child, ast.Call) and isinstance(node, ast.Expr)):
        inner.append((name, child))
    pending += reversed(inner)


def _added(call: ast.Call, module: str) -> Iterator[tuple[str, str]]:
  """Yield docstrings of compiled functions that add_newdoc(place, name, text) attaches."""
  if not (isinstance(call.func, ast.Name) and call.func.id == 'add_newdoc' and call.args):
    return
  try:
    *target, texts = [ast.literal_eval(argument) for argument in call.args]
  except ValueError:  # built at run time
    return
  name = '.'.join(map(str, target)) if len(target) > 1 else '.'.join([module, *map(str, target)])
  for entry in texts if isinstance(texts, list) else [texts]:
    suffix, text = entry if isinstance(entry, tuple) else ('', entry)
    if isinstance(text, str):
      yield f'{name}.{suffix}' if suffix else name, text


def _read_file(package: str, path: str, absolute: str) -> list[Document]:
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')  # invalid escapes in strings of packages
      tree = ast.parse(files.read_bytes(absolute))
  except (SyntaxError, ValueError):  # a template, or code for another Python
    return []
  module = re.sub(r'(/__init__)?\.pyi?$', '', path).replace('/', '.')
  documents = []
  for name, docstring in docstrings(tree, module):
    prose = markup.read(docstring)
    text = '\n\n'.join(prose.paragraphs)
    if text:
      documents.append(Document(package, name, text, prose.summary, prose.parameters))
  return documents


def _distribution(name: str) -> importlib.metadata.Distribution:
  try:
    return importlib.metadata.distribution(name)
  except importlib.metadata.PackageNotFoundError as error:
    message = f'{name} is not installed but its docstrings are part of the corpus: pip install {name}'
    raise ModuleNotFoundError(message) from error


def _walk(root: str, top: str) -> Iterator[str]:
  start = os.path.normpath(os.path.join(root, top))
  if files.is_file(start):
    yield top
  for folder, folders, names in files.walk(start):
    folders[:] = sorted(set(folders) - SKIPPED_FOLDERS)
    for name in names:
      yield os.path.relpath(os.path.join(folder, name), root).replace(os.sep, '/')


def _wanted(path: str, tops: tuple[str, ...]) -> bool:
  *folders, name = path.split('/')
  return (
    (name.endswith('.py') or path in tops)  # a stub is read only if it is listed by name
    and not SKIPPED_FILES.match(name)
    and SKIPPED_FOLDERS.isdisjoint(folders)
    and not any(folder.startswith('config-') for folder in folders)
    and any(top == '.' or path == top or path.startswith(f'{top}/') for top in tops)
  )


if __name__ == '__main__':  # one batch of `_read_apart`
  json.dump(_read(json.load(sys.stdin)), sys.stdout)
