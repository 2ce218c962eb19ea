"""Examples that read text and write text or choose among texts: summaries, translations, tasks as text, prompts.

A file of `rows/forms/` writes an example as text: a template with fields in braces, or one of T5's tasks. The inputs
may have one blank, and demonstrations may precede them (few-shot prompts). A batch has

  tokens           the inputs, with the special tokens of `layout` around them
  target_tokens    the first right answer, with those of `target_layout`; the record has the others
  option_tokens    the texts to choose from, in the same layout; the target alone if the form has no options
  option_lead      number of first tokens of each option that are read but not scored
  option_characters  number of characters of each option that are scored; 0 if the form has no options
  label            index of the right option, -1 if unknown

Inputs that are too long lose demonstrations first, then tokens from the end that the form does not keep. Inputs with a
blank lose characters of their longest field instead. Targets and options lose tokens from their end.
"""

import dataclasses
import itertools
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from plm_jax.config import build
from plm_jax.core import errors
from plm_jax.core.keywords import Count
from plm_jax.core.types import Labels, Source, Template, Vocab
from plm_jax.data.corpora import cells, local, sources, splits
from plm_jax.data.corpora.records import Records
from plm_jax.data.corpora.sources import Boundary
from plm_jax.data.rows import buckets as bucketed
from plm_jax.data.rows import encoded, framing, order, store, written
from plm_jax.data.rows.checked import OnBadRow
from plm_jax.data.rows.demonstrations import Sampler, Shots
from plm_jax.data.rows.written import Form, WrittenRows

log = logging.getLogger(__name__)
UNLABELLED = dict(per_target=False)  # keys with which examples without targets are read
QUICK = dict(length=64, target_length=16, buckets=(), target_buckets=(), batch_size=8, per_target=False)  # smoke test
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
  """Write and tokenise all examples of a split, in memory.

  Other keywords: see `plm_jax.data` and `rows.examples.ExampleSettings`.

  Args:
    second_vocab: vocabulary of one side of the examples, if the two sides have different ones.
    form: a file of `rows/forms/` and its keywords.
    target_length: tokens of a target or an option, special tokens included; None is `length`.
    buckets: shorter lengths of inputs; a batch has the first that holds its examples. () pads every batch to `length`.
    target_buckets: length of targets and options for each of `buckets`; an example takes the first pair that holds both
      sides. () pads them to `target_length`. An evaluation without options always does: the room for a
      generated text must not depend on the right answer.
    layout, target_layout: special tokens around inputs, and around targets and options; None is `layout`.
    second: the side of `second_vocab`: 'inputs', or 'targets' and options.
    blank: token in the blank; None is the mask token of the vocabulary of inputs.
    gap: text before a target or an option: ' ' if a decoder continues its inputs.
    per_target: one example for each right answer (T5's ReCoRD, several references), not only for the first.
    shots: demonstrations before each example.

  Returns:
    Batches with the keys of `GIVES`. `row_id` counts the examples, once for each sample of demonstrations. Records have
    the keys 'row', 'inputs', 'references', 'options', 'label' (or the number that the target spells), 'names' and
    'draw', and 'label_names' if the data or the form has other names of classes than the texts that are written.

  Raises:
    ValueError: settings that do not fit, or a row that cannot be written.
  """
  target_length, shot_settings = target_length or length, Shots(**shots or {})
  widths = shapes(buckets, target_buckets, length=length, target_length=target_length)
  opened = partial(sources.open_source, path, cache=cache, max_bytes=max_bytes, documents=documents)
  records, share = opened(split=split), order.share(batch_size, host=host, hosts=hosts)
  errors.one_of('data.second', second, Second)
  input_vocab, target_vocab = (second_vocab or vocab, vocab) if second == 'inputs' else (vocab, second_vocab or vocab)
  writer = encoded.writer(
    _form(form, keep_unlabelled=keep_unlabelled), input_vocab=input_vocab, vocab=target_vocab, layout=layout,
    target_layout=target_layout or layout, blank=blank, gap=gap, length=length, target_length=target_length,
  )  # fmt: skip
  rows = written.find_rows(
    records, writer.form, per_target=per_target, keep_unlabelled=keep_unlabelled, on_bad_row=on_bad_row
  )
  drawing: dict[str, Any] = {'split': split, 'gap': gap or ' ', 'on_bad_row': on_bad_row, 'opened': opened}
  writer = writer._replace(sampler=_sampler(shot_settings, writer.form, records, rows, **drawing))
  examples = Examples(
    records=records, rows=rows, tokens=encoded.tokenised(records, rows, writer, draws=shot_settings.draws),
    writer=writer, draws=shot_settings.draws,
  )  # fmt: skip
  settings = [length, target_length, layout, target_layout, blank, gap, per_target, keep_unlabelled]
  settings += [] if second_vocab is None else [input_vocab.digest]
  settings += [buckets, target_buckets] if buckets else []
  digest = store.digest_of(records.digest, target_vocab.digest, cells.plain(form), cells.plain(shots or {}), *settings)
  return _serve(examples, widths, share=share, seed=seed, shuffle=shuffle, digest=digest, path=f'{path} ({split})')


