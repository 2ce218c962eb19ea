"""The compiled step: one for every objective, adapter and model.

`train_step` and `eval_step` are pure functions of their arguments, which a run jits once. They know a `Task` and an
`Optimiser`, and nothing of papers, data or meshes.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from plm_jax import optim
from plm_jax.core.param_paths import flat
from plm_jax.core.sharding import Layout, batch_sharding, one_cpu, shardings, sum_over_devices, use
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, PyTree, Task
from plm_jax.layers.task_mixture import computed_once
from plm_jax.noise.keys import noise_root, with_step
from plm_jax.optim import rows
from plm_jax.runs import interval
from plm_jax.runs.interval import Interval

Metrics = dict[str, tuple[Array, Array]]  # name -> (sum, weight)
EXAMPLE = 'example'  # key of a batch that was prepared in advance


@flax.struct.dataclass
class TrainState:
  """Everything that a run carries from step to step, except keys, model and settings."""

  step: Array  # int32[], updates attempted
  params: PyTree  # `{'trunk': ..., <head>: ...}`, float32
  opt_state: PyTree  # of the optimiser, for the parameters that train
  skipped: Array  # int32[], updates skipped because a gradient or the update itself was not finite
  skipped_in_a_row: Array  # int32[], those since the last update that was not skipped
  carry: PyTree = ()  # recurrent state; leaves lead with the batch axis


def step_rng(key: Array, step: Array, *, random: str = 'threefry2x32') -> Array:
  """Return the key of a step's dropout and sampling; noise uses `noise.keys`."""
  folded = jax.random.fold_in(jax.random.fold_in(key, 1), step)
  if random == 'threefry2x32':
    return folded
  data = jax.random.key_data(folded)
  return jax.random.wrap_key_data(jnp.concatenate([data, data]), impl=random)  # 2 words -> 4


def bind(task: Task, params: PyTree, *, train: bool, rng: Array) -> Forward:
  """Bind the parameters of the model; calls without key drop out differently."""
  calls = itertools.count()
  default_train, default_rng = train, rng

  def forward(
    *,
    method: str | Callable[..., Any] | None = None,
    train: bool | None = None,
    rng: Array | None = None,
    **inputs: Any,
  ) -> Any:
    key = jax.random.fold_in(default_rng, next(calls)) if rng is None else rng
    train = default_train if train is None else train
    return task.model.apply({'params': params}, **inputs, train=train, method=method, rngs={'dropout': key})

  return forward


def init_params(task: Task, spec: Mapping[str, jax.ShapeDtypeStruct], key: Array) -> PyTree:
  """Initialise parameters for batches of `spec`, boxed with axis names."""
  abstract = jax.eval_shape(lambda batch: task.prepare(key, with_step(batch, 0)), dict(spec))
  inputs = jax.tree.map(lambda leaf: jnp.zeros((1, *leaf.shape[1:]), leaf.dtype), abstract.inputs)
  return task.model.init(key, **inputs, train=False)['params']


def abstract_params(task: Task, spec: Mapping[str, jax.ShapeDtypeStruct]) -> PyTree:
  """Return the shapes of the parameters, without axis names and without memory."""
  return nn.unbox(jax.eval_shape(lambda key: init_params(task, spec, key), jax.random.key(0)))


def advanced(task: Task, params: PyTree, step: Array) -> PyTree:
  """Return the parameters after `Task.advance` for this many updates."""
  return params if task.advance is None else task.advance(params, step)


class Maker(NamedTuple):
  """Functions and shapes to make the states of one task on one mesh."""

  fresh: Callable[[Array], TrainState]  # root key -> TrainState; compiled once, whatever the key
  places: PyTree  # the sharding of each leaf
  abstract: PyTree  # shape, dtype and sharding of each leaf, without memory


