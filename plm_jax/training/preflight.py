"""What can be known of a run before a folder is claimed, text is tokenised or an array is made."""

import functools
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax

from plm_jax import config, errors, optim, sharding
from plm_jax.errors import ConfigError
from plm_jax.noise.keys import noise_root, with_step
from plm_jax.optim import groups
from plm_jax.plugins import build
from plm_jax.training import evaluation, feed, history, memory, metrics, scoring, sizes
from plm_jax.training.parts import Parts, check_labels, check_names, make_parts, make_vocab
from plm_jax.training.step import abstract_params, eval_step, state_maker
from plm_jax.types import BATCH, Labels, PyTree, Source, Task

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
  labels = {where: check_data(block, where=where, parts=parts) for where, block in config.of_data(settings).items()}
  with errors.stage('config'):
    check_names(labels)
  with sharding.use(layout):
    _check_shapes(settings, parts, layout)


def check_data(block: Settings, *, where: str, parts: Parts) -> Labels:
  """What the labels of a data block are.

  Raises:
    ConfigError: it names a split that is not there, has rows that cannot be used, or labels that the task has no class
      for.
  """
  with errors.stage(where):
    labels = build.look(block)
    if labels is not None:
      check_labels(parts.task, labels, path=block.get('path', block['name']))
    if labels is not None and labels.unlabelled:
      raise ConfigError(
        f'{where}.keep_unlabelled: some rows of {block.get("path", block["name"])} have no label, and nothing is '
        'trained or scored on them: leave it out here, and predict them with evaluate --predictions=FILE'
      )
  return labels or Labels()


def remark(settings: Settings, source: Source) -> None:
  """Logs a setting that can make no difference to the run, once its rows are counted."""
  seen, rows = settings['steps'] * settings['data']['batch_size'], source.rows
  if (settings['objective'] or {}).get('masking') == 'static' and seen <= rows:
    log.info(
      f"config.objective.masking='static' is the same as 'dynamic' here: {settings['steps']:,} steps see {seen:,} of "
      f'{rows:,} rows, none of them twice'
    )


def check_frozen(task: Task, settings: Settings, shapes: PyTree) -> None:
  """Raises ConfigError where weight decay would move parameters that the task keeps as they are."""
  scale, decay, steps = settings['optim']['scale'], settings['optim']['decay'], settings['steps'] or history.MOST_STEPS
  for path in groups.decayed(shapes, scale=scale, decay=decay, steps=steps):
    for pattern in task.frozen:
      if re.fullmatch(pattern, path):
        raise ConfigError(
          f'optim.decay would move {path}, which the task keeps as it is: begin optim.scale with ({pattern!r}, None), '
          "and end it with ('.*', 1.0)"
        )


def remark_groups(settings: Settings, shapes: PyTree) -> None:
  """Logs which part of the model trains, at which rate and from which step on, where that is not all of it alike.

  Args:
    settings: of the run.
    shapes: of its parameters.
  """
  scale, decay, steps = settings['optim']['scale'], settings['optim']['decay'], history.total(settings)
  found = groups.resolve(scale, shapes, steps=steps, what='scale')
  if {value for values in found.values() for value in values} != {1.0}:
    log.info(groups.table(shapes, scale=scale, decay=decay, steps=steps))


def _check_shapes(settings: Settings, parts: Parts, layout: sharding.Layout) -> None:
  """The parameters that `optim` speaks of, the metric of `best`, and memory, by shape alone."""
  memory.check_table(parts.trunk, settings)
  data, key = settings['data'], jax.random.key(settings['seed'])
  spec, read = batch_spec(parts, data), read_spec(parts, data)
  with errors.stage(parts.user):
    shapes = abstract_params(parts.task, spec)
  with errors.stage('optim'):
    tx = optim.make(params=shapes, steps=settings['steps'] or history.MOST_STEPS, **settings['optim'])
    check_frozen(parts.task, settings, shapes)
  state = state_maker(parts.task, tx, spec, layout=layout).abstract
  memory.check(memory.leaves(state, tx, read, layout=layout), parts.trunk, settings)
  for block in settings['eval'].values():
    scored = read_spec(parts, block['data'])
    memory.check(memory.leaves(state, tx, scored, layout=layout), parts.trunk, {'data': block['data']})
  prepared = jax.eval_shape(lambda batch: parts.task.prepare(noise_root(key), with_step(batch, 0)), spec)
  rows = layout.mesh.shape['data']
  for path, leaf in jax.tree_util.tree_leaves_with_path(prepared):
    one = memory.Leaf('prepared rows', jax.tree_util.keystr(path), leaf.shape, leaf.size * leaf.dtype.itemsize // rows)
    memory.check([one], parts.trunk, settings)
  scores = evaluation.asked(settings, parts.task)
  for name, names in scores.items():
    evaluation.check_scores(names, parts, batch_spec(parts, settings['eval'][name]['data']), where=f'eval.{name}')
  if settings['best'] is not None:
    name = settings['best'][0].partition('/')[0]
    scored = batch_spec(parts, settings['eval'][name]['data'])
    check_best(
      settings['best'],
      scored,
      shapes,
      task=parts.task,
      scores=scores[name],
      step=functools.partial(eval_step, task=parts.task),
    )


def batch_spec(parts: Parts, block: Settings) -> dict[str, jax.ShapeDtypeStruct]:
  """Shapes and dtypes of the batches of a data block with every key that it may give and that the task may read."""
  given = [key for key in config.gives(block) or () if key in BATCH]
  return _spec((*given, *parts.reads), block)


def read_spec(parts: Parts, block: Settings) -> dict[str, jax.ShapeDtypeStruct]:
  """The same with the keys that the task reads, and no others."""
  return _spec(parts.reads, block)


def _spec(keys: Collection[str], block: Settings) -> dict[str, jax.ShapeDtypeStruct]:
  inside = [block, *(block.get('parts') or {}).values()]
  targets = max((one.get('target_length') or 0 for one in inside), default=0)
  return sizes.batch_spec(keys, rows=block['batch_size'], length=block['length'], targets=targets or None)


def check_best(
  best: tuple[str, str], spec: Mapping[str, Any], params: Any, *, task: Task, scores: Sequence[str], step: Any
) -> None:
  """Raises ConfigError where `best` names a metric that its evaluation does not give; nothing is computed.

  Args:
    best: of the settings.
    spec: shapes of a batch of the evaluation.
    params: shapes of the parameters.
    task: what is evaluated.
    scores: names of the scores of the evaluation.
    step: `eval_step` of the task, jitted or not.
  """
  evaluation, _, name = best[0].partition('/')
  carry = jax.eval_shape(lambda: task.init_carry(spec['row_id'].shape[0]))
  sums, _ = jax.eval_shape(step, params, dict(spec), carry, jax.random.key(0))
  known = sorted({*sums, *task.summary(dict.fromkeys(sums, 1.0)), *scoring.metrics(scores)})
  errors.check_choice('config.best', 'metric', name, known, place=f'evaluation {evaluation!r}')
