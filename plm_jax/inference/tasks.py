"""What a folder was fine-tuned for, asked of new rows: its own adapter, wrappers included, reads them as its data does.

The rows go through the data block of the run, as those of an evaluation without labels do: the same fields, layout and
length, so that a row gets the prediction that `plm-jax evaluate` writes for it. A release or an import with the head of
a task has a block made for it (`released.py`).
"""

import functools
import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax

from plm_jax import config, weights
from plm_jax.checkpoint import CheckpointError
from plm_jax.cli import progress
from plm_jax.config import build, one_part
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.core.types import PyTree, Source
from plm_jax.inference import batches, released
from plm_jax.inference.opened import Opened
from plm_jax.io import files
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import scoring
from plm_jax.training import parts
from plm_jax.training.evaluation import rows_of
from plm_jax.training.parts import Parts
from plm_jax.training.step import predict_step
from plm_jax.weights.table import HEAD

Ability = Literal['classify', 'tag', 'parse', 'answer', 'choose', 'generate']
# by the first of these that a task reads
_ABILITIES: Mapping[str, Ability] = {
  'target_tokens': 'generate', 'start': 'answer', 'heads': 'parse', 'labels': 'tag', 'tokens[bkl]': 'choose',
  'label': 'classify',
}  # fmt: skip
_ADAPTERS = {
  'classify': 'classify',
  'tag': 'tag',
  'parse': 'parse',
  'span': 'answer',
  'choose': 'choose',
}  # for messages
_NAMED = 'rows'  # of the split that new rows stand in


class Asked(NamedTuple):
  """The task of a folder, ready to be asked.

  Attributes:
    opened: the folder.
    block: how it reads its data.
    made: its task.
    params: of the task's model, on the device.
    names: of its classes; () where it has none.
    predict: the compiled `predict_step`.
  """

  opened: Opened
  block: Mapping[str, Any]
  made: Parts
  params: PyTree
  names: tuple[str, ...]
  predict: Any


class Predicted(NamedTuple):
  """What is predicted of a row: the keys of `Task.predict`, and what the source keeps of it."""

  prediction: Mapping[str, Any]
  record: Mapping[str, Any]


def open_task(opened: Opened) -> Asked:
  """The task of a folder with an adapter, and its parameters, as `plm-jax evaluate` computes with them.

  Raises:
    ConfigError: new rows cannot be made for it, or its parameters are missing or damaged.
  """
  settings = opened.resolved if opened.settings else released.settings(opened)
  if 'keep_unlabelled' not in settings['data']:
    raise ConfigError(
      f'{opened.folder} was trained on data {settings["data"]["name"]!r}, of which new rows cannot be made: '
      'write them to files and use plm-jax evaluate --predictions=FILE'
    )
  if (settings['data'].get('shots') or {}).get('count'):
    raise ConfigError(
      f'{opened.folder}: demonstrations are drawn from the training data (data.shots): write new rows to files and use '
      'plm-jax evaluate --predictions=FILE'
    )
  if opened.settings:
    execution = {**settings['execution'], 'dtype': opened.execution.dtype}
    made = parts.make_parts({**settings, 'execution': execution}, opened.vocab, RunFolder(opened.folder))
    try:
      params = weights.placed(opened.weights.as_saved)
    except CheckpointError as error:
      raise ConfigError(f'{opened.folder}: {error}') from error
  else:
    made, params = parts.parts_of(opened.trunk, settings, opened.vocab), opened.loaded[1]
  names = opened.weights.labels if made.task.classes else ()
  predict = jax.jit(functools.partial(predict_step, task=made.task))
  return Asked(opened, settings['data'], made, params, made.task.class_names or names, predict)


def abilities(opened: Opened) -> list[str]:
  """What a folder can be asked, by the names of the methods of `Model`."""
  if opened.adapted:
    return _own(opened.resolved)
  if _reads_from_the_end(opened):
    return []
  kind, heads = opened.kind, opened.weights.heads
  if HEAD in heads and not opened.settings:
    return _own({'adapter': opened.weights.adapter})
  able = {
    'fill': ('mlm' in heads and kind == 'bidirectional') or kind == 'encoder-decoder',
    'score': ('mlm' in heads and kind == 'bidirectional') or kind == 'causal',
    'generate': kind in ('causal', 'encoder-decoder', 'prefix') or bool(opened.settings.get('second_vocab')),
  }
  return ['encode', *(name for name, there in able.items() if there)]


def _own(settings: Mapping[str, Any]) -> list[str]:
  """The abilities of a network with the head of a task; one of several has to be opened by itself, `one_part`."""
  reads, data = config.reads(settings), settings.get('data')
  own = ability(reads)
  by_rows = data is None or 'keep_unlabelled' in data  # of a release, rows are made by what its tokenizer says
  able = own and (by_rows or (own == 'generate' and 'part' not in reads))
  encodes = not one_part.own_trunks(settings) and not _turns_text(settings)
  return ['encode'] * encodes + ([own] if able and own else [])


def _reads_from_the_end(opened: Opened) -> bool:
  """Whether a network has learned from text that is read from its end, and so knows nothing of text as it stands."""
  return bool((opened.settings.get('data') or {}).get('reverse'))


