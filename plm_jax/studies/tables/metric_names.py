"""Check from shapes alone that runs will compute the metrics of their columns.

All runs are checked by one process, `python -m plm_jax.studies.tables.metric_names QUESTIONS ANSWERS`, on the CPU, so
that it does not block the accelerator.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from plm_jax import config
from plm_jax.core.errors import ConfigError
from plm_jax.studies import child
from plm_jax.studies.tables import counting
from plm_jax.studies.tables.file import Table
from plm_jax.studies.tables.runs import Cell, Run


def check(table: Table, plan: Mapping[Cell, Sequence[Sequence[Run]]], left: Sequence[Run], *, head: str) -> None:
  """Raise ConfigError if a column needs a metric that its evaluation lacks.

  Rows differ only in the pre-training, so one run of each config of a column is checked, if it is to be made (`left`).
  Raises ConfigError: lists every such metric and the available ones; Interrupted: stopped by a signal.
  """
  digests = {run.digest for run in left}
  questions: dict[tuple[str, str], dict[str, Any]] = {}
  for cell, by_seed in plan.items():
    column = table.columns[cell.column]
    if column.of not in ('tuning', 'evaluation', 'pretraining'):
      continue
    metrics = [column.metric, *([] if column.chosen_by is None else [column.chosen_by[0]])]
    for run in (run for group in by_seed for run in group):
      key = (cell.column, run.config)
      if key not in questions and run.digest in digests:
        label = f'{head}, column {cell.column!r}: {run.config}'
        questions[key] = {**counting.described(run), 'metrics': metrics, 'label': label}
  if not questions:
    return
  if wrong := [error for error in child.answers(__name__, list(questions.values())) if error]:
    raise ConfigError('\n'.join(wrong))


def _problem(question: Mapping[str, Any]) -> str:
  """Explain why a run lacks a metric; '' if it has it."""
  from plm_jax.planning import stand_in  # loads jax
  from plm_jax.training import parts
  from plm_jax.training.before import preflight

  try:
    settings = config.resolve(question['settings'])
    built = parts.make_parts(settings, stand_in.vocab_of(settings, header=question['header']))
    shapes = preflight.abstract_parameters(settings, built)
  except ConfigError:
    return ''
  try:
    blocks = config.of_data(settings)
    metrics = [
      ((metric, 'max'), question['label']) for metric in question['metrics'] if not _is_of_group(metric, blocks)
    ]
    preflight.check_metrics(metrics, settings, built, shapes)
  except ConfigError as error:
    return str(error)
  return ''


def _is_of_group(metric: str, blocks: Mapping[str, Any]) -> bool:
  name, *rest = metric.split('/')
  return len(rest) > 1 and 'good' in blocks.get(f'eval.{name}.data', {})


if __name__ == '__main__':
  child.answer(_problem)
