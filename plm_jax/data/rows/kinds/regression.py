"""One real value per example."""

import re
from typing import Any

import numpy as np

from plm_jax.data.corpora.records import Records
from plm_jax.data.rows import examples

GIVES = ('label',)
_NUMBER = re.compile(r'[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?')
_LARGEST = float(np.finfo(np.float32).max)
QUICK = dict(kind='class')  # settings of a smoke test (`file.py:quick`)


def make(*, records: Records, asked: examples.ExampleSettings) -> examples.Examples:
  """Read the rows with a value; adds `label` float32[b]."""

  def label(value: Any, index: int) -> float | None:
    number = value
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):  # a table column with a cell that is no number
      number = float(value)
    if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) <= _LARGEST:
      comma = ': write a point before decimals, and no comma' * (',' in str(value))
      raise ValueError(f'row {index} of {records.where}: {asked.label!r} holds {value!r}, not a finite number{comma}')
    return None if number == asked.missing else number

  return examples.one_label(records, asked, kind='regression', label=label, dtype=np.float32)
