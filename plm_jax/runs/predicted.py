"""Files of predictions: written per example or in a benchmark's format, read again, averaged and scored.

A row is a JSON object with 'row_id', the prediction of the task, and the same as text (`Task.in_words`). Its 'record'
holds the fields of the data, so a file can be scored without the data and the model.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from plm_jax import scores
from plm_jax.config import build, signatures
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Task
from plm_jax.io import checksums, files, run_paths
from plm_jax.io.files import Where
from plm_jax.runs import scoring
from plm_jax.scores import Row

InWords = Callable[[Row, Row], dict[str, Any]]

_TIE = 1e-9  # probabilities in files may be rounded


def formats() -> list[str]:
  """List the modules of `plm_jax/scores/` with a benchmark's prediction format."""
  return [module.rpartition('.')[2] for module in signatures.files_of('scores') if signatures.has(module, 'submission')]


def check_task(task: Task, output: Any, *, user: str) -> None:
  """Raise ConfigError if predictions are requested of a task without any."""
  if output and task.predict is None:
    raise ConfigError(f'--predictions: {user} makes no predictions; remove the flag')


def check_output(file: Where, form: str | None, *, made: Where | None = None) -> None:
  """Raise ConfigError if a file of predictions cannot be written.

  `form` is a name of `formats` or None for JSON rows, and `made` a folder that will be created.
  """
  run_paths.check_place(file, name='--predictions', made=made)
  if form is not None:
    errors.check_choice('--format', 'format', form, formats(), place='plm_jax/scores')
    scores.check_installed(form, signatures.literal(f'scores.{form}', 'NEEDS') or ())


def check_format(form: str | None, predicted: Collection[str]) -> None:
  """Raise ConfigError if a format cannot represent predictions with these keys."""
  if form is None:
    return
  either = [keys.reads for keys in scoring.known(form).either]
  if not signatures.has(f'scores.{form}', 'score'):  # a score needs all of its keys, a format one of them
    either = [(key,) for keys in either for key in keys]
  if scoring.lacking(either, predicted):
    raise ConfigError(
      f'--format={form} needs predictions with {scoring.in_words(either)}; these have {", ".join(sorted(predicted))}'
    )


class Kept(NamedTuple):
  """The evaluation whose newest predictions a run writes, and their file."""

  evaluation: str
  file: Where


def kept(settings: Mapping[str, Any], file: Where, evaluation: str | None, *, workdir: Where) -> Kept:
  """Choose the evaluation and the file for the predictions of a run.

  Raises ConfigError: no such evaluation, or a file that cannot be written.

  Args:
    file: output file, in an existing folder or in the folder of the run.
    evaluation: to predict; None for the only one.
    workdir: the folder of the run, which may not exist yet.
  """
  choices = ', '.join(settings['eval']) or 'none'
  if evaluation is None and len(settings['eval']) != 1:
    raise ConfigError(f'--predictions needs one --evaluation; choices are {choices}')
  name = evaluation or next(iter(settings['eval']))
  if name not in settings['eval']:
    raise ConfigError(f'--evaluation={name}: no such evaluation in config.eval; choices are {choices}')
  check_output(file, None, made=workdir)
  return Kept(evaluation=name, file=file)


def write(
  file: Where,
  predictions: Sequence[Row],
  records: Sequence[Row],
  *,
  form: str | None,
  in_words: InWords = lambda prediction, record: {},
) -> None:
  """Write predictions as JSON rows or in a format (`form`, of `formats`).

  The file is replaced as a whole. Raises ConfigError: the format cannot represent such predictions.
  """
  if form is not None:
    with errors.stage(f'--format={form}'):
      text = build.import_file(f'scores.{form}').submission(predictions, records)
    files.write_text(file, text)
    return
  lines = []
  for row, record in zip(predictions, records, strict=True):
    line = {'row_id': row['row_id'], **row, **(in_words(row, record) if record else {}), 'record': record}
    lines.append(json.dumps(line, ensure_ascii=False, default=_plain))
  text, path = '\n'.join([*lines, '']), files.path(file)
  if files.is_file(path.with_name(checksums.SUMS)):  # a run folder
    checksums.write(path.parent, {path.name: text})
  else:
    files.write_text(path, text)


