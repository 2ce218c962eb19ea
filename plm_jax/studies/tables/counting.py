"""Count parameters and operations of the models of runs from shapes, without data and training.

All runs are counted by one process, `python -m plm_jax.studies.tables.counting QUESTIONS ANSWERS`, on the CPU, so that
it does not block the accelerator. Runs that differ only in keys without effect on the counts are counted once.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from plm_jax import config
from plm_jax.core.errors import ConfigError
from plm_jax.io import files
from plm_jax.studies import child
from plm_jax.studies.tables import runs
from plm_jax.studies.tables.runs import Run
from plm_jax.text import recipe
from plm_jax.training.before import model_from

# keys of a config that change neither the model and its head nor its sequences
NOT_COUNTED = (
  'seed', 'optim', 'steps', 'epochs', 'extend', 'skip', 'log_every', 'eval_every', 'save_every', 'save_minutes', 'keep',
  'save', 'best', 'early_stop', 'max_skipped', 'spikes', 'verify_every', 'log', 'sharding', 'init_from',
)  # fmt: skip
Counted = Mapping[str, int]


class Counts:
  """Counts of runs; each model is counted once."""

  def __init__(self) -> None:
    self._answers: dict[str, Any] = {}

  def add(self, all_runs: Sequence[Run]) -> None:
    """Count runs, all in one process; raise Interrupted after a signal."""
    new = {key: question for key, question in map(_question, all_runs) if key not in self._answers}
    if new:
      self._answers |= dict(zip(new, child.answers(__name__, list(new.values())), strict=True))

  def of(self, run: Run) -> Counted:
    """Return 'parameters' and 'flops' of a run's model.

    The model includes its head; the operations are of a forward pass of one sequence. Raises ConfigError: they cannot
    be counted, such as without a vocabulary of known size.
    """
    self.add([run])
    answer = self._answers[_question(run)[0]]
    if isinstance(answer, str):
      raise ConfigError(f'it cannot be counted: {answer}')
    return {'parameters': answer['parameters'], 'flops': round(1e9 * answer['gflop_per_row'])}


def described(run: Run) -> dict[str, Any]:
  """Describe a run for the process that computes its shapes.

  Returns 'settings' with the sizes of its pre-training, and 'header' of that config, which gives the size of a
  vocabulary that does not exist yet.
  """
  first = runs.pretraining_of(run)
  start = first.settings
  if first.weights and files.is_folder(files.path(first.weights)):
    start, _ = model_from.expand(start, [(model_from.LABEL, first.weights)], None)
  settings = {**run.settings, 'model': start['model'], 'vocab': start['vocab']}
  return {'settings': settings, 'header': recipe.header_of(runs.config_file(first.config))}


def _question(run: Run) -> tuple[str, dict[str, Any]]:
  question = described(run)
  counted = {key: value for key, value in question['settings'].items() if key not in NOT_COUNTED}
  return json.dumps([counted, question['header']], sort_keys=True), question


def _count(question: Mapping[str, Any]) -> Any:
  """Count by `training/cost/sizes.py`, or return the error."""
  from plm_jax.planning import stand_in  # loads jax
  from plm_jax.training.cost import sizes

  try:
    settings = config.resolve(question['settings'])
    return sizes.of_config(settings, stand_in.vocab_of(settings, header=question['header']))
  except ConfigError as error:
    return str(error)


if __name__ == '__main__':
  child.answer(_count)
