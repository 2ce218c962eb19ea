"""Rows as text, tokenised: inputs with a blank and demonstrations, and the texts to write or to choose from."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from plm_jax.config import build
from plm_jax.core.types import Vocab
from plm_jax.data.corpora.records import Records
from plm_jax.data.rows import written
from plm_jax.data.rows.demonstrations import Drawer
from plm_jax.data.rows.written import MARK, Form, Kept, Written

_CHUNK = 1_000  # rows that are tokenised together
Ids = list[int]


class Frame(NamedTuple):
  """Special tokens around a text: the ids before and after it."""

  before: tuple[int, ...]
  after: tuple[int, ...]

  @property
  def size(self) -> int:
    """Tokens that it takes."""
    return len(self.before) + len(self.after)

  def around(self, ids: Sequence[int], *, room: int) -> Ids:
    """The ids in it, cut at their end so that the whole has at most `room` tokens."""
    return [*self.before, *ids[: room - self.size], *self.after]


class Writer(NamedTuple):
  """What turns rows into tokens.

  Attributes:
    form: how a row is written.
    vocab: gives ids of targets and options.
    input_vocab: gives those of inputs.
    inputs: special tokens around inputs.
    answers: those around targets and options.
    blank: what stands in a blank; None where the vocabulary of inputs has no such token.
    gap: what stands before a target or an option.
    length: tokens of inputs.
    target_length: tokens of a target or an option.
    drawer: of demonstrations; None where there are none.
  """

  form: Form
  vocab: Vocab
  input_vocab: Vocab
  inputs: Frame
  answers: Frame
  blank: int | None
  gap: str
  length: int
  target_length: int
  drawer: Drawer | None


class Ragged(NamedTuple):
  """Texts as token ids: text i is `ids[offsets[i]:offsets[i+1]]`, ids uint16 or uint32 [n], offsets int64[texts+1]."""

  ids: np.ndarray
  offsets: np.ndarray

  def padded(self, chosen: np.ndarray, width: int, *, pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and segments int32[..., width] of some texts int64[...], none of them longer."""
    sizes = np.diff(self.offsets)[chosen]
    place = np.arange(width)
    real = place < sizes[..., None]
    source = np.where(real, self.offsets[:-1][chosen][..., None] + place, 0)
    ids = self.ids.take(source) if len(self.ids) else np.zeros(source.shape, np.int32)
    return np.where(real, ids, pad).astype(np.int32), real.astype(np.int32)


def frame(layout: str, vocab: Vocab, *, room: int, keyword: str) -> Frame:
  """The special tokens that a layout has around one field.

  Raises:
    ValueError: no such layout, or no room for a token of text.
  """
  files = build.files_of('data.rows.layouts')
  if layout not in files:
    raise ValueError(f'layout={layout!r} is unknown: choose one of {", ".join(files)}')
  found = Frame(*files[layout].make(vocab=vocab, fields=1).frames[0])
  if room <= found.size:
    raise ValueError(f'{keyword}={room} is too short for layout={layout!r}, which has {found.size} special tokens')
  return found


class Tokenised(NamedTuple):
  """Rows as ids.

  Attributes:
    inputs: of all rows of all draws.
    targets: of the rows of one draw.
    options: likewise, as many for each row.
    leads: int32[options], first tokens of each option that are not compared.
    characters: int32[options], those of each option that are.
    cut: number of rows that are too long.
  """

  inputs: Ragged
  targets: Ragged
  options: Ragged
  leads: np.ndarray
  characters: np.ndarray
  cut: int


def tokenised(records: Records, kept: Kept, writer: Writer, *, draws: int) -> Tokenised:
  """All rows of all draws as ids."""
  dtype = np.uint16 if max(writer.vocab.size, writer.input_vocab.size) <= 2**16 else np.uint32
  inputs: list[np.ndarray] = []
  targets: list[np.ndarray] = []
  options: list[np.ndarray] = []
  compared: list[tuple[int, int]] = []
  cut = 0

  def compact(rows: Sequence[Ids]) -> list[np.ndarray]:
    return [np.array(ids, dtype) for ids in rows]

  for draw in range(draws):
    for places in _chunks(len(kept.row_ids)):
      texts = [(int(index), written.again(records, int(index), writer.form)) for index in kept.row_ids[places]]
      read, shorter = read_ids(records, texts, writer, draw=draw)
      inputs += compact(read)
      if draw == 0:
        answers, shorter_answers = answer_ids(texts, kept.answers[places], kept.options, writer)
        targets += compact([each[0] for each in answers])
        options += compact([ids for each in answers for ids in each[1:]])
        compared += compared_of(texts, kept.options, writer)
        shorter = shorter | shorter_answers
      cut += int(shorter.sum())
  leads, characters = np.array(compared, np.int32).reshape(-1, 2).T
  return Tokenised(ragged(inputs), ragged(targets), ragged(options), leads, characters, cut)


def _chunks(count: int) -> Iterator[slice]:
  return (slice(start, min(start + _CHUNK, count)) for start in range(0, count, _CHUNK))


