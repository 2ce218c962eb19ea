"""Predictions for a user's own file, the engine of `plm-jax predict`.

Examples need no label; an existing label is not read. Every example keeps its fields and gets the prediction of its
task:

    classes          `prediction`, a name; `probability`; `probabilities` by name
    several classes  `prediction`, a list of names; `probabilities` by name
    numbers          `prediction`
    words            `prediction`, a tag for each word, and `probability` of each; long examples are read in windows
    trees            the same, the index of the head of each word and the relation to it, such as '3:case'; None for a
                     truncated word
    options          `prediction`, a text; `option`, its index from 0; `probabilities` of all
    answers, texts   `prediction`, a text; `score` of an answer, None if no part of a text could be one; and ''
                     if adapter.no_answer finds none

Class names are those of the run (`run_folder.class_names`), not of a file next to the examples.
"""

import contextlib
import csv
import io
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from plm_jax import config
from plm_jax.checkpoint import Step
from plm_jax.config import one_part, signatures
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError, stage
from plm_jax.core.types import Task
from plm_jax.data.corpora import local, sources
from plm_jax.data.corpora.records import Records, as_written, is_words
from plm_jax.data.rows import examples, first_row
from plm_jax.data.rows.class_names import words_of
from plm_jax.data.rows.field_texts import named
from plm_jax.inference import replies
from plm_jax.inference.overlapping_windows import Window
from plm_jax.io import files, run_paths
from plm_jax.io.files import Where
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import run_folder
from plm_jax.scores import Group, Row, attachment, grouped, squad
from plm_jax.training import evaluate_saved
from plm_jax.training.parts import Settings, make_vocab

log = logging.getLogger(__name__)

ADDED = ('prediction', 'probability', 'probabilities', 'option', 'score')
# by the first of these batch keys that a task reads; any other task may write all of ADDED
_ADDED_BY = {
  'start': ('prediction', 'score'),
  'labels': ('prediction', 'probability'),
  'tokens[bkl]': ('prediction', 'option', 'probabilities'),
  'option_tokens': ('prediction', 'option', 'probability', 'probabilities'),
  'target_tokens': ('prediction',),
  'label': ('prediction', 'probability', 'probabilities'),
  'classes': ('prediction', 'probabilities'),
}
SUFFIXES = ('.jsonl', '.csv')
_EVALUATION, _SPLIT = 'file', 'train'
_COLUMN = 'probability of '  # prefix of the name of a class in a table
_USE_EVALUATE = 'use plm-jax evaluate --workdir=DIR --evaluation=NAME --predictions=FILE'


def predict(
  settings: Settings,
  folder: RunFolder,
  *,
  file: Where,
  out: Where,
  step: Step = None,
  part: str | None = None,
  force: bool = False,
) -> int:
  """Predict every example of a file and write the predictions.

  Args:
    folder: of the run; it is not changed.
    file: the examples, in any format of `data/corpora/formats/`. Each line of a .txt file is one, even if empty.
    out: output file, whose name ends in one of `SUFFIXES`.
    step: which checkpoint; None takes the best if there is one, else the newest.
    part: task of a multi-task run. None takes the only supervised task, as of a run that also trained without labels
      (CVT).
    force: replace `out` if it exists.

  Returns:
    The number of examples.

  Raises:
    ConfigError: a file cannot be read or written, an example lacks a text (named with file and line), or the run makes
      no predictions. Every check happens before anything is computed.
  """
  check_output(out, file, force=force)
  if part is None and len(parts := one_part.names(settings)) == 1:
    part = parts[0]
  settings = one_part.settings_of(settings, part, where=f'--part={part}')
  block, names = rows_of(settings, file), run_folder.class_names(folder, part).names
  with stage(f'--file={file}'):
    records = sources.open_source(
      str(file), split=block['split'], cache=block['cache'], max_bytes=block['max_bytes'], documents=block['documents']
    )
    block |= _fields(records, block)
    _check_fields(records, block)
    added, table = added_by(settings), files.path(out).suffix == '.csv'
    columns = table and added[-1] == 'probabilities' and added[1:] != ('option', 'probabilities')  # one for each class
    _check_free(records, lambda name: name in added or (columns and _of_class(name, names)))
  tags_words = {'labels', 'heads'} & {*config.reads(settings)} == {'labels'}
  pieces, owners = _windows(records, block, settings, folder) if tags_words else ([], [])
  evaluations: dict[str, Any] = {_EVALUATION: {'data': block, 'every': None, 'units': None, 'scores': []}}
  settings = {**settings, 'eval': evaluations}
  with _named_by_file(file), files.temporary_folder() as temporary:
    if pieces:
      write(files.path(temporary) / 'windows.jsonl', [{block['fields'][0]: words} for words in pieces])
      changed = {'path': str(files.path(temporary) / 'windows.jsonl'), 'documents': 'blank_line'}  # as of .jsonl
      evaluations[_EVALUATION]['data'] = {**block, **changed}
    task, predicted = evaluate_saved.predict_run(settings, folder, name=_EVALUATION, step=step, part=part)
  choices = {'names': tuple(names)} if names else {}
  named = [record if 'options' in record else {**record, **choices} for record in predicted.records]
  described = describe(task, predicted.predictions, named)
  rows = list(_whole(_joined(described, owners) if pieces else described, records, block))
  write(out, rows)
  log.info(f'{len(rows):,} examples with predictions written to {out}')
  return len(rows)


