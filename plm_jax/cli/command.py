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

# errors of disks and paths; other system errors are bugs and keep their traceback
OF_THE_SYSTEM = {
  errno.EACCES, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EISDIR, errno.ELOOP, errno.EMFILE, errno.ENAMETOOLONG,
  errno.ENFILE, errno.ENOENT, errno.ENOSPC, errno.ENOTDIR, errno.EPERM, errno.EROFS, errno.ESTALE,
}  # fmt: skip
FAILED, WRONG_USAGE = 1, 2


Expand = Callable[
  [Mapping[str, Any], Sequence[tuple[str, str]], RunFolder | None], tuple[dict[str, Any], list[tuple[str, str]]]
]


class Parser(argparse.ArgumentParser):
  """An argument parser that raises ConfigError for mistakes.

  Attributes:
    table: the flags of other libraries that unknown flags are compared with, a key of `words.TABLES`.
  """

  table = 'config'

  def __init__(self, prog: str, description: str | None = None, **settings: Any):
    shared: dict[str, Any] = {'formatter_class': argparse.RawDescriptionHelpFormatter, 'allow_abbrev': False}
    super().__init__(prog, description=description, **shared | settings)

  def error(self, message: str) -> NoReturn:
    if found := re.fullmatch(r'argument (--\w+): ignored explicit argument (.*)', message, re.DOTALL):
      message = f'{found[1]} takes no value: write {found[1]} instead of {found[1]}={ast.literal_eval(found[2])}'
    elif found := re.fullmatch(r'argument (--\w+): expected (one|at least one) argument', message):
      message = f'{found[1]} needs a value: write {found[1]}=VALUE'
    raise ConfigError(f'{self.prog}: {message}. --help shows every flag.')

  def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
    """Parse as argparse does; ConfigError for an unknown flag names the nearest."""
    arguments, unknown = self.parse_known_args(args, namespace)
    if not unknown:
      return arguments
    wrong, flags = unknown[0].partition('=')[0], sorted(set(re.findall(r'--\w+', self._usage_of(arguments))))
    if not wrong.startswith('-'):
      raise ConfigError(f'{self.prog}: unexpected argument {wrong!r}. --help shows every flag.')
    hint = words.hint(wrong, flags, table=self.table)
    raise ConfigError(f'{self.prog}: there is no flag {unknown[0]}.{hint} Flags: {", ".join(flags)}.')

  def _usage_of(self, arguments: argparse.Namespace) -> str:
    """Return the usage, including that of the chosen subcommand."""
    subparsers = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
    chosen = [action.choices[vars(arguments)[action.dest]] for action in subparsers if vars(arguments).get(action.dest)]
    return ' '.join(parser.format_usage() for parser in (self, *chosen))

  def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
    """Parse as argparse does; ConfigError for empty values and words not UTF-8."""
    arguments = list(sys.argv[1:] if args is None else args)
    if strange := [word for word in arguments if not files.is_unicode(word)]:
      raise ConfigError(f'{self.prog}: {strange[0]!a} is not UTF-8; set the terminal, or the file, to UTF-8.')
    for before, word in itertools.pairwise(['', *arguments]):
      flag = word[:-1] if re.fullmatch(r'--\w+=', word) else before if not word else ''
      if flag.startswith('--') and '=' not in flag:
        raise ConfigError(f'{self.prog}: {flag} is empty; give it a value, or remove it.')
    return super().parse_known_args(arguments, namespace)


def number(annotation: str) -> Callable[[str], Any]:
  """Build the `type` of a flag for a number by an annotation."""

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
  """Build the parser of `plm-jax <name>` with the shared flags."""
  epilog = '--config.KEY=VALUE changes a key, as in --config.optim.rate=1e-4; --print_config=types shows every key.'
  parser = Parser(f'plm-jax {name}', description, epilog=epilog)
  add = parser.add_argument
  add('--config', metavar='FILE', help='experiments/x/y.py, experiments/x/y.py:argument or the config.json of a run')
  add('--workdir', metavar='DIR', help='the run folder; its config is used without --config')
  add('--print_config', action='store_true', help='print the config with every default and exit')
  add('--list', action='store_true', help='list every model, objective, adapter, data source and config and exit')
  return parser


def step(text: str) -> int | str | None:
  """Parse a step: a number, 'newest', 'best', or 'auto' for None."""
  if text == 'auto':
    return None
  if text not in ('newest', 'best') and not text.isdecimal():
    raise ConfigError(f"--step={text}: expected a number, 'newest' or 'best'")
  return int(text) if text.isdecimal() else text


def add_step(parser: Parser, *, every: bool = False) -> None:
  """Add `--step`, None by default; with `every` also 'all'."""
  choices = "a number, 'newest', 'best' or 'all'" if every else "a number, 'newest' or 'best'"
  read = (lambda text: text if text == 'all' else step(text)) if every else step
  parser.add_argument('--step', type=read, help=f'{choices}; default: the best, else the newest')


def add_part(parser: Parser) -> None:
  """Add `--part`, one task of a multi-task run (`config.one_part`)."""
  parser.add_argument('--part', metavar='NAME', help='a task of a multi-task run (adapter multitask)')


