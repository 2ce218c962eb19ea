"""Tables on stdout and in files.

Cells are shown literally: brackets and colons in names and texts are not rich markup or emoji.
"""

import functools
import io
from collections.abc import Collection, Iterable

from rich.console import Console
from rich.table import Table

_plain = functools.partial(Console, markup=False, emoji=False)


def new(columns: Iterable[str], *, title: str | None = None, left: Collection[str] = ()) -> Table:
  """Create a table whose columns are aligned right, except those in `left`."""
  table = Table(title=title)
  for column in columns:
    table.add_column(column, justify='left' if column in left else 'right')
  return table


def show(table: Table) -> None:
  """Print a table in the terminal's width, in a file uncropped."""
  console = _plain()
  if not console.is_terminal:
    console = _plain(width=max(console.width, _width(table)))
  console.print(table)


def text(table: Table) -> str:
  """Render a table in its full width."""
  stream = io.StringIO()
  _plain(file=stream, width=_width(table)).print(table)
  return stream.getvalue()


def _width(table: Table) -> int:
  return _plain(width=2**16).measure(table).maximum
