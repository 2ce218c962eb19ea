"""The command line that all commands share: flags, changes of a config, exit codes."""

import argparse
import ast
import contextlib
import errno
import itertools
import json
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from plm_jax.cli import signals
from plm_jax.config import aliases as words
from plm_jax.config import load, overrides, resolve, values
from plm_jax.config.signatures import experiment_files
from plm_jax.core.errors import ConfigError, RunError
from plm_jax.io import files, object_store
from plm_jax.io.run_paths import RunFolder

# What disks and paths do to a command; other errors of the system are mistakes in code, and keep their traceback.
OF_THE_SYSTEM = {
  errno.EACCES, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EISDIR, errno.ELOOP, errno.EMFILE, errno.ENAMETOOLONG,
  errno.ENFILE, errno.ENOENT, errno.ENOSPC, errno.ENOTDIR, errno.EPERM, errno.EROFS, errno.ESTALE,
}  # fmt: skip
FAILED, WRONG_USAGE = 1, 2


Expand = Callable[
  [Mapping[str, Any], Sequence[tuple[str, str]], RunFolder | None], tuple[dict[str, Any], list[tuple[str, str]]]
]


class Parser(argparse.ArgumentParser):
  """An argument parser whose mistakes are ConfigErrors.

  Attributes:
    table: the words of others that its flags are compared with, a key of `words.TABLES`.
  """

  table = 'config'

  def error(self, message: str) -> NoReturn:
    raise ConfigError(f'{self.prog}: {message}. --help shows every flag.')

  def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
    """Like that of argparse; ConfigError with the nearest flag for one that does not exist."""
    arguments, unknown = self.parse_known_args(args, namespace)
    if not unknown:
      return arguments
    wrong, flags = unknown[0].partition('=')[0], sorted(set(re.findall(r'--\w+', self._usage_of(arguments))))
    if not wrong.startswith('-'):
      raise ConfigError(f'{self.prog}: {wrong!r} belongs to no flag. --help shows every flag.')
    hint = words.hint(wrong, flags, table=self.table)
    raise ConfigError(f'{self.prog}: there is no flag {unknown[0]}.{hint} Flags: {", ".join(flags)}.')

  def _usage_of(self, arguments: argparse.Namespace) -> str:
    """The usage, with that of the command that was chosen where there are several."""
    several = [one for one in self._actions if isinstance(one, argparse._SubParsersAction)]
    chosen = [one.choices[vars(arguments)[one.dest]] for one in several if vars(arguments).get(one.dest)]
    return ' '.join(parser.format_usage() for parser in (self, *chosen))

  def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
    """Like that of argparse; ConfigError for a flag with nothing behind it."""
    given = list(sys.argv[1:] if args is None else args)
    if strange := [word for word in given if not files.is_unicode(word)]:
      raise ConfigError(f'{self.prog}: {strange[0]!a} is not UTF-8: set the terminal, or the file, to UTF-8.')
    for before, word in itertools.pairwise(['', *given]):
      flag = word[:-1] if re.fullmatch(r'--\w+=', word) else before if not word else ''
      if flag.startswith('--') and '=' not in flag:
        raise ConfigError(f'{self.prog}: {flag} is empty: give it a value, or leave it out.')
    return super().parse_known_args(given, namespace)


def number(annotation: str) -> Callable[[str], Any]:
  """The `type` of a flag that takes a number within a bound.

  Args:
    annotation: as of a keyword, such as "Annotated[int, '1 <= x']".
  """

  def read(text: str) -> Any:
    try:
      return values.coerce(annotation, ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError):
      raise argparse.ArgumentTypeError(f'expected {values.readable(annotation)}, got {text!r}') from None

  return read


COUNT = number("Annotated[int, '1 <= x']")
WHOLE = number("Annotated[int, '0 <= x']")
POSITIVE = number("Annotated[float, '0 < x']")
SEED = number("Annotated[int, '0 <= x < 4_294_967_296']")


