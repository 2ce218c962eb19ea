"""One real value per row."""

import math
import re
from typing import Any

import numpy as np

from plm_jax.data.corpora.records import Records
from plm_jax.data.rows import examples

GIVES = ('label',)
_NUMBER = re.compile(r'[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?')
QUICK = dict(kind='class')  # of a smoke test (`file.py:quick`)


def make(*, records: Records, asked: examples.ExampleSettings) -> examples.Examples:
  """The rows that have a value, with `label` float32[b]."""

  def label(value: Any, index: int) -> float | None:
    number = value
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):  # in a table with a cell that is written otherwise
      number = float(value)
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
      raise ValueError(f'row {index} of {records.where}: {asked.label!r} holds {value!r}, which is no number')
    return None if number == asked.missing else number

  return examples.one_label(records, asked, kind='regression', label=label, dtype=np.float32)
