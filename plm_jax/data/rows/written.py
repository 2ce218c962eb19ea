"""Rows as text: inputs, targets and options. Shared by the files of `forms/`."""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np

from plm_jax.data.corpora import cells
from plm_jax.data.corpora.records import Records, as_written, is_words
from plm_jax.data.rows.checked import BadRows, OnBadRow

log = logging.getLogger(__name__)

Row = Mapping[str, Any]
Keep = Literal['start', 'end', 'fields']

BLANK = '[MASK]'  # the blank in a template
# The blank in a written text, since a field may contain the letters of `BLANK`: a code point that Unicode reserves for
# internal use of programs, so that no text has it. Private-use code points do occur in texts, in icon fonts.
MARK = '\ufdd0'
_FIELD = re.compile(r'\{([^{}]*)\}')
_MOST_OPTIONS = 1_000


class Written(NamedTuple):
  """A row as text."""

  inputs: str  # the inputs, with at most one `MARK`
  targets: tuple[str, ...] = ()  # right answers; the first is the training target. () if unknown
  options: tuple[str, ...] = ()  # texts to choose from; () if any text may be written
  label: int = -1  # index of the right option; -1 if unknown
  value: float | None = None  # the number that the target spells, if any
  leads: tuple[str, ...] = ()  # first part of each option that is read but not scored; () for none
  found: Row = MappingProxyType({})  # fields that the row lacks and scores read, which the form found in its texts


class Form(NamedTuple):
  """Text format of rows."""

  write: Callable[[Row], Written | None]  # row -> its text; None drops the row. Raises ValueErrors that name the field
  fields: tuple[str, ...]  # fields of the inputs, which may lose their ends; dots are for nested fields
  options: tuple[str, ...] = ()  # options that all rows have; () if each row has its own, or none
  # part that remains of inputs that are too long: their 'start', their 'end', or all except the ends of the longest
  # 'fields'. Inputs with a blank always use the last
  keep: Keep = 'start'
  answers: tuple[str, ...] = ()  # fields of the answers only; a row in which one of them is None has no answer
  whole: tuple[str, ...] = ()  # further fields that a row needs, which lose nothing
  names: tuple[str, ...] = ()  # names of the labels if `options` are other words, as benchmarks take them


def without_answers(form: Form) -> Form:
  """Return the form for rows without answers; their fields are None."""
  bare = dict.fromkeys(name.partition('.')[0] for name in form.answers)
  return form._replace(write=lambda row: form.write({**bare, **row}))


def names_in(template: str) -> tuple[str, ...]:
  """List a template's fields: 'a {b} c {d.e}' -> ('b', 'd.e')."""
  return tuple(dict.fromkeys(_FIELD.findall(template)))


def value_of(row: Row, field: str) -> Any:
  """Return a field, nested as 'answers.text', or raise ValueError."""
  value: Any = row
  for name in field.split('.'):
    if value is not row and isinstance(value, str):  # an object in a cell
      value = cells.parse(value) or value
    if not isinstance(value, Mapping) or name not in value:
      available = f'the fields are {", ".join(value)}' if isinstance(value, Mapping) else f'{value!r} has no fields'
      raise ValueError(f'no field {field!r}: {name!r} is missing, {available}')
    value = value[name]
  return value


def text_of(row: Row, field: str) -> str:
  """Return a field's text or a table's number, or raise ValueError."""
  value = as_written(value_of(row, field))
  if not isinstance(value, str):
    raise ValueError(f'{field!r} holds no text but {value!r}')
  return value


def whole_of(row: Row, field: str) -> int:
  """Return the whole number of a field, or raise ValueError."""
  value = value_of(row, field)
  if isinstance(value, bool) or not isinstance(value, int):
    raise ValueError(f'{field!r} holds no whole number but {value!r}')
  return value


def texts_of(row: Row, field: str) -> tuple[str, ...]:
  """Return a field's text or list as list, or raise ValueError."""
  value = value_of(row, field)
  if isinstance(value, str):
    value = spelt if is_words(spelt := cells.parse(value)) else (value,)
  texts = tuple(value) if isinstance(value, Sequence) else (None,)
  if not all(isinstance(text, str) for text in texts):
    raise ValueError(f'{field!r} holds no text and no list of texts but {value!r}')
  return texts


def known_texts(row: Row, field: str) -> tuple[str, ...]:
  """Return `texts_of`; () if a field or its parent is None."""
  return () if value_of(row, field.partition('.')[0]) is None else texts_of(row, field)


def filled(template: str, row: Row) -> str:
  """Fill a template with the fields of a row; `BLANK` becomes `MARK`.

  A field may hold text, a number, or a list of texts, which is joined by spaces. Raises ValueError if the row lacks a
  field.
  """

  def text(match: re.Match[str]) -> str:
    value = as_written(value_of(row, match[1]))
    if isinstance(value, str):
      return value
    return str(value) if isinstance(value, int | float) else ' '.join(texts_of(row, match[1]))

  return _FIELD.sub(text, template.replace(BLANK, MARK))


def each_filled(template: str, row: Row, *, spelt: bool = False) -> tuple[str, ...]:
  """Fill a template; return a text for each entry of a list.

  That is, if the template is one field. None in such a field gives no text. `spelt` reads the list that a text spells,
  in the cell of a table.
  """
  alone = _FIELD.fullmatch(template)
  if not alone or isinstance(value := value_of(row, alone[1]), (int, float) if spelt else (int, float, str)):
    return (filled(template, row),)
  return () if value is None else texts_of(row, alone[1])


