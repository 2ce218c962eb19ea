"""Order of examples, and the common part of a data source: a pure function of (seed, position) for any number of hosts.

A source that reads rows independently of each other writes one function, from rows to the arrays of a batch. `serve`
adds everything else:

    def batch(chosen: order.Chosen) -> order.Batch:
      return {'tokens': table[chosen.rows]}  # int32[b, l]

    share = order.share(batch_size, host=host, hosts=hosts)
    return order.serve(batch, order.shuffled(rows, share, seed=seed), share=share, digest=digest)

A position counts rows since step 0: `step * batch_size + index in the batch`. Every epoch has its own permutation, a
keyed bijection (Grain's `index_shuffle`). No permutation is ever stored, and a run resumes at any step immediately.
Batches are read through Grain with whole batches as elements: threads prepare them ahead of the training loop.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import grain
import jax
import numpy as np
from grain.experimental import index_shuffle

from plm_jax.core.types import Source
from plm_jax.data.corpora.splits import permutation as permutation

Batch = dict[str, np.ndarray]

_ENDLESS = 2**62
_THREADS = 2
_AHEAD = 8  # batches kept ready
_WORD = 2**31  # rows that `row_id` can tell apart


@dataclasses.dataclass(frozen=True)
class Chosen:
  """The rows of one batch that this host reads, b of them."""

  rows: np.ndarray  # int64[b], become `row_id`
  epochs: np.ndarray  # int64[b], number of complete passes over the source before
  real: np.ndarray  # bool[b], False for a copy of another row that only fills the batch


ChosenT = TypeVar('ChosenT', bound=Chosen)


class Order(NamedTuple, Generic[ChosenT]):
  """Assignment of rows to batches."""

  rows: int  # rows per epoch
  steps: int  # batches that hold each row once
  train: Callable[[int, np.ndarray], ChosenT]  # (step, indices int64[b] in the batch) -> rows that training reads there
  # the same for one pass over all rows in the order of the source, for steps 0 to steps - 1
  once: Callable[[int, np.ndarray], ChosenT]


class Share(NamedTuple):
  """The part of each batch that this host reads."""

  batch_size: int  # rows per step over all hosts
  places: np.ndarray  # int64[b], indices in the batch, ascending


def share(batch_size: int, *, host: int, hosts: int) -> Share:
  """Compute the part of each batch that process `host` of `hosts` reads.

  The parts of all hosts, concatenated in order, are the batch of a single host. Raises ValueError if the batch cannot
  be divided, or the host does not exist.
  """
  if batch_size < 1 or batch_size % hosts:
    raise ValueError(f'batch_size={batch_size} is not divisible by hosts={hosts}: choose a multiple of {hosts}.')
  if not 0 <= host < hosts:
    raise ValueError(f'host={host} must be 0 to {hosts - 1} (hosts={hosts}).')
  rows = batch_size // hosts
  return Share(batch_size, np.arange(host * rows, (host + 1) * rows))


def serve(
  batch: Callable[[ChosenT], Batch],
  order: Order[ChosenT],
  *,
  share: Share,
  digest: str,
  widest: Callable[[ChosenT], ChosenT] = lambda chosen: chosen,
  judged: Callable[[ChosenT], Batch] | None = None,
  names: tuple[str, ...] = (),
  classes: int = 0,
  documents: int = 1,
  **more: Any,
) -> Source:
  """Build a source from the function that makes its batches.

  Args:
    batch: rows -> the arrays of a batch, each with b rows; `row_id`, `epoch` and `row_weight` are added here.
    order: order of the rows.
    digest: digest of text, vocabulary and layout.
    widest: for sources whose batches differ in shape: rows -> the same rows with the largest shape.
    judged: as `batch`, for evaluation; None for the same.
    names: names of the labels.
    classes: labels are 0 to classes - 1.
    documents: the most documents of any row.
    **more: other attributes of the source: `record`, `group`, `ids`, `unlabelled`.
  """

  def with_ids(chosen: ChosenT, make: Callable[[ChosenT], Batch] = batch) -> Batch:
    return {
      **make(chosen),
      **identity(chosen.rows, chosen.real, of=order.rows),
      'epoch': chosen.epochs.astype(np.int32),
      'row_weight': chosen.real.astype(np.float32),
    }

  def train_batch(step: int) -> Batch:
    return with_ids(order.train(step, share.places))

  def once_batch(step: int) -> Batch:
    return with_ids(order.once(step, share.places), judged or batch)

  return Source(
    spec=spec(with_ids(widest(order.once(0, share.places))), batch_size=share.batch_size),
    rows=order.rows,
    read=lambda step: iterate(train_batch, step),
    once=lambda: iterate(once_batch, 0, order.steps),
    digest=digest,
    names=names,
    classes=classes,
    steps_per_epoch=order.steps,
    documents=documents,
    **more,
  )


def identity(rows: np.ndarray, real: np.ndarray, *, of: int) -> Batch:
  """Return `row_id`, and `row_high` for sources above 2**31 rows."""
  high = {'row_high': np.where(real, rows // _WORD, 0).astype(np.int32)} if of > _WORD else {}
  return {'row_id': np.where(real, rows % _WORD, -1).astype(np.int32), **high}


def spec(batch: Mapping[str, Any], *, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
  """Return shapes and dtypes of a global batch, from one part."""
  return {name: jax.ShapeDtypeStruct((batch_size, *leaf.shape[1:]), leaf.dtype) for name, leaf in batch.items()}


class Window(NamedTuple):
  """A shuffle with locality: blocks of neighbouring rows in random order, and the rows of several blocks mixed."""

  block: int  # rows of a block
  blocks: int  # consecutive blocks of the random order whose rows are mixed
  mix: Callable[..., np.ndarray] = permutation  # or the same with a cache


def shuffled(
  rows: int, share: Share, *, seed: int, shuffle: bool = True, window: Window | None = None
) -> Order[Chosen]:
  """Order every row once per epoch, in a new order per epoch.

  Epochs follow each other without a gap: a batch of training may contain the end of one and the beginning of the next.
  `once` fills the last batch. shuffle=False keeps the order of the source in every epoch; `window` as in `rows_at`.
  """
  if window is not None:  # the cache holds two windows, and the blocks of two epochs
    window = window._replace(mix=functools.lru_cache(maxsize=4)(permutation))

  def train(step: int, places: np.ndarray) -> Chosen:
    chosen, epochs = rows_at(step * share.batch_size + places, rows=rows, seed=seed, shuffle=shuffle, window=window)
    return Chosen(chosen, epochs, np.ones(len(places), bool))

  def once(step: int, places: np.ndarray) -> Chosen:
    positions = step * share.batch_size + places
    real = positions < rows
    return Chosen(np.where(real, positions, 0), np.zeros(len(places), np.int64), real)

  return Order(rows, -(-rows // share.batch_size), train, once)


@functools.lru_cache(maxsize=1024)
def _epoch_seed(seed: int, epoch: int) -> int:
  return int(np.random.SeedSequence((seed, epoch)).generate_state(1)[0])


def rows_at(
  positions: np.ndarray, *, rows: int, seed: int, shuffle: bool = True, window: Window | None = None
) -> tuple[np.ndarray, np.ndarray]:
  """Return rows and epochs at positions of the endless sequence, int64[n] each.

  `positions` int64[n] count from step 0. Each of the `rows` rows of an epoch occurs exactly once in every run of `rows`
  positions that starts at a multiple of it. Every epoch has its own permutation, of all rows or with the locality of
  `window`; shuffle=False keeps the order of the source.
  """
  epochs, indices = np.divmod(positions, rows)
  if not shuffle:
    return indices, epochs
  shuffled = np.empty(len(indices), np.int64)
  for epoch in np.unique(epochs).tolist():
    here, epoch_seed = epochs == epoch, _epoch_seed(seed, epoch)
    if window is None:
      shuffled[here] = [index_shuffle(i, max_index=rows - 1, seed=epoch_seed, rounds=4) for i in indices[here].tolist()]
    else:
      shuffled[here] = _nearby(indices[here], rows, epoch_seed, window)
  return shuffled, epochs


def _nearby(indices: np.ndarray, rows: int, seed: int, window: Window) -> np.ndarray:
  """Return the rows at indices of an epoch with this seed, int64[n].

  11 rows, blocks of 2, 2 blocks mixed; this epoch cuts blocks from row 7, and row 6 is left over
  blocks in random order    7 8 | 0 1    2 3 | 4 5    9 10 | 6
  rows mixed                7 0 1 8      4 5 3 2      6 9 10
  """
  size = min(window.block, rows)
  whole, mixed = rows // size, size * window.blocks  # whole blocks; the rows left over are a shorter one, the last
  numbers, inside = np.divmod(indices, mixed)
  found = np.empty_like(indices)
  for number in np.unique(numbers).tolist():
    here, first = numbers == number, number * window.blocks
    blocks = np.append(window.mix(whole, seed)[first : first + window.blocks], whole)
    block, offset = np.divmod(window.mix(min(mixed, rows - number * mixed), seed, number)[inside[here]], size)
    found[here] = blocks[block] * size + offset
  return (found + seed) % rows


def iterate(batch_at: Callable[[int], Batch], start: int, stop: int = _ENDLESS) -> Iterator[Batch]:
  """Yield `batch_at(start)`, `batch_at(start + 1)`, ...; Grain's threads prepare ahead."""
  steps = grain.MapDataset.range(start, stop).map(batch_at)
  return iter(steps.to_iter_dataset(grain.ReadOptions(num_threads=_THREADS, prefetch_buffer_size=_AHEAD)))
