"""Plain text in lanes: each sequence continues the one at the same index of the previous batch (truncated BPTT).

The documents are concatenated in a new order per epoch, with an end token after each. This stream is cut into as many
lanes as the batch has sequences (half as many with `reverse_half`). Sequence i of every batch reads lane i from its
beginning to its end and advances by `stride` tokens per step. With `reverse` it reads from the end to the beginning. At
the first step of an epoch `reset` is True.

With `second_segment` a sequence is `X A <sep> B <sep> <cls>` (Yang et al. 2019, §2.5; XLNet's released data pipeline).
X is the next `stride` tokens of the lane and A continues X. B continues A or, with probability 1/2, is taken from a
random position. The next sequence begins after X. The released code ends A at a sentence end; here A ends anywhere.

With `both_directions` a sequence is a window of two streams for a bidirectional language model (Peters et al. 2018,
§3.1; allenai/bilm-tf, bilm/data.py). Each document (there: each sentence) has a begin token and an end token. The
forward stream is `<s> a b c` of each document and predicts `a b c </s>`. The backward stream is `</s> c b a` of the
same document and predicts `c b a <s>`. The last predicted token is not an input. Both streams go through the documents
in the same order, so the two windows of a sequence cover the same positions and share one `reset`. The released code
shuffles the sentences of the two streams separately. An unknown word is predicted as the unknown token and read by its
own characters (`rows/spelling.py`).
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np

from plm_jax.core.keywords import Count
from plm_jax.core.types import Source, Template, Vocab, nothing_after
from plm_jax.data.corpora.formats.txt import Boundary
from plm_jax.data.rows import framing, order, store
from plm_jax.data.rows.documents import Corpus
from plm_jax.data.rows.documents import look as look
from plm_jax.data.rows.layouts import xlnet
from plm_jax.data.rows.spelling import SpeltIds
from plm_jax.text import chars

log = logging.getLogger(__name__)
EPOCH = 'tokens'  # counted without preparing the data
QUICK = dict(path='pydocs', text=None, documents='blank_line', length=64, batch_size=8)  # of a smoke test

GIVES = (
  'tokens', 'segment_ids', 'type_ids', 'reset', 'next_token', 'reversed', 'next_tokens', 'characters',
  'backward_tokens', 'backward_next_tokens', 'backward_characters',
)  # fmt: skip

_MARKS = 3  # <sep>, <sep> and <cls> of a sequence with a second segment


class Stream(NamedTuple):
  """The concatenated documents of an epoch."""

  ids: store.AnyIds | SpeltIds  # [n], the token store
  starts: np.ndarray  # int64[documents], start of each document of the stream in the store
  ends: np.ndarray  # int64[documents], its end in the stream, end token included
  end_id: int  # id of the end token

  @property
  def size(self) -> int:
    """Count the tokens, including end tokens."""
    return int(self.ends[-1])

  def at(self, positions: np.ndarray) -> np.ndarray:
    """Return the tokens at these positions of the stream, int32[...]."""
    starts, sizes, before = self._documents(positions)
    tokens = self.ids.take(starts + before, mode='clip').astype(np.int32)
    return np.where(before == sizes, np.int32(self.end_id), tokens)

  def inside(self, positions: np.ndarray, choose: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """Return one token, int32[...], of the document at each position.

    `choose` maps (index of a position in its document, tokens of that document) to the index of the token to return. It
    is -1 where the document has no token at the index.
    """
    starts, sizes, before = self._documents(positions)
    chosen = choose(before, sizes)
    tokens = self.ids.take(starts + chosen, mode='clip').astype(np.int32)
    return np.where((chosen >= 0) & (chosen < sizes), tokens, np.int32(-1))

  def _documents(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the document of each position.

    Return its start in the store, its size without the end token, and the index of the position in it.
    """
    document = np.searchsorted(self.ends, positions, side='right')
    begins = np.where(document > 0, self.ends[document - 1], 0)
    return self.starts[document], self.ends[document] - 1 - begins, positions - begins


class Ends(NamedTuple):
  """Additional data of `both_directions`."""

  begin_id: int  # id of the token before a document
  end_id: int  # id of the token after it
  ids: SpeltIds  # token ids of the documents, with the characters of their words


