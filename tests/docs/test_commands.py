"""Every command on the pages of docs/, in README.md and CONTRIBUTING.md is a command, with flags and keys that exist.

Cheap ones run. Of the others the real parser reads the flags, and a config is resolved with the changes that the page
makes. A fence below `<!-- not run: reason -->` is left out.
"""

import contextlib
import io
import pathlib
import re
import shlex
import sys
from typing import NamedTuple

import pytest

from plm_jax import __main__ as entry
from plm_jax.cli import command
from plm_jax.training.before.model_from import expand

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / 'docs'))
from pages import commands  # noqa: E402

GENERATED = (
  '_build',
  'papers/family',
  'reference/commands',
  'reference/config.md',
  'reference/plugins',
  'reference/taxonomy.md',
  'results/table',
)
MODEL = ROOT / 'tests' / 'fixtures' / 'bert_mlm' / 'run'
PLACEHOLDERS = {
  'MODEL': str(MODEL),
  'FOLDER': str(MODEL),
  'runs/released/minilm': str(MODEL),
  'runs/released/smollm2': str(ROOT / 'tests' / 'fixtures' / 'gpt_causal_lm' / 'run'),
}
FENCE = re.compile(
  r'(?P<mark><!-- not run: [^>]+ -->\s*)?^ *```(?P<language>\S*)\n(?P<text>.*?)^ *```', re.MULTILINE | re.DOTALL
)
CHEAP = {
  'noise': ['--rows=8'],
  'train --list': [],
  'pydocs --sample': [],
  'plan --config=experiments/palm': [],
}  # commands that run here, with flags that make them faster


class Command(NamedTuple):
  """A command and where it is."""

  page: str
  words: tuple[str, ...]


def pages() -> list[pathlib.Path]:
  """The pages that people write."""
  docs = [file for file in sorted((ROOT / 'docs').rglob('*.md')) if not _is_generated(file)]
  return [ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', *docs]


def _is_generated(file: pathlib.Path) -> bool:
  return file.relative_to(ROOT / 'docs').as_posix().startswith(GENERATED)


def commands_of(page: pathlib.Path) -> list[Command]:
  """The commands in the fences of a page that are not marked."""
  found = []
  for fence in FENCE.finditer(page.read_text(encoding='utf-8')):
    if fence['mark'] or fence['language'] == 'python':
      continue
    for line in fence['text'].replace('\\\n', ' ').splitlines():
      if re.match(r' *(plm-jax|bash|python|\.venv/bin/\S+) ', line):
        found.append(Command(page.relative_to(ROOT).as_posix(), tuple(shlex.split(line, comments=True))))
  return found


ALL = [one for page in pages() for one in commands_of(page)]
OURS = [one for one in ALL if one.words[0].endswith('plm-jax')]
OTHERS = [one for one in ALL if one not in OURS]


def name_of(one: Command) -> str:
  return f'{one.page}: {shlex.join(one.words[1:])}'[:90]


def split(words: tuple[str, ...]) -> tuple[list[str], list[str]]:
  """Changes of the config, and the other words; names of folders become that of a run that there is."""
  given = [re.sub(rf'\b({"|".join(PLACEHOLDERS)})$', lambda found: PLACEHOLDERS[found.group()], word) for word in words]
  return [word for word in given if word.startswith('--config.')], [
    word for word in given if not word.startswith('--config.')
  ]


def test_pages_have_commands() -> None:
  assert len(OURS) > 60
  assert {one.words[1] for one in OURS} > {
    'train',
    'evaluate',
    'predict',
    'sweep',
    'tables',
    'plan',
    'convert',
    'vocab',
  }


def test_no_command_names_a_run_of_one_machine() -> None:
  made = {word.partition('=')[2] for one in ALL for word in one.words if word.startswith(('--workdir=', '--out='))}
  needed = {
    word.partition('=')[2] for one in OURS for word in one.words if word.startswith('--config.model.from=runs/')
  }
  assert not [folder for folder in needed if folder not in made | PLACEHOLDERS.keys()]


@pytest.mark.parametrize('one', OURS, ids=name_of)
def test_the_flags_exist(one: Command) -> None:
  changes, rest = split(one.words[1:])
  assert rest[0] in entry.commands()
  parser = commands.parser_of(rest[0])
  parser.parse_args(rest[1:])
  assert not changes or any('--config' in action.option_strings for action in parser._actions)


@pytest.mark.parametrize('one', [one for one in OURS if any('--config=' in word for word in one.words)], ids=name_of)
def test_the_config_resolves(one: Command) -> None:
  changes, rest = split(one.words[1:])
  kept = [word for word in rest if word.startswith('--config=')]
  if '--config=CONFIG' in kept:
    pytest.skip('a placeholder')
  with contextlib.redirect_stdout(io.StringIO()) as out:
    command.parse(command.command(rest[0], ''), [*kept, *changes, '--print_config'], expand=expand)
  assert '"data"' in out.getvalue()


@pytest.mark.parametrize(
  'one', [one for one in OURS if any(' '.join(one.words[1:]).startswith(cheap) for cheap in CHEAP)], ids=name_of
)
def test_a_cheap_command_runs(one: Command) -> None:
  more = next(flags for cheap, flags in CHEAP.items() if ' '.join(one.words[1:]).startswith(cheap))
  with contextlib.redirect_stdout(io.StringIO()):
    assert entry.main([*one.words[1:], *more]) in (0, None)


@pytest.mark.parametrize('one', OTHERS, ids=name_of)
def test_other_commands_name_files_that_exist(one: Command) -> None:
  first, second, *rest = one.words
  if first == 'bash':
    assert (ROOT / second).is_file()
  elif first == 'python' and second == '-m':
    assert (ROOT / (rest[0].replace('.', '/') + '.py')).is_file()
  elif first == 'python':
    assert (ROOT / second).is_file()
  else:
    assert first in ('.venv/bin/pip', '.venv/bin/python', '.venv/bin/pre-commit', '.venv/bin/xprof')
