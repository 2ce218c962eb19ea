"""Several classes per example: a list of them, or a column of 0 and 1 for each.

  a row of the data                                       data.label
  {"text": "Oh !", "labels": ["joy", "surprise"]}         labels: names, or indices from 0
  {"text": "Oh !", "labels": [1, 0, 0, 1]}                labels: 0 or 1 for each class
  text,labels  /  Oh !,joy; surprise                      labels, with separator=';'
  text,joy,fear,surprise  /  Oh !,1,0,1                   '{joy|fear|surprise}', the columns in the order of classes

A list of 0 and 1 counts as flags if all lists of the training split have one length of two or more. Names are ordered
as in labels.json, as the columns, or else sorted. An example with an empty list, or only 0, has none of the classes. An
example without the field, or with null or `missing` there or in every column, has no label.
"""

import dataclasses
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from plm_jax.data.corpora import cells
from plm_jax.data.corpora.records import Records, as_written
from plm_jax.data.rows import examples
from plm_jax.data.rows.checked import BadSplit
from plm_jax.data.rows.class_names import ClassNames
from plm_jax.data.rows.field_texts import FieldTexts

log = logging.getLogger(__name__)

GIVES = ('classes',)
QUICK = dict(path='pydocs/parameters', fields=('tokens',), label='tags')  # settings of a smoke test (`file.py:quick`)
_COLUMNS = re.compile(r'\{([^{}]+\|[^{}]+)\}')
_MARKS = ';|,\t'  # may separate classes in a cell
_LEAST = 20  # examples by which classes are judged
_FLAGS = {'0': 0, '0.0': 0, 'false': 0, 'no': 0, '1': 1, '1.0': 1, 'true': 1, 'yes': 1}


def make(*, records: Records, asked: examples.ExampleSettings) -> examples.Examples:
  """Read the labelled rows; adds `classes` int32[b, classes]."""
  if asked.per_class is not None:
    raise ValueError(
      f"{records.where}: per_class={asked.per_class} needs one class per example; kind='multilabel' has several: "
      'remove it.'
    )
  found = _COLUMNS.fullmatch(asked.label)
  columns = tuple(found[1].split('|')) if found else ()
  own, records = records, _joined(records, columns, asked) if columns else records
  reader = _Reader(records, asked, flags=bool(columns))
  fields = examples.fields_of(records, asked)
  rows = examples.read_rows(records, asked, fields=fields, label=reader.classes)
  names = reader.settled()
  indices = [[] if row is None else row for row in rows.labels]
  count = max(len(names), 1 + max((max(row) for row in indices if row), default=-1), reader.width)
  table = np.zeros((len(indices), count), np.int8)  # [rows, classes]
  table[np.repeat(np.arange(len(indices)), [len(row) for row in indices]), [i for row in indices for i in row]] = 1
  table[[row is None for row in rows.labels]] = -1
  if empty := sum(row == [] for row in rows.labels):
    log.info(f'{records.where}: {empty} of {len(indices)} examples have none of the classes.')
  changes = (*reader.names.digest, *['flags'] * reader.flags, *[asked.separator] * bool(asked.separator))
  labelled = table[table.min(axis=1, initial=0) >= 0]
  decided = labelled.min(axis=0, initial=1) < labelled.max(axis=0, initial=0)
  constant = [(names or range(count))[index] for index in np.flatnonzero(~decided)]
  if own.named_by is None and len(labelled) >= _LEAST and constant:
    shown = ', '.join(map(str, constant[:5])) + ', ...' * (len(constant) > 5)
    log.warning(
      f'{records.where}: {len(constant)} of {count} classes are in no example, or in each: {shown}. Nothing can be '
      'learned about them: correct the labels, or remove these classes'
    )
  digest = examples.digest_of(records, asked, fields, 'multilabel', *changes, left_out=rows.left_out)

  def record(row: int) -> dict[str, Any]:
    return {'row': own[int(rows.row_ids[row])], 'classes': rows.labels[row], 'names': names}

  return examples.Examples(
    texts=FieldTexts(rows.table, fields, rows.row_ids, digest, prefixes=asked.prefixes),
    edges=np.arange(len(indices) * len(fields) + 1),
    row_ids=rows.row_ids,
    fields=fields,
    add=lambda offsets, place: lambda chosen, width: {'classes': table[chosen].astype(np.int32)},
    names=names,
    classes=count,
    record=lambda offsets: record,
    unlabelled=None in rows.labels,
    largest=records.place(int(rows.row_ids[max(range(len(indices)), key=lambda row: max(indices[row], default=-1))])),
  )


