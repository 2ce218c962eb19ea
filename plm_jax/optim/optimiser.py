"""The optimiser of a run: an update rule, a schedule, and what each parameter gets of them.

    optimiser = optim.make(params=shapes, steps=100_000, name='adamw', rate=1e-4, schedule='linear', warmup=0.1,
                           decay=(('.*/(bias|scale)', 0.0), ('.*', 0.01)),
                           scale=(('trunk/embed/.*', None), ('trunk/layers/0/.*', 0.5), ('.*', 1.0)), clip=1.0)
    trainable, frozen = optimiser.split(params)
    state = optimiser.init(trainable)
    gradients = jax.grad(lambda trainable: loss(optim.merge(trainable, frozen)))(trainable)
    updates, state = optimiser.update(gradients, state, trainable)

`rules.py`, `schedules.py` and `groups.py` say what the names, their keywords and the patterns mean. What to do about a
gradient that is not finite is left to the caller.
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
from plm_jax.core.param_paths import group_name, path_name
from plm_jax.core.types import EVERYTHING, Array, Momentum, PyTree, Duration
from plm_jax.optim import averages, groups, rules, schedules
from plm_jax.optim.groups import Multiplier, Settings, Written

ClipBy = Literal['norm', 'element']
_OWN = ('steps', 'warmup')  # keywords of schedules that `make` has itself


class Optimiser(NamedTuple):
  """Pure functions that train a parameter tree; `trainable` and `frozen` are that tree with None where a leaf is not.

  Attributes:
    init: trainable -> state. Moments are float32, of the shape of their parameter and in its box of axis names, if any.
    update: (gradients, state, trainable, kept) -> (what to add to trainable, state). Gradients as they come; `kept` is
      `Loss.kept`, whose parameters get these values in place of an update by the rule.
    rate: step -> base learning rate f32[], without multipliers and without the fall of a plateau schedule.
    now: state -> the base rate of the next update f32[], with that fall, and without updates that were skipped.
    eval_params: (state, parameters) -> the parameters to evaluate: averaged where the run averages, else the same.
      Takes the whole tree or its trainable part.
    split: parameters -> (trainable, frozen).
    count: parameters -> how many numbers train; of a stacked parameter only those of layers that do.
    observe: (state, validation metric of which a smaller one is better) -> state. Plateau schedules and the start of
      NT-ASGD read it; of accuracy and the like it takes the metric times -1.
    check_rows: paths -> None; raises a ConfigError where rows of these parameters cannot be updated by themselves.
  """

  init: Callable[[PyTree], PyTree]
  update: Callable[..., tuple[PyTree, PyTree]]
  rate: Callable[[Array], Array]
  now: Callable[[PyTree], Array]
  eval_params: Callable[[PyTree, PyTree], PyTree]
  split: Callable[[PyTree], tuple[PyTree, PyTree]]
  count: Callable[[PyTree], int]
  observe: Callable[[PyTree, float], PyTree]
  check_rows: Callable[[Iterable[str]], None]


def make(
  *,
  params: PyTree,
  steps: int,
  trains: Sequence[str] = EVERYTHING,
  rate: Annotated[float, '0 <= x <= 1000'],
  name: Annotated[str, 'optim.rules'] = 'adamw',
  schedule: Annotated[str, 'optim.schedules'] = 'linear',
  warmup: Duration = 0,
  decay: Written | Multiplier = 0.0,
  scale: Written = (('.*', 1.0),),
  clip: Annotated[float, '0 < x'] | None = None,
  clip_by: ClipBy = 'norm',
  ema: Momentum | None = None,
  **rest: Any,
) -> Optimiser:
  """Returns the optimiser of a run.

  Args:
    params: the whole parameter tree, or its shapes.
    steps: horizon of the schedule.
    trains: `Task.trains`; all other parameters are frozen whatever `scale` says.
    rate: peak learning rate.
    name: a function of `rules.py`.
    schedule: a function of `schedules.py`.
    warmup: steps of linear warmup; a float up to 1.0 is a fraction of `steps`.
    decay: weight decay of each parameter; the value 'rate' decays by the learning rate itself (PaLM's lr^2).
    scale: multiplier of the rate of each parameter, see `groups.resolve`. None freezes: no gradient, no moments, no
      part in the clip norm.
      A multiplier that is 0 at some step (a part that joins later) also keeps out of the clip norm; its moments gather
      meanwhile, so that its first update has the usual size.
    clip: limit on the gradient; None for none.
    clip_by: 'norm' scales all gradients so that their joint norm is at most `clip`; 'element' bounds each number.
    ema: decay of an exponential mean of the parameters, which evaluation then uses.
    **rest: keywords of the rule and of the schedule.

  Raises:
    ConfigError: an unknown name, a keyword that neither rule nor schedule takes, a group that does not fit `params`.
    ValueError: a setting out of range.
  """
  make_rule = schedules.choose(rules.RULES, name, label='optim.name', what='optimiser')
  shape = schedules.choose(schedules.SCHEDULES, schedule, label='optim.schedule', what='schedule')
  of_rule, of_shape = _share(rest, make_rule, shape)
  if not 0 <= rate < math.inf:
    raise ValueError(f'optim.rate={rate}: a number from 0 on')
  base_rate = schedules.make(name=schedule, rate=rate, steps=steps, warmup=warmup, **of_shape)
  scales = groups.restrict(groups.resolve(scale, params, steps=steps, what='scale'), scale, params, trains=trains)
  decays = groups.resolve(decay, params, steps=steps, what='decay', words={'rate': base_rate})
  trained = frozenset(path for path, values in scales.items() if any(value is not None for value in values))
  if not trained:
    raise ConfigError('optim.scale freezes every parameter that the task trains: nothing is left to train.')
  context = rules.Context(
    rules.add_decay({path: decays[path] for path in trained}),
    lambda values, key: groups.resolve(values, params, steps=steps, what=key),
    rate,
  )
  rule = make_rule(context, **of_rule)
  average = _choose_average(rule, ema, name=name)
  falls = shape is schedules.plateau
  of_plateau = {key: value for key, value in of_shape.items() if key != 'mode'}  # `observe` has the sign of the metric
  s = _Settings(
    rate=base_rate,
    scales=scales,
    trained=trained,
    direction=rule.direction,
    average=average,
    limit=_make_clip(clip, clip_by),
    # jitted, because an array that spans several hosts takes no part in eager arithmetic
    observe_average=average and jax.jit(average.observe),
    observe_plateau=jax.jit(partial(schedules.observe_plateau, **of_plateau)) if falls else None,
  )
  return Optimiser(
    init=partial(_init, s),
    update=partial(_update, s),
    rate=base_rate,
    now=partial(_now, s),
    eval_params=partial(_eval_params, s),
    split=partial(_split, s),
    count=partial(_count, s),
    observe=partial(_observe, s),
    check_rows=partial(_check_rows, make_rule, decays, average),
  )


class _Settings(NamedTuple):
  """What the functions of an optimiser are bound to.

  Attributes:
    rate: step -> base learning rate.
    scales: multipliers of the rate.
    trained: paths of the parameters that train.
    direction: the update rule.
    average: of the parameters, where evaluation reads one.
    limit: (gradients, multipliers) -> clipped gradients.
    observe_average: (state of the average, metric) -> its next state.
    observe_plateau: (state of the plateau schedule, metric) -> its next state; None for other schedules.
  """

  rate: Callable[[Array], Array]
  scales: Settings
  trained: frozenset[str]
  direction: optax.GradientTransformation
  average: averages.Average | None
  limit: Callable[[PyTree, PyTree], PyTree]
  observe_average: Callable[[PyTree, Any], PyTree] | None
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
  _check_split(trainable, s.trained)
  step = state['count']
  full = jax.tree.map(lambda param: param.astype(jnp.float32), trainable)
  multipliers = groups.factors(s.scales, trainable, step)
  gradients = s.limit(_drop_frozen_layers(gradients, s.scales), multipliers)
  direction, rule_state = s.direction.update(gradients, state['rule'], full)
  now = _now(s, state)
  updates = jax.tree.map(
    # a frozen layer does not move, even where its direction is not finite
    lambda by, way, param: jnp.where(by == 0, 0.0, -now * by * way).astype(param.dtype),
    multipliers,
    direction,
    trainable,
  )
  updates = _towards(kept, updates, trainable)
  state = state | {'count': step + 1, 'rule': rule_state}
  if s.average is not None:
    after = jax.tree.map(jnp.add, trainable, updates)
    state |= {'average': s.average.update(state['average'], after, step)}
  return updates, state


def _towards(kept: Mapping[str, Array], updates: PyTree, trainable: PyTree) -> PyTree:
  """The updates, of parameters that have a value in `kept` those that give it to them."""

  def one(path: tuple[Any, ...], update: Array, param: Array) -> Array:
    name = path_name(path)
    return kept[name] - param if name in kept else update

  return jax.tree_util.tree_map_with_path(one, updates, trainable)


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
  rule: Callable[..., Any], decays: Settings, average: averages.Average | None, tables: Iterable[str]
) -> None:
  for path in tables:
    reasons = {
      f'optim.name={rule.__name__!r} moves whole tensors': rule not in rules.BY_ROW,
      'optim.decay shrinks all of its rows': any(value not in (0, None) for value in decays[path]),
      'evaluation reads an average of all of its rows': average is not None,
    }
    for reason, holds in reasons.items():
      if holds:
        names = ' or '.join(one.__name__ for one in rules.BY_ROW)
        raise ConfigError(
          f'optim: the task updates few rows of {path} per step, and {reason}: choose optim.name {names} '
          'without decay and ema, or let the task update whole tables'
        )


def arrays(state: PyTree) -> PyTree:
  """What the state of an optimiser holds for each parameter: moments, and averages where there are any."""
  averages = {'average': {'params': state['average']['params']}} if 'average' in state else {}
  return {'rule': state['rule'], **averages}


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
  rest: Mapping[str, Any], rule: Callable[..., Any], schedule: Callable[..., Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
  """The keywords of the rule and those of the schedule; ConfigError for one that neither takes."""
  of_rule, of_shape = ([key for key in schedules.keywords(one) if key not in _OWN] for one in (rule, schedule))
  for key in rest:
    if key not in (*of_rule, *of_shape):
      others = [one.__name__ for one in (*rules.RULES, *schedules.SCHEDULES) if key in schedules.keywords(one)]
      hint = f' It is a keyword of {", ".join(others)}.' if others else suggest(key, [*of_rule, *of_shape])
      raise ConfigError(
        f'optim.{key}: neither name={rule.__name__!r} nor schedule={schedule.__name__!r} takes it.{hint} '
        f'{rule.__name__} takes {", ".join(of_rule) or "nothing"}; '
        f'{schedule.__name__} takes {", ".join(of_shape) or "nothing"}.'
      )
  return {key: rest[key] for key in of_rule if key in rest}, {key: rest[key] for key in of_shape if key in rest}


def _choose_average(rule: rules.Rule, ema: float | None, *, name: str) -> averages.Average | None:
  if ema is None:
    return rule.average
  if rule.average is not None:
    raise ConfigError(f'optim.ema={ema}: optim.name={name!r} has an average of its own; leave one of them out.')
  return averages.exponential_mean(ema)


def _make_clip(limit: float | None, by: ClipBy) -> Callable[[PyTree, PyTree], PyTree]:
  """(gradients, multipliers) -> gradients within the limit."""
  one_of('optim.clip_by', by, ClipBy)
  if limit is not None and limit <= 0:
    raise ConfigError(f'optim.clip={limit}: a limit is positive; None clips nothing.')

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


def _check_split(trainable: PyTree, trained: frozenset[str]) -> None:
  paths = {path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(trainable)}
  if paths != trained:
    odd = sorted(paths ^ trained)[0]
    raise ValueError(f'{odd!r} is {"frozen" if odd in paths else "missing"}: give the first part of Optimiser.split')
