"""A target text for each example: its translation, its summary, the name of its class (Raffel et al. 2019, §2.4).

The field `label` holds the text, a list of texts of which any is right, a class, or a number. The first text is the
training target. A table has such a list as text, in every row or in none. A class is written as its name, and a cell of
a column of whole numbers as in its table. Other numbers are written as T5 writes the scores of STS-B: to the nearest
.2, with one decimal (Raffel et al. 2019, appendix D).
`prefixes` are the texts that T5 puts before each field:

    fields=('hypothesis', 'premise'), prefixes=('mnli hypothesis: ', 'premise: ')

The layout cuts the target to `target_length` from its end, but keeps the end token.
"""

import dataclasses
import logging
import math
from typing import Any

import numpy as np

from plm_jax.data.corpora import cells
from plm_jax.data.corpora.records import Records, Whole, is_words
from plm_jax.data.rows import examples
from plm_jax.data.rows.field_texts import FieldTexts

log = logging.getLogger(__name__)
GIVES = ('target_tokens', 'target_segment_ids')
# settings of a smoke test (`file.py:quick`)
QUICK = dict(path='pydocs/summarise', fields=('source',), label='target', prefixes=(), target_length=32)


@dataclasses.dataclass(frozen=True)
class Targets:
  """Conversion of the values of the label `field` to target texts."""

  records: Records
  field: str
  lists: bool = False  # every value is a text that has a list

  def texts(self, value: Any) -> tuple[str, ...]:
    """Return the right texts, the training target first; () without one."""
    names = self.records.labels.get(self.field, ())
    value = cells.parse(value) if self.lists and isinstance(value, str) else value
    several = value if isinstance(value, list | tuple) else (value,)
    if all(isinstance(text, str) for text in several):
      return tuple(several) if all(text.strip() for text in several) else ()
    if isinstance(value, bool):
      return (names[value] if names else str(value),)
    if isinstance(value, int) and names:
      return (names[value],) if 0 <= value < len(names) else ()
    if isinstance(value, Whole):
      return (value.spelling,)
    number = isinstance(value, int | float) and math.isfinite(value)
    return (f'{round(value * 5) / 5:.1f}',) if number else ()

  def first(self, value: Any) -> str:
    """Return the training target; empty for a row that is only predicted."""
    return '' if value is None else (*self.texts(value), '')[0]

  def check(self, value: Any, index: int) -> Any:
    """Return the value; raise ValueError if it gives no text."""
    if not self.texts(value):
      raise ValueError(
        f'row {index} of {self.records.where} needs a text in {self.field!r}, a list of texts, a named class or a '
        f'number, got {value!r}'
      )
    return value


def make(*, records: Records, asked: examples.ExampleSettings) -> examples.Examples:
  """Read the rows with a target text."""
  if asked.per_class is not None:
    raise ValueError(f"{records.where}: per_class={asked.per_class} needs classes; kind='text' has none: remove it.")
  fields = examples.fields_of(records, asked)
  targets = Targets(records, asked.label)
  labelled = examples.read_rows(records, asked, fields=fields, label=targets.check)
  known = [value for value in labelled.labels if value is not None]
  lists = sum(isinstance(value, str) and is_words(cells.parse(value)) for value in known)
  targets = dataclasses.replace(targets, lists=0 < lists == len(known))
  if lists and not targets.lists:
    log.warning(
      f'{records.where}: {lists:,} of {len(known):,} rows have a list in {asked.label!r}, which is read with its '
      'brackets: write a list in every row, or in none'
    )
  changes = [*labelled.changes, *['target lists'] * targets.lists]
  digest = examples.digest_of(records, asked, fields, 'text', *changes, left_out=labelled.left_out)

  def part(names: tuple[str, ...], **settings: Any) -> examples.Examples:
    return examples.Examples(
      texts=FieldTexts(labelled.table, names, labelled.row_ids, f'{digest} {names}', **settings),
      edges=np.arange(len(labelled.row_ids) * len(names) + 1),
      row_ids=labelled.row_ids,
      fields=names,
      add=lambda offsets, place: lambda chosen, width: {},
    )

  def record(row: int) -> dict[str, Any]:
    value = labelled.labels[row]
    return {
      'row': records[int(labelled.row_ids[row])],
      'references': list(targets.texts(value)) if value is not None else None,
      'names': records.labels.get(asked.label, ()),
    }

  return part(fields, prefixes=asked.prefixes, write=labelled.write)._replace(
    target=part((asked.label,), write=targets.first), record=lambda offsets: record, unlabelled=None in labelled.labels
  )
