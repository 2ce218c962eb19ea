"""Batches of rows of like length: a few shapes, and each batch has the smallest that holds its rows.

Rows of 5, 9, 30 and 7 tokens, shapes of 8 and 32 tokens, two rows a batch:

  bucket   0  1  1  0          the first shape that holds the row
  batches  (5, 7) in 8 tokens, (9, 30) in 32
"""

import dataclasses
import functools

import numpy as np

from plm_jax.data.rows import order


@dataclasses.dataclass(frozen=True)
class Members(order.Chosen):
  """The rows of a batch.

  Attributes:
    members: int64[b], their numbers among the rows that are kept.
    bucket: number of the smallest shape that holds the longest row of the whole batch.
  """

  members: np.ndarray
  bucket: int


def batches(bucket: np.ndarray, row_ids: np.ndarray, *, share: order.Share, seed: int | None) -> order.Order[Members]:
  """Batches of rows of like length, each epoch a whole number of them.

  Args:
    bucket: int64[rows], number of the first shape that holds each row.
    row_ids: int64[rows].
    share: of this host.
    seed: of the order of rows; None keeps their own within each bucket.
  """
  rows, batch_size = len(bucket), share.batch_size
  steps = -(-rows // batch_size)

  def members(batch: np.ndarray, epoch: int, places: np.ndarray) -> Members:
    """The share of this host of the rows int64[batch_size]; -1 becomes a row of weight 0."""
    widest = int(bucket[batch[batch >= 0]].max())
    real = batch[places] >= 0
    chosen = np.where(real, batch[places], batch[0])
    return Members(row_ids[chosen], np.full(len(places), epoch), real, chosen, widest)

  @functools.lru_cache(maxsize=4)
  def epoch_rows(epoch: int) -> np.ndarray:
    return plan_epoch(bucket, batch_size=batch_size, key=None if seed is None else (seed, epoch))

  def train(step: int, places: np.ndarray) -> Members:
    epoch, place = divmod(step, steps)
    return members(epoch_rows(epoch)[place], epoch, places)

  def once(step: int, places: np.ndarray) -> Members:
    batch = step * batch_size + np.arange(batch_size)
    return members(np.where(batch < rows, batch, -1), 0, places)

  return order.Order(rows, steps, train, once)


def plan_epoch(bucket: np.ndarray, *, batch_size: int, key: tuple[int, ...] | None) -> np.ndarray:
  """Which rows make which batch of an epoch.

  Args:
    bucket: int64[rows], number of the shortest bucket that holds each row.
    batch_size: rows per batch.
    key: of the shuffle; None keeps the order of buckets, and of rows in each.

  Returns:
    int64[steps, batch_size], each row once. Rows left over when the batches of a bucket are full begin the first batch
    of the next longer bucket; only the last batch may lack rows, and has -1 there.
  """
  rows = np.arange(len(bucket)) if key is None else order.permutation(len(bucket), *key, 1)
  rows = rows[np.argsort(bucket[rows], kind='stable')]
  batches = np.append(rows, np.full(-len(rows) % batch_size, -1)).reshape(-1, batch_size)
  if key is not None:
    whole = len(rows) // batch_size
    batches[:whole] = batches[order.permutation(whole, *key, 2)]
  return batches