class Examples(NamedTuple):
  """Tokenised examples of a split."""

  records: Records  # the split
  rows: WrittenRows  # the rows that are written
  tokens: encoded.Tokenised  # their tokens, once for each sample of demonstrations
  writer: encoded.Writer  # settings that they were written with
  draws: int  # number of samples of demonstrations

  def batch(self, chosen: order.Chosen, width: int, target_width: int) -> order.Batch:
    """Return inputs [b, width], targets [b, target_width], options [b, options, target_width]."""
    tokens, pad, most = self.tokens, self.writer.vocab.pad_id, self.rows.options
    inputs, segments = tokens.inputs.padded(chosen.rows, width, pad=self.writer.input_vocab.pad_id)
    row = chosen.rows % len(self.rows.row_ids)  # targets and options are the same for all samples of demonstrations
    targets, target_segments = tokens.targets.padded(row, target_width, pad=pad)
    arrays = {
      'tokens': inputs, 'segment_ids': segments, 'target_tokens': targets, 'target_segment_ids': target_segments
    }  # fmt: skip
    if not most:
      zero, zeros = np.zeros(len(row), np.int32), np.zeros((len(row), 1), np.int32)
      single = {'option_tokens': targets[:, None], 'option_segment_ids': target_segments[:, None]}
      return arrays | single | {'option_lead': zeros, 'option_characters': zeros, 'label': zero}
    option = row[:, None] * most + np.arange(most)  # [b, options]
    ids, real = tokens.options.padded(option, target_width, pad=pad)
    scored = {'option_lead': tokens.leads[option], 'option_characters': tokens.characters[option]}
    return arrays | {'option_tokens': ids, 'option_segment_ids': real, **scored, 'label': self.rows.labels[row]}


def _serve(
  examples: Examples,
  widths: list[tuple[int, int]],
  *,
  share: order.Share,
  seed: int,
  shuffle: bool,
  digest: str,
  path: str,
) -> Source:
  rows, form, cut = examples.rows, examples.writer.form, examples.tokens.cut
  length, target_length = widths[-1]
  log.info(f'{path}: {len(rows.row_ids)} rows, {cut} of them cut to {length} and {target_length} tokens.')
  served = partial(
    order.serve,
    share=share,
    digest=digest,
    names=form.options,
    classes=max(rows.options, 1),
    record=partial(record, examples.records, rows, form),
    unlabelled=bool((rows.answers < 0).any()),
    places=True,
  )
  total = len(rows.row_ids) * examples.draws
  if len(widths) == 1:
    shuffled = order.shuffled(total, share, seed=seed, shuffle=shuffle)
    return served(lambda chosen: examples.batch(chosen, length, target_length), shuffled)
  bucket = first_that_holds(examples.tokens, widths, rows=len(rows.row_ids), options=rows.options)

  def judged(chosen: bucketed.Members) -> order.Batch:
    """Return a batch of an evaluation: without options, room for `target_length` tokens."""
    width, target_width = widths[chosen.bucket]
    return examples.batch(chosen, width, target_width if rows.options else target_length)

  return served(
    lambda chosen: examples.batch(chosen, *widths[chosen.bucket]),
    bucketed.batches(bucket, np.arange(total), share=share, seed=seed if shuffle else None),
    widest=lambda chosen: dataclasses.replace(chosen, bucket=len(widths) - 1),
    judged=judged,
  )


def shapes(
  buckets: tuple[int, ...], target_buckets: tuple[int, ...], *, length: int, target_length: int
) -> list[tuple[int, int]]:
  """Return ascending lengths of inputs and targets, or raise ValueError."""
  targets = target_buckets or (target_length,) * len(buckets)
  if len(targets) != len(buckets):
    raise ValueError(f'buckets={buckets} and target_buckets={target_buckets} must have the same number of lengths')
  pairs = [*zip(buckets, targets, strict=True), (length, target_length)]
  for pair, next_pair in itertools.pairwise(pairs):
    if pair[0] > next_pair[0] or pair[1] > next_pair[1]:
      raise ValueError(
        f'buckets={buckets} and target_buckets={target_buckets} must ascend to length={length} and '
        f'target_length={target_length}: {pair} comes before {next_pair}'
      )
  return pairs


