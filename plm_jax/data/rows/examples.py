"""Labelled records: text fields, labels, and samples for few-shot runs; shared by the files of `kinds/`."""

import dataclasses
import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from plm_jax.core.types import Vocab
from plm_jax.data.corpora.records import Records
from plm_jax.data.rows import entity_tags, order, store
from plm_jax.data.rows.checked import BadRows, OnBadRow
from plm_jax.data.rows.class_names import ClassNames
from plm_jax.data.rows.field_texts import FieldTexts, ListedTexts, joined, known, text_of
from plm_jax.data.rows.mistakes import Mistakes

log = logging.getLogger(__name__)

IN_MEMORY = 1_000_000  # rows; larger data is tokenised through the store on disk
KEPT_ROWS, KEPT_SOURCES = 20_000, 4  # bounds of `_tables`
LOOKED_AT = 100  # rows that are searched for a field that the first row lacks
_tables: dict[tuple[str, ...], list[dict[str, Any]]] = {}  # small sources in memory, for later calls
FIELDS = (
  ('sentence1', 'sentence2'),
  ('premise', 'hypothesis'),
  ('question1', 'question2'),
  ('question', 'sentence'),
  ('sentence',),
  ('text',),
)

Words = Literal['spaces', 'script']
Place = Callable[[np.ndarray, np.ndarray, int], np.ndarray]
Added = Callable[[np.ndarray, int], order.Batch]
Record = Callable[[int], dict[str, Any]]


class ExampleSettings(NamedTuple):
  """Settings of a config about the examples; keywords of `labelled.make`."""

  # fields with the text, in order. () takes the names that TFDS uses for single sentences and pairs
  fields: tuple[str, ...] = ()
  # field with the label; with kind='words' a list of labels, with kind='arcs' of relations, with kind='text' the target
  # text, with kind='spans' the answers
  label: str = 'label'
  per_class: int | None = None  # number of examples of each class; None for all
  sample_seed: int = 0  # seed of that sample
  # label of a row without one, a number or a text, such as '-' in SNLI and MultiNLI; such rows are dropped. A word
  # without a label has -1, and stays
  missing: float | str = -1
  prefixes: tuple[str, ...] = ()  # text before each field, as in T5; () for none
  # handling of a row that lacks a field, cannot be read, or has no valid label. 'stop' raises an error with file, line
  # and reason before anything is tokenised. 'skip' drops up to 0.1 % of the rows, counts and lists them
  on_bad_row: OnBadRow = 'stop'
  # keep rows without a label, or without its field, with label -1, for prediction (`evaluate --predictions`), as in the
  # test sets of benchmarks. Nothing is trained or scored on them
  keep_unlabelled: bool = False
  # with kind='multilabel', text between the classes of a cell, such as ';'; '' for one class per cell
  separator: str | None = None
  # with kind='words', how tags of entities are written (`entity_tags.py`). None leaves them, but IOB1 becomes IOB2
  scheme: entity_tags.Scheme | None = None
  # with kind='words', what separates the words of a text: 'spaces' (None), or its 'script', as in `load(...).tag`
  words: Words | None = None


def asked(**settings: Any) -> ExampleSettings:
  """Select the settings of examples; lists become tuples."""
  selected: dict[str, Any] = {
    name: tuple(value) if isinstance(value, list) else value
    for name, value in settings.items()
    if name in ExampleSettings._fields
  }
  return ExampleSettings(**selected)


class Windows(NamedTuple):
  """Texts that are read in windows if they are too long (`question_windows.py`)."""

  field: int  # index of their field
  # int64[rows, 2], characters [start, end) of the text that answer the other field, -1 without an answer
  answers: np.ndarray


