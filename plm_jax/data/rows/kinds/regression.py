"""One real value per row."""

import math
import re
from typing import Any

import numpy as np

from plm_jax.data.corpora.records import Records
from plm_jax.data.rows import examples

GIVES = ('label',)
_NUMBER = re.compile(r'-?[0-9]+(\.[0-9]*)?')
QUICK = dict(kind='class')  # of a smoke test (`file.py:quick`)


def make(*, records: Records, asked: examples.Asked) -> examples.Examples:
  """The rows that have a value, with `label` float32[b]."""

  def label(value: Any, index: int) -> float:
    if isinstance(value, str) and _NUMBER.fullmatch(value):  # in a table with another row whose value is no number
      return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
      raise ValueError(f'row {index} of {records.where}: {asked.label!r} holds {value!r}, which is no number')
    return value

  return examples.one_label(records, asked, kind='regression', label=label, dtype=np.float32)
