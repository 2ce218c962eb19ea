"""Labelled texts and pairs for fine-tuning and scoring: one example a row, in the input format of the model's paper.

Layouts, for one text A or a pair A, B (more fields go on likewise):

  bert     [CLS] A [SEP] (B [SEP]), type_ids 0 through the first [SEP], then 1 (Devlin et al. 2019, §3.2)
  roberta  <s> A </s> (</s> B </s>), no type_ids (Liu et al. 2019; fairseq)
  gpt      _start_ A (_delimiter_ B) _classify_ (Radford et al. 2018, §3.3: <s> A $ B <e>)
  xlnet    A <sep> (B <sep>) <cls>, type_ids 0 for A <sep>, 1 for B <sep>, 2 for <cls> (Yang et al. 2019, §2.5)
  plain    [beginning token] A end (B end), for models without tokens of their own for tasks

A row that is too long loses tokens from the end of its longest field; special tokens always stay.

With kind='words' the field holds a list of words, each with a label of its own. Every word is tokenised with a space
before it, and its label stands at its first piece (Devlin et al. 2019, §5.3).
"""

import functools
import logging
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import jax
import numpy as np

from plm_jax.data.rows import examples, order, packing, store
from plm_jax.types import Source, Vocab

log = logging.getLogger(__name__)


class _Layout(NamedTuple):
  """Special tokens around each of so many fields, whether sentence types are told apart, a type of the last token."""

  frames: Callable[[Vocab, int], tuple[packing.Frame, ...]]
  typed: bool = False
  last_type: int | None = None


def _bert(vocab: Vocab, fields: int) -> tuple[packing.Frame, ...]:
  sep = _present(vocab.sep_id, '[SEP]')
  return _chain(_present(vocab.cls_id, '[CLS]'), (sep,), (sep,), fields)


def _roberta(vocab: Vocab, fields: int) -> tuple[packing.Frame, ...]:
  sep = _present(vocab.sep_id, '</s>')
  return _chain(_present(vocab.cls_id, '<s>'), (sep, sep), (sep,), fields)


def _gpt(vocab: Vocab, fields: int) -> tuple[packing.Frame, ...]:
  between = (vocab.id('_delimiter_'),) if fields > 1 else ()
  return _chain(vocab.id('_start_'), between, (vocab.id('_classify_'),), fields)


def _xlnet(vocab: Vocab, fields: int) -> tuple[packing.Frame, ...]:
  sep = _present(vocab.sep_id, '<sep>')
  return _chain(None, (sep,), (sep, _present(vocab.cls_id, '<cls>')), fields)


def _plain(vocab: Vocab, fields: int) -> tuple[packing.Frame, ...]:
  end = _present(vocab.sep_id if vocab.eos_id is None else vocab.eos_id, 'end')
  return _chain(vocab.bos_id, (end,), (end,), fields)


def _chain(
  first: int | None, between: tuple[int, ...], last: tuple[int, ...], fields: int
) -> tuple[packing.Frame, ...]:
  before = () if first is None else (first,)
  after = [between] * (fields - 1) + [last]
  return tuple((() if index else before, ids) for index, ids in enumerate(after))


def _present(token_id: int | None, what: str) -> int:
  if token_id is None:
    raise ValueError(f'the vocabulary has no {what} token, which this layout needs: choose another (layout=...).')
  return token_id


_LAYOUTS = {
  'bert': _Layout(_bert, typed=True),
  'roberta': _Layout(_roberta),
  'gpt': _Layout(_gpt),
  'xlnet': _Layout(_xlnet, typed=True, last_type=2),
  'plain': _Layout(_plain),
}