class Examples(NamedTuple):
  """Labelled examples.

  An example is `sequences` sequences of tokens, each of `len(fields)` fields. The texts of a field are tokenised
  separately.

  `add(offsets, place)` returns a function (chosen int64[b], width) -> arrays of a batch besides its tokens. `chosen`
  are indices of examples, and sequences of the batch have `width` tokens. `offsets` int64[texts+1] are the first tokens
  of the texts. `place(values, chosen, width)` places values int32 of all tokens at the positions of the tokens in the
  batch, -1 elsewhere: int32[b, width], or [b, sequences, width] with several sequences.

  `record(offsets)` returns a function from the index of an example to its `Source.record`.
  """

  texts: store.Texts  # texts, ordered by example, sequence and field
  edges: np.ndarray  # int64[rows*sequences*fields+1], `texts[edges[i]:edges[i+1]]` form field i of all fields
  row_ids: np.ndarray  # int64[rows], their indices in the split
  fields: tuple[str, ...]  # names of the fields, in order
  add: Callable[[np.ndarray, Place], Added]  # see above
  names: tuple[str, ...] = ()  # names of the classes
  classes: int = 0  # labels are 0 to classes - 1; 0 without classes
  sequences: int = 1  # sequences per example; more than one for options
  target: 'Examples | None' = None  # target texts of the same examples; None without targets
  # int64[rows*sequences*fields], instead of `edges` the one text of each field, if fields share texts; -1 in a sequence
  # that an example does not have
  shared: np.ndarray | None = None
  record: Callable[[np.ndarray], Record] | None = None  # see above
  unlabelled: bool = False  # True if some examples have no label
  largest: str = ''  # file and line of the first row with the largest label, for messages
  windows: Windows | None = None  # text that is read in windows if it is too long; None if it is cut
  group: Callable[[int], Hashable] | None = None  # index of an example -> its `Source.group`; None without groups
  words: bool = False  # True if each text is a word with a space before it (`after_gap`)


def word_gap(vocab: Vocab) -> str:
  """Return ' ', or '' if the vocabulary adds and keeps spaces."""
  #           "1"    " 1"    "1 1"
  # GPT-2     1      _1      1 _1      " 1" equals a word within a text
  # ALBERT    _1     _1      _1 _1     both do
  # LLaMA     _1     _ _1    _1 _1     "1" does
  alone = vocab.encode('1')
  return '' if vocab.encode('1 1') == alone * 2 and vocab.encode(' 1') != alone else ' '


def after_gap(given: Examples, vocab: Vocab) -> store.Texts:
  """Return the texts, words with `word_gap` before them."""
  if not given.words or word_gap(vocab):
    return given.texts
  words = [given.texts[index].removeprefix(' ') for index in range(len(given.texts))]
  return ListedTexts(words, store.digest_of(given.texts.digest, 'words without a space before them'))


def fields_of(records: Records, settings: ExampleSettings) -> tuple[str, ...]:
  """Return the configured text fields, or those with names of TFDS.

  Raises ValueError if a field or the label does not exist, or there are more or fewer prefixes than fields.
  """
  fields = settings.fields or known(FIELDS, records.fields)
  if not fields:
    raise ValueError(f'{records.where}: set data.fields to the fields with the text: {", ".join(records.fields)}.')
  for name in (*fields, *(() if settings.keep_unlabelled else (settings.label,))):
    if name not in records.fields and not is_somewhere(name, records):
      raise ValueError(f'{records.where}: no field {name!r}; choose from {", ".join(records.fields)}.')
  if settings.prefixes and len(settings.prefixes) != len(fields):
    raise ValueError(f"prefixes={settings.prefixes}: give one for each of fields={fields}, '' for none.")
  return fields


def is_somewhere(name: str, records: Records) -> bool:
  """Return True if one of the first readable rows has a field."""
  return any(name in row for row in records.readable(LOOKED_AT))


def check_text(value: Any, index: int, field: str, records: Records) -> None:
  """Raise ValueError if a field of row `index` holds no text."""
  if text_of(value) is None:
    raise ValueError(f'row {index} of {records.where} holds no text in {field!r} but {value!r}')


