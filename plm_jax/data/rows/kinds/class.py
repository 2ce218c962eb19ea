"""One class per row: a number from 0, or a name that labels.json lists."""

from collections.abc import Callable

import numpy as np

from plm_jax.data.corpora.records import Records
from plm_jax.data.rows import examples
from plm_jax.data.rows.order import Batch

GIVES = ('label',)


def read(records: Records, asked: examples.Asked) -> examples.Examples:
  """The rows that have a label, or `per_class` of each class; labels int32[rows]."""
  names = examples.ClassNames(records, asked.label)
  return examples.one_label(records, asked, kind='class', label=names.number, dtype=np.int32, names=names)


def targets(given: examples.Examples, offsets: np.ndarray, place: examples.Place) -> Callable[[np.ndarray, int], Batch]:
  """label int32[b]."""
  return lambda chosen, width: {'label': given.labels[chosen]}
