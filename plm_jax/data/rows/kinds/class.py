"""One class per row: a number from 0, or a name that labels.json lists."""

import numpy as np

from plm_jax.data.corpora.records import Records
from plm_jax.data.rows import examples

GIVES = ('label',)


def make(*, records: Records, asked: examples.Asked) -> examples.Examples:
  """The rows that have a label, or `per_class` of each class, with `label` int32[b]."""
  names = examples.ClassNames(records, asked.label)
  return examples.one_label(records, asked, kind='class', label=names.number, dtype=np.int32, names=names)
