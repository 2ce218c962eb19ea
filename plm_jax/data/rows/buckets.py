"""Batches of examples of similar length: each batch has the smallest of a few shapes that holds its examples.

Examples of 5, 9, 30 and 7 tokens, shapes of 8 and 32 tokens, two examples per batch:

  bucket   0  1  1  0          the first shape that holds the example
  batches  (5, 7) in 8 tokens, (9, 30) in 32
"""

import dataclasses
import functools

import numpy as np

from plm_jax.data.rows import order


@dataclasses.dataclass(frozen=True)
class Members(order.Chosen):
  """The examples of a batch: `members` int64[b] are their indices.

  `bucket` is the index of the smallest shape that holds the longest example of the whole batch.
  """

  members: np.ndarray
  bucket: int


def batches(bucket: np.ndarray, row_ids: np.ndarray, *, share: order.Share, seed: int | None) -> order.Order[Members]:
  """Order batches of examples of similar length, in epochs of whole batches.

  `bucket` int64[rows] is the index of the first shape that holds each example. Without `seed` examples keep the order
  of the data within each bucket.
  """
  rows, batch_size = len(bucket), share.batch_size
  steps = -(-rows // batch_size)

  def members(batch: np.ndarray, epoch: int, places: np.ndarray) -> Members:
    """Select the part of this host; -1 in `batch` becomes weight 0."""
    widest = int(bucket[batch[batch >= 0]].max())
    real = batch[places] >= 0
    chosen = np.where(real, batch[places], batch[0])
    return Members(row_ids[chosen], np.full(len(places), epoch), real, chosen, widest)

  @functools.lru_cache(maxsize=4)
  def epoch_rows(epoch: int) -> np.ndarray:
    return plan_epoch(bucket, batch_size=batch_size, key=None if seed is None else (seed, epoch))

  def train(step: int, places: np.ndarray) -> Members:
    epoch, index = divmod(step, steps)
    return members(epoch_rows(epoch)[index], epoch, places)

  def once(step: int, places: np.ndarray) -> Members:
    batch = step * batch_size + np.arange(batch_size)
    return members(np.where(batch < rows, batch, -1), 0, places)

  return order.Order(rows, steps, train, once)


def plan_epoch(bucket: np.ndarray, *, batch_size: int, key: tuple[int, ...] | None) -> np.ndarray:
  """Assign examples to the batches of an epoch: int64[steps, batch_size].

  Each example of `bucket` (int64[rows], the shortest bucket that holds it) occurs once. Without a key of the shuffle,
  buckets and the examples in each keep their order. The rest of a bucket after its full batches begins the first batch
  of the next longer bucket. Only the last batch may lack examples; these are -1.
  """
  rows = np.arange(len(bucket)) if key is None else order.permutation(len(bucket), *key, 1)
  rows = rows[np.argsort(bucket[rows], kind='stable')]
  batches = np.append(rows, np.full(-len(rows) % batch_size, -1)).reshape(-1, batch_size)
  if key is not None:
    whole = len(rows) // batch_size
    batches[:whole] = batches[order.permutation(whole, *key, 2)]
  return batches