def one_label(
  records: Records,
  settings: ExampleSettings,
  *,
  kind: str,
  label: Callable[[Any, int], float | None],
  dtype: type,
  names: ClassNames | None = None,
) -> Examples:
  """Read examples with one label each, and drop rows without one.

  `keep_unlabelled` keeps those with label -1. `label` maps (value of the row, row index) to the label, None without
  one. `names` are those of classes, None for real values. Raises ValueError for a row without one of the fields, no row
  with a label, or a class with too few rows.
  """
  if settings.per_class is not None and names is None:
    raise ValueError(
      f'{records.where}: per_class={settings.per_class} needs classes; kind={kind!r} has none: remove it.'
    )
  fields = fields_of(records, settings)
  rows = read_rows(
    records, settings, fields=fields, label=label, numbered=lambda: names is not None and not names.names
  )
  gold, row_ids = rows.labels, rows.row_ids
  labels: np.ndarray = np.array([-1 if value is None else value for value in gold], dtype)
  largest = '' if names is None else records.place(int(row_ids[labels.argmax()]))
  classes = 0 if names is None else int(labels.max()) + 1
  if settings.per_class is not None:
    if None in gold:
      raise ValueError(
        f'{records.where}: per_class={settings.per_class} needs a label in every row: set keep_unlabelled=False'
      )
    sampled = balanced(labels, settings.per_class, sample_seed=settings.sample_seed, where=records.where)
    labels, row_ids, gold = labels[sampled], row_ids[sampled], [gold[index] for index in sampled]
  class_names = () if names is None else names.settled()
  digest = digest_of(
    records, settings, fields, kind, *(() if names is None else names.digest), *rows.changes, left_out=rows.left_out
  )

  def record(row: int) -> dict[str, Any]:
    return {'row': records[int(row_ids[row])], 'label': gold[row], 'names': class_names}

  return Examples(
    texts=FieldTexts(rows.table, fields, row_ids, digest, prefixes=settings.prefixes, write=rows.write),
    edges=np.arange(len(row_ids) * len(fields) + 1),
    row_ids=row_ids,
    fields=fields,
    add=lambda offsets, place: lambda chosen, width: {'label': labels[chosen]},
    names=class_names,
    classes=classes,
    record=lambda offsets: record,
    unlabelled=None in gold,
    largest=largest,
  )


class LabelledRows(NamedTuple):
  """The usable rows of a split, with their labels."""

  table: Records  # the split, in memory if it is small
  row_ids: np.ndarray  # int64[rows]
  labels: list[Any]  # a label for each; None without one
  left_out: tuple[int, ...]  # indices of the unusable rows
  write: Callable[[Any], str | None]  # value of a text field -> its text

  @property
  def changes(self) -> list[str]:
    """Return what `write` adds to the digest of the rows."""
    return ['lists'] * (self.write is not text_of)


def read_rows(
  records: Records,
  settings: ExampleSettings,
  *,
  fields: tuple[str, ...],
  label: Callable[[Any, int], Any],
  numbered: Callable[[], bool] = bool,
) -> LabelledRows:
  """Read and check the text fields and the label of every row.

  `label` maps (value of the row, row index) to a label or raises a ValueError. `numbered` returns True, after the last
  row, if labels are numbers of classes. Raises ValueError for bad rows that `on_bad_row` does not skip, or if no row
  has a label.
  """
  bad = BadRows(records, settings.on_bad_row, every=settings.keep_unlabelled)
  needed = fields if settings.keep_unlabelled else (*fields, settings.label)
  table, rows = in_memory(records, bad, fields=needed, optional=(settings.label,))
  missing: list[int] = []  # rows with the label `settings.missing`
  mistakes = Mistakes(records.where)

  def read(index: int) -> Any:
    row = table.values(index, needed, optional=(settings.label,))
    for field in fields:
      check_text(row[field], index, field, records)
    value = row.get(settings.label)
    if value == settings.missing:
      missing.append(index)
      return None
    mistakes.see({field: row[field] for field in fields}, (value,))
    empty = value is None or (value == '' and settings.keep_unlabelled)  # '' is an empty cell of a column of names
    return None if empty else label(value, index)

  good = bad.read(read, rows)
  left_out = bad.report()
  labelled = [
    (index, value) for index, value in zip(*good, strict=True) if value is not None or settings.keep_unlabelled
  ]
  if not labelled:
    raise ValueError(
      f'{records.where}: none of {len(records)} rows has a label ({settings.label!r} is {settings.missing} '
      'everywhere). keep_unlabelled=True keeps them for prediction.'
    )
  if len(labelled) < len(good.rows):
    log.info(f'{records.where}: {len(good.rows) - len(labelled)} rows without a label are dropped.')
    if missing and len({str(value) for _, value in labelled}) == 1:  # such as -1 for bad and 1 for good
      raise ValueError(
        f'{records.where}: {settings.label!r} is {settings.missing} in {len(missing)} rows, which means no label, and '
        f'{labelled[0][1]} in all others: number the classes from 0, or write their names.'
      )
    if missing and settings.missing == ExampleSettings().missing:
      log.warning(
        f'{records.where}: in {len(missing)} of them {settings.label!r} is {settings.missing}, which means no label. '
        'If it is a class, number the classes from 0 or write their names. If it is a value, set data.missing to a '
        'value that the data does not have.'
      )
  row_ids, labels = zip(*labelled, strict=True)
  mistakes.tell(settings.label, [value for value in labels if value is not None] if numbered() else ())
  write = joined if mistakes.joins else text_of
  return LabelledRows(table, np.array(row_ids, np.int64), list(labels), left_out, write)


