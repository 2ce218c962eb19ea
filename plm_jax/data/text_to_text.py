"""Rows that read text and write text, or choose among texts: summaries, translations, every task as text, prompts.

How a row of data is written as text is a file of `rows/forms/`: templates with its fields in braces, or T5's tasks. The
inputs may have one blank, and demonstrations may stand before them (few-shot prompts). A batch has

  tokens           the inputs, with the special tokens of `layout` around them
  target_tokens    the first of the right answers, with those of `target_layout`; the others stand in the record
  option_tokens    the texts to choose from, likewise; the target alone where the form has none
  option_lead      first tokens of each option that are read and not compared
  option_characters  characters of each option that are compared; 0 where the form has no options
  label            the number of the right option, -1 where it is not known

Inputs that are too long lose demonstrations first, then tokens from the end that the form does not keep; inputs with a
blank lose characters of their longest field instead. Targets and options lose tokens from their end.
"""

import dataclasses
import itertools
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np

from plm_jax.config import build
from plm_jax.core import errors
from plm_jax.core.types import Count, Labels, Source, Template, Vocab
from plm_jax.data.corpora import local, sources, splits
from plm_jax.data.corpora.records import Records
from plm_jax.data.corpora.sources import Boundary
from plm_jax.data.rows import buckets as bucketed
from plm_jax.data.rows import encoded, framing, order, store, written
from plm_jax.data.rows.checked import OnBadRow
from plm_jax.data.rows.demonstrations import Drawer, Shots
from plm_jax.data.rows.written import Form, Kept

log = logging.getLogger(__name__)
# of a smoke test (`file.py:quick`)
QUICK = dict(length=64, target_length=16, buckets=(), target_buckets=(), batch_size=8, per_target=False)
Second = Literal['inputs', 'targets']

GIVES = (
  'tokens', 'segment_ids', 'target_tokens', 'target_segment_ids', 'option_tokens', 'option_segment_ids',
  'option_lead', 'option_characters', 'label',
)  # fmt: skip


