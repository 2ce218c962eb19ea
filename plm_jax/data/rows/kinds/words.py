"""A list of words in one field, and a class for each word: parts of speech, names.

Words and their labels may also be one text with spaces between them, as in a table, or a list in a cell. With
words='script' texts are split as `load(...).tag` does: into words and punctuation, and characters in scripts without
spaces. Entities may then be given as character offsets, [{"start": 0, "end": 2, "label": "PER"}]. Every word is
tokenised with a space before it, as byte-level BPE has words within a text. Its label is at its first token (Devlin et
al. 2019, §5.3). Classes are indices from 0, or names; -1 is a word without a class. Names of entities in IOB1, as in
the files of CoNLL-2003, become IOB2, in which each entity begins with B-... (`entity_tags.convert`).

With `keep_unlabelled` nothing is trained or scored. Every word is marked at its first token, as class 0 if it has none,
and rows may lack the label field.
"""

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from plm_jax.core import scripts
from plm_jax.data.corpora.records import Records
from plm_jax.data.rows import entity_tags, examples, store
from plm_jax.data.rows.checked import BadRows
from plm_jax.data.rows.class_names import ClassNames, one_by_one, words_of
from plm_jax.data.rows.field_texts import ListedTexts
from plm_jax.data.rows.mistakes import Mistakes

log = logging.getLogger(__name__)

GIVES = ('labels',)
_MOST_ALONE = 20  # rows of one word each without a warning
SPACED = True  # each word is tokenised by itself, with a space before it
QUICK = dict(path='pydocs/parameters', fields=('tokens',), label='tags')  # settings of a smoke test (`file.py:quick`)


def make(*, records: Records, asked: examples.ExampleSettings) -> examples.Examples:
  """Read every row with words; adds `labels` int32[b, width]."""
  if len(asked.fields) != 1 or asked.per_class is not None:
    raise ValueError(
      f"{records.where}: kind='words' takes one field, the words, and no per_class: fields={asked.fields}, "
      f'per_class={asked.per_class}.'
    )
  return rows_of(records, asked, kind='words', add=_add)


class PerWord(NamedTuple):
  """A second value of each word, in addition to its label, from `field`; '' for none.

  `read` maps (row, row index, number of words) to a value for each word: the position of another word of the row,
  `NOT_COUNTED` for a word whose label is ignored, or a smaller number.
  """

  field: str = ''
  read: Callable[[Mapping[str, Any], int, int], list[int]] = lambda row, index, count: [0] * count


NOT_COUNTED = -1  # value of a word that no task reads
_NO_VALUES = PerWord()


class Words(NamedTuple):
  """The words of a row, their labels, the second value of each (`PerWord`), and True if a text spelt the list."""

  words: list[str]
  labels: list[int]
  others: list[int]
  spelt: bool


class Reader(NamedTuple):
  """Reader of the words of a row; `field` has the words, `per_word` a second value of each."""

  records: Records
  settings: examples.ExampleSettings
  field: str
  per_word: PerWord
  names: ClassNames
  mistakes: Mistakes
  cut: list[int]

  def read(self, index: int) -> Words:
    """Read a row; raise ValueError without words or their labels."""
    settings, field, where = self.settings, self.field, f'row {index} of {self.records.where}'
    last = (settings.label, self.per_word.field) if self.per_word.field else (settings.label,)
    row = self.records.values(index, (field,) if settings.keep_unlabelled else (field, *last), optional=last)
    try:
      words, tags = split(row[field], settings), one_by_one(row.get(settings.label))
      if settings.words == 'script' and isinstance(row[field], str) and (tags == [] or entity_tags.is_offsets(tags)):
        tags, cut = entity_tags.of_offsets(tags, row[field], scripts.pieces(row[field]))
        self.cut.extend([index] * cut)
      elif entity_tags.is_offsets(tags):
        raise ValueError(f"{settings.label!r} holds character offsets: set data.words='script'")
    except ValueError as error:
      raise ValueError(f'{where}: {error}') from error
    if tags in (None, []) and settings.keep_unlabelled and isinstance(words, list):
      tags = [-1] * len(words)
    if not isinstance(words, list) or not isinstance(tags, list) or len(words) != len(tags):
      pieces = scripts.pieces(row[field]) if isinstance(row[field], str) and isinstance(tags, list) else ()
      raise ValueError(
        f'{where} needs a list of words in {field!r} and a label for each in {settings.label!r}, got {words!r} and '
        f'{tags!r}{"; set data.words=script" * (0 < len(pieces) == len(tags or ()))}.'
      )
    if not all(isinstance(word, str) for word in words):
      raise ValueError(f'{where}: {field!r} holds an entry that is no text: {words!r}')
    self.mistakes.see({field: ' '.join(words)}, tags)
    others = self.per_word.read(row, index, len(words))
    tags = [-1 if other == NOT_COUNTED else tag for tag, other in zip(tags, others, strict=True)]
    spelt = isinstance(row[field], str) and settings.words != 'script' and words != row[field].split()
    return Words(words=words, labels=self.names.numbers(tags, index), others=others, spelt=spelt)


def split(value: Any, settings: examples.ExampleSettings) -> Any:
  """Split a text into words, or read its list."""
  by_script = settings.words == 'script' and isinstance(value, str)
  return [word for word, _, _ in scripts.pieces(value)] if by_script else words_of(value)