def digest_of(
  records: Records,
  settings: ExampleSettings,
  fields: tuple[str, ...],
  kind: str,
  *added: Any,
  left_out: tuple[int, ...] = (),
) -> str:
  """Compute the digest of the examples, with `added` values that change them."""
  missing = settings.missing if isinstance(settings.missing, str) else float(settings.missing)
  sample = settings.per_class, settings.sample_seed, missing
  return store.digest_of(records.digest, fields, settings.label, kind, *sample, *added, *changes(settings, left_out))


def changes(settings: ExampleSettings, left_out: tuple[int, ...]) -> list[Any]:
  """Return settings other than their defaults that a digest needs."""
  prefixes, bad = [list(settings.prefixes)] * any(settings.prefixes), [list(left_out)] * bool(left_out)
  return [
    *prefixes,
    *bad,
    *(['keep_unlabelled'] * settings.keep_unlabelled),
    *([settings.words] * (settings.words == 'script')),
  ]


def in_memory(
  records: Records, bad: BadRows, *, fields: tuple[str, ...], optional: tuple[str, ...] = ()
) -> tuple[Records, Sequence[int]]:
  """Read the given fields of all rows into memory.

  Returns the rows, and the indices of the readable ones; `bad` collects the others. Data with more than `IN_MEMORY`
  rows is returned unchanged. Small sources are stored for later calls, because studies sample from one source many
  times.
  """
  every = range(len(records))
  if len(records) > IN_MEMORY:
    return records, every
  key = (records.digest, *fields, '', *optional)
  if key in _tables:
    return _of(records, _tables[key], fields), every
  good = bad.read(lambda index: records.values(index, fields, optional=optional))
  table: list[dict[str, Any]] = [{}] * len(records)
  for index, row in zip(*good, strict=True):
    table[index] = row
  if len(table) <= KEPT_ROWS and len(good.rows) == len(table):
    if len(_tables) == KEPT_SOURCES:
      _tables.pop(next(iter(_tables)))
    _tables[key] = table
  return _of(records, table, fields), good.rows


def _of(records: Records, table: list[dict[str, Any]], fields: tuple[str, ...]) -> Records:
  return dataclasses.replace(records, fields=fields, pieces=((table, range(len(table))),))


def balanced(labels: np.ndarray, per_class: int, *, sample_seed: int, where: str = 'the data') -> np.ndarray:
  """Sample `per_class` rows of each class: ascending indices, int64[n].

  A larger sample contains the smaller ones. Raises ValueError for a class with too few rows.
  """
  sampled = []
  for value in np.unique(labels):
    rows = np.flatnonzero(labels == value)
    if len(rows) < per_class:
      raise ValueError(f'{where}: per_class={per_class}, but class {value} has only {len(rows)} rows: reduce it.')
    sampled.append(rows[order.permutation(len(rows), sample_seed, int(value))[:per_class]])
  return np.sort(np.concatenate(sampled))
