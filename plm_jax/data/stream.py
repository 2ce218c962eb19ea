"""Plain text for pre-training: documents as sequences of tokens.

Layouts, for `length` tokens per sequence:

  stream     documents end to end with an end token after each, cut every `length` tokens (GPT-2, GPT-3)
  documents  pieces of documents as `[CLS] piece [SEP]`, packed into sequences (RoBERTa's DOC-SENTENCES; RoBERTa
             enlarges the batch where we pack short pieces)
  rows       the same, one piece per sequence, the rest padding
  full       `[CLS] contiguous text [SEP]`, documents joined by `[SEP] [SEP]` (RoBERTa's FULL-SENTENCES)

Sequences are cut at tokens or, with `whole_sentences`, between sentences as in RoBERTa (see `boundaries.py`). A
sentence longer than a sequence is cut all the same. `segment_ids` counts the pieces of a sequence, so that attention
can be restricted to a piece. In 'full' the sequence is one segment. With `sentences` batches have `sentence_ids`, for
objectives that move or hide sentences.
"""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, get_args

import numpy as np

from plm_jax.core.keywords import Count
from plm_jax.core.types import Source, Template, Vocab
from plm_jax.data.corpora.formats.txt import Boundary
from plm_jax.data.rows import boundaries, framing, in_place, order, packing, segments, spelling, store
from plm_jax.data.rows.cached import cached
from plm_jax.data.rows.documents import Corpus
from plm_jax.data.rows.documents import look as look

log = logging.getLogger(__name__)
EPOCH = 'tokens'  # counted without preparing the data
QUICK = dict(path='pydocs', text=None, documents='blank_line', segmenter=None, length=64, batch_size=8)  # smoke test

GIVES = ('tokens', 'segment_ids', 'overlap', 'sentence_ids', 'characters', 'word_marks')

_BLOCK = 2**20  # tokens that are read together in a local shuffle, about a block of a store

Name = Literal['stream', 'documents', 'rows', 'full']


class Layout(NamedTuple):
  """Plan and special tokens of a layout."""

  # (offsets, length, number of tokens before, number of tokens after) -> plan
  plan: Callable[..., packing.Rows]
  # the plan that cuts between sentences; None for layouts without framed pieces
  whole: Callable[..., packing.Plan] | None
  # vocabulary -> id of the token before a piece, or None
  begin: Callable[[Vocab], int | None] = lambda vocab: vocab.cls_id
  # vocabulary -> id of the token after a piece, or None
  end: Callable[[Vocab], int | None] = lambda vocab: vocab.sep_id
  separators: int = 0  # number of end tokens between two pieces of one segment
  one_segment: bool = False  # True if a sequence is one segment


LAYOUTS: dict[Name, Layout] = {
  'stream': Layout(packing.stream, None, begin=lambda vocab: vocab.bos_id, end=framing.end_of_text),
  'documents': Layout(packing.packed, packing.whole_packed),
  'rows': Layout(packing.one_per_row, packing.whole_one_per_row),
  'full': Layout(packing.full, packing.whole_full, separators=2, one_segment=True),
}


class Frame(NamedTuple):
  """A layout, and the ids before and after a piece (none or one each)."""

  layout: Layout
  before: tuple[int, ...]
  after: tuple[int, ...]


