"""Plain text for pre-training: documents as rows of tokens.

Layouts, for `length` tokens a row:

  stream     documents end to end with an end token after each, cut every `length` tokens (GPT-2, GPT-3)
  documents  pieces of documents as `[CLS] piece [SEP]`, as many as fit side by side in a row (RoBERTa's DOC-SENTENCES,
             with short rows packed where RoBERTa enlarges the batch)
  rows       the same, one piece a row, the rest padding
  full       `[CLS] contiguous text [SEP]`, documents joined by `[SEP] [SEP]` (RoBERTa's FULL-SENTENCES)

Rows are cut at tokens or, with `whole_sentences`, between sentences (see `boundaries.py`), as RoBERTa's are; what is
longer than a row is cut all the same. `segment_ids` numbers the pieces of a row, so attention can be kept inside them;
in 'full' the row is one segment.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from plm_jax.data.corpora import sources
from plm_jax.data.corpora.formats.txt import Boundary
from plm_jax.data.rows import boundaries, order, packing, store
from plm_jax.types import Source, Vocab

log = logging.getLogger(__name__)


class _Layout(NamedTuple):
  """How a layout is planned.

  Attributes:
    plan: (offsets, length, tokens before, tokens after) -> plan.
    begin: the vocabulary's token that goes before, where it has one.
    end: that goes after.
    needed: whether it must have them.
    separators: end tokens between two pieces of one segment.
    one_segment: whether a row is one segment.
    whole: the plan that cuts between sentences.
  """

  plan: Callable[..., packing.Plan]
  begin: Callable[[Vocab], int | None]
  end: Callable[[Vocab], int | None]
  separators: int = 0
  one_segment: bool = False
  whole: Callable[..., packing.Plan] | None = None


def _cls(vocab: Vocab) -> int | None:
  return vocab.cls_id


def _sep(vocab: Vocab) -> int | None:
  return vocab.sep_id


def _end_of_document(vocab: Vocab) -> int | None:
  return vocab.sep_id if vocab.eos_id is None else vocab.eos_id


_LAYOUTS = {
  'stream': _Layout(packing.stream, lambda vocab: vocab.bos_id, _end_of_document),
  'documents': _Layout(packing.packed, _cls, _sep, whole=packing.whole_packed),
  'rows': _Layout(packing.one_per_row, _cls, _sep, whole=packing.whole_one_per_row),
  'full': _Layout(packing.full, _cls, _sep, separators=2, one_segment=True, whole=packing.whole_full),
}


def make(
  *,
  vocab: Vocab,
  path: str,
  split: str = 'train',
  length: int,
  batch_size: int,
  seed: int,
  layout: Literal['stream', 'documents', 'rows', 'full'] = 'documents',
  whole_sentences: bool = False,
  begin: str | None = None,
  end: str | None = None,
  bos: bool = False,
  text: str | None = None,
  documents: Boundary = 'blank_line',
  quality: Mapping[str, Any] | None = None,
  shuffle: bool = True,
  cache: str = '~/.cache/plm_jax',
  host: int = 0,
  hosts: int = 1,
) -> Source:
  """Tokenises the text of `path`, once, and serves it as rows.

  Args:
    vocab: gives ids and special tokens.
    path: of the text, as `sources.documents` takes it.
    split: part of it, TFDS slicing allowed.
    length: tokens a row, special ones counted.
    batch_size: rows a step over all hosts.
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
    cache: folder for token stores.
    host: number of this process, of
    hosts: processes.

  Returns:
    Batches of tokens, segment_ids, row_id, epoch and row_weight; see `plm_jax.data`. `read` goes from epoch to epoch
    without a gap, so a batch may hold the end of one and the beginning of the next.

  Raises:
    ValueError: a setting that cannot be met.
  """
  if layout not in _LAYOUTS:
    raise ValueError(f'layout={layout!r} is unknown: choose one of {", ".join(_LAYOUTS)}.')
  kind = _LAYOUTS[layout]
  if bos and layout != 'stream':
    raise ValueError(f"bos=True belongs to layout='stream'; with layout={layout!r} name the token: begin='<s>'.")
  if layout == 'stream' and begin is None and not bos:
    begin = ''
  if whole_sentences and kind.whole is None:
    raise ValueError(f'whole_sentences=True does not go with layout={layout!r}, which has no framed pieces.')
  before = _token(vocab, begin, own=kind.begin(vocab), what='begin', layout=layout)
  after = _token(vocab, end, own=kind.end(vocab), what='end', layout=layout)
  places = order.host_slice(batch_size, host=host, hosts=hosts)
  least = 1 + len(before) + len(after) * (1 + kind.separators)
  if length < least:
    raise ValueError(f'length={length} is too short for layout={layout!r}: it needs at least {least} tokens a row.')

  texts = sources.documents(path, split=split, cache=cache, text=text, documents=documents, quality=quality)
  if quality is not None:
    log.info('%s (%s): %s', path, split, texts.stats)
  tokens = store.on_disk(texts, vocab=vocab, cache=cache)
  if not len(tokens.ids):
    raise ValueError(f'{path} ({split}) has no text: {len(texts)} documents, 0 tokens.')
  digest = store.digest_of(tokens.digest, layout, length, before, after, *(['sentences'] if whole_sentences else []))

  def make_plan() -> dict[str, np.ndarray]:
    room: dict[str, Any] = dict(length=length, before=len(before), after=len(after))
    if kind.whole is None or not whole_sentences:
      return kind.plan(tokens.offsets, **room)._asdict()
    longest = length - len(before) - len(after)
    starts = boundaries.sentences(tokens.ids, tokens.offsets, vocab=vocab, longest=longest)
    heads = boundaries.documents(starts, tokens.offsets)
    return kind.whole(sentences=starts, heads=heads, **room)._asdict()

  plan = packing.Plan(**store.cached(tokens, f'rows-{digest[:16]}', make_plan))
  frames = packing.frames(before, after, between=after * kind.separators)
  rows = len(plan.rows) - 1
  if rows >= 2**31:
    raise ValueError(f'{path} ({split}) has {rows} rows of {length}; row_id holds less than 2**31: read it in parts.')
  log.info(
      '%s (%s): %d documents, %d tokens, %d rows of %d, %.1f %% filled.',
      path, split, len(tokens.offsets) - 1, len(tokens.ids), rows, length, 100 * len(tokens.ids) / (rows * length),
  )  # fmt: skip

  def batch(chosen: np.ndarray, epochs: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
    ids, numbers = packing.assemble(plan, tokens.ids, chosen, frames=frames, length=length, pad=vocab.pad_id)
    return {
      'tokens': ids,
      'segment_ids': np.minimum(numbers, 1) if kind.one_segment else numbers,
      'row_id': np.where(weights > 0, chosen, -1).astype(np.int32),
      'epoch': epochs.astype(np.int32),
      'row_weight': weights.astype(np.float32),
    }

  def train_batch(step: int) -> dict[str, np.ndarray]:
    positions = step * batch_size + np.arange(batch_size)[places]
    chosen, epochs = order.rows_at(positions, rows=rows, seed=seed, shuffle=shuffle)
    return batch(chosen, epochs, np.ones(len(chosen)))

  def single_batch(step: int) -> dict[str, np.ndarray]:
    chosen = step * batch_size + np.arange(batch_size)[places]
    real = chosen < rows
    return batch(np.where(real, chosen, 0), np.zeros(len(chosen)), real)

  def read(step: int) -> Iterator[dict[str, np.ndarray]]:
    return order.iterate(train_batch, step)

  def once() -> Iterator[dict[str, np.ndarray]]:
    return order.iterate(single_batch, 0, -(-rows // batch_size))

  matrix = jax.ShapeDtypeStruct((batch_size, length), np.int32)
  number = jax.ShapeDtypeStruct((batch_size,), np.int32)
  return Source(
    spec={
      'tokens': matrix,
      'segment_ids': matrix,
      'row_id': number,
      'epoch': number,
      'row_weight': jax.ShapeDtypeStruct((batch_size,), np.float32),
    },
    rows=rows,
    read=read,
    once=once,
    digest=digest,
    steps_per_epoch=-(-rows // batch_size),
  )


def _token(vocab: Vocab, name: str | None, *, own: int | None, what: str, layout: str) -> tuple[int, ...]:
  """The ids, one or none, that `begin` or `end` stands for."""
  if name == '':
    return ()
  if name is not None:
    return (vocab.id(name),)
  if own is None:
    raise ValueError(
      f'the vocabulary has no {what} token for layout={layout!r}: name one of its tokens ({what}=...), or leave it '
      f"out ({what}='')."
    )
  return (own,)
