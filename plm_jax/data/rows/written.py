"""Rows as text: what is read, what is to be written, texts to choose from. What the files of `forms/` share."""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np

from plm_jax.data.corpora.records import Records, as_written
from plm_jax.data.rows.checked import BadRows, OnBadRow

log = logging.getLogger(__name__)

Row = Mapping[str, Any]
Keep = Literal['start', 'end', 'fields']

BLANK = '[MASK]'  # how a template writes the place to fill
# How a written text has it, since a field may hold the letters of `BLANK`: a code point that Unicode keeps for use
# within programs, so that no text has it. Those for private use are in texts, as signs of icon fonts.
MARK = '\ufdd0'
_FIELD = re.compile(r'\{([^{}]*)\}')
_MOST_OPTIONS = 1_000


class Written(NamedTuple):
  """A row as text.

  Attributes:
    inputs: what is read, with at most one `MARK`.
    targets: texts of which each is a right answer; the first is trained on. () where none is known.
    options: texts to choose from; () where any text may be written.
    label: the number of the right option; -1 where none is known.
    value: the number that the target spells, where it does.
    leads: what each option begins with and is read, but is no part of what is compared; () for none.
    found: fields that the row lacks and scores read, which the form found in its texts.
  """

  inputs: str
  targets: tuple[str, ...] = ()
  options: tuple[str, ...] = ()
  label: int = -1
  value: float | None = None
  leads: tuple[str, ...] = ()
  found: Row = MappingProxyType({})


class Form(NamedTuple):
  """How rows are written.

  Attributes:
    write: a row -> its text; None leaves the row out. Raises ValueErrors that name the field.
    fields: of a row that the inputs are made of, and that may lose their ends; dots go into nested ones.
    options: those that all rows have; () where each row has its own, or none.
    keep: what stays of inputs that are too long: their 'start', their 'end', or all but the ends of the longest
      'fields', which always holds for inputs with a blank.
    answers: fields that only the answers are made of; a row in which one of them is None has no answer.
    whole: fields that a row needs beside `fields`, and that lose nothing.
    names: of the labels where `options` are other words, as benchmarks take them.
  """

  write: Callable[[Row], Written | None]
  fields: tuple[str, ...]
  options: tuple[str, ...] = ()
  keep: Keep = 'start'
  answers: tuple[str, ...] = ()
  whole: tuple[str, ...] = ()
  names: tuple[str, ...] = ()


def without_answers(form: Form) -> Form:
  """The form for rows that may lack the fields of their answers, which are None then."""
  bare = dict.fromkeys(name.partition('.')[0] for name in form.answers)
  return form._replace(write=lambda row: form.write({**bare, **row}))


def names_in(template: str) -> tuple[str, ...]:
  """The fields that a template names, in order: 'a {b} c {d.e}' -> ('b', 'd.e')."""
  return tuple(dict.fromkeys(_FIELD.findall(template)))


def value_of(row: Row, field: str) -> Any:
  """A field of a row; 'answers.text' goes into a nested one.

  Raises:
    ValueError: the row does not have it.
  """
  value: Any = row
  for name in field.split('.'):
    if not isinstance(value, Mapping) or name not in value:
      there = f'has {", ".join(value)}' if isinstance(value, Mapping) else f'holds {value!r}'
      raise ValueError(f'there is no field {field!r}: {name!r} is looked for in what {there}')
    value = value[name]
  return value


def text_of(row: Row, field: str) -> str:
  """The text of a field, or a number of a table; raises ValueError where it holds something else."""
  value = as_written(value_of(row, field))
  if not isinstance(value, str):
    raise ValueError(f'{field!r} holds no text, but {value!r}')
  return value


def whole_of(row: Row, field: str) -> int:
  """The whole number of a field; raises ValueError where it holds something else."""
  value = value_of(row, field)
  if isinstance(value, bool) or not isinstance(value, int):
    raise ValueError(f'{field!r} holds no whole number, but {value!r}')
  return value


def texts_of(row: Row, field: str) -> tuple[str, ...]:
  """The texts in a field, which holds one or a list of them.

  Raises:
    ValueError: it holds something else.
  """
  value = value_of(row, field)
  texts = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Sequence) else (None,)
  if not all(isinstance(text, str) for text in texts):
    raise ValueError(f'{field!r} holds no text and no list of texts, but {value!r}')
  return texts


def known_texts(row: Row, field: str) -> tuple[str, ...]:
  """`texts_of`; () where the field, or the one that it is nested in, is None: no answer is known."""
  return () if value_of(row, field.partition('.')[0]) is None else texts_of(row, field)


def filled(template: str, row: Row) -> str:
  """A template with the fields of a row in place of their names, and `MARK` in place of `BLANK`.

  A field may hold text, a number, or a list of texts, which is joined by spaces.

  Raises:
    ValueError: the row lacks a field.
  """

  def text(found: re.Match[str]) -> str:
    value = as_written(value_of(row, found[1]))
    if isinstance(value, str):
      return value
    return str(value) if isinstance(value, int | float) else ' '.join(texts_of(row, found[1]))

  return _FIELD.sub(text, template.replace(BLANK, MARK))


def each_filled(template: str, row: Row) -> tuple[str, ...]:
  """`filled`; where the template is the name of one field, once for each text of a list, and not at all for None."""
  alone = _FIELD.fullmatch(template)
  if not alone or isinstance(value := value_of(row, alone[1]), int | float):
    return (filled(template, row),)
  return () if value is None else texts_of(row, alone[1])