class Lanes(NamedTuple):
  """Division of the stream of an epoch into lanes."""

  # int64[lanes+1], start of each lane in the stream; the lengths of lanes differ by at most one token
  bounds: np.ndarray
  length: int  # tokens per sequence
  stride: int  # tokens that a lane advances by per step
  second: int  # tokens of A and B in a sequence with a second segment, otherwise 0
  both_ways: bool  # even sequences read a lane forward, odd sequences the lane of the sequence above backward
  backward: bool  # all sequences read their lane backward

  @property
  def steps(self) -> int:
    """Count the steps per epoch."""
    return -(-int(np.diff(self.bounds).max()) // self.stride)

  def of(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the start, end and direction (True: backward) of lanes, [b] each."""
    lane, backward = (places // 2, places % 2 == 1) if self.both_ways else (places, np.full(len(places), self.backward))
    return self.bounds[lane], self.bounds[lane + 1], backward

  def read(self, places: np.ndarray, window: int) -> np.ndarray:
    """Return positions of a window, int64[b, length+1], and the one after."""
    first, end, backward = self.of(places)
    ahead = window * self.stride + np.arange(self.length + 1)
    return np.where(backward[:, None], end[:, None] - 1 - ahead, first[:, None] + ahead)


@dataclasses.dataclass(frozen=True)
class Window(order.Chosen):
  """The sequences of a step."""

  places: np.ndarray  # int64[b], indices in the batch
  window: int  # index of the step in its epoch
  epoch: int  # epoch of all sequences
  shuffled: bool  # documents are in the order of the epoch, not of the source


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
  """Tokenise the text of `path` once and serve it in lanes.

  Args:
    seed: seed of the order of documents and of the sampling of B.
    stride: tokens that a lane advances by per step. None is `length`, or half of it with `second_segment`.
    second_segment: sequences of `X A <sep> B <sep> <cls>` with `type_ids` 0 (X A <sep>), 1 (B <sep>) and 2 (<cls>).
    reverse_half: even sequences read their lane forward; odd sequences read the lane of the previous one from end to
      beginning.
    reverse: all sequences read their lane from end to beginning, for a backward language model: `c b a </s>` of a text
      `a b c`, so each token is predicted from the tokens after it.
    both_directions: sequences of two streams, with the keys `next_tokens`, `characters`, `backward_tokens` and so on.
      The vocabulary needs different begin and end tokens.
    end: token after a document. None is the end-of-document token of the vocabulary, or else [SEP].
    vocab, path, split, length, batch_size, text, documents, quality, max_bytes, shuffle, cache, host, hosts: see
      `plm_jax.data`.

  Returns:
    Batches with the keys of `GIVES`. `type_ids` needs `second_segment`. With `both_directions` the keys of two streams
    replace `next_token` and `reversed`. Without `second_segment` each token is in the first `stride` positions of one
    sequence per epoch; the last sequences of lanes are padded, or all padding with weight 0. With it all sequences are
    full: if a lane is too short at its end (at its beginning if read backward), tokens of the next lane are read.

  Raises:
    ValueError: settings that do not fit each other, the vocabulary or the text.
  """
  if stride is None:
    stride = length // 2 if second_segment else length
  _check(vocab, length=length, batch_size=batch_size, stride=stride, second=second_segment, both_ways=reverse_half)
  if reverse and (reverse_half or second_segment):
    raise ValueError('reverse=True reverses all sequences: remove reverse_half and second_segment.')
  alone = stride == length and not (second_segment or reverse_half or reverse or end)
  if both_directions:
    if not alone:
      raise ValueError('both_directions=True excludes stride, second_segment, reverse_half, reverse, end: remove them.')
    chars.check_ends(vocab)
  share = order.share(batch_size, host=host, hosts=hosts)
  end_id = _end_id(vocab, end)
  corpus = Corpus(
    path=path, split=split, text=text, documents=documents, quality=quality, max_bytes=max_bytes, cache=cache
  )
  tokens, ends = _read(corpus, both_directions, vocab=vocab)
  stream = _streams(tokens, tokens.ids if ends is None else ends.ids, end_id=end_id, seed=seed)
  count = batch_size // 2 if reverse_half else batch_size
  total = stream(0, False).size
  if total < max(count, length):
    few = f'{corpus} has {total} tokens: too few for {count} lanes of length={length}'
    raise ValueError(f'{few}; reduce data.batch_size or data.length.')
  second = length - stride - _MARKS if second_segment else 0
  lanes = Lanes(total * np.arange(count + 1) // count, length, stride, second, reverse_half, reverse)
  log.info(f'{corpus}: {total} tokens, {lanes.steps} steps per epoch of {batch_size} sequences of {length} tokens.')

  batch = _batches(stream, lanes, ends, vocab=vocab, seed=seed)
  settings = [length, batch_size, stride, second_segment, reverse_half, end_id, *['reverse'] * reverse]
  settings += ['both_directions', ends.begin_id, 'spelt'] if ends else []
  digest = store.digest_of(tokens.digest, 'bptt', *settings)
  windows = _windows(lanes, batch_size=batch_size, shuffle=shuffle)
  return order.serve(batch, windows, share=share, digest=digest)


def template(
  *, vocab: Vocab, second_segment: bool = False, both_directions: bool = False, end: str | None = None, **rest: Any
) -> Template:
  """Return the special tokens around a text.

  With `second_segment` XLNet's layout, otherwise the end token, or nothing with `both_directions`.
  """
  if second_segment:
    return framing.template(xlnet.make(vocab=vocab, fields=1), xlnet.make(vocab=vocab, fields=2))
  if both_directions:  # a trunk of two directions adds both tokens itself
    return Template((('A', 0),), (('A', 0), ('B', 0)))
  end_id = _end_id(vocab, end)
  return Template((('A', 0), (end_id, 0)), (('A', 0), (end_id, 0), ('B', 0), (end_id, 0)))


def _check(vocab: Vocab, *, length: int, batch_size: int, stride: int, second: bool, both_ways: bool) -> None:
  most = length - _MARKS - 2 if second else length  # A and B have a token each
  if not 1 <= stride <= most:
    needed = ' with second_segment=True' if second else ''
    raise ValueError(f'stride={stride} does not fit length={length}: choose 1 to {most}{needed}.')
  if both_ways and batch_size % 2:
    raise ValueError(f'reverse_half=True needs an even batch_size, not {batch_size}.')
  if second and (vocab.sep_id is None or vocab.cls_id is None):
    raise ValueError('second_segment=True needs a vocabulary with a [SEP] and a [CLS] token.')


def _read(corpus: Corpus, both_directions: bool, *, vocab: Vocab) -> tuple[store.Tokens, Ends | None]:
  if not both_directions:
    return corpus.tokenise(vocab), None
  tokens, ids = corpus.tokenise_and_spell(vocab)
  assert vocab.bos_id is not None and vocab.eos_id is not None  # checked by `chars.check_ends`
  return tokens, Ends(begin_id=vocab.bos_id, end_id=vocab.eos_id, ids=ids)


def _batches(
  stream: Callable[[int, bool], Stream], lanes: Lanes, ends: Ends | None, *, vocab: Vocab, seed: int
) -> Callable[[Window], order.Batch]:
  def batch(chosen: Window) -> order.Batch:
    text = stream(chosen.epoch, chosen.shuffled)
    reset = {'reset': np.full(len(chosen.places), chosen.window == 0)}
    if ends is not None:
      return _two_streams(text, lanes, chosen, ends=ends, pad_id=vocab.pad_id) | reset
    if lanes.second:
      arrays = _with_second(text, lanes, chosen, vocab=vocab, seed=seed)
    else:
      arrays = _plain(text, lanes, chosen, vocab)
    return arrays | reset | {'reversed': lanes.of(chosen.places)[2]}

  return batch


def _streams(
  tokens: store.Tokens, ids: store.AnyIds | SpeltIds, *, end_id: int, seed: int
) -> Callable[[int, bool], Stream]:
  """Build the function (epoch, shuffled) -> stream of the non-empty documents."""
  sizes = np.diff(tokens.offsets)
  filled = np.flatnonzero(sizes > 0)

  @functools.lru_cache(maxsize=2)
  def stream(epoch: int, shuffled: bool) -> Stream:
    documents = filled[order.permutation(len(filled), seed, epoch)] if shuffled else filled
    return Stream(ids, tokens.offsets[documents], np.cumsum(sizes[documents] + 1), end_id)

  return stream


def _windows(lanes: Lanes, *, batch_size: int, shuffle: bool) -> order.Order[Window]:
  """Order windows, one of all lanes per step; weight 0 after lanes."""

  def window(index: int, epoch: int, places: np.ndarray, *, shuffled: bool) -> Window:
    first, end, _ = lanes.of(places)
    return Window(
      rows=index * batch_size + places,
      epochs=np.full(len(places), epoch),
      real=np.full(len(places), True) if lanes.second else end - first > index * lanes.stride,
      places=places,
      window=index,
      epoch=epoch,
      shuffled=shuffled,
    )

  def train(step: int, places: np.ndarray) -> Window:
    epoch, index = divmod(step, lanes.steps)
    return window(index, epoch, places, shuffled=shuffle)

  def once(step: int, places: np.ndarray) -> Window:
    return window(step, 0, places, shuffled=False)

  return order.Order(lanes.steps * batch_size, lanes.steps, train, once)


def _plain(text: Stream, lanes: Lanes, chosen: Window, vocab: Vocab) -> order.Batch:
  """Build sequences of one lane each, padded after its end."""
  positions = lanes.read(chosen.places, chosen.window)
  first, end, _ = lanes.of(chosen.places)
  inside = (positions >= first[:, None]) & (positions < end[:, None])
  read = np.where(inside, text.at(positions % lanes.bounds[-1]), vocab.pad_id).astype(np.int32)
  follows = np.where(inside[:, -1], read[:, -1], np.int32(nothing_after(vocab)))
  return {'tokens': read[:, :-1], 'segment_ids': inside[:, :-1].astype(np.int32), 'next_token': follows}


def _two_streams(text: Stream, lanes: Lanes, chosen: Window, *, ends: Ends, pad_id: int) -> order.Batch:
  """Build sequences of two streams, padded after the end of a lane."""
  # document  a b c       index in the document  0 1 2 3
  # forward   <s> a b c   predicts  a b c </s>         backward  </s> c b a   predicts  c b a <s>
  positions = lanes.read(chosen.places, chosen.window)[:, :-1]
  real = positions < lanes.of(chosen.places)[1][:, None]
  positions = positions % lanes.bounds[-1]

  def read(choose: Callable[[np.ndarray, np.ndarray], np.ndarray], mark: int) -> np.ndarray:
    ids = text.inside(positions, choose)
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
  """Build sequences of `X A <sep> B <sep> <cls>`."""
  total, length, stride, room = int(lanes.bounds[-1]), lanes.length, lanes.stride, lanes.second
  read_at = lanes.read(chosen.places, chosen.window)[:, :-1] % total
  backward = lanes.of(chosen.places)[2]
  types = np.zeros((len(read_at), length), np.int32)
  # 1. Sample the length of A, and the position of B: after A or anywhere.
  for index, row in enumerate(chosen.rows.tolist()):
    bits = np.random.Philox(np.random.SeedSequence((seed, chosen.epoch, row))).random_raw(3)
    size = 1 + int(bits[0] % (room - 1))  # of A; B has at least one token
    positions = read_at[index, stride + size + np.arange(room - size)]
    if bits[1] % 2:
      direction = -1 if backward[index] else 1
      positions = (int(bits[2] % total) + direction * np.arange(room - size)) % total
    read_at[index, stride + size + 1 : length - 2] = positions
    types[index, stride + size + 1 :] = 1
  # 2. Read the tokens, and write the special tokens over their positions.
  ids = text.at(read_at)
  separator = types.argmax(axis=1) - 1
  ids[np.arange(len(read_at)), separator] = vocab.sep_id
  ids[:, -2], ids[:, -1], types[:, -1] = vocab.sep_id, vocab.cls_id, 2
  return {
    'tokens': ids,
    'segment_ids': np.ones_like(ids),
    'type_ids': types,
    'next_token': np.full(len(read_at), nothing_after(vocab), np.int32),
  }


def _end_id(vocab: Vocab, name: str | None) -> int:
  """Return the id of the token after documents, or raise ValueError."""
  if name is not None:
    return vocab.id(name)
  end_id = framing.end_of_text(vocab)
  if end_id is None:
    raise ValueError('the vocabulary has no end token: set data.end to one of its tokens.')
  return end_id
