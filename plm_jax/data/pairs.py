"""Two neighbouring segments of a document and one of another, for next-sentence prediction and sentence order.

A row is a run of sentences of one document, as in BERT's data script (Devlin et al. 2018, A.2): sentences are added
until the run reaches the target length of the document, which is the room of a row or, with probability
`short_probability`, drawn from 2 to that room. The run is split after a sentence drawn uniformly: `first` is what
stands before the split, `next` what stands after it. `other` begins at a sentence drawn from another document and has
the target length less that of `first`. Which of the two follows `first`, and in which order, is decided on the device
(`noise/pair.py`). So a `next` that is not used is not read again in the same epoch, as it is in the script; other
epochs split at other sentences.

With `unit='sentence'` all three are single sentences (RoBERTa's SENTENCE-PAIR): a row has sentences 2k and 2k + 1 of a
document. Such rows are short, so choose `length` and `batch_size` by the number of tokens per batch: the log says how
many there are.

The split, the other document and the place in it are pure functions of (seed, row, epoch). Where sentences end is
decided by `rows/boundaries.py`.
"""

import logging
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_args

import numpy as np

from plm_jax.core.types import Count, Rate, Source, Vocab
from plm_jax.data.corpora.formats.txt import Boundary
from plm_jax.data.rows import boundaries, order, packing, store
from plm_jax.data.rows.documents import look as look
from plm_jax.data.rows.documents import tokenised

log = logging.getLogger(__name__)
# of a smoke test (`file.py:quick`)
QUICK = dict(path='pydocs', text=None, documents='blank_line', length=64, batch_size=8)

GIVES = ('first', 'next', 'other', 'first_length', 'next_length', 'other_length', 'num_tokens')

Unit = Literal['segment', 'sentence']

_SPECIALS = 3  # [CLS] A [SEP] B [SEP]
_TRIES = 10  # draws of another document, as in BERT's script
_PARTS = ('first', 'next', 'other')


class Runs(NamedTuple):
  """The rows of a corpus.

  Attributes:
    sentences: int64[s+1], where each begins in the token store.
    heads: int64[d+1], the sentence that each document begins with.
    begin: int64[r], the first sentence of each row.
    end: int64[r], the sentence after the last one.
    document: int64[r], its document.
    target: int32[r], the target length in tokens.
  """

  sentences: np.ndarray
  heads: np.ndarray
  begin: np.ndarray
  end: np.ndarray
  document: np.ndarray
  target: np.ndarray


