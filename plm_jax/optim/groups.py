"""Ordered (regex, value) lists over parameter paths: one mechanism for decay masks, freezing and layer-wise rates.

The first pattern that matches a whole path decides (`re.fullmatch`); a path that no pattern matches is an error, and so
is a pattern that matches nothing. Parameters of a stack of layers are one array with the layers along axis 0, below a
path component `layers`; a pattern sees each layer as if it had its own parameter: `trunk/layers/attention/query/kernel`
of 12 layers is matched as `trunk/layers/0/attention/query/kernel` to `trunk/layers/11/attention/query/kernel`.
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
from plm_jax.core.param_paths import group_name, is_stacked, path_name, virtual_paths
from plm_jax.core.types import EVERYTHING, Array, PyTree, Duration
from plm_jax.optim.schedules import Schedule

Value = float | None | Schedule
Groups = Sequence[tuple[str, Any]]
# what a config may write; `resolve` also takes functions of the step
Multiplier = Annotated[float, '0 <= x <= 1000']
Written = Sequence[
  tuple[
    Annotated[str, 'pattern'],
    Multiplier
    | Literal['rate']
    | Mapping[
      Literal['unfreeze', 'during', 'gradual', 'layerwise', 'below', 'scale'],
      Duration | Sequence[tuple[Duration, Duration]],
    ]
    | None,
  ]
]
Settings = Mapping[str, tuple[Value, ...]]


@dataclasses.dataclass(frozen=True)
class Unfreeze:
  """The schedule of a part that joins later: 0 before step `start`, `scale` from then on.

  A config spells it `dict(unfreeze=start, scale=scale)`; a float start is a fraction of the run.
  """

  start: int
  scale: float = 1.0

  def __call__(self, step: Array) -> Array:
    return jnp.where(step >= self.start, self.scale, 0.0)

  def __str__(self) -> str:
    return f'{self.scale:g} from step {self.start}'


@dataclasses.dataclass(frozen=True)
class During:
  """The schedule of a part that trains by turns: `scale` from `begin` to before `end` of each stretch, and 0 elsewhere.

  A config spells it `dict(during=((begin, end), ...), scale=scale)`; floats are fractions of the run. Chain-thaw (Felbo
  et al. 2017, §3.3) has one part at a time and then all of them.
  """

  stretches: tuple[tuple[int, int], ...]
  scale: float = 1.0

  def __call__(self, step: Array) -> Array:
    inside = [(step >= begin) & (step < end) for begin, end in self.stretches]
    return jnp.where(jnp.stack(inside).any(axis=0), self.scale, 0.0)

  def __str__(self) -> str:
    return f'{self.scale:g} in steps {", ".join(f"{begin}-{end - 1}" for begin, end in self.stretches)}'


@dataclasses.dataclass(frozen=True)
class Layerwise:
  """A value that falls from the top of a stack down: `scale` in the last layer, times `factor` for each layer below.

  A config spells it `dict(layerwise=factor, scale=scale)`; it fits a model of any depth. Outside a stack it is `scale`,
  or with `below=1` that of one layer below the lowest, for embeddings.
  """

  factor: float
  scale: float = 1.0
  below: int = 0

  def at(self, distance: int | None, *, layers: int) -> Value:
    """The value so many layers below the last; None for outside a stack, in a model of `layers` layers."""
    if distance is None:
      distance = layers - 1 + self.below if self.below else 0
    return self.scale * self.factor**distance


@dataclasses.dataclass(frozen=True)
class Gradual:
  """Gradual unfreezing from the top of a stack down (Howard and Ruder 2018, §3.3).

  The last layer joins after one period, the one below it after two, and so on. Until a layer joins its value is 0, and
  then `scale`, times `factor` for each layer below the last. What stands outside a stack joins at the end, as one layer
  below the lowest: that is meant for embeddings; a pooler or a last norm needs a pattern of its own. A config spells it
  `dict(gradual=period, layerwise=factor, scale=scale)`; a float period is a fraction of the run.
  """

  period: int
  factor: float = 1.0
  scale: float = 1.0

  def at(self, distance: int | None, *, layers: int) -> Value:
    """As that of `Layerwise`."""
    distance = layers if distance is None else distance
    return Unfreeze((distance + 1) * self.period, self.scale * self.factor**distance)


@dataclasses.dataclass(frozen=True)
class Named:
  """A schedule that a config spells by name."""

  name: str
  function: Schedule = jnp.zeros_like

  def __call__(self, step: Array) -> Array:
    return self.function(step)

  def __str__(self) -> str:
    return self.name


def resolve(
  groups: Groups | float, params: PyTree, *, steps: int, what: str, words: Mapping[str, Schedule] | None = None
) -> Settings:
  """The value of every parameter.

  Args:
    groups: (pattern, value) pairs; a bare number holds for every parameter. A value is a number, None, a function of
      the step, one of `words`, or a dict as `Unfreeze`, `During`, `Layerwise` and `Gradual` spell it.
    params: tree of arrays or of their shapes.
    steps: horizon of the run, for starts given as a fraction.
    what: the config key, for messages.
    words: names of values that the caller defines.

  Returns:
    path -> one value for each layer of a stacked parameter, one value in all for others.

  Raises:
    ConfigError: a parameter without a pattern, a pattern without a parameter, a pattern that is always overruled, a
      value of another kind.
  """
  if isinstance(groups, int | float):
    groups = (('.*', groups),)
  patterns = []
  for entry in groups:
    if not isinstance(entry, list | tuple) or len(entry) != 2:
      raise ConfigError(f'optim.{what}: {entry!r} is not a (pattern, value) pair')
    pattern, value = entry
    patterns.append((pattern, re.compile(pattern), _parse(value, steps=steps, what=what, words=words or {})))

  leaves = jax.tree_util.tree_leaves_with_path(params)
  paths = {path_name(path): virtual_paths(path_name(path), leaf) for path, leaf in leaves}
  stacked = {path_name(path) for path, leaf in leaves if is_stacked(path_name(path), leaf)}
  deepest = max((len(paths[path]) for path in stacked), default=1)
  settings: dict[str, tuple[Value, ...]] = {}
  matched: set[str] = set()
  useful: set[str] = set()
  for path, seen in paths.items():
    values = []
    for layer, virtual in enumerate(seen):
      hits = [(pattern, value) for pattern, regex, value in patterns if regex.fullmatch(virtual)]
      if not hits:
        raise ConfigError(
          f"optim.{what}: no pattern matches {virtual!r}; end the list with ('.*', value). "
          f'Patterns: {", ".join(repr(pattern) for pattern, _, _ in patterns) or "none"}'
        )
      first: Any = hits[0][1]
      if isinstance(first, Layerwise | Gradual):
        first = first.at(len(seen) - 1 - layer if path in stacked else None, layers=deepest)
      values.append(first)
      matched.update(pattern for pattern, _ in hits)
      useful.update(pattern for pattern, value in hits if value == hits[0][1])
    settings[path] = tuple(values)
  _check_used([pattern for pattern, _, _ in patterns], matched, useful, paths, what)
  return settings


def restrict(settings: Settings, groups: Groups | float, params: PyTree, *, trains: Sequence[str]) -> Settings:
  """Multipliers with None for every parameter that may not train.

  Args:
    settings: of `resolve`.
    groups: what was resolved.
    params: tree of arrays or of their shapes.
    trains: `Task.trains`.

  Raises:
    ConfigError: a pattern beside '.*' has a multiplier, and matches only parameters that may not train.
  """
  seen = {path_name(path): virtual_paths(path_name(path), leaf)
          for path, leaf in jax.tree_util.tree_leaves_with_path(params)}  # fmt: skip
  patterns = [re.compile(pattern) for pattern in trains]
  may = {virtual for paths in seen.values() for virtual in paths if any(one.fullmatch(virtual) for one in patterns)}
  for pattern, value in () if isinstance(groups, int | float) else groups:
    if pattern != '.*' and value is not None and not any(re.fullmatch(pattern, virtual) for virtual in may):
      raise ConfigError(
        f'optim.scale: {pattern!r} matches only parameters that the task keeps frozen: leave it out. What trains is '
        f'{", ".join(sorted({group_name(virtual) for virtual in may})) or "nothing"}'
      )
  return {
    path: tuple(value if virtual in may else None for value, virtual in zip(settings[path], paths, strict=True))
    for path, paths in seen.items()
  }


def _parse(value: Any, *, steps: int, what: str, words: Mapping[str, Schedule]) -> Value | Layerwise | Gradual:
  if isinstance(value, str) and value in words:
    return words[value]
  if value is None or (callable(value) and not isinstance(value, type)):
    return value
  if isinstance(value, Mapping) and 'unfreeze' in value and set(value) <= {'unfreeze', 'scale'}:
    start = as_steps(value['unfreeze'], steps, f'{what} unfreeze')
    if start >= steps:
      raise ConfigError(
        f'optim.{what}: unfreeze={value["unfreeze"]!r}: the part joins at step {start} and never trains in a run of '
        f'{steps} steps: give an earlier step, or None in place of the dict'
      )
    return Unfreeze(start, float(value.get('scale', 1.0)))
  if isinstance(value, Mapping) and 'during' in value and set(value) <= {'during', 'scale'}:
    return During(_stretches(value['during'], steps=steps, what=what), float(value.get('scale', 1.0)))
  if isinstance(value, Mapping) and 'gradual' in value and set(value) <= {'gradual', 'layerwise', 'scale'}:
    period = as_steps(value['gradual'], steps, f'{what} gradual')
    if not period:
      raise ConfigError(
        f'optim.{what}: {dict(value)!r}: a period is one step or more, and {value["gradual"]} of {steps} is none'
      )
    return Gradual(period, float(value.get('layerwise', 1.0)), float(value.get('scale', 1.0)))
  whole = isinstance(value, Mapping) and float(value.get('below', 0)).is_integer()
  if whole and 'layerwise' in value and set(value) <= {'layerwise', 'below', 'scale'}:
    return Layerwise(float(value['layerwise']), float(value.get('scale', 1.0)), int(value.get('below', 0)))
  if isinstance(value, int | float) and not isinstance(value, bool):
    return float(value)
  spelled = [
    'dict(unfreeze=step, scale=1.0)',
    'dict(during=((begin, end), ...), scale=1.0)',
    'dict(gradual=period, layerwise=1.0, scale=1.0)',
    'dict(layerwise=factor, below=0, scale=1.0)',
    *map(repr, words),
  ]
  choices = ['a number', 'None', 'a function of the step', *spelled]
  raise ConfigError(f'optim.{what}: {value!r} is none of {", ".join(choices)}')


def _stretches(pairs: Any, *, steps: int, what: str) -> tuple[tuple[int, int], ...]:
  """Pairs of begin and end as steps.

  Raises:
    ConfigError: there is none, or one is no pair, has no step or begins behind the run.
  """
  is_list = isinstance(pairs, list | tuple)
  if not is_list or not pairs or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
    raise ConfigError(
      f'optim.{what}: during={pairs!r}: give pairs of a begin and an end, such as ((0, 0.1), (0.5, 1.0))'
    )
  found = tuple(
    (as_steps(begin, steps, f'{what} during'), as_steps(end, steps, f'{what} during')) for begin, end in pairs
  )
  for written, (begin, end) in zip(pairs, found, strict=True):
    if begin >= end:
      raise ConfigError(f'optim.{what}: during={tuple(written)!r} has no step: from {begin} to before {end} of {steps}')
    if begin >= steps:
      raise ConfigError(
        f'optim.{what}: during={tuple(written)!r} begins at step {begin}, behind the last one of a run of {steps} steps'
      )
  return found


def _check_used(
  patterns: Sequence[str], matched: set[str], useful: set[str], paths: Mapping[str, list[str]], what: str
) -> None:
  for pattern in patterns:
    if pattern not in matched:
      some = [seen[0] for seen in paths.values()]
      alike = near(pattern, some, cutoff=0.3)
      shown = alike + [path for path in some[:: max(len(some) // 6, 1)] if path not in alike]
      raise ConfigError(
        f'optim.{what}: {pattern!r} matches no parameter. A pattern must match the whole path; paths are '
        f'{", ".join(shown[:8])}, ... ({len(some)} in all)'
      )
    if pattern not in useful and pattern != '.*':
      raise ConfigError(
        f'optim.{what}: {pattern!r} has no effect: earlier patterns match every parameter that it matches. '
        'Put it before the more general ones'
      )


def factor(values: Sequence[Value], step: Array, ndim: int) -> Array | np.ndarray:
  """The values at a step, to multiply a parameter of `ndim` axes with: f32[], or f32[n, 1, ...] over layers.

  None counts as 0.
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
  """`factor` for every leaf of `tree`."""
  return jax.tree_util.tree_map_with_path(
    lambda path, leaf: factor(settings[path_name(path)], step, len(leaf.shape)), tree
  )


