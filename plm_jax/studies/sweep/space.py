"""Search spaces of a sweep: parsing, checking and enumerating points.

A space is a literal that maps a dotted key to a list of values, or to a block:

    {'optim.name': ['adamw', 'lamb'],
     'optim.rate': {'low': 1e-5, 'high': 1e-3, 'scale': 'log'},       any number in between
     'optim.warmup': {'low': 0, 'high': 1000, 'count': 5},            5 values in a grid; integers, as both ends are
     'optim.b2': {'values': [0.98, 0.999], 'when': {'optim.name': ['adamw']}},   only if another key has this value
     'seed': [0, 1, 2]}

A point maps a dotted key to a value as text, as on a command line.
"""

import ast
import contextlib
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from plm_jax import config
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.io import files

Point = dict[str, str]
Changed = Callable[[Sequence[tuple[str, str]]], Mapping[str, Any]]  # changes -> the config with them, without defaults
Scale = Literal['linear', 'log']
Method = Literal['grid', 'random', 'tpe', 'halving']
NAME = 'SPACE'  # name of the literal in a Python file
FIELDS = ('values', 'low', 'high', 'scale', 'count', 'when')
LARGEST_GRID = 100_000
PLAIN = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.UnaryOp)  # nodes of a literal


class Key(NamedTuple):
  """One key of a space."""

  name: str  # dotted key, as in `--config.NAME`
  values: tuple[str, ...] = ()  # values as text; empty for a range
  low: float = 0  # lower end of a range; an integer if both ends are
  high: float = 0  # upper end of a range
  scale: Scale = 'linear'  # linear or logarithmic range
  points: int | None = None  # number of values of a range in a grid; None means every integer
  when: Mapping[str, tuple[str, ...]] = {}  # earlier key -> values (as text) that this key requires

  @property
  def whole(self) -> bool:
    """Return whether a range has only integers."""
    return isinstance(self.low, int) and isinstance(self.high, int)

  def is_in(self, point: Mapping[str, str]) -> bool:
    """Return whether the earlier keys in `point` meet the conditions."""
    return all(point.get(other) in values for other, values in self.when.items())

  def steps(self) -> tuple[str, ...]:
    """List the values of the key in a grid, as text.

    Raises ConfigError: a range without `count`, or with too many values.
    """
    if self.values:
      return self.values
    if self.points is None and not self.whole:
      raise ConfigError(f'--space: {self.name}: a range in a grid needs count, a number of values.')
    count = self.points or round(self.high - self.low) + 1
    if count > LARGEST_GRID:
      raise ConfigError(
        f'--space: {self.name}: {count:,} values of one key are too many: set a smaller count, or use --method=random.'
      )
    is_log = self.scale == 'log' and self.points is not None
    low, high = (math.log(end) if is_log else end for end in (self.low, self.high))
    ticks = [low + (high - low) * i / max(count - 1, 1) for i in range(count)]
    inner = [math.exp(tick) if is_log else tick for tick in ticks[1:-1]]
    numbers = [self.low, *inner, *([self.high] if count > 1 else [])]
    texts = [as_text(round(number) if self.whole else float(f'{number:.6g}')) for number in numbers]
    return tuple(dict.fromkeys(texts))


Space = tuple[Key, ...]


def as_text(value: Any) -> str:
  """Format a value as on a command line."""
  return value if isinstance(value, str) else repr(value)


def read(text: str) -> Space:
  """Read the space of `--space`: a literal, or a Python file's `SPACE`.

  The text is parsed, not executed. Raises ConfigError: no such file, no literal, or no space.
  """
  if text.lstrip().startswith(('{', '[', '(')):  # `parse` rejects a list
    return parse(_literal(text, '--space'))
  path = files.path(text.partition('.py:')[0] + '.py' if '.py:' in text else text)
  if not files.is_file(path):
    raise ConfigError(
      f'--space={text}: there is no such file. Give a file, or a literal such as "{{\'optim.rate\': [1e-4]}}".'
    )
  try:
    tree = ast.parse(files.read_text(path))
  except (SyntaxError, ValueError) as error:
    raise ConfigError(f'--space={text}: {path} is not valid Python: {error}.') from None
  literals = [
    node.value
    for node in tree.body
    if isinstance(node, ast.Assign | ast.AnnAssign)
    and node.value is not None
    and [ast.unparse(target) for target in (node.targets if isinstance(node, ast.Assign) else [node.target])] == [NAME]
  ]
  if not literals:
    raise ConfigError(f'--space={text}: {path} does not assign {NAME} = {{...}}: add it, or give the literal itself.')
  return parse(_literal(ast.unparse(literals[-1]), f'{NAME} in {path}'))