def command(name: str, description: str) -> Parser:
  """The parser of `plm-jax <name>` with the flags that all commands share; the command adds its own.

  Args:
    name: of the command.
    description: the docstring of its file, with which `--help` begins.
  """
  parser = Parser(
    prog=f'plm-jax {name}',
    description=description,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
    epilog='--config.KEY=VALUE changes a key, as in --config.optim.rate=1e-4; --print_config=types shows every key.',
  )
  parser.add_argument(
    '--config', metavar='FILE', help='experiments/x/y.py, experiments/x/y.py:argument or the config.json of a run'
  )
  parser.add_argument(
    '--workdir', metavar='DIR', help='the run folder; without --config, the config is that of the run'
  )
  parser.add_argument(
    '--print_config',
    nargs='?',
    const='json',
    choices=('json', 'types'),
    help='print the config with every default as JSON, or each key with its type and value, and exit',
  )
  parser.add_argument(
    '--list', action='store_true', help='list every model, objective, adapter, data source and config, and exit'
  )
  return parser


def add_step(parser: Parser, *, every: bool = False) -> None:
  """Adds `--step`, which checkpoint of a run to take; `checkpoint.records.step_named` reads all of it but 'all'."""
  choices = "a number, 'newest', 'best' or 'all'" if every else "a number, 'newest' or 'best'"
  parser.add_argument('--step', default='auto', help=f'{choices}; default: the best, else the newest')


def add_part(parser: Parser) -> None:
  """Adds `--part`, which task of a run of several to take; `config.one_part` makes it a run of that task alone."""
  parser.add_argument('--part', metavar='NAME', help='the task of a run that learned several (adapter multitask)')


def add_weights(parser: Parser) -> None:
  """Adds `--weights`, the folder of a model that is no run."""
  parser.add_argument('--weights', metavar='FOLDER', help="a folder in Hugging Face's form, or an import")


def parse_model(parser: Parser, argv: Sequence[str] | None = None) -> tuple[argparse.Namespace, dict[str, Any] | None]:
  """As `parse` of a command that asks one model: the run in --workdir, or what is in --weights, which has no config."""
  arguments, settings = parse(parser, argv, without=lambda arguments: arguments.weights is not None)
  if arguments.weights is not None and (arguments.workdir or arguments.config):
    raise ConfigError(
      f'{parser.prog}: --weights={arguments.weights} names a model by itself: leave --workdir and --config out'
    )
  return arguments, settings


def parse(
  parser: Parser,
  argv: Sequence[str] | None = None,
  *,
  workdir: bool = True,
  expand: Expand = lambda settings, changes, folder: (dict(settings), list(changes)),
  without: Callable[[argparse.Namespace], bool] = lambda arguments: False,
) -> tuple[argparse.Namespace, dict[str, Any] | None]:
  """The flags and the resolved config; None for the config if the command has nothing more to do.

  Args:
    parser: from `command`.
    argv: the words after the command; None takes those of this process. Its changes of the config are returned as
      `changes` of the flags.
    workdir: whether the command needs `--workdir`.
    expand: (config, changes, run folder or None) -> both, without keys that stand for several (`model.from`).
    without: whether these flags ask for something that needs no config, which is None then.

  Raises:
    ConfigError: a flag that does not exist, or any mistake in the config.
  """
  changes, rest = _split_changes(list(sys.argv[1:] if argv is None else argv))
  arguments = parser.parse_args(rest)
  arguments.changes = changes
  if arguments.list:
    from plm_jax.config import listing

    show(listing.text())
    return arguments, None
  if without(arguments):
    if changes:
      raise ConfigError(f'{parser.prog}: --config.{changes[0][0]} changes a config, and these flags take none.')
    return arguments, None
  folder = _run_folder(arguments)
  if arguments.config is None and arguments.workdir and (kind := _other_model(folder)):
    raise ConfigError(f'{parser.prog}: --workdir={arguments.workdir} is {kind} and no run: {_taken(arguments, parser)}')
  if arguments.config is None and arguments.workdir and not files.is_file(folder.config):
    there = files.is_folder(folder.root)
    what = f'it has no {folder.config.name}, so no run began there' if there else 'there is no such folder'
    raise ConfigError(
      f'{parser.prog}: --workdir={arguments.workdir}: {what}; name the folder of a run, or --config=FILE as well'
    )
  if arguments.config is None and not arguments.workdir:
    begun = ', or --workdir=RUN, the folder of a run' if 'workdir' in vars(arguments) else ''
    raise ConfigError(f'{parser.prog}: needs --config=FILE, such as {_example()}{begun}; --list shows every config.')
  changed_config, remarks = changed(arguments, changes, expand=expand)
  settings = resolve(changed_config)
  for remark in remarks:
    print(remark, file=sys.stderr)
  if arguments.print_config:
    from plm_jax.config import listing

    show(listing.types(settings) if arguments.print_config == 'types' else json.dumps(settings, indent=2))
    return arguments, None
  if workdir and arguments.workdir is None:
    raise ConfigError(f'{parser.prog}: needs --workdir=DIR, the folder of the run.')
  return arguments, settings