def make(
  *,
  vocab: Vocab,
  path: str,
  split: str = 'train',
  length: Count,
  batch_size: Count,
  seed: int,
  unit: Unit = 'segment',
  short_probability: Rate = 0.1,
  copies: Count | None = None,
  text: str | None = None,
  documents: Boundary = 'blank_line',
  quality: Annotated[Mapping[str, Any], 'data.corpora.filters:filter_documents'] | None = None,
  max_bytes: Count = 1_073_741_824,
  shuffle: bool = True,
  cache: str = '~/.cache/plm_jax',
  host: int = 0,
  hosts: int = 1,
) -> Source:
  """Tokenises the text of `path`, once, and serves it as segments.

  Args:
    vocab: gives the ids.
    path: of the text, as `sources.documents` takes it.
    split: part of it, TFDS slicing allowed.
    length: tokens of a joined row, special ones counted; also the width of each segment.
    batch_size: rows per step over all hosts.
    seed: of the order of rows and of the draws.
    unit: 'segment', one or more sentences each, or 'sentence', one each.
    short_probability: share of documents whose rows aim at a shorter length (BERT, ALBERT: .1; RoBERTa, SpanBERT: 0).
    copies: epochs with draws of their own; later ones repeat them (BERT's data holds 10). None draws anew each epoch.
    text: the field that holds the text, where there are several.
    documents: what ends a document in a .txt file.
    quality: keywords of `filters.filter_documents`: documents that fail are left out.
    shuffle: False keeps the order of the source.
    max_bytes: most bytes of a document of a file, and of a .gz file unzipped, which is held in memory.
    cache: folder for token stores.
    host: index of this process.
    hosts: number of processes.

  Returns:
    Batches with the keys of `GIVES`. A segment longer than `length` has lost as many tokens from its ends, each from
    one or the other with equal chance, as truncation on the device would take.

  Raises:
    ValueError: a setting that cannot be met.
  """
  _check(length=length, unit=unit, short_probability=short_probability, copies=copies)
  share = order.share(batch_size, host=host, hosts=hosts)
  read = {'split': split, 'text': text, 'documents': documents, 'quality': quality, 'max_bytes': max_bytes}
  tokens = tokenised(path, vocab=vocab, cache=cache, **read)
  digest = store.digest_of(tokens.digest, 'pairs', length, unit, short_probability, seed)
  room = length - _SPECIALS

  def plan() -> dict[str, np.ndarray]:
    return _plan(tokens, vocab=vocab, room=room, unit=unit, short_probability=short_probability, seed=seed)._asdict()

  rows_of = Runs(**store.cached(tokens, f'pairs-{digest[:16]}', plan))
  _report(rows_of, room=room, batch_size=batch_size, where=f'{path} ({split})')

  def batch(chosen: order.Chosen) -> order.Batch:
    draw = chosen.epochs if copies is None else chosen.epochs % copies
    drawn = segments(rows_of, chosen.rows, draw, seed=seed, unit=unit)
    out: order.Batch = {}
    for number, (name, (starts, counts)) in enumerate(zip(_PARTS, drawn, strict=True)):
      excess = np.maximum(counts - length, 0)
      starts = starts + _coins(excess, seed, chosen.rows, draw, number)
      counts = (counts - excess).astype(np.int32)
      whole = packing.Plan(starts, counts, np.zeros(len(starts), np.uint8), np.arange(len(starts) + 1))
      out[name], _ = packing.assemble(
        whole, tokens.ids, np.arange(len(starts)), frames=(((), ()),), length=length, pad=vocab.pad_id
      )
      out[f'{name}_length'] = counts
    second = np.where(out['next_length'] > 0, out['next_length'], out['other_length'])
    return out | {'num_tokens': np.minimum(out['first_length'] + second, room).astype(np.int32) + np.int32(_SPECIALS)}

  each = order.shuffled(len(rows_of.begin), share, seed=seed, shuffle=shuffle)
  return order.serve(batch, each, share=share, digest=digest, path=f'{path} ({split})')


def _check(*, length: int, unit: Unit, short_probability: float, copies: int | None) -> None:
  """Refuses settings that cannot be met."""
  if unit not in get_args(Unit):
    raise ValueError(f'unit={unit!r} is unknown: choose one of {", ".join(get_args(Unit))}.')
  if not 0 <= short_probability <= 1:
    raise ValueError(f'short_probability={short_probability} is not in 0..1.')
  if copies is not None and copies < 1:
    raise ValueError(f'copies={copies} must be 1 or more, or None.')
  if length < _SPECIALS + 2:
    raise ValueError(f'length={length} is too short for a pair: it needs at least {_SPECIALS + 2} tokens per row.')


def _plan(tokens: store.Tokens, *, vocab: Vocab, room: int, unit: Unit, short_probability: float, seed: int) -> Runs:
  """The rows of a corpus."""
  starts = boundaries.sentences(tokens.ids, tokens.offsets, vocab=vocab, longest=room)
  heads = boundaries.documents(starts, tokens.offsets)
  if unit == 'sentence':
    return neighbours(starts, heads, room=room)
  targets = draw_targets(len(heads) - 1, room=room, short_probability=short_probability, seed=seed)
  return runs(starts, heads, targets=targets)


def _report(rows_of: Runs, *, room: int, batch_size: int, where: str) -> None:
  """Says in the log what was found."""
  if len(rows_of.heads) < 3:
    log.warning(f'{where} is a single document: `other` is taken from the same document.')
  sizes = rows_of.sentences[rows_of.end] - rows_of.sentences[rows_of.begin]
  mean = float(np.minimum(sizes, room).mean()) + _SPECIALS
  log.info(
    f'{where}: {len(rows_of.heads) - 1} documents, {len(rows_of.sentences) - 1} sentences, {len(rows_of.begin)} rows; '
    f'about {mean:.0f} tokens per row, {mean * batch_size:.0f} per batch.'
  )


def draw_targets(documents: int, *, room: int, short_probability: float, seed: int) -> np.ndarray:
  """int32[documents]: the target length of the rows of each document; drawn once per document, as in BERT's script."""
  document = np.arange(documents)
  short = _uniform(seed, document, 0, 0) < short_probability
  drawn = 2 + _uniform(seed, document, 0, 1) * (room - 1)
  return np.where(short, drawn, room).astype(np.int32)


