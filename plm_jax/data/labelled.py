"""Labelled examples for fine-tuning and scoring, one per batch row, in the input format of the model's paper.

The input format is a file of `rows/layouts/`, for one text A or a pair A, B (further fields follow in the same way):

  bert     [CLS] A [SEP] (B [SEP])
  roberta  <s> A </s> (</s> B </s>)
  gpt      _start_ A (_delimiter_ B) _classify_
  xlnet    A <sep> (B <sep>) <cls>
  plain    [beginning token] A end (B end)
  text     A (B) end
  bare     A (B)
  tokenizer  the special tokens in the file of the tokenizer, as A </s> ro_RO of mBART
  elmo     A (B), each a text by itself

The kind of label is a file of `rows/kinds/`: 'class' gives int32 labels, 'multilabel' several classes, 'regression'
float32, 'words' a label for each word of a field, 'arcs' also its head, 'text' a target text, 'options' the index of
the right sequence, 'spans' the part that answers a question. An example that is too long loses tokens from the end of
its longest field, or is read in windows (kind='spans'). Special tokens are never cut. A target text has its own keys,
`target_tokens` and `target_segment_ids`, in the layout `target_layout`. A model that reads words by their characters
gets `characters`; words that the vocabulary lacks get those of the text.

Classes are numbers or names. Names come from the data set (TFDS, or `labels.json` next to the files), or else are the
sorted labels of the training split. Every row of the data is read and checked before anything is tokenised.
"""

import dataclasses
import logging
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from plm_jax.config import build
from plm_jax.core import errors
from plm_jax.core.keywords import Count, NonNegativeInt, Seed
from plm_jax.core.types import Labels, Source, Template, Vocab
from plm_jax.data.corpora import local, sources
from plm_jax.data.corpora.records import Records
from plm_jax.data.corpora.sources import Boundary
from plm_jax.data.rows import entity_tags, examples, framing, order, question_windows, store
from plm_jax.data.rows.buckets import Members, batches
from plm_jax.data.rows.checked import OnBadRow
from plm_jax.data.rows.examples import Examples, ExampleSettings
from plm_jax.data.rows.first_row import check_specified
from plm_jax.data.rows.laid import Laid, lay_out

log = logging.getLogger(__name__)
# keys that a config may leave to the data (`training/before/from_data.py`): the training split (in an evaluation the
# validation split or a tenth of the former), the label by `rows/first_row.py`, the layout of the pretrained model
FROM_DATA = ('split', 'label', 'layout', 'fields')
UNLABELLED = dict(label='(none)', missing=-1, per_class=None)  # keys with which examples without labels are read
EPOCH = 'examples'  # counted without preparing the data
QUICK = dict(length=64, batch_size=8, buckets=())  # settings of a smoke test (`file.py:quick`)