def rows_of(
  records: Records,
  settings: examples.ExampleSettings,
  *,
  kind: str,
  add: Callable[..., examples.Added],
  per_word: PerWord = _NO_VALUES,
) -> examples.Examples:
  """Read every row with words, which `settings` have as their one field.

  `add` maps (labels int32[words], offsets, place) to the arrays of a batch besides its tokens (`Examples.add`). With
  `per_word` it also gets `others` int64[words], positions among the words of all rows.
  """
  (field,) = examples.fields_of(records, settings)

  def counted(row: Mapping[str, Any]) -> list[bool] | None:
    """Return which words of a row have a class; None for all."""
    tags = one_by_one(row.get(settings.label))
    if not per_word.field or not isinstance(tags, list):
      return None
    return [other != NOT_COUNTED for other in per_word.read(row, -1, len(tags))]

  names = ClassNames(records, settings.label, several=True, counted=counted, scheme=settings.scheme)
  bad = BadRows(records, settings.on_bad_row, every=settings.keep_unlabelled)
  mistakes = Mistakes(records.where)
  reader = Reader(records, settings, field, per_word, names, mistakes, cut=[])
  good = bad.read(reader.read)
  if reader.cut:
    log.warning(
      f'{records.where}: {len(reader.cut)} texts have an entity that begins or ends inside a word, and covers it all: '
      f'row {reader.cut[0]} is the first.'
    )
  left_out = bad.report()
  mistakes.tell(settings.label, fix='remove these rows')
  rows = [(index, row) for index, row in zip(*good, strict=True) if row.words]
  if not rows:
    raise ValueError(f'{records.where}: none of {len(records)} rows has a word in {field!r}.')
  if len(rows) > _MOST_ALONE and all(len(row.words) == 1 for _, row in rows):
    fix = 'write a sentence a row, with its words and its tags as two lists, or a .conll file'
    log.warning(f'{records.where}: each of {len(rows):,} rows has one word: {fix}')
  words = [f' {word}' for _, row in rows for word in row.words]
  gold = np.array([label for _, row in rows for label in row.labels], np.int32)
  row_ids, edges = np.array([index for index, _ in rows]), np.cumsum([0, *(len(row.words) for _, row in rows)])
  largest = next(index for index, row in rows if max(row.labels) == gold.max())
  digest = store.digest_of(
    records.digest,
    settings.fields,
    settings.label,
    kind,
    *names.digest,
    *examples.changes(settings, left_out),
    *[per_word.field] * bool(per_word.field),
    *['lists'] * any(row.spelt for _, row in rows),
  )
  others = None
  if per_word.field:
    others = np.array([other for _, row in rows for other in row.others])
    add = functools.partial(add, others=np.where(others < 0, others, others + np.repeat(edges[:-1], np.diff(edges))))
  class_names, is_counted = names.settled(), True if others is None else others != NOT_COUNTED
  return examples.Examples(
    texts=ListedTexts(words, digest),
    edges=edges,
    row_ids=row_ids,
    fields=settings.fields,
    add=functools.partial(add, np.maximum(gold, 0) if settings.keep_unlabelled else gold),
    names=class_names,
    classes=int(gold.max()) + 1,
    words=True,
    record=functools.partial(_record, settings, TaggedRows(records, row_ids, gold, edges, class_names, others)),
    unlabelled=settings.keep_unlabelled and bool(((gold < 0) & is_counted).any()),
    largest=records.place(largest),
  )


class TaggedRows(NamedTuple):
  """The rows with words."""

  records: Records  # the split
  row_ids: np.ndarray  # int64[rows], their indices in it
  labels: np.ndarray  # int32[words], -1 for a word without a label
  edges: np.ndarray  # int64[rows+1], row i has the words `edges[i]:edges[i+1]`
  names: tuple[str, ...]  # names of the classes
  # int64[words], second value of each word, a position in its own row (`PerWord`); None for none
  others: np.ndarray | None


def _record(settings: examples.ExampleSettings, rows: TaggedRows, offsets: np.ndarray) -> examples.Record:
  """Return the function that builds the record of a row.

  Word i of all rows is tokens `offsets[i]:offsets[i+1]`, offsets int64[words+1].
  """
  in_batch = (np.diff(offsets) > 0) & ((rows.labels >= 0) | settings.keep_unlabelled)
  in_batch &= True if rows.others is None else rows.others != NOT_COUNTED

  def record(row: int) -> dict[str, Any]:
    own, whole = slice(rows.edges[row], rows.edges[row + 1]), rows.records[int(rows.row_ids[row])]
    more = {} if rows.others is None else {'heads': rows.others[own].tolist()}
    more |= {'scheme': settings.scheme} if settings.scheme else {}
    return more | {
      'row': whole,
      'words': split(whole[settings.fields[0]], settings),
      'labels': rows.labels[own].tolist(),
      'places': np.flatnonzero(in_batch[own]).tolist(),
      'names': rows.names,
    }

  return record


def _add(labels: np.ndarray, offsets: np.ndarray, place: examples.Place) -> examples.Added:
  """Return the function that adds `labels` int32[b, width], -1 inside words."""
  values = first_pieces(labels, offsets)
  return lambda chosen, width: {'labels': place(values, chosen, width)}


def first_pieces(labels: np.ndarray, offsets: np.ndarray) -> np.ndarray:
  """Return the label of each word at its first token, -1 elsewhere.

  Word i of `labels` int32[words] has the tokens `offsets[i]:offsets[i+1]`, and loses its label without any. Returns
  int32[tokens].
  """
  nonempty = np.diff(offsets) > 0
  if not nonempty.all():
    log.warning(f'{(~nonempty).sum()} of {len(nonempty)} words have no token in this vocabulary and lose their label.')
  placed = np.full(offsets[-1], -1, np.int32)
  placed[offsets[:-1][nonempty]] = labels[nonempty]
  return placed
