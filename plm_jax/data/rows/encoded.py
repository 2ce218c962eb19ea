"""Written rows as tokens: inputs with a blank and demonstrations, targets, and options."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from plm_jax.config import build
from plm_jax.core.types import Vocab
from plm_jax.data.corpora.records import Records
from plm_jax.data.rows import written
from plm_jax.data.rows.demonstrations import Sampler
from plm_jax.data.rows.written import MARK, Form, Written, WrittenRows

_CHUNK = 1_000  # rows per call of the tokenizer
Ids = list[int]


class Frame(NamedTuple):
  """Special tokens around a text: the ids before and after it."""

  before: tuple[int, ...]
  after: tuple[int, ...]

  @property
  def size(self) -> int:
    """Count the special tokens."""
    return len(self.before) + len(self.after)

  def around(self, ids: Sequence[int], *, room: int) -> Ids:
    """Add the special tokens; cut the ids to `room` in total."""
    return [*self.before, *ids[: room - self.size], *self.after]


class Writer(NamedTuple):
  """Settings of the conversion of rows to tokens."""

  form: Form  # text format of a row
  vocab: Vocab  # vocabulary of targets and options
  input_vocab: Vocab  # vocabulary of inputs
  inputs: Frame  # special tokens around inputs
  answers: Frame  # special tokens around targets and options
  blank: int | None  # id in a blank; None if the vocabulary of inputs has no such token
  gap: str  # text before a target or an option
  length: int  # tokens of inputs
  target_length: int  # tokens of a target or an option
  sampler: Sampler | None  # sampler of demonstrations; None for none


class Ragged(NamedTuple):
  """Texts as token ids: text i is `ids[offsets[i]:offsets[i+1]]`."""

  ids: np.ndarray  # uint16 or uint32 [n]
  offsets: np.ndarray  # int64[texts+1]

  def padded(self, chosen: np.ndarray, width: int, *, pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and segments, int32[..., width], of texts int64[...], none longer."""
    sizes = np.diff(self.offsets)[chosen]
    index = np.arange(width)
    real = index < sizes[..., None]
    source = np.where(real, self.offsets[:-1][chosen][..., None] + index, 0)
    ids = self.ids.take(source) if len(self.ids) else np.zeros(source.shape, np.int32)
    return np.where(real, ids, pad).astype(np.int32), real.astype(np.int32)


def frame(layout: str, vocab: Vocab, *, room: int, keyword: str) -> Frame:
  """Return a layout's special tokens around one field.

  Raises ValueError if the layout does not exist, or there is no room for a token of text.
  """
  files = build.files_of('data.rows.layouts')
  if layout not in files:
    raise ValueError(f'layout={layout!r} does not exist: choose one of {", ".join(files)}')
  ((before, after),) = files[layout].make(vocab=vocab, fields=1).frames
  special = Frame(before=before, after=after)
  if room <= special.size:
    raise ValueError(f'{keyword}={room} is too short for layout={layout!r}, which has {special.size} special tokens')
  return special


def writer(
  form: Form,
  *,
  input_vocab: Vocab,
  vocab: Vocab,
  layout: str,
  target_layout: str,
  blank: str | None,
  gap: str,
  length: int,
  target_length: int,
) -> Writer:
  """Build a writer without demonstrations from the names in a config."""
  return Writer(
    form=form,
    vocab=vocab,
    input_vocab=input_vocab,
    inputs=frame(layout, input_vocab, room=length, keyword='length'),
    answers=frame(target_layout, vocab, room=target_length, keyword='target_length'),
    blank=input_vocab.mask_id if blank is None else input_vocab.id(blank),
    gap=gap,
    length=length,
    target_length=target_length,
    sampler=None,
  )


