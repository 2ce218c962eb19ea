"""Scores of all predictions of an evaluation: their names, their checks, and their values.

A score is named by a file of `plm_jax/scores/`. After the name of a part, as in 'cola/matthews', it scores that part of
a multi-task run: only its examples and predictions. After a colon, as in 'rouge:characters', it has its tokens, a name
of its `TOKENIZE` (`scores/tokens.py`); without one they follow the script of the references.
"""

import contextlib
import functools
import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from plm_jax import scores
from plm_jax.config import build, signatures
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Labels, Source, Task
from plm_jax.scores import Row

_OF_TOKENS = ('characters', 'first')  # keys of records that tokenising adds
log = logging.getLogger(__name__)


class Keys(NamedTuple):
  """The keys that a score reads: of predictions (`reads`) and of records."""

  reads: tuple[str, ...]
  records: tuple[str, ...]


class Score(NamedTuple):
  """The constants of a file of `plm_jax/scores/`."""

  file: str  # its name
  part: str  # the part of the task to score; '' for all of it
  metrics: tuple[str, ...]  # names of the returned metrics
  either: tuple[Keys, ...]  # the keys it reads: `READS` and `RECORDS`, or `INSTEAD` if defined; one of them is enough
  by_row: tuple[str, ...]  # the metrics that are means over examples, `BY_ROW`
  tokenize: str = ''  # name of its tokens; '' for those that fit the references
  choices: tuple[str, ...] = ()  # all such names; () for a score without tokens

  @property
  def settings(self) -> dict[str, str]:
    """Return the keyword of its tokens, if they are named."""
    return {'tokenize': self.tokenize} if self.tokenize else {}


@functools.cache
def known(name: str) -> Score:
  """Read the constants of a score's file without importing it."""
  name, _, tokenize = name.partition(':')
  part, slash, file = name.rpartition('/')
  choices = signatures.literal(f'scores.{file}', 'TOKENIZE') or ()
  metrics, by_row, *first, instead = (
    signatures.literal(f'scores.{file}', key) or () for key in ('METRICS', 'BY_ROW', 'READS', 'RECORDS', 'INSTEAD')
  )
  named_metrics, named_by_row = (tuple(f'{part}{slash}{key}' for key in keys) for keys in (metrics, by_row))
  either = [first, instead] if instead else [first]
  keys_of = [
    Keys(reads=tuple(f'{part}{slash}{key}' for key in reads), records=tuple(records)) for reads, records in either
  ]
  return Score(file, part, named_metrics, tuple(keys_of), named_by_row, tokenize=tokenize, choices=choices)


def tokenized(names: Sequence[str], wanted: Sequence[str], *, where: str) -> tuple[str, ...]:
  """Add an evaluation's tokens to its scores, or raise ConfigError."""
  left, found = list(wanted), []
  for name in names:
    own = [choice for choice in left if choice in known(name).choices]
    left = [choice for choice in left if choice not in own[:1]]
    found.append(f'{name}:{own[0]}' if own else name)
  if left:
    takes = [f'{name} {", ".join(known(name).choices)}' for name in names if known(name).choices]
    raise ConfigError(f'{where}.tokenize: {left[0]!r} fits no score. Each takes one of: {"; ".join(takes) or "none"}')
  return tuple(found)


def settled(name: str, records: Sequence[Row]) -> str:
  """Add the tokens that fit its references to a score."""
  score = known(name)
  if not score.choices or score.tokenize:
    return name
  tokenize = build.import_file(f'scores.{score.file}').chosen(records)
  if tokenize != score.choices[0]:
    _tell(score.file, tokenize, f'{", ".join(score.choices)}')
  return f'{name}:{tokenize}'


@functools.cache
def _tell(file: str, tokenize: str, choices: str) -> None:
  """Log once which tokens a score has."""
  log.info(
    f'score {file!r}: tokenize={tokenize!r}, by the script of the references; eval.NAME.tokenize sets it: {choices}'
  )


def check_name(key: str, name: str, names: Sequence[str]) -> None:
  """Raise ConfigError for an unknown score, or unknown tokens of one."""
  errors.check_choice(key, 'score', name.partition(':')[0], names, place='plm_jax/scores')
  if (score := known(name)).tokenize:
    errors.check_choice(key, f'tokenize of {score.file!r}', score.tokenize, score.choices)


def lacking(either: Iterable[Sequence[str]], present: Collection[str]) -> list[str]:
  """Return the missing keys of the list that misses fewest."""
  return min(([key for key in keys if key not in present] for keys in either), key=len)


def in_words(either: Iterable[Sequence[str]]) -> str:
  """Join alternative lists of keys: 'start, end, score or text'."""
  return ' or '.join(', '.join(keys) for keys in either)


def takes_unlabelled(names: Sequence[str], task: Task) -> bool:
  """Return whether all scores take unlabelled examples, by `Task.words`."""
  return bool(names) and all(_takes_unlabelled(known(name), task) for name in names)


def _takes_unlabelled(score: Score, task: Task) -> bool:
  keys = signatures.literal(f'scores.{score.file}', 'UNLABELLED') or ()
  words = [f'{score.part}/{key}' if score.part else key for key in keys]
  return bool(words) and set(words) <= set(task.words)