def check_output(out: Where, file: Where, *, force: bool) -> None:
  """Raise ConfigError if the output is not writable or exists already."""
  path = files.path(out)
  if path.suffix not in SUFFIXES:
    raise ConfigError(f'--out={out}: the name must end in {" or ".join(SUFFIXES)}')
  run_paths.check_place(out, name='--out')
  if files.exists(path) and (not force or files.followed(path) == files.followed(files.path(file))):
    fix = 'name another file' if files.followed(path) == files.followed(files.path(file)) else '--force replaces it'
    raise ConfigError(f'--out={out}: the file exists already; {fix}')


def rows_of(settings: Settings, file: Where) -> dict[str, Any]:
  """Build the data block for a file of unlabelled examples, in order.

  Raises:
    ConfigError: the run reads other examples than one file holds.
  """
  data, path = settings['data'], files.path(file)
  unlabelled = signatures.literal(f'data.{data["name"]}', 'UNLABELLED')
  if settings['adapter'] is None or unlabelled is None:
    if open_parts := one_part.left_open(settings):
      raise ConfigError(f'predict: this run {open_parts}, --part=NAME')
    reason = f'reads data {data["name"]!r}' if settings['adapter'] else 'was not fine-tuned'
    sources = [name for name in signatures.names('data') if signatures.literal(f'data.{name}', 'UNLABELLED')]
    raise ConfigError(f'predict: this run {reason}; name a run with an adapter on data {" or ".join(sources)}')
  if not files.is_file(path):
    raise ConfigError(f'--file={file}: no such file')
  if (data.get('shots') or {}).get('count'):
    raise ConfigError(f'predict: demonstrations are sampled from the training data (data.shots); {_USE_EVALUATE}')
  lines = {'documents': 'every_line' if local.unzipped(path.name).endswith('.txt') else 'blank_line'}
  all_rows = {'keep_unlabelled': True, 'on_bad_row': 'stop', 'shuffle': False}
  block = {**data, 'path': str(file), 'split': _SPLIT, **all_rows, **lines, **unlabelled}
  if 'fields' not in data:
    return block
  fields = tuple(data['fields'])
  texts = fields[: _of_kind(data, 'TEXTS')]  # the fields after them, such as heads, are predicted
  return {**block, 'fields': texts + (unlabelled['label'],) * (len(fields) - len(texts))}


def added_by(settings: Settings) -> tuple[str, ...]:
  """Return the keys of `ADDED` that the run's task may write."""
  if settings['data'].get('kind') == 'regression':
    return ('prediction',)
  reads = config.reads(settings)
  return next((added for key, added in _ADDED_BY.items() if key in reads), ADDED)


def _of_class(field: str, names: Sequence[str]) -> bool:
  """Return True for a class probability's column; without names for any."""
  name = field.removeprefix(_COLUMN)
  return name != field and (not names or name in names or name.isdecimal())


