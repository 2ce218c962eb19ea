"""Predicts a person's own file with a run: the engine of `plm-jax predict`.

Rows need no label, and a label that they have is not read. Every row keeps its fields, and gets what its task says:

    classes          `prediction`, a name; `probability`; `probabilities` by name
    numbers          `prediction`
    words            `prediction`, a tag for each word, and `probability` of each; None for a word that was cut off
    trees            likewise, the number of the head of each word and the relation to it, such as '3:case'
    options          `prediction`, a text; `option`, its number from 0; `probabilities` of all
    answers, texts   `prediction`, a text; `score` of an answer, None where no part of a text could be one; and ''
                     where adapter.no_answer finds none

Names of classes are those of the run (`run_folder.class_names`), whatever stands beside the file.
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
from plm_jax.data.corpora import sources
from plm_jax.data.corpora.records import Records, as_written
from plm_jax.data.rows import examples, first_row
from plm_jax.data.rows.class_names import one_by_one
from plm_jax.inference import replies
from plm_jax.io import files, run_paths
from plm_jax.io.files import Where
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import run_folder
from plm_jax.scores import Group, Row, attachment, grouped, squad
from plm_jax.training import evaluate_saved
from plm_jax.training.parts import Settings

log = logging.getLogger(__name__)

ADDED = ('prediction', 'probability', 'probabilities', 'option', 'score')
# Those of a task, by the first of these keys that it reads; of any other task all of them count.
_ADDED_BY = {
  'start': ('prediction', 'score'),
  'labels': ('prediction', 'probability'),
  'tokens[bkl]': ('prediction', 'option', 'probabilities'),
  'option_tokens': ('prediction', 'option', 'probability', 'probabilities'),
  'target_tokens': ('prediction',),
  'label': ('prediction', 'probability', 'probabilities'),
}
SUFFIXES = ('.jsonl', '.csv')
_EVALUATION, _SPLIT = 'file', 'train'
_NO_LABEL = '(none)'  # a field that no row has
_SOURCES = ('labelled', 'text_to_text')
_COLUMN = 'probability of '  # and the name of a class, in a table
_DIGITS = 6
_OF_EVALUATIONS = 'plm-jax evaluate --workdir=DIR --evaluation=NAME --predictions=FILE writes those of its evaluations'


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
  """Predicts every row of a file and writes the rows with their predictions.

  Args:
    settings: of the run.
    folder: of the run; nothing in it is changed.
    file: what is predicted, in any format of `data/corpora/formats/`; each line of a .txt file is a row, empty or not.
    out: what is written, a name that ends in one of `SUFFIXES`.
    step: which checkpoint; None takes the best where there is one, else the newest.
    part: the task of a run that learned several, by which rows are predicted as by a run of it alone; None takes the
      only one of a run that learned one beside what needs no labels (CVT).
    force: replace `out` where it is there.

  Returns:
    the number of rows.

  Raises:
    ConfigError: files that cannot be read or written, rows that lack a text, named with file and line; or a run that
      predicts no rows. All of it before anything is computed.
  """
  check_output(out, file, force=force)
  if part is None and len(parts := one_part.names(settings)) == 1:
    part = parts[0]
  settings = one_part.settings_of(settings, part, where=f'--part={part}')
  block, names = rows_of(settings, file), run_folder.class_names(folder, part).names
  with stage(f'--file={file}'):
    records = sources.open_source(
      str(file),
      split=block['split'],
      cache=block['cache'],
      max_bytes=block['max_bytes'],
      documents=block['documents'],
    )
    block |= _fields(records, block)
    _check_fields(records, block)
    added, table = added_by(settings), files.path(out).suffix == '.csv'
    columns = table and {'probability', 'probabilities'} <= set(added)  # one for each class
    _check_free(records, lambda name: name in added or (columns and _of_class(name, names)))
  evaluations: dict[str, Any] = {_EVALUATION: {'data': block, 'every': None, 'units': None, 'scores': []}}
  settings = {**settings, 'eval': evaluations}
  with _named_by_file(file):
    task, found = evaluate_saved.predict_run(settings, folder, name=_EVALUATION, step=step, part=part)
  kept = [_named(record, names) for record in found.records]
  rows = list(_whole(said(task, found.predictions, kept), records, block))
  write(out, rows)
  log.info(f'{len(rows):,} rows with their predictions in {out}')
  return len(rows)


# What is read --------------------------------------------------------------------------------------------------------


def check_output(out: Where, file: Where, *, force: bool) -> None:
  """Raises ConfigError where the file of predictions cannot be written, or would replace another one."""
  path = files.path(out)
  if path.suffix not in SUFFIXES:
    raise ConfigError(f'--out={out}: name a file that ends in {" or ".join(SUFFIXES)}')
  run_paths.check_place(out, name='--out')
  if files.exists(path) and (not force or files.followed(path) == files.followed(files.path(file))):
    cure = 'name another file' if files.followed(path) == files.followed(files.path(file)) else '--force replaces it'
    raise ConfigError(f'--out={out}: the file is there already: {cure}')


def rows_of(settings: Settings, file: Where) -> dict[str, Any]:
  """The data block of a run for the rows of a file: all of them, in their order, without labels.

  Raises:
    ConfigError: a run that reads other rows than one file holds.
  """
  data, path = settings['data'], files.path(file)
  if settings['adapter'] is None or data['name'] not in _SOURCES:
    if several := one_part.left_open(settings):
      raise ConfigError(f'predict: this run {several}, --part=NAME')
    what = f'reads data {data["name"]!r}' if settings['adapter'] else 'was pre-trained and not fine-tuned'
    raise ConfigError(
      f'predict: this run {what}: rows are predicted by a run of an adapter on data {" or ".join(_SOURCES)}'
    )
  if not files.is_file(path):
    raise ConfigError(f'--file={file}: there is no such file')
  if (data.get('shots') or {}).get('count'):
    raise ConfigError(f'predict: demonstrations are drawn from the training data (data.shots): {_OF_EVALUATIONS}')
  lines = {'documents': 'every_line' if path.name.removesuffix('.gz').endswith('.txt') else 'blank_line'}
  every = {'keep_unlabelled': True, 'on_bad_row': 'stop', 'shuffle': False}
  block = {**data, 'path': str(file), 'split': _SPLIT, **every, **lines}
  if data['name'] == 'text_to_text':
    return {**block, 'per_target': False}
  fields = tuple(data['fields'])
  texts = fields[: _of_kind(data, 'TEXTS')]  # what stands behind them, such as heads, is asked for
  fields = texts + (_NO_LABEL,) * (len(fields) - len(texts))
  return {**block, 'fields': fields, 'label': _NO_LABEL, 'missing': -1, 'per_class': None}


def added_by(settings: Settings) -> tuple[str, ...]:
  """Those of `ADDED` that the task of a run may write."""
  if settings['data'].get('kind') == 'regression':
    return ('prediction',)
  reads = config.reads(settings)
  return next((added for key, added in _ADDED_BY.items() if key in reads), ADDED)


def _of_class(field: str, names: Sequence[str]) -> bool:
  """Whether a column is that of the probability of a class; where no names are known, rows may bring any."""
  name = field.removeprefix(_COLUMN)
  return name != field and (not names or name in names or name.isdecimal())


def _fields(records: Records, block: Settings) -> dict[str, Any]:
  """The fields of texts, by the names that the file has for them where they are not those of the training data."""
  fields = block.get('fields') or ()
  texts = fields[: _of_kind(block, 'TEXTS')]
  plain = not any('{' in name for name in texts)
  if block['name'] != 'labelled' or not texts or not plain or set(texts) <= set(records.fields):
    return {}
  known = first_row.known_texts(records, 'words' if _of_kind(block, 'SPACED') else block['kind'])
  if len(known) != len(texts):
    return {}  # what is missing is said where rows are read
  log.info(f'texts are read from {", ".join(known)}; the run was trained on {", ".join(texts)}')
  return {'fields': [*known, *fields[len(texts) :]]}


def _of_kind(block: Settings, name: str) -> Any:
  """What the file of the kind of rows of a data block states under a name; None where it states nothing."""
  return signatures.literal(f'data.rows.kinds.{block["kind"]}', name) if 'kind' in block else None


def _check_fields(records: Records, block: Settings) -> None:
  """Raises ValueError where the first rows have nothing of a field that holds text."""
  for name in (block.get('fields') or ())[: _of_kind(block, 'TEXTS')]:
    if '{' in name and name not in records.fields:  # a pattern of several, whose reader says what is missing
      continue
    if not examples.is_somewhere(name, records):
      near = errors.suggest(name, records.fields)
      raise ValueError(
        f'there is no field {name!r}, which the run was trained on; there are {", ".join(records.fields)}: rename the '
        f'one that holds it.{near}'
      )


def _check_free(records: Records, is_written: Callable[[str], bool]) -> None:
  """Raises ValueError where a row, not the first alone, has a field that predictions are written to."""
  seen: set[str] = set()
  for index in range(len(records)):
    try:
      fields = records[index].keys() - seen
    except ValueError:  # named when all rows are read
      continue
    if taken := sorted(filter(is_written, fields)):
      place = records.place(index) or f'row {index}'
      name = repr(taken[0])
      raise ValueError(
        f'rows have a field {name} already, first in {place}, which predictions are written to: rename it'
      )
    seen |= fields


@contextlib.contextmanager
def _named_by_file(file: Where) -> Iterator[None]:
  """Errors in rows name the file as the user did, and not the block of an evaluation that stands for it."""
  try:
    yield
  except ConfigError as error:
    place = f'eval.{_EVALUATION}.data: '
    if not str(error).startswith(place):
      raise
    message = str(error).removeprefix(place).replace(f'{file} ({_SPLIT})', str(file))
    raise ConfigError(message if message.startswith(str(file)) else f'--file={file}: {message}') from error


def _named(record: Row, names: Sequence[str]) -> Row:
  """A record with the names of the classes of the run, unless it has options of its own."""
  return record if 'options' in record or not names else {**record, 'names': tuple(names)}


# What is said of a row -----------------------------------------------------------------------------------------------


def said(task: Task, predictions: Sequence[Row], records: Sequence[Row]) -> list[tuple[Row, dict[str, Any]]]:
  """The record of each row, or of each question, with what its task says of it in the keys of `ADDED`.

  Raises:
    ConfigError: the task predicts nothing that a row could be given.
  """
  if predictions and 'start' in predictions[0]:
    knows_none = 'squad2' in task.scores
    return [(group.records[0], _answer(group, knows_none=knows_none)) for group in grouped(predictions, records)]
  return [(record, _said(task, row, record)) for row, record in zip(predictions, records, strict=True)]


def _said(task: Task, prediction: Row, record: Row) -> dict[str, Any]:
  if 'labels' in prediction:
    tags, shares = replies.tags_of(prediction, record)
    if 'heads' in prediction:
      tags = attachment.written(prediction, record)
    return {'prediction': tags, 'probability': [None if share is None else _number(share) for share in shares]}
  if 'tokens' in prediction:
    return {'prediction': task.in_words(prediction, record)['text']}
  if 'value' in prediction:
    return {'prediction': _number(replies.class_of(prediction, record)['value'])}
  if 'label' not in prediction:
    found = ', '.join(sorted(prediction))
    raise ConfigError(f'predict: this run predicts {found}, which says nothing of a row: {_OF_EVALUATIONS}')
  if record.get('options') and not record.get('names'):
    reply = replies.choice_of(prediction, record)
    shares = [_number(share) for share in reply['probabilities']]
    return {'prediction': reply['option'], 'option': reply['number'], 'probabilities': shares}
  reply = replies.class_of(prediction, record)
  label, each = str(reply['label']), {str(name): _number(share) for name, share in reply['probabilities'].items()}
  return {'prediction': label, 'probability': each[label], 'probabilities': each}


def _answer(group: Group, *, knows_none: bool) -> dict[str, Any]:
  """The answer to a question, of all its windows."""
  reply, (_, score) = replies.answer_of(group, best=1, knows_none=knows_none), squad.best(group)
  return {'prediction': reply['text'], 'score': _number(score) if score > squad.NEVER else None}


def _number(value: Any) -> float:
  return round(float(value), _DIGITS)


def _whole(each: Sequence[tuple[Row, dict[str, Any]]], records: Records, block: Settings) -> Iterator[dict[str, Any]]:
  """The fields of every row with what is said of it; rows without a word, which no network reads, have no tag."""
  left = iter(each)
  if not _of_kind(block, 'SPACED'):
    yield from ({**record['row'], **words} for record, words in left)
    return
  for row in records:
    some = bool(one_by_one(row[block['fields'][0]]))
    yield {**row, **(next(left)[1] if some else {'prediction': [], 'probability': []})}


# What is written -----------------------------------------------------------------------------------------------------


def write(out: Where, rows: Sequence[Mapping[str, Any]]) -> None:
  """Writes rows as the suffix of the file says; of a table, what is no text and no number is JSON.

  Numbers that were read from a table are written as their cells were.
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
  if (cell := as_written(value)) is not value:  # what a table has for a number is one in JSON too
    return str(cell)
  return json.dumps(value, ensure_ascii=False, default=str)


def _line(cells: Sequence[Any]) -> str:
  """A line of a table; a cell with either sign that ends lines stands in quotation marks."""
  text = io.StringIO(newline='')
  csv.writer(text, lineterminator='\r\n').writerow(cells)  # the writer of older versions marks only what ends its own
  return text.getvalue().removesuffix('\r\n') + '\n'


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
  """A row of cells: the probability of each class has a column of its own."""
  cells: dict[str, Any] = {}
  for name, value in row.items():
    if name == 'probabilities' and isinstance(value, dict):
      cells |= {f'{_COLUMN}{key}': share for key, share in value.items()}
    else:
      nested = isinstance(value, list | dict | bool)
      cells[name] = _json(value) if nested else as_written(value)
  return cells
