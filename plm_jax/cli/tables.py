"""Tables on stdout."""

from rich.console import Console
from rich.table import Table


def show(table: Table) -> None:
  """Prints a table: as wide as the terminal, and in a pipe or a file as wide as it is, so that nothing is cut."""
  console = Console()
  if not console.is_terminal:
    console = Console(width=max(console.width, Console(width=2**16).measure(table).maximum))
  console.print(table)