def runs(sentences: np.ndarray, heads: np.ndarray, *, targets: np.ndarray) -> Runs:
  """Each document cut into runs of whole sentences that just reach its target length; the last one may be shorter."""
  begins, documents = [], []
  document = np.arange(len(heads) - 1)
  at = heads[:-1]
  while len(document):  # the k-th run of every document that has one, all at once
    begins.append(at)
    documents.append(document)
    reached = np.searchsorted(sentences, sentences[at] + targets[document])  # the first end at or beyond the target
    at = np.minimum(reached, heads[document + 1])
    left = at < heads[document + 1]
    at, document = at[left], document[left]
  begin, owner = np.concatenate(begins), np.concatenate(documents)
  place = np.argsort(begin, kind='stable')
  begin, owner = begin[place], owner[place]
  return Runs(sentences, heads, begin, np.append(begin[1:], heads[-1]), owner, targets[owner])


def neighbours(sentences: np.ndarray, heads: np.ndarray, *, room: int) -> Runs:
  """Each document cut into runs of two sentences; the last run may have one."""
  sizes = np.diff(heads)
  owner = np.repeat(np.arange(len(sizes)), -(-sizes // 2))
  first = np.cumsum(-(-sizes // 2)) - -(-sizes // 2)
  begin = heads[owner] + 2 * (np.arange(len(owner)) - first[owner])
  end = np.minimum(begin + 2, heads[owner + 1])
  return Runs(sentences, heads, begin, end, owner, np.full(len(owner), room, np.int32))


def segments(
  rows_of: Runs, chosen: np.ndarray, draw: np.ndarray, *, seed: int, unit: Unit
) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
  """Where the three segments of some rows lie in the token store: (starts, counts), int64[b], for each of them.

  The random numbers are a function of (seed, row, draw): `chosen` int64[b] are the rows, `draw` int64[b] their epochs.
  `next` is empty where the run is a single sentence. `other` is from another document unless ten draws all gave the
  document of the row.
  """
  sentences, heads = rows_of.sentences, rows_of.heads
  begin, end = rows_of.begin[chosen], rows_of.end[chosen]
  document, target = rows_of.document[chosen], rows_of.target[chosen]
  several = end - begin > 1
  split = begin + np.where(several, 1 + _below(end - begin - 1, seed, chosen, draw, 2), 1)

  total = np.full(len(chosen), len(heads) - 1)
  other = document
  for attempt in range(_TRIES):
    other = np.where(other == document, _below(total, seed, chosen, draw, 10 + attempt), other)
  at = heads[other] + _below(heads[other + 1] - heads[other], seed, chosen, draw, 3)
  wanted = np.maximum(target - (sentences[split] - sentences[begin]), 1)
  reached = np.searchsorted(sentences, sentences[at] + wanted)
  stop = at + 1 if unit == 'sentence' else np.minimum(reached, heads[other + 1])
  return (
    (sentences[begin], sentences[split] - sentences[begin]),
    (sentences[split], sentences[end] - sentences[split]),
    (sentences[at], sentences[stop] - sentences[at]),
  )


def _bits(*parts: Any) -> np.ndarray:
  """uint64: a hash of integers, elementwise (the finaliser of SplitMix64 is applied after each integer)."""
  state = np.zeros(1, np.uint64)
  with np.errstate(over='ignore'):
    for part in parts:
      state = state + np.asarray(part).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
      state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
      state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
      state = state ^ (state >> np.uint64(31))
  return state


def _uniform(*parts: Any) -> np.ndarray:
  """float64 in [0, 1), a pure function of these integers."""
  return (_bits(*parts) >> np.uint64(11)) * 2.0**-53


def _below(count: np.ndarray, *parts: Any) -> np.ndarray:
  """int64, uniform in 0..count-1."""
  return (_uniform(*parts) * count).astype(np.int64)


def _coins(count: np.ndarray, seed: int, chosen: np.ndarray, draw: np.ndarray, part: int) -> np.ndarray:
  """int64: a binomial draw, the number of heads among `count` throws of a fair coin."""
  throws = np.arange(int(count.max(initial=0)))
  heads = _uniform(seed, chosen[:, None], draw[:, None], 100 + part, throws[None]) < 0.5
  return (heads & (throws < count[:, None])).sum(axis=1)
