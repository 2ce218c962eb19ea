"""One page a table of experiments/results/: picture, verdicts, numbers. Findings are in docs/results/findings.toml."""

import pathlib
import re
import struct
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pages import markdown

TITLES = {
  'What the paper claims': 'Claims of the paper',
  'Comparisons': 'Comparisons',
  'Other comparisons': 'Other comparisons',
}
HEAD = '| column | better | than |'  # of a table of claims
FEW = 7  # columns of a table that a page shows as they are; with more it is turned


WIDE = 3  # widths of a picture over its height from which it scrolls


class Verdict(NamedTuple):
  """A claim and what was measured."""

  column: str
  better: str
  than: str
  published: str
  measured: str
  interval: str
  verdict: str


def pages(root: pathlib.Path) -> dict[str, str]:
  """Return the page of every table, and the overview."""
  findings = tomllib.loads((root / 'docs' / 'results' / 'findings.toml').read_text(encoding='utf-8'))
  folders = sorted(found.parent for found in (root / 'experiments' / 'results').glob('*/*/cells.json'))
  made, rows = {}, []
  for folder in folders:
    name = '_'.join(folder.parts[-2:])
    text = (folder / 'table.md').read_text(encoding='utf-8')
    about = findings['/'.join(folder.parts[-2:])]
    made[f'results/table/{name}.md'] = _page(folder, text, about)
    rows.append(
      (f'[{_title(text)}]({name}.md)', counted([one for _, many in claims(text) for one in many]), about['cost'])
    )
  parts = [
    '# Measured tables',
    "A claim **agrees** or is **opposite** where the 95 % interval of the measured difference excludes 0, and Holm's "
    'test over all comparisons of the table is below .05. Otherwise the runs **cannot tell**.',
    markdown.table(('table', 'claims and questions', 'cost'), rows),
    ':::{toctree}\n:hidden:\n\n' + '\n'.join('_'.join(folder.parts[-2:]) for folder in folders) + '\n:::',
  ]
  return {**made, 'results/table/index.md': '\n\n'.join(parts) + '\n'}


def claims(text: str) -> list[tuple[str, list[Verdict]]]:
  """Return the claims of a table.md by heading, each with its verdict."""
  found = []
  for section in text.split('\n## ')[1:]:
    heading, _, rest = section.partition('\n')
    if HEAD in rest:
      found.append((heading, [Verdict(*row[:6], _verdict(*row[6:8])) for row in _cells(rest)[1:]]))
  return found


def _verdict(sign: str, beyond_noise: str) -> str:
  if beyond_noise == 'yes':
    return f'**{sign}**'
  if sign == 'not compared':
    return 'cannot tell (runs at chance)'
  if sign not in ('agrees', 'opposite'):
    return 'cannot tell'
  return f'cannot tell ({"same" if sign == "agrees" else "opposite"} direction)'


def counted(verdicts: Sequence[Verdict]) -> str:
  """Return '3 agree, 1 opposite, 2 cannot tell'."""
  kinds = Counter(one.verdict.split(' (')[0].strip('*') for one in verdicts)
  words = {'agrees': 'agree', 'opposite': 'opposite', 'cannot tell': 'cannot tell'}
  return ', '.join(f'{kinds[kind]} {word}' for kind, word in words.items() if kinds[kind])


def _page(folder: pathlib.Path, text: str, about: Mapping[str, Any]) -> str:
  where = '/'.join(folder.parts[-2:])
  body = text.partition('\n\n')[2]
  intro, _, rest = body.partition('\n\nMade by ')
  command = re.match(r'`([^`]+)`', rest)
  numbers = rest.partition('\n\n')[2].partition('\n## ')[0]
  parts = [f'# {_title(text)}', *map(markdown.escape, intro.splitlines())]
  wide = '{.wide}' if _is_wide(folder / 'table.png') else ''
  parts.append(f'![{_title(text)}: measured values](../../../experiments/results/{where}/table.png){wide}')
  parts += ['## Findings', '\n'.join(f'- {one}' for one in about['findings'])]
  for heading, verdicts in claims(text):
    rows = [(one.verdict, *map(markdown.escape, one[:6])) for one in verdicts]
    head = ('verdict', 'column', 'better', 'than', 'published', 'measured', '95 % interval')
    parts += [
      f'## {TITLES.get(heading, heading)}',
      f'{counted(verdicts)}.',
      markdown.table(head, _without_empty(head, rows)),
    ]
  parts += ['## Numbers', _turned(numbers)]
  for extra in about.get('pictures', ()):
    parts.append(f'![{extra}](../../../experiments/results/{where}/{extra})')
  parts += ['## How it was made', f'Cost: {about["cost"]}.']
  if command:
    parts.append(markdown.code([command.group(1)]))
  parts.append(_escaped_list(text.rpartition('\n## ')[2]))
  parts.append(
    f'`experiments/results/{where}/cells.json` has every run with its seed, and checksums of its config and data.'
  )
  return '\n\n'.join(part for part in parts if part.strip()) + '\n'


def _is_wide(picture: pathlib.Path) -> bool:
  """Return True if a PNG is too wide for a page; its header has the sizes."""
  width, height = struct.unpack('>II', picture.read_bytes()[16:24])
  return width > WIDE * height


def _without_empty(head: Sequence[str], rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
  return [tuple(cell or '' for cell in row) for row in rows]


def _turned(text: str) -> str:
  """The table of a text, with rows and columns exchanged where it has many columns; what follows it as a list."""
  cells = [[markdown.escape(cell) for cell in row] for row in _cells(text)]
  if len(cells[0]) > FEW:
    cells = [list(row) for row in zip(*cells, strict=True)]
  return f'{markdown.table(cells[0], cells[1:])}\n\n{_escaped_list(text)}'


def _escaped_list(text: str) -> str:
  return '\n'.join(f'- {markdown.escape(line[2:])}' for line in text.splitlines() if line.startswith('- '))


def _cells(text: str) -> list[list[str]]:
  """The cells of the first table of a text, without the line under its head."""
  lines = [line for line in text.splitlines() if line.startswith('|')]
  rows = [[cell.strip() for cell in re.split(r'(?<!\\)\|', line)[1:-1]] for line in lines]
  return [row for row in rows if not all(set(cell) <= {'-', ':'} and cell for cell in row)]


def _title(text: str) -> str:
  """Return the title, with the size of a larger network than the table's smallest."""
  size = re.search(r'^- Scale: (5|30)m\.', text, re.MULTILINE)
  return text.partition('\n')[0].removeprefix('# ') + (f' ({size[1]} million parameters)' if size else '')
