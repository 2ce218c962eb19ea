"""Rows and columns of ELMo's tables."""

from collections.abc import Mapping
from typing import Any

from experiments.tables.shared import claims, scales, tasks

COLUMNS = ('SQuAD', 'SNLI', 'SRL', 'POS', 'WNUT-17')


def rows(scale: str, config: str, rows: Mapping[str, tuple[Any, ...]]) -> dict[str, dict[str, Any]]:
  """Return rows of ELMo's tables over one trunk.

  Args:
    scale: of the table.
    config: of the pre-training, below experiments/.
    rows: name -> (side, layers, lambda, published numbers of the first columns of `ELMO`).
  """
  made = {}
  for name, (side, layers, penalty, published) in rows.items():
    tuning = {'adapter.side': side, 'adapter.layers': layers, 'adapter.penalty': penalty}
    made[name] = scales.staged(scale, config, small='cut')
    made[name] |= dict(family='elmo', tuning=tuning, published=claims.by_column(COLUMNS[:3], published))
  return made


def columns(scale: str) -> dict[str, dict[str, Any]]:
  """Return the paper's columns, and two sets of labelled words."""
  # column: (config, its word, folder, metric, times which it is printed)
  sets = {
    'SQuAD': ('elmo/pairs.py', 'squad', 'squad', 'f1', 1),
    'SNLI': ('elmo/pairs.py', 'snli', 'snli', 'accuracy', 100),
    'POS': ('elmo/tagging.py', 'ewt', 'universal_dependencies_en_ewt', 'accuracy', 100),
    'WNUT-17': ('elmo/tagging.py', 'wnut17', 'wnut_17', 'accuracy' if scale == 'tiny' else 'f1', 100),
  }
  columns: dict[str, dict[str, Any]] = {name: dict(empty='its data are not free') for name in COLUMNS}
  for name, (config, word, folder, metric, times) in sets.items():
    columns[name] = dict(
      metric=f'validation/{metric}',
      configs={'elmo': scales.target(scale, config, word, small='')},
      keys=scales.on_a_laptop(scale),
      folder='' if scale == 'tiny' else folder,
      times=times,
    )
  if scale == 'small':
    columns['SQuAD'] = dict(empty=tasks.absent(scale, 'SQuAD F1'))
    # per cent of validation: 34 to 36 after 600 updates, without ELMo 38 after 2,000; a linear model of words 37 to 42
    columns['SNLI'] = dict(empty='the few rows among the small data leave these networks near chance')
  return columns
