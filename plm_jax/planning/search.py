"""Search for the cheapest change with which a run fits: estimates first, then at most `MOST` compilations."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

MOST = 8  # compilations before the search stops

# Factors of time and of temporary memory. Rough values suffice: they set the order of the search, and each compilation
# corrects the memory.
REMAT = {'none': (1.0, 1.0), 'dots': (1.05, 0.5), 'full': (1.33, 0.3)}
ATTENTION = {'chunked': (1.1, 0.7)}
ACCUMULATE = 1.02  # per doubling: under fsdp every micro-batch sums gradients and gathers parameters
SEQUENCE = (1.01, 0.3)  # states are sharded between the products as well; the number of bytes sent is the same
MODEL = (2, 4, 8, 16)

Change = dict[str, Any]  # key of the config -> value


class Candidate(NamedTuple):
  """A change of the config."""

  change: Change  # keys and values
  time: float  # relative to the present time
  memory: float  # relative to the present temporary memory


class Needs(NamedTuple):
  """The compiler's report on all steps of a run."""

  gib: float  # needed by the largest step
  fits: bool  # True if all steps fit
  compiled: int = 1  # number of compilations


class Found(NamedTuple):
  """The result of a search."""

  change: Change | None  # the change that fits, or None
  tried: list[tuple[Change, float]]  # (change, GiB needed) of each compilation, in order


def candidates(settings: Mapping[str, Any], *, rows: int, taken: Sequence[str]) -> list[Candidate]:
  """List changes of accumulate, remat, attention and tensor parallelism, cheapest first.

  Args:
    rows: that a device computes at once.
    taken: the attention implementations of the step (`attention.recorded`).
  """
  now = settings['execution']
  remat = list(REMAT)[list(REMAT).index(now['remat']) :]
  plain = any(': xla, ' in line for line in taken) and now['attention'] in ('auto', 'xla')
  result = []
  tables = ('', 'fsdp_tensor_sequence') if settings['sharding']['rules'] == 'fsdp_tensor' else ('',)
  divisors = [size for size in range(1, rows + 1) if rows % size == 0]
  combinations = itertools.product(tables, remat, ('', 'chunked') if plain else ('',), divisors)
  for table, policy, attention, parts in combinations:
    time, memory = REMAT[policy][0] / REMAT[now['remat']][0], REMAT[policy][1] / REMAT[now['remat']][1]
    change: Change = {}
    if table:
      change['sharding.rules'] = table
      time, memory = time * SEQUENCE[0], memory * SEQUENCE[1]
    if policy != now['remat']:
      change['execution.remat'] = policy
    if attention:
      change['execution.attention'] = attention
      time, memory = time * ATTENTION[attention][0], memory * ATTENTION[attention][1]
    if parts > 1:
      change['accumulate'] = settings['accumulate'] * parts
      time, memory = time * ACCUMULATE ** math.log2(parts), memory / parts
    if change:
      result.append(Candidate(change=change, time=time, memory=memory))
  return sorted(result, key=lambda candidate: (candidate.time, len(candidate.change)))


def layouts(settings: Mapping[str, Any], *, devices: int) -> Iterator[Change]:
  """Yield rules that shard the state further, the cheapest first."""
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
  """Search for the cheapest change that fits.

  Args:
    settings: of the run, which does not fit.
    limit: GiB of a device.
    state: change -> GiB of the state on a device, estimated without compiling; infinite if the mesh is impossible.
    needs: compiles a change; not called again after `MOST` compilations.
    choices: change of the layout -> further `candidates`.
    first: GiB that the run needs now; None if unknown.
    devices: of all slices.
  """
  # 1. the cheapest layout whose state fits
  layout: Change = {}
  if state(layout) > limit:
    for layout in layouts(settings, devices=devices):
      if state(layout) <= limit:
        break
    else:
      return Found(change=None, tried=[])
  # 2. the cheapest candidate that should fit, compiled; a failure corrects the estimate of the temporary memory
  tried: list[tuple[Change, float]] = []
  state_gib = state(layout)
  temporary = max((first or 2 * limit) - state({}), 0.0)  # of the present step; each compilation corrects it
  untried = list(choices(layout))
  if layout:
    untried.insert(0, Candidate(change={}, time=1.0, memory=1.0))
  compiled = 0
  while untried and compiled < MOST:
    fitting = [candidate for candidate in untried if state_gib + temporary * candidate.memory <= limit]
    candidate = fitting[0] if fitting else min(untried, key=lambda candidate: candidate.memory)
    untried.remove(candidate)
    change = layout | candidate.change
    outcome = needs(change)
    compiled += outcome.compiled
    tried.append((change, outcome.gib))
    if outcome.fits:
      return Found(change=change, tried=tried)
    temporary = max(temporary, (outcome.gib - state_gib) / candidate.memory)
    # a change that needs as much memory or more cannot fit either
    untried = [other for other in untried if other.memory < candidate.memory]
  return Found(change=None, tried=tried)


def flags(change: Change) -> str:
  """Write a change as flags of a command."""

  def word(key: str, value: Any) -> str:
    return (
      f'--config.{key}={value}'
      if not isinstance(value, dict)
      else ' '.join(f'--config.{key}.{inner}={size}' for inner, size in value.items())
    )

  return ' '.join(word(key, value) for key, value in change.items())


def applied(settings: Mapping[str, Any], change: Change) -> dict[str, Any]:
  """Return a copy of the settings with a change."""
  settings = dict(settings)
  for key, value in change.items():
    block, _, name = key.rpartition('.')
    if block:
      settings[block] = {**settings[block], name: value}
    else:
      settings[name] = value
  return settings
