"""One page a folder of experiments/, from the heads of its configs and the introductions in docs/papers/intro.toml."""

import ast
import pathlib
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from pages import markdown

LABELS = ('Hardware', 'Expect', 'Arguments', 'Differs from the paper', 'Source', 'Slice')
LABEL = re.compile(rf'^({"|".join(LABELS)})\b([^:\n]*):', re.MULTILINE)


def pages(root: pathlib.Path) -> dict[str, str]:
  """Return the page of every folder, and the table of all."""
  intros = introductions(root)
  made = {f'papers/family/{folder}.md': _page(root, folder, about) for folder, about in intros.items()}
  return {**made, 'papers/family/index.md': _index(intros)}


def introductions(root: pathlib.Path) -> dict[str, dict[str, Any]]:
  """Return folder -> title, paper and sentences."""
  return tomllib.loads((root / 'docs' / 'papers' / 'intro.toml').read_text(encoding='utf-8'))


def _index(intros: Mapping[str, Mapping[str, Any]]) -> str:
  rows = [
    (f'[{about["title"]}]({folder}.md)', about['paper'], f'`{folder}/`')
    for folder, about in sorted(intros.items(), key=lambda item: item[1]['title'].lower())
  ]
  parts = [
    '# Papers and configs',
    'Each page has the idea of the paper, our configs with their commands, the hardware, the published numbers to '
    'expect, and what differs from the paper. All but the first paragraph is read from the head of the config file.',
    markdown.table(('page', 'paper', 'folder of `experiments/`'), rows),
    ':::{toctree}\n:hidden:\n\n'
    + '\n'.join(name for _, name in sorted((about['title'].lower(), folder) for folder, about in intros.items()))
    + '\n:::',
  ]
  return '\n\n'.join(parts) + '\n'


def _page(root: pathlib.Path, folder: str, about: Mapping[str, Any]) -> str:
  parts = [f'# {about["title"]}', f'*{about["paper"]}*', *about['says']]
  if about.get('code'):
    parts.append(f'**In the code**: {about["code"]}')
  for file in sorted((root / 'experiments' / folder).glob('*.py')):
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding='utf-8')))
    if docstring:
      parts += [f'## {folder}/{file.name}', _head(docstring)]
  if tables := _tables(root, folder):
    parts += [
      '## Tables',
      'These files make a table of the paper with `plm-jax tables`. Links lead to measured ones.',
      tables,
    ]
  return '\n\n'.join(parts) + '\n'


def _head(docstring: str) -> str:
  """The head of a config: a paragraph for each label, in bold."""
  apart = LABEL.sub(lambda found: f'\n{found.group(0)}', docstring)
  made = [_labelled(paragraph) for paragraph in re.split(r'\n\s*\n', apart) if paragraph.strip()]
  return '\n\n'.join(made)


def _labelled(paragraph: str) -> str:
  text = markdown.prose(paragraph)
  return re.sub(rf'^(({"|".join(LABELS)})\b[^:\n]*):', r'**\1:**', text, count=1)


def _tables(root: pathlib.Path, folder: str) -> str:
  """Tables whose configs are in this folder, with links to those that were measured."""
  rows = []
  for file in sorted((root / 'experiments' / 'tables').glob('*_*.py')):
    source = file.read_text(encoding='utf-8')
    if f"'{folder}/" in source and file.stem.startswith(folder):
      title = markdown.escape((ast.get_docstring(ast.parse(source)) or '').partition('\n')[0])
      measured = _measured(root, file.stem)
      rows.append(
        (f'`{file.name}`', title, f'[measured](../../results/table/{measured}.md)' if measured else 'not measured')
      )
  return markdown.table(('file', 'table', 'results'), rows) if rows else ''


def _measured(root: pathlib.Path, stem: str) -> str:
  paper, _, number = stem.partition('_')
  found = [
    folder for form in ('table', 'figure') for folder in (root / 'experiments/results').glob(f'{paper}/{form}_{number}')
  ]
  return '_'.join(found[0].parts[-2:]) if found else ''
