"""Which row comes when, and the rest of a data source: a pure function of (seed, position) for any number of hosts.

A source that reads rows independently of each other writes one function, from rows to what stands in a batch, and gets
everything else from `serve`:

    def batch(chosen: order.Chosen) -> order.Batch:
      return {'tokens': table[chosen.rows]}  # int32[b, l]

    share = order.share(batch_size, host=host, hosts=hosts)
    return order.serve(batch, order.shuffled(rows, share, seed=seed), share=share, digest=digest)

A position counts rows since step 0: `step * batch_size + place in the batch`. Every epoch has its own permutation, a
keyed bijection (Grain's `index_shuffle`), so no permutation is ever stored and a run resumes at any step at once.
Reading goes through Grain with whole batches as elements: threads prepare them ahead of the training loop.
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
_MOST_ROWS = 2**31  # row_id is int32


@dataclasses.dataclass(frozen=True)
class Chosen:
  """The rows of one batch that this host reads, b of them.

  Attributes:
    rows: int64[b], what becomes `row_id`.
    epochs: int64[b], how often the source was gone through before.
    real: bool[b], False for a copy of another row that only fills the batch up.
  """

  rows: np.ndarray
  epochs: np.ndarray
  real: np.ndarray


ChosenT = TypeVar('ChosenT', bound=Chosen)


class Order(NamedTuple, Generic[ChosenT]):
  """Which rows make which batch.

  Attributes:
    rows: rows per epoch.
    steps: batches that hold each row once.
    train: (step, places int64[b] in the batch) -> what training reads there.
    once: the same for one pass over all rows in the order of the source, for steps 0 to steps - 1.
  """

  rows: int
  steps: int
  train: Callable[[int, np.ndarray], ChosenT]
  once: Callable[[int, np.ndarray], ChosenT]


class Share(NamedTuple):
  """Which rows of each batch this host reads.

  Attributes:
    batch_size: rows per step over all hosts.
    places: int64[b], the places in the batch, in order.
  """

  batch_size: int
  places: np.ndarray


def share(batch_size: int, *, host: int, hosts: int) -> Share:
  """The share of one host. Concatenated in the order of hosts, the shares are the batch of a single host.

  Args:
    batch_size: rows per step over all hosts.
    host: index of this process.
    hosts: number of processes.

  Raises:
    ValueError: the batch cannot be divided, or there is no such host.
  """
  if batch_size < 1 or batch_size % hosts:
    raise ValueError(f'batch_size={batch_size} cannot be divided by hosts={hosts}: choose a multiple of {hosts}.')
  if not 0 <= host < hosts:
    raise ValueError(f'host={host} must lie in 0..{hosts - 1} (hosts={hosts}).')
  rows = batch_size // hosts
  return Share(batch_size, np.arange(host * rows, (host + 1) * rows))


def serve(
  batch: Callable[[ChosenT], Batch],
  order: Order[ChosenT],
  *,
  share: Share,
  digest: str,
  path: str = 'data.path',
  widest: Callable[[ChosenT], ChosenT] = lambda chosen: chosen,
  judged: Callable[[ChosenT], Batch] | None = None,
  names: tuple[str, ...] = (),
  classes: int = 0,
  documents: int = 1,
  **more: Any,
) -> Source:
  """A source from the one function that is its own.

  Args:
    batch: rows -> the arrays of a batch, each with b rows; `row_id`, `epoch` and `row_weight` are added here.
    order: which rows come when.
    share: of this host.
    digest: of text, vocabulary and layout.
    path: of the data, for the message.
    widest: for sources whose batches differ in shape: rows -> the same rows as the largest batch would have them.
    judged: as `batch`, of a pass that is evaluated; None for the same.
    names: of the labels.
    classes: labels are 0 to classes - 1.
    documents: the most documents of any row.
    **more: other attributes of the source: `record`, `group`, `ids`, `unlabelled`.

  Raises:
    ValueError: more rows than `row_id` can number.
  """
  if order.rows >= _MOST_ROWS:
    raise ValueError(f'{path} has {order.rows} rows; row_id holds less than 2**31: read it in parts.')

  def made(chosen: ChosenT, make: Callable[[ChosenT], Batch] = batch) -> Batch:
    return {
      **make(chosen),
      'row_id': np.where(chosen.real, chosen.rows, -1).astype(np.int32),
      'epoch': chosen.epochs.astype(np.int32),
      'row_weight': chosen.real.astype(np.float32),
    }

  def train_batch(step: int) -> Batch:
    return made(order.train(step, share.places))

  def once_batch(step: int) -> Batch:
    return made(order.once(step, share.places), judged or batch)

  return Source(
    spec=spec(made(widest(order.once(0, share.places))), batch_size=share.batch_size),
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


def spec(batch: Mapping[str, Any], *, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
  """Shapes and dtypes of a batch over all hosts, from the part of one."""
  return {name: jax.ShapeDtypeStruct((batch_size, *leaf.shape[1:]), leaf.dtype) for name, leaf in batch.items()}


def shuffled(rows: int, share: Share, *, seed: int, shuffle: bool = True) -> Order[Chosen]:
  """Every row once per epoch, in an order of the epoch's own, from epoch to epoch without a gap.

  A batch of training may hold the end of one epoch and the beginning of the next; `once` fills the last batch up.

  Args:
    rows: rows per epoch.
    share: of this host.
    seed: of the order.
    shuffle: False keeps the order of the source in every epoch.
  """

  def train(step: int, places: np.ndarray) -> Chosen:
    chosen, epochs = rows_at(step * share.batch_size + places, rows=rows, seed=seed, shuffle=shuffle)
    return Chosen(chosen, epochs, np.ones(len(places), bool))

  def once(step: int, places: np.ndarray) -> Chosen:
    positions = step * share.batch_size + places
    real = positions < rows
    return Chosen(np.where(real, positions, 0), np.zeros(len(places), np.int64), real)

  return Order(rows, -(-rows // share.batch_size), train, once)


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


def iterate(batch_at: Callable[[int], Batch], start: int, stop: int = _ENDLESS) -> Iterator[Batch]:
  """`batch_at(start)`, `batch_at(start + 1)`, ..., made ahead by Grain's threads and delivered in order."""
  steps = grain.MapDataset.range(start, stop).map(batch_at)
  return iter(steps.to_iter_dataset(grain.ReadOptions(num_threads=_THREADS, prefetch_buffer_size=_AHEAD)))