def make(
  *,
  vocab: Vocab,
  second_vocab: Vocab | None = None,
  path: str,
  split: str = 'train',
  form: Annotated[Mapping[str, Any], 'data.rows.forms'],
  length: Count,
  target_length: Count | None = None,
  buckets: tuple[Count, ...] = (),
  target_buckets: tuple[Count, ...] = (),
  batch_size: Count,
  seed: int,
  layout: Annotated[str, 'data.rows.layouts'] = 'plain',
  target_layout: Annotated[str, 'data.rows.layouts'] | None = None,
  second: Second = 'inputs',
  blank: str | None = None,
  gap: str = '',
  per_target: bool = False,
  shots: Annotated[Mapping[str, Any], 'data.rows.demonstrations:Shots'] | None = None,
  keep_unlabelled: bool = False,
  on_bad_row: OnBadRow = 'stop',
  shuffle: bool = True,
  documents: Boundary = 'blank_line',
  max_bytes: Count = 1_073_741_824,
  cache: str = '~/.cache/plm_jax',
  host: int = 0,
  hosts: int = 1,
) -> Source:
  """Writes and tokenises all rows of a split, which stay in memory as tokens.

  Args:
    vocab: gives ids and special tokens.
    second_vocab: does so for one side of the rows, which is of another vocabulary than the other.
    path: of the records, as `sources.open_source` takes it.
    split: part of it, TFDS slicing allowed.
    form: how a row is written: a file of `rows/forms/` and its keywords.
    length: tokens of inputs, special ones counted.
    target_length: tokens of a target or an option, likewise; None is `length`.
    buckets: shorter lengths of inputs; a batch has the first that holds its rows. () pads every batch to `length`.
    target_buckets: the length of targets and options beside each of `buckets`; a row goes where both fit, so that
      buckets (24, 48) with targets (12, 24) are two shapes beside that of `length`. () pads them to `target_length`, as
      an evaluation does where there are no options: how far a text may be written must not depend on the right one.
    batch_size: rows per step over all hosts.
    seed: of the order of rows.
    layout: special tokens around inputs, as those of a labelled row with one field.
    target_layout: those around targets and options; None is `layout`.
    second: the side that is of `second_vocab`, where there is one: 'inputs', or 'targets' and options.
    blank: token that stands in the blank; None is the mask of the vocabulary of inputs.
    gap: text before a target or an option: ' ' where a decoder goes on with its inputs.
    per_target: a row for each right answer (T5's ReCoRD, several references); else the first is trained on.
    shots: demonstrations before each row; None for none.
    keep_unlabelled: rows without a right answer stay, so that they can be predicted (`evaluate --predictions`).
      Nothing is trained or scored on them.
    on_bad_row: a row that cannot be written, of these or of the split that demonstrations are drawn from: 'stop' ends
      with file, line and reason, before anything is tokenised; 'skip' leaves up to 0.1 % of the rows out, and counts
      and lists them.
    shuffle: False keeps the order of the source.
    documents: what ends a row of a .txt file: 'blank_line', 'line', 'every_line' or the 'file'.
    max_bytes: most bytes of a row of a file, and of a .gz file unzipped, which is held in memory.
    cache: folder for what is downloaded.
    host: index of this process.
    hosts: number of processes.

  Returns:
    Batches with the keys of `GIVES`. A `row_id` counts the rows that are kept, those of each draw of demonstrations
    after one another. Records have the keys 'row', 'inputs', 'references', 'options', 'label' (or the number that
    the target spells), 'names' and 'draw', and 'label_names' where the data or the form call classes otherwise than by
    the words that are written.

  Raises:
    ValueError: a setting that cannot be met, or a row that cannot be written.
  """
  target_length, other_vocab = target_length or length, second_vocab or vocab
  sizes = shapes(buckets, target_buckets, length=length, target_length=target_length)
  opened = partial(sources.open_source, path, cache=cache, max_bytes=max_bytes, documents=documents)
  records = opened(split=split)
  share = order.share(batch_size, host=host, hosts=hosts)
  chosen = Shots(**shots or {})
  errors.one_of('data.second', second, Second)
  input_vocab, vocab = (other_vocab, vocab) if second == 'inputs' else (vocab, other_vocab)
  writer = encoded.Writer(
    form=_form(form, keep_unlabelled=keep_unlabelled),
    vocab=vocab,
    input_vocab=input_vocab,
    inputs=encoded.frame(layout, input_vocab, room=length, keyword='length'),
    answers=encoded.frame(target_layout or layout, vocab, room=target_length, keyword='target_length'),
    blank=input_vocab.mask_id if blank is None else input_vocab.id(blank),
    gap=gap,
    length=length,
    target_length=target_length,
    drawer=None,
  )
  kept = written.find_rows(
    records, writer.form, per_target=per_target, keep_unlabelled=keep_unlabelled, on_bad_row=on_bad_row
  )
  if chosen.count or chosen.instruction:
    before = _drawer(
      chosen, writer.form, records, kept, split=split, gap=gap or ' ', on_bad_row=on_bad_row, opened=opened
    )
    writer = writer._replace(drawer=before)
  made_of = encoded.tokenised(records, kept, writer, draws=chosen.draws)
  inputs, targets, options, cut = made_of.inputs, made_of.targets, made_of.options, made_of.cut
  log.info(f'{path} ({split}): {len(kept.row_ids)} rows, {cut} of them cut to {length} and {target_length} tokens.')

  def batch(these: order.Chosen, width: int, target_width: int) -> order.Batch:
    read, mask = inputs.padded(these.rows, width, pad=input_vocab.pad_id)
    own = these.rows % len(kept.row_ids)
    write, write_mask = targets.padded(own, target_width, pad=vocab.pad_id)
    made = {'tokens': read, 'segment_ids': mask, 'target_tokens': write, 'target_segment_ids': write_mask}
    if not kept.options:
      none, nothing = np.zeros(len(own), np.int32), np.zeros((len(own), 1), np.int32)
      alone = {'option_tokens': write[:, None], 'option_segment_ids': write_mask[:, None]}
      return made | alone | {'option_lead': nothing, 'option_characters': nothing, 'label': none}
    each = own[:, None] * kept.options + np.arange(kept.options)
    ids, real = options.padded(each, target_width, pad=vocab.pad_id)
    compared = {'option_lead': made_of.leads[each], 'option_characters': made_of.characters[each]}
    return made | {'option_tokens': ids, 'option_segment_ids': real, **compared, 'label': kept.labels[own]}

  settings = [length, target_length, layout, target_layout, blank, gap, per_target, keep_unlabelled]
  settings += [] if second_vocab is None else [input_vocab.digest]
  settings += [buckets, target_buckets] if buckets else []
  rows = len(kept.row_ids) * chosen.draws
  served = partial(
    order.serve,
    share=share,
    digest=store.digest_of(records.digest, vocab.digest, plain(form), plain(shots or {}), *settings),
    path=f'{path} ({split})',
    names=writer.form.options,
    classes=max(kept.options, 1),
    record=partial(record, records, kept, writer.form),
    unlabelled=bool((kept.answers < 0).any()),
    places=True,
  )
  if not buckets:
    padded = order.shuffled(rows, share, seed=seed, shuffle=shuffle)
    return served(lambda these: batch(these, length, target_length), padded)
  bucket = first_that_holds(made_of, sizes, rows=len(kept.row_ids), options=kept.options)

  def judged(these: bucketed.Members) -> order.Batch:
    """With room for all that may be written; options are all there, and nothing longer is right."""
    width, target_width = sizes[these.bucket]
    return batch(these, width, target_width if kept.options else target_length)

  return served(
    lambda these: batch(these, *sizes[these.bucket]),
    bucketed.batches(bucket, np.arange(rows), share=share, seed=seed if shuffle else None),
    widest=lambda these: dataclasses.replace(these, bucket=len(sizes) - 1),
    judged=judged,
  )


