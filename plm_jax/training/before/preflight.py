"""Checks of a run before a folder is locked, text is tokenised or an array is made."""

import functools
import itertools
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax import config, optim
from plm_jax.checkpoint import Leaf
from plm_jax.cli import signals
from plm_jax.config import build, signatures
from plm_jax.core import errors, param_paths, sharding
from plm_jax.core.batch import BATCH
from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Array, Example, Labels, PyTree, Source, Task, Vocab
from plm_jax.noise.keys import noise_root, with_step
from plm_jax.optim import groups, rows, rules
from plm_jax.runs import history, metrics, scoring
from plm_jax.training import evaluation, feed
from plm_jax.training.cost import memory, sizes
from plm_jax.training.init_sources import check_sources
from plm_jax.training.parts import (
  Parts,
  check_labels,
  check_names,
  make_layout,
  make_optimiser,
  make_parts,
  make_template,
  make_vocab,
  parts_of,
)
from plm_jax.training.step import Maker, abstract_params, bind, eval_step, state_maker, step_rng
from plm_jax.weights import task_heads, writer

log = logging.getLogger(__name__)

MANY_UNKNOWN = 0.2  # share of tokens from which a vocabulary probably does not fit
FIRST = 10  # batches that are looked at for a target; fewer may have none by chance
Settings = Mapping[str, Any]


def check(settings: Settings, *, scored: Collection[str] = ()) -> None:
  """Raise ConfigError for runs that cannot begin or fit; write nothing.

  `scored` are further metrics that evaluations have to give, such as 'test/accuracy'.
  """
  # checks that read the config only
  _check_watched(settings)
  _check_memory(settings)
  with errors.stage('log'):
    metrics.check_sinks(settings['log'])
  check_sources(settings['init_from'])
  # the task and the mesh
  parts = with_evaluations(settings, make_parts(settings, make_vocab(settings)))
  layout = make_layout(settings)
  feed.rows_per_device(settings['data']['batch_size'], accumulate=settings['accumulate'], mesh=layout.mesh)
  feed.check_evaluations(settings['eval'], mesh=layout.mesh)
  # the heads of the data files
  labels = look(config.of_data(settings), parts)
  scores = evaluation.asked(settings, parts)
  anyway = {f'eval.{name}.data' for name, names in scores.items() if scoring.takes_unlabelled(names, parts.task)}
  for where, found in labels.items():
    if found.unlabelled and where not in anyway:
      block = config.of_data(settings)[where]
      while name := next((name for name, one in {**found.parts, **found.mixed}.items() if one.unlabelled), None):
        where, block, found = f'{where}.parts.{name}', block['parts'][name], ({**found.parts, **found.mixed})[name]
      raise ConfigError(
        f'{where}.keep_unlabelled: some rows of {block.get("path", block["name"])} have no label, and nothing is '
        'trained or scored on them: leave it out here, and predict them with evaluate --predictions=FILE'
      )
  with errors.stage('config'):
    check_names({place: one for where, found in labels.items() for place, one in _each(where, found)})
  # every shape, without computing
  with sharding.use(layout):
    _check_shapes(settings, parts, layout, scored=scored)
  check_scored_rows(settings, parts, labels)


def check_scored_rows(settings: Settings, parts: Parts, labels: Mapping[str, Labels]) -> None:
  """Raise ConfigError if a score refuses a row of its data."""
  # scores of the head, such as SQuAD's, refuse rows of training too; rows without labels are only predicted
  names = {'data': parts.task.scores} | {
    f'eval.{name}.data': scores for name, scores in evaluation.asked(settings, parts).items()
  }
  for where, found in labels.items():
    task = parts.at(where).task
    if not found.unlabelled or scoring.takes_unlabelled(names[where], task):
      scoring.check_rows(names[where], found, task, where=where)


def _check_watched(settings: Settings) -> None:
  """Raise ConfigError if the optimiser waits for an unset metric."""
  rule, best = settings['optim'], settings['best']
  mean_waits = rule.get('name') == 'asgd' and rule.get('start') is None
  waits = {
    "schedule='plateau'": (rule.get('schedule') == 'plateau', 'choose another optim.schedule'),
    "name='asgd' without optim.start": (mean_waits, 'set optim.start to the update from which the mean is taken'),
  }
  for asked, (there, fix) in waits.items():
    if there and best is None:
      raise ConfigError(
        f'optim.{asked} waits for the metric of best, which is not set, and would never act: set '
        f"best, as in ('validation/loss', 'min'), or {fix}. Evaluations: {', '.join(settings['eval']) or 'none'}"
      )
  least = (rule.get('nonmonotone') or rules.NONMONOTONE) + 2
  if mean_waits and settings['steps'] is not None:
    count = settings['steps'] // config.steps_between(settings, best[0].partition('/')[0])
    if count < least:
      log.warning(
        f'optim: the mean of asgd cannot begin before evaluation {least}, and the run has {count}: it is SGD to '
        'its end. A smaller eval_every or optim.start changes that.'
      )
  if rule.get('schedule') == 'plateau' and rule.get('mode', 'min') != best[1]:
    raise ConfigError(
      f'optim.mode={rule.get("mode", "min")!r} is not the way of best={tuple(best)!r}: choices are min, '
      f'max, and both have to be the same; set optim.mode={best[1]!r}'
    )