class _Reader:
  """Reader of the classes of rows; `flags` of 0 and 1 have `width` entries each."""

  def __init__(self, records: Records, settings: examples.ExampleSettings, *, flags: bool):
    self._records, self._settings, self.width = records, settings, 0
    self.names = ClassNames(records, settings.label, split=self._listed, missing=settings.missing)
    self.flags = flags or self._hold_flags()

  def classes(self, value: Any, index: int) -> list[int] | None:
    """Return the classes of a row, ascending; None if unknown."""
    where = f'row {index} of {self._records.where}: {self._settings.label!r} holds {value!r}'
    listed = self._listed(value)
    if not isinstance(listed, list) or any(isinstance(entry, list | dict) for entry in listed):
      raise ValueError(f'{where}; use a list of classes, columns of 0 and 1, or a text with data.separator')
    if self.flags:
      return self._flagged(listed, where)
    separator = self._settings.separator
    whole = value if isinstance(value, str) and listed == [value] and separator is None else ''
    if mark := next((mark for mark in _MARKS if mark in whole), ''):
      raise BadSplit(f"{where}: set data.separator={mark!r} if it is several classes, '' if it is one")
    return sorted({self.names.number(entry, index) for entry in listed})

  def _flagged(self, listed: list[Any], where: str) -> list[int] | None:
    absent = [entry is None or entry in ('', self._settings.missing) for entry in listed]
    if all(absent):
      return None
    flags = list(map(_flag, listed))
    self.width = self.width or len(self._records.labels.get(self._settings.label, flags))
    if None in flags or len(flags) != self.width:
      raise ValueError(f'{where}; use 0 or 1 for each of the {self.width} classes')
    return [place for place, flag in enumerate(flags) if flag]

  def settled(self) -> tuple[str, ...]:
    """Return the names; raise BadSplit if a separator is missing."""
    names = self.names.settled() if not self.flags else self._records.labels.get(self._settings.label, ())
    joined = next((name for name in names if len(parts := name.split()) > 1 and set(parts) < set(names)), None)
    if joined and self._settings.separator is None and not self.names.listed:
      raise BadSplit(
        f'{self._records.where}: {self._settings.label!r} has the class {joined!r} and each of its words: set '
        "data.separator=' ' if it is several classes, '' if it is one"
      )
    return names

  def _listed(self, value: Any) -> Any:
    if isinstance(value, str) and value.strip()[:1] == '[':
      return value if (parsed := cells.parse(value)) is None else parsed
    if isinstance(value, str) and self._settings.separator:
      value = [part.strip() for part in value.split(self._settings.separator) if part.strip()]
    return [] if value == '' else [value] if isinstance(value, str | int | float) else value

  def _hold_flags(self) -> bool:
    records, width = self.names.training(), 0
    for row in (self._records if records is None else records).readable():
      value = row.get(self._settings.label)
      if value is None or value in ('', self._settings.missing):
        continue
      listed = self._listed(value)
      flags = isinstance(listed, list) and all(isinstance(entry, int | float) and entry in (0, 1) for entry in listed)
      if not flags or len(listed) < 2 or width not in (0, len(listed)):
        return False
      width = len(listed)
    self.width = width
    return width > 0


def flag_columns(records: Records, others: Collection[str] = ()) -> tuple[str, ...]:
  """Return the fields of 0 and 1; () for fewer than two."""
  rows = list(records.readable(examples.LOOKED_AT))
  names = [name for name in records.fields if name not in others]
  flags = [name for name in names if rows and None not in [_flag(row.get(name)) for row in rows]]
  return tuple(flags) if len(flags) > 1 else ()


def _flag(value: Any) -> int | None:
  return _FLAGS.get(str(as_written(value)).strip().lower())


class _Joined(Sequence[Mapping[str, Any]]):
  """Rows with the list of some columns as another field."""

  def __init__(self, records: Records, columns: tuple[str, ...], field: str):
    self._records, self._columns, self._field = records, columns, field
    self.place = records.place

  def __len__(self) -> int:
    return len(self._records)

  def __getitem__(self, index: int) -> Mapping[str, Any]:  # type: ignore[override]  # no slices
    row = self._records[index]
    return {**row, self._field: [row.get(name) for name in self._columns]}


def _joined(records: Records, columns: tuple[str, ...], settings: examples.ExampleSettings) -> Records:
  missing = [name for name in columns if name not in records.fields and not examples.is_somewhere(name, records)]
  if missing and not settings.keep_unlabelled:
    raise ValueError(f'{records.where}: no field {missing[0]!r} (data.label); choose from {", ".join(records.fields)}.')
  rows = _Joined(records, columns, settings.label)
  fields, pieces = (*records.fields, settings.label), ((rows, range(len(rows))),)
  return dataclasses.replace(records, fields=fields, labels={settings.label: columns}, pieces=pieces, named_by=None)
