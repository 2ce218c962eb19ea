"""Configs as plain data: reading them, the command line that changes them, and comparing two of them.

A config is a Python file with `get_config(arg='')` or the `config.json` of a run, which is read as data and executes
nothing. `resolve` checks it and fills every default in, from signatures that are read and not imported: a mistake ends
with exit code 2 and one message before jax is loaded. What stands in a config is described in `schema.py`.
"""

import argparse
import contextlib
import difflib
import importlib.util
import json
import os
import pathlib
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from plm_jax import checks, overrides, schema, signatures
from plm_jax.checks import ConfigError, RunError

RESUMABLE = ('execution', 'sharding', 'log_every', 'eval_every', 'save_every', 'keep', 'log')
FAILED, WRONG_USAGE, KILLED = 1, 2, 130


# Reading -------------------------------------------------------------------------------------------------------------


def load(target: str) -> dict[str, Any]:
  """The config that `--config` names, as it is written, without defaults.

  Args:
    target: 'file.py', 'file.py:argument', 'config.json', or a run folder that holds one.

  Raises:
    ConfigError: no such file, or a file that is no config.
  """
  name, _, argument = target.partition('.py:')
  path = pathlib.Path(f'{name}.py' if '.py:' in target else target).expanduser()
  path = path / 'config.json' if path.is_dir() else path
  if not path.is_file():
    known = [os.path.relpath(str(file)) for file in experiment_files()]
    raise ConfigError(
      f'--config={target}: there is no file {path}.{checks.suggest(str(path), known)} --list shows every config.'
    )
  if path.suffix == '.json':
    return _read_json(path)
  if path.suffix != '.py':
    raise ConfigError(f'--config={target}: a config is a .py file or the config.json of a run.')
  return _read_python(path.resolve(), argument)


def experiment_files() -> list[pathlib.Path]:
  """The config files that come with the package, sorted."""
  files = sorted((signatures.ROOT.parent / 'experiments').rglob('*.py'))
  return [file for file in files if file.name != 'common.py' and 'tables' not in file.parts]


def resolve(config: Mapping[str, Any]) -> dict[str, Any]:
  """A config as plain data with every default of every block filled in; the same for a config that is complete.

  Raises:
    ConfigError: an unknown, missing or wrongly typed key, or keys that contradict each other.
  """
  values = schema.complete('schema:Run', schema.with_inherited(schema.plain(config, 'config')), 'config')
  _check_exactly_one(values, 'objective', 'adapter')
  _check_exactly_one(values, 'steps', 'epochs')
  for key in ('steps', 'epochs', 'accumulate', 'log_every', 'eval_every', 'save_every', 'keep', 'early_stop'):
    if values[key] is not None and values[key] <= 0:
      raise ConfigError(f'config.{key}={values[key]}: must be above 0.')
  for name, evaluation in values['eval'].items():
    for key in ('every', 'units'):
      if evaluation[key] is not None and evaluation[key] <= 0:
        raise ConfigError(f'config.eval.{name}.{key}={evaluation[key]}: must be above 0.')
  if values['best'] is not None:
    name = values['best'][0].partition('/')[0]
    checks.check_choice('config.best', 'evaluation', name, list(values['eval']), place='config.eval')
  if values['early_stop'] is not None and values['best'] is None:
    raise ConfigError("config.early_stop: needs config.best, as in ('validation/loss', 'min'), to know what is better.")
  return values


def _check_exactly_one(values: Mapping[str, Any], first: str, second: str) -> None:
  given = [key for key in (first, second) if values[key] is not None]
  if len(given) != 1:
    raise ConfigError(f'config: give {first} or {second}; {"both are" if given else "neither is"} there.')


def _read_json(path: pathlib.Path) -> dict[str, Any]:
  try:
    value = json.loads(path.read_text(encoding='utf-8'))
  except ValueError as error:
    raise ConfigError(f'{path}: not JSON: {error}.') from None
  if not isinstance(value, dict):
    raise ConfigError(f'{path}: a config is an object, not {type(value).__name__}.')
  return value


