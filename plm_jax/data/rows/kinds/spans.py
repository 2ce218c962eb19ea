"""A question and a text with its answer: the fields of SQuAD (Rajpurkar et al. 2016, 2018).

A row of the data has `question`, `context` and `answers`: the answer texts and the characters of the context where they
begin, as {'text': [...], 'answer_start': [...]} or as a list of {'text', 'answer_start'}, both also as text in a cell,
or in two fields, an answer and `answer_start`. No answers mean that the context does not answer the question (SQuAD 2),
as do a true `is_impossible` and an `answer_start` of -1. A row with neither answers nor one of these has no label.

A context that is too long is read in windows (`rows/question_windows.py`). Each window is an example; the windows of a
question form a group (`Source.group`).
"""

import logging
from typing import Any, NamedTuple

import numpy as np

from plm_jax.data.corpora import cells
from plm_jax.data.corpora.records import Records, as_written
from plm_jax.data.rows import examples
from plm_jax.data.rows.checked import BadRows
from plm_jax.data.rows.field_texts import ListedTexts, named
from plm_jax.data.rows.mistakes import Mistakes

log = logging.getLogger(__name__)

GIVES = ('start', 'end', 'context')
WINDOWS = True  # a long text is read in several examples
# settings of a smoke test (`file.py:quick`)
QUICK = dict(path='pydocs/describe', fields=('question', 'context'), label='answers', stride=24, question_length=24)

_FIELDS = ('question', 'context')
_LABEL = 'answers'
_TRUE = ('true', '1', '1.0', 'yes')  # written in is_impossible


class Answers(NamedTuple):
  """Answers to a question; both tuples are empty for an unanswerable question."""

  texts: tuple[str, ...]  # the answers
  starts: tuple[int, ...]  # first character of each in the context


class Question(NamedTuple):
  """The texts of the fields of a row, and its answers; None without labels."""

  texts: tuple[str, ...]
  answers: Answers | None
  unanswerable: bool = False  # by another field than that of the answers


def make(*, records: Records, asked: examples.ExampleSettings) -> examples.Examples:
  """Read answered questions; the first answer's characters are the label."""
  fields = asked.fields or _FIELDS
  unset = asked.label == examples.ExampleSettings().label and asked.label not in records.fields
  label = _LABEL if unset else asked.label
  needed = (*fields, *(() if asked.keep_unlabelled else (label,)))
  missing = [name for name in needed if name not in records.fields and not examples.is_somewhere(name, records)]
  if len(fields) != 2 or missing:
    what = f'no field {missing[0]!r}' if len(fields) == 2 else f'fields={fields}'
    raise ValueError(
      f"{records.where}: {what}. kind='spans' takes two fields, the question and the text with the answer, and the "
      f'answers as data.label; choose from {", ".join(records.fields)}.'
    )
  if asked.per_class is not None or any(asked.prefixes):
    raise ValueError(
      f"{records.where}: kind='spans' takes no per_class={asked.per_class} and no prefixes={asked.prefixes}: "
      'remove them.'
    )
  side = [name.lower() for name in fields].index('context') if named('context', fields) else 1
  bad = BadRows(records, asked.on_bad_row, every=asked.keep_unlabelled)
  good = bad.read(lambda index: _read(records, index, fields, label=label, side=side))
  left_out, mistakes = bad.report(), Mistakes(records.where)
  for question in good.values:
    mistakes.see(dict(zip(fields, question.texts, strict=True)))
  mistakes.tell(label)
  rows = [pair for pair in zip(*good, strict=True) if asked.keep_unlabelled or pair[1].answers is not None]
  if not rows:
    raise ValueError(
      f'{records.where}: none of {len(records)} rows has {label!r}. keep_unlabelled=True keeps them for prediction.'
    )
  if dropped := len(good.rows) - len(rows):
    fix = 'if their text does not answer the question, add a field is_impossible that is true in them'
    log.warning(f'{records.where}: {dropped} of {len(good.rows)} rows have no {label!r} and are dropped: {fix}')
  row_ids, questions = [index for index, _ in rows], [question for _, question in rows]
  text_ids: dict[str, int] = {}
  shared = [[text_ids.setdefault(text, len(text_ids)) for text in question.texts] for question in questions]
  answers = [question.answers for question in questions]
  changed = ['unanswerable'] * any(question.unanswerable for question in questions)
  digest = examples.digest_of(records, asked._replace(label=label), fields, 'spans', *changed, left_out=left_out)

  def record(row: int) -> dict[str, Any]:
    texts = None if (answer := answers[row]) is None else list(answer.texts)
    return {'row': records[row_ids[row]], 'context': questions[row].texts[side], 'answers': texts}

  return examples.Examples(
    texts=ListedTexts(text_ids, digest),
    edges=np.zeros(0, np.int64),
    row_ids=np.array(row_ids),
    fields=fields,
    add=lambda offsets, place: lambda chosen, width: {},
    shared=np.array(shared).ravel(),
    record=lambda offsets: record,
    unlabelled=None in answers,
    windows=examples.Windows(field=side, answers=np.array([_first(answer) for answer in answers])),
  )


