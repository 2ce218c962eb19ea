"""Check that the runs of a table have their vocabularies, texts, evaluations and metrics."""

from collections.abc import Iterator, Mapping, Sequence

from plm_jax import config
from plm_jax.config import signatures
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.data.corpora import sources
from plm_jax.io import files
from plm_jax.studies.tables import metric_names, run_folders, runs
from plm_jax.studies.tables.file import BEFORE, Table
from plm_jax.studies.tables.runs import Cell, Places, Run
from plm_jax.text import recipe
from plm_jax.training import parts
from plm_jax.training.before import from_data

SCALES = str(signatures.ROOT.parent / 'experiments/tables/shared/scales.py')  # its head has the shared vocabulary
ANOTHER = 'Name another pre-training text by --corpus=DIR'
ENGLISH = 'Run: plm-jax corpus english {} {}, or name another text by --corpus=DIR'


def check(
  table: Table,
  plan: Mapping[Cell, Sequence[Sequence[Run]]],
  metrics: Mapping[str, Sequence[str]],
  places: Places,
  *,
  head: str,
) -> None:
  """Raise ConfigError if an unfinished run lacks something it needs.

  Raises ConfigError: lists everything that is missing and how to make it, or names an unknown evaluation or metric;
  Interrupted: stopped by a signal.

  Args:
    metrics: digest of a run -> its metrics; a run without any is not made.
    head: the table file, whose docstring may have the commands that make missing things.
  """
  left = [run for run in runs.needed(plan) if metrics[run.digest] and run_folders.finished(run, places) is None]
  for run in left:
    for metric in metrics[run.digest]:
      name, evaluations = metric.partition('/')[0], list(run.settings['eval'])
      errors.check_choice(f'{head}: {metric!r} of {run.config}', 'evaluation', name, evaluations)
  if missing := dict.fromkeys(lacking for run in left for lacking in _lacking(run, head, places.data or 'DATA')):
    raise ConfigError('\n'.join(missing))
  metric_names.check(table, plan, left, head=head)


def _lacking(run: Run, head: str, data: str = 'DATA') -> Iterator[str]:
  """Yield what a run lacks, with the fix."""
  if run.weights and not files.is_folder(files.path(run.weights)):
    yield f'{run.weights}: there is no such folder of weights. {_fix(run.weights, head, "Put one there")}'
  elif not run.weights and (run.source is None or run.names_its_source):
    for name in ('vocab', 'second_vocab'):
      if BEFORE in str(run.settings[name]):
        continue
      if message := parts.missing_vocab(run.settings, name, heads=(head, SCALES, run.config)):
        yield message
  missing, left_out = set(), {f'eval.{name}.data' for name in from_data.left_out(run.settings)}
  for key, block in config.of_data(run.settings).items():
    path = block.get('path')
    if path is None or BEFORE in path or path in missing or key in left_out:
      continue
    try:
      sources.opens_quickly(path, split=block.get('split') or 'train')
    except (FileNotFoundError, ValueError) as error:
      missing.add(path)
      fix = (
        _fix(path, head, ENGLISH.format(data, path) if path.endswith('/english') else ANOTHER)
        if run.settings['objective'] and not run.evaluates
        else _fix(files.path(path).name, head, 'Name the folder of task data by --data=DIR')
      )
      yield f'{key}.path: {error}. {fix}'


def _fix(path: str, head: str, otherwise: str) -> str:
  return f'The header of {head} has the command that makes it.' if path in recipe.header_of(head) else f'{otherwise}.'
