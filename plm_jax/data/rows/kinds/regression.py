"""One real value per row."""

from collections.abc import Callable
from typing import Any

import numpy as np

from plm_jax.data.corpora.records import Records
from plm_jax.data.rows import examples
from plm_jax.data.rows.order import Batch

GIVES = ('label',)
QUICK = dict(kind='class')  # of a smoke test (`file.py:quick`)


def read(records: Records, asked: examples.Asked) -> examples.Examples:
  """The rows that have a value; labels float32[rows]."""

  def label(value: Any, index: int) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
      raise ValueError(f'row {index} of {records.where}: {asked.label!r} holds {value!r}, which is no number')
    return value

  return examples.one_label(records, asked, kind='regression', label=label, dtype=np.float32)


def targets(given: examples.Examples, offsets: np.ndarray, place: examples.Place) -> Callable[[np.ndarray, int], Batch]:
  """label float32[b]."""
  return lambda chosen, width: {'label': given.labels[chosen]}