def _plain(value: Any) -> Any:
  """Convert numpy values to numbers and lists, other types to text."""
  return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


def read(file: Where) -> list[dict[str, Any]]:
  """Read the rows of a file that `write` wrote without a format.

  Raises ConfigError: a line is not such a row; the message names file and line.
  """
  if not files.is_file(files.path(file)):
    raise ConfigError(f'--score: no file {file}; plm-jax evaluate --predictions=FILE writes one')
  checksums.check(file)
  rows = []
  text = files.read_text(files.path(file)).removesuffix('\n')
  # not splitlines: a text may hold U+2028
  for line_number, line in enumerate(text.split('\n') if text else (), start=1):
    try:
      row = files.parse_json(line)
    except ValueError as error:
      raise ConfigError(f'--score: line {line_number} of {file} is not JSON: {error}') from error
    if not isinstance(row, dict) or 'row_id' not in row or not isinstance(row.get('record'), dict):
      raise ConfigError(
        f'--score: line {line_number} of {file} has no row_id or record; use a file of evaluate --predictions=FILE'
      )
    if 'group' in row['record']:
      # JSON turned the tuple into a list, which is not hashable
      row['record']['group'] = json.dumps(row['record']['group'])
    rows.append(row)
  if not rows:
    raise ConfigError(f'--score: {file} is empty')
  return rows


