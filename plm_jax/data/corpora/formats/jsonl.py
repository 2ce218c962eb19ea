"""JSON lines: one object per line with the fields of a row."""

import json
import re

from plm_jax.data.corpora import local
from plm_jax.data.corpora.records import Opened
from plm_jax.io import files

SUFFIXES = ('.jsonl',)
SCHEME = None


def open(path: local.File, split: str, cache: str) -> Opened:
  """Open the rows of a file."""
  path.check_line_ends()
  first = next((line.strip() for line in path.lines() if line.strip()), b'')
  if re.match(rb'\[\s*(\{|$)', first) or first == b'{' or re.match(rb'\{"(version": *"[^"]*", *")?data": *\[\{', first):
    raise ValueError(f'{path.path} holds one JSON value over several lines: {local.renamed(path.path, ".json")}')
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
