"""Build HTML for a report; every text of a run passes through `text` or `data`, which escape it."""

import html
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class Cell(NamedTuple):
  """A cell of a table."""

  shown: str  # its text
  key: float | None = None  # number to sort by; None sorts by the text
  quiet: bool = False  # whether it is shown in grey


SORTED = 3  # minimum rows of a sortable table
NOTHING = Cell('', None)


def text(value: Any) -> str:
  """Escape a value as text or as an attribute of a page."""
  return html.escape(str(value), quote=True)


def data(value: Any) -> str:
  """Encode a value as strict JSON without special characters of HTML."""
  plain = json.dumps(value, separators=(',', ':'), allow_nan=False, ensure_ascii=True)
  return plain.replace('<', '\\u003c').replace('>', '\\u003e').replace('&', '\\u0026')


def number(value: Any, digits: int = 5) -> Cell:
  """Build the cell of a number; an empty cell for anything else."""
  if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
    return NOTHING
  shown = f'{value:,}' if isinstance(value, int) else f'{value:.{digits}g}'
  return Cell(shown, float(value))


def table(heads: Sequence[str], rows: Iterable[Sequence[Cell]], *, label: str, left: bool = False) -> str:
  """Build a scrollable, sortable table whose first column stays visible.

  `left` aligns numbers on the left, as in a column of mixed types.
  """
  lines = [''.join(_cell(cell, first=not index) for index, cell in enumerate(row)) for row in rows]
  sorts = len(lines) >= SORTED
  names = [f'<button type="button">{text(head)}</button>' if sorts else text(head) for head in heads]
  buttons = ''.join(f'<th scope="col">{name}</th>' for name in names)
  body = ''.join(f'<tr>{line}</tr>' for line in lines)
  kind = 'frozen left' if left else 'frozen'
  return (
    f'<div class="scroll" role="region" tabindex="0" aria-label="{text(label)}"><table class="{kind}">'
    f'<thead><tr>{buttons}</tr></thead><tbody>{body}</tbody></table></div>'
  )


def _cell(cell: Cell, *, first: bool) -> str:
  key = '' if cell.key is None else f' data-key="{cell.key!r}"'
  kinds = ' '.join(name for name, applies in (('number', cell.key is not None), ('quiet', cell.quiet)) if applies)
  kind = f' class="{kinds}"' if kinds else ''
  tag, scope = ('th', ' scope="row"') if first else ('td', '')
  return f'<{tag}{scope}{key}{kind}>{text(cell.shown)}</{tag}>'


def bullets(items: Iterable[str]) -> str:
  """Build a list of texts."""
  return f'<ul>{"".join(f"<li>{text(item)}</li>" for item in items)}</ul>'


def section(name: str, title: str, body: str, *, note: str = '') -> str:
  """Build a section with a linked heading and a `note`."""
  paragraph = f'<p class="note">{text(note)}</p>' if note else ''
  return f'<section id="{name}"><h2>{text(title)}</h2>{paragraph}{body}</section>'


def folded(title: str, body: str) -> str:
  """Build a part that opens on demand."""
  return f'<details><summary>{text(title)}</summary>{body}</details>'
