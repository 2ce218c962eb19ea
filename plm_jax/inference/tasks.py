"""Predictions of a fine-tuned model on new examples.

New examples go through the data block of the run, as those of an evaluation without labels do: with the same fields,
layout and length. So an example gets the prediction that `plm-jax evaluate` writes for it. For a pretrained or
converted checkpoint with a task head, `released.py` builds a data block.
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
from plm_jax.core.types import PyTree, Source, Vocab
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
# the first of these batch keys that a task reads decides
_ABILITIES: Mapping[str, Ability] = {
  'target_tokens': 'generate', 'start': 'answer', 'heads': 'parse', 'labels': 'tag', 'tokens[bkl]': 'choose',
  'label': 'classify', 'classes': 'classify',
}  # fmt: skip
# for messages
_ADAPTERS = {'classify': 'classify', 'tag': 'tag', 'parse': 'parse', 'answer': 'span', 'choose': 'choose'}
_SPLIT = 'rows'  # name of the split of new examples


class OpenTask(NamedTuple):
  """The task of an open folder, ready to predict."""

  opened: Opened
  block: Mapping[str, Any]  # the data block of the task
  parts: Parts  # the task and its vocabulary
  params: PyTree  # of the task's model, on the device
  names: tuple[str, ...]  # of its classes; () without classes
  predict: Any  # the compiled `predict_step`

  @property
  def whole(self) -> list[str]:
    """Return the special tokens that texts for a pretrained folder may name."""
    vocab = self.opened.vocab
    return [] if self.opened.settings else [vocab.token(token) for token in vocab.special_ids]


class Predicted(NamedTuple):
  """The prediction for an example."""

  prediction: Mapping[str, Any]  # the keys of `Task.predict`
  record: Mapping[str, Any]  # the fields that the source stores for the example


def open_task(opened: Opened) -> OpenTask:
  """Open a folder's task with its parameters, or raise ConfigError."""
  settings = opened.resolved if opened.settings else released.settings(opened)
  if 'keep_unlabelled' not in settings['data']:
    raise ConfigError(
      f'{opened.folder}: no new examples can be built for data {settings["data"]["name"]!r}; '
      'write them to files and use plm-jax evaluate --predictions=FILE'
    )
  if (settings['data'].get('shots') or {}).get('count'):
    raise ConfigError(
      f'{opened.folder}: demonstrations are sampled from the training data (data.shots); write new examples to files '
      'and use plm-jax evaluate --predictions=FILE'
    )
  if opened.settings:
    execution = {**settings['execution'], 'dtype': opened.execution.dtype}
    task_parts = parts.make_parts({**settings, 'execution': execution}, opened.vocab, RunFolder(opened.folder))
    try:
      params = weights.placed(opened.weights.as_saved)
    except CheckpointError as error:
      raise ConfigError(f'{opened.folder}: {error}') from error
  else:
    vocab = opened.vocab.with_names()  # as transformers reads texts
    task_parts, params = parts.parts_of(opened.trunk, settings, vocab), opened.loaded[1]
  names = opened.weights.labels if task_parts.task.classes else ()
  predict = jax.jit(functools.partial(predict_step, task=task_parts.task))
  return OpenTask(opened, settings['data'], task_parts, params, task_parts.task.class_names or names, predict)


def abilities(opened: Opened) -> list[str]:
  """List the methods of `Model` that a folder supports."""
  if opened.adapted:
    return _own(opened.resolved)
  if _reads_from_the_end(opened):
    return []
  kind, heads = opened.kind, opened.weights.heads
  if HEAD in heads and not opened.settings:
    return _own({'adapter': opened.weights.adapter})
  masked = kind == 'bidirectional' and ('mlm' in heads or opened.trunk.PREDICTS_NEXT)
  supported = {
    'fill': masked or kind == 'encoder-decoder',
    'score': masked or kind == 'causal',
    'generate': kind in ('causal', 'encoder-decoder', 'prefix') or bool(opened.settings.get('second_vocab')),
  }
  return ['encode', *(name for name, is_supported in supported.items() if is_supported)]


def _own(settings: Mapping[str, Any]) -> list[str]:
  """List the methods of a task head; one of several opens alone."""
  reads, data = config.reads(settings), settings.get('data')
  method = ability(reads)
  by_rows = data is None or 'keep_unlabelled' in data  # a checkpoint has no data; its examples follow its tokenizer
  is_supported = method and (by_rows or (method == 'generate' and 'part' not in reads))
  encodes = not one_part.own_trunks(settings) and not _turns_text(settings)
  return ['encode'] * encodes + ([method] if is_supported and method else [])


def _reads_from_the_end(opened: Opened) -> bool:
  """Return True for a network pre-trained on reversed text only."""
  return bool((opened.settings.get('data') or {}).get('reverse'))