# The kind of label adds the keys of its `GIVES`. Types are given only if the layout has them, swapped keys only with
# `both_orders`, characters if requested.
GIVES = (
  'tokens', 'segment_ids', 'type_ids', 'swapped_tokens', 'swapped_segment_ids', 'swapped_type_ids', 'characters',
  'swapped_characters',
)  # fmt: skip


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
  windows: Count | None = None,
  head_tokens: NonNegativeInt | None = None,
  length: Count,
  batch_size: Count,
  seed: int,
  buckets: tuple[Count, ...] = (),
  per_class: Count | None = None,
  sample_seed: Seed = 0,
  missing: Annotated[float, 'any'] | str = -1,
  on_bad_row: OnBadRow = 'stop',
  keep_unlabelled: bool = False,
  separator: str | None = None,
  scheme: entity_tags.Scheme | None = None,
  words: examples.Words | None = None,
  shuffle: bool = True,
  documents: Boundary = 'blank_line',
  max_bytes: Count = 1_073_741_824,
  cache: str = '~/.cache/plm_jax',
  host: int = 0,
  hosts: int = 1,
) -> Source:
  """Read labelled records and serve them as examples.

  Args:
    second_vocab: vocabulary of the inputs of examples with a target text; the target is in `vocab`.
    split, label, layout: None is only for `train`, which finds them, see `FROM_DATA`.
    target_layout, target_length: layout and most tokens of the target text; None is `layout`, `length`.
    both_orders: add the fields in reverse order, as `swapped_tokens` and `swapped_segment_ids` (GPT's similarity).
    stride, question_length: of kind='spans', tokens from a window to the next (None: 128) and of a question (None: 64).
    windows: with one class, value or choice per example, the most windows in which a field that is too long is read.
      They are `stride` tokens apart (None: side by side), and `adapter.pool_windows` joins them. None cuts the field.
    head_tokens: tokens of its beginning that a field which is cut keeps; the others are of its end (Sun et al. 2019:
      128 of 510). None keeps the beginning only, 0 the end.
    buckets: shorter lengths; a batch has the smallest that holds its examples. () pads every batch to `length`.
    Other keywords: see the module docstring, `plm_jax.data` and `rows.examples.ExampleSettings`.

  Returns:
    Batches with the keys of `GIVES` and of the kind. `row_id` is the index in the split. An epoch is a whole number of
    batches, only the last with examples of weight 0. `once` keeps the order of the split, shuffle=False of each bucket.

  Raises:
    ValueError: settings that do not fit each other or the data.
  """
  check_specified(split=split, label=label, layout=layout)
  assert split is not None and layout is not None
  widths, share = _widths(length, buckets), order.share(batch_size, host=host, hosts=hosts)
  example_settings = examples.asked(
    fields=fields, label=label, prefixes=prefixes, per_class=per_class, sample_seed=sample_seed, missing=missing,
    on_bad_row=on_bad_row, keep_unlabelled=keep_unlabelled, separator=separator, scheme=scheme, words=words,
  )  # fmt: skip
  records = sources.open_source(path, split=split, cache=cache, max_bytes=max_bytes, documents=documents)
  given = _read(records, kind, example_settings)
  spans: dict[str, Any] = dict(stride=stride, question_length=question_length)
  long = check_long(given, kind=kind, both_orders=both_orders, windows=windows, head_tokens=head_tokens, **spans)
  input_vocab = vocab if given.target is None or second_vocab is None else second_vocab
  style, common = _file('layout', layout), dict[str, Any](vocab=input_vocab, length=length, characters=characters)
  if given.windows is None:
    laid = lay_out(given, style, cache=cache, both_orders=both_orders, least=widths[0], **long, **common)
  else:
    given, laid = question_windows.lay_out(given, style, **spans, **common)
  target = _target(given, target_layout or layout, target_length or length, vocab=vocab, cache=cache)
  extra = [*target.digest, *['characters'] * characters, *([sorted(long.items())] if long else [])]
  digest = store.digest_of(laid.tokens.digest, layout, length, buckets, both_orders, laid.frames, *extra)
  rows = batches(np.searchsorted(widths, laid.sizes), given.row_ids, share=share, seed=seed if shuffle else None)
  return _serve(given, laid, target, rows, share=share, widths=widths, digest=digest, path=f'{path} ({split})')


def check_long(
  given: Examples,
  *,
  kind: str,
  both_orders: bool,
  windows: int | None,
  head_tokens: int | None,
  stride: int | None,
  question_length: int | None,
) -> dict[str, Any]:
  """Return settings of texts that are too long; raise ValueError if invalid."""
  if given.windows is None and (question_length or (stride and windows is None)):
    raise ValueError(
      f"stride={stride} and question_length={question_length} are for kind='spans' or data.windows, not {kind!r}"
    )
  if given.windows is not None and both_orders:
    raise ValueError(f'both_orders=True does not fit kind={kind!r}, which has one order: remove it')
  asked = {'windows': windows, 'head_tokens': head_tokens}
  long = {name: value for name, value in asked.items() if value is not None}
  if len(long) > 1:
    raise ValueError(f'windows={windows} reads a whole text and head_tokens={head_tokens} cuts it: remove one of them')
  if long and (given.windows is not None or given.words or given.target is not None):
    raise ValueError(f'{next(iter(long))} does not fit kind={kind!r}: remove it')
  if windows is not None and both_orders:
    raise ValueError(f'windows={windows} does not fit both_orders=True: remove one of them')
  return long | ({'stride': stride} if stride is not None and windows is not None else {})


class Target(NamedTuple):
  """Target texts of the examples of a source."""

  laid: Laid | None = None  # their tokens; None without target texts
  length: int = 0  # tokens of the longest
  digest: tuple[Any, ...] = ()  # everything that determines their tokens

  def batch(self, members: np.ndarray) -> order.Batch:
    """Return tokens and segments, int32[b, length], of int64[b]; empty targets have none."""
    if self.laid is None:
      return {}
    arrays = self.laid.batch(members, self.length)
    nonempty = (self.laid.plans[''].counts > 0)[members, None]  # [b, 1]
    tokens = np.where(nonempty, arrays['tokens'], np.int32(self.laid.pad_id))
    segments = np.where(nonempty, arrays['segment_ids'], np.int32(0))
    return {'target_tokens': tokens, 'target_segment_ids': segments}


def _target(given: Examples, layout: str, length: int, *, vocab: Vocab, cache: str) -> Target:
  if given.target is None:
    return Target()
  style = _file('layout', layout)
  laid = lay_out(given.target, style, vocab=vocab, length=length, least=length, both_orders=False, cache=cache)
  return Target(laid=laid, length=length, digest=(laid.tokens.digest, layout, length, laid.frames))


