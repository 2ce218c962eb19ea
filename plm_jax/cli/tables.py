"""Tables on stdout."""

import functools

from rich.console import Console
from rich.table import Table


def show(table: Table) -> None:
  """Prints a table: as wide as the terminal, and in a pipe or a file as wide as it is, so that nothing is cut.

  Cells are shown as they are: brackets and colons in names and texts are no markup and no pictures.
  """
  plain = functools.partial(Console, markup=False, emoji=False)
  console = plain()
  if not console.is_terminal:
    console = plain(width=max(console.width, plain(width=2**16).measure(table).maximum))
  console.print(table)
