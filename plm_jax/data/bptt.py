"""Plain text as rows that continue the row at the same place of the previous batch, for models with a carry.

The documents are concatenated, an end token after each, in another order in every epoch. This stream is cut into as
many lanes as the batch has rows (half as many with `reverse_half`); place i of every batch reads lane i from its
beginning to its end, `stride` tokens further in each step, or with `reverse` from its end to its beginning. At the
first step of an epoch `reset` is True.

With `second_segment` a row is `X A <sep> B <sep> <cls>` (Yang et al. 2019, §2.5; XLNet's released data pipeline): X is
the next `stride` tokens of the lane, A continues X, and B either continues A or, with probability 1/2, is taken from a
random place. The next row begins after X. The released code ends A where a sentence ends, here it ends anywhere.

With `both_directions` a row is a window of two streams, as a bidirectional language model reads them (Peters et al.
2018, §3.1; allenai/bilm-tf, bilm/data.py). A document, there a sentence, stands between a token that begins it and one
that ends it. The forward stream is `<s> a b c` of each document, and predicts `a b c </s>`; the backward stream is
`</s> c b a` of the same document, and predicts `c b a <s>`. What is predicted last is not read. Both go through the
documents in the same order, so that the two windows of a row hold the same places, and one `reset` is for both; the
released code shuffles the sentences of the two streams apart. An unknown word is predicted as the unknown token and
read by its own characters (`rows/spelling.py`).
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np

from plm_jax.core.types import Count, Source, Template, Vocab, nothing_after
from plm_jax.data.corpora.formats.txt import Boundary
from plm_jax.data.rows import framing, order, store
from plm_jax.data.rows.documents import look as look
from plm_jax.data.rows.documents import spelt, tokenised
from plm_jax.data.rows.layouts import xlnet
from plm_jax.data.rows.spelling import SpeltIds
from plm_jax.text import chars

log = logging.getLogger(__name__)
# of a smoke test (`file.py:quick`)
QUICK = dict(path='pydocs', text=None, documents='blank_line', length=64, batch_size=8)

GIVES = (
  'tokens',
  'segment_ids',
  'type_ids',
  'reset',
  'next_token',
  'reversed',
  'next_tokens',
  'characters',
  'backward_tokens',
  'backward_next_tokens',
  'backward_characters',
)

_MARKS = 3  # <sep>, <sep> and <cls> of a row with a second segment


class Stream(NamedTuple):
  """The concatenated documents of an epoch.

  Attributes:
    ids: [n], the token store.
    starts: int64[documents], where each document of the stream begins in the store.
    ends: int64[documents], where it ends in the stream, its end token counted.
    end_id: id of the end token.
  """

  ids: np.ndarray | store.Ids | SpeltIds
  starts: np.ndarray
  ends: np.ndarray
  end_id: int

  @property
  def size(self) -> int:
    """Tokens, end tokens counted."""
    return int(self.ends[-1])

  def at(self, places: np.ndarray) -> np.ndarray:
    """int32[...]: the tokens at these places of the stream."""
    starts, sizes, before = self._documents(places)
    tokens = self.ids.take(starts + before, mode='clip').astype(np.int32)
    return np.where(before == sizes, np.int32(self.end_id), tokens)

  def inside(self, places: np.ndarray, numbers: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """int32[...]: tokens of the documents at these places, chosen by their numbers from 0; -1 where there is none.

    Args:
      places: of the stream.
      numbers: (the number of a place in its document, the tokens of that document) -> which token is read.
    """
    starts, sizes, before = self._documents(places)
    chosen = numbers(before, sizes)
    tokens = self.ids.take(starts + chosen, mode='clip').astype(np.int32)
    return np.where((chosen >= 0) & (chosen < sizes), tokens, np.int32(-1))

  def _documents(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The document of each place: where it begins in the store, its tokens, and those of them before this place."""
    document = np.searchsorted(self.ends, places, side='right')
    begins = np.where(document > 0, self.ends[document - 1], 0)
    return self.starts[document], self.ends[document] - 1 - begins, places - begins


class Ends(NamedTuple):
  """What `both_directions` adds to tokens.

  Attributes:
    begin_id: id of the token before a document.
    end_id: id of the token after it.
    ids: of the documents, with the characters of their words.
  """

  begin_id: int
  end_id: int
  ids: SpeltIds