def shapes(
  buckets: tuple[int, ...], target_buckets: tuple[int, ...], *, length: int, target_length: int
) -> list[tuple[int, int]]:
  """Lengths of inputs and of targets that batches may have, rising.

  Raises:
    ValueError: lengths that do not pair, do not rise, or are longer than the longest row.
  """
  targets = target_buckets or (target_length,) * len(buckets)
  if len(targets) != len(buckets):
    raise ValueError(f'buckets={buckets} and target_buckets={target_buckets}: one length of targets for each of inputs')
  made = [*zip(buckets, targets, strict=True), (length, target_length)]
  for one, next_one in itertools.pairwise(made):
    if one[0] > next_one[0] or one[1] > next_one[1]:
      raise ValueError(
        f'buckets={buckets} and target_buckets={target_buckets} must rise up to length={length} and '
        f'target_length={target_length}: {one} stands before {next_one}'
      )
  return made


def first_that_holds(
  made_of: encoded.Tokenised, sizes: list[tuple[int, int]], *, rows: int, options: int
) -> np.ndarray:
  """int64[draws * rows]: number of the first shape that holds the inputs, the target and all options of a row."""
  lengths, targets = np.array(sizes).T
  written_sizes = np.diff(made_of.targets.offsets)
  if options:
    written_sizes = np.maximum(written_sizes, np.diff(made_of.options.offsets).reshape(rows, options).max(axis=1))
  read_sizes = np.diff(made_of.inputs.offsets)
  draws = len(read_sizes) // rows
  found = np.searchsorted(lengths, read_sizes), np.searchsorted(targets, np.tile(written_sizes, draws))
  return np.maximum(*found)


def _form(form: Mapping[str, Any], *, keep_unlabelled: bool) -> Form:
  """How rows are written; with `keep_unlabelled`, rows that lack what is to be written as well."""
  made = build.make('data.rows.forms', form)
  return written.without_answers(made) if keep_unlabelled else made


