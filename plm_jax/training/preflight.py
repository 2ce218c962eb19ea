"""What can be known of a run before a folder is claimed, text is tokenised or an array is made."""

import functools
import logging
from collections.abc import Collection, Mapping
from typing import Any

import jax

from plm_jax import config, errors, optim, sharding
from plm_jax.cli import signals
from plm_jax.errors import ConfigError
from plm_jax.noise.keys import noise_root, with_step
from plm_jax.plugins import build
from plm_jax.training import feed, history, memory, metrics, sizes
from plm_jax.training.parts import Parts, check_labels, check_sources, make_parts, make_vocab
from plm_jax.training.step import abstract_params, eval_step, state_maker
from plm_jax.types import BATCH, Source, Task

log = logging.getLogger(__name__)

Settings = Mapping[str, Any]


def check(settings: Settings, *, scored: Collection[str] = ()) -> None:
  """Raises ConfigError for a run that could not begin, or would not fit; nothing is written.

  Args:
    settings: of the run.
    scored: further metrics that evaluations have to give, such as 'test/accuracy'.
  """
  with errors.stage('config.log'):
    metrics.check_sinks(settings['log'])
  check_sources(settings['init_from'])
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
  check_data(config.of_data(settings), parts)
  with sharding.use(layout):
    _check_shapes(settings, parts, layout, scored=scored)


def check_data(blocks: Mapping[str, Settings], parts: Parts) -> None:
  """Raises ConfigError where a data block names a split that is not there, or labels that the task has no class for.

  Nothing is tokenised. Every part of a mixture is looked at.

  Args:
    blocks: place in the config, such as 'eval.test.data' -> data block.
    parts: what will read the rows.
  """
  numbers: dict[str, tuple[int, str]] = {}  # name of a class -> its number, and where it has that
  for where, block in blocks.items():
    with errors.stage(where), signals.raising():
      for inner, labels in build.look(block).items():
        check_labels(parts.task, labels, path=inner or block.get('path', block['name']))
        place = f'{where}.{inner}'.removesuffix('.')
        for number, name in enumerate(labels.names if parts.task.classes else ()):
          known, other = numbers.setdefault(name, (number, place))
          if known != number:
            raise ValueError(f'{place}: label {name!r} is class {number}, and class {known} of {other}: number alike')


def remark(settings: Settings, source: Source) -> None:
  """Logs a setting that can make no difference to the run, once its rows are counted."""
  seen, rows = settings['steps'] * settings['data']['batch_size'], source.rows
  if (settings['objective'] or {}).get('masking') == 'static' and seen <= rows:
    log.info(
      f"config.objective.masking='static' is the same as 'dynamic' here: {settings['steps']:,} steps see {seen:,} of "
      f'{rows:,} rows, none of them twice'
    )


def _check_shapes(settings: Settings, parts: Parts, layout: sharding.Layout, *, scored: Collection[str]) -> None:
  """The parameters that `optim` speaks of, the metrics of evaluations, and memory, by shape alone."""
  memory.check_table(parts.trunk, settings)
  data, key = settings['data'], jax.random.key(settings['seed'])
  spec, read = batch_spec(parts, data), sizes.batch_spec(parts.reads, rows=data['batch_size'], length=data['length'])
  with errors.stage(parts.user):
    shapes = abstract_params(parts.task, spec)
  with errors.stage('optim'):
    tx = optim.make(params=shapes, steps=settings['steps'] or history.MOST_STEPS, **settings['optim'])
  state = state_maker(parts.task, tx, spec, layout=layout).abstract
  memory.check(memory.leaves(state, tx, read, layout=layout), parts.trunk, settings)
  for block in settings['eval'].values():
    batch = sizes.batch_spec(parts.reads, rows=block['data']['batch_size'], length=block['data']['length'])
    memory.check(memory.leaves(state, tx, batch, layout=layout), parts.trunk, {'data': block['data']})
  prepared = jax.eval_shape(lambda batch: parts.task.prepare(noise_root(key), with_step(batch, 0)), spec)
  rows = layout.mesh.shape['data']
  for path, leaf in jax.tree_util.tree_leaves_with_path(prepared):
    one = memory.Leaf('prepared rows', jax.tree_util.keystr(path), leaf.shape, leaf.size * leaf.dtype.itemsize // rows)
    memory.check([one], parts.trunk, settings)
  step = functools.partial(eval_step, task=parts.task)
  asked = [(settings['best'], 'config.best')] if settings['best'] is not None else []
  for best, label in [*asked, *(((metric, 'max'), 'scores') for metric in scored)]:
    of_evaluation = batch_spec(parts, settings['eval'][best[0].partition('/')[0]]['data'])
    check_best(best, of_evaluation, shapes, task=parts.task, step=step, label=label)


def batch_spec(parts: Parts, block: Settings) -> dict[str, jax.ShapeDtypeStruct]:
  """Shapes and dtypes of the batches of a data block with every key that it may give and that the task may read."""
  given = [key for key in config.gives(block) or () if key in BATCH]
  return sizes.batch_spec((*given, *parts.reads), rows=block['batch_size'], length=block['length'])


def check_best(
  best: tuple[str, str], spec: Mapping[str, Any], params: Any, *, task: Task, step: Any, label: str = 'config.best'
) -> None:
  """Raises ConfigError where `best` names a metric that its evaluation does not give; nothing is computed.

  Args:
    best: of the settings.
    spec: shapes of a batch of the evaluation.
    params: shapes of the parameters.
    task: what is evaluated.
    step: `eval_step` of the task, jitted or not.
    label: what asks for it.
  """
  evaluation, _, name = best[0].partition('/')
  carry = jax.eval_shape(lambda: task.init_carry(spec['row_id'].shape[0]))
  sums, _ = jax.eval_shape(step, params, dict(spec), carry, jax.random.key(0))
  known = sorted({*sums, *task.summary(dict.fromkeys(sums, 1.0))})
  errors.check_choice(label, 'metric', name, known, place=f'evaluation {evaluation!r}')