def table(
  params: PyTree,
  *,
  scale: Groups | float,
  decay: Groups | float,
  steps: int,
  trains: Sequence[str] = EVERYTHING,
) -> str:
  """What each part trains with, as text: parameters, rate multiplier and weight decay, neighbouring layers together.

  Args:
    params: tree of arrays or of their shapes.
    scale: learning-rate multipliers, as for `optim.make`.
    decay: weight decay, as for `optim.make`.
    steps: horizon of the run.
    trains: `Task.trains`.
  """
  scales = restrict(resolve(scale, params, steps=steps, what='scale'), scale, params, trains=trains)
  decays = resolve(decay, params, steps=steps, what='decay', words={'rate': Named('rate')})
  rows: dict[tuple[str, str, str], _Row] = {}
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    name = path_name(path)
    seen = virtual_paths(name, leaf)
    for index, virtual in enumerate(seen):
      key = (group_name(virtual), _text(scales[name][index]), _text(decays[name][index]))
      layers, counts = rows.setdefault(key, _Row(set(), []))
      layers.update({index} if is_stacked(name, leaf) else ())
      counts.append(math.prod(leaf.shape) // len(seen))
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


def _ranges(numbers: Iterable[int]) -> str:
  """{0, 1, 2, 5} as '0-2,5'."""
  out: list[list[int]] = []
  for number in sorted(numbers):
    if out and number == out[-1][-1] + 1:
      out[-1] = [out[-1][0], number]
    else:
      out.append([number])
  return ','.join('-'.join(map(str, span)) for span in out)
