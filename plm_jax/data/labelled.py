"""Labelled rows for fine-tuning and scoring: one example per row, in the input format of the model's paper.

The input format is a file of `rows/layouts/`, for one text A or a pair A, B (further fields follow likewise):

  bert     [CLS] A [SEP] (B [SEP])
  roberta  <s> A </s> (</s> B </s>)
  gpt      _start_ A (_delimiter_ B) _classify_
  xlnet    A <sep> (B <sep>) <cls>
  plain    [beginning token] A end (B end)
  text     A (B) end
  bare     A (B)
  elmo     A (B), each a text of its own

and what is labelled is a file of `rows/kinds/`: class, regression, words, arcs, text, options, spans. A row that is too
long loses tokens from the end of its longest field, or is read in windows (kind='spans'); special tokens are never cut.
A text to be written stands in keys of its own, `target_tokens` and `target_segment_ids`, in the layout `target_layout`.
A model that reads words by their characters gets `characters`, those of a text for words that the vocabulary lacks.

Classes are numbers, or names, which are kept: those of the data set (TFDS, `labels.json` beside the files), else what
the rows of the training split hold, sorted. Every row is read and checked before anything is tokenised.
"""

import dataclasses
import functools
import logging
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from plm_jax.config import build
from plm_jax.core import errors
from plm_jax.core.types import Count, Labels, Seed, Source, Template, Vocab
from plm_jax.data.corpora import local, sources
from plm_jax.data.corpora.records import Records
from plm_jax.data.corpora.sources import Boundary
from plm_jax.data.rows import examples, framing, order, question_windows, store
from plm_jax.data.rows.buckets import Members, batches
from plm_jax.data.rows.checked import OnBadRow
from plm_jax.data.rows.first_row import check_said
from plm_jax.data.rows.laid import Laid, lay_out

log = logging.getLogger(__name__)
QUICK = dict(length=64, batch_size=8, buckets=())  # of a smoke test (`file.py:quick`)

# beside what the kind of rows gives: `GIVES` of its file
GIVES = (
  'tokens',
  'segment_ids',
  'type_ids',
  'swapped_tokens',
  'swapped_segment_ids',
  'swapped_type_ids',
  'characters',
  'swapped_characters',
)