def add_weights(parser: Parser) -> None:
  """Add `--weights`, a model that is not a run."""
  parser.add_argument('--weights', metavar='FOLDER', help="a model in Hugging Face's format, or a converted checkpoint")


def parse_model(parser: Parser, argv: Sequence[str] | None = None) -> tuple[argparse.Namespace, dict[str, Any] | None]:
  """Parse the flags of a command for one run or `--weights`."""
  arguments, settings = parse(parser, argv, without=lambda arguments: arguments.weights is not None)
  if arguments.weights is not None and (arguments.workdir or arguments.config):
    raise ConfigError(
      f'{parser.prog}: --weights={arguments.weights} names a model already; remove --workdir and --config'
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
  """Parse the flags and resolve the config.

  Args:
    argv: the words after the command; None takes those of this process.
    workdir: True if the command needs `--workdir`.
    expand: (config, changes, run folder or None) -> both, without keys that stand for several (`model.from`).
    without: returns True for flags that need no config.

  Returns:
    The flags, with the changes of the config as `changes`, and the config. The config is None if the command has
    nothing more to do, or if the flags need no config.

  Raises:
    ConfigError: an unknown flag, or any mistake in the config.
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
      raise ConfigError(
        f'{parser.prog}: --config.{changes[0][0]} changes a config, but these flags use none; remove it.'
      )
    return arguments, None
  _check_config(arguments, parser)
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


def _check_config(arguments: argparse.Namespace, parser: Parser) -> None:
  """Raise ConfigError unless `--config` or the run in `--workdir` has a config."""
  folder = _run_folder(arguments)
  if arguments.config is not None:
    return
  if not arguments.workdir:
    or_run = ', or --workdir=RUN, the folder of a run' if 'workdir' in vars(arguments) else ''
    raise ConfigError(f'{parser.prog}: needs --config=FILE, such as {_example()}{or_run}; --list shows every config.')
  if kind := _other_model(folder):
    raise ConfigError(
      f'{parser.prog}: --workdir={arguments.workdir} is {kind}, not a run: {_accepted_by(arguments, parser)}'
    )
  if not files.is_file(folder.config):
    exists = files.is_folder(folder.root)
    reason = f'it has no {folder.config.name}, so no run began there' if exists else 'there is no such folder'
    raise ConfigError(
      f'{parser.prog}: --workdir={arguments.workdir}: {reason}; name the folder of a run, or --config=FILE as well'
    )


def _run_folder(arguments: argparse.Namespace) -> RunFolder:
  """Return the folder of --workdir; raise ConfigError for URLs without runs."""
  object_store.check_holds_checkpoints(arguments.workdir or '')
  return RunFolder.at(arguments.workdir or '')


def _other_model(folder: RunFolder) -> str:
  if not files.is_file(folder.config):
    return 'a converted checkpoint' if files.is_file(folder.root / files.IMPORT) else ''
  try:
    content = files.read_json(folder.config)
  except (OSError, ValueError):
    return ''  # reading it as a config raises the error
  is_config = isinstance(content, dict) and 'data' not in content
  return "a model in Hugging Face's format" if is_config and {'model_type', 'architectures'} & content.keys() else ''


def _accepted_by(arguments: argparse.Namespace, parser: Parser) -> str:
  if '--weights' in parser.format_usage():
    return 'use --weights'
  return (
    f'use it in Python with plm_jax.load({arguments.workdir!r}), or score it with '
    f'plm-jax evaluate --config=FILE --weights={arguments.workdir}'
  )


def changed(
  arguments: argparse.Namespace, changes: Sequence[tuple[str, str]], *, expand: Expand
) -> tuple[dict[str, Any], list[str]]:
  """Load the config of `--config` or `--workdir` and change single keys.

  Returns:
    The config, without defaults, and remarks for the user.

  Raises:
    ConfigError: no such config or key, or an invalid value.
  """
  folder = _run_folder(arguments)
  written, rest = expand(load(arguments.config or str(folder.config)), changes, folder if arguments.workdir else None)
  return overrides.apply(written, rest)


def run(main: Callable[[], int | None]) -> int:
  """Call a command and return its exit code.

  It is 2 for a ConfigError, 1 for a RunError, 3 or 130 for an interruption. Each is printed as one message on stderr,
  without a traceback.
  """
  try:
    with signals.caught(ends=True):  # a command that polls for signals calls `begin` itself, before or in `main`
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
  """End the process, at once if a thread may hang."""
  if any(thread.name.startswith(signals.HANGS) for thread in threading.enumerate()):
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
      with contextlib.suppress(OSError, ValueError):
        stream.flush()
    os._exit(code)
  sys.exit(code)


def _split_changes(words: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
  """Separate changes `--config.KEY=VALUE` or `--config.KEY VALUE` from other words."""
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
  """Print a long text; its reader may close the pipe early."""
  try:
    print(text, flush=True)
  except BrokenPipeError:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter fails to flush a closed stdout


def _example() -> str:
  configs = [os.path.relpath(str(file)) for file in experiment_files()]
  return next((file for file in configs if 'quickstart' in file), 'experiments/<paper>/<name>.py')
