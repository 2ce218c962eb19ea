"""Whether runs will have the metrics that columns ask of them, by shapes alone, before the first of them begins.

All are looked at by one process, `python -m plm_jax.studies.tables.metric_names QUESTIONS ANSWERS`, which takes no
accelerator: it would keep the runs of the table from it.
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
  """Raises where a column asks for a metric that its evaluation does not give.

  Rows differ in what is pre-trained, so one run of each config of a column is looked at.

  Args:
    table: which is filled.
    plan: from `runs.plan`.
    left: the runs that are to be made; others are not looked at.
    head: the table file, for the error.

  Raises:
    ConfigError: with every such metric, and the ones that there are.
    Interrupted: by a signal.
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
  """Why a run will not have a metric; empty where it will, or where the run itself will say why it cannot begin."""
  from plm_jax.planning import stand_in  # loads jax
  from plm_jax.training import parts
  from plm_jax.training.before import preflight

  try:
    settings = config.resolve(question['settings'])
    made = parts.make_parts(settings, stand_in.vocab_of(settings, header=question['header']))
    shapes = preflight.abstract_parameters(settings, made)
  except ConfigError:
    return ''
  try:
    asked = [((metric, 'max'), question['label']) for metric in question['metrics']]
    preflight.check_metrics(asked, settings, made, shapes)
  except ConfigError as error:
    return str(error)
  return ''


if __name__ == '__main__':
  child.answer(_problem)