def make(
  *,
  vocab: Vocab,
  second_vocab: Vocab | None = None,
  characters: bool = False,
  path: str,
  split: str | None = 'train',
  fields: tuple[str, ...] = (),
  label: str | None = 'label',
  kind: Annotated[str, 'data.rows.kinds'] = 'class',
  layout: Annotated[str, 'data.rows.layouts'] | None = 'bert',
  prefixes: tuple[str, ...] = (),
  target_layout: Annotated[str, 'data.rows.layouts'] | None = None,
  target_length: Count | None = None,
  both_orders: bool = False,
  stride: Count | None = None,
  question_length: Count | None = None,
  length: Count,
  batch_size: Count,
  seed: int,
  buckets: tuple[Count, ...] = (),
  per_class: Count | None = None,
  sample_seed: Seed = 0,
  missing: Annotated[float, 'any'] | str = -1,
  on_bad_row: OnBadRow = 'stop',
  keep_unlabelled: bool = False,
  shuffle: bool = True,
  documents: Boundary = 'blank_line',
  max_bytes: Count = 1_073_741_824,
  cache: str = '~/.cache/plm_jax',
  host: int = 0,
  hosts: int = 1,
) -> Source:
  """Reads labelled records and serves them as rows; each epoch is a whole number of batches.

  Args:
    vocab: gives ids and special tokens.
    second_vocab: does so for what is read of rows with a text to be written, which is in `vocab`.
    characters: rows have the characters of their words, which a run asks for where its model reads them.
    path: of the records, as `sources.open_source` takes it.
    split: part of it, TFDS slicing allowed. None: a run finds it (`training/before/from_data.py`), as it does with `label` and
      `layout`: of a folder the training split, and for an evaluation the validation split or a tenth of the former.
    fields: that hold the text, in order; () finds the names that TFDS uses for single sentences and pairs.
    label: field that holds the label, with kind='words' the list of labels, with kind='arcs' that of relations, with
      kind='text' what is to be written, with kind='spans' the answers. None: the one of the first row that is meant
      (`rows/first_row.py`).
    kind: what is labelled: 'class' delivers int32 labels, 'regression' float32, 'words' one for each word of a field,
      'arcs' the head of each word as well, 'text' a text to be written, 'options' the one of several sequences that is
      right, 'spans' a part of a text that answers a question.
    layout: where fields and special tokens stand. None: as the model was trained that the run begins with.
    prefixes: text before each field, as T5 has it; () for none.
    target_layout: of the text to be written, as one field; None is `layout`.
    target_length: tokens of the longest text to be written, special ones counted; None is `length`.
    both_orders: also deliver the fields in reverse, as `swapped_tokens` and `swapped_segment_ids` (GPT's similarity).
    stride: with kind='spans', tokens from the beginning of one window of a text to that of the next; None is 128.
    question_length: with kind='spans', tokens of the longest question; None is 64.
    length: tokens of the longest row, special ones counted.
    batch_size: rows per step over all hosts.
    seed: of the order of rows.
    buckets: shorter row lengths; a batch has the smallest that holds its rows. () pads every batch to `length`.
    per_class: keep this many rows of each class.
    sample_seed: of that choice.
    missing: label of a row without one, a number or, as '-' in SNLI and MultiNLI, a text; such rows are left out. A
      word without one has -1, and stays.
    on_bad_row: a row that lacks a field, cannot be read, or has a label that is none: 'stop' ends with file, line and
      reason, before anything is tokenised; 'skip' leaves up to 0.1 % of the rows out, and counts and lists them.
    keep_unlabelled: rows without a label, or without its field, stay and have label -1, so that they can be predicted
      (`evaluate --predictions`), as the test sets of benchmarks are. Nothing is trained or scored on them.
    shuffle: False keeps the order of the source (within each bucket).
    documents: what ends a row of a .txt file, which has no label: 'blank_line', 'line', 'every_line' or 'file'.
    max_bytes: most bytes of a row of a file, and of a .gz file unzipped, which is held in memory.
    cache: folder for what is downloaded or tokenised.
    host: index of this process.
    hosts: number of processes.

  Returns:
    Batches with the keys of `GIVES` (type_ids where the layout has them, the swapped ones with `both_orders`,
    characters where they are asked for) and of the kind. `row_id` is the row's index in the split. Only the last batch
    of an epoch may hold rows of weight 0. `once` keeps the order of the split.

  Raises:
    ValueError: a setting that cannot be met, or a row that does not fit the kind.
  """
  check_said(split=split, label=label, layout=layout)
  assert split is not None and layout is not None
  widths = _widths(length, buckets)
  share = order.share(batch_size, host=host, hosts=hosts)
  drawn = {'per_class': per_class, 'sample_seed': sample_seed, 'missing': missing, 'keep_unlabelled': keep_unlabelled}
  asked = examples.asked(fields=fields, label=label, prefixes=prefixes, on_bad_row=on_bad_row, **drawn)
  opened = sources.open_source(path, split=split, cache=cache, max_bytes=max_bytes, documents=documents)
  given = _examples(opened, kind, asked)
  style, lay = _file('layout', layout), functools.partial(lay_out, cache=cache)
  check_windows(given, kind=kind, both_orders=both_orders, stride=stride, question_length=question_length)
  if given.windows is None:
    read = vocab if given.target is None or second_vocab is None else second_vocab
    laid = lay(given, style, vocab=read, length=length, least=widths[0], both_orders=both_orders, characters=characters)
  else:
    given, laid = question_windows.lay_out(
      given,
      style,
      vocab=vocab,
      length=length,
      stride=stride,
      question_length=question_length,
      characters=characters,
    )
  target = _target(given, target_layout or layout, target_length or length, lay=functools.partial(lay, vocab=vocab))
  digest = store.digest_of(
    laid.tokens.digest, layout, length, buckets, both_orders, laid.frames, *target.digest, *['characters'] * characters
  )
  bucket = np.searchsorted(widths, laid.sizes)  # [rows], the shortest that holds the row
  rows = batches(bucket, given.row_ids, share=share, seed=seed if shuffle else None)
  return _serve(given, laid, target, rows, share=share, widths=widths, digest=digest, path=f'{path} ({split})')


def check_windows(
  given: examples.Examples, *, kind: str, both_orders: bool, stride: int | None, question_length: int | None
) -> None:
  """Raises ValueError where a setting of windows stands beside rows of another kind, or one of others beside these."""
  if given.windows is None and (stride or question_length):
    raise ValueError(f"stride={stride} and question_length={question_length} are for kind='spans', not {kind!r}")
  if given.windows is not None and both_orders:
    raise ValueError(f'both_orders=True: rows of kind={kind!r} have one order')


class Target(NamedTuple):
  """The texts to be written for the rows of a source.

  Attributes:
    laid: None where there are none.
    length: tokens of the longest.
    digest: what decides their tokens.
  """

  laid: Laid | None = None
  length: int = 0
  digest: tuple[Any, ...] = ()

  def batch(self, members: np.ndarray) -> order.Batch:
    """Their tokens and segments, int32[b, length], of some rows int64[b]; none, not even special ones, of no text."""
    if self.laid is None:
      return {}
    made = self.laid.batch(members, self.length)
    some = (self.laid.plans[''].counts > 0)[members, None]
    tokens = np.where(some, made['tokens'], np.int32(self.laid.pad_id))
    return {'target_tokens': tokens, 'target_segment_ids': np.where(some, made['segment_ids'], np.int32(0))}