def ragged(rows: Sequence[np.ndarray]) -> Ragged:
  """Ids of texts end to end."""
  sizes = np.fromiter(map(len, rows), np.int64, len(rows))
  return Ragged(np.concatenate(rows) if rows else np.zeros(0, np.uint16), np.concatenate([[0], np.cumsum(sizes)]))


def read_ids(
  records: Records, texts: Sequence[tuple[int, Written]], writer: Writer, *, draw: int
) -> tuple[list[Ids], np.ndarray]:
  """The inputs of some rows with their special tokens, and which of them bool[rows] were too long."""
  before = [writer.drawer.draw(index, draw) if writer.drawer else [] for index, _ in texts]
  parts = [parts_of(text.inputs, lead, writer) for (_, text), lead in zip(texts, before, strict=True)]
  flat = writer.input_vocab.encode_batch([part for row in parts for part in row])
  found, cut, first = [], np.zeros(len(texts), bool), 0
  for number, row in enumerate(parts):
    ids = joined(flat[first : first + len(row)], writer)
    first += len(row)
    if len(ids) > writer.length - writer.inputs.size:
      cut[number] = True
      ids = fitted(records, texts[number], before[number], writer)
    found.append([*writer.inputs.before, *ids, *writer.inputs.after])
  return found, cut


def parts_of(inputs: str, before: Sequence[str], writer: Writer) -> list[str]:
  """The texts around the blank of the inputs, one text where there is none, with demonstrations before them.

  A blank takes the spaces before it along, as the word that it stands for does in vocabularies that mark them: there,
  they would be a token of their own.
  """
  *texts, last = (writer.drawer.join(before, inputs) if writer.drawer else inputs).split(MARK)
  return [*(text.rstrip(' ') for text in texts), last]


def joined(parts: Sequence[Sequence[int]], writer: Writer) -> Ids:
  """Ids of the texts around a blank with the blank's token between them.

  Raises:
    ValueError: there is a blank and no token for it.
  """
  first, *rest = parts
  if not rest:
    return list(first)
  if writer.blank is None:
    raise ValueError('the inputs have a blank, and this vocabulary has no mask token: name a token (data.blank)')
  return [*first, *(token for part in rest for token in [writer.blank, *part])]


def fitted(records: Records, text: tuple[int, Written], before: list[str], writer: Writer) -> Ids:
  """The inputs of a row that is too long, without its special tokens, cut as the head of this file says.

  Raises:
    ValueError: what stands around the fields is too long.
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
    if before and writer.drawer:
      before = writer.drawer.without_first(before)
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
  """Of each row the ids of its target and of its options, filled up with empty ones, and which were too long.

  A row without a right answer has no target, not even the special tokens around one.

  Args:
    texts: rows of the split by their places.
    answers: int64[rows], which of the right answers is the target; -1 where none is known.
    options: the most of any row.
    writer: gives ids.
  """
  wanted = [
    [text.targets[answer] if answer >= 0 else '', *text.options]
    for (_, text), answer in zip(texts, answers.tolist(), strict=True)
  ]
  flat = behind(writer.gap, [text for row in wanted for text in row], vocab=writer.vocab)
  found, cut, first = [], np.zeros(len(texts), bool), 0
  for number, row in enumerate(wanted):
    each = flat[first : first + len(row)]
    first += len(row)
    cut[number] = max(map(len, each)) > writer.target_length - writer.answers.size
    target, *others = [writer.answers.around(one, room=writer.target_length) for one in each]
    found.append([target if answers[number] >= 0 else [], *others] + [[]] * (1 + options - len(row)))
  return found, cut


def behind(gap: str, texts: Sequence[str], *, vocab: Vocab) -> list[Ids]:
  """The ids of each text with a gap before it, as they are within a longer text; none for an empty one.

  A vocabulary that sets a space before whatever it reads (LLaMA's) would have two spaces in place of that of the gap,
  one of them a token of its own.
  """
  # gap ' ', text b   ->   _ _b alone, and _a _b behind an a: _b
  spelt = [f'{gap}{text}' if text else '' for text in texts]
  if not gap[:1].isspace() or vocab.encode(f'a{gap}a') == [*vocab.encode('a'), *vocab.encode(f'{gap}a')]:
    return vocab.encode_batch(spelt)
  first = len(vocab.encode('a'))
  return [ids[first:] for ids in vocab.encode_batch([f'a{text}' if text else '' for text in spelt])]


def compared_of(texts: Sequence[tuple[int, Written]], options: int, writer: Writer) -> list[tuple[int, int]]:
  """Of each option of some rows its first tokens that are not compared and its characters that are, (0, 0) for none.

  Args:
    texts: rows of the split by their places.
    options: the most of any row.
    writer: gives ids.
  """
  found: list[tuple[int, int]] = []
  for _, text in texts:
    leads = text.leads or ('',) * len(text.options)
    ids = behind(writer.gap, leads, vocab=writer.vocab)
    tokens = [len(one) + len(writer.answers.before) * bool(one) for one in ids]
    sizes = [len(option) - len(lead) for option, lead in zip(text.options, leads, strict=True)]
    found += [*zip(tokens, sizes, strict=True), *[(0, 0)] * (options - len(text.options))]
  return found
