"""Convert the Markdown of `plm-jax tables` to HTML: headings, paragraphs, lists and tables."""

import re
from collections.abc import Iterator, Sequence

from plm_jax.studies.report import html_parts
from plm_jax.studies.report.html_parts import Cell

_NUMBER = re.compile(r'[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?')


def as_html(content: str, *, label: str) -> str:
  """Convert a `table.md` to HTML, its title below that of the section."""
  return ''.join(_block(kind, lines, label) for kind, lines in _blocks(content))


def _blocks(content: str) -> Iterator[tuple[str, list[str]]]:
  """Split Markdown into (kind, lines): '|' table, '- ' list, '#' heading."""
  kind, lines = '', list[str]()
  for line in [*content.splitlines(), '']:
    line_kind = next((mark for mark in ('|', '- ', '#') if line.startswith(mark)), '')
    if lines and (line_kind != kind or not line.strip() or kind == '#'):
      yield kind, lines
      lines = []
    kind = line_kind
    if line.strip():
      lines.append(line)


def _block(kind: str, lines: Sequence[str], label: str) -> str:
  if kind == '#':
    depth = len(lines[0]) - len(lines[0].lstrip('#'))
    tag = 'h3' if depth == 1 else 'h4'
    return f'<{tag}>{html_parts.text(lines[0].lstrip("# "))}</{tag}>'
  if kind == '- ':
    return html_parts.bullets(line.removeprefix('- ') for line in lines)
  if kind == '|':
    rows = [[part.strip() for part in line.strip().strip('|').split('|')] for line in lines]
    heads, body = rows[0], [row for row in rows[1:] if set(''.join(row)) - set('-: ')]
    width = len(heads)
    return html_parts.table(
      heads, ([*map(cell, row), *[html_parts.NOTHING] * width][:width] for row in body), label=label
    )
  return f'<p>{html_parts.text(" ".join(lines).replace("`", ""))}</p>'


def cell(shown: str) -> Cell:
  """Build a cell, sorted by the number that it begins with."""
  match = _NUMBER.match(shown)
  return Cell(shown, float(match[0].replace(',', '').replace('−', '-')) if match else None)