def _target(given: examples.Examples, layout: str, length: int, *, lay: Callable[..., Laid]) -> Target:
  """The texts to be written, laid out by `lay` in a layout."""
  if given.target is None:
    return Target()
  laid = lay(given.target, _file('layout', layout), length=length, least=length, both_orders=False)
  return Target(laid, length, (laid.tokens.digest, layout, length, laid.frames))


def _serve(
  given: examples.Examples,
  laid: Laid,
  target: Target,
  rows: order.Order[Members],
  *,
  share: order.Share,
  widths: np.ndarray,
  digest: str,
  path: str,
) -> Source:
  """The source of rows that are laid out.

  Args:
    given: the rows.
    laid: their tokens.
    target: the texts to be written for them.
    rows: which of them make which batch.
    share: of this host.
    widths: int64, the lengths that batches may have, rising.
    digest: of all that decides the batches.
    path: of the data, for messages.
  """
  log.info(f'{path}: {len(given.row_ids)} rows, {laid.cut} of them cut to {widths[-1]} tokens.')
  if target.laid is not None:
    log.info(f'{path}: {target.laid.cut} of the texts to be written are cut to {target.length} tokens.')
  row_ids, group = given.row_ids, given.group
  add, record = given.add(laid.tokens.offsets, laid.place), given.record and given.record(laid.tokens.offsets)

  def batch(chosen: Members) -> order.Batch:
    width = int(widths[chosen.bucket])
    made = laid.batch(chosen.members, width) | add(chosen.members, width)
    return made | target.batch(chosen.members)

  return order.serve(
    batch,
    rows,
    share=share,
    digest=digest,
    path=path,
    widest=lambda chosen: dataclasses.replace(chosen, bucket=len(widths) - 1),
    names=given.names,
    places=given.sequences > 1,
    classes=given.classes,
    ids=int(row_ids[-1]) + 1,
    record=record and (lambda row_id: record(place_of(row_id, row_ids))),
    group=group and (lambda row_id: group(place_of(row_id, row_ids))),
    unlabelled=given.unlabelled,
  )


def look(
  *,
  path: str,
  split: str = 'train',
  kind: str = 'class',
  cache: str = sources.CACHE,
  max_bytes: int = local.MAX_BYTES,
  documents: Boundary = 'blank_line',
  **settings: Any,
) -> Labels:
  """Reads and checks rows and labels, which `make` then takes over; nothing is tokenised. Keywords as there."""
  check_said(split=split, label=settings.get('label', ''))
  asked = examples.asked(**settings)
  records = sources.open_source(path, split=split, cache=cache, max_bytes=max_bytes, documents=documents)
  given = _examples(records, kind, asked)
  _looked_at[records.where, records.digest, kind, asked] = given
  return Labels(given.names, given.classes, given.unlabelled, given.largest, places=given.sequences > 1)


def place_of(row_id: int, row_ids: np.ndarray) -> int:
  """The number, among the rows that are kept, of a row of the split.

  Args:
    row_id: of the row.
    row_ids: int64[rows], those that are kept, rising.

  Raises:
    IndexError: it is not kept.
  """
  place = int(np.searchsorted(row_ids, row_id))
  if place == len(row_ids) or row_ids[place] != row_id:
    raise IndexError(f'no row {row_id}')
  return place


_looked_at: dict[tuple[Any, ...], examples.Examples] = {}


def _examples(records: Records, kind: str, asked: examples.Asked) -> examples.Examples:
  """The rows that are kept, read now unless `look` has just read them."""
  found = _looked_at.pop((records.where, records.digest, kind, asked), None)
  return _file('kind', kind).make(records=records, asked=asked) if found is None else found


def template(*, vocab: Vocab, layout: str = 'bert', kind: str = 'class', **rest: Any) -> Template:
  """What stands around the fields of a row; a layout without a place for a second field has the two end to end."""
  del rest
  style = _file('layout', layout)
  single = style.make(vocab=vocab, fields=1)
  try:
    pair = style.make(vocab=vocab, fields=2)
  except ValueError:  # GPT's delimiter, in a vocabulary of a task with one field
    (before, after), *_ = single.frames
    pair = single._replace(frames=((before, ()), ((), after)))
  return framing.template(single, pair)._replace(spaced=getattr(_file('kind', kind), 'SPACED', False))


def _file(keyword: Literal['layout', 'kind'], name: str) -> Any:
  """The file of `rows/layouts/` or `rows/kinds/` with this name.

  Raises:
    ValueError: there is none.
  """
  known = build.files_of(f'data.rows.{keyword}s')
  if name not in known:
    raise ValueError(f'{keyword}={name!r} is unknown: choose one of {", ".join(known)}.{errors.suggest(name, known)}')
  return known[name]


def _widths(length: int, buckets: tuple[int, ...]) -> np.ndarray:
  """int64: the lengths that rows may have, rising.

  Raises:
    ValueError: a bucket is longer than the longest row.
  """
  widths = np.array(sorted({*buckets, length}))
  if widths[-1] != length:
    raise ValueError(f'buckets={buckets} must not be longer than length={length}.')
  return widths
