"""Examples of a question and a text that is too long: the text is read in overlapping windows.

As in the released code of BERT (run_squad.py; Devlin et al. 2019, §4.2), a window begins `stride` tokens after the one
before it, and the last ends with the text. A token in several windows belongs to the window with its maximum context:
the largest min(tokens before it, tokens after it) + 0.01 tokens of the window.

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

STRIDE, QUESTION_LENGTH = 128, 64  # as in BERT's released code
ELSEWHERE, SHOWN, MAXIMUM, NO_ANSWER = range(4)  # values of `context` in a batch


class Texts(NamedTuple):
  """The text of each question, as tokens."""

  starts: np.ndarray  # int64[rows], its first token among all
  sizes: np.ndarray  # int64[rows], its tokens
  room: np.ndarray  # int64[rows], tokens of it that fit into a sequence
  step: np.ndarray  # int64[rows], tokens from the beginning of one window to that of the next


class Windows(NamedTuple):
  """All windows, int64[windows] each."""

  row: np.ndarray  # index of the question
  number: np.ndarray  # index among the windows of the question
  start: np.ndarray  # its first token in the text
  size: np.ndarray  # its tokens
  first: np.ndarray  # position of its first token in the sequence
  no_answer: np.ndarray  # position of the token that represents no answer


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
  """Tokenise questions and texts, and cut the texts into windows.

  `layout` is a file of `layouts/`. Windows begin `stride` tokens apart (None is `STRIDE`). Questions of more than
  `question_length` tokens (None is `QUESTION_LENGTH`) lose their end. `characters` adds those of each word.

  Returns the windows as examples, and their sequences of up to `length` tokens. Raises ValueError if these are too
  short for a question and a token of the text.
  """
  stride, question_length = stride or STRIDE, question_length or QUESTION_LENGTH
  style = layout.make(vocab=vocab, fields=2)
  specials = sum(len(before) + len(after) for before, after in style.frames)
  if length - specials - question_length < 1:
    raise ValueError(
      f'length={length} leaves no room for the text after {specials} special tokens and question_length='
      f'{question_length}: raise data.length or lower data.question_length.'
    )
  # 1. Tokenise; side is the field of the text.
  assert given.windows is not None and given.shared is not None
  tokens, spans = store.with_characters(given.texts, vocab=vocab)
  side = given.windows.field
  questions, contexts = given.shared.reshape(-1, 2)[:, 1 - side], given.shared.reshape(-1, 2)[:, side]
  sizes = np.diff(tokens.offsets)
  question = np.minimum(sizes[questions], question_length)
  room = length - specials - question
  texts = Texts(tokens.offsets[contexts], sizes[contexts], room, np.minimum(stride, room))
  # 2. Cut into windows, and plan one sequence for each.
  windows = _windows(texts, question, style, side=side)
  starts, counts = (np.zeros((len(windows.row), 2), np.int64) for _ in range(2))
  starts[:, 1 - side] = tokens.offsets[questions[windows.row]]
  starts[:, side] = texts.starts[windows.row] + windows.start
  counts[:, 1 - side], counts[:, side] = question[windows.row], windows.size
  frame = np.tile(np.arange(2, dtype=np.uint8), len(windows.row))
  laid = Laid(
    tokens=tokens._replace(digest=store.digest_of(tokens.digest, stride, question_length, side)),
    plans={'': packing.Plan(starts.ravel(), counts.ravel(), frame, 2 * np.arange(len(windows.row) + 1))},
    frames=style.frames,
    sequences=1,
    sizes=counts.sum(axis=1) + specials,
    cut=int((question < sizes[questions]).sum()),
    typed=style.typed,
    last_type=style.last_type,
    pad_id=vocab.pad_id,
    length=length,
    apart=style.apart,
    spelt=spelling.spell(tokens, given.texts, vocab=vocab) if characters else None,
  )
  return _as_rows(given, texts, windows, spans), laid


def _windows(texts: Texts, question: np.ndarray, style: Any, *, side: int) -> Windows:
  each = 1 + -(-np.maximum(texts.sizes - texts.room, 0) // texts.step)  # [rows]
  row = np.repeat(np.arange(len(each)), each)
  index = np.arange(len(row)) - np.repeat(np.cumsum(each) - each, each)
  start = index * texts.step[row]
  count = np.minimum(texts.room[row], texts.sizes[row] - start)
  (before, after), (before_second, _) = style.frames
  first = len(before) + side * (question[row] + len(after) + len(before_second))
  specials = sum(len(ids) for frame in style.frames for ids in frame)
  no_answer = question[row] + count + specials - 1 if style.stands_last else np.zeros_like(count)
  return Windows(row=row, number=index, start=start, size=count, first=first, no_answer=no_answer)


def _as_rows(given: Examples, texts: Texts, windows: Windows, characters: np.ndarray) -> Examples:
  """Turn the windows into examples.

  `characters` int32[tokens, 2] are the characters [start, end) that each token of all texts covers.
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
      'context': _context(texts, Windows._make(values[chosen] for values in windows), width),
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
  """Find the first and last token of each answer, int64[rows], else -1.

  `answers` int64[rows, 2] are characters [start, end), -1 for none; `characters` int32[tokens, 2] those of each token.
  """
  # characters of the tokens (0, 3) (3, 7) (7, 9), answer 4 to 8   ->   tokens 1 to 2, the smallest run with the answer
  tokens = np.full((len(answers), 2), -1, np.int64)
  lost = 0
  for row in np.flatnonzero(answers[:, 0] >= 0):
    own = characters[texts.starts[row] : texts.starts[row] + texts.sizes[row]]
    covers = np.flatnonzero((own[:, 1] > answers[row, 0]) & (own[:, 0] < answers[row, 1]))
    if len(covers):
      tokens[row] = covers[0], covers[-1]
    else:
      lost += 1
  if lost:
    log.warning(f'{lost} answers have no token in this vocabulary and are not trained on.')
  return tokens[:, 0], tokens[:, 1]


def _context(texts: Texts, chosen: Windows, width: int) -> np.ndarray:
  """Classify positions int32[b, width]: `ELSEWHERE`, `SHOWN`, `MAXIMUM` or `NO_ANSWER`."""
  step, room, size = (values[chosen.row][:, None] for values in (texts.step, texts.room, texts.sizes))
  token = np.arange(width) - chosen.first[:, None] + chosen.start[:, None]  # [b, width], in the text

  def score(index: np.ndarray) -> np.ndarray:
    """Compute 100 times the context of tokens in windows `index`, else -1."""
    start = index * step
    count = np.minimum(room, size - start)
    exists = (index == 0) | ((index > 0) & (start - step + room < size))  # the window before ends before the text
    inside = exists & (token >= start) & (token < start + count)
    return np.where(inside, 100 * np.minimum(token - start, start + count - 1 - token) + count, -1)

  index = chosen.number[:, None]
  own = score(index)
  is_maximum = own >= 0
  reach = int((room // step).max(initial=0)) + 1  # windows further away have none of the tokens
  for away in range(1, reach + 1):
    is_maximum &= (score(index - away) < own) & (score(index + away) <= own)
  context = np.where(is_maximum, MAXIMUM, np.where(own >= 0, SHOWN, ELSEWHERE))
  np.put_along_axis(context, chosen.no_answer[:, None], NO_ANSWER, axis=1)
  return context.astype(np.int32)