def _read_python(path: pathlib.Path, argument: str) -> dict[str, Any]:
  with _importable(path):
    spec = importlib.util.spec_from_file_location(f'config_{path.stem}', path)
    assert spec is not None and spec.loader is not None  # a .py file has both
    module = importlib.util.module_from_spec(spec)
    try:
      spec.loader.exec_module(module)
      config = module.get_config(argument)
    except Exception as error:  # whatever the user's file raises
      raise ConfigError(_where(error, path)) from error
  return schema.plain(config if isinstance(config, Mapping) else config.to_dict(), 'config')


@contextlib.contextmanager
def _importable(path: pathlib.Path) -> Iterator[None]:
  """Lets a config file import `experiments.common` of its own repository, from any working directory."""
  root = next((parent for parent in path.parents if (parent / 'experiments').is_dir()), path.parent)
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


def _where(error: Exception, path: pathlib.Path) -> str:
  """An exception of a config file as one line with the place in that file."""
  if isinstance(error, SyntaxError):
    return f'{error.filename}, line {error.lineno}: {error.msg}.'
  lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
  place = f'{path}, line {lines[-1]}' if lines else str(path)
  kind = '' if isinstance(error, ValueError) else f'{type(error).__name__}: '
  return f'{place}: {kind}{error}'


# Comparing -----------------------------------------------------------------------------------------------------------