def join(paths: Sequence[Where]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
  """Read predictions and records of a file, or average several files.

  Numbers with a fraction, such as probabilities and values, are averaged. Whole numbers are kept where they are the
  places of the largest of such numbers, as classes are: those of the averages then. What is left is left out, words and
  places in a text among them. Raises ConfigError: files of different examples, or without values that can be averaged.
  """
  tables = [read(file) for file in paths]
  first, ids = tables[0], [row['row_id'] for row in tables[0]]
  for file, table in zip(paths[1:], tables[1:], strict=True):
    same_ids = [row['row_id'] for row in table] == ids
    if not same_ids or any(a['record'] != b['record'] for a, b in zip(first, table, strict=True)):
      raise ConfigError(f'--score: {paths[0]} and {file} hold predictions of different examples')
  records = [row['record'] for row in first]
  predictions = [_arrays(row) for row in first]
  if len(paths) > 1:
    others = [[_arrays(row) for row in table] for table in tables]
    predictions = _averaged([list(rows) for rows in zip(*others, strict=True)])
    if not any(set(row) - {'row_id'} for row in predictions):
      raise ConfigError(f'--score: nothing in {paths[0]} can be averaged: {", ".join(first[0])}')
    alone = fitting(first, records)
    if alone and not fitting(predictions, records):
      raise ConfigError(
        f'--score: {", ".join(alone)} need words or positions, which cannot be averaged; score one file at a time'
      )
  return predictions, records


def _arrays(row: Row) -> dict[str, Any]:
  """Convert the numbers of a row to arrays, as `Task.predict` returned them."""
  return {
    key: np.asarray(value) if isinstance(value, int | float) or _is_numbers(value) else value
    for key, value in row.items()
    if key != 'record'
  }


def _is_numbers(value: Any) -> bool:
  """Return True for a rectangular list of numbers."""
  if not isinstance(value, list) or not value:
    return False
  if all(isinstance(item, list) for item in value):
    return len({len(item) for item in value}) == 1 and all(map(_is_numbers, value))
  return all(isinstance(item, int | float) and not isinstance(item, bool) for item in value)


def _averaged(rows: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
  """Average predictions by example; parts of a task have different keys."""
  rows_by_keys: dict[tuple[str, ...], list[int]] = {}
  for index, versions in enumerate(rows):
    rows_by_keys.setdefault(tuple(sorted(set.intersection(*map(set, versions)))), []).append(index)
  averaged: dict[int, dict[str, Any]] = {}
  for keys, indices in rows_by_keys.items():
    chosen = [[{key: version[key] for key in keys} for version in rows[index]] for index in indices]
    averaged |= dict(zip(indices, _averaged_same_keys(chosen), strict=True))
  return [averaged[index] for index in range(len(rows))]


def _averaged_same_keys(rows: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
  """Average the predictions of examples with the same keys."""
  # files {label 1, probability [.4 .6]} and {label 0, probability [.9 .1]}   ->   {label 0, probability [.65 .35]}
  arrays = [key for key, value in rows[0][0].items() if isinstance(value, np.ndarray) and key != 'row_id']
  means = [key for key in arrays if all(row[key].dtype.kind == 'f' for table in rows for row in table)]
  argmax_of = {key: of for key in arrays for of in means if key not in means and _chooses(rows, key, of)}
  averaged = []
  for versions in rows:
    row = {key: np.mean([version[key] for version in versions], axis=0) for key in means}
    row |= {key: row[of].argmax(axis=-1) for key, of in argmax_of.items()}
    averaged.append({'row_id': versions[0]['row_id'], **row})
  return averaged


def _chooses(rows: list[list[dict[str, Any]]], key: str, of: str) -> bool:
  """Return True if integers are everywhere the argmax of other values."""
  for row in (row for versions in rows for row in versions):
    indices, values = row[key], row[of]
    if values.ndim != indices.ndim + 1 or values.shape[:-1] != indices.shape or not values.size:
      return False
    if not 0 <= indices.min() <= indices.max() < values.shape[-1]:
      return False
    picked = np.take_along_axis(values, indices[..., None], axis=-1)[..., 0]
    if (picked < values.max(axis=-1) - _TIE).any():
      return False
  return True


def score(predictions: Sequence[Row], records: Sequence[Row], names: Sequence[str] = ()) -> dict[str, float]:
  """Compute the metrics of rows as `join` returns them.

  No `names` take all scores that fit. Raises ConfigError: a score that does not fit the rows, or no score that fits.
  """
  for name in names:
    scoring.check_name('--scores', name, scores_of(records))
    if missing := _lacking(name, predictions, records):
      raise ConfigError(f'--scores: {name!r} needs {missing[0]}, but {_what(predictions, records)}')
  by_score: dict[str, dict[str, float]] = {}
  refused = []
  for name in names or fitting(predictions, records):
    file = scoring.known(name).file
    scores.check_installed(file, signatures.literal(f'scores.{file}', 'NEEDS') or ())
    try:
      by_score[name] = scoring.score(name, predictions, records)
    except ConfigError as error:  # a score that was not named may not fit
      refused.append(str(error))
      if names:
        raise
  if not by_score:
    raise ConfigError(f'--score: no score fits these predictions: {"; ".join(refused) or _what(predictions, records)}')
  metrics = [metric for values in by_score.values() for metric in values]
  return {  # two scores may use the same name: 'rte/squad', 'rte/f1' -> 'rte/squad/f1'
    metric if metrics.count(metric) == 1 else f'{name}/{metric.rpartition("/")[2]}': value
    for name, values in by_score.items()
    for metric, value in values.items()
  }


def scores_of(records: Sequence[Row]) -> list[str]:
  """List all scores, and those of each part, as 'cola/matthews'."""
  names = signatures.names('scores')
  parts = sorted({record['part'] for record in records if isinstance(record.get('part'), str)})
  return [*names, *(f'{part}/{name}' for part in parts for name in names)]


def fitting(predictions: Sequence[Row], records: Sequence[Row]) -> list[str]:
  """List the scores whose keys the rows have."""
  return [name for name in scores_of(records) if not _lacking(name, predictions, records)]


def _lacking(name: str, predictions: Sequence[Row], records: Sequence[Row]) -> list[str]:
  """List the keys that a score needs and its first row lacks."""
  score = scoring.known(name)
  index = next(index for index, record in enumerate(records) if score.part in ('', record.get('part')))
  missing = [
    scoring.lacking([keys.reads], predictions[index]) + scoring.lacking([keys.records], records[index])
    for keys in score.either
  ]
  return min(missing, key=len)


def _what(predictions: Sequence[Row], records: Sequence[Row]) -> str:
  """Describe the keys of rows for a message."""
  predicted, recorded = (
    ', '.join(sorted(set().union(*rows) - {'row_id'})) or 'nothing' for rows in (predictions, records)
  )
  return f'the predictions have {predicted}, and the data {recorded}'
