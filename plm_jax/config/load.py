"""Configs as plain data: reading and checking them.

A config is a Python file with `get_config(arg='')`, or the `config.json` of a run, which is read as data and executes
nothing. `resolve` checks it and fills in every default, from signatures that are read from source. A mistake ends with
exit code 2 and one message before jax is loaded. `schema.py` lists the keys of a config.
"""

import contextlib
import importlib.util
import os
import pathlib
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from plm_jax.config import batch_keys, blocks, consistency, earlier, quick
from plm_jax.config.signatures import experiment_files
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.io import checksums, files, run_paths


def load(target: str) -> dict[str, Any]:
  """Load the config that `--config` names, without defaults.

  Raises ConfigError: no such file, or a file that is no config.

  Args:
    target: 'file.py', 'file.py:argument', 'config.json', or a run folder that holds one. With the word `quick` in the
      argument, every block takes the `QUICK` of its file (see `quick.py`).
  """
  name, _, argument = target.partition('.py:')
  path = files.path(f'{name}.py' if '.py:' in target else target)
  path = run_paths.RunFolder(path).config if files.is_folder(path) else path
  if not files.is_file(path):
    known = [os.path.relpath(str(file)) for file in experiment_files()]
    raise ConfigError(
      f'--config={target}: there is no file {path}.{errors.suggest(str(path), known)} --list shows every config.'
    )
  if path.suffix == '.json':
    return _read_json(path)
  if path.suffix != '.py':
    raise ConfigError(f'--config={target}: a config is a .py file or the config.json of a run.')
  config = _read_python(files.followed(path), argument)
  return blocks.plain(quick.shrink(config), 'config') if 'quick' in argument.split(',') else config


def resolve(config: Mapping[str, Any]) -> dict[str, Any]:
  """Check a config and fill in every default, as plain data.

  Raises ConfigError: an unknown, missing or wrongly typed key, or keys that contradict each other.
  """
  values = blocks.complete(blocks.WHOLE, blocks.with_inherited(blocks.plain(config, 'config')), 'config')
  consistency.check(values)
  batch_keys.check(values)
  return values


def _read_json(path: pathlib.Path) -> dict[str, Any]:
  try:
    value = checksums.read_json(path)  # that of a run says what it trained; a copy in another folder may be edited
  except ValueError as error:
    raise ConfigError(f'{path}: not JSON: {error}.') from None
  if not isinstance(value, dict):
    raise ConfigError(f'{path}: a config is an object, not {type(value).__name__}.')
  return earlier.current(value)


def _read_python(path: pathlib.Path, argument: str) -> dict[str, Any]:
  config = call(path, lambda module: module.get_config(argument))
  if not isinstance(config, Mapping):
    fix = 'does it end with `return`?' if config is None else 'return a dict or an ml_collections.ConfigDict.'
    raise ConfigError(f'{path}: get_config returned {type(config).__name__}, and a config has keys: {fix}')
  return blocks.plain(config, 'config')


def call(path: pathlib.Path, ask: Callable[[ModuleType], Any]) -> Any:
  """Call a function of a config file; a ConfigDict becomes plain data.

  `ask` calls the function. Raises ConfigError: whatever the file raises, with the place.
  """
  with _importable(path):
    spec = importlib.util.spec_from_file_location(f'config_{path.stem}', path)
    assert spec is not None and spec.loader is not None  # a .py file has both
    module = importlib.util.module_from_spec(spec)
    try:
      spec.loader.exec_module(module)
      value = ask(module)
      if not isinstance(value, Mapping) and (to_dict := getattr(value, 'to_dict', None)):
        value = to_dict()
    except (Exception, SystemExit) as error:  # whatever the user's file raises
      raise ConfigError(_where(error, path)) from error
  return value


@contextlib.contextmanager
def _importable(path: pathlib.Path) -> Iterator[None]:
  """Let a config file import `experiments.common` from any directory."""
  root = next((parent for parent in path.parents if files.is_folder(parent / 'experiments')), path.parent)
  others = {name: module for name, module in sys.modules.items() if name.partition('.')[0] == 'experiments'}
  for name in others:
    del sys.modules[name]
  sys.path.insert(0, str(root))
  try:
    yield
  finally:
    sys.path.remove(str(root))
    for name in [name for name in sys.modules if name.partition('.')[0] == 'experiments']:
      del sys.modules[name]
    sys.modules.update(others)


def _where(error: BaseException, path: pathlib.Path) -> str:
  """Format an exception of a config file with its line there."""
  if isinstance(error, SyntaxError):
    return f'{error.filename}, line {error.lineno}: {error.msg}.'
  lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
  place = f'{path}, line {lines[-1]}' if lines else str(path)
  kind = '' if isinstance(error, ValueError) else f'{type(error).__name__}: '
  return f'{place}: {kind}{error}'