def state_maker(task: Task, tx: optim.Optimiser, spec: Mapping[str, jax.ShapeDtypeStruct], *, layout: Layout) -> Maker:
  """Derive a training state's shardings from axis names; `spec` is global."""

  def make(key: Array) -> TrainState:
    params = init_params(task, spec, key)
    trainable, _ = tx.split(params)
    zero = jnp.zeros((), jnp.int32)
    return TrainState(zero, params, tx.init(trainable), zero, zero, task.init_carry(spec['row_id'].shape[0]))

  with use(layout):
    # traced with boxes: optimiser moments inherit the axis names of their parameters
    boxed = jax.eval_shape(make, jax.random.key(0))
    places = shardings(boxed, layout=layout)
    places = places.replace(carry=jax.tree.map(lambda _: batch_sharding(layout), boxed.carry))
    abstract = jax.tree.map(
      lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), nn.unbox(boxed), places
    )
  return Maker(jax.jit(lambda key: nn.unbox(make(key)), out_shardings=places), places, abstract)


def advance_first(state: TrainState, maker: Maker, *, task: Task) -> TrainState:
  """Apply `Task.advance` to the first state of a run, after `init_from`."""
  if task.advance is None:
    return state
  begin = jax.jit(functools.partial(advanced, task), out_shardings=maker.places.params)
  return dataclasses.replace(state, params=begin(state.params, state.step))