def label_of(row: Row, field: str, options: Sequence[str], *, names: Sequence[str] = ()) -> int:
  """Return the index of the right option; -1 if unknown.

  The field holds the index, the truth, or one of `names` (by default the options). It is unknown if it is missing, None
  or -1. Raises ValueError if it holds no index of an option and no name.
  """
  value, texts = row.get(field), list(names or options)
  spelling = as_written(value)
  if isinstance(value, int | float) and isinstance(spelling, str) and spelling in texts:  # a cell may be a text
    index = texts.index(spelling)
    if not names and 0 <= value < len(options) and value != index:
      raise ValueError(
        f'{field!r} holds {spelling}, the text of option {index} and the index of another: write the text in JSON '
        'lines, or indices that are no texts of options'
      )
    return index
  value = int(value) if isinstance(value, float) and value.is_integer() else value  # pandas writes 1 as 1.0
  if value is None or value == -1 or (value == '' and '' not in texts):
    return -1
  if isinstance(value, str):
    if value in texts:
      return texts.index(value)
    value = int(value) if value.isdecimal() else value
  if isinstance(value, int) and 0 <= value < len(options):
    return int(value)
  raise ValueError(f'{field!r} holds {value!r}: use 0 to {len(options) - 1}, or one of {texts}')


def shortened(row: Row, fields: Sequence[str], *, excess: int, tokens: Callable[[str], int]) -> Row:
  """Remove about `excess` tokens from the end of the longest field.

  `tokens` counts the tokens of a text. Raises ValueError if no field has a character left.
  """
  texts = {name: text for name in fields if (text := _text_in(row, name))}
  if not texts:
    raise ValueError('the text around its fields alone is too long')
  sizes = {name: max(tokens(text), 1) for name, text in texts.items()}
  longest = max(sizes, key=lambda name: sizes[name])
  text = texts[longest]
  characters = len(text) * max(sizes[longest] - excess, 0) // sizes[longest]
  return _replaced(row, longest.split('.'), text[: min(characters, len(text) - 1)].rstrip())


def _text_in(row: Row, field: str) -> str:
  value = value_of(row, field)
  texts = (value,) if isinstance(value, str) else value if isinstance(value, list | tuple) else ()
  return ' '.join(text for text in texts if isinstance(text, str))


def _replaced(row: Row, names: Sequence[str], text: str) -> Row:
  first, *rest = names
  return {**row, first: _replaced(row[first], rest, text) if rest else text}


class WrittenRows(NamedTuple):
  """The rows of a split that are written."""

  row_ids: np.ndarray  # int64[rows], their indices in the split; repeated if each right answer has a row
  answers: np.ndarray  # int64[rows], index of the right answer that is the target; -1 if unknown
  labels: np.ndarray  # int32[rows], -1 for none
  options: int  # the most options of a row; 0 without options
  left_out: tuple[int, ...]  # indices of the rows that cannot be written


def write(records: Records, index: int, form: Form) -> Written | None:
  """Write a row; raise ValueError that names data and row."""
  row = records[index]
  try:
    return form.write(row)
  except ValueError as error:
    raise ValueError(f'row {index} of {records.where}: {error}') from error


def again(records: Records, index: int, form: Form) -> Written:
  """Write a row that `find_rows` has kept."""
  text = write(records, index, form)
  assert text is not None  # `find_rows` drops others
  return text


def find_rows(
  records: Records, form: Form, *, per_target: bool, keep_unlabelled: bool, on_bad_row: OnBadRow
) -> WrittenRows:
  """Write every row once, and select those with an answer.

  `per_target` gives one row for each right answer; `keep_unlabelled` keeps rows without one. Raises ValueError for a
  row that cannot be written (see `BadRows`), none with a right answer, or one with too many options.
  """

  def read(index: int) -> tuple[int, int, int] | None:
    """Return number of right answers, label and number of options."""
    text = write(records, index, form)
    if text and len(text.targets) == 1 and is_words(cells.parse(text.targets[0])):
      lists.append(index)
    return None if text is None else (len(text.targets), text.label, len(text.options))

  lists: list[int] = []
  bad = BadRows(records, on_bad_row, every=keep_unlabelled)
  good = bad.read(read)
  bad_rows = bad.report()
  rows = []
  for index, sizes in zip(*good, strict=True):
    if sizes is not None and (sizes[0] or keep_unlabelled):
      row_answers = range(sizes[0] if per_target else 1) if sizes[0] else (-1,)
      rows += [(index, answer, *sizes[1:]) for answer in row_answers]
  if not rows:
    raise ValueError(f'{records.where}: none of {len(records)} rows has a right answer')
  row_ids, answers, labels, options = np.array(rows, np.int64).T
  if options.max() > _MOST_OPTIONS:
    raise ValueError(f'{records.where}: a row has {options.max()} options, the limit is {_MOST_OPTIONS}')
  if lists:
    log.warning(
      f'{records.where}: {len(lists):,} of {len(records):,} rows have a text that spells a list as target, which is '
      'written with its brackets: if its texts are right answers, save lists in JSON lines'
    )
  if dropped := len(good.rows) - len(np.unique(row_ids)):
    log.info(f'{records.where}: {dropped} rows without a right answer are dropped.')
  return WrittenRows(
    row_ids=row_ids, answers=answers, labels=labels.astype(np.int32), options=int(options.max()), left_out=bad_rows
  )


def find_bad_rows(records: Records, form: Form, on_bad_row: OnBadRow) -> tuple[int, ...]:
  """Return indices of unwritable rows; arguments and errors as `find_rows`."""
  bad = BadRows(records, on_bad_row)
  bad.read(lambda index: write(records, index, form))
  return bad.report()
