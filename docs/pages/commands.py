"""One page a command, from its parser."""

import argparse
from collections.abc import Iterator
from typing import Any, NoReturn

from pages import markdown
from plm_jax import __main__ as entry
from plm_jax.config import build, signatures

CONFIG_FLAGS = ('config', 'workdir', 'print_config', 'list')


class _Found(BaseException):
  """Carries the parser of a command out of its `main`; no handler of an Exception stops it."""

  def __init__(self, parser: argparse.ArgumentParser):
    self.parser = parser


def pages() -> dict[str, str]:
  """Return the pages of all commands and their index."""
  known = entry.commands()
  made = {f'reference/commands/{name}.md': _page(name, parser_of(name)) for name in known}
  listed = {name for names in entry.PURPOSES.values() for name in names}
  groups = {**entry.PURPOSES, entry.OTHERS: tuple(name for name in known if name not in listed)}
  parts = [
    '# Commands',
    '`plm-jax COMMAND ...` and `python -m plm_jax COMMAND ...` are the same. `--help` prints these pages.',
  ]
  for purpose, names in groups.items():
    if names:
      rows = [(f'[`{name}`]({name}.md)', markdown.escape(signatures.first_line(known[name]))) for name in names]
      parts += [f'## {purpose}', markdown.table(('command', 'purpose'), rows)]
  parts += ['## Exit codes', markdown.table(('code', 'meaning'), EXIT_CODES)]
  parts.append(':::{toctree}\n:hidden:\n\n' + '\n'.join(sorted(known)) + '\n:::')
  return {**made, 'reference/commands/index.md': '\n\n'.join(parts) + '\n'}


EXIT_CODES = (
  ('0', 'done'),
  ('1', 'a checkpoint could not be read or written, or a device computes wrong numbers'),
  ('2', 'wrong usage or a wrong config'),
  ('3', 'stopped by a signal (Ctrl-C, SIGTERM) after saving'),
  ('4', 'training diverged'),
  ('130', 'interrupted before there was anything new to save, or by a second signal'),
)


def parser_of(name: str) -> argparse.ArgumentParser:
  """Return the parser that a command makes, without running the command."""

  def stop(self: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> NoReturn:
    raise _Found(self)

  before = argparse.ArgumentParser.parse_known_args
  argparse.ArgumentParser.parse_known_args = stop  # type: ignore[method-assign, assignment]
  try:
    build.import_file(entry.commands()[name]).main([])
  except _Found as found:
    return found.parser
  finally:
    argparse.ArgumentParser.parse_known_args = before  # type: ignore[method-assign]
  raise ValueError(f'plm-jax {name} parses no flags')


def _page(name: str, parser: argparse.ArgumentParser) -> str:
  parts = [f'# {name}', markdown.prose(parser.description or ''), *_flags(parser, '##')]
  for group in parser._actions:
    if isinstance(group, argparse._SubParsersAction):
      for choice, inner in group.choices.items():
        parts += [f'## {name} {choice}', *_flags(inner, '###')]
  return '\n\n'.join(parts) + '\n'


def _flags(parser: argparse.ArgumentParser, level: str) -> Iterator[str]:
  shown = [
    action for action in parser._actions if not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
  ]
  shared = [action for action in shown if action.dest in CONFIG_FLAGS]
  own = [action for action in shown if action not in shared or len(shared) < len(CONFIG_FLAGS)]
  if own:
    yield f'{level} Flags'
    yield '\n\n'.join(_flag(parser, action) for action in own)
  if len(shared) == len(CONFIG_FLAGS):
    yield f'{level} Flags of every command with a config'
    yield '\n\n'.join(_flag(parser, action) for action in shared)
    yield markdown.item(
      '`--config.KEY=VALUE`', 'change one key, such as `--config.optim.rate=1e-4`; [all keys](../config.md)'
    )


def _flag(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
  choices = '{' + ','.join(map(str, action.choices)) + '}' if action.choices is not None else ''
  taken = action.metavar if isinstance(action.metavar, str) else choices or action.dest.upper()
  term = ' '.join(action.option_strings[-1:] + [taken] * (action.nargs != 0)) if action.option_strings else taken
  told = parser._get_formatter()._expand_help(action) if action.help else ''
  return markdown.item(
    f'`{term}`', markdown.escape(told) + ('; required' if action.required and action.option_strings else '')
  )
