"""Labelled records: which fields hold the text, which rows have a label, and which are drawn for few-shot runs.

What the files of `kinds/` share.
"""

import dataclasses
import json
import logging
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from plm_jax.data.corpora.records import Records
from plm_jax.data.rows import order, store

log = logging.getLogger(__name__)

IN_MEMORY = 1_000_000  # rows; more are tokenised through the store on disk
KEPT_ROWS, KEPT_SOURCES = 20_000, 4
_NAMES_SHOWN = 50
_kept: dict[tuple[str, ...], list[dict[str, Any]]] = {}
_FIELDS = (
  ('sentence1', 'sentence2'),
  ('premise', 'hypothesis'),
  ('question1', 'question2'),
  ('question', 'sentence'),
  ('sentence',),
  ('text',),
)


Place = Callable[[np.ndarray, np.ndarray, int], np.ndarray]
Added = Callable[[np.ndarray, int], order.Batch]
Record = Callable[[int], dict[str, Any]]


class Asked(NamedTuple):
  """What a config says about the rows; the arguments of `labelled.make` with these names."""

  fields: tuple[str, ...]
  label: str
  per_class: int | None
  sample_seed: int
  missing: float
  keep_unlabelled: bool = False


class Examples(NamedTuple):
  """The rows that are kept.

  A row is `sequences` sequences of tokens, each of `len(fields)` fields; the texts of a field are tokenised one by one.

  `add(offsets, place)` returns a function from some rows to the arrays that a batch has beside their tokens:
  (chosen int64[b], width) -> dict, where `chosen` are numbers of kept rows and rows of this batch are `width` tokens
  long. `offsets` int64[texts+1] says where the tokens of each text begin. `place(values, chosen, width)` takes a value
  int32 per token of all texts and puts it where the token stands in these rows, -1 elsewhere: int32[b, width], or
  [b, sequences, width] where there are several.

  `record(offsets)` returns a function from the number of a kept row to what `Source.record` says of it.

  Attributes:
    texts: those of row 0, of its first sequence and in it of the first field, come first.
    edges: int64[rows*sequences*fields+1], `texts[edges[i]:edges[i+1]]` make up field i of all.
    row_ids: int64[rows], their places in the split.
    fields: names of the fields, in order.
    add: see above.
    names: of the classes.
    classes: labels are 0 to classes - 1; 0 where there are none.
    sequences: per row; more than one where a row holds options to choose from.
    record: see above.
    unlabelled: some rows have no label.
  """

  texts: store.Texts
  edges: np.ndarray
  row_ids: np.ndarray
  fields: tuple[str, ...]
  add: Callable[[np.ndarray, Place], Added]
  names: tuple[str, ...] = ()
  classes: int = 0
  sequences: int = 1
  record: Callable[[np.ndarray], Record] | None = None
  unlabelled: bool = False


def fields_of(records: Records, asked: Asked) -> tuple[str, ...]:
  """The fields that hold the text: those asked for, or the names that TFDS uses for single sentences and pairs.

  Raises:
    ValueError: there are no such fields, or no such label.
  """
  fields = asked.fields or next((names for names in _FIELDS if all(name in records.fields for name in names)), ())
  if not fields:
    raise ValueError(f'{records.where}: say which fields hold the text (fields=...): {", ".join(records.fields)}.')
  for name in (*fields, *(() if asked.keep_unlabelled else (asked.label,))):
    if name not in records.fields:
      raise ValueError(f'{records.where}: there is no field {name!r}, there are {", ".join(records.fields)}.')
  return fields


