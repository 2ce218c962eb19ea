"""Two neighbouring segments of a document and one of another, for next-sentence prediction and sentence order.

An example is a run of sentences of one document, as in BERT's data script (Devlin et al. 2018, A.2). Sentences are
added until the run reaches the target length of the document. The target is the room of a sequence or, with probability
`short_probability`, sampled from 2 to that room. The run is split after a uniformly sampled sentence: `first` is the
part before the split, `next` the part after it. `other` begins at a sentence sampled from another document and has the
target length minus the length of `first`. The device decides which of the two follows `first`, and in which order
(`noise/pair.py`). An unused `next` is not read again in the same epoch; BERT's script reads it again. Other epochs
split at other sentences.

With `unit='sentence'` all three are single sentences (RoBERTa's SENTENCE-PAIR): an example has sentences 2k and 2k + 1
of a document. Such examples are short, so choose `length` and `batch_size` by the number of tokens per batch, which the
log reports.

The split, the other document and the position in it are pure functions of (seed, row, epoch). Sentences end by the rule
`sentences`, a file of `rows/sentences/`. A corpus whose examples all are one sentence is refused: every pair would have
the same label.
"""

import functools
import logging
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_args

import numpy as np

from plm_jax.core.keywords import Count, Rate
from plm_jax.core.types import Source, Vocab
from plm_jax.data.corpora.formats.txt import Boundary
from plm_jax.data.rows import boundaries, order, packing, store
from plm_jax.data.rows.cached import cached
from plm_jax.data.rows.documents import Corpus
from plm_jax.data.rows.documents import look as look
from plm_jax.data.rows.segments import identity as segments_of

log = logging.getLogger(__name__)
QUICK = dict(path='pydocs', text=None, documents='blank_line', length=64, batch_size=8)  # of a smoke test

GIVES = ('first', 'next', 'other', 'first_length', 'next_length', 'other_length', 'num_tokens')

Unit = Literal['segment', 'sentence']

_SPECIALS = 3  # [CLS] A [SEP] B [SEP]
_TRIES = 10  # attempts to sample another document, as in BERT's script
_PARTS = ('first', 'next', 'other')


class Runs(NamedTuple):
  """The examples of a corpus."""

  sentences: np.ndarray  # int64[s+1], start of each sentence in the token store
  heads: np.ndarray  # int64[d+1], index of the first sentence of each document
  begin: np.ndarray  # int64[r], first sentence of each example
  end: np.ndarray  # int64[r], the sentence after its last one
  document: np.ndarray  # int64[r], its document
  target: np.ndarray  # int32[r], its target length in tokens


