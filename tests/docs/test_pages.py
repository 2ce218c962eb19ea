"""The pages of the documentation: what they have to name, how long they may be, and links that lead somewhere."""

import pathlib
import re
import sys
import tomllib

import pytest

from plm_jax.config import listing, signatures
from tests.docs import test_commands

ROOT = test_commands.ROOT
sys.path.append(str(ROOT / 'docs'))
import generate  # noqa: E402
from pages import markdown, papers, results, settings  # noqa: E402

MADE = generate.pages()
LONGEST = {'README.md': 8_000, 'WORKSPACE.md': 6_000}
WRITTEN = [*test_commands.pages(), ROOT / 'WORKSPACE.md', ROOT / 'CHANGELOG.md']


@pytest.mark.parametrize('name', LONGEST)
def test_a_first_page_is_short(name: str) -> None:
  assert len((ROOT / name).read_bytes()) <= LONGEST[name]


@pytest.mark.parametrize('page', WRITTEN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: pathlib.Path) -> None:
  text = page.read_text(encoding='utf-8')
  for target in re.findall(r'\]\(([^)#\s]+)(?:#[^)]*)?\)', text) + re.findall(
    r'^```\{include\} (\S+)', text, re.MULTILINE
  ):
    there = (page.parent / target).resolve()
    made = there.relative_to(ROOT / 'docs').as_posix() if there.is_relative_to(ROOT / 'docs') else ''
    assert target.startswith('http') or there.exists() or made in MADE, target


@pytest.mark.parametrize('page', WRITTEN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_names_no_machine(page: pathlib.Path) -> None:
  assert not re.search(r'(?<![\w.])/(work|home|root|tmp)/', page.read_text(encoding='utf-8'))


def test_every_command_key_and_plug_in_has_its_entry() -> None:
  for name in test_commands.entry.commands():
    assert f'reference/commands/{name}.md' in MADE
  for key in signatures.keywords('config.schema', 'Run'):
    assert f'\n`{key}`\n' in MADE['reference/config.md']
  for page, (_, kind, _) in settings.KINDS.items():
    for name in signatures.places(kind):
      assert f'\n## {name}\n' in MADE[f'reference/plugins/{page}.md']
  assert {*listing.noise_kinds(), *listing.FOLDERS.values()} <= {kind for _, kind, _ in settings.KINDS.values()}


def test_every_paper_and_every_table_has_its_page() -> None:
  folders = {file.parent.name for file in signatures.experiment_files()}
  assert set(papers.introductions(ROOT)) == folders
  tables = {'/'.join(file.parts[-3:-1]) for file in (ROOT / 'experiments/results').glob('*/*/cells.json')}
  assert set(tomllib.loads((ROOT / 'docs/results/findings.toml').read_text(encoding='utf-8'))) == tables


def test_every_benchmark_has_its_page_or_is_named() -> None:
  index = (ROOT / 'docs/benchmarks/index.md').read_text(encoding='utf-8')
  for file in (ROOT / 'benchmarks').glob('*.py'):
    assert (ROOT / f'docs/benchmarks/{file.stem}.md').is_file() or f'`{file.name}`' in index, file.name


def test_verdicts_come_from_intervals() -> None:
  rows = '| column | better | than | published | measured | 95% interval | sign | beyond noise | p (Holm) |\n| --- |\n'
  text = f'# T\n\n## What the paper claims\n\n{rows}'
  text += '| a | b | c | +1 | +2 | +1 to +3 | agrees | yes | 0.01 |\n'
  text += '| a | b | c | +1 | -2 | -3 to -1 | opposite | yes | 0.01 |\n'
  text += '| a | b | c | +1 | -2 | -3 to +1 | opposite | no | 1 |\n'
  text += '| a | b | c | +1 |  | none: 0 of 3 and 1 of 3 at chance | not compared |  |  |\n'
  ((heading, verdicts),) = results.claims(text)
  assert heading == 'What the paper claims'
  assert [one.verdict for one in verdicts] == [
    '**agrees**', '**opposite**', 'cannot tell (opposite direction)', 'cannot tell (runs at chance)',
  ]  # fmt: skip
  assert results.counted(verdicts) == '1 agree, 1 opposite, 2 cannot tell'


def test_a_docstring_becomes_markdown() -> None:
  text = 'Trains a_b *c*, see --flag=3.\n\nplm-jax fill --text="x"        a release\n\n    code_here(*x)\n'
  assert markdown.prose(text) == (
    'Trains a_b \\*c\\*, see `--flag=3`.\n\n```sh\n# a release\nplm-jax fill --text="x"\n```\n\n'
    '```text\ncode_here(*x)\n```'
  )
  assert markdown.sections('X.\n\n  Attributes:\n    a: one\n      more.\n    b: two.\n') == {
    'a': 'one more.',
    'b': 'two.',
  }


def test_fields_are_described_by_comments() -> None:
  source = 'class Config:\n  """Sizes."""\n\n  a: int = 1  # one\n  # two\n  # lines\n  b: str = \'x\'\n  c: int = 3\n'
  assert markdown.comments(source, 'Config') == {'a': 'one.', 'b': 'two lines.'}


def test_ruff_of_the_hooks_is_that_of_the_tests() -> None:
  (pin,) = re.findall(r'^ruff.*$', (ROOT / 'requirements/test.txt').read_text(encoding='utf-8'), re.MULTILINE)
  hooks = (ROOT / '.pre-commit-config.yaml').read_text(encoding='utf-8')
  assert re.findall(r"'(ruff[^']*)'", hooks) == [pin, pin]


def test_every_list_of_requirements_is_an_extra() -> None:
  apart = {'beam', 'cleaning'}  # in environments of their own
  names = {file.stem for file in (ROOT / 'requirements').glob('*.txt')} - apart
  extras = tomllib.loads((ROOT / 'pyproject.toml').read_text(encoding='utf-8'))
  assert set(extras['tool']['setuptools']['dynamic']['optional-dependencies']) == names
