"""What `train`, `evaluate` and `fill` share: the parts of a run, made from its settings.

Settings are the plain dict that `config.resolve` returns and `config.json` holds. They stop here: the parts take
keywords.
"""

import logging
import pathlib
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import flax.linen as nn

from plm_jax import errors, weights
from plm_jax.errors import ConfigError
from plm_jax.layers import positions
from plm_jax.plugins import build
from plm_jax.text import tokenizer
from plm_jax.types import Execution, Source, Task, Vocab

log = logging.getLogger('plm_jax')

Settings = Mapping[str, Any]


class Parts(NamedTuple):
  """A vocabulary, a trunk and the task on it."""

  vocab: Vocab
  trunk: nn.Module
  task: Task


def make_vocab(settings: Settings, workdir: pathlib.Path | None = None) -> Vocab:
  """The run's own vocabulary where the run folder has one, else the one that the settings name.

  Raises:
    ConfigError: the two differ: a run keeps the ids that it began with.
  """
  own = workdir / 'vocab' if workdir else None
  with errors.stage('vocab'):
    if own is None or not tokenizer.exists(own):
      return build.make('text', settings['vocab'])
    kept = tokenizer.load(own)
    try:
      asked = build.make('text', settings['vocab'])
    except FileNotFoundError:
      return kept
  if asked.digest != kept.digest:
    raise ConfigError(
      f'vocab: {workdir} was begun with vocabulary {kept.digest[:12]}, and {settings["vocab"]["path"]} holds '
      f'{asked.digest[:12]} now: name another --workdir, or put back what was there ({own} has a copy)'
    )
  return kept


def make_parts(settings: Settings, vocab: Vocab) -> Parts:
  """The trunk and its task.

  Refused here, before data and parameters: an objective that the trunk cannot serve, and rows longer than its tables of
  learned positions.
  """
  execution = Execution(**settings['execution'])
  with errors.stage('model'):
    trunk = build.make('models', settings['model'], vocab_size=vocab.size, execution=execution)
  return parts_of(trunk, settings, vocab)


def parts_of(trunk: nn.Module, settings: Settings, vocab: Vocab) -> Parts:
  """The task of the settings on a trunk that is there already; refuses what `make_parts` does."""
  role = 'objective' if settings.get('objective') else 'adapter'
  with errors.stage(role):
    task = build.make(f'{role}s', settings[role], trunk=trunk, vocab=vocab)
  blocks = {'data': settings['data']} | {f'eval.{name}.data': block['data'] for name, block in settings['eval'].items()}
  for where, block in blocks.items():
    check_length(trunk, task.row_length(block['length']), where=where)
  return Parts(vocab, trunk, task)


def check_length(trunk: nn.Module, length: int, *, where: str) -> None:
  """Raises ConfigError where `where` gives rows that are longer than a learned position table of the trunk."""
  if tables := trunk.position_rows.values():
    with errors.stage(where):
      positions.check_length(length, max_length=min(map(len, tables)), model=type(trunk).__name__)


def make_source(
  block: Settings,
  vocab: Vocab,
  *,
  seed: int,
  share: tuple[int, int] = (0, 1),
  task: Task | None = None,
  where: str = 'data',
) -> Source:
  """The rows of a data block: the part of each batch that `host_share` says, or whole batches.

  Refused here: labels that `task` has no class for. Messages name the block by `where`.
  """
  host, hosts = share
  with errors.stage(where):
    source = build.make('data', block, vocab=vocab, seed=seed, host=host, hosts=hosts)
    if task is not None:
      check_labels(task, source, path=block.get('path', block['name']))
  return source


def make_evaluations(
  settings: Settings,
  vocab: Vocab,
  *,
  share: tuple[int, int] = (0, 1),
  task: Task,
  names: Collection[str] | None = None,
) -> dict[str, Source]:
  """The rows of each evaluation, or of those named."""
  chosen = settings['eval'] if names is None else names
  return {
    name: make_source(
      settings['eval'][name]['data'],
      vocab,
      seed=settings['seed'],
      share=share,
      task=task,
      where=f'eval.{name}.data',
    )
    for name in chosen
  }


def check_labels(task: Task, source: Source, *, path: str) -> None:
  """Raises where the labels of a source are not those that the adapter tells apart."""
  if 0 < task.classes < source.classes:
    raise ValueError(
      f'labels of {path} reach {source.classes - 1}, and the adapter has {task.classes} classes, 0 to '
      f'{task.classes - 1}: raise adapter.classes, or name all adapter.tags'
    )
  if task.class_names and source.names and task.class_names != source.names:
    raise ValueError(f'labels of {path} are {source.names}, in this order, and adapter.tags={task.class_names}')


def check_vocab_of(source: str, vocab: Vocab) -> None:
  """Raises where parameters in `source` were trained with ids that are not those of `vocab`; lists ids that are new."""
  folder = weights.open(source).vocab
  if not tokenizer.exists(folder):
    return
  added = tokenizer.check_compatible(vocab, tokenizer.load(folder))
  if added:
    log.info(f'{len(added)} tokens are new since {source}: {", ".join(added[:10])}{" ..." if len(added) > 10 else ""}')