def make(
  *,
  vocab: Vocab,
  path: str,
  split: str = 'train',
  length: Count,
  batch_size: Count,
  seed: int,
  unit: Unit = 'segment',
  sentences: str | None = None,
  short_probability: Rate = 0.1,
  copies: Count | None = None,
  text: str | None = None,
  segmenter: str | None = None,
  documents: Boundary = 'blank_line',
  quality: Annotated[Mapping[str, Any], 'data.corpora.filters:filter_documents'] | None = None,
  max_bytes: Count = 1_073_741_824,
  shuffle: bool = True,
  cache: str = '~/.cache/plm_jax',
  host: int = 0,
  hosts: int = 1,
) -> Source:
  """Tokenise the text of `path` once and serve it as segments.

  Args:
    length: tokens of a joined pair, special tokens included; also the width of each segment.
    unit: 'segment', one or more sentences each, or 'sentence', one each.
    sentences: what ends a sentence: 'punctuation' (None), 'line' (BERT's corpus form, one sentence a line), 'both' of
      them, 'any_script' (with the marks of all scripts), or 'module:function' of a module with
      `SENTENCES = ('function',)`.
    short_probability: share of documents with a shorter target length (BERT, ALBERT: .1; RoBERTa, SpanBERT: 0).
    segmenter: as in `data.stream`; ids of tokens then have the mark of their word times the size of the vocabulary.
    copies: number of epochs with their own samples; later epochs repeat them (BERT's data has 10). None samples in
      every epoch.
    Other keywords: see `plm_jax.data`.

  Returns:
    Batches with the keys of `GIVES`. A segment longer than `length` loses its excess tokens here. Each is removed from
    the beginning or the end with equal probability, as in truncation on the device.

  Raises:
    ValueError: settings that do not fit each other, or no example has two sentences.
  """
  _check(length=length, unit=unit, short_probability=short_probability, copies=copies)
  share = order.share(batch_size, host=host, hosts=hosts)
  corpus = Corpus(
    path=path, split=split, text=text, documents=documents, quality=quality, max_bytes=max_bytes, cache=cache
  )
  room = length - _SPECIALS

  @functools.lru_cache(maxsize=1)
  def planned(rule: str) -> tuple[store.Tokens, str, Runs]:
    tokens, begun = corpus.tokenise_and_split(vocab, rule)
    digest = store.digest_of(tokens.digest, 'pairs', length, unit, short_probability, seed, *boundaries.key(rule))

    def plan() -> dict[str, np.ndarray]:
      starts = boundaries.sentences(tokens.ids, tokens.offsets, vocab=vocab, longest=room, rule=rule, starts=begun)
      heads = boundaries.documents(starts, tokens.offsets)
      return _plan(starts, heads, room=room, unit=unit, short_probability=short_probability, seed=seed)._asdict()

    return tokens, digest, Runs(**cached(tokens, f'pairs-{digest[:16]}', plan))

  def single(rule: str) -> tuple[int, int]:
    _, _, examples = planned(rule)
    return int((examples.end - examples.begin == 1).sum()), len(examples.begin)

  rule = sentences or boundaries.RULE
  tokens, digest, rows_of = planned(rule)
  ids: packing.Ids = tokens.ids
  if segmenter is not None:
    ids, digest = corpus.tokenise_and_segment(vocab, segmenter)[1], store.digest_of(digest, *segments_of(segmenter))
  _report(rows_of, room=room, batch_size=batch_size, where=str(corpus))
  so = 'their pairs all have the same label'
  boundaries.check(rule, single, what='examples', so=so, where=str(corpus), stop=True)

  def batch(chosen: order.Chosen) -> order.Batch:
    copy = chosen.epochs if copies is None else chosen.epochs % copies
    out: order.Batch = {}
    for index, (starts, counts) in enumerate(segments(rows_of, chosen.rows, copy, seed=seed, unit=unit)):
      starts = starts + _coins(np.maximum(counts - length, 0), seed, chosen.rows, copy, index)
      out |= _assemble(_PARTS[index], ids, starts, counts, length=length, pad=vocab.pad_id)
    second = np.where(out['next_length'] > 0, out['next_length'], out['other_length'])
    return out | {'num_tokens': np.minimum(out['first_length'] + second, room).astype(np.int32) + np.int32(_SPECIALS)}

  each = order.shuffled(len(rows_of.begin), share, seed=seed, shuffle=shuffle)
  return order.serve(batch, each, share=share, digest=digest)


def _assemble(
  name: str, ids: 'packing.Ids', starts: np.ndarray, counts: np.ndarray, *, length: int, pad: int
) -> order.Batch:
  """Return a segment of each example, int32[b, length], and its tokens."""
  counts, rows = np.minimum(counts, length).astype(np.int32), np.arange(len(starts) + 1)
  whole = packing.Plan(starts, counts, np.zeros(len(starts), np.uint8), rows)
  array, _ = packing.assemble(whole, ids, rows[:-1], frames=(((), ()),), length=length, pad=pad)
  return {name: array, f'{name}_length': counts}


def _check(*, length: int, unit: Unit, short_probability: float, copies: int | None) -> None:
  if unit not in get_args(Unit):
    raise ValueError(f'unit={unit!r} does not exist: choose one of {", ".join(get_args(Unit))}.')
  if not 0 <= short_probability <= 1:
    raise ValueError(f'short_probability={short_probability} is not a probability: choose 0 to 1.')
  if copies is not None and copies < 1:
    raise ValueError(f'copies={copies} is too small: choose 1 or more, or None.')
  if length < _SPECIALS + 2:
    raise ValueError(f'length={length} is too short for a pair: choose at least {_SPECIALS + 2} tokens.')


def _plan(starts: np.ndarray, heads: np.ndarray, *, room: int, unit: Unit, short_probability: float, seed: int) -> Runs:
  if unit == 'sentence':
    return neighbours(starts, heads, room=room)
  targets = draw_targets(len(heads) - 1, room=room, short_probability=short_probability, seed=seed)
  return runs(starts, heads, targets=targets)


def _report(rows_of: Runs, *, room: int, batch_size: int, where: str) -> None:
  if len(rows_of.heads) < 3:
    log.warning(f'{where} is a single document: `other` comes from the same document.')
  sizes = rows_of.sentences[rows_of.end] - rows_of.sentences[rows_of.begin]
  mean = float(np.minimum(sizes, room).mean()) + _SPECIALS
  log.info(
    f'{where}: {len(rows_of.heads) - 1} documents, {len(rows_of.sentences) - 1} sentences, {len(rows_of.begin)} '
    f'examples; about {mean:.0f} tokens per example, {mean * batch_size:.0f} per batch.'
  )