def _check_memory(settings: Settings) -> None:
  """Raise ConfigError if a carried state would read tokens twice."""
  objective, data = settings['objective'] or {}, settings['data']
  carries = signatures.literal(f'objectives.{objective["name"]}', 'CARRIES') if objective else None
  if carries is None or not objective.get(carries):
    return
  if data.get('stride') not in (None, data.get('length')):
    raise ConfigError(
      f'data.stride={data["stride"]}: rows of {data["length"]} tokens overlap, and objective.{carries}=True carries '
      'the state after each into the next, which would read tokens twice: leave stride out'
    )
  if data.get('second_segment'):
    raise ConfigError(
      f'data.second_segment=True puts two texts into a row, and objective.{carries}=True reads rows as one text: '
      'leave one of them out'
    )


def look(blocks: Mapping[str, Settings], parts: Parts) -> dict[str, Labels]:
  """Return the labels of data blocks before anything is tokenised.

  Raises ConfigError: a block names a split that is not there, has rows that cannot be used, or labels that the task has
  no class for.

  Args:
    blocks: place in the config, such as 'eval.test.data' -> data block.
  """
  found: dict[str, Labels] = {}
  for where, block in blocks.items():
    with errors.stage(where), signals.raising():
      found[where] = build.look(block) or Labels()
      check_labels(parts.at(where).task, found[where], path=block.get('path', block['name']))
  return found


def _each(where: str, labels: Labels) -> Iterator[tuple[str, Labels]]:
  """Yield the place and labels of each source in a block."""
  if not labels.mixed:
    yield where, labels
  for name, inner in labels.mixed.items():
    yield from _each(f'{where}.parts.{name}', inner)


def remark_unknown(batches: Sequence[Mapping[str, np.ndarray]], vocab: Vocab) -> None:
  """Log the share of tokens that the vocabulary does not know."""
  rows = [batch['tokens'] for batch in batches if 'tokens' in batch]
  if vocab.unk_id is None or not rows:
    return
  real = np.concatenate([tokens[tokens != vocab.pad_id] for tokens in rows])
  share = float((real == vocab.unk_id).mean()) if len(real) else 0.0
  level = logging.WARNING if share > MANY_UNKNOWN else logging.INFO
  name = vocab.token(vocab.unk_id)
  log.log(level, f'{share:.2%} of {len(real):,} tokens in the first {len(rows)} batches are unknown ({name})')


def remark(settings: Settings, source: Source) -> None:
  """Log a setting without effect, once examples are counted."""
  seen, rows = settings['steps'] * settings['data']['batch_size'], source.rows
  if (build.unwrapped(settings)['objective'] or {}).get('masking') == 'static' and seen <= rows:
    log.info(
      f"objective.masking='static' is the same as 'dynamic' here: {settings['steps']:,} steps see {seen:,} of "
      f'{rows:,} rows, none of them twice'
    )


def check_targets(settings: Settings, parts: Parts, source: Source, *, layout: sharding.Layout) -> None:
  """Raise ConfigError if no token is predicted in the first batches.

  Targets are counted only if a rate is 0, since a function is compiled for it. Objectives that learn from unchanged
  tokens, and mixtures, always have targets.
  """
  objective = build.unwrapped(settings)['objective']
  where = next(_rates_of_0(objective, 'objective'), None) if objective else None
  if where is None:
    return
  key, count = jax.random.key(settings['seed']), jax.jit(functools.partial(_targets, parts.task, source.spec))
  batches = feed.to_devices(source.read(0), sharding.batch_sharding(layout))
  if not any(float(count(batch, key)) for _, batch in itertools.islice(batches, FIRST)):
    raise ConfigError(
      f'{where}=0: {parts.user} has nothing to predict in the first {FIRST} batches, and nothing would be trained: set '
      'a rate above 0'
    )


def _rates_of_0(block: Any, where: str) -> Iterator[str]:
  """Yield the keys of rates that are 0 in a block."""
  inside = block.items() if isinstance(block, Mapping) else enumerate(block) if isinstance(block, list | tuple) else ()
  for key, value in inside:
    if key == 'rate' and value == 0:
      yield f'{where}.{key}'
    yield from _rates_of_0(value, f'{where}.{key}')