def _drawer(
  shots: Shots,
  form: Form,
  records: Records,
  kept: Kept,
  *,
  split: str,
  gap: str,
  on_bad_row: OnBadRow,
  opened: Callable[..., Records],
) -> Drawer:
  """What draws demonstrations. All rows that they may come from are read now, those of the same split once.

  Args:
    shots: how many, of which split.
    form: how rows are written.
    records: the rows that are asked for.
    kept: those of them that can be written.
    split: of them.
    gap: what stands between the inputs and the target of a demonstration.
    on_bad_row: what becomes of rows that cannot be written, see `BadRows`.
    opened: opens another split of the data.

  Raises:
    ValueError: a row that cannot be written, or too few rows.
  """
  if shots.split == split or not shots.count:
    return Drawer(shots, form, records, gap=gap, same_split=True, left_out=kept.left_out)
  others = opened(split=shots.split)
  left_out = written.find_bad_rows(others, form, on_bad_row)
  ours, theirs = ({part.name for part in splits.parse(one, path=records.where)} for one in (split, shots.split))
  asked = records if ours & theirs else None
  return Drawer(shots, form, others, gap=gap, same_split=False, asked=asked, left_out=left_out)


def look(
  *,
  path: str,
  split: str = 'train',
  form: Mapping[str, Any],
  shots: Mapping[str, Any] | None = None,
  per_target: bool = False,
  keep_unlabelled: bool = False,
  on_bad_row: OnBadRow = 'stop',
  cache: str = sources.CACHE,
  max_bytes: int = local.MAX_BYTES,
  documents: Boundary = 'blank_line',
  **rest: Any,
) -> Labels:
  """Writes all rows, those that demonstrations are drawn from as well; nothing is tokenised. Keywords as in `make`."""
  del rest
  opened = partial(sources.open_source, path, cache=cache, max_bytes=max_bytes, documents=documents)
  records = opened(split=split)
  chosen, made = Shots(**shots or {}), _form(form, keep_unlabelled=keep_unlabelled)
  kept = written.find_rows(records, made, per_target=per_target, keep_unlabelled=keep_unlabelled, on_bad_row=on_bad_row)
  if chosen.count:
    before = _drawer(chosen, made, records, kept, split=split, gap=' ', on_bad_row=on_bad_row, opened=opened)
    before.draw(int(kept.row_ids[0]), 0)
  # an answer is a text: of tasks that stand in one batch each numbers its own options
  return Labels(made.options, max(kept.options, 1), bool((kept.answers < 0).any()), places=True)


def template(*, vocab: Vocab, layout: str = 'plain', **rest: Any) -> Template:
  """What stands around the inputs; a second text follows as a second field of a labelled row does."""
  del rest
  style = build.files_of('data.rows.layouts')[layout]
  return framing.template(style.make(vocab=vocab, fields=1), style.make(vocab=vocab, fields=2))


def plain(value: Any) -> Any:
  """A block as JSON has it, whether it came as tuples or as lists."""
  if isinstance(value, Mapping):
    return {key: plain(item) for key, item in value.items()}
  return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def record(records: Records, kept: Kept, form: Form, row_id: int) -> dict[str, Any]:
  """What `Source.record` says of a row; see `make`."""
  draw, place = divmod(row_id, len(kept.row_ids))
  index = int(kept.row_ids[place])
  text = written.again(records, index, form)
  called = form.names or records.labels.get('label', ())
  label = 0 if not kept.options else text.label if text.label >= 0 else None  # without options the target is the one
  return {
    'row': {**records[index], **text.found},
    'inputs': text.inputs.replace(written.MARK, written.BLANK),
    'references': list(text.targets) or None,
    'options': text.options,
    'label': label if text.value is None else text.value,
    'names': form.options,
    'draw': draw,
    **({'label_names': called} if called != form.options and len(called) == len(form.options) else {}),
  }
