"""The form in which GLUE takes predictions of a test set: a table of index and prediction (gluebenchmark.com).

Classes are numbers, but words where they are kinds of entailment (MNLI, QNLI, RTE, AX; WNLI, the one set that names
not_entailment first, takes numbers). Values (STS-B) are cut to 0 to 5. A noun that is written for WNLI (T5) is 1 where
it is the one that the second sentence has.

A benchmark takes labels and nothing else. A text that is none of them, or that spells no number (T5's -1), is written
as the first class, or as 0, and a line of the log says how many rows are; scores count such rows as wrong.
"""

import logging
from collections.abc import Mapping, Sequence

import numpy as np

from plm_jax.scores import Row, wsc

log = logging.getLogger(__name__)

READS = ('label', 'value')  # one of them
ENTAILMENT = {'entailment', 'neutral', 'contradiction', 'not_entailment'}


def submission(predictions: Sequence[Row], records: Sequence[Row]) -> str:
  """The table, tabs between columns, rows in their order.

  Raises:
    ValueError: a row has neither a label nor a value, and its text is no noun.
  """
  warn_of_numbers(predictions, records, {'QNLI': {'question', 'sentence'}, 'MNLI': {'premise', 'hypothesis'}})
  lines = ['index\tprediction']
  for number, (row, record) in enumerate(zip(with_labels(predictions), records, strict=True)):
    lines.append(f'{index(record, number)}\t{_prediction(row, record)}')
  return '\n'.join([*lines, ''])


def with_labels(predictions: Sequence[Row]) -> list[Row]:
  """Predictions in which a text that is no label is the first one, and one that spells no number is 0."""
  # {text x, label -1} {text y, value -1} {label 2}   ->   {text x, label 0} {text y, value 0} {label 2}
  unmatched = [[key for key in READS if 'text' in row and row.get(key) == -1] for row in predictions]
  if count := sum(map(bool, unmatched)):
    log.warning(
      f'{count:,} of {len(predictions):,} texts are no label and no number of their task, and are written as the first '
      'label, or as 0'
    )
  return [{**row, **dict.fromkeys(keys, 0)} for row, keys in zip(predictions, unmatched, strict=True)]


def warn_of_numbers(predictions: Sequence[Row], records: Sequence[Row], tasks: Mapping[str, set[str]]) -> None:
  """Says where classes have no names, and so are written as numbers, which the benchmark takes as words.

  Args:
    predictions: of rows, classes or others.
    records: of the same rows.
    tasks: name -> fields that tell the task from others.
  """
  if 'label' not in next(iter(predictions), {}):
    return
  record = records[0]
  for name, fields in tasks.items():
    if fields <= set(record.get('row', {})) and not label_names(record):
      log.warning(
        f'{name} is handed in as words, and the classes of these rows have no names, so numbers are written: put a '
        'labels.json beside the data'
      )


def index(record: Row, number: int) -> int:
  """The number of a row in its benchmark: 'idx' of the data, or its place."""
  given = record.get('row', {}).get('idx')
  return given if isinstance(given, int) else number


def label_names(record: Row) -> tuple[str, ...]:
  """The names of the classes of a row as benchmarks have them; () where they have none."""
  return tuple(record.get('label_names') or record.get('names', ()))


def _prediction(row: Row, record: Row) -> str:
  fields, names = record.get('row', {}), label_names(record)
  if 'value' in row:
    return f'{np.clip(float(row["value"]), 0.0, 5.0):.3f}'
  if 'label' not in row and 'span1_text' in fields:
    return str(int(wsc.names(row['text'], fields['span1_text'])))
  if 'label' not in row:
    raise ValueError('only WNLI is written as texts that are no labels, and these rows have no span1_text')
  label = int(row['label'])
  in_words = set(names) <= ENTAILMENT and names and names[0] != 'not_entailment'
  return names[label] if in_words else str(label)
