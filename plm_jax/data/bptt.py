"""Plain text as rows that go on where the row before them in the batch ended, for models with a carry.

The documents stand end to end, an end token after each, in an order of their own in every epoch. The stream is cut into
as many lanes as the batch has rows (half as many with `reverse_half`); place i of every batch reads lane i from its
beginning to its end, `stride` tokens further in each step. At the first step of an epoch `reset` is set.

With `second_segment` a row is `X A <sep> B <sep> <cls>` (Yang et al. 2019, §2.5; XLNet's released data pipeline): X is
the next `stride` tokens of the lane, A goes on from there, and B either follows A or, half the time, comes from
elsewhere. The next row begins behind X. The released code ends A where a sentence ends, here it ends anywhere.
"""

import functools
import logging
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from plm_jax.data.corpora import sources
from plm_jax.data.corpora.formats.txt import Boundary
from plm_jax.data.rows import order, store
from plm_jax.types import Source, Vocab

log = logging.getLogger(__name__)


class Lanes(NamedTuple):
  """The stream of an epoch.

  Attributes:
    ids: [n], the token store.
    starts: int64[documents], where each document of the stream begins in the store.
    ends: int64[documents], where it ends in the stream, its end token counted.
    end_id: id of the end token.
  """

  ids: np.ndarray
  starts: np.ndarray
  ends: np.ndarray
  end_id: int

  def at(self, places: np.ndarray) -> np.ndarray:
    """int32[...]: the tokens at these places of the stream."""
    document = np.searchsorted(self.ends, places, side='right')
    left = self.ends[document] - 1 - places  # tokens of the document behind this place, its end token not counted
    sizes = np.diff(self.ends, prepend=0)[document] - 1
    source = self.starts[document] + sizes - left
    tokens = np.asarray(self.ids).take(source, mode='clip').astype(np.int32)
    return np.where(left == 0, np.int32(self.end_id), tokens)


