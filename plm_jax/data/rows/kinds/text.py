"""A text to be written for each row: its translation, its summary, the name of its class (Raffel et al. 2019, §2.4).

The field `label` holds the text, a list of texts of which any is right, a class, or a number. What is trained is the
first text; a class is written as its name, a cell of a column of whole numbers as it stands in its table, and another
number as T5 writes the scores of STS-B: to the nearest .2, with one decimal (Raffel et al. 2019, appendix D).
`prefixes` are what T5 puts before each field:

    fields=('hypothesis', 'premise'), prefixes=('mnli hypothesis: ', 'premise: ')

The target is cut to `target_length` from its end, so that a row keeps its end token.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from plm_jax.data.corpora.records import Records, NonNegativeInt
from plm_jax.data.rows import examples

GIVES = ('target_tokens', 'target_segment_ids')
# of a smoke test (`file.py:quick`)
QUICK = dict(path='pydocs/summarise', fields=('source',), label='target', prefixes=(), target_length=32)


@dataclasses.dataclass(frozen=True)
class Targets:
  """What is to be written, from what the field `label` of a row holds.

  Attributes:
    records: the split.
    field: `label` of the config.
  """

  records: Records
  field: str

  def texts(self, value: Any) -> tuple[str, ...]:
    """The texts that are right, the one that is trained first; empty where there is none."""
    names = self.records.labels.get(self.field, ())
    several = value if isinstance(value, list | tuple) else (value,)
    if all(isinstance(text, str) for text in several):
      return tuple(several) if all(text.strip() for text in several) else ()
    if isinstance(value, bool):
      return (names[value] if names else str(value),)
    if isinstance(value, int) and names:
      return (names[value],) if 0 <= value < len(names) else ()
    if isinstance(value, NonNegativeInt):
      return (value.spelling,)
    number = isinstance(value, int | float) and math.isfinite(value)
    return (f'{round(value * 5) / 5:.1f}',) if number else ()

  def first(self, value: Any) -> str:
    """The text that is trained; empty for a row that has none and is only predicted."""
    return '' if value is None else (*self.texts(value), '')[0]

  def check(self, value: Any, index: int) -> Any:
    """The value of row `index`; raises a ValueError where it gives no text."""
    if not self.texts(value):
      raise ValueError(
        f'row {index} of {self.records.where} needs a text to write in {self.field!r}, or a list of some, a class with '
        f'a name or a number, got {value!r}'
      )
    return value


def make(*, records: Records, asked: examples.Asked) -> examples.Examples:
  """The rows that have a text to write."""
  if asked.per_class is not None:
    raise ValueError(f"{records.where}: per_class={asked.per_class} needs classes; kind='text' has none.")
  fields = examples.fields_of(records, asked)
  targets = Targets(records, asked.label)
  kept = examples.read_rows(records, asked, fields=fields, label=targets.check)
  digest, rows = examples.digest_of(records, asked, fields, 'text', left_out=kept.left_out), len(kept.row_ids)

  def part(names: tuple[str, ...], **settings: Any) -> examples.Examples:
    return examples.Examples(
      texts=examples.FieldTexts(kept.table, names, kept.row_ids, f'{digest} {names}', **settings),
      edges=np.arange(rows * len(names) + 1),
      row_ids=kept.row_ids,
      fields=names,
      add=lambda offsets, place: lambda chosen, width: {},
    )

  def record(row: int) -> dict[str, Any]:
    value = kept.labels[row]
    return {
      'row': records[int(kept.row_ids[row])],
      'references': list(targets.texts(value)) if value is not None else None,
      'names': records.labels.get(asked.label, ()),
    }

  return part(fields, prefixes=asked.prefixes)._replace(
    target=part((asked.label,), write=targets.first), record=lambda offsets: record, unlabelled=None in kept.labels
  )
