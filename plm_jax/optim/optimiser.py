"""The optimiser of a run: an update rule, a schedule, and what each parameter gets of them.

    optimiser = optim.make(params=shapes, steps=100_000, name='adamw', rate=1e-4, schedule='linear', warmup=0.1,
                           decay=(('.*/(bias|scale)', 0.0), ('.*', 0.01)),
                           scale=(('trunk/embed/.*', None), ('trunk/layers/0/.*', 0.5), ('.*', 1.0)), clip=1.0)
    trainable, frozen = optimiser.split(params)
    state = optimiser.init(trainable)
    gradients = jax.grad(lambda trainable: loss(optim.merge(trainable, frozen)))(trainable)
    updates, state = optimiser.update(gradients, state, trainable)

`schedules.py`, `optimisers.py` and `groups.py` say what the names, their settings and the patterns mean. A gradient
that is not finite is the caller's affair.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from plm_jax.errors import ConfigError, suggest
from plm_jax.optim import averages, groups, rules, schedules
from plm_jax.optim.groups import Groups, Settings
from plm_jax.paths import group_name, path_name
from plm_jax.types import Array, PyTree


class Optimiser(NamedTuple):
  """Pure functions that train a parameter tree; `trainable` and `frozen` are that tree with None where a leaf is not.

  Attributes:
    init: trainable -> state. Moments are float32, of the shape of their parameter and in its box of axis names, if any.
    update: (gradients, state, trainable) -> (what to add to trainable, state). Gradients as they come.
    rate: step -> base learning rate f32[], without multipliers and without the fall of a plateau schedule.
    eval_params: (state, parameters) -> the parameters to evaluate: averaged where the run averages, else the same.
      Takes the whole tree or its trainable part.
    split: parameters -> (trainable, frozen).
    observe: (state, validation metric) -> state. Plateau schedules and the start of NT-ASGD read it.
  """

  init: Callable[[PyTree], PyTree]
  update: Callable[[PyTree, PyTree, PyTree], tuple[PyTree, PyTree]]
  rate: Callable[[Array], Array]
  eval_params: Callable[[PyTree, PyTree], PyTree]
  split: Callable[[PyTree], tuple[PyTree, PyTree]]
  observe: Callable[[PyTree, float], PyTree]


def make(
  *,
  params: PyTree,
  steps: int,
  rate: float,
  name: str = 'adamw',
  schedule: str = 'linear',
  warmup: int | float = 0,
  decay: Groups | float = 0.0,
  scale: Groups = (('.*', 1.0),),
  clip: float | None = None,
  clip_by: Literal['norm', 'element'] = 'norm',
  ema: float | None = None,
  b1: float | None = None,
  b2: float | None = None,
  eps: float | None = None,
  momentum: float | None = None,
  nesterov: bool | None = None,
  accumulator: float | None = None,
  bias_correction: bool | None = None,
  adapt: Groups | None = None,
  b2_power: float | None = None,
  block_clip: float | None = None,
  factored: bool | None = None,
  factor_min: int | None = None,
  parameter_scale: bool | None = None,
  start: int | None = None,
  nonmonotone: int | None = None,
  floor: float | None = None,
  until: int | float | None = None,
  power: float | None = None,
  hold: int | float | None = None,
  cut: float | None = None,
  ratio: float | None = None,
  coefficient: float | None = None,
  patience: int | None = None,
  shrink: float | None = None,
  mode: Literal['min', 'max'] | None = None,
) -> Optimiser:
  """Returns the optimiser of a run. Settings left None are those of the rule or the schedule.

  Args:
    params: the whole parameter tree, or its shapes.
    steps: horizon of the schedule.
    rate: peak learning rate.
    name: a function of `optimisers.RULES`: sgd, momentum, adagrad, adam, adamw, bert_adam, lamb, adafactor, asgd.
    schedule: a function of `schedules.SCHEDULES`.
    warmup: steps of linear warmup; a float up to 1.0 is a fraction of `steps`.
    decay: weight decay of each parameter; the value 'rate' decays by the learning rate itself (PaLM's lr^2).
    scale: multiplier of the rate of each parameter, see `groups.resolve`. None freezes: no gradient, no moments, no
      part in the clip norm.
      A multiplier that is 0 at some step (a part that joins later) also keeps out of the clip norm; its moments gather
      meanwhile, so that its first update has the usual size.
    clip: limit on the gradient; None for none.
    clip_by: 'norm' scales all gradients so that their joint norm is at most `clip`; 'element' bounds each number.
    ema: decay of an exponential mean of the parameters, which evaluation then uses.
    b1: adam, adamw, bert_adam, lamb, adafactor.
    b2: adam, adamw, bert_adam, lamb.
    eps: adagrad, adam, adamw, bert_adam, lamb, adafactor.
    momentum: momentum.
    nesterov: momentum.
    accumulator: adagrad.
    bias_correction: lamb.
    adapt: lamb.
    b2_power: adafactor.
    block_clip: adafactor.
    factored: adafactor.
    factor_min: adafactor.
    parameter_scale: adafactor.
    start: asgd.
    nonmonotone: asgd.
    floor: linear, cosine, polynomial.
    until: linear, cosine, polynomial.
    power: polynomial.
    hold: inverse_sqrt.
    cut: stlr.
    ratio: stlr.
    coefficient: inverse_time.
    patience: plateau.
    shrink: plateau.
    mode: plateau.

  Raises:
    ConfigError: an unknown name, a setting that neither rule nor schedule takes, a group that does not fit `params`.
  """
  make_rule = schedules.choose(rules.RULES, name, label='optim.name', what='optimiser')
  make_shape = schedules.choose(schedules.SCHEDULES, schedule, label='optim.schedule', what='schedule')
  settings = {
    'b1': b1, 'b2': b2, 'eps': eps, 'momentum': momentum, 'nesterov': nesterov, 'accumulator': accumulator,
    'bias_correction': bias_correction, 'adapt': adapt, 'b2_power': b2_power, 'block_clip': block_clip, 'factored':
    factored, 'factor_min': factor_min, 'parameter_scale': parameter_scale, 'start': start, 'nonmonotone':
    nonmonotone, 'floor': floor, 'until': until, 'power': power, 'hold': hold, 'cut': cut, 'ratio': ratio,
    'coefficient': coefficient, 'patience': patience, 'shrink': shrink, 'mode': mode,
  }  # fmt: skip
  given = {key: value for key, value in settings.items() if value is not None}
  falls = make_shape is schedules.plateau
  takers = [make_rule, make_shape] + [schedules.observe_plateau] * falls
  of_rule, of_shape, *of_plateau = _share(given, takers, name=name, schedule=schedule)
  if not 0 <= rate < math.inf:
    raise ValueError(f'optim.rate={rate}: a number from 0 on')
  base_rate = schedules.make(name=schedule, rate=rate, steps=steps, warmup=warmup, **of_shape)

  scales = groups.resolve(scale, params, steps=steps, what='scale')
  decays = groups.resolve(decay, params, steps=steps, what='decay', words={'rate': base_rate})
  trained = {path for path, values in scales.items() if any(value is not None for value in values)}
  if not trained:
    raise ConfigError('optim.scale freezes every parameter: nothing is left to train.')
  context = rules.Context(
    rules.add_decay({path: decays[path] for path in trained}),
    lambda values, key: groups.resolve(values, params, steps=steps, what=key),
  )
  rule = make_rule(context, **of_rule)
  average = rule.average
  if ema is not None:
    if average is not None:
      raise ConfigError(f'optim.ema={ema}: optim.name={name!r} has an average of its own; leave one of them out.')
    average = averages.exponential_mean(ema)
  if clip is not None and clip <= 0:
    raise ConfigError(f'optim.clip={clip}: a limit is positive; None clips nothing.')
  limit = _make_clip(clip, clip_by)

  def init(trainable: PyTree) -> PyTree:
    _check_split(trainable, trained)
    full = jax.tree.map(lambda param: param.astype(jnp.float32), trainable)
    state = {'count': jnp.zeros((), jnp.int32), 'rule': rule.direction.init(full)}
    state |= {} if average is None else {'average': average.init(trainable)}
    return state | ({'plateau': schedules.start_plateau()} if falls else {})

  def update(gradients: PyTree, state: PyTree, trainable: PyTree) -> tuple[PyTree, PyTree]:
    _check_split(trainable, trained)
    step = state['count']
    full = jax.tree.map(lambda param: param.astype(jnp.float32), trainable)
    multipliers = groups.factors(scales, trainable, step)
    gradients = limit(_drop_frozen_layers(gradients, scales), multipliers)
    direction, rule_state = rule.direction.update(gradients, state['rule'], full)
    now = base_rate(step) * (state['plateau']['factor'] if falls else 1.0)
    updates = jax.tree.map(
      # a frozen layer stays put, even where its direction is not finite
      lambda by, way, param: jnp.where(by == 0, 0.0, -now * by * way).astype(param.dtype),
      multipliers,
      direction,
      trainable,
    )
    state = state | {'count': step + 1, 'rule': rule_state}
    if average is not None:
      after = jax.tree.map(jnp.add, trainable, updates)
      state |= {'average': average.update(state['average'], after, step)}
    return updates, state

  def eval_params(state: PyTree, params: PyTree) -> PyTree:
    return params if average is None else merge(state['average']['params'], params)

  def split(params: PyTree) -> tuple[PyTree, PyTree]:
    def part(wanted: bool) -> PyTree:
      return jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf if (path_name(path) in trained) == wanted else None, params
      )

    return part(True), part(False)

  # jitted, because an array that spans several hosts takes no part in eager arithmetic
  observe_average = None if average is None else jax.jit(average.observe)
  observe_plateau = jax.jit(lambda state, metric: schedules.observe_plateau(state, metric, **of_plateau[0]))
  if falls:
    observe_plateau(schedules.start_plateau(), 0.0)  # settings out of range fail here

  def observe(state: PyTree, metric: float) -> PyTree:
    if observe_average is not None:
      state = state | {'average': observe_average(state['average'], metric)}
    return state | {'plateau': observe_plateau(state['plateau'], metric)} if falls else state

  return Optimiser(init, update, base_rate, eval_params, split, observe)


def merge(trainable: PyTree, frozen: PyTree) -> PyTree:
  """The tree that `split` took apart; a leaf of `trainable` wins where both have it."""
  return jax.tree.map(
    lambda ours, theirs: theirs if ours is None else ours, trainable, frozen, is_leaf=lambda leaf: leaf is None
  )


def norms(tree: PyTree) -> dict[str, Array]:
  """L2 norm f32[] of each part of a tree of parameters, gradients or updates: 'trunk/embed', 'trunk/layers', a head."""
  squares: dict[str, Array] = {}
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    part = group_name(path_name(path))
    squares[part] = squares.get(part, jnp.zeros(())) + jnp.sum(jnp.square(leaf.astype(jnp.float32)))
  return {part: jnp.sqrt(square) for part, square in squares.items()}


def _share(
  given: Mapping[str, Any], takers: list[Callable[..., Any]], *, name: str, schedule: str
) -> list[dict[str, Any]]:
  """The settings of each taker; ConfigError for one that nobody takes."""
  taken = [[key for key in schedules.keywords(taker) if key not in ('steps', 'warmup')] for taker in takers]
  known = [key for keys in taken for key in keys]
  for key in given:
    if key not in known:
      raise ConfigError(
        f'optim.{key}: neither name={name!r} nor schedule={schedule!r} takes it.{suggest(key, known)} '
        f'{name} takes {", ".join(taken[0]) or "nothing"}; '
        f'{schedule} takes {", ".join(key for keys in taken[1:] for key in keys) or "nothing"}.'
      )
  return [{key: given[key] for key in keys if key in given} for keys in taken]


def _make_clip(limit: float | None, by: str) -> Callable[[PyTree, PyTree], PyTree]:
  """(gradients, multipliers) -> gradients within the limit."""
  if by not in ('norm', 'element'):
    raise ConfigError(f'optim.clip_by={by!r}: choices are norm, element.')

  def clip(gradients: PyTree, multipliers: PyTree) -> PyTree:
    if limit is None:
      return gradients
    if by == 'element':
      return jax.tree.map(lambda gradient: jnp.clip(gradient, -limit, limit), gradients)
    squares = jax.tree.map(lambda g, by: jnp.sum(jnp.where(by == 0, 0.0, jnp.square(g))), gradients, multipliers)
    norm = jnp.sqrt(sum(jax.tree.leaves(squares)))
    return jax.tree.map(lambda gradient: jnp.where(norm <= limit, gradient, gradient * (limit / norm)), gradients)

  return clip


def _drop_frozen_layers(gradients: PyTree, scales: Settings) -> PyTree:
  """float32 gradients, 0 in the layers of a stacked parameter that are frozen while others of them train."""

  def drop(path: tuple[Any, ...], gradient: Array) -> Array:
    kept = [float(value is not None) for value in scales[path_name(path)]]
    gradient = gradient.astype(jnp.float32)
    return gradient if all(kept) else jnp.where(groups.factor(kept, jnp.zeros(()), gradient.ndim) == 0, 0.0, gradient)

  return jax.tree_util.tree_map_with_path(drop, gradients)


def _check_split(trainable: PyTree, trained: set[str]) -> None:
  paths = {path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(trainable)}
  if paths != trained:
    odd = sorted(paths ^ trained)[0]
    raise ValueError(f'{odd!r} is {"frozen" if odd in paths else "missing"}: give the first part of Optimiser.split')
