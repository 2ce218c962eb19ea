"""The space of a sweep: which keys of a config take which values; its points, as grids and samplers choose them.

A space is a literal: dotted key -> a list of values, or a block:

    {'optim.name': ['adamw', 'lamb'],
     'optim.rate': {'low': 1e-5, 'high': 1e-3, 'scale': 'log'},       any number between
     'optim.warmup': {'low': 0, 'high': 1000, 'count': 5},            5 values for a grid; whole, as both ends are
     'optim.b2': {'values': [0.98, 0.999], 'when': {'optim.name': ['adamw']}},   only where another key has such a value
     'seed': [0, 1, 2]}

A point is dotted key -> value as text, as a command line would give it.
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
Changed = Callable[[Sequence[tuple[str, str]]], Mapping[str, Any]]  # changes -> the config with them, not complete
Scale = Literal['linear', 'log']
Method = Literal['grid', 'random', 'tpe', 'halving']  # how points are chosen
NAME = 'SPACE'  # of the literal in a Python file
FIELDS = ('values', 'low', 'high', 'scale', 'count', 'when')
LARGEST_GRID = 100_000
PLAIN = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.UnaryOp)  # parts of a literal


class Key(NamedTuple):
  """One key of a space.

  Attributes:
    name: dotted, as in `--config.NAME`.
    values: its values as text; empty for a range.
    low: lower end of a range; whole where both ends are.
    high: upper end.
    scale: of a range.
    points: number of values of a range in a grid; None takes every whole number.
    when: earlier keys -> values as text with which this one is in a point.
  """

  name: str
  values: tuple[str, ...] = ()
  low: float = 0
  high: float = 0
  scale: Scale = 'linear'
  points: int | None = None
  when: Mapping[str, tuple[str, ...]] = {}

  @property
  def whole(self) -> bool:
    """Whether a range has whole numbers only."""
    return isinstance(self.low, int) and isinstance(self.high, int)

  def is_in(self, point: Mapping[str, str]) -> bool:
    """Whether the key is in a point whose earlier keys are these."""
    return all(point.get(other) in values for other, values in self.when.items())

  def steps(self) -> tuple[str, ...]:
    """The values of the key in a grid, as text.

    Raises:
      ConfigError: a range without a number of values, or with too many.
    """
    if self.values:
      return self.values
    if self.points is None and not self.whole:
      raise ConfigError(f'{_label(self.name)}: a range in a grid needs count, the number of its values.')
    count = self.points or round(self.high - self.low) + 1
    if count > LARGEST_GRID:
      raise ConfigError(f'{_label(self.name)}: {count:,} values of one key: a smaller count, or --method=random.')
    is_log = self.scale == 'log' and self.points is not None
    low, high = (math.log(end) if is_log else end for end in (self.low, self.high))
    places = [low + (high - low) * place / max(count - 1, 1) for place in range(count)]
    inner = [math.exp(place) if is_log else place for place in places[1:-1]]
    numbers = [self.low, *inner, *([self.high] if count > 1 else [])]
    texts = [as_text(round(number) if self.whole else float(f'{number:.6g}')) for number in numbers]
    return tuple(dict.fromkeys(texts))


Space = tuple[Key, ...]


def as_text(value: Any) -> str:
  """A value as a command line gives it."""
  return value if isinstance(value, str) else repr(value)


# Reading -------------------------------------------------------------------------------------------------------------


def read(text: str) -> Space:
  """The space that `--space` names.

  Args:
    text: a literal in braces, or a Python file with a literal `SPACE`, of which nothing is executed.

  Raises:
    ConfigError: no such file, no literal, or no space.
  """
  if text.lstrip().startswith(('{', '[', '(')):  # `parse` says that a list is no space
    return parse(_literal(text, '--space'))
  path = files.path(text.partition('.py:')[0] + '.py' if '.py:' in text else text)
  if not files.is_file(path):
    raise ConfigError(f'--space={text}: there is no such file; or give a literal, as in "{{\'optim.rate\': [1e-4]}}".')
  try:
    tree = ast.parse(files.read_text(path))
  except (SyntaxError, ValueError) as error:
    raise ConfigError(f'--space={text}: {path} cannot be read as Python: {error}.') from None
  found = [
    node.value
    for node in tree.body
    if isinstance(node, ast.Assign | ast.AnnAssign)
    and node.value is not None
    and [ast.unparse(target) for target in (node.targets if isinstance(node, ast.Assign) else [node.target])] == [NAME]
  ]
  if not found:
    raise ConfigError(
      f'--space={text}: {path} has no {NAME} = {{...}}: give --space a Python file that has, or the literal itself.'
    )
  return parse(_literal(ast.unparse(found[-1]), f'{NAME} in {path}'))


def _literal(text: str, label: str) -> Any:
  tree = None
  try:
    tree = ast.parse(text.strip(), mode='eval')
    value = ast.literal_eval(tree)
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
  except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
    inner = [node for node in (() if tree is None else ast.walk(tree)) if isinstance(node, ast.expr)]
    strange = [node for node in inner if not isinstance(node, PLAIN)]
    said = f'{errors.shown(ast.unparse(strange[0]))} is neither a number nor a text in quotes' if strange else error
    raise ConfigError(f"{label}: no literal such as {{'optim.rate': [1e-4, 3e-4]}}: {said}.") from None
  for block in blocks:
    keys = Counter(key.value for key in block.keys if isinstance(key, ast.Constant))
    if twice := [key for key, count in keys.items() if count > 1]:
      raise ConfigError(f'{label}: the key {twice[0]!r} stands twice.')  # Python would take the last one
  return value


def parse(literal: Any) -> Space:
  """A space as it is written.

  Raises:
    ConfigError: it names what is wrong.
  """
  if not isinstance(literal, Mapping) or not literal or not all(isinstance(key, str) for key in literal):
    raise ConfigError(f'the space: expected dotted key -> values, with one key at least, got {literal!r}.')
  space: list[Key] = []
  for name, block in literal.items():
    for other in literal:
      if name.startswith(f'{other}.'):
        raise ConfigError(f'the space: {other} holds {name}, so that one would undo the other: leave one of them out.')
    space.append(_key(name, block, {key.name: key for key in space}))
  return tuple(space)


def _label(name: str) -> str:
  return f'the space, {name}'


def _key(name: str, block: Any, earlier: Mapping[str, Key]) -> Key:
  label = _label(name)
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
      raise ConfigError(f'{label}: a value stands twice in {list(values)!r}.')
    return Key(name, values=texts, when=when)
  low, high, count = (given.get(field) for field in ('low', 'high', 'count'))
  scale = given.get('scale', 'linear')
  with errors.stage(label):
    errors.one_of(f'{label}: scale', scale, Scale)
  if not (_is_number(low) and _is_number(high) and low < high):  # type: ignore[operator]
    raise ConfigError(f'{label}: a range needs low and high, numbers with low < high, got {block!r}.')
  ends: tuple[float, float] = low, high  # type: ignore[assignment]
  if scale == 'log' and ends[0] <= 0:
    raise ConfigError(f'{label}: a range by logarithms begins above 0, not at {low!r}.')
  if count is not None and not (type(count) is int and count > 0):
    raise ConfigError(f'{label}: count is the number of values in a grid, from 1 on, got {count!r}.')
  if not all(isinstance(end, int) for end in ends):
    ends = float(ends[0]), float(ends[1])
  return Key(name, low=ends[0], high=ends[1], scale=scale, points=count, when=when)


def _is_number(value: Any) -> bool:
  if not isinstance(value, int | float) or isinstance(value, bool):
    return False
  return abs(value) <= sys.float_info.max  # not so of inf, of nan and of whole numbers that no float holds


def _when(label: str, when: Any, earlier: Mapping[str, Key]) -> dict[str, tuple[str, ...]]:
  if not isinstance(when, Mapping):
    raise ConfigError(f"{label}: when is another key -> its values, as in {{'optim.name': ['adamw']}}, got {when!r}.")
  found = {}
  for other, values in when.items():
    errors.check_choice(f'{label}: when', 'earlier key of the space', other, list(earlier))
    texts = tuple(map(as_text, values if isinstance(values, list | tuple) else [values]))
    for text in texts:
      if not earlier[other].values:
        raise ConfigError(f'{label}: when names {other}, which is a range; only keys with values are conditions.')
      errors.check_choice(f'{label}: when', f'value of {other}', text, earlier[other].values)
    found[other] = texts
  return found


# Points --------------------------------------------------------------------------------------------------------------


def grid(space: Space) -> list[Point]:
  """Every point, the last key changing fastest.

  Raises:
    ConfigError: a range without a number of values, or too many points.
  """
  points: list[Point] = [{}]
  for key in space:
    points = [
      {**point, **({key.name: value} if value is not None else {})}
      for point in points
      for value in (key.steps() if key.is_in(point) else (None,))
    ]
    if len(points) > LARGEST_GRID:
      raise ConfigError(f'the space: a grid of more than {LARGEST_GRID:,} points: leave values out, or use --method.')
  return points


def all_points(space: Space) -> list[Point] | None:
  """Every point that can be drawn; None where there is no end of them (a range of reals), or more than a grid may have.

  A range of whole numbers is drawn from all of them, whatever its `count`, which is for a grid.
  """
  if any(not key.values and not key.whole for key in space):
    return None
  try:
    return grid(tuple(key._replace(points=None) for key in space))
  except ConfigError:
    return None


def suggest(space: Space, trial: Any) -> Point:
  """Asks an Optuna trial for the value of every key that is in its point."""
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
  """The parameters of an Optuna trial as a point, in the order of the space."""
  return {key.name: as_text(params[key.name]) for key in space if key.name in params}


def identity(params: Mapping[str, Any], space: Space) -> tuple[tuple[str, str], ...]:
  """What two Optuna trials of the same point have alike, the seed included."""
  return tuple(point_of(params, space).items())


def check(space: Space, changed: Changed, *, points: Sequence[Point] = ()) -> None:
  """Tries every value of every key, and the whole config of every point of a grid.

  Args:
    space: what is checked.
    changed: gives the config with changes, and raises for a key that does not exist or a value that it does not take.
    points: of a grid, each of which has to be a sound config.

  Raises:
    ConfigError: names the key or the point, or two values that the config takes for the same.
  """
  by_name = {key.name: key for key in space}
  for key in space:
    around, tried = _around(key, by_name), list[tuple[str, Any]]()
    for text in key.values or (as_text(key.low), as_text(key.high)):
      with _told(key.name):
        taken = _value_of(key.name, changed([*around.items(), (key.name, text)]))
        for other, known in tried:
          if taken is not None and type(taken) is type(known) and taken == known:
            raise ConfigError(f'a value stands twice: {other!r} and {text!r} are both {errors.shown(taken)}')
        tried.append((text, taken))
  check_points(points, changed)


def check_points(points: Sequence[Point], changed: Changed) -> None:
  """Tries the whole config of each point; arguments and errors as of `check`."""
  for point in points:
    with _told(as_flags(point)):
      config.resolve(changed(list(point.items())))


def _value_of(name: str, settings: Any) -> Any:
  """What a config has under a dotted key; None where it has no such key, as below what stands in a list."""
  for part in name.split('.'):
    settings = settings.get(part) if isinstance(settings, Mapping) else None
  return settings


def _around(key: Key, by_name: Mapping[str, Key]) -> Point:
  """A point in which a key is: values of the keys that it asks for, and of those that these ask for."""
  found: Point = {}
  for other, values in key.when.items():
    found |= _around(by_name[other], by_name) | {other: values[0]}
  return found | {other: values[0] for other, values in key.when.items()}


@contextlib.contextmanager
def _told(where: str) -> Iterator[None]:
  try:
    yield
  except ConfigError as error:
    raise ConfigError(f'the space, {where}: {error}') from None


def as_flags(point: Mapping[str, str]) -> str:
  """'optim.rate=0.001 seed=0'."""
  return ' '.join(f'{name}={value}' for name, value in point.items()) or 'no key'