def _literal(text: str, label: str) -> Any:
  tree = None
  try:
    tree = ast.parse(text.strip(), mode='eval')
    value = ast.literal_eval(tree)
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
  except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
    nodes = [node for node in (() if tree is None else ast.walk(tree)) if isinstance(node, ast.expr)]
    wrong = [node for node in nodes if not isinstance(node, PLAIN)]
    cause = f'{errors.shown(ast.unparse(wrong[0]))} is neither a number nor a quoted string' if wrong else error
    raise ConfigError(f"{label}: expected a literal such as {{'optim.rate': [1e-4, 3e-4]}}: {cause}.") from None
  for block in blocks:
    keys = Counter(key.value for key in block.keys if isinstance(key, ast.Constant))
    if twice := [key for key, count in keys.items() if count > 1]:
      raise ConfigError(f'{label}: the key {twice[0]!r} is given twice.')  # Python would use the last one
  return value


def parse(literal: Any) -> Space:
  """Parse the literal of a space; raise ConfigError for a wrong key."""
  if not isinstance(literal, Mapping) or not literal or not all(isinstance(key, str) for key in literal):
    raise ConfigError(f'--space: expected a dict with at least one config key, got {literal!r}.')
  space: list[Key] = []
  for name, block in literal.items():
    for other in literal:
      if name.startswith(f'{other}.'):
        raise ConfigError(f'--space: {other} contains {name}, so both cannot be changed: remove one of them.')
    space.append(_key(name, block, {key.name: key for key in space}))
  return tuple(space)


def _key(name: str, block: Any, earlier: Mapping[str, Key]) -> Key:
  label = f'--space: {name}'
  given = block if isinstance(block, Mapping) else {'values': block}
  for field in given:
    errors.check_choice(label, 'field', field, FIELDS)
  when = _when(label, given.get('when', {}), earlier)
  if 'values' in given:
    values = given['values']
    if not isinstance(values, list | tuple) or not values or len(given.keys() - {'values', 'when'}):
      raise ConfigError(f'{label}: expected a list of values, or low and high, got {block!r}.')
    texts = tuple(map(as_text, values))
    numbers = [value for value in values if _is_number(value)]
    if len(set(texts)) < len(texts) or len(set(numbers)) < len(numbers):
      raise ConfigError(f'{label}: a value occurs twice in {list(values)!r}.')
    return Key(name, values=texts, when=when)
  low, high, count = (given.get(field) for field in ('low', 'high', 'count'))
  scale = given.get('scale', 'linear')
  with errors.stage(label):
    errors.one_of(f'{label}: scale', scale, Scale)
  if not (_is_number(low) and _is_number(high) and low < high):  # type: ignore[operator]
    raise ConfigError(f'{label}: a range needs low and high, numbers with low < high, got {block!r}.')
  ends: tuple[float, float] = low, high  # type: ignore[assignment]
  if scale == 'log' and ends[0] <= 0:
    raise ConfigError(f'{label}: with scale log, low must be above 0, got {low!r}.')
  if count is not None and not (type(count) is int and count > 0):
    raise ConfigError(f'{label}: count: expected an integer of 1 or more, got {count!r}.')
  if not all(isinstance(end, int) for end in ends):
    ends = float(ends[0]), float(ends[1])
  return Key(name, low=ends[0], high=ends[1], scale=scale, points=count, when=when)


def _is_number(value: Any) -> bool:
  if not isinstance(value, int | float) or isinstance(value, bool):
    return False
  return abs(value) <= sys.float_info.max  # false for inf, nan and integers beyond a float


