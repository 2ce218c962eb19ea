"""Plain text for pre-training: documents as rows of tokens.

Layouts, for `length` tokens per row:

  stream     documents end to end with an end token after each, cut every `length` tokens (GPT-2, GPT-3)
  documents  pieces of documents as `[CLS] piece [SEP]`, as many as fit side by side in a row (RoBERTa's DOC-SENTENCES,
             with short rows packed where RoBERTa enlarges the batch)
  rows       the same, one piece per row, the rest padding
  full       `[CLS] contiguous text [SEP]`, documents joined by `[SEP] [SEP]` (RoBERTa's FULL-SENTENCES)

Rows are cut at tokens or, with `whole_sentences`, between sentences (see `boundaries.py`), as RoBERTa's are; a sentence
that is longer than a row is cut all the same. `segment_ids` numbers the pieces of a row, so attention can be kept
inside them; in 'full' the row is one segment.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_args

import numpy as np

from plm_jax.core.types import Count, Source, Template, Vocab
from plm_jax.data.corpora.formats.txt import Boundary
from plm_jax.data.rows import boundaries, order, packing, store
from plm_jax.data.rows.documents import look as look
from plm_jax.data.rows.documents import spelt, tokenised

log = logging.getLogger(__name__)
# of a smoke test (`file.py:quick`)
QUICK = dict(path='pydocs', text=None, documents='blank_line', length=64, batch_size=8)

GIVES = ('tokens', 'segment_ids', 'characters')

Name = Literal['stream', 'documents', 'rows', 'full']


class Layout(NamedTuple):
  """How a layout is planned.

  Attributes:
    plan: (offsets, length, tokens before, tokens after) -> plan.
    whole: the plan that cuts between sentences; None where there are no framed pieces.
    begin: the vocabulary's token that goes before a piece, where it has one.
    end: the one that goes after a piece.
    separators: end tokens between two pieces of one segment.
    one_segment: whether a row is one segment.
  """

  plan: Callable[..., packing.Plan]
  whole: Callable[..., packing.Plan] | None
  begin: Callable[[Vocab], int | None] = lambda vocab: vocab.cls_id
  end: Callable[[Vocab], int | None] = lambda vocab: vocab.sep_id
  separators: int = 0
  one_segment: bool = False


def _end_of_document(vocab: Vocab) -> int | None:
  return vocab.sep_id if vocab.eos_id is None else vocab.eos_id


LAYOUTS: dict[Name, Layout] = {
  'stream': Layout(packing.stream, None, begin=lambda vocab: vocab.bos_id, end=_end_of_document),
  'documents': Layout(packing.packed, packing.whole_packed),
  'rows': Layout(packing.one_per_row, packing.whole_one_per_row),
  'full': Layout(packing.full, packing.whole_full, separators=2, one_segment=True),
}


class Frame(NamedTuple):
  """What stands around the pieces of rows: the layout, and the ids before and after a piece, none or one each."""

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
  whole_sentences: bool = False,
  begin: str | None = None,
  end: str | None = None,
  bos: bool = False,
  text: str | None = None,
  documents: Boundary = 'blank_line',
  quality: Annotated[Mapping[str, Any], 'data.corpora.filters:filter_documents'] | None = None,
  max_bytes: Count = 1_073_741_824,
  shuffle: bool = True,
  cache: str = '~/.cache/plm_jax',
  host: int = 0,
  hosts: int = 1,
) -> Source:
  """Tokenises the text of `path`, once, and serves it as rows.

  Args:
    vocab: gives ids and special tokens.
    characters: rows have the characters of their words, which a run asks for where its model reads them.
    path: of the text, as `sources.documents` takes it.
    split: part of it, TFDS slicing allowed.
    length: tokens per row, special ones counted.
    batch_size: rows per step over all hosts.
    seed: of the order of rows.
    layout: see the head of this file.
    whole_sentences: cut rows between sentences; not in 'stream'.
    begin: token before a piece; None is the layout's own ([CLS]; nothing in 'stream'), '' leaves it out.
    end: token after a piece; None is the layout's own ([SEP]; in 'stream' the end-of-document token or else [SEP]), ''
      leaves it out.
    bos: in 'stream', put the vocabulary's beginning token before each document, so that its first token is predicted.
    text: the field that holds the text, where there are several.
    documents: what ends a document in a .txt file.
    quality: keywords of `filters.filter_documents`, such as {'min_chars': 200}: documents that fail are left out, and
      the log says how many and why.
    shuffle: False keeps the order of the source.
    max_bytes: most bytes of a document of a file, and of a .gz file unzipped, which is held in memory.
    cache: folder for token stores.
    host: index of this process.
    hosts: number of processes.

  Returns:
    Batches with the keys of `GIVES`, characters where they are asked for. `read` goes from epoch to epoch without a
    gap, so a batch may hold the end of one and the beginning of the next.

  Raises:
    ValueError: a setting that cannot be met.
  """
  frame = _frame(vocab, layout, length=length, whole_sentences=whole_sentences, begin=begin, end=end, bos=bos)
  share = order.share(batch_size, host=host, hosts=hosts)
  read = {'split': split, 'text': text, 'documents': documents, 'quality': quality, 'max_bytes': max_bytes}
  words = None
  if characters:
    tokens, words = spelt(path, vocab=vocab, cache=cache, **read)
  else:
    tokens = tokenised(path, vocab=vocab, cache=cache, **read)
  extra = ['sentences'] * whole_sentences + ['characters'] * characters
  digest = store.digest_of(tokens.digest, layout, length, frame.before, frame.after, *extra)

  def plan() -> dict[str, np.ndarray]:
    return _plan(tokens, frame, vocab=vocab, length=length, whole_sentences=whole_sentences)._asdict()

  rows = packing.Plan(**store.cached(tokens, f'rows-{digest[:16]}', plan))
  frames = packing.frames(frame.before, frame.after, between=frame.after * frame.layout.separators)
  count = len(rows.rows) - 1
  filled = 100 * len(tokens.ids) / (count * length)
  log.info(
    f'{path} ({split}): {len(tokens.offsets) - 1} documents, {len(tokens.ids)} tokens, {count} rows of {length}, '
    f'{filled:.1f} % filled.'
  )

  def batch(chosen: order.Chosen) -> order.Batch:
    source = tokens.ids if words is None else words
    ids, numbers = packing.assemble(rows, source, chosen.rows, frames=frames, length=length, pad=vocab.pad_id)
    made = {'segment_ids': np.minimum(numbers, 1) if frame.layout.one_segment else numbers}
    if words is not None:
      made['characters'], ids = words.characters(ids, numbers > 0), words.tokens(ids)
    return made | {'tokens': ids}

  each = order.shuffled(count, share, seed=seed, shuffle=shuffle)
  most = 1 if frame.layout.one_segment else int(np.diff(rows.rows).max(initial=1))
  return order.serve(batch, each, share=share, digest=digest, path=f'{path} ({split})', documents=most)


def template(
  *,
  vocab: Vocab,
  layout: Name = 'documents',
  begin: str | None = None,
  end: str | None = None,
  bos: bool = False,
  **rest: Any,
) -> Template:
  """What stands around a document; a second text follows without a beginning token of its own."""
  del rest
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
  """The layout and its special tokens.

  Raises:
    ValueError: settings that do not go together, no such token, or rows that are too short.
  """
  if layout not in LAYOUTS:
    raise ValueError(f'layout={layout!r} is unknown: choose one of {", ".join(get_args(Name))}.')
  kind = LAYOUTS[layout]
  if bos and layout != 'stream':
    raise ValueError(f"bos=True belongs to layout='stream'; with layout={layout!r} name the token: begin='<s>'.")
  if layout == 'stream' and begin is None and not bos:
    begin = ''
  if whole_sentences and kind.whole is None:
    raise ValueError(f'whole_sentences=True does not go with layout={layout!r}, which has no framed pieces.')
  before = _token(vocab, begin, own=kind.begin(vocab), keyword='begin', layout=layout)
  after = _token(vocab, end, own=kind.end(vocab), keyword='end', layout=layout)
  least = 1 + len(before) + len(after) * (1 + kind.separators)
  if length < least:
    raise ValueError(f'length={length} is too short for layout={layout!r}: it needs at least {least} tokens per row.')
  return Frame(kind, before, after)


def _token(vocab: Vocab, name: str | None, *, own: int | None, keyword: str, layout: str) -> tuple[int, ...]:
  """The ids, one or none, that `begin` or `end` stands for."""
  if name == '':
    return ()
  if name is not None:
    return (vocab.id(name),)
  if own is None:
    raise ValueError(
      f'the vocabulary has no {keyword} token for layout={layout!r}: name one of its tokens ({keyword}=...), or leave '
      f"it out ({keyword}='')."
    )
  return (own,)


def _plan(tokens: store.Tokens, frame: Frame, *, vocab: Vocab, length: int, whole_sentences: bool) -> packing.Plan:
  """Which tokens make which row."""
  room = {'length': length, 'before': len(frame.before), 'after': len(frame.after)}
  if not whole_sentences or frame.layout.whole is None:
    return frame.layout.plan(tokens.offsets, **room)
  longest = length - len(frame.before) - len(frame.after)
  starts = boundaries.sentences(tokens.ids, tokens.offsets, vocab=vocab, longest=longest)
  heads = boundaries.documents(starts, tokens.offsets)
  return frame.layout.whole(sentences=starts, heads=heads, **room)
