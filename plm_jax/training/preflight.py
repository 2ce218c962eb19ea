"""What can be known of a run before a folder is claimed, text is tokenised or an array is made."""

import functools
import logging
from collections.abc import Mapping
from typing import Any

import jax

from plm_jax import config, errors, optim, sharding
from plm_jax.errors import ConfigError
from plm_jax.noise.keys import noise_root, with_step
from plm_jax.plugins import build
from plm_jax.training import feed, history, memory, metrics, sizes
from plm_jax.training.parts import Parts, check_labels, make_parts, make_vocab
from plm_jax.training.step import abstract_params, eval_step, state_maker
from plm_jax.types import BATCH, Source, Task

log = logging.getLogger(__name__)

Settings = Mapping[str, Any]


def check(settings: Settings) -> None:
  """Raises ConfigError for a run that could not begin, or would not fit; nothing is written."""
  with errors.stage('config.log'):
    metrics.check_sinks(settings['log'])
  parts = make_parts(settings, make_vocab(settings))
  with errors.stage('sharding'):
    mesh = sharding.make_mesh(settings['sharding']['mesh'])
    layout = sharding.make_layout(mesh, settings['sharding']['rules'])
  feed.rows_per_device(settings['data']['batch_size'], accumulate=settings['accumulate'], mesh=mesh)
  for name, block in settings['eval'].items():
    if block['data']['batch_size'] % mesh.shape['data']:
      raise ConfigError(
        f'config.eval.{name}.data.batch_size={block["data"]["batch_size"]}: cannot be cut into {mesh.shape["data"]} '
        'devices of one size each: make it a multiple'
      )
  for where, block in config.of_data(settings).items():
    check_data(block, where=where, parts=parts)
  with sharding.use(layout):
    _check_shapes(settings, parts, layout)


def check_data(block: Settings, *, where: str, parts: Parts) -> None:
  """Raises ConfigError where a data block names a split that is not there, or labels that the task has no class for."""
  with errors.stage(where):
    labels = build.look(block)
    if labels is not None:
      check_labels(parts.task, labels, path=block.get('path', block['name']))


def remark(settings: Settings, source: Source) -> None:
  """Logs a setting that can make no difference to the run, once its rows are counted."""
  seen, rows = settings['steps'] * settings['data']['batch_size'], source.rows
  if (build.unwrapped(settings)['objective'] or {}).get('masking') == 'static' and seen <= rows:
    log.info(
      f"config.objective.masking='static' is the same as 'dynamic' here: {settings['steps']:,} steps see {seen:,} of "
      f'{rows:,} rows, none of them twice'
    )


def _check_shapes(settings: Settings, parts: Parts, layout: sharding.Layout) -> None:
  """The parameters that `optim` speaks of, the metric of `best`, and memory, by shape alone."""
  memory.check_table(parts.trunk, settings)
  data, key = settings['data'], jax.random.key(settings['seed'])
  spec, read = batch_spec(parts, data), sizes.batch_spec(parts.reads, rows=data['batch_size'], length=data['length'])
  with errors.stage(parts.user):
    shapes = abstract_params(parts.task, spec)
  with errors.stage('optim'):
    steps = settings['steps'] or history.MOST_STEPS
    tx = optim.make(params=shapes, steps=steps, trains=parts.task.trains, **settings['optim'])
  state = state_maker(parts.task, tx, spec, layout=layout).abstract
  memory.check(memory.leaves(state, tx, read, layout=layout), parts.trunk, settings)
  for block in settings['eval'].values():
    scored = sizes.batch_spec(parts.reads, rows=block['data']['batch_size'], length=block['data']['length'])
    memory.check(memory.leaves(state, tx, scored, layout=layout), parts.trunk, {'data': block['data']})
  prepared = jax.eval_shape(lambda batch: parts.task.prepare(noise_root(key), with_step(batch, 0)), spec)
  rows = layout.mesh.shape['data']
  for path, leaf in jax.tree_util.tree_leaves_with_path(prepared):
    one = memory.Leaf('prepared rows', jax.tree_util.keystr(path), leaf.shape, leaf.size * leaf.dtype.itemsize // rows)
    memory.check([one], parts.trunk, settings)
  if settings['best'] is not None:
    name = settings['best'][0].partition('/')[0]
    check_best(
      settings['best'],
      batch_spec(parts, settings['eval'][name]['data']),
      shapes,
      task=parts.task,
      step=functools.partial(eval_step, task=parts.task),
    )


def batch_spec(parts: Parts, block: Settings) -> dict[str, jax.ShapeDtypeStruct]:
  """Shapes and dtypes of the batches of a data block with every key that it may give and that the task may read."""
  given = [key for key in config.gives(block) or () if key in BATCH]
  return sizes.batch_spec((*given, *parts.reads), rows=block['batch_size'], length=block['length'])


def check_best(best: tuple[str, str], spec: Mapping[str, Any], params: Any, *, task: Task, step: Any) -> None:
  """Raises ConfigError where `best` names a metric that its evaluation does not give; nothing is computed.

  Args:
    best: of the settings.
    spec: shapes of a batch of the evaluation.
    params: shapes of the parameters.
    task: what is evaluated.
    step: `eval_step` of the task, jitted or not.
  """
  evaluation, _, name = best[0].partition('/')
  carry = jax.eval_shape(lambda: task.init_carry(spec['row_id'].shape[0]))
  sums, _ = jax.eval_shape(step, params, dict(spec), carry, jax.random.key(0))
  known = sorted({*sums, *task.summary(dict.fromkeys(sums, 1.0))})
  errors.check_choice('config.best', 'metric', name, known, place=f'evaluation {evaluation!r}')
