"""Labelled records: which fields hold the text, which rows have a label, and which are drawn for few-shot runs."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from plm_jax.data.corpora import sources
from plm_jax.data.corpora.records import Records
from plm_jax.data.rows import order, store

log = logging.getLogger(__name__)

IN_MEMORY = 1_000_000  # rows; more are tokenised through the store on disk
KEPT_ROWS, KEPT_SOURCES = 20_000, 4
_kept: dict[tuple[str, ...], list[dict[str, Any]]] = {}
_FIELDS = (
  ('sentence1', 'sentence2'),
  ('premise', 'hypothesis'),
  ('question1', 'question2'),
  ('question', 'sentence'),
  ('sentence',),
  ('text',),
)


class Examples(NamedTuple):
  """The rows that have a label.

  Attributes:
    texts: the fields of row 0, then those of row 1, ...; with kind='words' the words of row 0, then those of row 1, ...
    edges: int64[rows*fields+1], `texts[edges[i]:edges[i+1]]` make up field i of all.
    labels: int32[rows] or float32[rows]; with kind='words' int32[words].
    row_ids: int64[rows], their places in the split.
    fields: names of the fields, in order.
    names: of the classes.
  """

  texts: store.Texts
  edges: np.ndarray
  labels: np.ndarray
  row_ids: np.ndarray
  fields: tuple[str, ...]
  names: tuple[str, ...]


def read(
  path: str,
  *,
  split: str,
  fields: tuple[str, ...],
  label: str,
  kind: str,
  per_class: int | None,
  sample_seed: int,
  missing: float,
  cache: str,
) -> Examples:
  """Reads a split and keeps the rows with a label, or a drawn part of them; arguments as in `labelled.make`."""
  where = f'{path} ({split})'
  if kind == 'words' and (len(fields) != 1 or per_class is not None):
    raise ValueError(f"{where}: kind='words' takes one field, of words, and no per_class: {fields=}, {per_class=}.")
  records = sources.open_source(path, split=split, cache=cache)
  if not len(records):
    raise ValueError(f'{where} has no rows.')
  present = records[0]
  if not fields:
    fields = next((names for names in _FIELDS if all(name in present for name in names)), ())
    if not fields:
      raise ValueError(f'{where}: say which fields hold the text (fields=...): {", ".join(present)}.')
  for name in (*fields, label):
    if name not in present:
      raise ValueError(f'{where} has no field {name!r}: it has {", ".join(present)}.')

  if kind == 'words':
    return _words(records, fields, label, where=where)
  table: Sequence[Mapping[str, Any]] | Records = records
  if len(records) <= IN_MEMORY:
    table = _in_memory(records, fields=(*fields, label))
  values = [missing if (value := table[index][label]) is None else value for index in range(len(table))]
  labels = np.array(values)
  row_ids = np.flatnonzero(labels != missing)
  if not len(row_ids):
    raise ValueError(f'{where}: none of {len(labels)} rows has a label ({label!r} is {missing} in all).')
  if len(row_ids) < len(labels):
    log.info('%s: %d rows without a label are left out.', where, len(labels) - len(row_ids))
  labels = labels[row_ids]
  if kind == 'regression':
    labels = labels.astype(np.float32)
  elif not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0:
    raise ValueError(
      f"{where}: {label!r} holds {labels[0]!r}; classes are numbers from 0, real values are kind='regression'."
    )
  else:
    labels = labels.astype(np.int32)
  if per_class is not None:
    drawn = balanced(labels, per_class, sample_seed=sample_seed, where=where)
    labels, row_ids = labels[drawn], row_ids[drawn]
  digest = store.digest_of(records.digest, fields, label, kind, per_class, sample_seed, missing)
  edges = np.arange(len(row_ids) * len(fields) + 1)
  texts = _Texts(table, fields, row_ids, digest)
  return Examples(texts, edges, labels, row_ids, fields, records.labels.get(label, ()))


def _in_memory(records: Records, *, fields: tuple[str, ...]) -> list[dict[str, Any]]:
  """These fields of every row; small sources are kept, for studies that draw from one again and again."""
  key = (records.digest, *fields)
  if key not in _kept:
    each = (records[index] for index in range(len(records)))
    table = [{name: record[name] for name in fields} for record in each]
    if len(table) > KEPT_ROWS:
      return table
    if len(_kept) == KEPT_SOURCES:
      _kept.pop(next(iter(_kept)))
    _kept[key] = table
  return _kept[key]


def _words(records: Records, fields: tuple[str, ...], label: str, *, where: str) -> Examples:
  """Every row that has words; each word is a text with a space before it, as byte-level BPE has words in a row."""
  words: list[str] = []
  labels: list[int] = []
  row_ids, edges = [], [0]
  for index in range(len(records)):
    record = records[index]
    given, tags = record[fields[0]], record[label]
    if not isinstance(given, list) or not isinstance(tags, list) or len(given) != len(tags):
      raise ValueError(f'{where}: row {index} needs a label in {label!r} for each word in {fields[0]!r}: {record}.')
    if not all(isinstance(tag, int) and tag >= -1 for tag in tags):
      raise ValueError(f'{where}: row {index}: labels of words are numbers from 0, or -1 for none: {tags}.')
    if given:
      words += [f' {word}' for word in given]
      labels += tags
      row_ids.append(index)
      edges.append(len(words))
  if not words:
    raise ValueError(f'{where}: none of {len(records)} rows has a word in {fields[0]!r}.')
  texts = _Words(words, store.digest_of(records.digest, fields, label, 'words'))
  names = records.labels.get(label, ())
  return Examples(texts, np.array(edges), np.array(labels, np.int32), np.array(row_ids), fields, names)


class _Words(list[str]):
  """The words of all rows, one after another."""

  def __init__(self, words: list[str], digest: str):
    super().__init__(words)
    self.digest = digest


class _Texts:
  """The fields of the chosen records, one after another."""

  def __init__(
    self,
    table: Sequence[Mapping[str, Any]] | Records,
    fields: tuple[str, ...],
    row_ids: np.ndarray,
    digest: str,
  ):
    self.table = table
    self.fields = fields
    self.row_ids = row_ids
    self.digest = digest

  def __len__(self) -> int:
    return len(self.row_ids) * len(self.fields)

  def __getitem__(self, index: int) -> str:
    row, field = divmod(index, len(self.fields))
    return self.table[int(self.row_ids[row])][self.fields[field]]


def balanced(labels: np.ndarray, per_class: int, *, sample_seed: int, where: str = 'the data') -> np.ndarray:
  """Draws `per_class` rows of each class: their places int64[n], in order. A larger draw contains the smaller ones."""
  if not np.issubdtype(labels.dtype, np.integer):
    raise ValueError(f"{where}: per_class={per_class} needs classes; kind='regression' has none.")
  drawn = []
  for value in np.unique(labels):
    rows = np.flatnonzero(labels == value)
    if len(rows) < per_class:
      raise ValueError(f'{where}: per_class={per_class}, but class {value} has only {len(rows)} rows.')
    drawn.append(rows[order.permutation(len(rows), sample_seed, int(value))[:per_class]])
  return np.sort(np.concatenate(drawn))