def _serve(
  given: Examples,
  laid: Laid,
  target: Target,
  rows: order.Order[Members],
  *,
  share: order.Share,
  widths: np.ndarray,
  digest: str,
  path: str,
) -> Source:
  """Build the source; batches have the lengths `widths`, int64, ascending."""
  windows = f'{laid.windows} windows of ' if laid.windows is not None else ''
  log.info(f'{path}: {len(given.row_ids)} rows, {laid.cut} of them cut to {windows}{widths[-1]} tokens.')
  if given.words and laid.cut:
    first = laid.tokens.offsets[given.edges]  # [rows + 1]
    place = laid.tokens.offsets[:-1] - np.repeat(first[:-1], np.diff(given.edges))
    lost = (place >= np.repeat(laid.plans[''].counts, np.diff(given.edges))).sum()
    log.warning(
      f'{path}: {lost} words of {laid.cut} rows are beyond {widths[-1]} tokens and are not read in training and '
      'evaluation: raise data.length. `predict` and `load` tag such texts in windows.'
    )
  if target.laid is not None:
    log.info(f'{path}: {target.laid.cut} target texts are cut to {target.length} tokens.')
  row_ids, group = given.row_ids, given.group
  add, record = given.add(laid.tokens.offsets, laid.place), given.record and given.record(laid.tokens.offsets)

  def batch(chosen: Members) -> order.Batch:
    width = int(widths[chosen.bucket])
    return laid.batch(chosen.members, width) | add(chosen.members, width) | target.batch(chosen.members)

  return order.serve(
    batch,
    rows,
    share=share,
    digest=digest,
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
  """Read and check the examples for `make`, without tokenising them."""
  check_specified(split=split, label=settings.get('label', ''))
  example_settings = examples.asked(**settings)
  records = sources.open_source(path, split=split, cache=cache, max_bytes=max_bytes, documents=documents)
  given = _read(records, kind, example_settings)
  _checked[records.where, records.digest, kind, example_settings] = given
  rows, record = len(given.row_ids), given.record and given.record(np.arange(len(given.texts) + 1))  # a token each
  return Labels(
    given.names, given.classes, given.unlabelled, given.largest, places=given.sequences > 1, rows=rows, record=record
  )


def place_of(row_id: int, row_ids: np.ndarray) -> int:
  """Return row `row_id`'s index in ascending int64[examples], or raise IndexError."""
  index = int(np.searchsorted(row_ids, row_id))
  if index == len(row_ids) or row_ids[index] != row_id:
    raise IndexError(f'no row {row_id}')
  return index


_checked: dict[tuple[Any, ...], Examples] = {}


def _read(records: Records, kind: str, settings: ExampleSettings) -> Examples:
  if settings.separator is not None and kind != 'multilabel':
    raise ValueError(f"separator={settings.separator!r} is for kind='multilabel', not {kind!r}: remove it")
  if kind != 'words' and (settings.scheme or settings.words == 'script'):
    raise ValueError(f"data.scheme and data.words are for kind='words', not {kind!r}: remove them")
  checked = _checked.pop((records.where, records.digest, kind, settings), None)
  return _file('kind', kind).make(records=records, asked=settings) if checked is None else checked


def template(*, vocab: Vocab, layout: str = 'bert', kind: str = 'class', **rest: Any) -> Template:
  """Return the special tokens around the fields of an example.

  If the layout allows one field only, a second field follows the first directly.
  """
  style = _file('layout', layout)
  single = style.make(vocab=vocab, fields=1)
  try:
    pair = style.make(vocab=vocab, fields=2)
  except ValueError:  # GPT's delimiter is not in the vocabulary of a task with one field
    (before, after), *_ = single.frames
    pair = single._replace(frames=((before, ()), ((), after)))
  return framing.template(single, pair)._replace(spaced=getattr(_file('kind', kind), 'SPACED', False))


def _file(keyword: Literal['layout', 'kind'], name: str) -> Any:
  modules = build.files_of(f'data.rows.{keyword}s')
  if name not in modules:
    choices = ', '.join(modules)
    raise ValueError(f'{keyword}={name!r} does not exist: choose one of {choices}.{errors.suggest(name, modules)}')
  return modules[name]


def _widths(length: int, buckets: tuple[int, ...]) -> np.ndarray:
  """Return the lengths of batches, int64, ascending; raise ValueError if too long."""
  widths = np.array(sorted({*buckets, length}))
  if widths[-1] != length:
    raise ValueError(f'buckets={buckets} must not be longer than length={length}.')
  return widths
