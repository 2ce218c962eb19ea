"""What became of each class: precision, recall and F1 of each, and which class was taken for which (scikit-learn)."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from plm_jax import scores
from plm_jax.cli import tables
from plm_jax.core.errors import ConfigError
from plm_jax.scores import Row

NEEDS = ('scikit-learn',)
MOST = 25  # classes whose confusion is printed; a file has all
NONE = 'none of them'  # the column of the confusion matrix of what was predicted as no class
_NO_CLASS = -1  # a text that is none of the labels


class ByClass(NamedTuple):
  """The classes that are a label or were predicted, c of them, in the order of their numbers.

  A text that is none of the labels (-1) is a row of its class that was not found, and no class of its own, as in
  `scores/macro_f1`.

  Attributes:
    names: of the classes, their numbers where the data have no names.
    precision: f64[c], share of the rows of the class among those that were predicted as it; 0 where there are none.
    recall: f64[c], share of the rows of the class that were predicted as it; 0 where there are none.
    f1: f64[c], the harmonic mean of both.
    support: int64[c], rows of the class.
    confusion: int64[c, c], rows of class i that were predicted as class j; int64[c, c+1] where some were predicted as
      no class, which the last column counts.
  """

  names: tuple[str, ...]
  precision: np.ndarray
  recall: np.ndarray
  f1: np.ndarray
  support: np.ndarray
  confusion: np.ndarray

  @property
  def predicted(self) -> tuple[str, ...]:
    """What the columns of the confusion matrix are called."""
    return self.names if self.confusion.shape[1] == len(self.names) else (*self.names, NONE)

  @property
  def summary(self) -> dict[str, float]:
    """Macro F1, the mean over these classes, and accuracy."""
    right = float(np.trace(self.confusion) / self.confusion.sum())
    return {'macro_f1': float(self.f1.mean()), 'accuracy': right}

  def plain(self) -> dict[str, Any]:
    """All of it as JSON has it."""
    names = ('precision', 'recall', 'f1', 'support')
    values = (column.tolist() for column in (self.precision, self.recall, self.f1, self.support))
    each = [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
    counts = self.confusion.tolist()
    return {
      **self.summary,
      'classes': dict(zip(self.names, each, strict=True)),
      'confusion': {'rows': 'label', 'columns': 'prediction', 'predicted': list(self.predicted), 'counts': counts},
    }


def check(predicted: Sequence[str], *, user: str) -> None:
  """Raises ConfigError where predictions with these keys have no classes, or scikit-learn is not installed."""
  scores.check_installed('by_class', NEEDS)
  if 'label' not in predicted and 'labels' not in predicted:
    found = f'predicts {", ".join(sorted(predicted))} and no class' if predicted else 'predicts nothing'
    raise ConfigError(f'--by_class: {user} {found}; it is of runs that classify or tag: leave it out')


def measure(predictions: Sequence[Row], records: Sequence[Row]) -> ByClass:
  """What became of each class of rows, or of the words of rows.

  Args:
    predictions: with 'label', or with 'labels' of words; see `scores/__init__.py`.
    records: of the same rows. Words that were cut off have no prediction, and do not count.

  Raises:
    ConfigError: a row has no class.
  """
  from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

  pairs = [pair for row, record in zip(predictions, records, strict=True) for pair in _pairs(row, record)]
  if not pairs:
    raise ConfigError('--by_class: no row has a class')
  gold, found = np.array(pairs).T
  every = np.unique([gold, found])
  classes = every[every != _NO_CLASS]
  several = {'labels': classes, 'zero_division': 0}
  precision, recall, f1, support = precision_recall_fscore_support(gold, found, **several)
  names = next((record['names'] for record in records if record.get('names')), ())
  named = tuple(names[number] if 0 <= number < len(names) else str(number) for number in classes.tolist())
  columns = [*classes, *([_NO_CLASS] if _NO_CLASS in found else [])]
  confusion = confusion_matrix(gold, found, labels=columns)[: len(classes)]
  return ByClass(named, precision, recall, f1, support, confusion)


def _pairs(prediction: Row, record: Row) -> list[tuple[int, int]]:
  """(label, predicted class) of a row, or of each of its words that has both."""
  if 'label' in prediction:
    if not isinstance(label := record.get('label'), int):
      raise ConfigError(f'--by_class: a row has the label {label!r}, which is no class')
    return [(label, int(prediction['label']))]
  predicted = np.asarray(prediction['labels'])
  gold = [record['labels'][place] for place in record['places']]
  return [pair for pair in zip(gold, predicted[predicted >= 0].tolist(), strict=False) if pair[0] >= 0]


def show(found: ByClass, *, title: str) -> None:
  """Prints a row for each class, and the confusion matrix."""
  table = Table(title=title)
  for column in ('class', 'precision', 'recall', 'f1', 'support'):
    table.add_column(column, justify='left' if column == 'class' else 'right')
  shares = zip(found.names, found.precision, found.recall, found.f1, found.support, strict=True)
  for name, precision, recall, f1, support in shares:
    table.add_row(name, f'{precision:.3f}', f'{recall:.3f}', f'{f1:.3f}', f'{support:,}')
  means = [f'{values.mean():.3f}' for values in (found.precision, found.recall, found.f1)]
  table.add_section()
  table.add_row('mean (macro)', *means, f'{found.support.sum():,}')
  tables.show(table)
  if len(found.names) > MOST:
    print(f'{len(found.names)} classes: the confusion matrix is in the file alone')
    return
  confusion = Table(title='rows: label, columns: prediction')
  confusion.add_column('')
  for name in found.predicted:
    confusion.add_column(name, justify='right')
  for name, counts in zip(found.names, found.confusion.tolist(), strict=True):
    confusion.add_row(name, *(str(count) if count else '.' for count in counts))
  tables.show(confusion)


def show_steps(lines: Sequence[Mapping[str, Any]]) -> None:
  """Prints a row for each checkpoint and a column for each metric; `lines` are those of `evaluations.jsonl`."""
  names = list(dict.fromkeys(name for line in lines for name in line))
  table = Table()
  for name in names:
    table.add_column(name, justify='right')
  for line in lines:
    cells = (line.get(name, '') for name in names)
    table.add_row(*(f'{cell:.4g}' if isinstance(cell, float) else str(cell) for cell in cells))
  tables.show(table)