class ClassNames:
  """Numbers of classes. Rows hold them, or names, whose numbers are their places in the list of `labels.json`.

  Attributes:
    names: of the classes, () where the data has no list.
    digest: what it adds to the digest of the rows: the list, if a number came from it.
  """

  def __init__(self, records: Records, field: str):
    self.records = records
    self.field = field
    self.names = records.labels.get(field, ())
    self.digest: tuple[Any, ...] = ()

  def number(self, value: Any, index: int, *, least: int = 0) -> int:
    """The number of a class.

    Args:
      value: what row `index` holds.
      index: of the row, for the message.
      least: the smallest number allowed.

    Raises:
      ValueError: neither a whole number from `least` on nor one of the names.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
      return value
    if isinstance(value, str) and value in self.names:
      self.digest = (self.names,)
      return self.names.index(value)
    where = f'row {index} of {self.records.where}: {self.field!r} holds {value!r}'
    if isinstance(value, str) and self.names:
      raise ValueError(f'{where}, and labels.json names {", ".join(self.names)}')
    if isinstance(value, str):
      found = json.dumps({self.field: sorted(self._found())[:_NAMES_SHOWN]}, ensure_ascii=False)
      raise ValueError(f'{where}; classes are numbers from 0, or names that labels.json beside the data lists: {found}')
    raise ValueError(f"{where}; classes are numbers from {least}, real values are kind='regression'.")

  def _found(self) -> set[str]:
    """The names that rows hold."""
    found: set[str] = set()
    for row in self.records:
      value = row.get(self.field)
      found |= {name for name in (value if isinstance(value, list) else [value]) if isinstance(name, str)}
    return found


def one_label(
  records: Records,
  asked: Asked,
  *,
  kind: str,
  label: Callable[[Any, int], float],
  dtype: type,
  names: ClassNames | None = None,
) -> Examples:
  """Rows of texts with one label each. Rows without a label are left out, or kept with label -1 where that is asked.

  Args:
    records: the split.
    asked: fields, label, and which rows are drawn.
    kind: the name of the kind, for the digest.
    label: (what a row holds, number of the row) -> its label; raises a ValueError.
    dtype: of the labels.
    names: of the classes; None for real values.

  Raises:
    ValueError: a row without one of the fields, no row with a label, or a class with too few rows.
  """
  fields = fields_of(records, asked)
  there = asked.label in records.fields
  table = in_memory(records, fields=(*fields, asked.label) if there else fields)
  every = [table.value(index, asked.label) if there else None for index in range(len(table))]
  has_label = np.array([value is not None and value != asked.missing for value in every])
  row_ids = np.arange(len(every)) if asked.keep_unlabelled else np.flatnonzero(has_label)
  if not len(row_ids):
    raise ValueError(
      f'{records.where}: none of {len(every)} rows has a label ({asked.label!r} is {asked.missing} in all): '
      'keep_unlabelled=True keeps them, to be predicted.'
    )
  if len(row_ids) < len(every):
    log.info(f'{records.where}: {len(every) - len(row_ids)} rows without a label are left out.')
  gold = [label(every[index], index) if has_label[index] else None for index in row_ids.tolist()]
  labels: np.ndarray = np.array([-1 if value is None else value for value in gold], dtype)
  classes = 0 if names is None else int(labels.max()) + 1
  if asked.per_class is not None:
    if names is None or None in gold:
      what = (
        f'classes; kind={kind!r} has none' if names is None else 'a label of every row; keep_unlabelled keeps others'
      )
      raise ValueError(f'{records.where}: per_class={asked.per_class} needs {what}.')
    drawn = balanced(labels, asked.per_class, sample_seed=asked.sample_seed, where=records.where)
    labels, row_ids, gold = labels[drawn], row_ids[drawn], [gold[place] for place in drawn]
  added = (() if names is None else names.digest) + (('keep_unlabelled',) if asked.keep_unlabelled else ())
  class_names = records.labels.get(asked.label, ())

  def record(row: int) -> dict[str, Any]:
    return {'row': records[int(row_ids[row])], 'label': gold[row], 'names': class_names}

  digest = store.digest_of(
    records.digest, fields, asked.label, kind, asked.per_class, asked.sample_seed, asked.missing, *added
  )
  return Examples(
    texts=FieldTexts(table, fields, row_ids, digest),
    edges=np.arange(len(row_ids) * len(fields) + 1),
    row_ids=row_ids,
    fields=fields,
    add=lambda offsets, place: lambda chosen, width: {'label': labels[chosen]},
    names=class_names,
    classes=classes,
    record=lambda offsets: record,
    unlabelled=None in gold,
  )


def in_memory(records: Records, *, fields: tuple[str, ...]) -> Records:
  """The same rows with these fields only, read at once; large data is returned as it is.

  Small sources are kept for later calls: studies draw from one again and again.

  Raises:
    ValueError: a row that lacks one of the fields.
  """
  if len(records) > IN_MEMORY:
    return records
  key = (records.digest, *fields)
  if key not in _kept:
    table = [{name: records.value(index, name) for name in fields} for index in range(len(records))]
    if len(table) > KEPT_ROWS:
      return _of(records, table, fields)
    if len(_kept) == KEPT_SOURCES:
      _kept.pop(next(iter(_kept)))
    _kept[key] = table
  return _of(records, _kept[key], fields)


def _of(records: Records, table: list[dict[str, Any]], fields: tuple[str, ...]) -> Records:
  return dataclasses.replace(records, fields=fields, pieces=((table, range(len(table))),))


class FieldTexts:
  """The fields of some rows, one after another."""

  def __init__(self, records: Records, fields: tuple[str, ...], row_ids: np.ndarray, digest: str):
    self.records = records
    self.fields = fields
    self.row_ids = row_ids
    self.digest = digest

  def __len__(self) -> int:
    return len(self.row_ids) * len(self.fields)

  def __getitem__(self, index: int) -> str:
    row, field = divmod(index, len(self.fields))
    return self.records.text(int(self.row_ids[row]), self.fields[field])


class ListedTexts(list[str]):
  """Texts in memory.

  Attributes:
    digest: of their content.
  """

  def __init__(self, texts: Iterable[str], digest: str):
    super().__init__(texts)
    self.digest = digest


def balanced(labels: np.ndarray, per_class: int, *, sample_seed: int, where: str = 'the data') -> np.ndarray:
  """Draws `per_class` rows of each class: their places int64[n], in order. A larger draw contains the smaller ones.

  Raises:
    ValueError: a class has too few rows.
  """
  drawn = []
  for value in np.unique(labels):
    rows = np.flatnonzero(labels == value)
    if len(rows) < per_class:
      raise ValueError(f'{where}: per_class={per_class}, but class {value} has only {len(rows)} rows.')
    drawn.append(rows[order.permutation(len(rows), sample_seed, int(value))[:per_class]])
  return np.sort(np.concatenate(drawn))
