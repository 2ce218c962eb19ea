"""A list of words in one field, and a class for each of them: parts of speech, names.

Words, and their labels, may also be one text with spaces between them, as a table has them. Every word is tokenised
with a space before it, as byte-level BPE has words in a row, and its label stands at its first token (Devlin et al.
2019, §5.3). Classes are numbers from 0, or names; -1 is a word without one. Names of entities in IOB1, as the files of
CoNLL-2003 have them, become those of IOB2, in which each entity begins with B-... (`class_names.as_iob2`). Where
nothing is trained or scored (`keep_unlabelled`), every word is marked at its first token, as class 0 where it has none,
and rows may lack the field of labels.
"""

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from plm_jax.data.corpora.records import Records
from plm_jax.data.rows import examples, store
from plm_jax.data.rows.checked import BadRows
from plm_jax.data.rows.class_names import ClassNames, one_by_one

log = logging.getLogger(__name__)

GIVES = ('labels',)
SPACED = True  # each word is tokenised by itself, with a space before it
QUICK = dict(path='pydocs/parameters', fields=('tokens',), label='tags')  # of a smoke test (`file.py:quick`)


def make(*, records: Records, asked: examples.ExampleSettings) -> examples.Examples:
  """Every row that has words, with `labels` int32[b, width]."""
  if len(asked.fields) != 1 or asked.per_class is not None:
    raise ValueError(
      f"{records.where}: kind='words' takes one field, of words, and no per_class: fields={asked.fields}, "
      f'per_class={asked.per_class}.'
    )
  return rows_of(records, asked, kind='words', add=_add)


class Beside(NamedTuple):
  """What words have beside their labels.

  Attributes:
    field: that holds it, beside which it is kept in records; '' for nothing.
    read: (what a row holds, its number, how many words it has) -> a number for each word: the place of another word of
      the row, `NOT_COUNTED` for a word that has no label either, whatever stands there, or a smaller number.
  """

  field: str = ''
  read: Callable[[Mapping[str, Any], int, int], list[int]] = lambda row, index, count: [0] * count


NOT_COUNTED = -1  # beside a word that no task reads
_NOTHING = Beside()


class Words(NamedTuple):
  """A row: its words, their labels, and for each the place of another one (`Beside`)."""

  words: list[str]
  labels: list[int]
  others: list[int]


def rows_of(
  records: Records,
  asked: examples.ExampleSettings,
  *,
  kind: str,
  add: Callable[..., examples.Added],
  beside: Beside = _NOTHING,
) -> examples.Examples:
  """Every row that has words.

  Args:
    records: the split.
    asked: with one field, that of the words.
    kind: its name, for the digest.
    add: (labels int32[words], offsets, place) -> what a batch has beside its tokens (`Examples.add`); with `others`
      int64[words], places among the words of all rows, where there is something beside.
    beside: what stands beside the labels.
  """
  (field,) = examples.fields_of(records, asked)
  last = (asked.label, beside.field) if beside.field else (asked.label,)

  def counted(row: Mapping[str, Any]) -> list[bool] | None:
    """Which words of a row have a class; None for all."""
    tags = one_by_one(row.get(asked.label))
    if not beside.field or not isinstance(tags, list):
      return None
    return [other != NOT_COUNTED for other in beside.read(row, -1, len(tags))]

  names = ClassNames(records, asked.label, several=True, counted=counted)

  def read(index: int) -> Words:
    row = records.values(index, (field,) if asked.keep_unlabelled else (field, *last), optional=last)
    given, tags = one_by_one(row[field]), one_by_one(row.get(asked.label))
    if tags in (None, []) and asked.keep_unlabelled and isinstance(given, list):
      tags = [-1] * len(given)
    if not isinstance(given, list) or not isinstance(tags, list) or len(given) != len(tags):
      raise ValueError(
        f'row {index} of {records.where} needs a list of words in {field!r} and a label for each of them in '
        f'{asked.label!r}, got {given!r} and {tags!r}.'
      )
    if not all(isinstance(word, str) for word in given):
      raise ValueError(f'row {index} of {records.where}: {field!r} holds what is no text: {given!r}')
    others = beside.read(row, index, len(given))
    tags = [-1 if other == NOT_COUNTED else tag for tag, other in zip(tags, others, strict=True)]
    return Words(given, names.numbers(tags, index), others)

  bad = BadRows(records, asked.on_bad_row, every=asked.keep_unlabelled)
  good = bad.read(read)
  left_out = bad.report()
  rows = [(index, row) for index, row in zip(*good, strict=True) if row.words]
  if not rows:
    raise ValueError(f'{records.where}: none of {len(records)} rows has a word in {field!r}.')
  words = [f' {word}' for _, row in rows for word in row.words]
  gold = np.array([label for _, row in rows for label in row.labels], np.int32)
  row_ids, edges = np.array([index for index, _ in rows]), np.cumsum([0, *(len(row.words) for _, row in rows)])
  largest = next(index for index, row in rows if max(row.labels) == gold.max())
  digest = store.digest_of(
    records.digest,
    asked.fields,
    asked.label,
    kind,
    *names.digest,
    *examples.changes(asked, left_out),
    *[beside.field] * bool(beside.field),
  )
  others = None
  if beside.field:
    others = np.array([other for _, row in rows for other in row.others])
    add = functools.partial(add, others=np.where(others < 0, others, others + np.repeat(edges[:-1], np.diff(edges))))
  class_names, is_counted = names.settled(), True if others is None else others != NOT_COUNTED
  return examples.Examples(
    texts=examples.ListedTexts(words, digest),
    edges=edges,
    row_ids=row_ids,
    fields=asked.fields,
    add=functools.partial(add, np.maximum(gold, 0) if asked.keep_unlabelled else gold),
    names=class_names,
    classes=int(gold.max()) + 1,
    words=True,
    record=functools.partial(_record, asked, Kept(records, row_ids, gold, edges, class_names, others)),
    unlabelled=asked.keep_unlabelled and bool(((gold < 0) & is_counted).any()),
    largest=records.place(largest),
  )


