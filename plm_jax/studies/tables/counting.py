"""Parameters and operations of the models of runs, counted from shapes without data and without training.

All of them are counted by one process, `python -m plm_jax.studies.tables.counting QUESTIONS ANSWERS`, which takes no
accelerator: it would keep the runs of the table from it. Runs that differ in nothing that is counted are counted once.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from plm_jax import config
from plm_jax.core.errors import ConfigError
from plm_jax.studies import child
from plm_jax.studies.tables import runs
from plm_jax.studies.tables.runs import Run
from plm_jax.text import recipe

# Keys of a config that change neither the model and its head nor its rows.
NOT_COUNTED = (
  'seed', 'optim', 'steps', 'epochs', 'extend', 'skip', 'log_every', 'eval_every', 'save_every', 'keep', 'save',
  'best', 'early_stop', 'max_skipped', 'spikes', 'verify_every', 'log', 'sharding', 'init_from',
)  # fmt: skip
Counted = Mapping[str, int]


class Counts:
  """What was counted of runs so far; each model is counted once."""

  def __init__(self) -> None:
    self._answers: dict[str, Any] = {}

  def add(self, asked: Sequence[Run]) -> None:
    """Counts runs, all in one process.

    Raises:
      Interrupted: by a signal.
    """
    new = {key: question for key, question in map(_question, asked) if key not in self._answers}
    if new:
      self._answers |= dict(zip(new, _ask(list(new.values())), strict=True))

  def of(self, run: Run) -> Counted:
    """'parameters' of a run's model with its head, and 'flops' of a row forward.

    Raises:
      ConfigError: they cannot be counted, as without a vocabulary of known size.
    """
    self.add([run])
    answer = self._answers[_question(run)[0]]
    if isinstance(answer, str):
      raise ConfigError(f'it cannot be counted: {answer}')
    return {'parameters': answer['parameters'], 'flops': round(1e9 * answer['gflop_per_row'])}


def described(run: Run) -> dict[str, Any]:
  """What another process makes the shapes of a run from.

  Returns:
    'settings' with the sizes of its pre-training, and 'header', the head of that config, which says how large a
    vocabulary is that has not been made.
  """
  first = runs.pretraining_of(run)
  settings = {**run.settings, 'model': first.settings['model'], 'vocab': first.settings['vocab']}
  return {'settings': settings, 'header': recipe.header_of(runs.config_file(first.config))}


def _question(run: Run) -> tuple[str, dict[str, Any]]:
  """A text of all that the counts of a run depend on, and how the run is described."""
  question = described(run)
  counted = {key: value for key, value in question['settings'].items() if key not in NOT_COUNTED}
  return json.dumps([counted, question['header']], sort_keys=True), question


def _ask(questions: Sequence[Mapping[str, Any]]) -> list[Any]:
  """For each question what `training/cost/sizes.py` counts, or why it cannot be counted."""
  return child.answers(__name__, questions)


def _count(question: Mapping[str, Any]) -> Any:
  from plm_jax.planning import stand_in  # loads jax
  from plm_jax.training.cost import sizes

  try:
    settings = config.resolve(question['settings'])
    return sizes.of_config(settings, stand_in.vocab_of(settings, header=question['header']))
  except ConfigError as error:
    return str(error)


if __name__ == '__main__':
  child.answer(_count)
