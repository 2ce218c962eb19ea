"""Labelled records: which fields hold the text, which rows have a label, and which are drawn for few-shot runs.

What the files of `kinds/` share.
"""

import dataclasses
import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from plm_jax.core.types import Vocab
from plm_jax.data.corpora.records import Records, as_written
from plm_jax.data.rows import order, store
from plm_jax.data.rows.checked import BadRows, OnBadRow
from plm_jax.data.rows.class_names import ClassNames

log = logging.getLogger(__name__)

IN_MEMORY = 1_000_000  # rows; more are tokenised through the store on disk
KEPT_ROWS, KEPT_SOURCES = 20_000, 4
LOOKED_AT = 100  # rows, for a field that the first one lacks
_kept: dict[tuple[str, ...], list[dict[str, Any]]] = {}
FIELDS = (
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


class ExampleSettings(NamedTuple):
  """What a config says about the rows; the arguments of `labelled.make` with these names."""

  fields: tuple[str, ...] = ()
  label: str = 'label'
  per_class: int | None = None
  sample_seed: int = 0
  missing: float | str = -1
  prefixes: tuple[str, ...] = ()
  on_bad_row: OnBadRow = 'stop'
  keep_unlabelled: bool = False


def asked(**settings: Any) -> ExampleSettings:
  """What `make` or `look` of `labelled` is asked for, the same whether values are as a config writes them or read."""
  known: dict[str, Any] = {
    name: tuple(value) if isinstance(value, list) else value
    for name, value in settings.items()
    if name in ExampleSettings._fields
  }
  return ExampleSettings(**known)


class Windows(NamedTuple):
  """Texts that are read in windows (`windows.py`) where they do not fit into a row.

  Attributes:
    field: the number of the field that holds them.
    answers: int64[rows, 2], the characters [start, end) of the text that answer the other field, -1 where none do.
  """

  field: int
  answers: np.ndarray


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
    target: the texts that are to be written for the same rows; None where nothing is.
    shared: int64[rows*sequences*fields], in place of `edges` the one text of each field, where fields share texts; -1
      in a sequence that a row does not have.
    record: see above.
    unlabelled: some rows have no label.
    largest: file and line of the first row with the largest label, for messages.
    windows: how a field is read that may be too long for a row; None where it is cut.
    group: number of a kept row -> what `Source.group` says of it; None where rows stand alone.
    words: each text is a word with a space before it (`behind_gap`).
  """

  texts: store.Texts
  edges: np.ndarray
  row_ids: np.ndarray
  fields: tuple[str, ...]
  add: Callable[[np.ndarray, Place], Added]
  names: tuple[str, ...] = ()
  classes: int = 0
  sequences: int = 1
  target: 'Examples | None' = None
  shared: np.ndarray | None = None
  record: Callable[[np.ndarray], Record] | None = None
  unlabelled: bool = False
  largest: str = ''
  windows: Windows | None = None
  group: Callable[[int], Hashable] | None = None
  words: bool = False


# Words ---------------------------------------------------------------------------------------------------------------


def word_gap(vocab: Vocab) -> str:
  """What stands before a word that is tokenised by itself: a space, unless the vocabulary sets one and keeps others."""
  #           "1"    " 1"    "1 1"
  # GPT-2     1      _1      1 _1      " 1" is as within a text
  # ALBERT    _1     _1      _1 _1     both are
  # LLaMA     _1     _ _1    _1 _1     "1" is
  alone = vocab.encode('1')
  return '' if vocab.encode('1 1') == alone * 2 and vocab.encode(' 1') != alone else ' '


def behind_gap(given: Examples, vocab: Vocab) -> store.Texts:
  """The texts of the rows as the vocabulary reads them: words with `word_gap` before them."""
  if not given.words or word_gap(vocab):
    return given.texts
  words = [given.texts[place].removeprefix(' ') for place in range(len(given.texts))]
  return ListedTexts(words, store.digest_of(given.texts.digest, 'words without a space before them'))


# Fields and labels -------------------------------------------------------------------------------------------------


def fields_of(records: Records, asked: ExampleSettings) -> tuple[str, ...]:
  """The fields that hold the text: those asked for, or the names that TFDS uses for single sentences and pairs.

  Raises:
    ValueError: there are no such fields, no such label, or prefixes of another number.
  """
  fields = asked.fields or next((names for names in FIELDS if all(name in records.fields for name in names)), ())
  if not fields:
    raise ValueError(f'{records.where}: say which fields hold the text (fields=...): {", ".join(records.fields)}.')
  for name in (*fields, *(() if asked.keep_unlabelled else (asked.label,))):
    if name not in records.fields and not is_somewhere(name, records):
      raise ValueError(f'{records.where}: there is no field {name!r}, there are {", ".join(records.fields)}.')
  if asked.prefixes and len(asked.prefixes) != len(fields):
    raise ValueError(f'prefixes={asked.prefixes}: give one for each of fields={fields}, empty where there is none.')
  return fields


def is_somewhere(name: str, records: Records) -> bool:
  """Whether one of the first rows that can be read has a field."""
  for index in range(min(len(records), LOOKED_AT)):
    try:
      if name in records[index]:
        return True
    except ValueError:  # named when all rows are read
      continue
  return False


def text_of(value: Any) -> str | None:
  """A field as text; None for others.

  A text is a string, a number of a table, or strings with a space between them, as a list of sentences.
  """
  value = as_written(value)
  if isinstance(value, str):
    return value
  if isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
    return ' '.join(value)
  return None


def check_text(value: Any, index: int, field: str, records: Records) -> None:
  """Raises ValueError where a field of row `index` holds no text."""
  if text_of(value) is None:
    raise ValueError(f'row {index} of {records.where} holds no text in {field!r}, but {value!r}')


def one_label(
  records: Records,
  asked: ExampleSettings,
  *,
  kind: str,
  label: Callable[[Any, int], float | None],
  dtype: type,
  names: ClassNames | None = None,
) -> Examples:
  """Rows of texts with one label each. Rows without a label are left out, or kept with label -1 where that is asked.

  Args:
    records: the split.
    asked: fields, label, and which rows are drawn.
    kind: the name of the kind, for the digest.
    label: (what a row holds, number of the row) -> its label, None where it has none; raises a ValueError.
    dtype: of the labels.
    names: of the classes; None for real values.

  Raises:
    ValueError: a row without one of the fields, no row with a label, or a class with too few rows.
  """
  if asked.per_class is not None and names is None:
    raise ValueError(f'{records.where}: per_class={asked.per_class} needs classes; kind={kind!r} has none.')
  fields = fields_of(records, asked)
  kept = read_rows(records, asked, fields=fields, label=label)
  gold, row_ids = kept.labels, kept.row_ids
  labels: np.ndarray = np.array([-1 if value is None else value for value in gold], dtype)
  largest = '' if names is None else records.place(int(row_ids[labels.argmax()]))
  classes = 0 if names is None else int(labels.max()) + 1
  if asked.per_class is not None:
    if None in gold:
      raise ValueError(
        f'{records.where}: per_class={asked.per_class} needs a label of every row; keep_unlabelled keeps others'
      )
    drawn = balanced(labels, asked.per_class, sample_seed=asked.sample_seed, where=records.where)
    labels, row_ids, gold = labels[drawn], row_ids[drawn], [gold[place] for place in drawn]
  class_names = () if names is None else names.settled()
  digest = digest_of(records, asked, fields, kind, *(() if names is None else names.digest), left_out=kept.left_out)

  def record(row: int) -> dict[str, Any]:
    return {'row': records[int(row_ids[row])], 'label': gold[row], 'names': class_names}

  return Examples(
    texts=FieldTexts(kept.table, fields, row_ids, digest, prefixes=asked.prefixes),
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


# Rows --------------------------------------------------------------------------------------------------------------


class Kept(NamedTuple):
  """The rows that can be used and have a label, or may lack one.

  Attributes:
    table: the split, in memory where it is small.
    row_ids: int64[rows].
    labels: one for each, None where it has none.
    left_out: places of the rows that cannot be used.
  """

  table: Records
  row_ids: np.ndarray
  labels: list[Any]
  left_out: tuple[int, ...]


def read_rows(
  records: Records, asked: ExampleSettings, *, fields: tuple[str, ...], label: Callable[[Any, int], Any]
) -> Kept:
  """Reads and checks every row of a split: fields that hold text, and the field `asked.label`.

  Args:
    records: the split.
    asked: which label is none, and what becomes of bad rows.
    fields: of texts.
    label: (what a row holds, number of the row) -> its label; raises a ValueError.

  Raises:
    ValueError: bad rows, as `asked.on_bad_row` says; no row has a label.
  """
  bad = BadRows(records, asked.on_bad_row, every=asked.keep_unlabelled)
  needed = fields if asked.keep_unlabelled else (*fields, asked.label)
  table, rows = in_memory(records, bad, fields=needed, optional=(asked.label,))
  as_numbers: list[int] = []  # rows whose label is the number that stands for none

  def read(index: int) -> Any:
    row = table.values(index, needed, optional=(asked.label,))
    for field in fields:
      check_text(row[field], index, field, records)
    value = row.get(asked.label)
    if value == asked.missing:
      as_numbers.append(index)
      return None
    none = value is None or (value == '' and asked.keep_unlabelled)  # as a table has it beside names of classes
    return None if none else label(value, index)

  good = bad.read(read, rows)
  left_out = bad.report()
  kept = [(index, value) for index, value in zip(*good, strict=True) if value is not None or asked.keep_unlabelled]
  if not kept:
    raise ValueError(
      f'{records.where}: none of {len(records)} rows has a label ({asked.label!r} is {asked.missing} in all): '
      'keep_unlabelled=True keeps them, to be predicted.'
    )
  if len(kept) < len(good.rows):
    log.info(f'{records.where}: {len(good.rows) - len(kept)} rows without a label are left out.')
    if as_numbers and len({str(value) for _, value in kept}) == 1:  # as of -1 for bad and 1 for good
      raise ValueError(
        f'{records.where}: {asked.label!r} is {asked.missing} in {len(as_numbers)} rows, which stands for no label, '
        f'and {kept[0][1]} in all others: number the classes from 0, or write their names.'
      )
    if as_numbers:
      log.warning(
        f'{records.where}: in {len(as_numbers)} of them {asked.label!r} is {asked.missing}, which stands for no label. '
        'Where it is a class, number the classes from 0, or write their names; where it is a value, set data.missing '
        'to one that there is not.'
      )
  row_ids, labels = zip(*kept, strict=True)
  return Kept(table, np.array(row_ids, np.int64), list(labels), left_out)


def digest_of(
  records: Records,
  asked: ExampleSettings,
  fields: tuple[str, ...],
  kind: str,
  *added: Any,
  left_out: tuple[int, ...] = (),
) -> str:
  """Of the rows and of everything that decides what becomes of them; `added` and `left_out` as in `changes`."""
  missing = asked.missing if isinstance(asked.missing, str) else float(asked.missing)
  drawn = asked.per_class, asked.sample_seed, missing
  return store.digest_of(records.digest, fields, asked.label, kind, *drawn, *added, *changes(asked, left_out))


def changes(asked: ExampleSettings, left_out: tuple[int, ...]) -> list[Any]:
  """What a digest has only where a setting is not its default: prefixes, unlabelled rows, bad rows left out."""
  prefixes, bad = [list(asked.prefixes)] * any(asked.prefixes), [list(left_out)] * bool(left_out)
  return [*prefixes, *bad, *(['keep_unlabelled'] * asked.keep_unlabelled)]


def in_memory(
  records: Records, bad: BadRows, *, fields: tuple[str, ...], optional: tuple[str, ...] = ()
) -> tuple[Records, Sequence[int]]:
  """The same rows with these fields only, read at once, and which of them can be read; large data is left as it is.

  Small sources are kept for later calls: studies draw from one again and again.

  Args:
    records: the split.
    bad: takes the rows that cannot be read.
    fields: that every row has.
    optional: that rows may have.

  Raises:
    ValueError: more rows that cannot be read than `bad` takes.
  """
  every = range(len(records))
  if len(records) > IN_MEMORY:
    return records, every
  key = (records.digest, *fields, '', *optional)
  if key in _kept:
    return _of(records, _kept[key], fields), every
  good = bad.read(lambda index: records.values(index, fields, optional=optional))
  table: list[dict[str, Any]] = [{}] * len(records)
  for index, row in zip(*good, strict=True):
    table[index] = row
  if len(table) <= KEPT_ROWS and len(good.rows) == len(table):
    if len(_kept) == KEPT_SOURCES:
      _kept.pop(next(iter(_kept)))
    _kept[key] = table
  return _of(records, table, fields), good.rows


def _of(records: Records, table: list[dict[str, Any]], fields: tuple[str, ...]) -> Records:
  return dataclasses.replace(records, fields=fields, pieces=((table, range(len(table))),))


# Texts -------------------------------------------------------------------------------------------------------------


class FieldTexts:
  """The fields of some rows, one after another; a list of strings is one text with spaces between them.

  Attributes:
    digest: of their content.
  """

  def __init__(
    self,
    records: Records,
    fields: tuple[str, ...],
    row_ids: np.ndarray,
    digest: str,
    *,
    prefixes: tuple[str, ...] = (),
    write: Callable[[Any], str | None] = text_of,
  ):
    """Reads nothing yet.

    Args:
      records: the split.
      fields: of the texts.
      row_ids: int64[rows], which rows.
      digest: of their content.
      prefixes: text before each field; () for none.
      write: what a row holds in a field -> its text.
    """
    self.records = records
    self.fields = fields
    self.row_ids = row_ids
    self.digest = digest
    self.prefixes = prefixes or ('',) * len(fields)
    self.write = write

  def __len__(self) -> int:
    return len(self.row_ids) * len(self.fields)

  def __getitem__(self, index: int) -> str:
    row, field = divmod(index, len(self.fields))
    return f'{self.prefixes[field]}{self.write(self.records[int(self.row_ids[row])].get(self.fields[field]))}'


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
