"""Scores of all predictions: which ones an evaluation has, whether they fit, and their numbers.

The name of a score is that of a file of `plm_jax/scores/`. Behind the name of a part, as in 'cola/matthews', it is the
score of that part of a task with parts: of its rows and its predictions alone.
"""

import contextlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from plm_jax.core import errors
from plm_jax import scores
from plm_jax.core.errors import ConfigError
from plm_jax.config import build, signatures
from plm_jax.scores import Row
from plm_jax.core.types import Source, Task


class Keys(NamedTuple):
  """What a score reads: keys of a prediction, and keys of a record."""

  reads: tuple[str, ...]
  records: tuple[str, ...]


class Score(NamedTuple):
  """A file of `plm_jax/scores/`.

  Attributes:
    file: its name.
    part: of the task that is scored; empty for all of it.
    metrics: what it returns.
    either: what it reads, `READS` and `RECORDS`, and `INSTEAD` where it has that: one of them is enough.
    by_row: those of the metrics that are means over rows, `BY_ROW`.
  """

  file: str
  part: str
  metrics: tuple[str, ...]
  either: tuple[Keys, ...]
  by_row: tuple[str, ...]


def known(name: str) -> Score:
  """What a file of `plm_jax/scores/` states of itself; nothing is imported."""
  part, slash, file = name.rpartition('/')
  metrics, by_row, *first, instead = (
    signatures.literal(f'scores.{file}', key) or () for key in ('METRICS', 'BY_ROW', 'READS', 'RECORDS', 'INSTEAD')
  )
  ours, means = (tuple(f'{part}{slash}{key}' for key in keys) for keys in (metrics, by_row))
  either = [first, instead] if instead else [first]
  return Score(
    file,
    part,
    ours,
    tuple(Keys(tuple(f'{part}{slash}{key}' for key in one), tuple(two)) for one, two in either),
    means,
  )


def lacking(either: Iterable[Sequence[str]], there: Collection[str]) -> list[str]:
  """Keys that are not there, of the one of several lists that lacks fewest; none where one of them is there."""
  return min(([key for key in keys if key not in there] for keys in either), key=len)


def in_words(either: Iterable[Sequence[str]]) -> str:
  """Lists of keys, of which one is enough: 'start, end, score or text'."""
  return ' or '.join(', '.join(keys) for keys in either)


def takes_unlabelled(names: Sequence[str], task: Task) -> bool:
  """Whether all of some scores, one at least, score rows without a label as well, by what a task says of them."""
  return bool(names) and all(_takes_unlabelled(known(name), task) for name in names)


def _takes_unlabelled(score: Score, task: Task) -> bool:
  words = [f'{score.part}/{key}' if score.part else key for key in _unlabelled(score)]
  return bool(words) and set(words) <= set(task.words)


def _unlabelled(score: Score) -> Sequence[str]:
  return signatures.literal(f'scores.{score.file}', 'UNLABELLED') or ()


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
    score = known(name)
    errors.check_choice(
      f'config.{where}.scores', 'score', score.file, signatures.names('scores'), place='plm_jax/scores'
    )
    scores.check_installed(score.file, signatures.literal(f'scores.{score.file}', 'NEEDS') or ())
    if not predicted:
      raise ConfigError(f'config.{where}.scores: {user} makes no predictions that {name!r} could score: leave it out')
    if bare := lacking(_reads(score), predicted):
      fitting = [other for other in signatures.names('scores') if not lacking(_reads(known(other)), predicted)]
      raise ConfigError(
        f'config.{where}.scores: {name!r} reads {in_words(_reads(score))} of predictions; {user} gives '
        f'{", ".join(sorted(predicted))}, without {", ".join(bare)}. Scores that fit: {", ".join(fitting) or "none"}'
      )
    for metric in score.metrics:
      if metric in owners:
        raise ConfigError(f'config.{where}.scores: {owners[metric]!r} and {name!r} both give {metric!r}: leave one out')
      owners[metric] = name


def _reads(score: Score) -> list[tuple[str, ...]]:
  return [keys.reads for keys in score.either]


def check_records(names: Sequence[str], source: Source, *, where: str) -> None:
  """Raises ConfigError where the rows of a source lack host data that scores read."""
  for name in names:
    given = sorted(_some_record(source.parts.get(known(name).part, source)))
    records = [keys.records for keys in known(name).either]
    if bare := lacking(records, given):
      raise ConfigError(
        f'config.{where}.scores: {name!r} reads {in_words(records)} of what data keep of a row; this '
        f'source gives {", ".join(given) or "nothing"}, without {", ".join(bare)}'
      )


def _some_record(source: Source) -> dict[str, Any]:
  """The record of the first row that there is, the same on every host."""
  for row_id in range((source.ids or source.rows) if source.record else 0):
    with contextlib.suppress(IndexError):
      return record_of(source, row_id)
  return {}


def record_of(source: Source, row_id: int, task: Task | None = None) -> dict[str, Any]:
  """The record of a row with its group; classes that the data does not name have the names that the task has."""
  record = {} if source.record is None else dict(source.record(row_id))
  own = task and task.parts.get(record.get('part', ''), task)
  if own and own.class_names and not record.get('names', True):
    record['names'] = own.class_names
  return record if source.group is None else record | {'group': source.group(row_id)}


def own(task: Task, prediction: Row, record: Row) -> dict[str, Any]:
  """The predictions of a row without those of other parts of the task than its own, and the words that scores read."""
  others = set(task.parts) - {record.get('part', '')}
  kept = {key: value for key, value in prediction.items() if key.partition('/')[0] not in others}
  part = record.get('part', '') if task.parts else ''
  asked = task.parts[part] if part else task
  if not asked.words:
    return kept
  said = asked.in_words(_without(part, kept), record)
  return {**kept, **{f'{part}/{key}' if part else key: value for key, value in said.items()}}


def metrics(names: Sequence[str]) -> list[str]:
  """All metrics of some scores."""
  return [metric for name in names for metric in known(name).metrics]


def score(name: str, predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """The metrics of one score; see `scores/__init__.py`.

  Raises:
    ConfigError: it cannot score these rows.
  """
  one = known(name)
  if one.part:
    mine = [place for place, record in enumerate(records) if record['part'] == one.part]
    records = [records[place] for place in mine]
    predictions = [_without(one.part, predictions[place]) for place in mine]
  either = known(one.file).either
  given = set(predictions[0]).intersection(*predictions)  # words depend on the row (`Task.words`)
  if bare := lacking([keys.reads for keys in either], given):
    raise ConfigError(f'score {name!r} reads {", ".join(sorted(bare))}, which these rows do not give: leave it out')
  read = next(keys.records for keys in either if set(keys.reads) <= given)
  for number, record in enumerate(records):
    if unknown := [key for key in read if record[key] is None]:
      raise ConfigError(f'score {name!r}: row {number} has no {unknown[0]}, so that nothing can be scored on it')
  with errors.stage(f'score {name!r}'):
    found = build.import_file(f'scores.{one.file}').score(predictions, records)
  if one.part:
    found = {f'{one.part}/{metric}': value for metric, value in found.items()}
  if set(found) != set(one.metrics):
    raise TypeError(f'score {name!r} returned {sorted(found)}, and its METRICS are {sorted(one.metrics)}')
  return {metric: float(value) for metric, value in found.items()}


def _without(part: str, prediction: Row) -> dict[str, Any]:
  """The predictions of a part by its own names: 'cola/label' -> 'label'."""
  return {key.removeprefix(f'{part}/'): value for key, value in prediction.items()}
