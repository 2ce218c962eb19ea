"""Which fields hold texts and labels, where a config does not say: known names first, then what leaves no doubt.

A person's own table has other columns than a published set. The first row is looked at, and one that could be read in
two ways is refused with its fields, not guessed.
"""

from collections.abc import Sequence
from typing import Any

from plm_jax.data.corpora.records import Records
from plm_jax.data.rows import examples
from plm_jax.data.rows.kinds import options

# Names of the field of labels, by kind of rows; the first that is there counts.
LABELS = {
  'class': ('label', 'labels', 'class', 'category', 'target', 'sentiment', 'intent', 'topic'),
  'regression': ('label', 'score', 'value', 'rating', 'similarity', 'target'),
  'words': ('tags', 'ner_tags', 'pos_tags', 'labels', 'label', 'upos'),
  'arcs': ('deprel', 'relations', 'relation', 'labels'),
  'options': ('label', 'answer', 'answers', 'correct', 'gold'),
  'spans': ('answers', 'answer'),
  'text': ('target', 'summary', 'translation', 'label'),
}
# Names of the fields of texts, for the kinds that have no list of their own.
TEXTS = {
  'words': (('tokens',), ('words',), ('text',), ('sentence',)),
  'arcs': (('tokens', 'head'), ('tokens', 'heads'), ('words', 'head'), ('words', 'heads')),
  'spans': (('question', 'context'),),
}
NUMBERS = ('id', 'idx', 'index', 'guid', 'uid', 'row_id')  # of rows
_MOST = 2  # texts in a row of which nothing says what they are


def find_label(records: Records, kind: str) -> str:
  """The field that holds the label.

  Raises:
    ValueError: none has a known name, and more than one could be meant.
  """
  if len(listed := [name for name in records.labels if name in records.fields]) == 1:  # in labels.json
    return listed[0]
  if known := next((name for name in LABELS.get(kind, ()) if name in records.fields), None):
    return known
  left = [name for name in records.fields if name not in NUMBERS and name not in known_texts(records, kind)]
  if len(left) == 1:
    return left[0]
  raise ValueError(
    f'{records.where}: say which field holds the label, as in --config.data.label={(left or records.fields)[0]}; there '
    f'are {", ".join(records.fields)}'
  )


def find_fields(records: Records, kind: str, label: str) -> tuple[str, ...]:
  """The fields that hold the text, in order; () where none of them can be meant.

  Raises:
    ValueError: none has a known name, and the first row does not show which are meant.
  """
  if kind == 'options':
    return options.known_fields(records) or _options(records, label)
  if found := known_texts(records, kind):
    return found
  held = _of_text(records, but=(label, *NUMBERS))
  if kind in ('class', 'regression', 'text') and 0 < len(held) <= _MOST:
    return held
  if kind == 'words' and len(held) == 1:
    return held
  example = (held or records.fields)[0]
  raise ValueError(
    f'{records.where}: say which fields hold the text, as in --config.data.fields="(\'{example}\',)"; there are '
    f'{", ".join(records.fields)}'
  )


def known_texts(records: Records, kind: str) -> tuple[str, ...]:
  """The fields of texts with known names, () where there are none."""
  known: Sequence[tuple[str, ...]] = TEXTS.get(kind, () if kind == 'options' else examples.FIELDS)
  return next((names for names in known if all(name in records.fields for name in names)), ())


def _of_text(records: Records, *, but: Sequence[str]) -> tuple[str, ...]:
  """The fields of the first row that hold a text or a list of texts, and no number."""
  row = _first(records)
  held = {name: value for name, value in row.items() if name not in but and not isinstance(value, int | float)}
  return tuple(name for name, value in held.items() if examples.text_of(value) is not None)


def _options(records: Records, label: str) -> tuple[str, ...]:
  """A text and the list of options behind it, where these are all the texts of a row."""
  row = _first(records)
  held = _of_text(records, but=(label, *NUMBERS))
  lists = [name for name in held if isinstance(row[name], list)]
  return (*(name for name in held if name not in lists), *lists) if len(lists) == 1 and len(held) == _MOST else ()


def _first(records: Records) -> dict[str, Any]:
  """The first row that can be read.

  Raises:
    ValueError: that of the first row, where none of the first ones can.
  """
  for index in range(min(len(records), examples.LOOKED_AT)):
    try:
      return records[index]
    except ValueError:  # it is named when all rows are read
      continue
  return records[0]


def check_specified(**settings: str | None) -> None:
  """Raises ValueError for a setting that is None, which only a run finds in its data before it begins."""
  if bare := [name for name, value in settings.items() if value is None]:
    raise ValueError(f'data.{bare[0]}=None is found by `train` where a run begins; here it has to be said')
