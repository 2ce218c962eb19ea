"""Rows of a question and a text that is too long for them: the text is read in windows that overlap.

As in the released code of BERT (run_squad.py; Devlin et al. 2019, §4.2): a window begins `stride` tokens behind the one
before it, and the last ends with the text. A token that several windows show belongs to the one that shows most around
it: its maximum context is the largest min(tokens before it, tokens behind it) + 0.01 tokens of the window.

    text a b c d e f g, room for 4 tokens, stride 2
    windows   a b c d | c d e f | e f g
    maximum   a b c     d e       f g     (c: 1.04 in the first, 0.04 in the second)
"""

import logging
from typing import Any, NamedTuple

import numpy as np

from plm_jax.core.types import Vocab
from plm_jax.data.rows import packing, spelling, store
from plm_jax.data.rows.examples import Examples
from plm_jax.data.rows.laid import Laid
from plm_jax.data.rows.order import Batch

log = logging.getLogger(__name__)

STRIDE, QUESTION_LENGTH = 128, 64  # of BERT's released code
# what stands in `context` of a batch
ELSEWHERE, SHOWN, MAXIMUM, NO_ANSWER = range(4)


class Texts(NamedTuple):
  """The text of each question, as tokens.

  Attributes:
    starts: int64[rows], where its tokens begin among all.
    sizes: int64[rows], tokens.
    room: int64[rows], tokens of it that fit into a row.
    step: int64[rows], tokens from the beginning of one window to that of the next.
  """

  starts: np.ndarray
  sizes: np.ndarray
  room: np.ndarray
  step: np.ndarray


class Windows(NamedTuple):
  """All windows, int64[windows] each.

  Attributes:
    row: the question.
    number: among the windows of the question.
    start: its first token in the text.
    size: its tokens.
    first: place in the row of its first token.
    no_answer: place in the row of the token that stands for no answer.
  """

  row: np.ndarray
  number: np.ndarray
  start: np.ndarray
  size: np.ndarray
  first: np.ndarray
  no_answer: np.ndarray


def lay_out(
  given: Examples,
  layout: Any,
  *,
  vocab: Vocab,
  length: int,
  stride: int | None,
  question_length: int | None,
  characters: bool = False,
) -> tuple[Examples, Laid]:
  """Tokenises questions and texts and cuts the texts into windows.

  Args:
    given: the questions, with `windows`.
    layout: a file of `layouts/`.
    vocab: gives ids, with the characters of each, and special tokens.
    length: tokens of the longest row.
    stride: tokens from the beginning of one window to that of the next; None is `STRIDE`.
    question_length: tokens of the longest question, what is longer loses its end; None is `QUESTION_LENGTH`.
    characters: rows have the characters of their words.

  Returns:
    the windows as rows, and how they are laid out.

  Raises:
    ValueError: rows that are too short for a question and a token of the text.
  """
  stride, question_length = stride or STRIDE, question_length or QUESTION_LENGTH
  style = layout.make(vocab=vocab, fields=2)
  specials = sum(len(before) + len(after) for before, after in style.frames)
  if length - specials - question_length < 1:
    raise ValueError(
      f'length={length} leaves no room for the text beside {specials} special tokens and question_length='
      f'{question_length}: raise data.length, or lower data.question_length.'
    )
  assert given.windows is not None and given.shared is not None
  tokens, spans = store.with_characters(given.texts, vocab=vocab)
  side = given.windows.field
  asked, read = given.shared.reshape(-1, 2)[:, 1 - side], given.shared.reshape(-1, 2)[:, side]
  sizes = np.diff(tokens.offsets)
  question = np.minimum(sizes[asked], question_length)
  room = length - specials - question
  texts = Texts(tokens.offsets[read], sizes[read], room, np.minimum(stride, room))
  windows = _windows(texts, question, style, side=side)
  starts, counts = (np.zeros((len(windows.row), 2), np.int64) for _ in range(2))
  starts[:, 1 - side], starts[:, side] = tokens.offsets[asked[windows.row]], texts.starts[windows.row] + windows.start
  counts[:, 1 - side], counts[:, side] = question[windows.row], windows.size
  frame = np.tile(np.arange(2, dtype=np.uint8), len(windows.row))
  laid = Laid(
    tokens=tokens._replace(digest=store.digest_of(tokens.digest, stride, question_length, side)),
    plans={'': packing.Plan(starts.ravel(), counts.ravel(), frame, 2 * np.arange(len(windows.row) + 1))},
    frames=style.frames,
    sequences=1,
    sizes=counts.sum(axis=1) + specials,
    cut=int((question < sizes[asked]).sum()),
    typed=style.typed,
    last_type=style.last_type,
    pad_id=vocab.pad_id,
    apart=style.apart,
    spelt=spelling.spell(tokens, given.texts, vocab=vocab) if characters else None,
  )
  return _as_rows(given, texts, windows, spans), laid