def _micro_batches(tree: PyTree, count: int) -> PyTree:
  """Split [b, ...] into [count, b / count, ...].

  The split is strided, so that each micro-batch has rows of every device:

      [0 1 2 3 4 5], count 2  ->  [[0 2 4] [1 3 5]]
  """
  return jax.tree.map(lambda x: jnp.moveaxis(x.reshape(x.shape[0] // count, count, *x.shape[1:]), 1, 0), tree)


def _join(tree: PyTree) -> PyTree:
  return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(-1, *x.shape[2:]), tree)


def _reset(carry: PyTree, batch: Batch) -> PyTree:
  """Zero the carry of rows whose `reset` is set."""
  if 'reset' not in batch:
    return carry
  keep = ~batch['reset']
  return jax.tree.map(lambda x: jnp.where(keep.reshape(-1, *(1,) * (x.ndim - 1)), x, jnp.zeros((), x.dtype)), carry)


def _materialise(tree: PyTree) -> PyTree:
  """Return the tree behind a barrier, against CPU compilers' recomputation."""
  return jax.lax.platform_dependent(tree, cpu=jax.lax.optimization_barrier, default=lambda tree: tree)


def _apart(direct: Callable[[], tuple[PyTree, Any]], finite: Array) -> tuple[PyTree, Any]:
  """Compute directions and norms, on one CPU in a branch.

  Loops that read directions would repeat their last operations. The other branch has directions of 0.
  """

  def none() -> tuple[PyTree, Any]:
    directions, norms = direct()
    return jax.tree.map(jnp.zeros_like, directions), norms

  return jax.lax.cond(finite, direct, none) if one_cpu() else direct()


def _choose(condition: Array, new: PyTree, old: PyTree) -> PyTree:
  """Select `new` where the condition bool[] is true, else `old`."""
  return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)


class _Rows(NamedTuple):
  """The examples of a step and the recurrent state before them; leaves lead with the batch axis."""

  example: Example
  carry: PyTree


class _Shared(NamedTuple):
  """Inputs of a step that all its examples share."""

  trainable: PyTree  # parameters that train; of `tables` only the rows that the step reads
  frozen: PyTree  # parameters that do not train
  tables: rows.Tables  # path -> rows that the step reads
  rng: Array  # key of dropout and sampling


def _gradient(task: Task, part: _Rows, shared: _Shared) -> tuple[PyTree, Loss]:
  """Compute the gradient of the loss of some examples, and this loss."""

  def loss_of(trainable: PyTree) -> tuple[Array, Loss]:
    forward_rng, loss_rng = jax.random.split(shared.rng)
    params = rows.with_rows(optim.merge(trainable, shared.frozen), shared.tables)
    forward = bind(task, params, train=True, rng=forward_rng)
    loss = task.loss(forward, part.example, part.carry, loss_rng)
    return loss.value, loss

  return jax.grad(loss_of, has_aux=True)(shared.trainable)


def _accumulated(task: Task, count: int, batch: _Rows, shared: _Shared) -> tuple[tuple[PyTree, Metrics], PyTree]:
  """Compute ((gradients, metrics), carry) over micro-batches."""

  def add(total: PyTree, part: tuple[_Rows, Array]) -> tuple[PyTree, PyTree]:
    micro_batch, index = part
    rng = jax.random.fold_in(shared.rng, index)
    gradients, loss = _gradient(task, micro_batch, shared._replace(rng=rng))
    return jax.tree.map(jnp.add, total, gradients), (loss.metrics, loss.carry)

  zeros = jax.tree.map(jnp.zeros_like, shared.trainable)
  gradients, (metrics, carries) = jax.lax.scan(add, zeros, (_micro_batches(batch, count), jnp.arange(count)))
  return (gradients, jax.tree.map(lambda x: x.sum(axis=0), metrics)), _join(carries)


def _gradient_of_batch(
  task: Task, batch: _Rows, shared: _Shared, *, accumulate: int, paths: Collection[str]
) -> tuple[PyTree, Loss]:
  """Compute the gradient of the mean loss, and the loss."""
  if accumulate == 1:
    gradients, loss = _gradient(task, batch, shared)
    if absent := set(loss.kept) - set(paths):
      raise KeyError(f'the loss keeps {min(absent)!r}, which is no parameter')
    return gradients, loss
  if task.couples_rows:
    raise ValueError('this objective couples the rows of a batch: accumulate must be 1')
  sums = functools.partial(_accumulated, task, accumulate)
  (gradients, metrics), carry = sum_over_devices(sums, batch, shared, parts=accumulate)
  return gradients, Loss(value=jnp.zeros(()), metrics=metrics, carry=carry)


def train_step(
  state: TrainState,
  batch: Batch,
  key: Array,
  *,
  task: Task,
  tx: optim.Optimiser,
  accumulate: int = 1,
  random: str = 'threefry2x32',
) -> tuple[TrainState, Metrics]:
  """Make one update.

  Returns the next state, and metrics as (sum, weight). If the gradient or the update is not finite, parameters,
  optimiser and carry stay the same, and the skipped update is counted. Raises ValueError: `accumulate` cuts a batch
  whose examples the task compares with each other.

  Args:
    state: of the run; may be donated.
    batch: the whole global batch, clean.
    key: root key of the run, the same at every step.
    tx: the optimiser. Parameters that it freezes are not differentiated.
    accumulate: micro-batches that the batch is cut into. The loss is the same exact mean.
    random: bit generator of dropout, 'threefry2x32' or the faster 'rbg'.
  """
  # 1. Prepare: corrupt the batch, and take the rows of large tables that it reads.
  prepared: Any = batch.get(EXAMPLE)
  example = prepared or task.prepare(noise_root(key), with_step(batch, state.step))
  if task.update is not None:
    return _updated_by_task(state, example, task=task, tx=tx)
  rng = step_rng(key, state.step, random=random)
  all_trainable, frozen = tx.split(state.params)
  tables = rows.find(task.rows(example), all_trainable)
  tx.check_rows(tables)
  trainable, old_opt_state = rows.take(all_trainable, tables), rows.take(state.opt_state, tables)
  examples = _Rows(example, _reset(state.carry, batch))

  # 2. Gradient of the loss, which may be summed over micro-batches.
  shared = _Shared(trainable, frozen, tables, rng)
  gradients, loss = _gradient_of_batch(task, examples, shared, accumulate=accumulate, paths=flat(state.params))
  gradients = _materialise(gradients)
  gradient_norms = optim.norms(gradients)
  total_norm = jnp.sqrt(sum(norm * norm for norm in gradient_norms.values()))

  # 3. Directions and norms. `finite` depends on all norms, so the update may overwrite the arrays that they read.
  known = rows.others(optim.merge(trainable, frozen), tables)
  direct = lambda: (tx.direct(gradients, old_opt_state, trainable)[0], optim.norms(known))  # noqa: E731
  directions, param_norms = _apart(direct, jnp.isfinite(total_norm))
  scale = functools.partial(tx.scale, state=old_opt_state, trainable=trainable, kept=loss.kept)
  update_norms = optim.norms(scale(directions))
  finite = jnp.isfinite(total_norm) & jnp.isfinite(sum(update_norms.values()))
  new_trainable = jax.tree.map(jnp.add, trainable, scale(_materialise(directions)))

  # 4. Select: keep everything where a number is not finite. The moments are computed a second time, once `finite` is
  # known: on a CPU that is faster than to write, read and write them again. Other compilers see that both are the same.
  is_finite, old_moments = _materialise((finite, old_opt_state))
  opt_state = _choose(is_finite, tx.update(gradients, old_moments, trainable, loss.kept)[1], old_moments)
  new_params = optim.merge(rows.put(all_trainable, _choose(finite, new_trainable, trainable), tables), frozen)
  new_state = TrainState(
    step=state.step + 1,
    params=advanced(task, new_params, state.step + 1),
    opt_state=rows.put(state.opt_state, opt_state, tables),
    skipped=state.skipped + (~finite).astype(jnp.int32),
    skipped_in_a_row=jnp.where(finite, 0, state.skipped_in_a_row + 1),
    carry=_choose(finite, loss.carry, state.carry),
  )

  # 5. Measure. Of a large table only the rows of this step are known, so its norm is left out.
  measured = {'gradient': gradient_norms, 'update': update_norms, 'parameter': param_norms}
  return new_state, loss.metrics | _measures(tx.now(state.opt_state), total_norm, measured) | _skipped(new_state)


def _updated_by_task(
  state: TrainState, example: Example, *, task: Task, tx: optim.Optimiser
) -> tuple[TrainState, Metrics]:
  """Make an update by `Task.update`, which measures its norm."""
  assert task.update is not None
  tx.check_rows(task.rows(example), plain=True)
  # a gradient of ones shows the rate of each parameter, and the next state of the schedule
  ones = jax.tree.map(lambda leaf: jnp.ones((1,) * leaf.ndim), tx.split(state.params)[0])
  updates, opt_state = tx.update(ones, state.opt_state, ones)
  rates = {path: -leaf.reshape(()) for path, leaf in flat(updates).items()}
  params, metrics, finite = task.update(example, state.params, rates)
  new_state = dataclasses.replace(
    state,
    step=state.step + 1,
    params=params,
    opt_state=opt_state,
    skipped=state.skipped + (~finite).astype(jnp.int32),
    skipped_in_a_row=jnp.where(finite, 0, state.skipped_in_a_row + 1),
  )
  return new_state, _measures(tx.now(state.opt_state), jnp.zeros(()), {}) | metrics | _skipped(new_state)


def _skipped(state: TrainState) -> Metrics:
  """Return both counts of skipped updates as (value, 1)."""
  counts = {'skipped': state.skipped, 'skipped_in_a_row': state.skipped_in_a_row}
  return {name: (count.astype(jnp.float32), jnp.float32(1)) for name, count in counts.items()}


def _measures(rate: Array, total_norm: Array, norms: Mapping[str, Mapping[str, Array]]) -> Metrics:
  """Return learning rate and norms as (value, 1)."""
  weight = jnp.float32(1)
  measured = {'learning_rate': (rate.astype(jnp.float32), weight), 'gradient_norm': (total_norm, weight)}
  for kind, by_group in norms.items():
    measured |= {f'{kind}_norm/{group}': (norm, weight) for group, norm in by_group.items()}
  return measured


def logged_step(
  state: TrainState,
  sums: Interval,
  batch: Batch,
  key: Array,
  *,
  step: Callable[[TrainState, Batch, Array], tuple[TrainState, Metrics]],
  log_every: int,
) -> tuple[TrainState, Interval, Metrics]:
  """Call `step`, a bound `train_step`; add its metrics to the logging interval."""
  new_state, metrics = step(state, batch, key)
  return new_state, interval.add(sums, metrics, first=state.step % log_every == 0), metrics


def eval_step(
  params: PyTree, batch: Batch, carry: PyTree, key: Array, *, task: Task, rows: int | None = None
) -> tuple[Metrics, PyTree]:
  """Compute metrics of a batch as (sum, weight), and the next carry.

  Noise is that of step 0, without dropout.

  Args:
    batch: the whole global batch, clean.
    carry: recurrent state of its rows.
    rows: most rows that are computed at once, if the task does not compare rows; None computes all.
  """
  opened = _open(params, batch, key, task=task)
  parts = 1 if rows is None or task.couples_rows else _parts(batch['row_id'].shape[0], rows)
  if parts == 1:
    return _score(opened, batch, carry, task=task)

  def score(part: tuple[Example, Batch, PyTree, Array]) -> tuple[Metrics, PyTree]:
    example, batch, carry, number = part
    own = opened._replace(example=example, rng=jax.random.fold_in(opened.rng, number))
    return _score(own, batch, carry, task=task)

  cut = _micro_batches((opened.example, dict(batch), carry), parts)
  metrics, carries = jax.lax.map(score, (*cut, jnp.arange(parts)))
  return jax.tree.map(lambda x: x.sum(axis=0), metrics), _join(carries)


def _parts(batch_size: int, rows: int) -> int:
  """Return the fewest equal parts of at most `rows` rows."""
  return next(parts for parts in range(1, batch_size + 1) if batch_size % parts == 0 and batch_size // parts <= rows)


def predict_step(params: PyTree, batch: Batch, key: Array, *, task: Task) -> dict[str, Array]:
  """Return predictions with `row_id` and `row_weight`, or raise ValueError."""
  return _predict(_open(params, batch, key, task=task), batch, task=task)


def predicting_step(
  params: PyTree, batch: Batch, carry: PyTree, key: Array, *, task: Task
) -> tuple[Metrics, PyTree, dict[str, Array]]:
  """Return results of `eval_step` and `predict_step`, if possible of one run."""
  opened = _open(params, batch, key, task=task)
  opened = opened._replace(forward=computed_once(opened.forward))
  return *_score(opened, batch, carry, task=task), _predict(opened, batch, task=task)


class _Opened(NamedTuple):
  """Inputs of an evaluation: a noised batch, the model without dropout, and a key for sampling."""

  example: Example
  forward: Forward
  rng: Array


def _open(params: PyTree, batch: Batch, key: Array, *, task: Task) -> _Opened:
  """Prepare a batch with the noise of step 0."""
  rng = step_rng(key, jnp.zeros((), jnp.int32))
  example = task.prepare(noise_root(key), with_step(batch, 0))
  return _Opened(example, bind(task, params, train=False, rng=rng), rng)


def _score(opened: _Opened, batch: Batch, carry: PyTree, *, task: Task) -> tuple[Metrics, PyTree]:
  loss = (task.evaluate or task.loss)(opened.forward, opened.example, _reset(carry, batch), opened.rng)
  return loss.metrics, loss.carry


def _predict(opened: _Opened, batch: Batch, *, task: Task) -> dict[str, Array]:
  if task.predict is None:
    raise ValueError('this task makes no predictions')
  predicted = task.predict(opened.forward, opened.example)
  return {**predicted, 'row_id': batch['row_id'], 'row_weight': batch['row_weight']}