def _targets(task: Task, spec: Mapping[str, jax.ShapeDtypeStruct], batch: Mapping[str, Array], key: Array) -> Array:
  """Compute a batch's loss weight, f32[], without running the model."""
  shapes, rng = abstract_params(task, spec), step_rng(key, jnp.zeros((), jnp.int32))

  def forward(**given: Any) -> PyTree:
    outputs = jax.eval_shape(lambda params: bind(task, params, train=True, rng=rng)(**given), shapes)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), outputs)

  example = task.prepare(noise_root(key), with_step(dict(batch), 0))
  found = task.loss(forward, example, task.init_carry(spec['row_id'].shape[0]), rng)
  _, weight = metrics.trained_on(found.metrics) or (0.0, jnp.ones(()))
  return weight


def remark_groups(settings: Settings, shapes: PyTree, *, task: Task) -> None:
  """Log which parameters train, at which rate and from which step."""
  scale, decay, steps = settings['optim']['scale'], settings['optim']['decay'], history.total(settings)
  found = groups.resolve(scale, shapes, steps=steps, what='scale')
  found = groups.restrict(found, scale, shapes, trains=task.trains)
  if {value for values in found.values() for value in values} != {1.0}:
    log.info(groups.table(shapes, scale=scale, decay=decay, steps=steps, trains=task.trains))


def remark_export(settings: Settings, shapes: PyTree, trunk: nn.Module) -> None:
  """Log why transformers has no class for the trained head."""
  adapter = settings['adapter'] or {}
  if adapter.get('name') not in task_heads.ADAPTERS:
    return
  leaves = {path: Leaf(leaf.shape, _unread) for path, leaf in param_paths.flat(nn.unbox(shapes)).items()}
  if reason := writer.without_class(trunk, leaves, adapter):
    log.info(f'export: the trunk alone (--heads=none), since no class of transformers has this head. {reason}')


def _unread(layer: int | None) -> np.ndarray:
  raise AssertionError(f'only shapes are asked for, not layer {layer}')


def _check_shapes(settings: Settings, parts: Parts, layout: sharding.Layout, *, scored: Collection[str]) -> None:
  """Check optimiser groups, metrics and memory by shape."""
  data, key = settings['data'], jax.random.key(settings['seed'])
  spec, read = batch_spec(parts, data), read_spec(parts, data)
  memory.check_table(parts.trunk, settings, layout=layout)
  memory.check_batch(read, parts.trunk, settings, layout=layout)
  maker, tx = abstract_maker(settings, parts, layout)
  state = maker.abstract
  shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state.params)
  memory.check(memory.leaves(state, tx, read, layout=layout), parts.trunk, settings, layout=layout)
  for name, block in settings['eval'].items():
    batch = read_spec(parts.of(name), block['data'])
    found = memory.leaves(state, tx, batch, layout=layout)
    memory.check(found, parts.trunk, {'data': block['data']}, layout=layout)
  prepared = _prepared(spec, parts.task, key, where='data')
  specs = [spec]
  for name, block in settings['eval'].items():
    if (of_evaluation := batch_spec(parts.of(name), block['data'])) not in specs:
      specs.append(of_evaluation)
      _prepared(of_evaluation, parts.of(name).task, key, where=f'eval.{name}.data')
  places = sharding.row_places(layout.mesh)
  for path, leaf in jax.tree_util.tree_leaves_with_path(prepared):
    size = leaf.size * leaf.dtype.itemsize // places
    if parts.trunk.ATTENTION == 'none' and leaf.dtype == np.int32:  # each id reads a vector
      size *= parts.trunk.token_dim
    rows_of = memory.Leaf('prepared rows', jax.tree_util.keystr(path), leaf.shape, size)
    memory.check([rows_of], parts.trunk, settings, layout=layout)
  with errors.stage('optim'):
    trainable, task = tx.split(shapes)[0], parts.task
    tables = jax.eval_shape(lambda example, params: rows.find(task.rows(example), params), prepared, trainable)
    tx.check_rows(tables, plain=task.update is not None)
  if task.update is not None:
    if layout.mesh.size > 1:
      raise ConfigError(
        f"objective.update='in_order' uses one device, and the mesh has {layout.mesh.size}: start with "
        "JAX_NUM_CPU_DEVICES=1, or set objective.update='rows'"
      )
    jax.eval_shape(task.update, prepared, shapes, {path: np.float32(0) for path in tables})
  for name, names in evaluation.asked(settings, parts).items():
    own = parts.of(name)
    evaluation.check_scores(names, own, batch_spec(own, settings['eval'][name]['data']), where=f'eval.{name}')
  asked = [(settings['best'], 'best')] if settings['best'] is not None else []
  check_metrics([*asked, *(((metric, 'max'), 'scores') for metric in scored)], settings, parts, shapes)


