"""Format of GLUE for predictions of a test set: a table of index and prediction (gluebenchmark.com).

Classes are numbers, or words if they are kinds of entailment (MNLI, QNLI, RTE, AX; WNLI, the one set that names
not_entailment first, takes numbers). Values (STS-B) are clipped to 0 to 5. A noun that is written for WNLI (T5) is 1 if
it is the one in the second sentence.

A benchmark accepts only labels. A text that is none of them, or that is not a number (T5's -1), is written as the first
class, or as 0, and the log counts such rows; scores count them as wrong.
"""

import logging
from collections.abc import Mapping, Sequence

import numpy as np

from plm_jax.scores import Row, wsc

log = logging.getLogger(__name__)

READS = ('label', 'value')  # one of them
ENTAILMENT = {'entailment', 'neutral', 'contradiction', 'not_entailment'}


def submission(predictions: Sequence[Row], records: Sequence[Row]) -> str:
  """Format rows in order as a table with tabs, or raise ValueError."""
  warn_of_numbers(predictions, records, {'QNLI': {'question', 'sentence'}, 'MNLI': {'premise', 'hypothesis'}})
  lines = ['index\tprediction']
  for position, (row, record) in enumerate(zip(with_labels(predictions), records, strict=True)):
    lines.append(f'{index(record, position)}\t{_prediction(row, record)}')
  return '\n'.join([*lines, ''])


def with_labels(predictions: Sequence[Row]) -> list[Row]:
  """Replace texts that are no label by the first; log their number."""
  # {text x, label -1} {text y, value -1} {label 2}   ->   {text x, label 0} {text y, value 0} {label 2}
  unmatched = [[key for key in READS if 'text' in row and row.get(key) == -1] for row in predictions]
  if count := sum(map(bool, unmatched)):
    log.warning(
      f'{count:,} of {len(predictions):,} texts are not a label or number of their task; they are written as the first '
      'label, or as 0'
    )
  return [{**row, **dict.fromkeys(keys, 0)} for row, keys in zip(predictions, unmatched, strict=True)]


def warn_of_numbers(predictions: Sequence[Row], records: Sequence[Row], tasks: Mapping[str, set[str]]) -> None:
  """Warn of classes written as numbers where the benchmark takes words.

  `tasks` maps names to the fields that identify a task.
  """
  if 'label' not in next(iter(predictions), {}):
    return
  record = records[0]
  for name, fields in tasks.items():
    if fields <= set(record.get('row', {})) and not label_names(record):
      log.warning(
        f'{name} takes words, but the classes of these rows have no names, so numbers are written: put a labels.json '
        'next to the data'
      )


def index(record: Row, position: int) -> int:
  """Return a row's 'idx' in its benchmark, or its position."""
  given = record.get('row', {}).get('idx')
  return given if isinstance(given, int) else position


def label_names(record: Row) -> tuple[str, ...]:
  """Return the classes of a row as benchmarks name them, or ()."""
  return tuple(record.get('label_names') or record.get('names', ()))


def _prediction(row: Row, record: Row) -> str:
  fields, names = record.get('row', {}), label_names(record)
  if 'value' in row:
    return f'{np.clip(float(row["value"]), 0.0, 5.0):.3f}'
  if 'label' not in row and 'span1_text' in fields:
    return str(int(wsc.names(row['text'], fields['span1_text'])))
  if 'label' not in row:
    raise ValueError('only WNLI takes texts that are no labels, and these rows have no span1_text: predict labels')
  label = int(row['label'])
  in_words = set(names) <= ENTAILMENT and names and names[0] != 'not_entailment'
  return names[label] if in_words else str(label)