def make(
  *,
  vocab: Vocab,
  path: str,
  split: str = 'train',
  fields: tuple[str, ...] = (),
  label: str = 'label',
  kind: Literal['class', 'regression', 'words'] = 'class',
  layout: Literal['bert', 'roberta', 'gpt', 'xlnet', 'plain'] = 'bert',
  both_orders: bool = False,
  length: int,
  batch_size: int,
  seed: int,
  buckets: tuple[int, ...] = (),
  per_class: int | None = None,
  sample_seed: int = 0,
  missing: float = -1,
  shuffle: bool = True,
  cache: str = '~/.cache/plm_jax',
  host: int = 0,
  hosts: int = 1,
) -> Source:
  """Reads labelled records and serves them as rows; each epoch is a whole number of batches.

  Args:
    vocab: gives ids and special tokens.
    path: of the records, as `sources.open_source` takes it.
    split: part of it, TFDS slicing allowed.
    fields: that hold the text, in order; () finds the names that TFDS uses for single sentences and pairs.
    label: field that holds the label, or with kind='words' the list of labels.
    kind: 'class' delivers int32 labels, 'regression' float32, 'words' one for each word of a single field.
    layout: see the head of this file.
    both_orders: also deliver the fields in reverse, as `swapped_tokens` and `swapped_segment_ids` (GPT's similarity).
    length: tokens of the longest row, special ones counted.
    batch_size: rows a step over all hosts.
    seed: of the order of rows.
    buckets: shorter row lengths; a batch has the smallest that holds its rows. () pads every batch to `length`.
    per_class: keep this many rows of each class.
    sample_seed: of that choice.
    missing: label of a row without one; such rows are left out. A word without one has -1, and stays.
    shuffle: False keeps the order of the source (within each bucket).
    cache: folder for what is downloaded or tokenised.
    host: number of this process, of
    hosts: processes.

  Returns:
    Batches of tokens, segment_ids, label, row_id (the row's index in the split), epoch, row_weight, and type_ids where
    the layout has them. With kind='words' there is, in place of label, labels int32[b, length]: -1 but for the first
    pieces of words. Only the last batch of an epoch may hold rows of weight 0. `once` keeps the order of the split.

  Raises:
    ValueError: a setting that cannot be met.
  """
  if kind not in ('class', 'regression', 'words'):
    raise ValueError(f'kind={kind!r} is unknown: choose one of class, regression, words.')
  if layout not in _LAYOUTS:
    raise ValueError(f'layout={layout!r} is unknown: choose one of {", ".join(_LAYOUTS)}.')
  widths = np.array(sorted({*buckets, length}))
  if widths[-1] != length:
    raise ValueError(f'buckets={buckets} must not be longer than length={length}.')
  places = order.host_slice(batch_size, host=host, hosts=hosts)
  given = examples.read(
    path,
    split=split,
    fields=fields,
    label=label,
    kind=kind,
    per_class=per_class,
    sample_seed=sample_seed,
    missing=missing,
    cache=cache,
  )
  columns, rows = len(given.fields), len(given.row_ids)
  if both_orders and columns < 2:
    raise ValueError(f'both_orders=True needs two fields; {path} is read with fields={given.fields}.')
  typed, last_type = _LAYOUTS[layout].typed, _LAYOUTS[layout].last_type
  frames = _LAYOUTS[layout].frames(vocab, columns)
  specials = sum(len(before) + len(after) for before, after in frames)
  if widths[0] < specials + columns:
    raise ValueError(
      f'rows of {widths[0]} are too short for layout={layout!r} with {columns} fields: at least {specials + columns} '
      'tokens a row.'
    )

  if rows <= examples.IN_MEMORY:
    tokens = store.in_memory(given.texts, vocab=vocab)
  else:
    tokens = store.on_disk(given.texts, vocab=vocab, cache=cache)
  offsets = tokens.offsets[given.edges]  # [rows * columns + 1]
  whole = np.diff(offsets).reshape(rows, columns)
  counts = fit(whole, room=length - specials)
  cut = int((counts < whole).any(axis=1).sum())
  log.info('%s (%s): %d rows, %d of them cut to %d tokens.', path, split, rows, cut, length)
  bucket = np.searchsorted(widths, counts.sum(axis=1) + specials)  # [rows], the shortest that holds the row

  starts = offsets[:-1].reshape(rows, columns)
  frame = np.tile(np.arange(columns, dtype=np.uint8), rows)
  edges = np.arange(rows + 1) * columns
  plans = {'': packing.Plan(starts.ravel(), counts.ravel(), frame, edges)}
  if both_orders:
    plans['swapped_'] = packing.Plan(starts[:, ::-1].ravel(), counts[:, ::-1].ravel(), frame, edges)
  steps = -(-rows // batch_size)
  words = kind == 'words'
  piece_labels = first_pieces(given.labels, tokens.offsets) if words else np.zeros(0, np.int32)
  unlabelled = tuple(((-1,) * len(before), (-1,) * len(after)) for before, after in frames)

  def batch(members: np.ndarray, epoch: int) -> dict[str, np.ndarray]:
    """This host's part of the batch of rows int64[batch_size], where -1 makes a row of weight 0."""
    width = int(widths[bucket[members[members >= 0]].max()])
    real = members[places] >= 0
    chosen = np.where(real, members[places], members[0])
    made = {
      'row_id': np.where(real, given.row_ids[chosen], -1).astype(np.int32),
      'epoch': np.full(len(chosen), epoch, np.int32),
      'row_weight': real.astype(np.float32),
    }
    if words:
      made['labels'], _ = packing.assemble(plans[''], piece_labels, chosen, frames=unlabelled, length=width, pad=-1)
    else:
      made['label'] = given.labels[chosen]
    for prefix, plan in plans.items():
      ids, numbers = packing.assemble(plan, tokens.ids, chosen, frames=frames, length=width, pad=vocab.pad_id)
      made |= {f'{prefix}tokens': ids, f'{prefix}segment_ids': np.minimum(numbers, 1)}
      if typed:
        types = np.maximum(numbers - 1, 0)
        if last_type is not None:
          types[np.arange(len(chosen)), (numbers > 0).sum(axis=1) - 1] = last_type
        made[f'{prefix}type_ids'] = types
    return made

  @functools.lru_cache(maxsize=4)
  def epoch_rows(epoch: int) -> np.ndarray:
    return plan_epoch(bucket, batch_size=batch_size, key=(seed, epoch) if shuffle else None)

  def train_batch(step: int) -> dict[str, np.ndarray]:
    epoch, place = divmod(step, steps)
    return batch(epoch_rows(epoch)[place], epoch)

  def single_batch(step: int) -> dict[str, np.ndarray]:
    members = step * batch_size + np.arange(batch_size)
    return batch(np.where(members < rows, members, -1), 0)

  def read(step: int) -> Iterator[dict[str, np.ndarray]]:
    return order.iterate(train_batch, step)

  def once() -> Iterator[dict[str, np.ndarray]]:
    return order.iterate(single_batch, 0, steps)

  return Source(
    spec={
      name: jax.ShapeDtypeStruct((batch_size, length)[: array.ndim], array.dtype)
      for name, array in single_batch(0).items()
    },
    rows=rows,
    read=read,
    once=once,
    digest=store.digest_of(tokens.digest, layout, length, buckets, both_orders, frames),
    names=given.names,
    classes=0 if kind == 'regression' else int(given.labels.max()) + 1,
    steps_per_epoch=steps,
  )


def first_pieces(labels: np.ndarray, offsets: np.ndarray) -> np.ndarray:
  """The label of each word at its first token, and -1 at the others; a word without tokens loses its label.

  Args:
    labels: int32[words].
    offsets: int64[words+1], word i is tokens `offsets[i]:offsets[i+1]`.
  """
  some = np.diff(offsets) > 0
  if not some.all():
    log.warning('%d of %d words have no token in this vocabulary, and are not labelled.', (~some).sum(), len(some))
  placed = np.full(offsets[-1], -1, np.int32)
  placed[offsets[:-1][some]] = labels[some]
  return placed


def fit(sizes: np.ndarray, *, room: int) -> np.ndarray:
  """Longest-first truncation (BERT's released code): one token at a time off the longest field.

  Args:
    sizes: int64[rows, fields].
    room: tokens that a row has for its fields.

  Returns:
    int64[rows, fields], what stays of each; where fields end up equal, the earlier ones keep the odd tokens.
  """
  low, high = np.zeros(len(sizes), np.int64), np.full(len(sizes), room)
  while (low < high).any():  # the highest level to which the fields can be cut and fit
    middle = (low + high + 1) // 2
    fits = np.minimum(sizes, middle[:, None]).sum(axis=1) <= room
    low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
  kept = np.minimum(sizes, low[:, None])
  longer = sizes > kept
  spare = room - kept.sum(axis=1, keepdims=True)
  return kept + (longer & (np.cumsum(longer, axis=1) <= spare))


def plan_epoch(bucket: np.ndarray, *, batch_size: int, key: tuple[int, ...] | None) -> np.ndarray:
  """Which rows make which batch of an epoch.

  Args:
    bucket: int64[rows], number of the shortest bucket that holds each row.
    batch_size: rows a batch.
    key: of the shuffle; None goes through the buckets in order, and through each in order.

  Returns:
    int64[steps, batch_size], each row once. Rows that do not fill a batch of their bucket open the first batch of the
    next longer one; only the last batch may be short, and is filled up with -1.
  """
  rows = np.arange(len(bucket)) if key is None else order.permutation(len(bucket), *key, 1)
  rows = rows[np.argsort(bucket[rows], kind='stable')]
  batches = np.append(rows, np.full(-len(rows) % batch_size, -1)).reshape(-1, batch_size)
  if key is not None:
    whole = len(rows) // batch_size
    batches[:whole] = batches[order.permutation(whole, *key, 2)]
  return batches
