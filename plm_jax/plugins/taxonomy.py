"""Where each model, objective and adapter stands in the field: the four ways in which Qiu et al. 2020, §3, order it.

A row is read from the `PAPER` of a file (`types.Paper`). Its four ways are the representation (does a word's vector
depend on its neighbours?), the architecture, the pre-training task with the origin of its labels, and the extension.
"""

from typing import Any

from plm_jax.plugins import signatures

KINDS = ('models', 'objectives', 'adapters')
COLUMNS = (
  'kind', 'name', 'representation', 'architecture', 'task', 'supervision', 'extension', 'adapters', 'year', 'paper',
)  # fmt: skip


def rows() -> list[dict[str, Any]]:
  """One row for each file, by kind, year and name; the keys are `COLUMNS`."""
  found = [_row(kind, name) for kind in KINDS for name in signatures.names(kind)]
  return sorted(found, key=lambda row: (KINDS.index(row['kind']), row['year'], row['name']))


def _row(kind: str, name: str) -> dict[str, Any]:
  fields = {field: keyword.default for field, keyword in signatures.keywords('types', 'Paper').items()}
  paper = fields | signatures.paper(f'{kind}.{name}')
  representation = {'static': 'non-contextual', 'any': 'any'}.get(paper['architecture'], 'contextual')
  return {
    'kind': kind,
    'name': name,
    'representation': representation,
    'architecture': paper['architecture'],
    'task': paper['objective_family'],
    'supervision': paper['supervision'],
    'extension': paper['extension'],
    'adapters': list(paper['adapters']),
    'year': paper['year'],
    'paper': paper['title'],
  }


def cells(row: dict[str, Any]) -> list[str]:
  """A row as texts: lists with commas, nothing for what it has not."""
  return [', '.join(row[one]) if isinstance(row[one], list) else str(row[one] or '') for one in COLUMNS]


def markdown(table: list[dict[str, Any]]) -> str:
  """The rows as a table of Markdown."""
  lines = [list(COLUMNS), ['---'] * len(COLUMNS), *map(cells, table)]
  return '\n'.join(f'| {" | ".join(line)} |' for line in lines)