def _when(label: str, when: Any, earlier: Mapping[str, Key]) -> dict[str, tuple[str, ...]]:
  if not isinstance(when, Mapping):
    raise ConfigError(f"{label}: when: expected a dict such as {{'optim.name': ['adamw']}}, got {when!r}.")
  conditions = {}
  for other, values in when.items():
    errors.check_choice(f'{label}: when', 'earlier key of the space', other, list(earlier))
    texts = tuple(map(as_text, values if isinstance(values, list | tuple) else [values]))
    for text in texts:
      if not earlier[other].values:
        raise ConfigError(f'{label}: when: {other} is a range; use a key with a list of values.')
      errors.check_choice(f'{label}: when', f'value of {other}', text, earlier[other].values)
    conditions[other] = texts
  return conditions


def grid(space: Space) -> list[Point]:
  """List every point; the last key changes fastest.

  Raises ConfigError: a range without `count`, or too many points.
  """
  points: list[Point] = [{}]
  for key in space:
    points = [
      {**point, **({key.name: value} if value is not None else {})}
      for point in points
      for value in (key.steps() if key.is_in(point) else (None,))
    ]
    if len(points) > LARGEST_GRID:
      raise ConfigError(f'--space: a grid of more than {LARGEST_GRID:,} points: remove values, or use --method=random.')
  return points


def all_points(space: Space) -> list[Point] | None:
  """List every point that can be sampled.

  Returns None if they are infinite or too many for a grid. A range of integers is sampled from all of them; its `count`
  applies only to a grid.
  """
  if any(not key.values and not key.whole for key in space):
    return None
  try:
    return grid(tuple(key._replace(points=None) for key in space))
  except ConfigError:
    return None


def suggest(space: Space, trial: Any) -> Point:
  """Sample a point by an Optuna trial."""
  point: Point = {}
  for key in space:
    if not key.is_in(point):
      continue
    if key.values:
      value = trial.suggest_categorical(key.name, key.values)
    elif key.whole:
      value = trial.suggest_int(key.name, key.low, key.high, log=key.scale == 'log')
    else:
      value = trial.suggest_float(key.name, key.low, key.high, log=key.scale == 'log')
    point[key.name] = as_text(value)
  return point


def point_of(params: Mapping[str, Any], space: Space) -> Point:
  """Convert the parameters of an Optuna trial to a point."""
  return {key.name: as_text(params[key.name]) for key in space if key.name in params}


def identity(params: Mapping[str, Any], space: Space) -> tuple[tuple[str, str], ...]:
  """Return the identity of a point, including the seed."""
  return tuple(point_of(params, space).items())


def check(space: Space, changed: Changed, *, points: Sequence[Point] = ()) -> None:
  """Check every value, and every point of a grid.

  Raises ConfigError: names the key or the point, or two values that the config reads as the same. `changed` maps
  changes to a config, and raises for an unknown key or an invalid value.
  """
  by_name = {key.name: key for key in space}
  for key in space:
    conditions, tried = _conditions(key, by_name), list[tuple[str, Any]]()
    for text in key.values or (as_text(key.low), as_text(key.high)):
      with _named(key.name):
        value = _value_of(key.name, changed([*conditions.items(), (key.name, text)]))
        for earlier_text, earlier in tried:
          if value is not None and type(value) is type(earlier) and value == earlier:
            raise ConfigError(f'{earlier_text!r} and {text!r} are the same value {errors.shown(value)}: remove one')
        tried.append((text, value))
  check_points(points, changed)


def check_points(points: Sequence[Point], changed: Changed) -> None:
  """Check the complete config of each point, as in `check`."""
  for point in points:
    with _named(as_flags(point)):
      config.resolve(changed(list(point.items())))


def _value_of(name: str, settings: Any) -> Any:
  """Return a dotted key's value; None if missing or inside a list."""
  for part in name.split('.'):
    settings = settings.get(part) if isinstance(settings, Mapping) else None
  return settings


def _conditions(key: Key, by_name: Mapping[str, Key]) -> Point:
  """Build a point that meets the conditions of a key."""
  point: Point = {}
  for other, values in key.when.items():
    point |= _conditions(by_name[other], by_name) | {other: values[0]}
  return point | {other: values[0] for other, values in key.when.items()}


@contextlib.contextmanager
def _named(where: str) -> Iterator[None]:
  try:
    yield
  except ConfigError as error:
    raise ConfigError(f'--space: {where}: {error}') from None


def as_flags(point: Mapping[str, str]) -> str:
  """Format a point, such as 'optim.rate=0.001 seed=0'."""
  return ' '.join(f'{name}={value}' for name, value in point.items()) or 'no key'