class Tokenised(NamedTuple):
  """Written rows as ids."""

  inputs: Ragged  # inputs of all rows, for each sample of demonstrations
  targets: Ragged  # targets of the rows
  options: Ragged  # options of the rows, the same number for each
  leads: np.ndarray  # int32[options], number of first tokens of each option that are not scored
  characters: np.ndarray  # int32[options], number of characters of each option that are scored
  cut: int  # number of rows that are too long


def tokenised(records: Records, rows: WrittenRows, writer: Writer, *, draws: int) -> Tokenised:
  """Tokenise all rows, once for each sample of demonstrations."""
  dtype = np.uint16 if max(writer.vocab.size, writer.input_vocab.size) <= 2**16 else np.uint32
  inputs, targets, options = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
  compared: list[tuple[int, int]] = []
  cut = 0

  def compact(rows: Sequence[Ids]) -> list[np.ndarray]:
    return [np.array(ids, dtype) for ids in rows]

  for draw in range(draws):
    for start in range(0, len(rows.row_ids), _CHUNK):
      places = slice(start, start + _CHUNK)
      texts = [(int(index), written.again(records, int(index), writer.form)) for index in rows.row_ids[places]]
      read, shorter = read_ids(records, texts, writer, draw=draw)
      inputs += compact(read)
      if draw == 0:
        answers, shorter_answers = answer_ids(texts, rows.answers[places], rows.options, writer)
        targets += compact([each[0] for each in answers])
        options += compact([ids for each in answers for ids in each[1:]])
        compared += compared_of(texts, rows.options, writer)
        shorter = shorter | shorter_answers
      cut += int(shorter.sum())
  leads, characters = np.array(compared, np.int32).reshape(-1, 2).T
  return Tokenised(ragged(inputs), ragged(targets), ragged(options), leads, characters, cut)


def ragged(rows: Sequence[np.ndarray]) -> Ragged:
  """Concatenate the ids of texts."""
  sizes = np.fromiter(map(len, rows), np.int64, len(rows))
  return Ragged(np.concatenate(rows) if rows else np.zeros(0, np.uint16), np.concatenate([[0], np.cumsum(sizes)]))


def read_ids(
  records: Records, texts: Sequence[tuple[int, Written]], writer: Writer, *, draw: int
) -> tuple[list[Ids], np.ndarray]:
  """Tokenise the inputs of rows, with their special tokens.

  Returns the ids, and which rows were too long, bool[rows].
  """
  before = [writer.sampler.sample(index, draw) if writer.sampler else [] for index, _ in texts]
  parts = [parts_of(text.inputs, lead, writer) for (_, text), lead in zip(texts, before, strict=True)]
  flat = writer.input_vocab.encode_batch([part for row in parts for part in row])
  rows, cut, first = [], np.zeros(len(texts), bool), 0
  for position, row in enumerate(parts):
    ids = joined(flat[first : first + len(row)], writer)
    first += len(row)
    if len(ids) > writer.length - writer.inputs.size:
      cut[position] = True
      ids = fitted(records, texts[position], before[position], writer)
    rows.append([*writer.inputs.before, *ids, *writer.inputs.after])
  return rows, cut


def parts_of(inputs: str, before: Sequence[str], writer: Writer) -> list[str]:
  """Split the inputs, with their demonstrations, at the blank.

  Spaces before a blank are removed. They belong to the word that fills the blank in vocabularies that mark spaces;
  otherwise they would be a separate token.
  """
  *texts, last = (writer.sampler.join(before, inputs) if writer.sampler else inputs).split(MARK)
  return [*(text.rstrip(' ') for text in texts), last]


def joined(parts: Sequence[Sequence[int]], writer: Writer) -> Ids:
  """Join ids around a blank with its token, or raise ValueError."""
  first, *rest = parts
  if not rest:
    return list(first)
  if writer.blank is None:
    raise ValueError(
      'the inputs have a blank, but the vocabulary has no mask token: set data.blank to one of its tokens'
    )
  return [*first, *(token for part in rest for token in [writer.blank, *part])]