def make(
  *,
  vocab: Vocab,
  characters: bool = False,
  path: str,
  split: str = 'train',
  length: Count,
  batch_size: Count,
  seed: int,
  layout: Name = 'documents',
  stride: Count | None = None,
  whole_sentences: bool = False,
  sentences: str | None = None,
  begin: str | None = None,
  end: str | None = None,
  bos: bool = False,
  text: str | None = None,
  segmenter: str | None = None,
  documents: Boundary = 'blank_line',
  quality: Annotated[Mapping[str, Any], 'data.corpora.filters:filter_documents'] | None = None,
  max_bytes: Count = 1_073_741_824,
  shuffle: bool = True,
  shuffle_window: Count | None = None,
  cache: str = '~/.cache/plm_jax',
  host: int = 0,
  hosts: int = 1,
) -> Source:
  """Tokenise the text of `path` once and serve it as sequences.

  Args:
    layout: see the module docstring.
    stride: tokens from the beginning of a sequence to that of the next, at most `length`; in 'stream'. With fewer than
      `length` a causal language model reads the tokens that two sequences share twice, and scores them once (Baevski
      and Auli 2019, §5.5). None is `length`.
    whole_sentences: cut between sentences; not in 'stream'.
    sentences: what ends a sentence, as in `pairs`: adds `sentence_ids` to batches. None leaves it to the objective, and
      is 'punctuation' for `whole_sentences`.
    begin: token before a piece. None is the one of the layout ([CLS]; nothing in 'stream'), '' is nothing.
    end: token after a piece. None is the one of the layout ([SEP]; in 'stream' the end-of-document token or else
      [SEP]), '' is nothing.
    bos: in 'stream', put the vocabulary's beginning token before each document, so that its first token is predicted.
    shuffle_window: number of tokens whose rows are mixed: blocks of a million tokens come in random order, and the rows
      of this many tokens are mixed. None mixes all rows. Stores read in place (`rows/in_place.py`) need 2**20 to
      2**27, and a layout other than 'documents', which packs rows from all over the text.
    segmenter: what finds the words of scripts without spaces, for masks of whole words: 'jieba', or 'module:function'
      of your own (`rows/segments.py`). None: words are those that the vocabulary marks.
    Other keywords: see `plm_jax.data`.

  Returns:
    Batches with the keys of `GIVES`, the last four only if requested. `read` continues from epoch to
    epoch without a gap, so a batch may contain the end of one epoch and the beginning of the next.

  Raises:
    ValueError: settings that do not fit each other, the vocabulary or the text.
  """
  frame = _frame(vocab, layout, length=length, whole_sentences=whole_sentences, begin=begin, end=end, bos=bos)
  if stride is not None and (layout != 'stream' or stride > length):
    raise ValueError(f"stride={stride} needs layout='stream' and at most length={length}: change it, or remove it.")
  share = order.share(batch_size, host=host, hosts=hosts)
  near = layout != 'documents' and (not shuffle or _BLOCK <= (shuffle_window or 0) <= in_place.LARGEST_WINDOW)
  corpus = Corpus(
    path=path, split=split, text=text, documents=documents, quality=quality, max_bytes=max_bytes, cache=cache, near=near
  )
  tokens, ids = _tokenise(corpus, vocab, characters=characters, segmenter=segmenter)
  extra: list[Any] = ['sentences'] * whole_sentences + ['characters'] * characters
  extra += [] if segmenter is None else ['segmenter', *segments.identity(segmenter)]
  extra += boundaries.key(sentences) if sentences else ()
  extra += ['stride', stride] if stride else []
  digest = store.digest_of(tokens.digest, layout, length, frame.before, frame.after, *extra)
  rule, starts_of = sentences or boundaries.RULE, _starts_of(corpus, vocab, tokens)
  if sentences:
    _check(rule, starts_of, tokens, so='no sentence can move', where=str(corpus))

  def plan() -> packing.Rows:
    starts = starts_of(rule) if whole_sentences else None
    if whole_sentences and not sentences:
      _check(rule, starts_of, tokens, so='long documents are cut anywhere', where=str(corpus))
    return _plan(tokens, frame, length=length, stride=stride, starts=starts)

  joins = frame.layout.plan in (packing.stream, packing.full) and not whole_sentences
  rows = plan() if joins else packing.Plan(**cached(tokens, f'rows-{digest[:16]}', lambda: plan()._asdict()))
  count = len(rows.rows) - 1
  log.info(
    f'{corpus}: {len(tokens.offsets) - 1} documents, {len(tokens.ids)} tokens, {count} sequences of {length} tokens, '
    f'{100 * len(tokens.ids) / (count * length):.1f} % filled.'
  )
  starts = functools.partial(starts_of, rule) if sentences else None
  shared = length - stride if stride else 0
  batch = functools.partial(
    _batch, ids=ids, rows=rows, frame=frame, starts=starts, length=length, shared=shared, vocab=vocab
  )
  each = order.shuffled(count, share, seed=seed, shuffle=shuffle, window=_window(shuffle_window, count, tokens.ids))
  most = 1
  if not frame.layout.one_segment:
    counted = cached(tokens, f'most-{digest[:16]}', lambda: {'most': np.array(rows.most())}) if joins else {}
    most = int(counted['most']) if joins else rows.most()
  return order.serve(batch, each, share=share, digest=digest, documents=most)


