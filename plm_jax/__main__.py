"""Lists the commands by purpose, or runs one of them.

plm-jax                            the list; `python -m plm_jax` is the same
plm-jax train --config=FILE ...    runs a command
plm-jax train --help               the flags of a command
"""

from plm_jax.cli import signals

if __name__ == '__main__':
  signals.begin()  # before the other imports, which take a while

import sys
from collections.abc import Sequence
from typing import NoReturn

from plm_jax.cli import command
from plm_jax.config import build, signatures
from plm_jax.core.errors import ConfigError, suggest
from plm_jax.io import files

# Purpose -> commands, in the order of the list. A command in no row is shown under OTHERS.
PURPOSES: dict[str, tuple[str, ...]] = {
  'Train': (
    'train',
    'plan',
    'prepare',
    'doctor',
    'rewind',
    'sweep',
    'compare',
    'report',
    'sample_efficiency',
    'compress',
    'probe',
    'tables',
    'quickstart',
  ),
  'Score and predict': ('evaluate', 'predict', 'lm_eval'),
  'Look inside': ('fill', 'generate', 'heads', 'vectors', 'params'),
  'Weights and vocabularies': ('convert', 'vocab'),
  'Data and noise': ('noise', 'corpus', 'pydocs'),
}
OTHERS = 'Others'


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command that the first word names with the words behind it; without words, lists the commands.

  Args:
    argv: the words; None takes those of this process.

  Raises:
    ConfigError: no such command.
  """
  name, *rest = (sys.argv[1:] if argv is None else argv) or ['--help']
  known = commands()
  if name in ('-h', '--help', '--list'):
    command.show(listing(known))
    return 0
  if name not in known:
    raise ConfigError(f'plm-jax: there is no command {name!r}.{suggest(name, known)} Commands: {", ".join(known)}.')
  named = build.import_file(known[name]).main
  signals.check()
  signals.end()  # of this file, which asks
  with signals.caught(ends=True):  # until a command that asks for signals takes them
    return named(rest)


def script() -> NoReturn:
  """The console script `plm-jax`: `main`, with its errors as exit codes."""
  command.leave(command.run(main))


def commands() -> dict[str, str]:
  """Map each command to its module; nothing is imported."""
  inside = files.listing(signatures.ROOT / 'commands', '[!_]*.py')
  return {file.stem: f'commands.{file.stem}' for file in inside}


def listing(known: dict[str, str]) -> str:
  """The commands by purpose, one line each: the first line of their docstrings."""
  listed = {name for names in PURPOSES.values() for name in names}
  groups = {**PURPOSES, OTHERS: tuple(name for name in known if name not in listed)}
  width = max(map(len, known))
  lines = ['plm-jax COMMAND [FLAGS], or plm-jax COMMAND [FLAGS]; COMMAND --help shows the flags']
  for purpose, names in groups.items():
    if names:
      lines += ['', purpose]
      lines += [f'  {name:{width}}  {signatures.first_line(known[name]).rstrip(".")}' for name in names]
  return '\n'.join(lines)


if __name__ == '__main__':
  script()
