"""Changes of a run after its start, as stored in its config: more steps (`extend`), skipped batches (`skip`).

Both are pairs (step, count) in the config, so every step remains a function of the config and its index. A run that
is rewound to an earlier step, or repeated from its `config.json`, repeats the same steps.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
  from plm_jax.core.types import Source  # loads jax

ON_ITS_WAY = ('extend', 'skip', 'spikes', 'verify_every')  # keys that may change while a run trains
MOST_STEPS = 2_000_000_000  # counted in 32 bits

Pairs = Sequence[tuple[int, int]]


def is_step(value: Any) -> bool:
  """Return True if a value from a file is a valid step."""
  return type(value) is int and 0 <= value <= MOST_STEPS


def horizon(settings: Mapping[str, Any], step: int) -> int:
  """Return the steps planned after `step` updates, where the schedule ends."""
  return settings['steps'] + sum(more for at, more in settings['extend'] if at <= step)


def total(settings: Mapping[str, Any]) -> int:
  """Return the number of steps with extensions, which old configs lack."""
  return settings['steps'] + sum(more for _, more in settings.get('extend', ()))


def ends(settings: Mapping[str, Any]) -> set[int]:
  """Return the last step, and earlier last steps where it was extended."""
  return {at for at, _ in settings['extend'] if at == horizon(settings, at - 1)} | {total(settings)}


def extended(settings: Mapping[str, Any], more: int, *, at: int, finished: bool = False) -> dict[str, Any]:
  """Extend the settings by `more` steps from step `at` on.

  The settings stay the same if the run is in the middle of an extension by as many steps: the command was repeated. A
  run that `finished` before its last step, by early stop, is not in the middle of an extension.
  """
  pairs = list(settings['extend'])
  under_way = not finished and bool(pairs) and at < total(settings) and pairs[-1][1] == more
  return {**settings, 'extend': pairs if under_way else [*pairs, (at, more)]}


def back_at(settings: Mapping[str, Any], step: int, *, skip: int = 0) -> dict[str, Any]:
  """Rewind the settings to `step`, and skip the following batches.

  The batches of the next `skip` steps are skipped. Those that these steps skipped themselves stay skipped:

    skip [(3, 2)], back at 2, skip 4    steps 3 to 6 read 3, 6, 7, 8, so that step 3 reads 9 now: [(2, 6)]
  """
  extend = [(at, more) for at, more in settings['extend'] if at <= step]
  before = [(at, count) for at, count in settings['skip'] if at < step]
  between = sum(count for at, count in settings['skip'] if step <= at <= step + skip)
  return {**settings, 'extend': extend, 'skip': [*before, *([(step, skip + between)] if skip else [])]}


def read(source: 'Source', start: int, *, skip: Pairs) -> Iterator[dict[str, np.ndarray]]:
  """Read the batches of the steps after `start`, without skipped ones.

  Step s reads batch s of the order plus the number of batches skipped before it. After a skip, sequences are marked as
  new (`reset`): the state of a recurrent model does not belong to the text before them.
  """
  jumps = sorted(at for at, _ in skip)
  starts = [start, *(at for at in jumps if at > start)]
  for here, after in itertools.zip_longest(starts, starts[1:]):
    left_out = sum(count for at, count in skip if at <= here)
    batches = source.read(here + left_out)
    if here in jumps and 'reset' in source.spec:
      first = next(batches)
      batches = itertools.chain([first | {'reset': np.ones_like(first['reset'])}], batches)
    yield from batches if after is None else itertools.islice(batches, after - here)
