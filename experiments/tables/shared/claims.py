"""Published numbers and claims of tables."""

from collections.abc import Mapping, Sequence
from typing import Any


def by_column(columns: Sequence[str], published: Sequence[float]) -> dict[str, float]:
  """Return the published numbers of a row by column."""
  return dict(zip(columns, published, strict=True))


def measured(columns: Mapping[str, Mapping[str, Any]]) -> list[str]:
  """Return the columns that are not empty."""
  return [name for name, column in columns.items() if 'empty' not in column]


def claims(columns: Sequence[str], *pairs: tuple[str, str]) -> list[dict[str, str]]:
  """Return a claim for each pair (better row, than row) and column."""
  return [dict(column=column, better=better, than=than) for better, than in pairs for column in columns]


def claimed(
  columns: Mapping[str, Mapping[str, Any]],
  rows: Mapping[str, Mapping[str, Any]],
  *pairs: tuple[str, str] | tuple[str, str, Sequence[str]],
  asked: Sequence[str] = (),
) -> list[dict[str, Any]]:
  """Return claims of pairs for the columns in which the paper's numbers agree.

  An empty column has no claim: the table gives the reason.

  Args:
    columns: of the table.
    rows: of the table.
    *pairs: what the text of the paper concludes, and the columns that it concludes it for; without them, all.
    asked: columns in which the rows are compared too, although the paper lacks a number or does not claim a difference.
  """

  def says(column: str, better: str, than: str) -> bool | None:
    first, second = (rows[row].get('published', {}).get(column) for row in (better, than))
    if first is None or second is None:
      return None
    return first < second if columns[column].get('better') == 'min' else first > second

  def is_measured(column: str, *both: str) -> bool:
    return not any(rows[row].get('empty') or column in rows[row].get('without', {}) for row in both)

  found = []
  for better, than, *named in pairs:
    for column in filter(lambda column: is_measured(column, better, than), measured(columns)):
      agrees = says(column, better, than)
      if agrees and column in (named[0] if named else columns):
        found.append(dict(column=column, better=better, than=than))
      elif agrees is not False and column in asked:
        found.append(dict(column=column, better=better, than=than, asked=True))
  return found