def _window(tokens: int | None, rows: int, ids: store.AnyIds) -> order.Window | None:
  if tokens is None or tokens >= len(ids):
    return None
  block = min(_BLOCK, tokens)
  return order.Window(max(block * rows // len(ids), 1), tokens // block)  # rows may be short, or overlap


def _tokenise(
  corpus: Corpus, vocab: Vocab, *, characters: bool, segmenter: str | None
) -> tuple[store.Tokens, 'packing.Ids']:
  """Return tokens, and their ids with characters or marks."""
  if segmenter is None:
    return corpus.tokenise_and_spell(vocab) if characters else ((tokens := corpus.tokenise(vocab)), tokens.ids)
  if characters:
    raise ValueError('data.segmenter is for tokens of a text; this model reads words by their characters: remove it')
  return corpus.tokenise_and_segment(vocab, segmenter)


def _starts_of(corpus: Corpus, vocab: Vocab, tokens: store.Tokens) -> Callable[[str], np.ndarray]:
  """Return the function rule -> starts of sentences, cached."""

  @functools.lru_cache(maxsize=1)
  def starts_of(rule: str) -> np.ndarray:
    _, begun = corpus.tokenise_and_split(vocab, rule)
    most = len(tokens.ids)  # sentences are not cut
    find = functools.partial(boundaries.sentences, tokens.ids, tokens.offsets, vocab=vocab, longest=most, rule=rule)
    name = store.digest_of(tokens.digest, 'split', rule, *boundaries.key(rule))[:16]
    return cached(tokens, f'split-{name}', lambda: {'starts': find(starts=begun)})['starts']

  return starts_of


def _check(rule: str, starts_of: Callable[[str], np.ndarray], tokens: store.Tokens, *, so: str, where: str) -> None:
  def single(rule: str) -> tuple[int, int]:
    sizes = np.diff(boundaries.documents(starts_of(rule), tokens.offsets))
    return int((sizes == 1).sum()), len(sizes)

  boundaries.check(rule, single, what='documents', so=so, where=where, stop=False)


def _batch(
  chosen: order.Chosen,
  *,
  ids: 'packing.Ids',
  rows: packing.Rows,
  frame: Frame,
  starts: Callable[[], np.ndarray] | None,
  length: int,
  shared: int,
  vocab: Vocab,
) -> order.Batch:
  """Assemble sequences; `starts` gives the sentences for `sentence_ids`."""
  frames = packing.frames(frame.before, frame.after, between=frame.after * frame.layout.separators)
  out, numbers = packing.assemble(rows, ids, chosen.rows, frames=frames, length=length, pad=vocab.pad_id)
  arrays = {'segment_ids': np.minimum(numbers, 1) if frame.layout.one_segment else numbers}
  if shared:
    arrays['overlap'] = np.where(chosen.rows > 0, shared, 0).astype(np.int32)
  if starts is not None:
    arrays['sentence_ids'] = _sentence_ids(rows, starts(), chosen.rows, frames=frames, length=length)
  if isinstance(ids, spelling.SpeltIds):
    arrays['characters'], out = ids.characters(out, numbers > 0), ids.tokens(out)
  if isinstance(ids, segments.Marked):
    arrays['word_marks'], out = out // vocab.size, out % vocab.size
  return arrays | {'tokens': out}


def template(
  *,
  vocab: Vocab,
  layout: Name = 'documents',
  begin: str | None = None,
  end: str | None = None,
  bos: bool = False,
  **rest: Any,
) -> Template:
  """Return special tokens around documents; a second one has no beginning token."""
  frame = _frame(vocab, layout, length=16, whole_sentences=False, begin=begin, end=end, bos=bos)
  between = frame.after * (frame.layout.separators or 1)
  types = 0 if frame.layout.one_segment or not frame.before else 1
  first: list[int | str] = [*frame.before, 'A']
  second: list[int | str] = ['B', *frame.after]
  pair = [(part, 0) for part in (*first, *between)] + [(part, types) for part in second]
  return Template(tuple((part, 0) for part in (*first, *frame.after)), tuple(pair))


def _frame(
  vocab: Vocab, layout: Name, *, length: int, whole_sentences: bool, begin: str | None, end: str | None, bos: bool
) -> Frame:
  """Resolve layout and special tokens; raise ValueError where they conflict."""
  if layout not in LAYOUTS:
    raise ValueError(f'layout={layout!r} is unknown: choose one of {", ".join(get_args(Name))}.')
  kind = LAYOUTS[layout]
  if bos and layout != 'stream':
    raise ValueError(f"bos=True is only for layout='stream'. With layout={layout!r} use begin='<s>'.")
  if layout == 'stream' and begin is None and not bos:
    begin = ''
  if whole_sentences and kind.whole is None:
    raise ValueError(
      f"whole_sentences=True does not fit layout={layout!r}: choose layout='full', 'documents' or 'rows'."
    )
  before = _token(vocab, begin, own=kind.begin(vocab), keyword='begin', layout=layout)
  after = _token(vocab, end, own=kind.end(vocab), keyword='end', layout=layout)
  least = 1 + len(before) + len(after) * (1 + kind.separators)
  if length < least:
    raise ValueError(f'length={length} is too short for layout={layout!r}: choose at least {least} tokens.')
  return Frame(kind, before, after)


def _token(vocab: Vocab, name: str | None, *, own: int | None, keyword: str, layout: str) -> tuple[int, ...]:
  """Return the ids, one or none, of the keyword `begin` or `end`."""
  if name == '':
    return ()
  if name is not None:
    return (vocab.id(name),)
  if own is None:
    raise ValueError(
      f'the vocabulary has no {keyword} token for layout={layout!r}: set data.{keyword} to one of its tokens, or to '
      "'' for none."
    )
  return (own,)


class _Index(NamedTuple):
  """The index of the sentence of each token of a store, with `take` of an array; `starts` are of the sentences."""

  starts: np.ndarray

  def take(self, positions: np.ndarray, *, mode: str) -> np.ndarray:
    del mode
    return np.searchsorted(self.starts, positions, side='right')


def _sentence_ids(
  plan: packing.Rows, starts: np.ndarray, chosen: np.ndarray, *, frames: Sequence[packing.Frame], length: int
) -> np.ndarray:
  """Return the index of the sentence of each token, int32[b, length]."""
  blank = tuple((tuple(-1 for _ in before), tuple(-1 for _ in after)) for before, after in frames)
  index, _ = packing.assemble(plan, _Index(starts), chosen, frames=blank, length=length, pad=-1)  # type: ignore[arg-type]  # has `take`
  index = np.maximum.accumulate(index, axis=1)  # special tokens belong to the sentence before them
  return np.cumsum(np.diff(index, axis=1, prepend=index[:, :1]) > 0, axis=1, dtype=np.int32)


def _plan(
  tokens: store.Tokens, frame: Frame, *, length: int, stride: int | None, starts: np.ndarray | None
) -> packing.Rows:
  room = {'length': length, 'before': len(frame.before), 'after': len(frame.after)}
  if starts is None or frame.layout.whole is None:
    return frame.layout.plan(tokens.offsets, **room, **({'stride': stride} if stride else {}))
  starts = boundaries.cut(starts, longest=length - len(frame.before) - len(frame.after))
  heads = boundaries.documents(starts, tokens.offsets)
  return frame.layout.whole(sentences=starts, heads=heads, **room)