def _fields(records: Records, block: Settings) -> dict[str, Any]:
  """Find the text fields of a file whose names differ from training."""
  fields = block.get('fields') or ()
  texts = fields[: _of_kind(block, 'TEXTS')]
  plain = not any('{' in name for name in texts)
  if not texts or not plain or set(texts) <= set(records.fields):
    return {}
  if all(cased := [named(name, records.fields) for name in texts]):
    return {'fields': [*cased, *fields[len(texts) :]]}
  similar = first_row.known_texts(records, 'words' if _of_kind(block, 'SPACED') else block['kind'])
  if len(similar) != len(texts):
    return {}  # reading the examples raises an error that names the missing field
  log.info(f'reading texts from {", ".join(similar)}; the run was trained on {", ".join(texts)}')
  return {'fields': [*similar, *fields[len(texts) :]]}


def _of_kind(block: Settings, name: str) -> Any:
  """Read a constant of the block's kind of examples, or None."""
  return signatures.literal(f'data.rows.kinds.{block["kind"]}', name) if 'kind' in block else None


def _check_fields(records: Records, block: Settings) -> None:
  """Raise ValueError if a text field is missing in the first examples."""
  for name in (block.get('fields') or ())[: _of_kind(block, 'TEXTS')]:
    if '{' in name and name not in records.fields:  # a pattern of several fields, checked by its reader
      continue
    if not examples.is_somewhere(name, records):
      near = errors.suggest(name, records.fields)
      raise ValueError(
        f'no field {name!r}, which the run was trained on. Fields: {", ".join(records.fields)}; '
        f'rename the one that holds it.{near}'
      )


def _check_free(records: Records, is_written: Callable[[str], bool]) -> None:
  """Raise ValueError if an example has a field reserved for predictions."""
  seen: set[str] = set()
  for index in range(len(records)):
    try:
      fields = records[index].keys() - seen
    except ValueError:  # reading all examples raises it again, with file and line
      continue
    if taken := sorted(filter(is_written, fields)):
      location = records.place(index) or f'row {index}'
      raise ValueError(
        f'field {taken[0]!r} exists already, first in {location}, but predictions are written to it; rename it'
      )
    seen |= fields


@contextlib.contextmanager
def _named_by_file(file: Where) -> Iterator[None]:
  """Name the user's file in errors instead of the evaluation block."""
  try:
    yield
  except ConfigError as error:
    prefix = f'eval.{_EVALUATION}.data: '
    if not str(error).startswith(prefix):
      raise
    message = str(error).removeprefix(prefix).replace(f'{file} ({_SPLIT})', str(file))
    raise ConfigError(message if message.startswith(str(file)) else f'--file={file}: {message}') from error


def describe(task: Task, predictions: Sequence[Row], records: Sequence[Row]) -> list[tuple[Row, dict[str, Any]]]:
  """Describe predictions, one per question, by `ADDED`, each with its record.

  Raises:
    ConfigError: the task makes no prediction per example.
  """
  if predictions and 'start' in predictions[0]:
    knows_none = 'squad2' in task.scores
    return [(group.records[0], _answer(group, knows_none=knows_none)) for group in grouped(predictions, records)]
  return [(record, _described(task, row, record)) for row, record in zip(predictions, records, strict=True)]


def _described(task: Task, prediction: Row, record: Row) -> dict[str, Any]:
  if 'labels' in prediction:
    tags, shares = replies.tags_of(prediction, record)
    if 'heads' in prediction:
      tags = attachment.written(prediction, record)
    return {'prediction': tags, 'probability': [None if share is None else _number(share) for share in shares]}
  if 'tokens' in prediction:
    return {'prediction': task.in_words(prediction, record)['text']}
  if 'value' in prediction:
    return {'prediction': _number(replies.class_of(prediction, record)['value'])}
  if 'threshold' in prediction:
    reply = replies.class_of(prediction, record)
    return {
      'prediction': reply['labels'],
      'probabilities': {str(name): _number(share) for name, share in reply['probabilities'].items()},
    }
  if 'label' not in prediction:
    keys = ', '.join(sorted(prediction))
    raise ConfigError(f'predict: this run predicts {keys}, which describes no example; {_USE_EVALUATE}')
  if record.get('options') and not record.get('names'):
    reply = replies.choice_of(prediction, record)
    shares = [_number(share) for share in reply['probabilities']]
    return {'prediction': reply['option'], 'option': reply['number'], 'probabilities': shares}
  reply = replies.class_of(prediction, record)
  label, by_name = str(reply['label']), {str(name): _number(share) for name, share in reply['probabilities'].items()}
  return {'prediction': label, 'probability': by_name[label], 'probabilities': by_name}


