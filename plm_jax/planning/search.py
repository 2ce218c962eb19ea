"""The cheapest change with which a run fits: arithmetic on the state first, then at most `MOST` compilations."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

MOST = 8  # compilations, after which no other change is tried

# What a change costs in time, and how much of the temporary memory it leaves: rough, since they only set the order in
# which changes are tried, and what they leave is corrected by each compilation.
REMAT = {'none': (1.0, 1.0), 'dots': (1.05, 0.5), 'full': (1.33, 0.3)}
ATTENTION = {'chunked': (1.1, 0.7)}
ACCUMULATE = 1.02  # for each doubling: under fsdp gradients are summed and parameters gathered in every micro-batch
SEQUENCE = (1.01, 0.3)  # states that are cut as the products between them are: as many bytes are sent
MODEL = (2, 4, 8, 16)

Change = dict[str, Any]  # key of the config -> value


class Candidate(NamedTuple):
  """A change, what it costs in time and how much of the temporary memory it leaves, both as a part of what was."""

  change: Change
  time: float
  memory: float


class Needs(NamedTuple):
  """GiB that the compiler says the largest step needs, whether all fit, and how many were compiled for that."""

  gib: float
  fits: bool
  compiled: int = 1


class Found(NamedTuple):
  """The change that fits, None where none was found; and (change, GiB needed) of each that was tried, in order."""

  change: Change | None
  tried: list[tuple[Change, float]]


def candidates(settings: Mapping[str, Any], *, rows: int, taken: Sequence[str]) -> list[Candidate]:
  """Changes of accumulate, remat, attention, and of what tensor parallelism cuts, the cheapest first.

  Args:
    settings: of the run.
    rows: that a device computes at once.
    taken: the implementations of attention of the step (`attention.recorded`).
  """
  now = settings['execution']
  remat = list(REMAT)[list(REMAT).index(now['remat']) :]
  plain = any(': xla, ' in line for line in taken) and now['attention'] in ('auto', 'xla')
  found = []
  tables = ('', 'fsdp_tensor_sequence') if settings['sharding']['rules'] == 'fsdp_tensor' else ('',)
  ways = itertools.product(tables, remat, ('', 'chunked') if plain else ('',), _divisors(rows))
  for table, kept, attention, parts in ways:
    time, memory = REMAT[kept][0] / REMAT[now['remat']][0], REMAT[kept][1] / REMAT[now['remat']][1]
    change: Change = {}
    if table:
      change['sharding.rules'] = table
      time, memory = time * SEQUENCE[0], memory * SEQUENCE[1]
    if kept != now['remat']:
      change['execution.remat'] = kept
    if attention:
      change['execution.attention'] = attention
      time, memory = time * ATTENTION[attention][0], memory * ATTENTION[attention][1]
    if parts > 1:
      change['accumulate'] = settings['accumulate'] * parts
      time, memory = time * ACCUMULATE ** math.log2(parts), memory / parts
    if change:
      found.append(Candidate(change, time, memory))
  return sorted(found, key=lambda one: (one.time, len(one.change)))


def layouts(settings: Mapping[str, Any], *, devices: int) -> Iterator[Change]:
  """Rules that cut the state into more parts than now, the cheapest first."""
  rules = settings['sharding']['rules']
  if rules == 'data':
    yield {'sharding.rules': 'fsdp'}
  if rules in ('data', 'fsdp'):
    yield {'sharding.rules': 'fsdp_any'}
  for model in MODEL:
    if devices % model == 0 and settings['sharding']['mesh'].get('model', 1) < model:
      mesh = {**settings['sharding']['mesh'], 'data': -1, 'model': model}
      yield {'sharding.rules': 'fsdp_tensor', 'sharding.mesh': mesh}


def search(
  settings: Mapping[str, Any],
  *,
  limit: float,
  state: Callable[[Change], float],
  needs: Callable[[Change], Needs],
  choices: Callable[[Change], Sequence[Candidate]],
  first: float | None,
  devices: int,
) -> Found:
  """The cheapest change that fits.

  Args:
    settings: of the run, which does not fit.
    limit: GiB of a device.
    state: change -> GiB of the state on a device; counted, so it is asked often; infinite where it cannot be placed.
    needs: asks the compiler; not any more after `MOST` compilations.
    choices: change of the layout -> `candidates` behind it.
    first: GiB that the run needs as it is; None where the compiler did not say.
    devices: of all slices.
  """
  layout: Change = {}
  if state(layout) > limit:
    for layout in layouts(settings, devices=devices):
      if state(layout) <= limit:
        break
    else:
      return Found(None, [])
  tried: list[tuple[Change, float]] = []
  held = state(layout)
  temporary = max((first or 2 * limit) - state({}), 0.0)  # of the step as it is; corrected by each compilation
  untried = list(choices(layout))
  if layout:
    untried.insert(0, Candidate({}, 1.0, 1.0))
  compiled = 0
  while untried and compiled < MOST:
    fitting = [one for one in untried if held + temporary * one.memory <= limit]
    one = fitting[0] if fitting else min(untried, key=lambda one: one.memory)
    untried.remove(one)
    change = layout | one.change
    said = needs(change)
    compiled += said.compiled
    tried.append((change, said.gib))
    if said.fits:
      return Found(change, tried)
    temporary = max(temporary, (said.gib - held) / one.memory)
    # what leaves as much memory or more cannot fit either
    untried = [other for other in untried if other.memory < one.memory]
  return Found(None, tried)


def flags(change: Change) -> str:
  """The words of a command that make a change."""

  def word(key: str, value: Any) -> str:
    return (
      f'--config.{key}={value}'
      if not isinstance(value, dict)
      else ' '.join(f'--config.{key}.{inner}={one}' for inner, one in value.items())
    )

  return ' '.join(word(key, value) for key, value in change.items())


def applied(settings: Mapping[str, Any], change: Change) -> dict[str, Any]:
  """The settings with a change; they are not changed themselves."""
  settings = dict(settings)
  for key, value in change.items():
    block, _, name = key.rpartition('.')
    if block:
      settings[block] = {**settings[block], name: value}
    else:
      settings[name] = value
  return settings


def _divisors(number: int) -> list[int]:
  return [size for size in range(1, number + 1) if number % size == 0]