def _turns_text(settings: Mapping[str, Any]) -> bool:
  """Whether the task of a run reads its texts from their ends, as its trunk has learned to."""
  return bool((build.unwrapped(settings).get('adapter') or {}).get('backward'))


def check_direction(opened: Opened, wanted: str) -> None:
  """Raises ConfigError where a trunk that has learned to read text from its end would read it as it stands."""
  if not opened.adapted and _reads_from_the_end(opened):
    raise ConfigError(
      f'{wanted}: {opened.folder} has learned from text that is read from its end (data.reverse), so that what it says '
      'of text as it stands means nothing: fine-tune it with adapter.backward, or load one that reads forward'
    )
  if wanted == 'encode' and opened.adapted and _turns_text(opened.resolved):
    raise ConfigError(
      f'{wanted}: {opened.folder} has learned from texts that are read from their ends (adapter.backward), so that its '
      'states of text as it stands mean nothing: ask it for classes, or load one that reads forward'
    )


def check(opened: Opened, wanted: str, *, part: str = 'plm_jax.load(FOLDER, part=NAME)') -> None:
  """Raises ConfigError where a folder cannot be asked something, with what it can be asked.

  Args:
    opened: the folder.
    wanted: a method of `Model`.
    part: how a user names one task of several, for messages.
  """
  able = abilities(opened)
  if wanted in able:
    return
  check_direction(opened, wanted)
  if opened.settings and (several := one_part.left_open(opened.settings)):
    raise ConfigError(f'{wanted}: {opened.folder} {several}, as in {part}')
  if opened.settings:
    what = f'was trained with {"adapter" if opened.adapted else "objective"} {opened.task.get("name")!r}'
  elif HEAD in opened.weights.heads:
    name = opened.weights.adapter.get('name')
    what = f'has a head of adapter {name!r}' if name else 'has a head that no adapter computes'
  else:
    words = '' if opened.kind != 'bidirectional' or opened.weights.heads else ' and without a head that predicts words'
    what = f'holds a pre-trained network without a task{words}'
  needed = next((adapter for adapter, own in _ADAPTERS.items() if own == wanted), None)
  cure = f'fine-tune it with adapter {needed!r}, or load a run that was' if needed else 'load another folder'
  raise ConfigError(f'{wanted}: {opened.folder} {what}. It can {", ".join(able)}; to {wanted}, {cure}')


def ability(reads: Collection[str]) -> Ability | None:
  """What a task does, by the keys of a batch that it reads; None for nothing that is asked here."""
  return next((able for key, able in _ABILITIES.items() if key in reads), None)


def predictions(
  asked: Asked, rows: Sequence[Mapping[str, Any]], *, wanted: Ability, batch_rows: int
) -> list[Predicted]:
  """What the task predicts of new rows, in their order; a question that is read in windows has one for each.

  Args:
    asked: the task.
    rows: with the fields of the run's data, one or more.
    wanted: what is asked of the run, for the bar.
    batch_rows: that are computed at a time.

  Raises:
    ConfigError: a row lacks a field, or holds something else in it.
  """
  found: dict[int, Predicted] = {}
  with files.temporary_folder() as folder:  # records are read from it
    source = _source(asked, rows, str(folder), batch_rows)
    with progress.Waiting(source.rows, wanted) as bar:
      for batch in itertools.islice(source.read(0), source.steps_per_epoch):
        made = rows_of(asked.predict(asked.params, batch, jax.random.key(0)))
        for row in made:
          row_id = int(row['row_id'])
          found[row_id] = Predicted(row, scoring.record_of(source, row_id, asked.made.task))
        bar.advance(len(made))
  return [found[row_id] for row_id in sorted(found)]


def _source(asked: Asked, rows: Sequence[Mapping[str, Any]], folder: str, batch_rows: int) -> Source:
  """The rows as a source of the run's kind, in batches of like length; they are read at once."""
  block = asked.block
  files.write_text(files.path(folder) / f'{_NAMED}.jsonl', ''.join(f'{json.dumps(row)}\n' for row in rows))
  if asked.names and 'label' in block:
    files.write_json(files.path(folder) / 'labels.json', {block['label']: list(asked.names)})
  changes: dict[str, Any] = {
    'path': folder, 'split': _NAMED, 'keep_unlabelled': True, 'on_bad_row': 'stop', 'shuffle': False,
    'batch_size': batches.rows_for(len(rows), rows=batch_rows),
    'per_class': None, 'per_target': False, 'buckets': batches.widths(block['length'], limit=block['length']),
    'target_buckets': (),
  }  # fmt: skip
  changed = {**block, **{name: value for name, value in changes.items() if name in block}}
  with errors.stage('the rows'):
    return parts.make_source(changed, asked.opened.vocab, seed=0, reader=asked.made, where='the rows')


def room(asked: Asked) -> int:
  """Tokens of text that a row of one field has room for."""
  template = build.template('data', asked.block, vocab=asked.opened.vocab)
  special = [part for part, _ in template.single if not isinstance(part, str)]
  return asked.block['length'] - len(special)
