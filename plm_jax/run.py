"""What `train`, `evaluate` and `fill` share: the parts of a run, made from its settings.

Settings are the plain dict that `config.resolve` returns and `config.json` holds. They stop here: the parts take
keywords.
"""

import hashlib
import itertools
import logging
import math
import pathlib
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from plm_jax import build, config, losses, metrics, param_files, sharding, weights
from plm_jax.layers import positions
from plm_jax.text import tokenizer
from plm_jax.types import Array, Batch, Execution, PyTree, Source, Task, Vocab
from plm_jax.weights import release

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
  with config.stage('vocab'):
    if own is None or not tokenizer.exists(own):
      return build.make('text', settings['vocab'])
    kept = tokenizer.load(own)
    try:
      asked = build.make('text', settings['vocab'])
    except FileNotFoundError:
      return kept
  if asked.digest != kept.digest:
    raise config.ConfigError(
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
  with config.stage('model'):
    trunk = build.make('models', settings['model'], vocab_size=vocab.size, execution=execution)
  return parts_of(trunk, settings, vocab)


def parts_of(trunk: nn.Module, settings: Settings, vocab: Vocab) -> Parts:
  """The task of the settings on a trunk that is there already; refuses what `make_parts` does."""
  role = 'objective' if settings.get('objective') else 'adapter'
  with config.stage(role):
    task = build.make(f'{role}s', settings[role], trunk=trunk, vocab=vocab)
  blocks = {'data': settings['data']} | {f'eval.{name}.data': block['data'] for name, block in settings['eval'].items()}
  for where, block in blocks.items():
    check_length(trunk, task.row_length(block['length']), where=where)
  return Parts(vocab, trunk, task)


def check_length(trunk: nn.Module, length: int, *, where: str) -> None:
  """Raises ConfigError where `where` gives rows that are longer than a learned position table of the trunk."""
  if tables := trunk.position_rows.values():
    with config.stage(where):
      positions.check_length(length, max_length=min(map(len, tables)), model=type(trunk).__name__)


def host_share(layout: sharding.Layout) -> tuple[int, int]:
  """Which part of each batch this process feeds, of how many equal ones: (number, parts).

  Processes whose devices hold the same rows, as where a model is cut over several of them, feed the same part.
  """
  axis = layout.rules.get('batch')
  if axis is None:
    return 0, 1
  devices = np.moveaxis(layout.mesh.devices, layout.mesh.axis_names.index(axis), 0)  # [places, ...]
  mine = [
    place
    for place, there in enumerate(devices)
    if any(device.process_index == jax.process_index() for device in there.flat)
  ]
  if mine[0] % len(mine) or mine[-1] - mine[0] != len(mine) - 1:
    raise config.ConfigError(
      f'sharding.mesh: process {jax.process_index()} has places {mine} along {axis!r}, and its rows must be next to '
      'each other: choose sizes that divide the devices of a process, or that they divide'
    )
  return mine[0] // len(mine), len(devices) // len(mine)


def simulated(mesh: Mesh) -> bool:
  """Whether the devices are several of the CPU: their threads starve where steps queue up, so wait for each."""
  return mesh.size > 1 and jax.default_backend() == 'cpu'


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
  with config.stage(where):
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
  folder = pathlib.Path(source).expanduser()
  folder = folder if release.is_release(folder) else folder / 'vocab'
  if not tokenizer.exists(folder):
    return
  added = tokenizer.check_compatible(vocab, tokenizer.load(folder))
  if added:
    log.info(f'{len(added)} tokens are new since {source}: {", ".join(added[:10])}{" ..." if len(added) > 10 else ""}')


def load_params(source: str, *, step: Any = 'newest', subtree: str | None = None) -> PyTree:
  """`param_files.load_params`, which also reads a Hugging Face folder."""
  folder = pathlib.Path(source).expanduser()
  if not release.is_release(folder):
    return param_files.load_params(source, step=step, subtree=subtree)
  reader = weights.Reader(release.Release(folder))
  prefix = f'{subtree}/' if subtree else ''
  found = {path.removeprefix(prefix): reader.leaf(path) for path in reader.shapes if path.startswith(prefix)}
  if not found:
    raise ValueError(f'{folder} has nothing under {subtree!r}; there is {", ".join(("trunk", *reader.heads))}')
  return param_files.nested(found)


def first_batches_digest(source: Source, *, count: int = 10) -> str:
  """SHA-256 of the first batches of a source: names, shapes, types and bytes."""
  digest = hashlib.sha256()
  for batch in itertools.islice(source.read(0), count):
    for name in sorted(batch):
      digest.update(f'{name} {batch[name].dtype} {batch[name].shape}'.encode())
      digest.update(np.ascontiguousarray(batch[name]).tobytes())
  return digest.hexdigest()


def to_devices(batches: Iterator[dict[str, np.ndarray]], place: NamedSharding, *, ahead: int = 2) -> Iterator[Any]:
  """(host batch, global device batch) pairs, with copies under way for the next `ahead` ones."""
  queue: deque[tuple[dict[str, np.ndarray], Batch]] = deque()

  def put(batch: dict[str, np.ndarray]) -> None:
    queue.append((batch, {k: jax.make_array_from_process_local_data(place, v) for k, v in batch.items()}))

  for batch in itertools.islice(batches, ahead):
    put(batch)
  while queue:
    for batch in itertools.islice(batches, 1):
      put(batch)
    yield queue.popleft()


def evaluate(
  source: Source,
  params: PyTree,
  key: Array,
  *,
  task: Task,
  step: Callable[..., Any],
  layout: sharding.Layout,
  units: int | None = None,
) -> dict[str, float]:
  """Exact means over every row of a source, once, with the task's derived numbers.

  Args:
    source: its `once` is read.
    params: of the task's model.
    key: root key of the run.
    task: what is scored.
    step: the compiled `eval_step` of the task.
    layout: mesh and rules.
    units: of the text, see `schema.Evaluation`.
  """
  carry = task.init_carry(source.spec['row_id'].shape[0])
  totals: dict[str, tuple[Array, Array]] | None = None
  for _, batch in to_devices(source.once(), sharding.batch_sharding(layout)):
    sums, carry = step(params, batch, carry, key)
    totals = sums if totals is None else jax.tree.map(lambda a, b: a + b, totals, sums)
    if layout.mesh.size > 1:
      jax.block_until_ready(totals)  # queued collectives starve simulated devices
  if totals is None:
    raise config.ConfigError('data: the evaluation split has no rows')
  totals = jax.device_get(totals)
  means = metrics.mean(totals)
  scores = {**means, **task.summary(means)}
  if units is not None:
    nats = float(totals['loss'][0]) / units
    scores |= {'unit_perplexity': losses.perplexity(nats), 'bits_per_unit': nats / math.log(2)}
  return scores