def _turns_text(settings: Mapping[str, Any]) -> bool:
  """Return True if the task reverses its texts for such a trunk."""
  return bool((build.unwrapped(settings).get('adapter') or {}).get('backward'))


def check_direction(opened: Opened, wanted: str) -> None:
  """Raise ConfigError if a trunk of reversed text would read forward text."""
  if not opened.adapted and _reads_from_the_end(opened):
    raise ConfigError(
      f'{wanted}: {opened.folder} was trained on reversed text (data.reverse): fine-tune it with adapter.backward, or '
      'load a model of forward text'
    )
  if wanted == 'encode' and opened.adapted and _turns_text(opened.resolved):
    raise ConfigError(
      f'{wanted}: {opened.folder} was trained on reversed text (adapter.backward): use classify, or load a model of '
      'forward text'
    )


def check(opened: Opened, wanted: str, *, part: str = 'plm_jax.load(FOLDER, part=NAME)') -> None:
  """Raise ConfigError unless a folder supports a method; messages name `part`."""
  supported = abilities(opened)
  if wanted in supported:
    return
  check_direction(opened, wanted)
  if opened.settings and (open_parts := one_part.left_open(opened.settings)):
    raise ConfigError(f'{wanted}: {opened.folder} {open_parts}, as in {part}')
  if opened.settings:
    reason = f'was trained with {"adapter" if opened.adapted else "objective"} {opened.task.get("name")!r}'
  elif HEAD in opened.weights.heads:
    name = opened.weights.adapter.get('name')
    reason = f'has a head of adapter {name!r}' if name else 'has a head without a matching adapter'
  else:
    words = '' if opened.kind != 'bidirectional' or opened.weights.heads else ' or masked-LM head'
    reason = f'holds a pre-trained network without a task head{words}'
  needed = _ADAPTERS.get(wanted)
  fix = f'fine-tune it with adapter {needed!r}' if needed else 'load another folder'
  raise ConfigError(f'{wanted}: {opened.folder} {reason}; it supports {", ".join(supported)}. To {wanted}, {fix}')


def ability(reads: Collection[str]) -> Ability | None:
  """Return the method of a task by its batch keys, or None."""
  return next((method for key, method in _ABILITIES.items() if key in reads), None)


def predictions(
  task: OpenTask, rows: Sequence[Mapping[str, Any]], *, wanted: Ability, batch_rows: int, vocab: Vocab | None = None
) -> list[Predicted]:
  """Predict new examples, which have the fields of the run's data.

  Predictions are in the order of the examples; a question that is read in windows has one per window. `vocab` reads the
  examples; None for that of the folder.

  Raises:
    ConfigError: a field of an example is missing or has the wrong type.
  """
  by_row: dict[int, Predicted] = {}
  with files.temporary_folder() as folder:  # the source reads records from it
    source = _source(task, rows, str(folder), batch_rows, vocab or task.parts.vocab)
    with progress.Waiting(source.rows, wanted) as bar:
      for batch in itertools.islice(source.read(0), source.steps_per_epoch):
        rows_of_batch = rows_of(task.predict(task.params, batch, jax.random.key(0)))
        for row in rows_of_batch:
          row_id = int(row['row_id'])
          by_row[row_id] = Predicted(row, scoring.record_of(source, row_id, task.parts.task))
        bar.advance(len(rows_of_batch))
  return [by_row[row_id] for row_id in sorted(by_row)]


def _source(task: OpenTask, rows: Sequence[Mapping[str, Any]], folder: str, batch_rows: int, vocab: Vocab) -> Source:
  """Build a source of the run's kind from examples, batched by length."""
  block = task.block
  files.write_text(files.path(folder) / f'{_SPLIT}.jsonl', ''.join(f'{json.dumps(row)}\n' for row in rows))
  if task.names and 'label' in block:
    files.write_json(files.path(folder) / 'labels.json', {block['label']: list(task.names)})
  changes: dict[str, Any] = {
    'path': folder, 'split': _SPLIT, 'keep_unlabelled': True, 'on_bad_row': 'stop', 'shuffle': False,
    'batch_size': batches.rows_for(len(rows), rows=batch_rows),
    'per_class': None, 'per_target': False, 'buckets': batches.widths(block['length'], limit=block['length']),
    'target_buckets': (),
  }  # fmt: skip
  changed = {**block, **{name: value for name, value in changes.items() if name in block}}
  with errors.stage('the examples'):
    return parts.make_source(changed, vocab, seed=0, reader=task.parts, where='the examples')


def room(block: Mapping[str, Any], vocab: Vocab) -> int:
  """Return the tokens of text that fit into a single-field example."""
  template = build.template('data', block, vocab=vocab)
  special = [part for part, _ in template.single if not isinstance(part, str)]
  return block['length'] - len(special)