def make(
  *,
  vocab: Vocab,
  path: str,
  split: str = 'train',
  length: int,
  batch_size: int,
  seed: int,
  stride: int | None = None,
  second_segment: bool = False,
  reverse_half: bool = False,
  end: str | None = None,
  text: str | None = None,
  documents: Boundary = 'blank_line',
  quality: Mapping[str, Any] | None = None,
  shuffle: bool = True,
  cache: str = '~/.cache/plm_jax',
  host: int = 0,
  hosts: int = 1,
) -> Source:
  """Tokenises the text of `path`, once, and serves it in lanes.

  Args:
    vocab: gives ids and special tokens.
    path: of the text, as `sources.documents` takes it.
    split: part of it, TFDS slicing allowed.
    length: tokens a row.
    batch_size: rows a step over all hosts.
    seed: of the order of documents, and of what B is.
    stride: tokens that a lane moves on by in a step; None is a whole row, half a row with `second_segment`.
    second_segment: rows of `X A <sep> B <sep> <cls>` with `type_ids` 0 (X A <sep>), 1 (B <sep>) and 2 (<cls>).
    reverse_half: even rows read their lane forward, odd rows read the lane of the row above from its end to its
      beginning.
    end: token after a document; None is the vocabulary's end-of-document token or else [SEP].
    text: the field that holds the text, where there are several.
    documents: what ends a document in a .txt file.
    quality: keywords of `filters.filter_documents`.
    shuffle: False keeps the order of the source in every epoch.
    cache: folder for token stores.
    host: number of this process, of
    hosts: processes.

  Returns:
    Batches of tokens, segment_ids, reset, next_token, reversed, row_id, epoch and row_weight, and type_ids with
    `second_segment`; see `plm_jax.data`. Without `second_segment` each token is in the first `stride` positions of one
    row an epoch; the last rows of lanes have padding, or nothing, in which case they weigh nothing. With it all rows
    are full: what a lane lacks at its end, or its beginning where it is reversed, is taken from its neighbour.

  Raises:
    ValueError: a setting that cannot be met.
  """
  if stride is None:
    stride = length // 2 if second_segment else length
  room = length - stride - 3  # for A and B
  if not 1 <= stride <= length or (second_segment and room < 2):
    raise ValueError(
      f'stride={stride} does not fit rows of length={length}: it must be at least 1 and at most '
      f'{length - 5 if second_segment else length}{" with second_segment=True" if second_segment else ""}.'
    )
  if reverse_half and batch_size % 2:
    raise ValueError(f'reverse_half=True needs an even batch_size, not {batch_size}.')
  places = order.host_slice(batch_size, host=host, hosts=hosts)
  end_id = _end_id(vocab, end)
  sep_id, cls_id = vocab.sep_id, vocab.cls_id
  if second_segment and (sep_id is None or cls_id is None):
    raise ValueError('second_segment=True needs a vocabulary with a separator and a classification token.')

  texts = sources.documents(path, split=split, cache=cache, text=text, documents=documents, quality=quality)
  tokens = store.on_disk(texts, vocab=vocab, cache=cache)
  sizes = np.diff(tokens.offsets)
  filled = np.flatnonzero(sizes > 0)
  total = int((sizes[filled] + 1).sum())
  lanes = batch_size // 2 if reverse_half else batch_size
  if total < max(lanes, length):
    raise ValueError(f'{path} ({split}) has {total} tokens: too few for {lanes} lanes and rows of {length}.')
  bounds = total * np.arange(lanes + 1) // lanes  # [lanes + 1], lanes differ by one token at most
  steps = -(-int(np.diff(bounds).max()) // stride)
  if steps * batch_size >= 2**31:
    raise ValueError(f'{path} ({split}) has {steps * batch_size} rows; row_id holds less than 2**31: read it in parts.')
  digest = store.digest_of(tokens.digest, 'bptt', length, batch_size, stride, second_segment, reverse_half, end_id)
  log.info(
      '%s (%s): %d documents, %d tokens, %d steps an epoch of %d rows of %d.',
      path, split, len(filled), total, steps, batch_size, length,
  )  # fmt: skip

  @functools.lru_cache(maxsize=2)
  def stream(epoch: int, shuffled: bool) -> Lanes:
    documents = filled[order.permutation(len(filled), seed, epoch)] if shuffled else filled
    return Lanes(tokens.ids, tokens.offsets[documents], np.cumsum(sizes[documents] + 1), end_id)

  row = np.arange(batch_size)[places]
  lane, backward = (row // 2, row % 2 == 1) if reverse_half else (row, np.zeros(len(row), bool))
  first, behind = bounds[lane], bounds[lane + 1]

  def read_places(window: int, offsets: np.ndarray) -> np.ndarray:
    """int64[rows, offsets]: places of the stream, counted in reading direction from the start of a window."""
    ahead = window * stride + offsets
    return np.where(backward[:, None], behind[:, None] - 1 - ahead, first[:, None] + ahead)

  def batch(window: int, epoch: int, *, shuffled: bool) -> dict[str, np.ndarray]:
    lanes_of = stream(epoch, shuffled)
    where = read_places(window, np.arange(length + 1))
    inside = (where >= first[:, None]) & (where < behind[:, None])
    row_id = window * batch_size + row
    made: dict[str, np.ndarray] = {}
    if second_segment:
      ids, made['type_ids'] = second(lanes_of, where % total, row_id, epoch)
      real, following = np.ones_like(ids, bool), np.full(len(row), vocab.pad_id)
    else:
      read = np.where(inside, lanes_of.at(where % total), vocab.pad_id)
      ids, real, following = read[:, :-1], inside[:, :-1], read[:, -1]
    weight = np.asarray(real.any(axis=1))
    made |= {
      'tokens': ids.astype(np.int32),
      'segment_ids': real.astype(np.int32),
      'next_token': following.astype(np.int32),
      'reset': np.full(len(row), window == 0),
      'reversed': backward,
      'row_id': np.where(weight, row_id, -1).astype(np.int32),
      'epoch': np.full(len(row), epoch, np.int32),
      'row_weight': weight.astype(np.float32),
    }
    return made

  def second(lanes_of: Lanes, where: np.ndarray, row_id: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows with a second segment, and their types."""
    types = np.zeros((len(row), length), np.int32)
    for index, number in enumerate(row_id.tolist()):
      draw = np.random.Philox(np.random.SeedSequence((seed, epoch, number))).random_raw(3)
      size = 1 + int(draw[0] % (room - 1))  # of A; B has at least one token
      follows = stride + size + np.arange(room - size)
      b_places = where[index, follows]
      if draw[1] % 2:
        direction = -1 if backward[index] else 1
        b_places = (int(draw[2] % total) + direction * np.arange(room - size)) % total
      where[index, stride + size + 1 : length - 2] = b_places
      types[index, stride + size + 1 :] = 1
    ids = lanes_of.at(where[:, :length])
    separator = types.argmax(axis=1) - 1
    ids[np.arange(len(row)), separator] = sep_id
    ids[:, -2], ids[:, -1], types[:, -1] = sep_id, cls_id, 2
    return ids, types

  def train_batch(step: int) -> dict[str, np.ndarray]:
    epoch, window = divmod(step, steps)
    return batch(window, epoch, shuffled=shuffle)

  def single_batch(step: int) -> dict[str, np.ndarray]:
    return batch(step, 0, shuffled=False)

  def read(step: int) -> Iterator[dict[str, np.ndarray]]:
    return order.iterate(train_batch, step)

  def once() -> Iterator[dict[str, np.ndarray]]:
    return order.iterate(single_batch, 0, steps)

  return Source(
    spec={
      name: jax.ShapeDtypeStruct((batch_size, *array.shape[1:]), array.dtype) for name, array in single_batch(0).items()
    },
    rows=steps * batch_size,
    read=read,
    once=once,
    digest=digest,
    steps_per_epoch=steps,
  )


def _end_id(vocab: Vocab, name: str | None) -> int:
  """The id of the token after each document."""
  if name is not None:
    return vocab.id(name)
  number = vocab.sep_id if vocab.eos_id is None else vocab.eos_id
  if number is None:
    raise ValueError('the vocabulary has no end token: name one of its tokens (end=...).')
  return number
