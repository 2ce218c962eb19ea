"""List the commands by purpose, or run one of them.

plm-jax                            the list; `python -m plm_jax` is the same
plm-jax train --config=FILE ...    runs a command
plm-jax train --help               the flags of a command
"""

from plm_jax.cli import signals

if __name__ == '__main__':
  signals.begin(ends=True)  # before the other imports, which take a while; a command that polls begins in its `main`

import sys
from collections.abc import Sequence
from typing import NoReturn

from plm_jax.cli import command, programs
from plm_jax.config import build, signatures
from plm_jax.core.errors import ConfigError, suggest
from plm_jax.io import files

# purpose -> commands, in the order of the list; other commands are listed under OTHERS
PURPOSES: dict[str, tuple[str, ...]] = {
  'Train': (
    'train', 'plan', 'prepare', 'doctor', 'rewind', 'sweep', 'compare', 'report', 'sample_efficiency', 'compress',
    'probe', 'tables', 'quickstart',
  ),
  'Score and predict': ('evaluate', 'predict', 'lm_eval', 'mteb'),
  'Look inside': ('fill', 'generate', 'heads', 'vectors', 'params'),
  'Weights and vocabularies': ('convert', 'vocab'),
  'Data and noise': ('noise', 'corpus', 'pydocs'),
}  # fmt: skip
OTHERS = 'Others'


def main(argv: Sequence[str] | None = None) -> int:
  """Run the command that the first word names.

  Without words, list the commands.

  Args:
    argv: the words; None takes those of this process.

  Raises:
    ConfigError: no such command.
  """
  name, *rest = (sys.argv[1:] if argv is None else argv) or ['--help']
  modules = commands()
  if name in ('-h', '--help', '--list'):
    command.show(listing(modules))
    return 0
  if name not in modules:
    raise ConfigError(f'plm-jax: unknown command {name!r}.{suggest(name, modules)} Commands: {", ".join(modules)}.')
  programs.keep()
  return build.import_file(modules[name]).main(rest)


def script() -> NoReturn:
  """Run `main` as the console script `plm-jax`, with exit codes."""
  command.leave(command.run(main))


def commands() -> dict[str, str]:
  """Map each command to its module without importing it."""
  module_files = files.listing(signatures.ROOT / 'commands', '[!_]*.py')
  return {file.stem: f'commands.{file.stem}' for file in module_files}


def listing(modules: dict[str, str]) -> str:
  """List the commands by purpose, with the first lines of their docstrings."""
  with_purpose = {name for names in PURPOSES.values() for name in names}
  groups = {**PURPOSES, OTHERS: tuple(name for name in modules if name not in with_purpose)}
  width = max(map(len, modules))
  lines = ['plm-jax COMMAND [FLAGS], or python -m plm_jax COMMAND [FLAGS]; COMMAND --help shows the flags']
  for purpose, names in groups.items():
    if names:
      lines += ['', purpose]
      lines += [f'  {name:{width}}  {signatures.first_line(modules[name]).rstrip(".")}' for name in names]
  return '\n'.join(lines)


if __name__ == '__main__':
  script()
