"""Scores of all predictions: which ones an evaluation has, whether they fit, and their numbers."""

import contextlib
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from plm_jax import errors, scores
from plm_jax.errors import ConfigError
from plm_jax.plugins import build, signatures
from plm_jax.scores import Row
from plm_jax.types import Source


class Score(NamedTuple):
  """A file of `plm_jax/scores/`.

  Attributes:
    name: of the file.
    metrics: what it returns.
    reads: keys of a prediction that it reads.
    records: keys of a record that it reads.
  """

  name: str
  metrics: tuple[str, ...]
  reads: tuple[str, ...]
  records: tuple[str, ...]


def known(name: str) -> Score:
  """What a file of `plm_jax/scores/` states of itself; nothing is imported."""
  module = f'scores.{name}'
  stated = [signatures.literal(module, key) or () for key in ('METRICS', 'READS', 'RECORDS')]
  return Score(name, *map(tuple, stated))


def check(names: Sequence[str], predicted: Collection[str], *, where: str, user: str) -> None:
  """Raises ConfigError where scores cannot be computed of predictions with some keys.

  Args:
    names: of the scores.
    predicted: keys of the predictions; none where the task makes no predictions.
    where: the block that names the scores, such as 'eval.validation'.
    user: what the task is called, such as "adapter 'classify'".
  """
  owners: dict[str, str] = {}
  for name in names:
    errors.check_choice(f'config.{where}.scores', 'score', name, signatures.names('scores'), place='plm_jax/scores')
    score = known(name)
    scores.check_installed(name, signatures.literal(f'scores.{name}', 'NEEDS') or ())
    if not predicted:
      raise ConfigError(f'config.{where}.scores: {user} makes no predictions that {name!r} could score: leave it out')
    if lacking := [key for key in score.reads if key not in predicted]:
      fitting = [other for other in signatures.names('scores') if set(known(other).reads) <= set(predicted)]
      raise ConfigError(
        f'config.{where}.scores: {name!r} reads {", ".join(score.reads)} of predictions; {user} gives '
        f'{", ".join(sorted(predicted))}, without {", ".join(lacking)}. Scores that fit: {", ".join(fitting) or "none"}'
      )
    for metric in score.metrics:
      if metric in owners:
        raise ConfigError(f'config.{where}.scores: {owners[metric]!r} and {name!r} both give {metric!r}: leave one out')
      owners[metric] = name


def check_records(names: Sequence[str], source: Source, *, where: str) -> None:
  """Raises ConfigError where the rows of a source lack host data that scores read."""
  if not names:
    return
  given = sorted(_some_record(source))
  for name in names:
    if lacking := [key for key in known(name).records if key not in given]:
      raise ConfigError(
        f'config.{where}.scores: {name!r} reads {", ".join(known(name).records)} of what data keep of a row; this '
        f'source gives {", ".join(given) or "nothing"}, without {", ".join(lacking)}'
      )


def _some_record(source: Source) -> dict[str, Any]:
  """The record of the first row that there is, the same on every host."""
  for row_id in range((source.ids or source.rows) if source.record else 0):
    with contextlib.suppress(IndexError):
      return record_of(source, row_id, ())
  return {}


def record_of(source: Source, row_id: int, class_names: tuple[str, ...]) -> dict[str, Any]:
  """The record of a row with its group; classes that the data does not name have the names that the task has."""
  record = {} if source.record is None else dict(source.record(row_id))
  if class_names and not record.get('names', True):
    record['names'] = class_names
  return record if source.group is None else record | {'group': source.group(row_id)}


def metrics(names: Sequence[str]) -> list[str]:
  """All metrics of some scores."""
  return [metric for name in names for metric in known(name).metrics]


def score(name: str, predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """The metrics of one score; see `scores/__init__.py`.

  Raises:
    ConfigError: it cannot score these rows.
  """
  for number, record in enumerate(records):
    if bare := [key for key in known(name).records if record[key] is None]:
      raise ConfigError(f'score {name!r}: row {number} has no {bare[0]}, so that nothing can be scored on it')
  with errors.stage(f'score {name!r}'):
    found = build.import_file(f'scores.{name}').score(predictions, records)
  if set(found) != set(known(name).metrics):
    raise TypeError(f'score {name!r} returned {sorted(found)}, and its METRICS are {sorted(known(name).metrics)}')
  return {metric: float(value) for metric, value in found.items()}
