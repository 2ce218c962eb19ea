"""Options of which one is right: endings of a sentence, answers to a question, causes and effects (SWAG, RACE, COPA).

An example is one sequence per option, and each sequence has the texts of `fields` in their order. A field of the config
is the name of a field of the data, or a pattern with names in braces. Options are a list of texts, or several names
with | between them:

  fields                                                           sequences (of BERT)
  ('context', 'endings')                                           [CLS] context [SEP] ending [SEP]
  ('sent1', '{sent2} {ending0|ending1|ending2|ending3}')           [CLS] sent1 [SEP] sent2 ending [SEP]
  ('article', '{question} {options}')                              [CLS] article [SEP] question option [SEP]
  ('premise', 'What was the {question} of this? {choice1|choice2}')

If the label of a row is a list, such as an article with several questions (RACE), each entry is an example. It has this
entry of every other list of the same length. The label is the index of the right option from 0, its letter, its text,
or a name that labels.json lists; of several right texts (ReCoRD) the first that is an option. A text that is an option
has priority. If the cell of a table is the text of one option and the index of another, the row is refused. Examples
may have different numbers of options.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from plm_jax.core import errors
from plm_jax.data.corpora import cells
from plm_jax.data.corpora.records import Records, as_written
from plm_jax.data.rows import examples
from plm_jax.data.rows.checked import BadRows
from plm_jax.data.rows.field_texts import ListedTexts
from plm_jax.data.rows.mistakes import Mistakes

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

Pattern = tuple[str | tuple[str, ...], ...]  # literal texts, and tuples of field names


class Item(NamedTuple):
  """An example."""

  row: Mapping[str, Any]  # the row of the data
  options: list[str]  # texts to choose from
  texts: list[list[str]]  # [options][fields], texts of each sequence
  label: int | None  # index of the right option; None if unknown


def make(*, records: Records, asked: examples.ExampleSettings) -> examples.Examples:
  """Read labelled examples, `per_class` of each class; adds `label` int32[b]."""
  fields = asked.fields or known_fields(records)
  if not fields:
    raise ValueError(
      f"{records.where}: set data.fields to the text and the options, as ('context', 'endings') or with a pattern "
      f"'{{question}} {{a|b}}': {', '.join(records.fields)}."
    )
  if any(asked.prefixes):
    raise ValueError(
      f"{records.where}: kind='options' takes no prefixes={asked.prefixes}; use a pattern such as "
      "fields=('sentence: {context}', ...)."
    )
  patterns = [_pattern(field, records) for field in fields]
  if asked.label not in records.fields and not asked.keep_unlabelled:
    raise ValueError(
      f'{records.where}: no field {asked.label!r} (data.label); choose from {", ".join(records.fields)}.'
    )
  names = examples.ClassNames(records, asked.label)
  bad = BadRows(records, asked.on_bad_row, every=asked.keep_unlabelled)
  good = bad.read(Reader(records, asked, patterns, names).read)
  left_out = bad.report()
  every = [(index, item) for index, items in zip(*good, strict=True) for item in items]
  mistakes = Mistakes(records.where)
  for _, item in every:
    mistakes.see({'options': '' if any(not option.strip() for option in map(str, item.options)) else 'a'})
  mistakes.tell(asked.label, [item.label for _, item in every if item.label is not None])
  if any(len(items) > 1 for items in good.values):  # ids count the questions instead of the rows
    every = [(index, item) for index, (_, item) in enumerate(every)]
  labelled = [(index, item) for index, item in every if asked.keep_unlabelled or item.label is not None]
  if not labelled:
    raise ValueError(
      f'{records.where}: none of {len(every)} rows has a label ({asked.label!r}). keep_unlabelled=True keeps them for '
      'prediction.'
    )
  digest = examples.digest_of(records, asked, fields, 'options', *names.digest, left_out=left_out)
  return _examples(labelled, settings=asked, fields=fields, names=names, digest=digest, where=records.where)


def _examples(
  labelled: list[tuple[int, Item]],
  *,
  settings: examples.ExampleSettings,
  fields: tuple[str, ...],
  names: examples.ClassNames,
  digest: str,
  where: str,
) -> examples.Examples:
  items, row_ids = [item for _, item in labelled], np.array([index for index, _ in labelled], np.int64)
  labels = np.array([-1 if item.label is None else item.label for item in items], np.int32)
  if settings.per_class is not None:
    if (labels < 0).any():
      raise ValueError(f'{where}: per_class={settings.per_class} needs a label in every row')
    sampled = examples.balanced(labels, settings.per_class, sample_seed=settings.sample_seed, where=where)
    items, row_ids, labels = [items[place] for place in sampled], row_ids[sampled], labels[sampled]
  most = max(len(item.texts) for item in items)
  text_ids: dict[str, int] = {}
  shared = np.full((len(items), most, len(fields)), -1, np.int64)
  for row, item in enumerate(items):
    for option, texts in enumerate(item.texts):
      shared[row, option] = [text_ids.setdefault(text, len(text_ids)) for text in texts]

  def record(row: int) -> dict[str, Any]:
    item = items[row]
    return {'row': item.row, 'label': item.label, 'options': item.options, 'names': ()}

  return examples.Examples(
    texts=ListedTexts(text_ids, digest),
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


def _pattern(field: str, records: Records) -> Pattern:
  # '{sent2} {ending0|ending1}'  ->  ('', ('sent2',), ' ', ('ending0', 'ending1'), '')
  braced = field if '{' in field and field not in records.fields else f'{{{field}}}'
  parts = _NAMES.split(braced)
  pattern = tuple(tuple(part.split('|')) if number % 2 else part for number, part in enumerate(parts))
  for name in (name for part in pattern if isinstance(part, tuple) for name in part):
    if name not in records.fields:
      raise ValueError(
        f'{records.where}: no field {name!r} ({field!r} in data.fields).'
        f'{errors.suggest(name, records.fields)} Choose from {", ".join(records.fields)}.'
      )
  return pattern


def known_fields(records: Records) -> tuple[str, ...]:
  """Return fields named as in SWAG, RACE or COPA; else ()."""
  return next((names for names in _FIELDS if _known(names, records)), ())


def _known(fields: Sequence[str], records: Records) -> bool:
  try:
    return bool([_pattern(field, records) for field in fields])
  except ValueError:
    return False


def _filled(pattern: Pattern, row: Mapping[str, Any], *, where: str) -> str | list[str]:
  """Fill a pattern; return a list for options, or raise ValueError."""
  parts: list[str | list[str]] = []
  for part in pattern:
    if isinstance(part, str):
      parts.append(part)
      continue
    values = [as_written(row[name]) for name in part]
    value = values[0] if len(part) == 1 else values
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts):
      raise ValueError(f'{where}: {"|".join(part)!r} holds {value!r}, neither a text nor a list of texts')
    parts.append(value)
  sizes = {len(part) for part in parts if isinstance(part, list)}
  if len(sizes) > 1:
    counts = ' and '.join(map(str, sorted(sizes)))
    raise ValueError(f'{where}: one field has lists of {counts} texts: write one text per option')
  if not sizes:
    return ''.join(part for part in parts if isinstance(part, str))
  return [''.join(part if isinstance(part, str) else part[k] for part in parts) for k in range(sizes.pop())]


class Reader(NamedTuple):
  """Reader of the rows of the data; `names` are those of the options, if labels are names."""

  records: Records
  settings: examples.ExampleSettings
  patterns: list[Pattern]
  names: examples.ClassNames

  def read(self, index: int) -> list[Item]:
    """Return the examples of a row, one for each label.

    Raises ValueError if a field is missing or has another form, or a label is no option.
    """
    row = self.records[index]
    needed = {name for pattern in self.patterns for part in pattern if isinstance(part, tuple) for name in part}
    needed |= set() if self.settings.keep_unlabelled else {self.settings.label}
    for name in sorted(needed - row.keys()):
      self.records.value(index, name)  # raises with the missing field
    if all(len(part) == 1 for pattern in self.patterns for part in pattern if isinstance(part, tuple)):
      row = _with_lists(row, needed)
    return [self._item(entry, where=f'row {index} of {self.records.where}') for entry in _entries(row, needed)]

  def _item(self, row: Mapping[str, Any], *, where: str) -> Item:
    fields = [_filled(pattern, row, where=where) for pattern in self.patterns]
    sizes = {len(field) for field in fields if isinstance(field, list)}
    if len(sizes) != 1 or min(sizes) < 2:
      counts = ' and '.join(map(str, sorted(sizes))) or 'no'
      noun = 'option' if sizes == {1} else 'options'
      raise ValueError(
        f'{where}: fields={self.settings.fields or "()"} give {counts} {noun}; two or more are needed, as a list of '
        "texts or as fields with | between their names ('{ending0|ending1}')"
      )
    count = sizes.pop()
    texts = [[field[k] if isinstance(field, list) else field for field in fields] for k in range(count)]
    options = self._options(row)
    label = self._label(row.get(self.settings.label), options, where=where)
    return Item(row=row, options=options, texts=texts, label=label)

  def _options(self, row: Mapping[str, Any]) -> list[str]:
    parts = [part for pattern in self.patterns for part in pattern if isinstance(part, tuple)]
    part = next(part for part in parts if len(part) > 1 or isinstance(row[part[0]], list))
    return [as_written(row[name]) for name in part] if len(part) > 1 else row[part[0]]

  def _label(self, value: Any, options: list[str], *, where: str) -> int | None:
    """Return the right option's index; None unlabelled; raise ValueError for none."""
    if value is None or value in ('', []) or value == self.settings.missing:
      return None
    index, written = value, as_written(value)
    if written is not value and written in options:  # a cell of a table may be a number or a text
      index = options.index(written)
      if 0 <= value < len(options) and value != index:
        raise ValueError(
          f'{where}: {self.settings.label!r} holds {written}, the text of option {index} and the index (from 0) of '
          'another: use letters, A for the first option'
        )
    elif isinstance(value, list):
      index = next((number for number, option in enumerate(options) if option in value), None)
    elif isinstance(value, str) and value in options:
      index = options.index(value)
    elif isinstance(value, str) and value in self.names.names:
      index = self.names.number(value, 0)
    elif isinstance(value, str):
      index = int(value) if value.isdecimal() else _LETTERS.find(value) if len(value) == 1 else None
    elif isinstance(value, float) and value.is_integer():  # pandas writes 1 as 1.0 if a label is missing
      index = int(value)
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(options):
      raise ValueError(
        f'{where}: {self.settings.label!r} holds {value!r}; the row has {len(options)} options: use 0 to '
        f'{len(options) - 1}, A to {_LETTERS[min(len(options), len(_LETTERS)) - 1]}, or the text of an option'
      )
    return index


def _with_lists(row: dict[str, Any], needed: set[str]) -> dict[str, Any]:
  """Read the lists in the cells of a row without lists."""
  if any(isinstance(row.get(name), list) for name in needed):
    return row
  spelt = {name: cells.parse(row[name]) for name in needed if isinstance(row.get(name), str)}
  return {**row, **{name: value for name, value in spelt.items() if isinstance(value, list)}}


def _entries(row: Mapping[str, Any], needed: set[str]) -> list[Mapping[str, Any]]:
  """Split a row with several questions into one per question."""
  lists = [row[name] for name in needed if isinstance(row.get(name), list)]
  nested = [value for value in lists if value and all(isinstance(inner, list) for inner in value)]
  if not nested:
    return [row]
  # options [[a, b], [c, d]], questions [q, r], article x   ->   a b q x  and  c d r x
  count = len(nested[0])
  same_length = {name for name, value in row.items() if isinstance(value, list) and len(value) == count}
  return [{name: value[k] if name in same_length else value for name, value in row.items()} for k in range(count)]
