"""What happened to a run on its way, as its config tells it: more steps (`extend`), batches left out (`skip`).

Both are pairs (step, number) of the config, so that every step is still a function of the config and its own number:
a run that falls back behind such a step, or is repeated from its `config.json`, does the same again.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
  from plm_jax.core.types import Source  # loads jax

ON_ITS_WAY = ('extend', 'skip', 'spikes', 'verify_every')  # keys of what becomes of a run, not of what it is
MOST_STEPS = 2_000_000_000  # they are counted in 32 bits

Pairs = Sequence[tuple[int, int]]


def is_step(value: Any) -> bool:
  """Whether a value from a file is the number of a step."""
  return type(value) is int and 0 <= value <= MOST_STEPS


def horizon(settings: Mapping[str, Any], step: int) -> int:
  """The steps of the run as they stood when it had made `step` updates; the schedule of the next one runs to there."""
  return settings['steps'] + sum(more for at, more in settings['extend'] if at <= step)


def total(settings: Mapping[str, Any]) -> int:
  """The steps of the run with all that it was extended by; a config of an earlier version has no `extend`."""
  return settings['steps'] + sum(more for _, more in settings.get('extend', ()))


def ends(settings: Mapping[str, Any]) -> set[int]:
  """The last step, and those that were the last one when the run was extended there."""
  return {at for at, _ in settings['extend'] if at == horizon(settings, at - 1)} | {total(settings)}


def extended(settings: Mapping[str, Any], more: int, *, at: int, finished: bool = False) -> dict[str, Any]:
  """The settings with `more` steps from step `at` on.

  A run on its way through an extension of just as many steps stays as it is: it is the same command again. One that is
  `finished` before its last step, by early stop, is not on its way.
  """
  pairs = list(settings['extend'])
  under_way = not finished and bool(pairs) and at < total(settings) and pairs[-1][1] == more
  return {**settings, 'extend': pairs if under_way else [*pairs, (at, more)]}


def back_at(settings: Mapping[str, Any], step: int, *, skip: int = 0) -> dict[str, Any]:
  """The settings of a run that was never beyond `step`, and leaves out what the `skip` steps behind it read.

  Those steps may have left out batches themselves, which stay left out:

    skip [(3, 2)], back at 2, skip 4    steps 3 to 6 read 3, 6, 7, 8, so that step 3 reads 9 now: [(2, 6)]
  """
  extend = [(at, more) for at, more in settings['extend'] if at <= step]
  before = [(at, count) for at, count in settings['skip'] if at < step]
  between = sum(count for at, count in settings['skip'] if step <= at <= step + skip)
  return {**settings, 'extend': extend, 'skip': [*before, *([(step, skip + between)] if skip else [])]}


def read(source: 'Source', start: int, *, skip: Pairs) -> Iterator[dict[str, np.ndarray]]:
  """The batches of the steps after `start`, without those that `skip` leaves out.

  Step s reads batch s of the order plus all that was left out before it. Where batches were left out, rows begin anew
  (`reset`): what a recurrent model remembers is not the text before them.
  """
  jumps = sorted(at for at, _ in skip)
  places = [start, *(at for at in jumps if at > start)]
  for here, after in itertools.zip_longest(places, places[1:]):
    left_out = sum(count for at, count in skip if at <= here)
    batches = source.read(here + left_out)
    if here in jumps and 'reset' in source.spec:
      first = next(batches)
      batches = itertools.chain([first | {'reset': np.ones_like(first['reset'])}], batches)
    yield from batches if after is None else itertools.islice(batches, after - here)