def fitted(records: Records, text: tuple[int, Written], before: list[str], writer: Writer) -> Ids:
  """Cut inputs that are too long, without special tokens.

  See the module docstring of `text_to_text`. Raises ValueError if the text around the fields alone is too long.
  """
  index, first = text
  room, form, vocab = writer.length - writer.inputs.size, writer.form, writer.input_vocab
  row: written.Row = records[index]
  inputs = first.inputs
  while True:
    ids = joined([vocab.encode(part) for part in parts_of(inputs, before, writer)], writer)
    excess = len(ids) - room
    if excess <= 0:
      return ids
    if before and writer.sampler:
      before = writer.sampler.without_first(before)
    elif MARK not in inputs and form.keep != 'fields':
      return ids[:room] if form.keep == 'start' else ids[-room:]
    else:
      try:
        row = written.shortened(row, form.fields, excess=excess, tokens=lambda text: len(vocab.encode(text)))
      except ValueError as error:
        raise ValueError(f'row {index} of {records.where} does not fit length={writer.length}: {error}') from error
      again = form.write(row)
      assert again is not None
      inputs = again.inputs


def answer_ids(
  texts: Sequence[tuple[int, Written]], answers: np.ndarray, options: int, writer: Writer
) -> tuple[list[list[Ids]], np.ndarray]:
  """Tokenise the target and the options of each row.

  A row without a right answer (-1 in `answers` int64[rows]) has no target, not even special tokens. Rows with fewer
  than `options` options have empty ones. Returns for each row the ids of its target and of its options, and which rows
  were too long, bool[rows].
  """
  rows = [
    [text.targets[answer] if answer >= 0 else '', *text.options]
    for (_, text), answer in zip(texts, answers.tolist(), strict=True)
  ]
  flat = encode_after_gap(writer.gap, [text for row in rows for text in row], vocab=writer.vocab)
  row_ids, cut, first = [], np.zeros(len(texts), bool), 0
  for position, row in enumerate(rows):
    each = flat[first : first + len(row)]
    first += len(row)
    cut[position] = max(map(len, each)) > writer.target_length - writer.answers.size
    target, *others = [writer.answers.around(ids, room=writer.target_length) for ids in each]
    row_ids.append([target if answers[position] >= 0 else [], *others] + [[]] * (1 + options - len(row)))
  return row_ids, cut


def encode_after_gap(gap: str, texts: Sequence[str], *, vocab: Vocab) -> list[Ids]:
  """Tokenise each text after a gap, as within a longer text.

  An empty text has no ids. A vocabulary that puts a space before any input (LLaMA's) would have two spaces instead of
  one, the first as a separate token.
  """
  # gap ' ', text b   ->   _ _b alone, but _a _b after an a: _b
  spelt = [f'{gap}{text}' if text else '' for text in texts]
  if not gap[:1].isspace() or vocab.encode(f'a{gap}a') == [*vocab.encode('a'), *vocab.encode(f'{gap}a')]:
    return vocab.encode_batch(spelt)
  first = len(vocab.encode('a'))
  return [ids[first:] for ids in vocab.encode_batch([f'a{text}' if text else '' for text in spelt])]


def compared_of(texts: Sequence[tuple[int, Written]], options: int, writer: Writer) -> list[tuple[int, int]]:
  """Count unscored first tokens and scored characters of each option.

  Each row has `options` options; a missing one counts (0, 0).
  """
  counts: list[tuple[int, int]] = []
  for _, text in texts:
    leads = text.leads or ('',) * len(text.options)
    ids = encode_after_gap(writer.gap, leads, vocab=writer.vocab)
    tokens = [len(lead_ids) + len(writer.answers.before) * bool(lead_ids) for lead_ids in ids]
    sizes = [len(option) - len(lead) for option, lead in zip(text.options, leads, strict=True)]
    counts += [*zip(tokens, sizes, strict=True), *[(0, 0)] * (options - len(text.options))]
  return counts