class Lanes(NamedTuple):
  """How the stream of an epoch is cut.

  Attributes:
    bounds: int64[lanes+1], where each lane begins in the stream; lengths of lanes differ by one token at most.
    length: tokens per row.
    stride: tokens that a lane advances by in a step.
    second: tokens of A and B in a row with a second segment, 0 without one.
    both_ways: even rows read a lane forward, odd rows the lane of the row above backward.
    backward: all rows read their lane backward.
  """

  bounds: np.ndarray
  length: int
  stride: int
  second: int
  both_ways: bool
  backward: bool

  @property
  def steps(self) -> int:
    """Steps per epoch."""
    return -(-int(np.diff(self.bounds).max()) // self.stride)

  def of(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per place: first token of the lane, end of the lane, and whether it is read backward, [b] each."""
    lane, backward = (places // 2, places % 2 == 1) if self.both_ways else (places, np.full(len(places), self.backward))
    return self.bounds[lane], self.bounds[lane + 1], backward

  def read(self, places: np.ndarray, window: int) -> np.ndarray:
    """int64[b, length+1]: places of the stream that rows read in a window, and the one after each row."""
    first, behind, backward = self.of(places)
    ahead = window * self.stride + np.arange(self.length + 1)
    return np.where(backward[:, None], behind[:, None] - 1 - ahead, first[:, None] + ahead)


@dataclasses.dataclass(frozen=True)
class Window(order.Chosen):
  """The rows of a step.

  Attributes:
    places: int64[b] in the batch.
    window: number of the step in its epoch.
    epoch: of all rows.
    shuffled: whether documents stand in the order of the epoch.
  """

  places: np.ndarray
  window: int
  epoch: int
  shuffled: bool


def make(
  *,
  vocab: Vocab,
  path: str,
  split: str = 'train',
  length: Count,
  batch_size: Count,
  seed: int,
  stride: Count | None = None,
  second_segment: bool = False,
  reverse_half: bool = False,
  reverse: bool = False,
  both_directions: bool = False,
  end: str | None = None,
  text: str | None = None,
  documents: Boundary = 'blank_line',
  quality: Annotated[Mapping[str, Any], 'data.corpora.filters:filter_documents'] | None = None,
  max_bytes: Count = 1_073_741_824,
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
    length: tokens per row.
    batch_size: rows per step over all hosts.
    seed: of the order of documents, and of what B is.
    stride: tokens that a lane advances by in a step; None is a whole row, half a row with `second_segment`.
    second_segment: rows of `X A <sep> B <sep> <cls>` with `type_ids` 0 (X A <sep>), 1 (B <sep>) and 2 (<cls>).
    reverse_half: even rows read their lane forward, odd rows read the lane of the previous row from its end to its
      beginning.
    reverse: all rows read their lane from its end to its beginning, for a backward language model: `c b a </s>` of a
      text `a b c`, each token predicted from those behind it.
    both_directions: rows of two streams, with the keys `next_tokens`, `characters`, `backward_tokens` and so on; the
      vocabulary then needs different tokens to begin and to end a text.
    end: token after a document; None is the vocabulary's end-of-document token or else [SEP].
    text: the field that holds the text, where there are several.
    documents: what ends a document in a .txt file.
    quality: keywords of `filters.filter_documents`.
    shuffle: False keeps the order of the source in every epoch.
    max_bytes: most bytes of a document of a file, and of a .gz file unzipped, which is held in memory.
    cache: folder for token stores.
    host: index of this process.
    hosts: number of processes.

  Returns:
    Batches with the keys of `GIVES`, type_ids only with `second_segment`, and those of two streams, in place of
    `next_token` and `reversed`, with `both_directions`. Without `second_segment` each token is in the
    first `stride` positions of one row per epoch; the last rows of lanes have padding, or nothing but padding and
    weight 0. With it all rows are full: where a lane is too short at its end (at its beginning where it is read
    backward), tokens of the next lane are read.

  Raises:
    ValueError: a setting that cannot be met.
  """
  if stride is None:
    stride = length // 2 if second_segment else length
  _check(vocab, length=length, batch_size=batch_size, stride=stride, second=second_segment, both_ways=reverse_half)
  if reverse and (reverse_half or second_segment):
    raise ValueError('reverse=True turns all rows round: leave out reverse_half and second_segment.')
  alone = stride == length and not (second_segment or reverse_half or reverse or end)
  if both_directions:
    _check_ends(vocab, alone=alone)
  share = order.share(batch_size, host=host, hosts=hosts)
  end_id = _end_id(vocab, end)
  read = {'split': split, 'text': text, 'documents': documents, 'quality': quality, 'max_bytes': max_bytes}
  tokens, ends = _read(path, both_directions, vocab=vocab, cache=cache, **read)
  stream = _streams(tokens, tokens.ids if ends is None else ends.ids, end_id=end_id, seed=seed)
  count = batch_size // 2 if reverse_half else batch_size
  total = stream(0, False).size
  if total < max(count, length):
    raise ValueError(f'{path} ({split}) has {total} tokens: too few for {count} lanes and rows of {length}.')
  second = length - stride - _MARKS if second_segment else 0
  lanes = Lanes(total * np.arange(count + 1) // count, length, stride, second, reverse_half, reverse)
  log.info(f'{path} ({split}): {total} tokens, {lanes.steps} steps per epoch of {batch_size} rows of {length}.')

  def batch(chosen: Window) -> order.Batch:
    text = stream(chosen.epoch, chosen.shuffled)
    reset = {'reset': np.full(len(chosen.places), chosen.window == 0)}
    if ends is not None:
      return _two_streams(text, lanes, chosen, ends=ends, pad_id=vocab.pad_id) | reset
    made = _with_second(text, lanes, chosen, vocab=vocab, seed=seed) if second else _plain(text, lanes, chosen, vocab)
    return made | reset | {'reversed': lanes.of(chosen.places)[2]}

  form = (length, batch_size, stride, second_segment, reverse_half, end_id)
  form = (*form, *(('reverse',) if reverse else ()))
  digest = store.digest_of(tokens.digest, 'bptt', *form, *(('both_directions', ends.begin_id, 'spelt') if ends else ()))
  windows = _windows(lanes, batch_size=batch_size, shuffle=shuffle)
  return order.serve(batch, windows, share=share, digest=digest, path=f'{path} ({split})')


def template(
  *, vocab: Vocab, second_segment: bool = False, both_directions: bool = False, end: str | None = None, **rest: Any
) -> Template:
  """What stands around a text: XLNet's layout, the token after a document, or nothing with `both_directions`."""
  del rest
  if second_segment:
    return framing.template(xlnet.make(vocab=vocab, fields=1), xlnet.make(vocab=vocab, fields=2))
  if both_directions:  # a trunk of two directions puts both ends around a text by itself
    return Template((('A', 0),), (('A', 0), ('B', 0)))
  end_id = _end_id(vocab, end)
  return Template((('A', 0), (end_id, 0)), (('A', 0), (end_id, 0), ('B', 0), (end_id, 0)))


def _check(vocab: Vocab, *, length: int, batch_size: int, stride: int, second: bool, both_ways: bool) -> None:
  """Refuses settings that cannot be met."""
  most = length - _MARKS - 2 if second else length  # A and B have a token each
  if not 1 <= stride <= most:
    raise ValueError(
      f'stride={stride} does not fit rows of length={length}: it must be at least 1 and at most {most}'
      f'{" with second_segment=True" if second else ""}.'
    )
  if both_ways and batch_size % 2:
    raise ValueError(f'reverse_half=True needs an even batch_size, not {batch_size}.')
  if second and (vocab.sep_id is None or vocab.cls_id is None):
    raise ValueError('second_segment=True needs a vocabulary with a separator and a classification token.')


def _read(path: str, both_directions: bool, *, vocab: Vocab, **read: Any) -> tuple[store.Tokens, Ends | None]:
  """The tokens of the text, and what `both_directions` adds to them."""
  if not both_directions:
    return tokenised(path, vocab=vocab, **read), None
  tokens, ids = spelt(path, vocab=vocab, **read)
  assert vocab.bos_id is not None and vocab.eos_id is not None  # `_check_ends` looks
  return tokens, Ends(vocab.bos_id, vocab.eos_id, ids)


def _check_ends(vocab: Vocab, *, alone: bool) -> None:
  """Raises ValueError where `both_directions` stands beside settings that it excludes, or lacks a token for an end."""
  if not alone:
    raise ValueError(
      'both_directions=True has rows of its own: leave out stride, second_segment, reverse_half, reverse and end.'
    )
  chars.check_ends(vocab)


def _streams(
  tokens: store.Tokens, ids: np.ndarray | store.Ids | SpeltIds, *, end_id: int, seed: int
) -> Callable[[int, bool], Stream]:
  """(epoch, shuffled) -> the documents that have a token, in the order of the epoch or in their own.

  `ids` are those of the tokens, as `Stream` has them.
  """
  sizes = np.diff(tokens.offsets)
  filled = np.flatnonzero(sizes > 0)

  @functools.lru_cache(maxsize=2)
  def stream(epoch: int, shuffled: bool) -> Stream:
    documents = filled[order.permutation(len(filled), seed, epoch)] if shuffled else filled
    return Stream(ids, tokens.offsets[documents], np.cumsum(sizes[documents] + 1), end_id)

  return stream


def _windows(lanes: Lanes, *, batch_size: int, shuffle: bool) -> order.Order[Window]:
  """One window of all lanes per step; a row has weight 0 where its lane has ended."""

  def window(number: int, epoch: int, places: np.ndarray, *, shuffled: bool) -> Window:
    first, behind, _ = lanes.of(places)
    real = np.full(len(places), True) if lanes.second else behind - first > number * lanes.stride
    rows = number * batch_size + places
    return Window(rows, np.full(len(places), epoch), real, places, number, epoch, shuffled)

  def train(step: int, places: np.ndarray) -> Window:
    epoch, number = divmod(step, lanes.steps)
    return window(number, epoch, places, shuffled=shuffle)

  def once(step: int, places: np.ndarray) -> Window:
    return window(step, 0, places, shuffled=False)

  return order.Order(lanes.steps * batch_size, lanes.steps, train, once)


def _plain(text: Stream, lanes: Lanes, chosen: Window, vocab: Vocab) -> order.Batch:
  """Rows of one lane each, padded where it has ended."""
  where = lanes.read(chosen.places, chosen.window)
  first, behind, _ = lanes.of(chosen.places)
  inside = (where >= first[:, None]) & (where < behind[:, None])
  read = np.where(inside, text.at(where % lanes.bounds[-1]), vocab.pad_id).astype(np.int32)
  follows = np.where(inside[:, -1], read[:, -1], np.int32(nothing_after(vocab)))
  return {'tokens': read[:, :-1], 'segment_ids': inside[:, :-1].astype(np.int32), 'next_token': follows}


def _two_streams(text: Stream, lanes: Lanes, chosen: Window, *, ends: Ends, pad_id: int) -> order.Batch:
  """Rows of one lane each, read forward and backward document by document, padded where it has ended."""
  # document  a b c       number of a place  0 1 2 3   tokens before it 0 1 2 3
  # forward   <s> a b c   predicts  a b c </s>         backward  </s> c b a   predicts  c b a <s>
  where = lanes.read(chosen.places, chosen.window)[:, :-1]
  real = where < lanes.of(chosen.places)[1][:, None]
  where = where % lanes.bounds[-1]

  def read(numbers: Callable[[np.ndarray, np.ndarray], np.ndarray], mark: int) -> np.ndarray:
    ids = text.inside(where, numbers)
    return np.where(real, np.where(ids < 0, np.int32(mark), ids), np.int32(pad_id))

  forward = read(lambda before, size: before - 1, ends.begin_id)
  backward = read(lambda before, size: size - before, ends.end_id)
  return {
    'tokens': ends.ids.tokens(forward),
    'segment_ids': real.astype(np.int32),
    'next_tokens': ends.ids.tokens(read(lambda before, size: before, ends.end_id)),
    'characters': ends.ids.characters(forward, real),
    'backward_tokens': ends.ids.tokens(backward),
    'backward_next_tokens': ends.ids.tokens(read(lambda before, size: size - 1 - before, ends.begin_id)),
    'backward_characters': ends.ids.characters(backward, real),
  }


def _with_second(text: Stream, lanes: Lanes, chosen: Window, *, vocab: Vocab, seed: int) -> order.Batch:
  """Rows of `X A <sep> B <sep> <cls>`."""
  total, length, stride, room = int(lanes.bounds[-1]), lanes.length, lanes.stride, lanes.second
  where = lanes.read(chosen.places, chosen.window)[:, :-1] % total
  backward = lanes.of(chosen.places)[2]
  types = np.zeros((len(where), length), np.int32)
  for index, number in enumerate(chosen.rows.tolist()):
    draw = np.random.Philox(np.random.SeedSequence((seed, chosen.epoch, number))).random_raw(3)
    size = 1 + int(draw[0] % (room - 1))  # of A; B has at least one token
    b_places = where[index, stride + size + np.arange(room - size)]
    if draw[1] % 2:
      direction = -1 if backward[index] else 1
      b_places = (int(draw[2] % total) + direction * np.arange(room - size)) % total
    where[index, stride + size + 1 : length - 2] = b_places
    types[index, stride + size + 1 :] = 1
  ids = text.at(where)
  separator = types.argmax(axis=1) - 1
  ids[np.arange(len(where)), separator] = vocab.sep_id
  ids[:, -2], ids[:, -1], types[:, -1] = vocab.sep_id, vocab.cls_id, 2
  return {
    'tokens': ids,
    'segment_ids': np.ones_like(ids),
    'type_ids': types,
    'next_token': np.full(len(where), nothing_after(vocab), np.int32),
  }


def _end_id(vocab: Vocab, name: str | None) -> int:
  """The id of the token after each document.

  Raises:
    ValueError: the vocabulary has none.
  """
  if name is not None:
    return vocab.id(name)
  number = vocab.sep_id if vocab.eos_id is None else vocab.eos_id
  if number is None:
    raise ValueError('the vocabulary has no end token: name one of its tokens (end=...).')
  return number
