"""What the runs of a table need, looked at before the first of them begins: vocabularies, text to pre-train on, and the
evaluations and metrics that are asked for."""

from collections.abc import Iterator, Mapping, Sequence

from plm_jax import config
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.data.corpora import sources
from plm_jax.studies.tables import metric_names, run_folders, runs
from plm_jax.studies.tables.file import BEFORE, Table
from plm_jax.studies.tables.runs import Cell, Places, Run
from plm_jax.text import recipe
from plm_jax.training import parts
from plm_jax.training.before import from_data


def check(
  table: Table,
  plan: Mapping[Cell, Sequence[Sequence[Run]]],
  asked: Mapping[str, Sequence[str]],
  places: Places,
  *,
  head: str,
) -> None:
  """Raises where a run that is left to make would not find its vocabulary or its text, or not have its metric.

  Args:
    table: which is filled.
    plan: from `runs.plan`.
    asked: metrics by digest of a run; one without any is not made.
    places: where runs lie.
    head: the table file, whose docstring may say how a thing is made.

  Raises:
    ConfigError: with everything that is missing, and how it is made; or an evaluation or a metric that a run does not
      have.
    Interrupted: by a signal.
  """
  left = [run for run in runs.needed(plan) if asked[run.digest] and run_folders.finished(run, places) is None]
  for run in left:
    for metric in asked[run.digest]:
      name, evaluations = metric.partition('/')[0], list(run.settings['eval'])
      errors.check_choice(f'{head}: {metric!r} of {run.config}', 'evaluation', name, evaluations)
  if missing := dict.fromkeys(lacking for run in left for lacking in _lacking(run, head)):
    raise ConfigError('\n'.join(missing))
  metric_names.check(table, plan, left, head=head)


def _lacking(run: Run, head: str) -> Iterator[str]:
  """What a run needs and does not find, each with its cure; of a run before it, it has the vocabulary."""
  if run.source is None or run.names_its_source:
    for name in ('vocab', 'second_vocab'):
      if BEFORE in str(run.settings[name]):
        continue
      if said := parts.missing_vocab(run.settings, name, heads=(head, run.config)):
        yield said
  told, left_out = set(), {f'eval.{name}.data' for name in from_data.left_out(run.settings)}
  for where, block in config.of_data(run.settings).items():
    path = block.get('path')
    if path is None or BEFORE in path or path in told or where in left_out:
      continue
    try:
      sources.opens_quickly(path, split=block.get('split') or 'train')
    except (FileNotFoundError, ValueError) as error:
      told.add(path)
      cure = _other_text(path, head) if run.settings['objective'] else '--data=DIR names the folder of the task sets.'
      yield f'{where}.path: {error}. {cure}'


def _other_text(path: str, head: str) -> str:
  if path in recipe.header_of(head):
    return f'The head of {head} says how it is made.'
  return '--corpus=DIR names another text to pre-train on.'
