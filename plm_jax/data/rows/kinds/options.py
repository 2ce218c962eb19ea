"""Options of which one is right: endings of a sentence, answers to a question, causes and effects (SWAG, RACE, COPA).

A row is a sequence per option, and each sequence has the texts of `fields` in their order. A field of the config is the
name of a field of the data, or a pattern with names in braces. Options are what holds a list of texts, or several names
with | between them:

  fields                                                           sequences (of BERT)
  ('context', 'endings')                                           [CLS] context [SEP] ending [SEP]
  ('sent1', '{sent2} {ending0|ending1|ending2|ending3}')           [CLS] sent1 [SEP] sent2 ending [SEP]
  ('article', '{question} {options}')                              [CLS] article [SEP] question option [SEP]
  ('premise', 'What was the {question} of this? {choice1|choice2}')

Of a row whose label is a list, such as an article with several questions (RACE), each entry is a row, which has this
entry of every other list that is as long. The label is the number of the right option from 0, its letter, its text, or
a name that labels.json lists; of several right texts (ReCoRD) the first that is an option. A text that is an option
comes first, and where a table's cell is the text of one and the number of another the row is refused. Rows may have
different numbers of options.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from plm_jax.core import errors
from plm_jax.data.corpora.records import Records, as_written
from plm_jax.data.rows import examples
from plm_jax.data.rows.checked import BadRows

GIVES = ('label',)
QUICK = dict(path='pydocs/summary_choice', fields=('context', 'endings'), label='label', buckets=())

_NAMES = re.compile(r'\{([^{}]*)\}')
_FIELDS = (
  ('context', 'endings'),
  ('sent1', '{sent2} {ending0|ending1|ending2|ending3}'),
  ('article', '{question} {options}'),
  ('article', '{questions} {options}'),
  ('premise', 'What was the {question} of this? {choice1|choice2}'),
)
_LETTERS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ'

Pattern = tuple[str | tuple[str, ...], ...]  # texts as they are, and names of fields of the data


class Item(NamedTuple):
  """A row.

  Attributes:
    row: what the data holds.
    options: what is chosen between.
    texts: [options][fields], those of each sequence.
    label: number of the right option; None where it is not known.
  """

  row: Mapping[str, Any]
  options: list[str]
  texts: list[list[str]]
  label: int | None


def make(*, records: Records, asked: examples.ExampleSettings) -> examples.Examples:
  """The rows that have a label, or `per_class` of each, with `label` int32[b]."""
  fields = asked.fields or known_fields(records)
  if not fields:
    raise ValueError(
      f"{records.where}: say which fields hold the text and the options (fields=('context', 'endings'), or a pattern "
      f"as in '{{question}} {{a|b}}'): {', '.join(records.fields)}."
    )
  if any(asked.prefixes):
    raise ValueError(
      f"{records.where}: kind='options' takes no prefixes={asked.prefixes}: write them into a pattern, as in "
      "fields=('sentence: {context}', ...)."
    )
  patterns = [_pattern(field, records) for field in fields]
  if asked.label not in records.fields and not asked.keep_unlabelled:
    raise ValueError(
      f'{records.where}: there is no field {asked.label!r} (data.label), there are {", ".join(records.fields)}.'
    )
  names = examples.ClassNames(records, asked.label)
  bad = BadRows(records, asked.on_bad_row, every=asked.keep_unlabelled)
  good = bad.read(Reader(records, asked, patterns, names).read)
  left_out = bad.report()
  every = [(index, item) for index, items in zip(*good, strict=True) for item in items]
  if any(len(items) > 1 for items in good.values):  # questions are numbered, and no longer what holds them
    every = [(number, item) for number, (_, item) in enumerate(every)]
  kept = [(number, item) for number, item in every if asked.keep_unlabelled or item.label is not None]
  if not kept:
    raise ValueError(
      f'{records.where}: none of {len(every)} rows has a label ({asked.label!r}): keep_unlabelled=True keeps them, to '
      'be predicted.'
    )
  digest = examples.digest_of(records, asked, fields, 'options', *names.digest, left_out=left_out)
  return _examples(kept, asked=asked, fields=fields, names=names, digest=digest, where=records.where)


def _examples(
  kept: list[tuple[int, Item]],
  *,
  asked: examples.ExampleSettings,
  fields: tuple[str, ...],
  names: examples.ClassNames,
  digest: str,
  where: str,
) -> examples.Examples:
  """The rows as sequences; equal texts are kept once, since the options of a row share most of them."""
  items, row_ids = [item for _, item in kept], np.array([number for number, _ in kept], np.int64)
  labels = np.array([-1 if item.label is None else item.label for item in items], np.int32)
  if asked.per_class is not None:
    if (labels < 0).any():
      raise ValueError(f'{where}: per_class={asked.per_class} needs a label of every row')
    drawn = examples.balanced(labels, asked.per_class, sample_seed=asked.sample_seed, where=where)
    items, row_ids, labels = [items[place] for place in drawn], row_ids[drawn], labels[drawn]
  most = max(len(item.texts) for item in items)
  numbers: dict[str, int] = {}
  shared = np.full((len(items), most, len(fields)), -1, np.int64)
  for row, item in enumerate(items):
    for option, texts in enumerate(item.texts):
      shared[row, option] = [numbers.setdefault(text, len(numbers)) for text in texts]

  def record(row: int) -> dict[str, Any]:
    item = items[row]
    return {'row': item.row, 'label': item.label, 'options': item.options, 'names': ()}

  return examples.Examples(
    texts=examples.ListedTexts(numbers, digest),
    edges=np.zeros(0, np.int64),
    row_ids=row_ids,
    fields=fields,
    add=lambda offsets, place: lambda chosen, width: {'label': labels[chosen]},
    names=names.names if len(names.names) == most else (),
    classes=most,
    sequences=most,
    shared=shared.ravel(),
    record=lambda offsets: record,
    unlabelled=bool((labels < 0).any()),
  )


# Patterns ----------------------------------------------------------------------------------------------------------


def _pattern(field: str, records: Records) -> Pattern:
  """A field of the config as texts and names of fields of the data.

  Raises:
    ValueError: the data has no such field.
  """
  # '{sent2} {ending0|ending1}'  ->  ('', ('sent2',), ' ', ('ending0', 'ending1'), '')
  braced = field if '{' in field and field not in records.fields else f'{{{field}}}'
  parts = _NAMES.split(braced)
  pattern = tuple(tuple(part.split('|')) if number % 2 else part for number, part in enumerate(parts))
  for name in (name for part in pattern if isinstance(part, tuple) for name in part):
    if name not in records.fields:
      raise ValueError(
        f'{records.where}: there is no field {name!r}, which fields=... names in {field!r}.'
        f'{errors.suggest(name, records.fields)} There are {", ".join(records.fields)}.'
      )
  return pattern


def known_fields(records: Records) -> tuple[str, ...]:
  """The fields that a data set with names like those of SWAG, RACE or COPA has; () of others."""
  return next((names for names in _FIELDS if _known(names, records)), ())


def _known(fields: Sequence[str], records: Records) -> bool:
  """Whether the data has all that some fields of a config name."""
  try:
    return bool([_pattern(field, records) for field in fields])
  except ValueError:
    return False


def _filled(pattern: Pattern, row: Mapping[str, Any], *, where: str) -> str | list[str]:
  """The text of a pattern in a row, or a list of texts where it holds options.

  Raises:
    ValueError: a field holds neither a text nor a list of texts, or two hold lists of different lengths.
  """
  parts: list[str | list[str]] = []
  for part in pattern:
    if isinstance(part, str):
      parts.append(part)
      continue
    values = [as_written(row[name]) for name in part]
    value = values[0] if len(part) == 1 else values
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts):
      raise ValueError(f'{where}: {"|".join(part)!r} holds {value!r}, which is neither a text nor a list of texts')
    parts.append(value)
  sizes = {len(part) for part in parts if isinstance(part, list)}
  if len(sizes) > 1:
    raise ValueError(
      f'{where}: lists of {" and ".join(map(str, sorted(sizes)))} texts in one field: one for each option'
    )
  if not sizes:
    return ''.join(part for part in parts if isinstance(part, str))
  return [''.join(part if isinstance(part, str) else part[k] for part in parts) for k in range(sizes.pop())]


# Rows --------------------------------------------------------------------------------------------------------------


class Reader(NamedTuple):
  """What is read of each row of the data.

  Attributes:
    records: the split.
    asked: which field holds the label, and which label is none.
    patterns: of the fields.
    names: of the options, where labels are names.
  """

  records: Records
  asked: examples.ExampleSettings
  patterns: list[Pattern]
  names: examples.ClassNames

  def read(self, index: int) -> list[Item]:
    """The rows that a row of the data holds, one for each label.

    Raises:
      ValueError: a field that is missing or of another form, or a label that is no option.
    """
    row = self.records[index]
    wanted = {name for pattern in self.patterns for part in pattern if isinstance(part, tuple) for name in part}
    wanted |= set() if self.asked.keep_unlabelled else {self.asked.label}
    for name in sorted(wanted - row.keys()):
      self.records.value(index, name)  # says what is missing
    return [self._item(entry, where=f'row {index} of {self.records.where}') for entry in _entries(row, wanted)]

  def _item(self, row: Mapping[str, Any], *, where: str) -> Item:
    """A row: its sequences and the number of the right one."""
    fields = [_filled(pattern, row, where=where) for pattern in self.patterns]
    sizes = {len(field) for field in fields if isinstance(field, list)}
    if len(sizes) != 1 or min(sizes) < 2:
      found = ' and '.join(map(str, sorted(sizes))) or 'no'
      noun = 'option' if sizes == {1} else 'options'
      raise ValueError(
        f'{where}: fields={self.asked.fields or "()"} find {found} {noun}, and a row has two or more, in a list of '
        "texts or in several fields with | between their names ('{ending0|ending1}')"
      )
    count = sizes.pop()
    texts = [[field[k] if isinstance(field, list) else field for field in fields] for k in range(count)]
    options = self._options(row)
    return Item(row, options, texts, self._label(row.get(self.asked.label), options, where=where))

  def _options(self, row: Mapping[str, Any]) -> list[str]:
    """What is chosen between, without the texts around it."""
    parts = [part for pattern in self.patterns for part in pattern if isinstance(part, tuple)]
    part = next(part for part in parts if len(part) > 1 or isinstance(row[part[0]], list))
    return [as_written(row[name]) for name in part] if len(part) > 1 else row[part[0]]

  def _label(self, value: Any, options: list[str], *, where: str) -> int | None:
    """The number of the right option; None where there is none.

    Raises:
      ValueError: the label is no option of the row.
    """
    if value is None or value in ('', []) or value == self.asked.missing:
      return None
    found, written = value, as_written(value)
    if written is not value and written in options:  # of a table, whose cells do not tell a number from a text
      found = options.index(written)
      if 0 <= value < len(options) and value != found:
        raise ValueError(
          f'{where}: {self.asked.label!r} holds {written}, which is the text of option {found} and the number of '
          'another one, counted from 0: write letters, A for the first option'
        )
    elif isinstance(value, list):
      found = next((number for number, option in enumerate(options) if option in value), None)
    elif isinstance(value, str) and value in options:
      found = options.index(value)
    elif isinstance(value, str) and value in self.names.names:
      found = self.names.number(value, 0)
    elif isinstance(value, str):
      found = int(value) if value.isdecimal() else _LETTERS.find(value) if len(value) == 1 else None
    elif isinstance(value, float) and value.is_integer():  # as pandas writes 1 where a label is missing
      found = int(value)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < len(options):
      raise ValueError(
        f'{where}: {self.asked.label!r} holds {value!r}, and the row has {len(options)} options: a number from 0 to '
        f'{len(options) - 1}, a letter from A to {_LETTERS[min(len(options), len(_LETTERS)) - 1]}, or the text of one'
      )
    return found


def _entries(row: Mapping[str, Any], wanted: set[str]) -> list[Mapping[str, Any]]:
  """The row, or one for each question where a field holds a list of lists of options."""
  lists = [row[name] for name in wanted if isinstance(row.get(name), list)]
  nested = [value for value in lists if value and all(isinstance(inner, list) for inner in value)]
  if not nested:
    return [row]
  # options [[a, b], [c, d]], questions [q, r], article x   ->   a b q x  and  c d r x
  count = len(nested[0])
  several = {name for name, value in row.items() if isinstance(value, list) and len(value) == count}
  return [{name: value[k] if name in several else value for name, value in row.items()} for k in range(count)]