def _windows(texts: Texts, question: np.ndarray, style: Any, *, side: int) -> Windows:
  """The windows of all texts.

  Args:
    texts: to be cut.
    question: int64[rows], tokens of each question.
    style: the layout of two fields.
    side: the field that is the text.
  """
  each = 1 + -(-np.maximum(texts.sizes - texts.room, 0) // texts.step)  # [rows]
  row = np.repeat(np.arange(len(each)), each)
  index = np.arange(len(row)) - np.repeat(np.cumsum(each) - each, each)
  start = index * texts.step[row]
  count = np.minimum(texts.room[row], texts.sizes[row] - start)
  (before, after), (before_second, _) = style.frames
  first = len(before) + side * (question[row] + len(after) + len(before_second))
  specials = sum(len(ids) for frame in style.frames for ids in frame)
  no_answer = question[row] + count + specials - 1 if style.stands_last else np.zeros_like(count)
  return Windows(row, index, start, count, first, no_answer)


def _as_rows(given: Examples, texts: Texts, windows: Windows, characters: np.ndarray) -> Examples:
  """The windows in place of the questions.

  Args:
    given: the questions.
    texts: that were cut.
    windows: of them.
    characters: int32[tokens, 2], the characters [start, end) that each token of all texts covers.
  """
  assert given.windows is not None and given.record is not None
  first, last = _answers(given.windows.answers, texts, characters)
  own_first, own_last = first[windows.row] - windows.start, last[windows.row] - windows.start
  shown = (own_first >= 0) & (own_last < windows.size) & (first[windows.row] >= 0)
  start, end = (np.where(shown, windows.first + own, windows.no_answer) for own in (own_first, own_last))
  record_of_question = given.record(np.zeros(0, np.int64))

  def add(chosen: np.ndarray, width: int) -> Batch:
    return {
      'start': start[chosen].astype(np.int32),
      'end': end[chosen].astype(np.int32),
      'context': _context(texts, Windows(*(values[chosen] for values in windows)), width),
    }

  def record(window: int) -> dict[str, Any]:
    row = int(windows.row[window])
    begin = int(texts.starts[row] + windows.start[window])
    own = characters[begin : begin + int(windows.size[window])]
    return {**record_of_question(row), 'characters': own, 'first': int(windows.first[window])}

  return given._replace(
    row_ids=np.arange(len(windows.row)),
    add=lambda offsets, place: add,
    record=lambda offsets: record,
    group=lambda window: int(windows.row[window]),
  )


def _answers(answers: np.ndarray, texts: Texts, characters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The first and the last token of each answer in its text, int64[rows] each, -1 where there is none.

  Args:
    answers: int64[rows, 2], characters [start, end), -1 for none.
    texts: as tokens.
    characters: int32[tokens, 2] of each token.
  """
  # characters of the tokens (0, 3) (3, 7) (7, 9), answer 4 to 8   ->   tokens 1 to 2, the smallest run that holds it
  found = np.full((len(answers), 2), -1, np.int64)
  lost = 0
  for row in np.flatnonzero(answers[:, 0] >= 0):
    own = characters[texts.starts[row] : texts.starts[row] + texts.sizes[row]]
    covers = np.flatnonzero((own[:, 1] > answers[row, 0]) & (own[:, 0] < answers[row, 1]))
    if len(covers):
      found[row] = covers[0], covers[-1]
    else:
      lost += 1
  if lost:
    log.warning(f'{lost} answers have no token in this vocabulary: nothing is learnt from them.')
  return found[:, 0], found[:, 1]


def _context(texts: Texts, chosen: Windows, width: int) -> np.ndarray:
  """int32[b, width] of some windows: for each place `ELSEWHERE`, `SHOWN`, `MAXIMUM` or `NO_ANSWER`."""
  step, room, size = (values[chosen.row][:, None] for values in (texts.step, texts.room, texts.sizes))
  token = np.arange(width) - chosen.first[:, None] + chosen.start[:, None]  # [b, width], in the text

  def score(index: np.ndarray) -> np.ndarray:
    """int64[b, width]: hundred times the context of each token in the windows of this number; -1 outside of them."""
    start = index * step
    count = np.minimum(room, size - start)
    exists = (index == 0) | ((index > 0) & (start - step + room < size))  # the window before does not reach the end
    inside = exists & (token >= start) & (token < start + count)
    return np.where(inside, 100 * np.minimum(token - start, start + count - 1 - token) + count, -1)

  index = chosen.number[:, None]
  own = score(index)
  most = own >= 0
  reach = int((room // step).max(initial=0)) + 1  # windows further away show none of the tokens
  for away in range(1, reach + 1):
    most &= (score(index - away) < own) & (score(index + away) <= own)
  context = np.where(most, MAXIMUM, np.where(own >= 0, SHOWN, ELSEWHERE))
  np.put_along_axis(context, chosen.no_answer[:, None], NO_ANSWER, axis=1)
  return context.astype(np.int32)