def check_metric_of_best(settings: Settings) -> None:
  """Raise ConfigError without the metric of `best`; use no device."""
  parts = with_evaluations(settings, make_parts(settings, make_vocab(settings)))
  check_metrics([(settings['best'], 'best')], settings, parts, abstract_parameters(settings, parts))


def with_evaluations(settings: Settings, parts: Parts) -> Parts:
  """Add evaluations with their own task, on the trained parameters."""
  tasks = {name: block['task'] for name, block in settings['eval'].items() if block.get('task')}
  if not tasks:
    return parts
  heads, template = tuple(abstract_parameters(settings, parts)), make_template(settings, parts.vocab)
  others = {}
  for name, task in tasks.items():
    folder = signatures.folder_of('adapters | objectives', task['name'])
    own = {**settings, 'objective': None, 'adapter': None, build.singular(folder): task}
    with errors.stage(f'eval.{name}.task'):
      others[name] = parts_of(parts.trunk, own, parts.vocab, heads=heads, template=template)
      if added := set(abstract_parameters({**own, 'data': settings['eval'][name]['data']}, others[name])) - set(heads):
        raise ConfigError(f'the run has no parameters {", ".join(sorted(added))}, which this task needs: leave it out')
  return parts._replace(others=others)


def abstract_parameters(settings: Settings, parts: Parts) -> PyTree:
  """Return shapes and dtypes of the parameters without shardings."""
  with errors.stage(parts.user):
    return nn.unbox(abstract_params(parts.task, batch_spec(parts, settings['data'])))


def check_metrics(
  asked: Iterable[tuple[tuple[str, str], str]], settings: Settings, parts: Parts, shapes: PyTree
) -> None:
  """Check several metrics like `check_best`, each with its label."""
  scores = evaluation.asked(settings, parts)
  for best, label in asked:
    name = best[0].partition('/')[0]
    own = parts.of(name)
    of_evaluation, step = batch_spec(own, settings['eval'][name]['data']), functools.partial(eval_step, task=own.task)
    check_best(best, of_evaluation, shapes, task=own.task, scores=scores[name], step=step, label=label)


def _prepared(spec: Mapping[str, jax.ShapeDtypeStruct], task: Task, key: Array, *, where: str) -> Example:
  """Return a prepared batch's shapes; raise ConfigError for short rows."""
  with errors.stage(where):
    return jax.eval_shape(lambda batch: task.prepare(noise_root(key), with_step(batch, 0)), dict(spec))


def abstract_maker(settings: Settings, parts: Parts, layout: sharding.Layout) -> tuple[Maker, optim.Optimiser]:
  """Return the maker of the first state, and its optimiser, or ConfigError."""
  spec = batch_spec(parts, settings['data'])
  with errors.stage(parts.user):
    shapes = abstract_params(parts.task, spec)
  tx = make_optimiser(settings, shapes, parts.task)
  return state_maker(parts.task, tx, spec, layout=layout), tx


def batch_spec(parts: Parts, block: Settings) -> dict[str, jax.ShapeDtypeStruct]:
  """Return shapes of a batch with every key that may be read."""
  given = [key for key in config.gives(block) or () if key in BATCH]
  return _spec((*given, *parts.reads), block)


def read_spec(parts: Parts, block: Settings) -> dict[str, jax.ShapeDtypeStruct]:
  """Return shapes of a batch with the keys that the task reads."""
  return _spec(parts.reads, block)


def _spec(keys: Collection[str], block: Settings) -> dict[str, jax.ShapeDtypeStruct]:
  inside = [block, *(block.get('parts') or {}).values()]
  targets, windows = (max((one.get(key) or 0 for one in inside), default=0) for key in ('target_length', 'windows'))
  extents = {'length': block['length'], 'targets': targets or None, 'windows': windows or 1}
  return sizes.batch_spec(keys, rows=block['batch_size'], **extents)


def check_best(
  best: tuple[str, str],
  spec: Mapping[str, Any],
  params: Any,
  *,
  task: Task,
  scores: Sequence[str],
  step: Any,
  label: str = 'best',
) -> None:
  """Raise ConfigError if an evaluation does not give a metric.

  Args:
    spec: shapes of a batch of the evaluation.
    scores: names of the scores of the evaluation.
    step: `eval_step` of the task, jitted or not.
    label: what asks for it.
  """
  evaluation, _, name = best[0].partition('/')
  carry = jax.eval_shape(lambda: task.init_carry(spec['row_id'].shape[0]))
  sums, _ = jax.eval_shape(step, params, dict(spec), carry, jax.random.key(0))
  known = sorted({*sums, *task.summary(dict.fromkeys(sums, 1.0)), *scoring.metrics(scores)})
  errors.check_choice(label, 'metric', name, known, place=f'evaluation {evaluation!r}')
