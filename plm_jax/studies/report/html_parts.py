"""HTML for a report. Every text of a run comes in by `text` or `data`, which leave nothing that could end a tag."""

import html
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class Cell(NamedTuple):
  """A cell of a table.

  Attributes:
    shown: its text.
    key: the number that it is sorted by; None sorts by the text.
    quiet: whether it says nothing new.
  """

  shown: str
  key: float | None = None
  quiet: bool = False


SORTED = 3  # fewest rows of a table that sorts
NOTHING = Cell('', None)


def text(value: Any) -> str:
  """A value as text of a page, in a tag or between quotation marks."""
  return html.escape(str(value), quote=True)


def data(value: Any) -> str:
  """A value as JSON for a script: without the signs that HTML gives a meaning, and strict."""
  plain = json.dumps(value, separators=(',', ':'), allow_nan=False, ensure_ascii=True)
  return plain.replace('<', '\\u003c').replace('>', '\\u003e').replace('&', '\\u0026')


def number(value: Any, digits: int = 5) -> Cell:
  """A number; an empty cell for anything else."""
  if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
    return NOTHING
  shown = f'{value:,}' if isinstance(value, int) else f'{value:.{digits}g}'
  return Cell(shown, float(value))


def table(heads: Sequence[str], rows: Iterable[Sequence[Cell]], *, label: str, left: bool = False) -> str:
  """A table that sorts by its heads, in a box of its own that scrolls; its first column stays in sight.

  Args:
    heads: of the columns.
    rows: as many cells each.
    label: what the table is, for readers that do not see it.
    left: whether numbers stand on the left, where a column holds other things too.
  """
  lines = [''.join(_cell(cell, first=not place) for place, cell in enumerate(row)) for row in rows]
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
  kinds = ' '.join(name for name, there in (('number', cell.key is not None), ('quiet', cell.quiet)) if there)
  kind = f' class="{kinds}"' if kinds else ''
  tag, scope = ('th', ' scope="row"') if first else ('td', '')
  return f'<{tag}{scope}{key}{kind}>{text(cell.shown)}</{tag}>'


def facts(pairs: Iterable[tuple[str, str]]) -> str:
  """Names and what they stand for."""
  return f'<dl>{"".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in pairs)}</dl>'


def bullets(items: Iterable[str]) -> str:
  """A list of texts."""
  return f'<ul>{"".join(f"<li>{text(item)}</li>" for item in items)}</ul>'


def section(name: str, title: str, body: str, *, note: str = '') -> str:
  """A part of the page under a heading that links lead to; `note` is a sentence below the heading."""
  said = f'<p class="note">{text(note)}</p>' if note else ''
  return f'<section id="{name}"><h2>{text(title)}</h2>{said}{body}</section>'


def folded(title: str, body: str) -> str:
  """A part that opens on demand."""
  return f'<details><summary>{text(title)}</summary>{body}</details>'
