"""Files of predictions: written row by row or as a benchmark takes them, read again, averaged and scored.

A row is a JSON object: 'row_id', what the task predicted, the same in words (`Task.in_words`), and 'record', what the
data says of the row, so that a file can be scored without the data and without the model.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from plm_jax.io import run_paths
from plm_jax.core import errors
from plm_jax.io import files
from plm_jax import scores
from plm_jax.core.errors import ConfigError
from plm_jax.io.files import Where
from plm_jax.config import build, signatures
from plm_jax.scores import Row
from plm_jax.runs import scoring
from plm_jax.core.types import Task

InWords = Callable[[Row, Row], dict[str, Any]]

_TIE = 1e-9  # probabilities may be rounded where they were written


def formats() -> list[str]:
  """The files of `plm_jax/scores/` that know the form in which a benchmark takes predictions."""
  return [module.rpartition('.')[2] for module in signatures.files_of('scores') if signatures.has(module, 'submission')]


def check_task(task: Task, asked: Any, *, user: str) -> None:
  """Raises ConfigError where predictions are asked of a task that makes none.

  Args:
    task: which one.
    asked: where they go; None where none are asked.
    user: what the task is called.
  """
  if asked and task.predict is None:
    raise ConfigError(f'--predictions: {user} makes no predictions; leave the flag out')


def check_output(file: Where, form: str | None, *, made: Where | None = None) -> None:
  """Raises ConfigError where a file of predictions cannot be written.

  Args:
    file: which one.
    form: a name of `formats`; None for rows of JSON.
    made: a folder that will be there.
  """
  run_paths.check_place(file, name='--predictions', made=made)
  if form is not None:
    errors.check_choice('--format', 'format', form, formats(), place='plm_jax/scores')
    scores.check_installed(form, signatures.literal(f'scores.{form}', 'NEEDS') or ())


def check_format(form: str | None, predicted: Collection[str]) -> None:
  """Raises ConfigError where a format cannot say predictions with these keys."""
  if form is None:
    return
  either = [keys.reads for keys in scoring.known(form).either]
  if not signatures.has(f'scores.{form}', 'score'):  # a score reads all of its keys, a format one of them
    either = [(key,) for keys in either for key in keys]
  if scoring.lacking(either, predicted):
    raise ConfigError(
      f'--format={form} reads {scoring.in_words(either)} of predictions, and these have {", ".join(sorted(predicted))}'
    )


class Kept(NamedTuple):
  """What a run predicts in its newest evaluation of a name goes to a file."""

  evaluation: str
  file: Where


def kept(settings: Mapping[str, Any], file: Where, evaluation: str | None, *, workdir: Where) -> Kept:
  """The file of predictions that a run is asked for.

  Args:
    settings: of the run.
    file: where predictions go; in a folder that is there, or in the folder of the run.
    evaluation: whose rows they are of; None for the only one.
    workdir: the folder of the run, which need not be there yet.

  Raises:
    ConfigError: no such evaluation, or a file that cannot be written.
  """
  there = ', '.join(settings['eval']) or 'none'
  if evaluation is None and len(settings['eval']) != 1:
    raise ConfigError(f'--predictions needs one --evaluation; there are {there}')
  name = evaluation or next(iter(settings['eval']))
  if name not in settings['eval']:
    raise ConfigError(f'--evaluation={name}: no such evaluation in config.eval; there are {there}')
  check_output(file, None, made=workdir)
  return Kept(name, file)


def write(
  file: Where,
  predictions: Sequence[Row],
  records: Sequence[Row],
  *,
  form: str | None,
  in_words: InWords = lambda prediction, record: {},
) -> None:
  """Writes predictions row by row, or all of them in a format.

  Args:
    file: which one; replaced as a whole.
    predictions: of each row.
    records: of the same rows.
    form: a name of `formats`; None for rows of JSON.
    in_words: of the task.

  Raises:
    ConfigError: the format has no place for such predictions.
  """
  if form is not None:
    with errors.stage(f'--format={form}'):
      text = build.import_file(f'scores.{form}').submission(predictions, records)
    files.write_text(file, text)
    return
  lines = []
  for row, record in zip(predictions, records, strict=True):
    lines.append(_json({'row_id': row['row_id'], **row, **(in_words(row, record) if record else {}), 'record': record}))
  files.write_text(file, '\n'.join([*lines, '']))


def _json(row: Row) -> str:
  return json.dumps(row, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
  """Numpy values as numbers and lists, and what else JSON does not have as text."""
  return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


def read(file: Where) -> list[dict[str, Any]]:
  """The rows of a file that `write` wrote without a format.

  Raises:
    ConfigError: a line is no such row; names the file and the line.
  """
  if not files.is_file(files.path(file)):
    raise ConfigError(f'--score: there is no file {file}; evaluate --predictions=FILE writes one')
  rows = []
  text = files.read_text(files.path(file)).removesuffix('\n')
  for number, line in enumerate(text.split('\n') if text else (), start=1):  # a text may hold U+2028, which ends no row
    try:
      row = files.parse_json(line)
    except ValueError as error:
      raise ConfigError(f'--score: line {number} of {file} is no JSON: {error}') from error
    if not isinstance(row, dict) or 'row_id' not in row or not isinstance(row.get('record'), dict):
      raise ConfigError(
        f'--score: line {number} of {file} is no row with row_id and record, as evaluate --predictions=FILE writes it'
      )
    if 'group' in row['record']:
      row['record']['group'] = json.dumps(row['record']['group'])  # a tuple has become a list, which is not hashable
    rows.append(row)
  if not rows:
    raise ConfigError(f'--score: {file} is empty')
  return rows


# Several files -----------------------------------------------------------------------------------------------------


def join(given: Sequence[Where]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
  """The predictions and the records of one file, or of several whose predictions are averaged.

  Numbers with a fraction, such as probabilities and values, are averaged. NonNegativeInt numbers are kept where they are the
  places of the largest of such numbers, as classes are: those of the averages then. What is left is left out, words
  and places in a text among them.

  Raises:
    ConfigError: files of different rows, or nothing in them that can be averaged.
  """
  tables = [read(file) for file in given]
  first, ids = tables[0], [row['row_id'] for row in tables[0]]
  for file, table in zip(given[1:], tables[1:], strict=True):
    same = [row['row_id'] for row in table] == ids
    if not same or any(a['record'] != b['record'] for a, b in zip(first, table, strict=True)):
      raise ConfigError(f'--score: {given[0]} and {file} hold predictions of different rows')
  records = [row['record'] for row in first]
  predictions = [_arrays(row) for row in first]
  if len(given) > 1:
    others = [[_arrays(row) for row in table] for table in tables]
    predictions = _averaged([list(rows) for rows in zip(*others, strict=True)])
    if not any(set(row) - {'row_id'} for row in predictions):
      raise ConfigError(f'--score: {given[0]} holds nothing that can be averaged: {", ".join(first[0])}')
    alone = fitting(first, records)
    if alone and not fitting(predictions, records):
      raise ConfigError(
        f'--score: {", ".join(alone)} read words or places in a text, which cannot be averaged: score file by file'
      )
  return predictions, records


def _arrays(row: Row) -> dict[str, Any]:
  """A row as `Task.predict` gave it, and its words as they stand in the file."""
  return {
    key: np.asarray(value) if isinstance(value, int | float) or _is_numbers(value) else value
    for key, value in row.items()
    if key != 'record'
  }


def _is_numbers(value: Any) -> bool:
  """Whether a value is a list of numbers, or of such lists of one length each."""
  if not isinstance(value, list) or not value:
    return False
  if all(isinstance(item, list) for item in value):
    return len({len(item) for item in value}) == 1 and all(map(_is_numbers, value))
  return all(isinstance(item, int | float) and not isinstance(item, bool) for item in value)


def _averaged(rows: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
  """Averages the predictions of each row, one mapping a file; rows of different parts of a task have different keys."""
  alike: dict[tuple[str, ...], list[int]] = {}
  for number, same in enumerate(rows):
    alike.setdefault(tuple(sorted(set.intersection(*map(set, same)))), []).append(number)
  averaged: dict[int, dict[str, Any]] = {}
  for keys, numbers in alike.items():
    chosen = [[{key: one[key] for key in keys} for one in rows[number]] for number in numbers]
    averaged |= dict(zip(numbers, _averaged_alike(chosen), strict=True))
  return [averaged[number] for number in range(len(rows))]


def _averaged_alike(rows: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
  """The same for rows with the same keys."""
  # files {label 1, probability [.4 .6]} and {label 0, probability [.9 .1]}   ->   {label 0, probability [.65 .35]}
  arrays = [key for key, value in rows[0][0].items() if isinstance(value, np.ndarray) and key != 'row_id']
  means = [key for key in arrays if all(row[key].dtype.kind == 'f' for table in rows for row in table)]
  chosen = {key: of for key in arrays for of in means if key not in means and _chooses(rows, key, of)}
  averaged = []
  for same in rows:
    row = {key: np.mean([one[key] for one in same], axis=0) for key in means}
    row |= {key: row[of].argmax(axis=-1) for key, of in chosen.items()}
    averaged.append({'row_id': same[0]['row_id'], **row})
  return averaged


def _chooses(rows: list[list[dict[str, Any]]], key: str, of: str) -> bool:
  """Whether whole numbers are everywhere the places of the largest of other numbers along their last axis."""
  for row in (row for same in rows for row in same):
    places, values = row[key], row[of]
    if values.ndim != places.ndim + 1 or values.shape[:-1] != places.shape or not values.size:
      return False
    if not 0 <= places.min() <= places.max() < values.shape[-1]:
      return False
    picked = np.take_along_axis(values, places[..., None], axis=-1)[..., 0]
    if (picked < values.max(axis=-1) - _TIE).any():
      return False
  return True


def score(predictions: Sequence[Row], records: Sequence[Row], names: Sequence[str] = ()) -> dict[str, float]:
  """The metrics of rows as `join` returns them.

  Args:
    predictions: of each row.
    records: of the same rows.
    names: of scores; none takes all that read what the rows hold.

  Raises:
    ConfigError: a score that does not fit the rows, or none that does.
  """
  for name in names:
    errors.check_choice('--scores', 'score', name, scores_of(records), place='plm_jax/scores')
    if lacking := _lacking(name, predictions, records):
      raise ConfigError(f'--scores: {name!r} reads {lacking[0]}, and {_what(predictions, records)}')
  found: dict[str, dict[str, float]] = {}
  refused = []
  for name in names or fitting(predictions, records):
    file = scoring.known(name).file
    scores.check_installed(file, signatures.literal(f'scores.{file}', 'NEEDS') or ())
    try:
      found[name] = scoring.score(name, predictions, records)
    except ConfigError as error:  # a score that nobody named need not fit
      refused.append(str(error))
      if names:
        raise
  if not found:
    raise ConfigError(f'--score: no score fits these rows: {"; ".join(refused) or _what(predictions, records)}')
  metrics = [metric for values in found.values() for metric in values]
  return {
    metric if metrics.count(metric) == 1 else _longer(name, metric): value  # two scores may call what they give alike
    for name, values in found.items()
    for metric, value in values.items()
  }


def scores_of(records: Sequence[Row]) -> list[str]:
  """The names of all scores, and of those of each part that rows belong to, as 'cola/matthews'."""
  names = signatures.names('scores')
  parts = sorted({record['part'] for record in records if isinstance(record.get('part'), str)})
  return [*names, *(f'{part}/{name}' for part in parts for name in names)]


def fitting(predictions: Sequence[Row], records: Sequence[Row]) -> list[str]:
  """The names of the scores that read what rows hold."""
  return [name for name in scores_of(records) if not _lacking(name, predictions, records)]


def _lacking(name: str, predictions: Sequence[Row], records: Sequence[Row]) -> list[str]:
  """What a score reads and rows do not hold, by the first row that it is for."""
  score = scoring.known(name)
  place = next(place for place, record in enumerate(records) if score.part in ('', record.get('part')))
  each = [
    scoring.lacking([keys.reads], predictions[place]) + scoring.lacking([keys.records], records[place])
    for keys in score.either
  ]
  return min(each, key=len)


def _what(predictions: Sequence[Row], records: Sequence[Row]) -> str:
  """What rows hold that a score could read."""
  predicted, kept = (', '.join(sorted(set().union(*rows) - {'row_id'})) or 'nothing' for rows in (predictions, records))
  return f'the rows have {predicted}, and of the data {kept}'


def _longer(name: str, metric: str) -> str:
  """The name of a metric with that of its score: 'rte/squad', 'rte/f1' -> 'rte/squad/f1'."""
  return f'{name}/{metric.rpartition("/")[2]}'