def label_of(row: Row, field: str, options: Sequence[str], *, names: Sequence[str] = ()) -> int:
  """The number of the right option: a field holds the number, the truth, or a name.

  Args:
    row: what is asked; a field that is missing, None or -1 means that no answer is known.
    field: that holds the label.
    options: their number bounds the label.
    names: of the labels, where a field holds a name; the options themselves by default.

  Raises:
    ValueError: it holds no number of an option and no name.
  """
  value, known = row.get(field), list(names or options)
  spelt = as_written(value)
  if isinstance(value, int | float) and isinstance(spelt, str) and spelt in known:  # of a table: it may be a text
    found = known.index(spelt)
    if not names and 0 <= value < len(options) and value != found:
      raise ValueError(
        f'{field!r} holds {spelt}, which is the text of option {found} and the number of another: write the right text '
        'in JSON lines, or numbers that are no texts of options'
      )
    return found
  value = int(value) if isinstance(value, float) and value.is_integer() else value  # as pandas writes 1
  if value is None or value == -1 or (value == '' and '' not in known):
    return -1
  if isinstance(value, str):
    if value in known:
      return known.index(value)
    value = int(value) if value.isdecimal() else value
  if isinstance(value, int) and 0 <= value < len(options):
    return int(value)
  raise ValueError(f'{field!r} holds {value!r}, which is no number from 0 to {len(options) - 1} and none of {known}')


def shortened(row: Row, fields: Sequence[str], *, excess: int, tokens: Callable[[str], int]) -> Row:
  """A row whose longest text among `fields` has lost characters at its end, about `excess` tokens of them.

  Args:
    row: with nested fields.
    fields: that may be shortened.
    excess: tokens too many, at least 1.
    tokens: of a text.

  Raises:
    ValueError: no field has a character left.
  """
  held = {name: text for name in fields if (text := _text_in(row, name))}
  if not held:
    raise ValueError('the text around its fields alone is too long')
  sizes = {name: max(tokens(text), 1) for name, text in held.items()}
  longest = max(sizes, key=lambda name: sizes[name])
  text = held[longest]
  kept = len(text) * max(sizes[longest] - excess, 0) // sizes[longest]
  return _replaced(row, longest.split('.'), text[: min(kept, len(text) - 1)].rstrip())


def _text_in(row: Row, field: str) -> str:
  """The text of a field, a list of them joined as `filled` does; empty where it holds none."""
  value = value_of(row, field)
  texts = (value,) if isinstance(value, str) else value if isinstance(value, list | tuple) else ()
  return ' '.join(text for text in texts if isinstance(text, str))


def _replaced(row: Row, names: Sequence[str], text: str) -> Row:
  first, *rest = names
  return {**row, first: _replaced(row[first], rest, text) if rest else text}


# Rows of a split -----------------------------------------------------------------------------------------------------


class WrittenRows(NamedTuple):
  """The rows of a split that are written.

  Attributes:
    row_ids: int64[rows], their places in the split; several times the same where each right answer has a row.
    answers: int64[rows], which of its right answers each is to write; -1 where none is known.
    labels: int32[rows], -1 for none.
    options: the most options of a row; 0 where none has any.
    left_out: places of the rows that cannot be written.
  """

  row_ids: np.ndarray
  answers: np.ndarray
  labels: np.ndarray
  options: int
  left_out: tuple[int, ...]


def write(records: Records, index: int, form: Form) -> Written | None:
  """A row of the split as text.

  Raises:
    ValueError: it cannot be written; names the data and the row.
  """
  row = records[index]
  try:
    return form.write(row)
  except ValueError as error:
    raise ValueError(f'row {index} of {records.where}: {error}') from error


def again(records: Records, index: int, form: Form) -> Written:
  """The same of a row that is kept."""
  text = write(records, index, form)
  assert text is not None  # `find_rows` leaves others out
  return text


def find_rows(
  records: Records, form: Form, *, per_target: bool, keep_unlabelled: bool, on_bad_row: OnBadRow
) -> WrittenRows:
  """Writes every row once, and says which are kept.

  Args:
    records: the split.
    form: how a row is written.
    per_target: a row for each right answer.
    keep_unlabelled: keep rows without one.
    on_bad_row: what becomes of rows that cannot be written, see `BadRows`.

  Raises:
    ValueError: a row that cannot be written, none with a right answer, or one with too many options.
  """

  def read(index: int) -> tuple[int, int, int] | None:
    """Right answers, label and options of a row; None where it is left out."""
    text = write(records, index, form)
    return None if text is None else (len(text.targets), text.label, len(text.options))

  bad = BadRows(records, on_bad_row, every=keep_unlabelled)
  good = bad.read(read)
  bad_rows = bad.report()
  found = []
  for index, sizes in zip(*good, strict=True):
    if sizes is not None and (sizes[0] or keep_unlabelled):
      answers = range(sizes[0] if per_target else 1) if sizes[0] else (-1,)
      found += [(index, answer, *sizes[1:]) for answer in answers]
  if not found:
    raise ValueError(f'{records.where}: none of {len(records)} rows has a right answer to write')
  row_ids, answers, labels, options = np.array(found, np.int64).T
  if options.max() > _MOST_OPTIONS:
    raise ValueError(f'{records.where}: a row has {options.max()} options, and there is room for {_MOST_OPTIONS}')
  if left_out := len(good.rows) - len(np.unique(row_ids)):
    log.info(f'{records.where}: {left_out} rows without a right answer are left out.')
  return WrittenRows(row_ids, answers, labels.astype(np.int32), int(options.max()), bad_rows)


def find_bad_rows(records: Records, form: Form, on_bad_row: OnBadRow) -> tuple[int, ...]:
  """The places of the rows that cannot be written, which are left out. Arguments and errors as in `find_rows`."""
  bad = BadRows(records, on_bad_row)

  def read(index: int) -> None:
    write(records, index, form)

  bad.read(read)
  return bad.report()
