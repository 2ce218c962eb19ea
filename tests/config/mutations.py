"""Configs that somebody got wrong: one value of another kind or size, a key misspelt, left out or too many."""

import copy
import random
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

VALUES: tuple[Any, ...] = (
  -1, 0, 1, 10**9, 10**30, -0.5, 0.0, 1.5, 1e9, 1e300, float('nan'), float('inf'), '', 'x', '(', 'nothing', None, True,
  [], [0], [[]], ['('], [[1, 2]], {}, {'name': 'x'}, {'x': {}}, {'': 0}, object(), b'x', {1: 2}, (None,),
)  # fmt: skip


class Mutated(NamedTuple):
  """A config with one mistake: the dotted key of it, what stands there, and the whole config."""

  key: str
  value: Any
  config: dict[str, Any]


def places(config: Any, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
  """The path of every value in a config, of containers as well."""
  items = config.items() if isinstance(config, Mapping) else enumerate(config) if isinstance(config, list) else ()
  for key, value in items:
    yield (*prefix, key)
    yield from places(value, (*prefix, key))


def mutate(config: Mapping[str, Any], draw: random.Random) -> Mutated:
  """The config with one mistake."""
  made: Any = copy.deepcopy(dict(config))
  *parents, last = draw.choice(list(places(made)))
  here = made
  for part in parents:
    here = here[part]
  how = draw.choice(('value', 'value', 'value', 'value', 'misspelt', 'more', 'less'))
  value = draw.choice(VALUES)
  if how == 'value' or not isinstance(here, dict):
    here[last] = value
  elif how == 'misspelt':
    place = draw.randrange(len(last) + 1)
    value = here.pop(last)
    here[last[:place] + draw.choice('abx_') + last[place + 1 :]] = value
  elif how == 'more':
    here[draw.choice(('lr', 'more', last + 's', ''))] = value
  else:
    del here[last]
  return Mutated('.'.join(map(str, (*parents, last))), f'{how}: {value!r}', made)