def differences(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[str]:
  """The keys in which two configs differ, as 'optim.rate: 0.001 -> 0.0001' (old -> new), in the order of the keys."""
  after, before = _leaves(new), _leaves(old)
  keys = list(dict.fromkeys([*before, *after]))
  return [
    f'{key}: {before.get(key, "not there")} -> {after.get(key, "not there")}'
    for key in keys
    if before.get(key, _ABSENT) != after.get(key, _ABSENT)
  ]


def check_resume(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[str]:
  """What changes when a run goes on under another config; only keys that leave its results alone may.

  Raises:
    ConfigError: any other key differs; every such difference is shown.
  """
  changes = differences(new, old)
  refused = [change for change in changes if change.partition(':')[0].partition('.')[0] not in RESUMABLE]
  if refused:
    raise ConfigError(
      'this run was begun with another config; name another --workdir, or undo:\n  '
      + '\n  '.join(refused)
      + f'\nOnly {", ".join(RESUMABLE)} may change on the way.'
    )
  return changes


_ABSENT = object()


def _leaves(value: Any, prefix: str = '') -> dict[str, Any]:
  """Dotted keys and plain values; a list is one value unless it holds blocks."""
  if isinstance(value, Mapping):
    items: Any = value.items()
  elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
    items = enumerate(value)
  else:
    return {prefix: list(value) if isinstance(value, tuple) else value}
  return {k: v for key, item in items for k, v in _leaves(item, f'{prefix}.{key}' if prefix else str(key)).items()}


@contextlib.contextmanager
def stage(block: str) -> Iterator[None]:
  """Turns what a block's `make` refuses into a ConfigError that names the block."""
  try:
    yield
  except (ValueError, TypeError, KeyError, FileNotFoundError) as error:
    message = str(error)
    raise ConfigError(message if message.startswith(block) else f'{block}: {message}') from error


# The command line ----------------------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
  """An argument parser whose mistakes are ConfigErrors."""

  def error(self, message: str) -> NoReturn:
    raise ConfigError(f'{self.prog}: {message}. --help shows every flag.')


def command(name: str, description: str) -> Parser:
  """The parser of `python -m plm_jax.<name>`, with the flags that commands share; add others to it.

  Args:
    name: of the command.
    description: what `--help` prints first.
  """
  parser = Parser(
    prog=f'python -m plm_jax.{name}',
    description=description,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
    epilog='--config.KEY=VALUE changes one key, such as --config.optim.rate=1e-4; --print_config shows every key.',
  )
  parser.add_argument(
    '--config', metavar='FILE', help='experiments/x/y.py, experiments/x/y.py:argument or the config.json of a run'
  )
  parser.add_argument('--workdir', metavar='DIR', help='the run folder; its config.json is used where --config is not')
  parser.add_argument('--print_config', action='store_true', help='print the config with every default, and exit')
  parser.add_argument('--list', action='store_true', help='name every model, objective, adapter, ... and exit')
  return parser


def parse(
  parser: Parser, argv: Sequence[str] | None = None, *, workdir: bool = True
) -> tuple[argparse.Namespace, dict[str, Any] | None]:
  """The flags, and the resolved config; None in its place where the command has nothing more to do.

  Args:
    parser: from `command`.
    argv: the words after the command; None takes those of this process.
    workdir: whether the command needs a run folder.

  Raises:
    ConfigError: a flag that does not exist, or any mistake in the config.
  """
  changes, words = _split_changes(list(sys.argv[1:] if argv is None else argv))
  arguments, unknown = parser.parse_known_args(words)
  if unknown:
    flags = sorted(set(re.findall(r'--\w+', parser.format_usage())))
    near = difflib.get_close_matches(unknown[0].partition('=')[0], flags, n=1, cutoff=0.5)
    hint = f' Did you mean {near[0]}?' if near else ''
    raise ConfigError(f'{parser.prog}: there is no flag {unknown[0]}.{hint} Flags: {", ".join(flags)}.')
  if arguments.list:
    from plm_jax import listing

    _show(listing.text())
    return arguments, None
  own = pathlib.Path(arguments.workdir or '') / 'config.json'
  if arguments.config is None and arguments.workdir and not own.is_file():
    what = 'there is no such folder' if not own.parent.is_dir() else 'it has no config.json, so no run began there'
    raise ConfigError(
      f'{parser.prog}: --workdir={arguments.workdir}: {what}; name the folder of a run, or --config=FILE as well'
    )
  if arguments.config is None and not arguments.workdir:
    raise ConfigError(f'{parser.prog}: needs --config=FILE, such as {_example()}; --list shows every config.')
  changed, remarks = overrides.apply(load(arguments.config or str(own)), changes)
  settings = resolve(changed)
  for remark in remarks:
    print(remark, file=sys.stderr)
  if arguments.print_config:
    _show(json.dumps(settings, indent=2))
    return arguments, None
  if workdir and arguments.workdir is None:
    raise ConfigError(f'{parser.prog}: needs --workdir=DIR, the folder of the run.')
  return arguments, settings


def run(main: Callable[[], int | None]) -> int:
  """Calls a command and returns its exit code; what the user can mend is one message on stderr.

  A ConfigError is exit code 2, a RunError 1, an interruption 130, as shells have it.
  """
  try:
    return main() or 0
  except KeyboardInterrupt:
    print('interrupted', file=sys.stderr)
    return KILLED
  except ConfigError as error:
    print(error, file=sys.stderr)
    return WRONG_USAGE
  except RunError as error:
    print(error, file=sys.stderr)
    return FAILED


def _split_changes(words: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
  """Takes `--config.KEY=VALUE` and `--config.KEY VALUE` out of the words of a command."""
  changes: list[tuple[str, str]] = []
  rest: list[str] = []
  queue = iter(words)
  for word in queue:
    if not word.startswith('--config.'):
      rest.append(word)
      continue
    key, equals, value = word.removeprefix('--config.').partition('=')
    if not equals:
      value = next(queue, '--')
      if value.startswith('--'):
        raise ConfigError(f'{word} needs a value, as in {word}=1.')
    changes.append((key, value))
  return changes, rest


def _show(text: str) -> None:
  """Prints a long text; a reader that leaves early, such as `head`, is no mistake."""
  try:
    print(text, flush=True)
  except BrokenPipeError:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter fails as it ends


def _example() -> str:
  files = [os.path.relpath(str(file)) for file in experiment_files()]
  return next((file for file in files if 'quickstart' in file), 'experiments/<paper>/<name>.py')
