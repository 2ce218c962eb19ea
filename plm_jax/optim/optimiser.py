"""The optimiser of a run: an update rule, a schedule, and multipliers for each parameter.

    optimiser = optim.make(params=shapes, steps=100_000, name='adamw', rate=1e-4, schedule='linear', warmup=0.1,
                           decay=(('.*/(bias|scale)', 0.0), ('.*', 0.01)),
                           scale=(('trunk/embed/.*', None), ('trunk/layers/0/.*', 0.5), ('.*', 1.0)), clip=1.0)
    trainable, frozen = optimiser.split(params)
    state = optimiser.init(trainable)
    gradients = jax.grad(lambda trainable: loss(optim.merge(trainable, frozen)))(trainable)
    updates, state = optimiser.update(gradients, state, trainable)

`rules.py`, `schedules.py` and `groups.py` explain the names, their keywords and the patterns. The caller handles
gradients that are not finite.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax.core import FrozenDict

from plm_jax.core.errors import ConfigError, one_of, suggest
from plm_jax.core.keywords import Duration, Momentum, Rate
from plm_jax.core.param_paths import group_name, path_name
from plm_jax.core.types import EVERYTHING, Array, PyTree
from plm_jax.optim import averages, groups, rules, schedules
from plm_jax.optim.groups import Decays, Settings, Written

ClipBy = Literal['norm', 'element', 'row']
_OWN = ('steps', 'warmup')  # keywords of schedules that are also keywords of `make`


class Optimiser(NamedTuple):
  """Pure functions that train a parameter tree.

  `trainable` and `frozen` are this tree with None instead of the other leaves.
  """

  # trainable -> state. Moments are float32, with the shape and the box of axis names of their parameter
  init: Callable[[PyTree], PyTree]
  # (gradients, state, trainable, kept) -> (updates to add to trainable, state). Gradients are unclipped; `kept` is
  # `Loss.kept`, whose parameters are set to these values instead of updated by the rule
  update: Callable[..., tuple[PyTree, PyTree]]
  # the first part of `update`: (gradients, state, trainable) -> ((directions of the rule, minus the rate of each
  # parameter), state of the rule)
  direct: Callable[..., tuple[tuple[PyTree, PyTree], PyTree]]
  # the second part: (directions and rates, state, trainable, kept) -> updates
  scale: Callable[..., PyTree]
  # step -> base learning rate f32[], without multipliers and without the reduction of a plateau schedule
  rate: Callable[[Array], Array]
  # state -> base rate f32[] of the next update, with that reduction, not counting skipped updates
  now: Callable[[PyTree], Array]
  # (state, parameters) -> the parameters to evaluate: averaged if the run averages, else the same. Takes the whole tree
  # or its trainable part
  eval_params: Callable[[PyTree, PyTree], PyTree]
  split: Callable[[PyTree], tuple[PyTree, PyTree]]  # parameters -> (trainable, frozen)
  # parameters -> number of trained scalars; in a stacked parameter only those of trained layers
  count: Callable[[PyTree], int]
  # (state, validation metric, smaller is better) -> state, for plateau schedules and the start of NT-ASGD. Pass metrics
  # such as accuracy times -1
  observe: Callable[[PyTree, float], PyTree]
  # (paths, plain=False) -> None; raises a ConfigError if rows of these tables cannot be updated separately, or with
  # `plain` if their update is more than the rate times the gradient
  check_rows: Callable[..., None]


def make(
  *,
  params: PyTree,
  steps: int,
  trains: Sequence[str] = EVERYTHING,
  rate: Annotated[float, '0 <= x <= 1000'],
  name: Annotated[str, 'optim.rules'] = 'adamw',
  schedule: Annotated[str, 'optim.schedules'] = 'linear',
  warmup: Duration = 0,
  decay: Rate | Decays = 0.0,
  scale: Written = (('.*', 1.0),),
  clip: Annotated[float, '0 < x'] | None = None,
  clip_by: ClipBy = 'norm',
  ema: Momentum | None = None,
  **rest: Any,
) -> Optimiser:
  """Build the optimiser of a run.

  Args:
    params: the whole parameter tree, or its shapes.
    steps: horizon of the schedule.
    trains: `Task.trains`; all other parameters are frozen, whatever `scale` says.
    rate: peak learning rate.
    name: a function of `rules.py`.
    schedule: a function of `schedules.py`.
    warmup: steps of linear warmup; a float up to 1.0 is a fraction of `steps`.
    decay: weight decay of each parameter; the value 'rate' decays by the learning rate itself (PaLM's lr^2).
    scale: multiplier of the rate of each parameter, see `groups.resolve`. None freezes: no gradient, no moments, not
      part of the clip norm. A multiplier that is 0 at some step (unfrozen later) is not part of the clip norm either,
      but its moments accumulate, so its first update has the usual size.
    clip: limit on the gradient; None for none.
    clip_by: 'norm' scales all gradients so that their joint norm is at most `clip`; 'element' bounds each number; 'row'
      bounds the norm of each vector along a last axis, such as the vector of a word that many pairs of a batch have.
    ema: decay of an exponential mean of the parameters, which is evaluated instead of them.
    **rest: keywords of the rule and of the schedule.

  Raises:
    ConfigError: an unknown name, a keyword that neither rule nor schedule takes, a group that does not fit `params`.
    ValueError: a setting out of range.
  """
  make_rule = schedules.choose(rules.RULES, name, label='optim.name', what='optimiser')
  shape = schedules.choose(schedules.SCHEDULES, schedule, label='optim.schedule', what='schedule')
  rule_settings, shape_settings = _share(rest, make_rule, shape)
  if not 0 <= rate < math.inf:
    raise ValueError(f'optim.rate={rate} is out of range: give a number that is 0 or above')
  # 1. rate, multiplier and decay of each parameter
  base_rate = schedules.make(name=schedule, rate=rate, steps=steps, warmup=warmup, **shape_settings)
  scales = groups.restrict(groups.resolve(scale, params, steps=steps, what='scale'), scale, params, trains=trains)
  decays = groups.resolve(decay, params, steps=steps, what='decay', words={'rate': base_rate})
  trained = frozenset(path for path, values in scales.items() if any(value is not None for value in values))
  if not trained:
    raise ConfigError('optim.scale freezes every parameter that the task trains: give one of them a number.')
  # 2. update rule
  context = rules.Context(
    decay=rules.add_decay({path: decays[path] for path in trained}),
    resolve=lambda values, key: groups.resolve(values, params, steps=steps, what=key),
    rate=rate,
  )
  rule = make_rule(context, **rule_settings)
  # 3. the functions, bound to all of it
  average = _choose_average(rule, ema, name=name)
  s = _Settings(
    rate=base_rate,
    scales=scales,
    trained=trained,
    direction=rule.direction,
    average=average,
    limit=_make_clip(clip, clip_by),
    # jitted, because arrays that span several hosts do not support eager arithmetic
    observe_average=average and jax.jit(average.observe),
    observe_plateau=_make_observe_plateau(shape, shape_settings),
  )
  return Optimiser(
    init=partial(_init, s),
    update=partial(_update, s),
    direct=partial(_direct, s),
    scale=partial(_scale, s),
    rate=s.rate,
    now=partial(_now, s),
    eval_params=partial(_eval_params, s),
    split=partial(_split, s),
    count=partial(_count, s),
    observe=partial(_observe, s),
    check_rows=partial(_check_rows, make_rule, decays, average, clip),
  )


def _make_observe_plateau(
  shape: Callable[..., Any], settings: Mapping[str, Any]
) -> Callable[[PyTree, Any], PyTree] | None:
  if shape is not schedules.plateau:
    return None
  # without `mode`: the metric that `observe` gets has its sign already
  without_mode = {key: value for key, value in settings.items() if key != 'mode'}
  return jax.jit(partial(schedules.observe_plateau, **without_mode))


class _Settings(NamedTuple):
  """Settings that the functions of an optimiser are bound to."""

  rate: Callable[[Array], Array]  # step -> base learning rate
  scales: Settings  # multipliers of the rate
  trained: frozenset[str]  # paths of the parameters that train
  direction: optax.GradientTransformation  # the update rule
  average: averages.Average | None  # average of the parameters for evaluation, or None
  limit: Callable[[PyTree, PyTree], PyTree]  # (gradients, multipliers) -> clipped gradients
  observe_average: Callable[[PyTree, Any], PyTree] | None  # (state of the average, metric) -> its next state
  # (state of the plateau schedule, metric) -> its next state; None for other schedules
  observe_plateau: Callable[[PyTree, Any], PyTree] | None


def _init(s: _Settings, trainable: PyTree) -> PyTree:
  _check_split(trainable, s.trained)
  full = jax.tree.map(lambda param: param.astype(jnp.float32), trainable)
  state = {'count': jnp.zeros((), jnp.int32), 'rule': s.direction.init(full)}
  state |= {} if s.average is None else {'average': s.average.init(trainable)}
  return state | ({} if s.observe_plateau is None else {'plateau': schedules.start_plateau()})


def _update(
  s: _Settings, gradients: PyTree, state: PyTree, trainable: PyTree, kept: Mapping[str, Array] = FrozenDict()
) -> tuple[PyTree, PyTree]:
  directions, rule_state = _direct(s, gradients, state, trainable)
  updates = _scale(s, directions, state, trainable, kept)
  new_state = state | {'count': state['count'] + 1, 'rule': rule_state}
  if s.average is not None:  # of the new parameters
    after = jax.tree.map(jnp.add, trainable, updates)
    new_state |= {'average': s.average.update(state['average'], after, state['count'])}
  return updates, new_state


def _direct(s: _Settings, gradients: PyTree, state: PyTree, trainable: PyTree) -> tuple[tuple[PyTree, PyTree], PyTree]:
  """Clip gradients in float32, and apply the rule."""
  _check_split(trainable, s.trained)
  full = jax.tree.map(lambda param: param.astype(jnp.float32), trainable)
  multipliers = groups.factors(s.scales, trainable, state['count'])
  clipped = s.limit(_drop_frozen_layers(gradients, s.scales), multipliers)
  directions, rule_state = s.direction.update(clipped, state['rule'], full)
  now = _now(s, state)
  return (directions, jax.tree.map(lambda by: -now * by, multipliers)), rule_state


def _scale(
  s: _Settings, directed: tuple[PyTree, PyTree], state: PyTree, trainable: PyTree, kept: Mapping[str, Array]
) -> PyTree:
  """Multiply directions by their rates."""
  scaled = jax.tree.map(
    # a frozen layer does not change, even if its direction is not finite
    lambda by, direction, rate, param: jnp.where(by == 0, 0.0, rate * direction).astype(param.dtype),
    groups.factors(s.scales, trainable, state['count']),
    *directed,
    trainable,
  )
  return _set_kept(kept, scaled, trainable)


def _set_kept(kept: Mapping[str, Array], updates: PyTree, trainable: PyTree) -> PyTree:
  """Replace updates of parameters in `kept` to set their value."""

  def set_leaf(path: tuple[Any, ...], update: Array, param: Array) -> Array:
    name = path_name(path)
    return kept[name] - param if name in kept else update

  return jax.tree_util.tree_map_with_path(set_leaf, updates, trainable)


def _now(s: _Settings, state: PyTree) -> Array:
  return s.rate(state['count']) * (1.0 if s.observe_plateau is None else state['plateau']['factor'])


def _eval_params(s: _Settings, state: PyTree, params: PyTree) -> PyTree:
  return params if s.average is None else merge(state['average']['params'], params)


def _split(s: _Settings, params: PyTree) -> tuple[PyTree, PyTree]:
  def part(wanted: bool) -> PyTree:
    return jax.tree_util.tree_map_with_path(
      lambda path, leaf: leaf if (path_name(path) in s.trained) == wanted else None, params
    )

  return part(True), part(False)


def _count(s: _Settings, params: PyTree) -> int:
  total = 0
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    values = s.scales[path_name(path)]
    total += math.prod(leaf.shape) * sum(value is not None for value in values) // len(values)
  return total


def _observe(s: _Settings, state: PyTree, metric: float) -> PyTree:
  if s.observe_average is not None:
    state = state | {'average': s.observe_average(state['average'], metric)}
  if s.observe_plateau is not None:
    state = state | {'plateau': s.observe_plateau(state['plateau'], metric)}
  return state


def _check_rows(
  rule: Callable[..., Any],
  decays: Settings,
  average: averages.Average | None,
  clip: float | None,
  tables: Iterable[str],
  *,
  plain: bool = False,
) -> None:
  by_row = rules.BY_ROW[:1] if plain else rules.BY_ROW
  for path in tables:
    reasons = {
      f'optim.name={rule.__name__!r} {"has moments" if plain else "updates whole tensors"}': rule not in by_row,
      'optim.decay shrinks all of its rows': any(value not in (0, None) for value in decays[path]),
      'optim.ema is an average of all of its rows': average is not None,
      'optim.clip needs the gradient of a whole batch': plain and clip is not None,
    }
    for reason, holds in reasons.items():
      if holds:
        fix = f'optim.name to {" or ".join(row_rule.__name__ for row_rule in by_row)} without optim.decay'
        fix += ", ema and clip, or objective.update='rows'" if plain else " and optim.ema, or objective.update='tables'"
        raise ConfigError(f'optim: the task updates few rows of {path} per step, and {reason}: set {fix}')


def arrays(state: PyTree) -> PyTree:
  """Return the per-parameter part of an optimiser state: moments and averages."""
  average = {'average': {'params': state['average']['params']}} if 'average' in state else {}
  return {'rule': state['rule'], **average}


def merge(trainable: PyTree, frozen: PyTree) -> PyTree:
  """Invert `split`; a leaf that both trees have is that of `trainable`."""
  return jax.tree.map(
    lambda ours, theirs: theirs if ours is None else ours, trainable, frozen, is_leaf=lambda leaf: leaf is None
  )


def norms(tree: PyTree) -> dict[str, Array]:
  """Compute the L2 norm f32[] of each part of a tree.

  The tree has parameters, gradients or updates; parts are 'trunk/embed', 'trunk/layers' or a head.
  """
  squares: dict[str, Array] = {}
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    part = group_name(path_name(path))
    squares[part] = squares.get(part, jnp.zeros(())) + jnp.sum(jnp.square(leaf.astype(jnp.float32)))
  return {part: jnp.sqrt(square) for part, square in squares.items()}


def _share(
  rest: Mapping[str, Any], rule: Callable[..., Any], schedule: Callable[..., Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Divide keywords between rule and schedule; raise ConfigError for unknown ones."""
  rule_keys = [key for key in schedules.keywords(rule) if key not in _OWN]
  shape_keys = [key for key in schedules.keywords(schedule) if key not in _OWN]
  for key in rest:
    if key not in (*rule_keys, *shape_keys):
      functions = [function for function in (*rules.RULES, *schedules.SCHEDULES) if key in schedules.keywords(function)]
      names = ', '.join(function.__name__ for function in functions)
      hint = f' It is for {names}.' if names else suggest(key, [*rule_keys, *shape_keys])
      raise ConfigError(
        f'optim.{key}: neither name={rule.__name__!r} nor schedule={schedule.__name__!r} takes it.{hint} '
        f'{rule.__name__} takes {", ".join(rule_keys) or "no keys"}; '
        f'{schedule.__name__} takes {", ".join(shape_keys) or "no keys"}.'
      )
  return {key: rest[key] for key in rule_keys if key in rest}, {key: rest[key] for key in shape_keys if key in rest}


def _choose_average(rule: rules.Rule, ema: float | None, *, name: str) -> averages.Average | None:
  if ema is None:
    return rule.average
  if rule.average is not None:
    raise ConfigError(f'optim.ema={ema} cannot be used with optim.name={name!r}, which averages: remove one of them.')
  return averages.exponential_mean(ema)


def _make_clip(limit: float | None, by: ClipBy) -> Callable[[PyTree, PyTree], PyTree]:
  """Build a function (gradients, multipliers) -> clipped gradients."""
  one_of('optim.clip_by', by, ClipBy)
  if limit is not None and limit <= 0:
    raise ConfigError(f'optim.clip={limit} is not positive: give a number above 0, or None for no clipping.')

  def clip(gradients: PyTree, multipliers: PyTree) -> PyTree:
    if limit is None:
      return gradients
    if by == 'element':
      return jax.tree.map(lambda gradient: jnp.clip(gradient, -limit, limit), gradients)
    if by == 'row':
      square = lambda gradient: jnp.sum(jnp.square(gradient), axis=-1 if gradient.ndim else None, keepdims=True)  # noqa: E731
      return jax.tree.map(
        lambda gradient: gradient * (limit / jnp.maximum(jnp.sqrt(square(gradient)), limit)), gradients
      )
    squares = jax.tree.map(lambda g, by: jnp.sum(jnp.where(by == 0, 0.0, jnp.square(g))), gradients, multipliers)
    norm = jnp.sqrt(sum(jax.tree.leaves(squares)))
    return jax.tree.map(lambda gradient: jnp.where(norm <= limit, gradient, gradient * (limit / norm)), gradients)

  return clip


def _drop_frozen_layers(gradients: PyTree, scales: Settings) -> PyTree:
  """Convert gradients to float32; zero those of frozen stacked layers."""

  def drop(path: tuple[Any, ...], gradient: Array) -> Array:
    trains = [float(value is not None) for value in scales[path_name(path)]]
    full = gradient.astype(jnp.float32)
    return full if all(trains) else jnp.where(groups.factor(trains, jnp.zeros(()), full.ndim) == 0, 0.0, full)

  return jax.tree_util.tree_map_with_path(drop, gradients)


def _check_split(trainable: PyTree, trained: frozenset[str]) -> None:
  paths = {path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(trainable)}
  if paths != trained:
    path = sorted(paths ^ trained)[0]
    raise ValueError(f'{path!r} is {"frozen" if path in paths else "missing"}: pass the first result of split(params)')
