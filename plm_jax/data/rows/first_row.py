"""Guesses of the fields of texts and labels: known names first, then a row with only one reading.

A user's own table has other columns than a published set. The first row is inspected. If it can be read in two ways, an
error lists its fields.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from plm_jax.data.corpora import local
from plm_jax.data.corpora.records import Records, as_written
from plm_jax.data.rows import entity_tags, examples
from plm_jax.data.rows.class_names import one_by_one
from plm_jax.data.rows.field_texts import known, named, text_of
from plm_jax.data.rows.kinds import multilabel, options
from plm_jax.io import files

# Names of the label field by kind of examples; the first that exists counts.
LABELS = {
  'class': ('label', 'labels', 'class', 'category', 'target', 'sentiment', 'intent', 'topic'),
  'multilabel': ('labels', 'label', 'classes', 'categories', 'tags', 'emotions', 'genres', 'topics'),
  'regression': ('label', 'score', 'value', 'rating', 'similarity', 'target'),
  'words': ('tags', 'ner_tags', 'pos_tags', 'labels', 'label', 'upos', 'entities', 'spans'),
  'arcs': ('deprel', 'relations', 'relation', 'labels'),
  'options': ('label', 'answer', 'answers', 'correct', 'gold'),
  'spans': ('answers', 'answer'),
  'text': ('target', 'summary', 'translation', 'label'),
}
# Names of the text fields, for the kinds without their own list.
TEXTS = {
  'words': (('tokens',), ('words',), ('text',), ('sentence',)),
  'arcs': (('tokens', 'head'), ('tokens', 'heads'), ('words', 'head'), ('words', 'heads')),
  'spans': (('question', 'context'),),
}
NUMBERS = ('id', 'idx', 'index', 'guid', 'uid', 'row_id')  # fields that identify a row
_NO_LABELS = {'words': ('text', 'sentence', 'tokens', 'words'), 'spans': ('title', 'question', 'context')}
_MOST = 2  # texts with unknown field names in a row
_FEW = 3  # values of a field that may be a class of several


def with_fields(records: Records) -> Records:
  """Add the fields that only later rows have."""
  found = dict.fromkeys(name for row in records.readable(examples.LOOKED_AT) for name in row)
  return dataclasses.replace(records, fields=tuple(found or records.fields))


def find_label(records: Records, kind: str) -> str:
  """Return the field that holds the label.

  Raises ValueError if no field has a known name, and several are possible.
  """
  if len(listed := [name for name in records.labels if name in records.fields]) == 1:  # in labels.json
    return listed[0]
  if field := next((field for name in LABELS.get(kind, ()) if (field := named(name, records.fields))), None):
    return field
  if kind == 'multilabel' and (columns := multilabel.flag_columns(records, NUMBERS)):
    return f'{{{"|".join(columns)}}}'
  other = (*NUMBERS, *_NO_LABELS.get(kind, ()), *map(str.lower, known_texts(records, kind)))
  left = [name for name in records.fields if name.lower() not in other]
  if len(left) == 1:
    return left[0]
  if kind in ('words', 'arcs') and (hint := columns_hint(records)):
    raise ValueError(f'{records.where}: no field of tags. {hint}')
  if len(records.fields) == 1:
    raise ValueError(
      f'{records.where}: one field, {records.fields[0]}, and none for labels: write a table, as .csv with a first line '
      "'text,label'"
    )
  if not left:
    hint = '. In .conll a blank or a tab is between a word and its tag' * (kind == 'words')
    raise ValueError(f'{records.where}: fields {", ".join(records.fields)}, and none of them holds labels{hint}')
  example = min(left, key=lambda name: _different(records, name))
  flags = [name for name in left if kind == 'multilabel' and _different(records, name)[1] <= _FEW]
  example = f'"{{{"|".join(flags)}}}"' if len(flags) > 1 else example
  raise ValueError(
    f'{records.where}: unknown label field. Set it, as in --config.data.label={example}; fields: '
    f'{", ".join(records.fields)}'
  )


def columns_hint(records: Records) -> str:
  """Return how words and tags in lines are read, or ''."""
  row = _first(records)
  texts = [text for text in map(as_written, row.values()) if isinstance(text, str)]
  lines = [line.split() for text in texts for line in text.splitlines()]
  in_lines = list(row) == ['text'] and len(lines) > 0 and all(len(line) > 1 for line in lines)
  in_cells = len(texts) == len(row) > 1 and all(len(line) == 1 for line in lines)
  if not in_lines and not in_cells:
    return ''
  file = files.path(records.where.rpartition(' (')[0])
  how = local.renamed(file, '.conll') if files.is_file(file) else 'rename its files, as train.conll'
  return f'If a line is a word and its tag, {how}'


def _different(records: Records, name: str) -> tuple[bool, int]:
  values = [str(row.get(name)) for row in records.readable(examples.LOOKED_AT)]
  return len(set(values)) in (1, len(values)), len(set(values))


def find_fields(records: Records, kind: str, label: str) -> tuple[str, ...]:
  """Return the text fields in order; () if there are none.

  Raises ValueError if no field has a known name, and the first row allows several readings.
  """
  if kind == 'options':
    return options.known_fields(records) or _options(records, label)
  if fields := known_texts(records, kind):
    return fields
  held = _of_text(records, but=(label, *NUMBERS))
  if kind in ('class', 'multilabel', 'regression', 'text') and 0 < len(held) <= _MOST:
    return held
  if kind == 'words' and len(held) == 1:
    return held
  by_length = sorted(held or records.fields, key=lambda name: len(str(_first(records).get(name))))
  example = tuple(by_length[-2:] if kind == 'spans' else by_length[-1:])  # a question is shorter than its text
  raise ValueError(
    f'{records.where}: unknown text fields. Set them, as in --config.data.fields="{example}"; fields: '
    f'{", ".join(records.fields)}'
  )


def known_texts(records: Records, kind: str) -> tuple[str, ...]:
  """Return the text fields with known names, () if there are none."""
  candidates: Sequence[tuple[str, ...]] = TEXTS.get(kind, () if kind == 'options' else examples.FIELDS)
  return known(candidates, records.fields)


def _of_text(records: Records, *, but: Sequence[str]) -> tuple[str, ...]:
  """Return the fields of the first row with texts, not numbers."""
  row = _first(records)
  held = {name: value for name, value in row.items() if name not in but and not isinstance(value, int | float)}
  return tuple(name for name, value in held.items() if text_of(value) is not None)


def _options(records: Records, label: str) -> tuple[str, ...]:
  """Return a row's only text field and list of options, else ()."""
  row = _first(records)
  held = _of_text(records, but=(label, *NUMBERS))
  lists = [name for name in held if isinstance(row[name], list)]
  return (*(name for name in held if name not in lists), *lists) if len(lists) == 1 and len(held) == _MOST else ()


def holds_offsets(records: Records, label: str) -> bool:
  """Return True if the first labels are entities with character offsets."""
  values = (one_by_one(records[index].get(label)) for index in range(min(len(records), examples.LOOKED_AT)))
  return entity_tags.is_offsets(next((value for value in values if value not in (None, [], '')), None))


def _first(records: Records) -> dict[str, Any]:
  for row in records.readable(examples.LOOKED_AT):
    return row
  return records[0]  # raises its error


def check_specified(**settings: str | None) -> None:
  """Raise ValueError for a None setting, which only `train` can find."""
  if bare := [name for name, value in settings.items() if value is None]:
    raise ValueError(f'data.{bare[0]}=None is only for `train`, which finds it in the data: set it here')
