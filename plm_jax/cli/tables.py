"""Tables on stdout and in files.

Cells are shown as they are: brackets and colons in names and texts are no markup and no pictures.
"""

import functools
import io

from rich.console import Console
from rich.table import Table

_plain = functools.partial(Console, markup=False, emoji=False)


def show(table: Table) -> None:
  """Prints a table: as wide as the terminal, and in a pipe or a file as wide as it is, so that nothing is cut."""
  console = _plain()
  if not console.is_terminal:
    console = _plain(width=max(console.width, _width(table)))
  console.print(table)


def text(table: Table) -> str:
  """A table as a file holds it, as wide as it is."""
  stream = io.StringIO()
  _plain(file=stream, width=_width(table)).print(table)
  return stream.getvalue()


def _width(table: Table) -> int:
  return _plain(width=2**16).measure(table).maximum
