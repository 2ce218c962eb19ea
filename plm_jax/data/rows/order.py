"""Which row comes when: a pure function of (seed, position), the same for any number of hosts.

A position counts rows since step 0: `step * batch_size + place in the batch`. Every epoch has its own permutation, a
keyed bijection (Grain's `index_shuffle`), so no permutation is ever stored and a run resumes at any step at once.
Reading goes through Grain with whole batches as elements: threads prepare them ahead of the training loop.
"""

import functools
from collections.abc import Callable, Iterator

import grain
import numpy as np
from grain.experimental import index_shuffle

Batch = dict[str, np.ndarray]

_ENDLESS = 2**62
_THREADS = 2
_AHEAD = 8  # batches kept ready


@functools.lru_cache(maxsize=1024)
def _epoch_seed(seed: int, epoch: int) -> int:
  return int(np.random.SeedSequence((seed, epoch)).generate_state(1)[0])


def rows_at(positions: np.ndarray, *, rows: int, seed: int, shuffle: bool = True) -> tuple[np.ndarray, np.ndarray]:
  """The rows at these positions of the endless sequence, and their epochs.

  Args:
    positions: int64[n], counted from step 0.
    rows: rows in an epoch; each comes exactly once in every run of `rows` positions that starts at a multiple of it.
    seed: of the order; every epoch has its own permutation.
    shuffle: False keeps the source's order.

  Returns:
    rows int64[n] and epochs int64[n].
  """
  epochs, places = np.divmod(positions, rows)
  if not shuffle:
    return places, epochs
  shuffled = [
    index_shuffle(place, max_index=rows - 1, seed=_epoch_seed(seed, epoch), rounds=4)
    for place, epoch in zip(places.tolist(), epochs.tolist(), strict=True)
  ]
  return np.array(shuffled, np.int64), epochs


def permutation(count: int, *key: int) -> np.ndarray:
  """int64[count]: a permutation that depends on `key` alone; numpy promises the bits of its generators for good."""
  return np.argsort(np.random.Philox(np.random.SeedSequence(key)).random_raw(count), kind='stable')


def host_slice(batch_size: int, *, host: int, hosts: int) -> slice:
  """This host's places in the global batch: hosts in order, concatenated, give the batch of a single host."""
  if batch_size < 1 or batch_size % hosts:
    raise ValueError(f'batch_size={batch_size} cannot be divided by hosts={hosts}: choose a multiple of {hosts}.')
  if not 0 <= host < hosts:
    raise ValueError(f'host={host} must lie in 0..{hosts - 1} (hosts={hosts}).')
  share = batch_size // hosts
  return slice(host * share, (host + 1) * share)


def iterate(batch_at: Callable[[int], Batch], start: int, stop: int = _ENDLESS) -> Iterator[Batch]:
  """`batch_at(start)`, `batch_at(start + 1)`, ..., made ahead by Grain's threads and delivered in order."""
  steps = grain.MapDataset.range(start, stop).map(batch_at)
  return iter(steps.to_iter_dataset(grain.ReadOptions(num_threads=_THREADS, prefetch_buffer_size=_AHEAD)))