def check(names: Sequence[str], predicted: Collection[str], *, where: str, user: str) -> None:
  """Raise ConfigError if scores do not fit the keys of predictions.

  Args:
    predicted: keys of the predictions; empty if the task makes none.
    where: the block that names the scores, such as 'eval.validation'.
    user: the task's name in messages, such as "adapter 'classify'".
  """
  owners: dict[str, str] = {}
  for name in names:
    score = known(name)
    errors.check_choice(
      f'config.{where}.scores', 'score', score.file, signatures.names('scores'), place='plm_jax/scores'
    )
    scores.check_installed(score.file, signatures.literal(f'scores.{score.file}', 'NEEDS') or ())
    if not predicted:
      raise ConfigError(f'config.{where}.scores: {user} makes no predictions for {name!r}; remove it')
    if missing := lacking(_reads(score), predicted):
      fitting = [other for other in signatures.names('scores') if not lacking(_reads(known(other)), predicted)]
      raise ConfigError(
        f'config.{where}.scores: {name!r} needs predictions with {in_words(_reads(score))}; {user} gives '
        f'{", ".join(sorted(predicted))}, without {", ".join(missing)}. Scores that fit: {", ".join(fitting) or "none"}'
      )
    for metric in score.metrics:
      if metric in owners:
        raise ConfigError(f'config.{where}.scores: {owners[metric]!r} and {name!r} both give {metric!r}; remove one')
      owners[metric] = name


def _reads(score: Score) -> list[tuple[str, ...]]:
  return [keys.reads for keys in score.either]


def check_records(names: Sequence[str], source: Source, *, where: str) -> None:
  """Raise ConfigError if a source lacks record fields that scores read."""
  for name in names:
    recorded = sorted(_some_record(source.parts.get(known(name).part, source)))
    records = [keys.records for keys in known(name).either]
    if missing := lacking(records, recorded):
      raise ConfigError(
        f'config.{where}.scores: {name!r} needs the record fields {in_words(records)}; this '
        f'source gives {", ".join(recorded) or "nothing"}, without {", ".join(missing)}'
      )


def check_rows(names: Sequence[str], labels: Labels, task: Task, *, where: str) -> None:
  """Raise ConfigError if a score refuses a row of the block `where`."""
  for name in names:
    score = known(name)
    found, place = labels.parts.get(score.part, labels), f'{where}.parts.{score.part}' if score.part else where
    if found.mixed:
      own_task, own_name = task.parts.get(score.part, task), name.removeprefix(f'{score.part}/')
      for part, inner in found.mixed.items():
        check_rows([own_name], inner, own_task, where=f'{place}.parts.{part}')
      continue
    if found.record is None or not found.rows or not signatures.has(f'scores.{score.file}', 'check'):
      continue
    if lacking([keys.records for keys in score.either], {*found.record(0), *_OF_TOKENS}):
      continue  # `check_records` raises
    records = (_named(dict(found.record(row)), task) for row in range(found.rows))
    with errors.stage(place), errors.part(score.part):
      build.import_file(f'scores.{score.file}').check(records, **score.settings)


def _some_record(source: Source) -> dict[str, Any]:
  """Return the record of the first available example, identical on every host."""
  for row_id in range((source.ids or source.rows) if source.record else 0):
    with contextlib.suppress(IndexError):
      return record_of(source, row_id)
  return {}


def record_of(source: Source, row_id: int, task: Task | None = None) -> dict[str, Any]:
  """Return an example's record with its group, and the task's class names."""
  record = _named({} if source.record is None else dict(source.record(row_id)), task)
  return record if source.group is None else record | {'group': source.group(row_id)}


def _named(record: dict[str, Any], task: Task | None) -> dict[str, Any]:
  """Add the class names of the task to a record without names."""
  own_task = task and task.parts.get(record.get('part', ''), task)
  if own_task and own_task.class_names and not record.get('names', True):
    record['names'] = own_task.class_names
  return record


def own(task: Task, prediction: Row, record: Row) -> dict[str, Any]:
  """Return the predictions of an example's part, with texts for scores."""
  others = set(task.parts) - {record.get('part', '')}
  own_predictions = {key: value for key, value in prediction.items() if key.partition('/')[0] not in others}
  part = record.get('part', '') if task.parts else ''
  part_task = task.parts[part] if part else task
  if not part_task.words:
    return own_predictions
  words = part_task.in_words(_without(part, own_predictions), record)
  return {**own_predictions, **{f'{part}/{key}' if part else key: value for key, value in words.items()}}


def metrics(names: Sequence[str]) -> list[str]:
  """List the metrics of some scores."""
  return [metric for name in names for metric in known(name).metrics]


def score(name: str, predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """Compute one score's metrics (`scores/__init__.py`), or raise ConfigError."""
  named = known(name)
  if named.part:
    indices = [index for index, record in enumerate(records) if record['part'] == named.part]
    records = [records[index] for index in indices]
    predictions = [_without(named.part, predictions[index]) for index in indices]
  either = known(named.file).either
  present = set(predictions[0]).intersection(*predictions)  # text depends on the example (`Task.words`)
  if missing := lacking([keys.reads for keys in either], present):
    raise ConfigError(f'score {name!r} reads {", ".join(sorted(missing))}, which these rows do not give: leave it out')
  record_keys = next(keys.records for keys in either if set(keys.reads) <= present)
  for row, record in enumerate(records):
    if unknown := [key for key in record_keys if record[key] is None]:
      raise ConfigError(f'score {name!r}: row {row} has no {unknown[0]} and cannot be scored')
  with errors.stage(f'score {name!r}'):
    named = known(settled(name, records))
    values = build.import_file(f'scores.{named.file}').score(predictions, records, **named.settings)
  if named.part:
    values = {f'{named.part}/{metric}': value for metric, value in values.items()}
  if not set(values) >= set(named.metrics):  # those of groups have names of the data
    raise TypeError(f'score {name!r} returned {sorted(values)}, but its METRICS are {sorted(named.metrics)}')
  return {metric: float(value) for metric, value in values.items()}


def _without(part: str, prediction: Row) -> dict[str, Any]:
  """Remove the name of a part from keys: 'cola/label' -> 'label'."""
  return {key.removeprefix(f'{part}/'): value for key, value in prediction.items()}