def _read(records: Records, index: int, fields: tuple[str, ...], *, label: str, side: int) -> Question:
  """Read texts and answers of a row; raise ValueError if any misfits."""
  row = records[index]
  for name in fields:
    if not isinstance(as_written(row.get(name)), str):
      records.text(index, name)  # raises with the reason
  texts = tuple(as_written(row[name]) for name in fields)
  answers, start = row.get(label), named('answer_start', tuple(row))
  none = str(as_written(row.get('is_impossible'))).lower() in _TRUE
  if unanswerable := answers in (None, '') and (none or (start is not None and row[start] == -1)):
    answers = {'text': [], 'answer_start': []}
  if start not in (None, label) and not isinstance(answers, dict):  # two columns of a table
    answers = _paired(answers, row[start])
  where = f'row {index} of {records.where}'
  found = _answers(answers, texts[side], label, where=where)
  if none and found is not None and found.texts:
    raise ValueError(f'{where}: is_impossible is true, but {label!r} has the answer {found.texts[0]!r}: remove one')
  return Question(texts, found, unanswerable)


def _paired(answers: Any, starts: Any) -> Any:
  lists = [cells.parse(value) if isinstance(value, str) else value for value in (answers, starts)]
  if not isinstance(lists[0], list) and not isinstance(lists[1], list) and answers not in (None, ''):
    lists = [[as_written(answers)], [starts]]
  text, start = lists
  return {'text': text, 'answer_start': start} if isinstance(start, list) else answers


def _answers(value: Any, text: str, label: str, *, where: str) -> Answers | None:
  """Parse a row's answers; None without labels, ValueError for wrong ones."""
  if value in (None, ''):
    return None
  if isinstance(value, str):  # a cell of a table
    value = cells.parse(value) or value
  if isinstance(value, list) and all(isinstance(answer, dict) for answer in value):
    value = {key: [answer.get(key) for answer in value] for key in ('text', 'answer_start')}
  texts, starts = (value.get(key) for key in ('text', 'answer_start')) if isinstance(value, dict) else (None, None)
  if not (
    isinstance(texts, list)
    and isinstance(starts, list)
    and len(texts) == len(starts)
    and all(isinstance(text, str) for text in texts)
    and all(isinstance(start, int) and not isinstance(start, bool) for start in starts)
  ):
    raise ValueError(
      f"{where}: {label!r} holds {value!r}; answers are {{'text': [...], 'answer_start': [...]}}, a text and its first "
      'character each, or a text and its first character in a field answer_start'
    )
  for answer, start in zip(texts, starts, strict=True):
    actual = text[start : start + len(answer)] if start >= 0 else ''
    if actual != answer or not answer:
      raise ValueError(f'{where}: the answer {answer!r} is not at character {start} of its text; {actual!r} is there')
  return Answers(tuple(texts), tuple(starts))


def _first(answers: Answers | None) -> tuple[int, int]:
  """Return characters [start, end) of the first answer, else (-1, -1)."""
  if answers is None or not answers.texts:
    return -1, -1
  return answers.starts[0], answers.starts[0] + len(answers.texts[0])
