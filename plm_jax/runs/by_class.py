"""Metrics per class: precision, recall and F1, and the confusion matrix (scikit-learn)."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from plm_jax import scores
from plm_jax.cli import tables
from plm_jax.core.errors import ConfigError
from plm_jax.scores import Row, multilabel

NEEDS = ('scikit-learn',)
MOST = 25  # classes up to which the confusion matrix is printed; the file always has it
NONE = 'none of them'  # column of the confusion matrix for predictions of no class
_NO_CLASS = -1  # a predicted text that is none of the labels


class ByClass(NamedTuple):
  """Metrics of the c classes that are a label or a prediction, in the order of their ids.

  A predicted text that is none of the labels (-1) counts as a miss of its example's class, not as a class, as in
  `scores/macro_f1`.
  """

  names: tuple[str, ...]  # of the classes; their ids if the data have no names
  precision: np.ndarray  # f64[c], fraction of the predictions of the class that are right; 0 without predictions
  recall: np.ndarray  # f64[c], fraction of the examples of the class that are found; 0 without examples
  f1: np.ndarray  # f64[c], the harmonic mean of both
  support: np.ndarray  # int64[c], examples of the class
  # int64[c, c], examples of class i predicted as class j; int64[c, c+1] if some were predicted as no class, counted in
  # the last column. None if an example may have several classes
  confusion: np.ndarray | None

  @property
  def predicted(self) -> tuple[str, ...]:
    """Name the columns of the confusion matrix."""
    alone = self.confusion is None or self.confusion.shape[1] == len(self.names)
    return self.names if alone else (*self.names, NONE)

  @property
  def summary(self) -> dict[str, float]:
    """Compute macro F1, the mean over these classes, and accuracy."""
    if self.confusion is None:
      return {'macro_f1': float(self.f1.mean())}
    right = float(np.trace(self.confusion) / self.confusion.sum())
    return {'macro_f1': float(self.f1.mean()), 'accuracy': right}

  def plain(self) -> dict[str, Any]:
    """Convert all values for JSON."""
    names = ('precision', 'recall', 'f1', 'support')
    values = (column.tolist() for column in (self.precision, self.recall, self.f1, self.support))
    each = [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
    by_name = {**self.summary, 'classes': dict(zip(self.names, each, strict=True))}
    if self.confusion is None:
      return by_name
    counts = self.confusion.tolist()
    return {
      **by_name,
      'confusion': {'rows': 'label', 'columns': 'prediction', 'predicted': list(self.predicted), 'counts': counts},
    }


def check(predicted: Sequence[str], *, user: str) -> None:
  """Raise ConfigError if predictions have no classes or scikit-learn is missing."""
  scores.check_installed('by_class', NEEDS)
  if not {'label', 'labels', 'threshold'} & set(predicted):
    reason = f'predicts {", ".join(sorted(predicted))}, not a class' if predicted else 'predicts nothing'
    raise ConfigError(f'--by_class: {user} {reason}; it is for runs that classify or tag, remove it')


def measure(predictions: Sequence[Row], records: Sequence[Row]) -> ByClass:
  """Compute the metrics of each class.

  Raises ConfigError: an example has no class.

  Args:
    predictions: with 'label', or with 'labels' of words; see `scores/__init__.py`.
    records: of the same examples. Truncated words have no prediction and do not count.
  """
  from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

  names = next((record['names'] for record in records if record.get('names')), ())
  options: dict[str, Any] = {'zero_division': 0}
  if 'threshold' in predictions[0]:
    gold, predicted, _ = multilabel.decisions(predictions, records)
    count = gold.shape[1]
    labels = range(count) if count > 1 else [1]  # one column is a class 1 against 0
    precision, recall, f1, support = precision_recall_fscore_support(gold, predicted, labels=labels, **options)
    return ByClass(_named(range(count), names), precision, recall, f1, support, None)
  pairs = [pair for row, record in zip(predictions, records, strict=True) for pair in _pairs(row, record)]
  if not pairs:
    raise ConfigError('--by_class: no example has a class; remove it')
  gold, predicted = np.array(pairs).T
  present = np.unique([gold, predicted])
  classes = present[present != _NO_CLASS]
  precision, recall, f1, support = precision_recall_fscore_support(gold, predicted, labels=classes, **options)
  class_names = _named(classes.tolist(), names)
  columns = [*classes, *([_NO_CLASS] if _NO_CLASS in predicted else [])]
  confusion = confusion_matrix(gold, predicted, labels=columns)[: len(classes)]
  return ByClass(names=class_names, precision=precision, recall=recall, f1=f1, support=support, confusion=confusion)


def _named(classes: Sequence[int], names: Sequence[str]) -> tuple[str, ...]:
  """Return the names of classes, the index of one without a name."""
  return tuple(names[index] if 0 <= index < len(names) else str(index) for index in classes)


def _pairs(prediction: Row, record: Row) -> list[tuple[int, int]]:
  """List (label, predicted class) of an example or its answered words."""
  if 'label' in prediction:
    if not isinstance(label := record.get('label'), int):
      raise ConfigError(f'--by_class: an example has the label {label!r}, not a class')
    return [(label, int(prediction['label']))]
  predicted = np.asarray(prediction['labels'])
  gold = [record['labels'][position] for position in record['places']]
  return [pair for pair in zip(gold, predicted[predicted >= 0].tolist(), strict=False) if pair[0] >= 0]


def show(by_class: ByClass, *, title: str) -> None:
  """Print one row per class, and the confusion matrix."""
  table = tables.new(('class', 'precision', 'recall', 'f1', 'support'), title=title, left=('class',))
  shares = zip(by_class.names, by_class.precision, by_class.recall, by_class.f1, by_class.support, strict=True)
  for name, precision, recall, f1, support in shares:
    table.add_row(name, f'{precision:.3f}', f'{recall:.3f}', f'{f1:.3f}', f'{support:,}')
  means = [f'{values.mean():.3f}' for values in (by_class.precision, by_class.recall, by_class.f1)]
  table.add_section()
  table.add_row('mean (macro)', *means, f'{by_class.support.sum():,}')
  tables.show(table)
  if by_class.confusion is None:
    return
  if len(by_class.names) > MOST:
    print(f'{len(by_class.names)} classes: the confusion matrix is only in the file')
    return
  confusion = tables.new(('', *by_class.predicted), title='rows: label, columns: prediction', left=('',))
  for name, counts in zip(by_class.names, by_class.confusion.tolist(), strict=True):
    confusion.add_row(name, *(str(count) if count else '.' for count in counts))
  tables.show(confusion)


def show_steps(lines: Sequence[Mapping[str, Any]]) -> None:
  """Print a row per checkpoint, a column per metric, of `evaluations.jsonl` lines."""
  names = list(dict.fromkeys(name for line in lines for name in line))
  table = tables.new(names)
  for line in lines:
    cells = (line.get(name, '') for name in names)
    table.add_row(*(f'{cell:.4g}' if isinstance(cell, float) else str(cell) for cell in cells))
  tables.show(table)
