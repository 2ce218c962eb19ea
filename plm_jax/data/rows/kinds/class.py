"""One class per example: an index from 0, or a name (`class_names.py`)."""

import numpy as np

from plm_jax.data.corpora.records import Records
from plm_jax.data.rows import examples
from plm_jax.data.rows.class_names import ClassNames

GIVES = ('label',)


def make(*, records: Records, asked: examples.ExampleSettings) -> examples.Examples:
  """Read labelled rows, `per_class` of each class; adds `label` int32[b]."""
  names = ClassNames(records, asked.label, missing=asked.missing)
  return examples.one_label(records, asked, kind='class', label=names.number, dtype=np.int32, names=names)