class Kept(NamedTuple):
  """The rows that have words.

  Attributes:
    records: the split.
    row_ids: int64[rows], their places in it.
    labels: int32[words], -1 for a word without one.
    edges: int64[rows+1], row i has the words `edges[i]:edges[i+1]`.
    names: of the classes.
    others: int64[words], places in their own rows, see `Beside`; None where nothing stands there.
  """

  records: Records
  row_ids: np.ndarray
  labels: np.ndarray
  edges: np.ndarray
  names: tuple[str, ...]
  others: np.ndarray | None


def _record(asked: examples.ExampleSettings, kept: Kept, offsets: np.ndarray) -> examples.Record:
  """The records of rows; `offsets` int64[words+1], word i of all rows is tokens `offsets[i]:offsets[i+1]`."""
  in_batch = (np.diff(offsets) > 0) & ((kept.labels >= 0) | asked.keep_unlabelled)
  in_batch &= True if kept.others is None else kept.others != NOT_COUNTED

  def record(row: int) -> dict[str, Any]:
    own, whole = slice(kept.edges[row], kept.edges[row + 1]), kept.records[int(kept.row_ids[row])]
    beside = {} if kept.others is None else {'heads': kept.others[own].tolist()}
    return beside | {
      'row': whole,
      'words': one_by_one(whole[asked.fields[0]]),
      'labels': kept.labels[own].tolist(),
      'places': np.flatnonzero(in_batch[own]).tolist(),
      'names': kept.names,
    }

  return record


def _add(labels: np.ndarray, offsets: np.ndarray, place: examples.Place) -> examples.Added:
  """labels int32[b, width]: the class at the first token of each word, -1 elsewhere."""
  values = first_pieces(labels, offsets)
  return lambda chosen, width: {'labels': place(values, chosen, width)}


def first_pieces(labels: np.ndarray, offsets: np.ndarray) -> np.ndarray:
  """The label of each word at its first token, and -1 at the others; a word without tokens loses its label.

  Args:
    labels: int32[words].
    offsets: int64[words+1], word i is tokens `offsets[i]:offsets[i+1]`.

  Returns:
    int32[tokens].
  """
  some = np.diff(offsets) > 0
  if not some.all():
    log.warning(f'{(~some).sum()} of {len(some)} words have no token in this vocabulary, and are not labelled.')
  placed = np.full(offsets[-1], -1, np.int32)
  placed[offsets[:-1][some]] = labels[some]
  return placed