def _answer(group: Group, *, knows_none: bool) -> dict[str, Any]:
  reply, (_, score) = replies.answer_of(group, best=1, knows_none=knows_none), squad.best(group)
  return {'prediction': reply['text'], 'score': _number(score) if score > squad.NEVER else None}


def _number(value: Any) -> float:
  return round(float(value), 6)


def _windows(
  records: Records, block: Settings, settings: Settings, folder: RunFolder
) -> tuple[list[Sequence[str]], list[tuple[int, Window]]]:
  """Cut examples into windows as `Model.tag`; none if all fit."""
  try:
    texts = [words_of(row[block['fields'][0]]) for row in records]
  except (KeyError, ValueError):  # reading the examples raises it again
    return [], []
  if not all(map(is_words, texts)):
    return [], []
  pieces, owners = replies.windows(texts, block, make_vocab(settings, folder))
  if len(pieces) == sum(map(bool, texts)):
    return [], []
  log.info(f'{len({index for index, window in owners if window.start})} long examples are read in windows')
  return pieces, owners


def _joined(
  described: Sequence[tuple[Row, dict[str, Any]]], owners: Sequence[tuple[int, Window]]
) -> list[tuple[Row, dict[str, Any]]]:
  joined: dict[int, tuple[Row, dict[str, list[Any]]]] = {}
  for (record, words), (index, window) in zip(described, owners, strict=True):
    own = joined.setdefault(index, (record, {name: [] for name in words}))[1]
    for name, values in words.items():
      own[name] += values[window.first - window.start : window.last - window.start]
  return list(joined.values())


def _whole(
  described: Sequence[tuple[Row, dict[str, Any]]], records: Records, block: Settings
) -> Iterator[dict[str, Any]]:
  """Add predictions to all examples, empty lists to those without words."""
  remaining = iter(described)
  if not _of_kind(block, 'SPACED'):
    yield from ({**record['row'], **words} for record, words in remaining)
    return
  for row in records:
    has_words = bool(words_of(row[block['fields'][0]]))
    yield {**row, **(next(remaining)[1] if has_words else {'prediction': [], 'probability': []})}


def write(out: Where, rows: Sequence[Mapping[str, Any]]) -> None:
  """Write rows as .jsonl or .csv; numbers as their cells were.

  A table holds text and numbers; other values are JSON.
  """
  if Path(out).suffix == '.jsonl':
    lines = [', '.join(f'{_json(name)}: {_json(value)}' for name, value in row.items()) for row in rows]
    files.write_text(out, ''.join(f'{{{line}}}\n' for line in lines))
    return
  flat = [_flat(row) for row in rows]
  names = list(dict.fromkeys(name for row in flat for name in row))
  files.write_text(
    out, ''.join(_line(cells) for cells in (names, *([row.get(name, '') for name in names] for row in flat)))
  )


def _json(value: Any) -> str:
  if (cell := as_written(value)) is not value:  # a number that was read from a table
    return str(cell)
  return json.dumps(value, ensure_ascii=False, default=str)


def _line(cells: Sequence[Any]) -> str:
  """Write a line of a table; quote cells with line ends."""
  text = io.StringIO(newline='')
  csv.writer(text, lineterminator='\r\n').writerow(cells)  # older versions of csv quote only their own line terminator
  return text.getvalue().removesuffix('\r\n') + '\n'


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
  cells: dict[str, Any] = {}
  for name, value in row.items():
    if name == 'probabilities' and isinstance(value, dict):
      cells |= {f'{_COLUMN}{key}': share for key, share in value.items()}
    else:
      nested = isinstance(value, list | dict | bool)
      cells[name] = _json(value) if nested else as_written(value)
  return cells
