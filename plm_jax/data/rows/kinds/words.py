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


def make(*, records: Records, asked: examples.Asked) -> examples.Examples:
  """Every row that has words, with `labels` int32[b, width]."""
  if len(asked.fields) != 1 or asked.per_class is not None:
    raise ValueError(
      f"{records.where}: kind='words' takes one field, of words, and no per_class: fields={asked.fields}, "
      f'per_class={asked.per_class}.'
    )
  (field,) = examples.fields_of(records, asked)
  names = ClassNames(records, asked.label, several=True)

  def read(index: int) -> tuple[list[str], list[int]]:
    row = records.values(index, (field,) if asked.keep_unlabelled else (field, asked.label), optional=(asked.label,))
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
    return given, names.numbers(tags, index)

  bad = BadRows(records, asked.on_bad_row, every=asked.keep_unlabelled)
  good = bad.read(read)
  left_out = bad.report()
  row_ids = [index for index, (given, _) in zip(*good, strict=True) if given]
  if not row_ids:
    raise ValueError(f'{records.where}: none of {len(records)} rows has a word in {field!r}.')
  words = [f' {word}' for given, _ in good.values for word in given]
  gold = np.array([tag for _, tags in good.values for tag in tags], np.int32)
  edges = np.cumsum([0, *(len(given) for given, _ in good.values if given)])
  largest = next(index for index, (_, tags) in zip(*good, strict=True) if max(tags, default=-2) == gold.max())
  digest = store.digest_of(
    records.digest, asked.fields, asked.label, 'words', *names.digest, *examples.changes(asked, left_out)
  )
  class_names = names.settled()
  return examples.Examples(
    texts=examples.ListedTexts(words, digest),
    edges=edges,
    row_ids=np.array(row_ids),
    fields=asked.fields,
    add=functools.partial(_add, np.maximum(gold, 0) if asked.keep_unlabelled else gold),
    names=class_names,
    classes=int(gold.max()) + 1,
    words=True,
    record=functools.partial(_record, asked, Kept(records, np.array(row_ids), gold, edges, class_names)),
    unlabelled=asked.keep_unlabelled and -1 in gold,
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
  """

  records: Records
  row_ids: np.ndarray
  labels: np.ndarray
  edges: np.ndarray
  names: tuple[str, ...]


def _record(asked: examples.Asked, kept: Kept, offsets: np.ndarray) -> examples.Record:
  """The records of rows; `offsets` int64[words+1], word i of all rows is tokens `offsets[i]:offsets[i+1]`."""
  in_batch = (np.diff(offsets) > 0) & ((kept.labels >= 0) | asked.keep_unlabelled)

  def record(row: int) -> dict[str, Any]:
    own, whole = slice(kept.edges[row], kept.edges[row + 1]), kept.records[int(kept.row_ids[row])]
    return {
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