def draw_targets(documents: int, *, room: int, short_probability: float, seed: int) -> np.ndarray:
  """Sample the target length of each document, int32[documents], as BERT's script does."""
  document = np.arange(documents)
  short = _uniform(seed, document, 0, 0) < short_probability
  shorter = 2 + _uniform(seed, document, 0, 1) * (room - 1)
  return np.where(short, shorter, room).astype(np.int32)


def runs(sentences: np.ndarray, heads: np.ndarray, *, targets: np.ndarray) -> Runs:
  """Cut documents into runs of sentences of target length, or shorter."""
  begins, documents = [], []
  document = np.arange(len(heads) - 1)
  start = heads[:-1]
  while len(document):  # iteration k: the k-th run of every document that has one
    begins.append(start)
    documents.append(document)
    reached = np.searchsorted(sentences, sentences[start] + targets[document])  # the first end at or beyond the target
    start = np.minimum(reached, heads[document + 1])
    left = start < heads[document + 1]
    start, document = start[left], document[left]
  begin, owner = np.concatenate(begins), np.concatenate(documents)
  ascending = np.argsort(begin, kind='stable')
  begin, owner = begin[ascending], owner[ascending]
  return Runs(sentences, heads, begin, np.append(begin[1:], heads[-1]), owner, targets[owner])


def neighbours(sentences: np.ndarray, heads: np.ndarray, *, room: int) -> Runs:
  """Cut each document into runs of two sentences, last maybe one."""
  sizes = np.diff(heads)
  owner = np.repeat(np.arange(len(sizes)), -(-sizes // 2))
  first = np.cumsum(-(-sizes // 2)) - -(-sizes // 2)
  begin = heads[owner] + 2 * (np.arange(len(owner)) - first[owner])
  end = np.minimum(begin + 2, heads[owner + 1])
  return Runs(sentences, heads, begin, end, owner, np.full(len(owner), room, np.int32))


def segments(
  rows_of: Runs, chosen: np.ndarray, copy: np.ndarray, *, seed: int, unit: Unit
) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
  """Locate the three segments of examples `chosen` int64[b].

  The random numbers are a function of (seed, row, copy); `copy` int64[b] is the epoch of the samples. Returns (starts,
  counts) in the token store, int64[b] each, of `first`, `next` and `other`. `next` is empty if the run is a single
  sentence. `other` is from another document unless ten samples all gave the document of the example.
  """
  sentences, heads = rows_of.sentences, rows_of.heads
  begin, end = rows_of.begin[chosen], rows_of.end[chosen]
  document, target = rows_of.document[chosen], rows_of.target[chosen]
  several = end - begin > 1
  split = begin + np.where(several, 1 + _below(end - begin - 1, seed, chosen, copy, 2), 1)

  total = np.full(len(chosen), len(heads) - 1)
  other = document
  for attempt in range(_TRIES):
    other = np.where(other == document, _below(total, seed, chosen, copy, 10 + attempt), other)
  other_begin = heads[other] + _below(heads[other + 1] - heads[other], seed, chosen, copy, 3)
  needed = np.maximum(target - (sentences[split] - sentences[begin]), 1)
  reached = np.searchsorted(sentences, sentences[other_begin] + needed)
  stop = other_begin + 1 if unit == 'sentence' else np.minimum(reached, heads[other + 1])
  return (
    (sentences[begin], sentences[split] - sentences[begin]),
    (sentences[split], sentences[end] - sentences[split]),
    (sentences[other_begin], sentences[stop] - sentences[other_begin]),
  )


def _bits(*parts: Any) -> np.ndarray:
  """Hash integers to uint64, each with the finaliser of SplitMix64."""
  state = np.zeros(1, np.uint64)
  with np.errstate(over='ignore'):
    for part in parts:
      state = state + np.asarray(part).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
      state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
      state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
      state = state ^ (state >> np.uint64(31))
  return state


def _uniform(*parts: Any) -> np.ndarray:
  """Return float64 in [0, 1), a pure function of these integers."""
  return (_bits(*parts) >> np.uint64(11)) * 2.0**-53


def _below(count: np.ndarray, *parts: Any) -> np.ndarray:
  """Return int64, uniform in 0..count-1."""
  return (_uniform(*parts) * count).astype(np.int64)


def _coins(count: np.ndarray, seed: int, chosen: np.ndarray, copy: np.ndarray, part: int) -> np.ndarray:
  """Sample a binomial, int64: the heads among `count` fair coin throws."""
  throws = np.arange(int(count.max(initial=0)))
  heads = _uniform(seed, chosen[:, None], copy[:, None], 100 + part, throws[None]) < 0.5
  return (heads & (throws < count[:, None])).sum(axis=1)