def _run_folder(arguments: argparse.Namespace) -> RunFolder:
  """The folder that --workdir names; ConfigError for an address where no run can be, before its client is asked for."""
  object_store.check_holds_checkpoints(arguments.workdir or '')
  return RunFolder.at(arguments.workdir or '')


def _other_model(folder: RunFolder) -> str:
  """What a folder is that has a model and is no run; '' for a run and for what has no model."""
  if not files.is_file(folder.config):
    return 'an import' if files.is_file(folder.root / files.IMPORT) else ''
  try:
    about = files.read_json(folder.config)
  except (OSError, ValueError):
    return ''  # what is wrong with it is told where it is read
  is_release = isinstance(about, dict) and 'data' not in about and {'model_type', 'architectures'} & about.keys()
  return "a model in Hugging Face's form" if is_release else ''


def _taken(arguments: argparse.Namespace, parser: Parser) -> str:
  """Where a model that is no run can be named instead of in --workdir."""
  if '--weights' in parser.format_usage():
    return '--weights names it'
  return (
    f'{parser.prog.rpartition(".")[-1]} needs the folder of a run. In Python plm_jax.load({arguments.workdir!r}) opens '
    'this one, and its classify, tag or answer asks it; plm-jax evaluate --config=FILE '
    f'--weights={arguments.workdir} scores it'
  )


def changed(
  arguments: argparse.Namespace, changes: Sequence[tuple[str, str]], *, expand: Expand
) -> tuple[dict[str, Any], list[str]]:
  """The config that `--config` or `--workdir` names with single keys changed, not complete; remarks for the user.

  Raises:
    ConfigError: no such config or key, or a value that a key does not take.
  """
  folder = _run_folder(arguments)
  written, rest = expand(load(arguments.config or str(folder.config)), changes, folder if arguments.workdir else None)
  return overrides.apply(written, rest)


def run(main: Callable[[], int | None]) -> int:
  """Calls a command and returns its exit code: 2 for a ConfigError, 1 for a RunError, 3 or 130 for an interruption.

  All are printed as one message on stderr, without a traceback.
  """
  try:
    with signals.caught(ends=True):  # a command that asks for signals has begun, or begins in `main`
      return main() or 0
  except signals.Interrupted as interrupted:
    print(interrupted, file=sys.stderr)
    return interrupted.exit_code
  except KeyboardInterrupt:
    print('interrupted', file=sys.stderr)
    return signals.KILLED
  except ConfigError as error:
    print(error, file=sys.stderr)
    return WRONG_USAGE
  except RunError as error:
    print(error, file=sys.stderr)
    return FAILED
  except OSError as error:
    if not isinstance(error, files.NotAFile) and error.errno not in OF_THE_SYSTEM:
      raise
    print(f'{error.filename or "a file"}: {error.strerror}' if error.strerror else error, file=sys.stderr)
    return FAILED


def leave(code: int) -> NoReturn:
  """Ends the process, at once if a thread that may hang is still there: the interpreter would wait for its library."""
  if any(thread.name.startswith(signals.HANGS) for thread in threading.enumerate()):
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
      with contextlib.suppress(OSError, ValueError):
        stream.flush()
    os._exit(code)
  sys.exit(code)


def _split_changes(words: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
  """Separates `--config.KEY=VALUE` and `--config.KEY VALUE`, as (key, value), from the other words of a command."""
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


def show(text: str) -> None:
  """Prints a long text; that a reader such as `head` closes the pipe early is not an error."""
  try:
    print(text, flush=True)
  except BrokenPipeError:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter fails when it flushes stdout


def _example() -> str:
  configs = [os.path.relpath(str(file)) for file in experiment_files()]
  return next((file for file in configs if 'quickstart' in file), 'experiments/<paper>/<name>.py')