def first_that_holds(
  tokens: encoded.Tokenised, shapes: list[tuple[int, int]], *, rows: int, options: int
) -> np.ndarray:
  """Find the first shape that holds inputs, target and options.

  `shapes` are ascending lengths of inputs and targets. Each of the `rows` written rows has `options` options. Returns
  the index of the shape, int64[draws * rows].
  """
  lengths, targets = np.array(shapes).T
  written_sizes = np.diff(tokens.targets.offsets)
  if options:
    written_sizes = np.maximum(written_sizes, np.diff(tokens.options.offsets).reshape(rows, options).max(axis=1))
  read_sizes = np.diff(tokens.inputs.offsets)
  draws = len(read_sizes) // rows
  shape = np.searchsorted(lengths, read_sizes), np.searchsorted(targets, np.tile(written_sizes, draws))
  return np.maximum(*shape)


def _form(form: Mapping[str, Any], *, keep_unlabelled: bool) -> Form:
  built = build.make('data.rows.forms', form)
  return written.without_answers(built) if keep_unlabelled else built


def _sampler(
  shots: Shots,
  form: Form,
  records: Records,
  rows: WrittenRows,
  *,
  split: str,
  gap: str,
  on_bad_row: OnBadRow,
  opened: Callable[..., Records],
) -> Sampler | None:
  """Build the sampler of demonstrations; None without demonstrations.

  All rows that it may sample are checked now. The `rows` of `records`, the split `split`, get demonstrations. `opened`
  opens another split of the data. Raises ValueError for a row that cannot be written, or too few rows.
  """
  if not shots.count and not shots.instruction:
    return None
  if shots.split == split or not shots.count:
    return Sampler(shots, form, records, gap=gap, same_split=True, left_out=rows.left_out)
  others = opened(split=shots.split)
  left_out = written.find_bad_rows(others, form, on_bad_row)
  names, other_names = ({part.name for part in splits.parse(text, path=records.where)} for text in (split, shots.split))
  overlapping = records if names & other_names else None
  return Sampler(shots, form, others, gap=gap, same_split=False, asked=overlapping, left_out=left_out)


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
  """Write all rows and demonstrations without tokenising; keywords as in `make`."""
  opened = partial(sources.open_source, path, cache=cache, max_bytes=max_bytes, documents=documents)
  records = opened(split=split)
  settings, text_form = Shots(**shots or {}), _form(form, keep_unlabelled=keep_unlabelled)
  rows = written.find_rows(
    records, text_form, per_target=per_target, keep_unlabelled=keep_unlabelled, on_bad_row=on_bad_row
  )
  sampler = _sampler(settings, text_form, records, rows, split=split, gap=' ', on_bad_row=on_bad_row, opened=opened)
  if sampler and settings.count:
    sampler.sample(int(rows.row_ids[0]), 0)
  # places: labels are indices of a row's own options, so tasks with other options may share a batch
  unlabelled, read = bool((rows.answers < 0).any()), partial(record, records, rows, text_form)
  return Labels(text_form.options, max(rows.options, 1), unlabelled, places=True, rows=len(rows.row_ids), record=read)


def template(*, vocab: Vocab, layout: str = 'plain', **rest: Any) -> Template:
  """Return the special tokens around inputs; a second text is another field."""
  style = build.files_of('data.rows.layouts')[layout]
  return framing.template(style.make(vocab=vocab, fields=1), style.make(vocab=vocab, fields=2))


def record(records: Records, rows: WrittenRows, form: Form, row_id: int) -> dict[str, Any]:
  """Return the record of an example, as `make` describes it."""
  draw, position = divmod(row_id, len(rows.row_ids))
  index = int(rows.row_ids[position])
  text = written.again(records, index, form)
  class_names = form.names or records.labels.get('label', ())
  label = 0 if not rows.options else text.label if text.label >= 0 else None  # without options the target is option 0
  return {
    'row': {**records[index], **text.found},
    'inputs': text.inputs.replace(written.MARK, written.BLANK),
    'references': list(text.targets) or None,
    'options': text.options,
    'label': label if text.value is None else text.value,
    'names': form.options,
    'draw': draw,
    **({'label_names': class_names} if class_names != form.options and len(class_names) == len(form.options) else {}),
  }
