"""Ordered (regex, value) lists over parameter paths, for decay masks, freezing and layer-wise rates.

The first pattern that matches a whole path decides (`re.fullmatch`). A path without a pattern is an error, and so is a
pattern without a path. Parameters of a stack of layers are one array with the layers on axis 0, below a path component
`layers`. Patterns match each layer separately: `trunk/layers/attention/query/kernel` of 12 layers is matched as
`trunk/layers/0/attention/query/kernel` to `trunk/layers/11/attention/query/kernel`.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.config.values import as_steps
from plm_jax.core.errors import ConfigError, near
from plm_jax.core.keywords import Duration, Rate
from plm_jax.core.param_paths import group_name, is_stacked, path_name, virtual_paths
from plm_jax.core.types import EVERYTHING, Array, PyTree
from plm_jax.optim.schedules import Schedule

Value = float | None | Schedule
Groups = Sequence[tuple[str, Any]]
# values in a config; `resolve` also takes functions of the step
Multiplier = Annotated[float, '0 <= x <= 1000']
Scheduled = Mapping[
  Literal['unfreeze', 'during', 'gradual', 'layerwise', 'below', 'scale'],
  Duration | Sequence[tuple[Duration, Duration]],
]
Written = Sequence[tuple[Annotated[str, 'pattern'], Multiplier | Literal['rate'] | Scheduled | None]]
Decays = Sequence[tuple[Annotated[str, 'pattern'], Rate | Literal['rate'] | Scheduled | None]]
Settings = Mapping[str, tuple[Value, ...]]


@dataclasses.dataclass(frozen=True)
class Unfreeze:
  """Schedule of parameters that join later: 0 before step `start`, `scale` from then on.

  In a config: `dict(unfreeze=start, scale=scale)`; a float start is a fraction of the run.
  """

  start: int
  scale: float = 1.0

  def __call__(self, step: Array) -> Array:
    return jnp.where(step >= self.start, self.scale, 0.0)

  def __str__(self) -> str:
    return f'{self.scale:g} from step {self.start}'


@dataclasses.dataclass(frozen=True)
class During:
  """Schedule of parameters that train in some intervals: `scale` from `begin` to before `end` of each, 0 elsewhere.

  In a config: `dict(during=((begin, end), ...), scale=scale)`; floats are fractions of the run. Chain-thaw (Felbo et
  al. 2017, §3.3) trains one part at a time and then all of them.
  """

  intervals: tuple[tuple[int, int], ...]
  scale: float = 1.0

  def __call__(self, step: Array) -> Array:
    inside = [(step >= begin) & (step < end) for begin, end in self.intervals]
    return jnp.where(jnp.stack(inside).any(axis=0), self.scale, 0.0)

  def __str__(self) -> str:
    return f'{self.scale:g} in steps {", ".join(f"{begin}-{end - 1}" for begin, end in self.intervals)}'


@dataclasses.dataclass(frozen=True)
class Layerwise:
  """Layer-wise decay: `scale` in the last layer of a stack, times `factor` for each layer below.

  In a config: `dict(layerwise=factor, scale=scale)`, for any depth. Outside a stack it is `scale`, or with `below=1`
  the value one layer below the lowest, for embeddings.
  """

  factor: float
  scale: float = 1.0
  below: int = 0

  def at(self, distance: int | None, *, layers: int) -> Value:
    """Compute the value `distance` layers below the last.

    None is outside a stack; `layers` is the depth of the model.
    """
    if distance is None:
      distance = layers - 1 + self.below if self.below else 0
    return self.scale * self.factor**distance


@dataclasses.dataclass(frozen=True)
class Gradual:
  """Gradual unfreezing from the top of a stack down (Howard and Ruder 2018, §3.3).

  The last layer joins after one period, the layer below it after two, and so on. Before, its value is 0; after, it is
  `scale`, times `factor` for each layer below the last. Parameters outside a stack join at the end, one layer below the
  lowest. This is for embeddings; a pooler or a final norm needs a separate pattern. In a config:
  `dict(gradual=period, layerwise=factor, scale=scale)`; a float period is a fraction of the run.
  """

  period: int
  factor: float = 1.0
  scale: float = 1.0

  def at(self, distance: int | None, *, layers: int) -> Value:
    """Compute the schedule, with arguments as for `Layerwise`."""
    distance = layers if distance is None else distance
    return Unfreeze((distance + 1) * self.period, self.scale * self.factor**distance)


@dataclasses.dataclass(frozen=True)
class Named:
  """A schedule with a name in configs."""

  name: str
  function: Schedule = jnp.zeros_like

  def __call__(self, step: Array) -> Array:
    return self.function(step)

  def __str__(self) -> str:
    return self.name


def resolve(
  groups: Groups | float, params: PyTree, *, steps: int, what: str, words: Mapping[str, Schedule] | None = None
) -> Settings:
  """Resolve the value of every parameter.

  Args:
    groups: (pattern, value) pairs; a bare number is for every parameter. A value is a number, None, a function of the
      step, one of `words`, or a dict as for `Unfreeze`, `During`, `Layerwise` and `Gradual`.
    params: tree of arrays or of their shapes.
    steps: horizon of the run, for starts given as a fraction.
    what: the config key, for messages.
    words: names of values that the caller defines.

  Returns:
    path -> one value for each layer of a stacked parameter, a single value for others.

  Raises:
    ConfigError: a parameter without a pattern, a pattern without a parameter, a pattern that is always overruled, a
      value of another kind.
  """
  # 1. parse the values
  patterns = _parse_groups(groups, steps=steps, what=what, words=words or {})
  # 2. paths of each parameter, one for each layer of a stacked one
  leaves = jax.tree_util.tree_leaves_with_path(params)
  paths = {path_name(path): virtual_paths(path_name(path), leaf) for path, leaf in leaves}
  stacked = {path_name(path) for path, leaf in leaves if is_stacked(path_name(path), leaf)}
  deepest = max((len(paths[path]) for path in stacked), default=1)
  # 3. the first match of each path decides
  settings: dict[str, tuple[Value, ...]] = {}
  matched: set[str] = set()
  useful: set[str] = set()
  for path, layer_paths in paths.items():
    values = []
    for layer, layer_path in enumerate(layer_paths):
      hits = [(pattern, value) for pattern, regex, value in patterns if regex.fullmatch(layer_path)]
      if not hits:
        raise ConfigError(
          f"optim.{what}: no pattern matches {layer_path!r}: end the list with ('.*', value). "
          f'Patterns: {", ".join(repr(pattern) for pattern, _, _ in patterns) or "none"}'
        )
      first: Any = hits[0][1]
      if isinstance(first, Layerwise | Gradual):
        first = first.at(len(layer_paths) - 1 - layer if path in stacked else None, layers=deepest)
      values.append(first)
      matched.update(pattern for pattern, _ in hits)
      useful.update(pattern for pattern, value in hits if value == hits[0][1])
    settings[path] = tuple(values)
  _check_used([pattern for pattern, _, _ in patterns], matched, useful, paths, what)
  return settings


def _parse_groups(
  groups: Groups | float, *, steps: int, what: str, words: Mapping[str, Schedule]
) -> list[tuple[str, re.Pattern[str], Value | Layerwise | Gradual]]:
  if isinstance(groups, int | float):
    groups = (('.*', groups),)
  patterns = []
  for entry in groups:
    if not isinstance(entry, list | tuple) or len(entry) != 2:
      raise ConfigError(f'optim.{what}: {entry!r} is not a (pattern, value) pair: give a list of such pairs')
    pattern, value = entry
    patterns.append((pattern, re.compile(pattern), _parse(value, steps=steps, what=what, words=words)))
  return patterns


def restrict(settings: Settings, groups: Groups | float, params: PyTree, *, trains: Sequence[str]) -> Settings:
  """Set the multiplier of every parameter that the task freezes to None.

  `settings` are those that `resolve` returns for `groups` and `params`, and `trains` is `Task.trains`.

  Raises:
    ConfigError: a pattern other than '.*' has a multiplier, and matches only frozen parameters.
  """
  leaves = jax.tree_util.tree_leaves_with_path(params)
  paths = {path_name(path): virtual_paths(path_name(path), leaf) for path, leaf in leaves}
  patterns = [re.compile(pattern) for pattern in trains]
  layer_paths = [layer_path for paths_of_leaf in paths.values() for layer_path in paths_of_leaf]
  trainable = {path for path in layer_paths if any(pattern.fullmatch(path) for pattern in patterns)}
  for pattern, value in () if isinstance(groups, int | float) else groups:
    if pattern != '.*' and value is not None and not any(re.fullmatch(pattern, path) for path in trainable):
      raise ConfigError(
        f'optim.scale: {pattern!r} matches only parameters that the task freezes: remove it. These train: '
        f'{", ".join(sorted({group_name(path) for path in trainable})) or "none"}'
      )
  return {
    path: tuple(
      value if layer_path in trainable else None
      for value, layer_path in zip(settings[path], paths_of_leaf, strict=True)
    )
    for path, paths_of_leaf in paths.items()
  }


def _parse(value: Any, *, steps: int, what: str, words: Mapping[str, Schedule]) -> Value | Layerwise | Gradual:
  if isinstance(value, str) and value in words:
    return words[value]
  if value is None or (callable(value) and not isinstance(value, type)):
    return value
  if isinstance(value, int | float) and not isinstance(value, bool):
    return float(value)
  if isinstance(value, Mapping) and (schedule := _parse_dict(value, steps=steps, what=what)) is not None:
    return schedule
  dicts = [
    'dict(unfreeze=step, scale=1.0)',
    'dict(during=((begin, end), ...), scale=1.0)',
    'dict(gradual=period, layerwise=1.0, scale=1.0)',
    'dict(layerwise=factor, below=0, scale=1.0)',
    *map(repr, words),
  ]
  raise ConfigError(f'optim.{what}: {value!r} is not a value: give a number, None, {", ".join(dicts)}')


def _parse_dict(value: Mapping[str, Any], *, steps: int, what: str) -> Value | Layerwise | Gradual:
  """Parse the dict of a schedule; return None for other dicts."""
  keys, scale = set(value), value.get('scale', 1.0)
  if 'unfreeze' in value and keys <= {'unfreeze', 'scale'}:
    start = as_steps(value['unfreeze'], steps, f'{what} unfreeze')
    if start >= steps:
      raise ConfigError(
        f'optim.{what}: unfreeze={value["unfreeze"]!r} is step {start}, after the end of a run of {steps} steps: '
        'give an earlier step, or None instead of the dict'
      )
    return Unfreeze(start=start, scale=float(scale))
  if 'during' in value and keys <= {'during', 'scale'}:
    return During(intervals=_intervals(value['during'], steps=steps, what=what), scale=float(scale))
  if 'gradual' in value and keys <= {'gradual', 'layerwise', 'scale'}:
    period = as_steps(value['gradual'], steps, f'{what} gradual')
    if not period:
      raise ConfigError(
        f'optim.{what}: {dict(value)!r} has a period of no step: {value["gradual"]} of {steps} steps is 0; '
        'give a longer period'
      )
    return Gradual(period=period, factor=float(value.get('layerwise', 1.0)), scale=float(scale))
  if 'layerwise' in value and keys <= {'layerwise', 'below', 'scale'} and float(value.get('below', 0)).is_integer():
    return Layerwise(factor=float(value['layerwise']), scale=float(scale), below=int(value.get('below', 0)))
  return None


def _intervals(pairs: Any, *, steps: int, what: str) -> tuple[tuple[int, int], ...]:
  """Convert pairs of begin and end to steps.

  Raises ConfigError if there is none, or one is not a pair, has no step or begins after the run.
  """
  is_list = isinstance(pairs, list | tuple)
  if not is_list or not pairs or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
    raise ConfigError(
      f'optim.{what}: during={pairs!r}: give pairs of a begin and an end, such as ((0, 0.1), (0.5, 1.0))'
    )
  intervals = tuple(
    (as_steps(begin, steps, f'{what} during'), as_steps(end, steps, f'{what} during')) for begin, end in pairs
  )
  for pair, (begin, end) in zip(pairs, intervals, strict=True):
    if begin >= end:
      raise ConfigError(
        f'optim.{what}: during={tuple(pair)!r} is empty: from {begin} to before {end} of {steps} steps; '
        'give a later end'
      )
    if begin >= steps:
      raise ConfigError(
        f'optim.{what}: during={tuple(pair)!r} begins at step {begin}, after a run of {steps} steps: '
        'give an earlier begin'
      )
  return intervals


def _check_used(
  patterns: Sequence[str], matched: set[str], useful: set[str], paths: Mapping[str, list[str]], what: str
) -> None:
  for pattern in patterns:
    if pattern not in matched:
      first_paths = [layer_paths[0] for layer_paths in paths.values()]
      similar = near(pattern, first_paths, cutoff=0.3)
      sample = [path for path in first_paths[:: max(len(first_paths) // 3, 1)] if path not in similar]
      raise ConfigError(
        f'optim.{what}: {pattern!r} matches no parameter. A pattern must match a whole path, such as '
        f'{", ".join([*similar, *sample][:4])} ({len(first_paths)} in total)'
      )
    if pattern not in useful and pattern != '.*':
      raise ConfigError(
        f'optim.{what}: {pattern!r} has no effect, because earlier patterns match all of its parameters: '
        'move it before the more general ones'
      )


def factor(values: Sequence[Value], step: Array, ndim: int) -> Array | np.ndarray:
  """Compute the factor of a parameter with `ndim` axes at a step.

  Returns f32[], or f32[n, 1, ...] for n layers. None counts as 0.
  """
  numbers = [value(step) if callable(value) else value or 0.0 for value in values]
  if len(numbers) == 1:
    return jnp.asarray(numbers[0], jnp.float32)
  stacked: Array | np.ndarray
  if any(callable(value) for value in values):
    stacked = jnp.stack([jnp.asarray(number, jnp.float32) for number in numbers])
  else:
    stacked = np.asarray(numbers, np.float32)
  return stacked.reshape((-1,) + (1,) * (ndim - 1))


def factors(settings: Settings, tree: PyTree, step: Array) -> PyTree:
  """Compute `factor` for every leaf of `tree`."""
  return jax.tree_util.tree_map_with_path(
    lambda path, leaf: factor(settings[path_name(path)], step, len(leaf.shape)), tree
  )


def table(
  params: PyTree, *, scale: Groups | float, decay: Groups | float, steps: int, trains: Sequence[str] = EVERYTHING
) -> str:
  """Render rates and weight decay by part; arguments as in `optim.make`.

  Neighbouring layers with equal values share a line.
  """
  scales = restrict(resolve(scale, params, steps=steps, what='scale'), scale, params, trains=trains)
  decays = resolve(decay, params, steps=steps, what='decay', words={'rate': Named('rate')})
  rows: dict[tuple[str, str, str], _Row] = {}
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    name = path_name(path)
    layer_paths = virtual_paths(name, leaf)
    for index, layer_path in enumerate(layer_paths):
      key = (group_name(layer_path), _text(scales[name][index]), _text(decays[name][index]))
      layers, counts = rows.setdefault(key, _Row(layers=set(), counts=[]))
      layers.update({index} if is_stacked(name, leaf) else ())
      counts.append(math.prod(leaf.shape) // len(layer_paths))
  lines = [('parameters of', 'layers', 'tensors', 'numbers', 'rate x', 'decay')]
  parts = [part for part, _, _ in rows]
  order = sorted(rows.items(), key=lambda item: (parts.index(item[0][0]), min(item[1].layers, default=0)))
  for (group, rate, decayed), row in order:
    lines.append((group, _ranges(row.layers), str(len(row.counts)), f'{sum(row.counts):,}', rate, decayed))
  trained = sum(sum(row.counts) for (_, rate, _), row in rows.items() if rate != 'frozen')
  total = sum(sum(row.counts) for row in rows.values())
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  text = '\n'.join(
    '  '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
  )
  return f'{text}\n{trained:,} of {total:,} parameters train'


class _Row(NamedTuple):
  layers: set[int]
  counts: list[int]


def _text(value: Value) -> str:
  if value is None:
    return 'frozen'
  return str(value) if callable(value) else f'{value:g}'


def _ranges(layers: Iterable[int]) -> str:
  """Render layers as ranges: {0, 1, 2, 5} -> '0-2,5'."""
  ranges: list[list[int]] = []
  for layer in sorted(layers):
    if ranges and layer == ranges[-1][-1] + 1:
      ranges[-1] = [ranges[-1][0], layer]
    else:
      ranges.append([layer])
  return ','.join('-'.join(map(str, ends)) for ends in ranges)
