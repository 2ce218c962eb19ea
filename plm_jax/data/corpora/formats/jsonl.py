"""JSON lines: one object per line with the fields of a row."""

import json

from plm_jax.data.corpora import local
from plm_jax.data.corpora.records import Opened
from plm_jax.io import files

SUFFIXES = ('.jsonl',)
SCHEME = None


def open(path: local.File, split: str, cache: str) -> Opened:
  """Open the rows of a file."""
  rows = local.Rows(path, local.line_spans(path.lines()), parse)
  return Opened(rows, f'{path.digest(cache=cache)} rows')


def parse(text: str) -> local.Row:
  """Parse one line."""
  try:
    row = files.parse_json(text)
  except json.JSONDecodeError as error:
    raise local.BadRow(f'not valid JSON ({error.msg} at character {error.pos})') from error
  if not isinstance(row, dict):
    raise local.BadRow(f'a JSON object is needed, got {type(row).__name__}')
  return row
