"""A question and a text that holds its answer: the fields of SQuAD (Rajpurkar et al. 2016, 2018).

A row of the data has `question`, `context` and `answers`: their texts and the characters of the context where they
begin, as {'text': [...], 'answer_start': [...]} or as a list of {'text', 'answer_start'}. No answer at all means that
the context has none (SQuAD 2). A context that is too long for a row is read in windows (`rows/question_windows.py`),
each of which is a row; those of a question belong together (`Source.group`).
"""

from typing import Any, NamedTuple

import numpy as np

from plm_jax.data.corpora.records import Records, as_written
from plm_jax.data.rows import examples
from plm_jax.data.rows.checked import BadRows

GIVES = ('start', 'end', 'context')
# of a smoke test (`file.py:quick`)
QUICK = dict(path='pydocs/describe', fields=('question', 'context'), label='answers', stride=24, question_length=24)

_FIELDS = ('question', 'context')
_LABEL = 'answers'


class Answers(NamedTuple):
  """What answers a question: texts, and the character of the context where each begins; none where it has no answer."""

  texts: tuple[str, ...]
  starts: tuple[int, ...]


class Question(NamedTuple):
  """The texts of the fields of a row, and its answers; None where the row does not say."""

  texts: tuple[str, ...]
  answers: Answers | None


def make(*, records: Records, asked: examples.ExampleSettings) -> examples.Examples:
  """Every question that has its answers, with the first of them as characters of the context."""
  fields = asked.fields or _FIELDS
  label = (
    _LABEL if asked.label == examples.ExampleSettings().label and asked.label not in records.fields else asked.label
  )
  needed = (*fields, *(() if asked.keep_unlabelled else (label,)))
  if len(fields) != 2 or (missing := [name for name in needed if name not in records.fields]):
    what = f'there is no field {missing[0]!r}' if len(fields) == 2 else f'fields={fields}'
    raise ValueError(
      f"{records.where}: kind='spans' takes a question, the text that holds the answer, and data.label, the answers; "
      f'{what}, there are {", ".join(records.fields)}.'
    )
  if asked.per_class is not None or any(asked.prefixes):
    raise ValueError(
      f"{records.where}: kind='spans' has no classes, and texts as they are: leave out per_class={asked.per_class} and "
      f'prefixes={asked.prefixes}.'
    )
  side = fields.index('context') if 'context' in fields else 1
  bad = BadRows(records, asked.on_bad_row, every=asked.keep_unlabelled)
  good = bad.read(lambda index: _read(records, index, fields, label=label, side=side))
  left_out = bad.report()
  kept = [(index, one) for index, one in zip(*good, strict=True) if asked.keep_unlabelled or one.answers is not None]
  if not kept:
    raise ValueError(
      f'{records.where}: none of {len(records)} rows has {label!r}: keep_unlabelled=True keeps them, to be answered.'
    )
  row_ids, questions = [index for index, _ in kept], [one for _, one in kept]
  numbers: dict[str, int] = {}
  shared = [[numbers.setdefault(text, len(numbers)) for text in one.texts] for one in questions]
  answers = [one.answers for one in questions]
  digest = examples.digest_of(records, asked._replace(label=label), fields, 'spans', left_out=left_out)

  def record(row: int) -> dict[str, Any]:
    found = answers[row]
    texts = None if found is None else list(found.texts)
    return {'row': records[row_ids[row]], 'context': questions[row].texts[side], 'answers': texts}

  return examples.Examples(
    texts=examples.ListedTexts(numbers, digest),
    edges=np.zeros(0, np.int64),
    row_ids=np.array(row_ids),
    fields=fields,
    add=lambda offsets, place: lambda chosen, width: {},
    shared=np.array(shared).ravel(),
    record=lambda offsets: record,
    unlabelled=None in answers,
    windows=examples.Windows(side, np.array([_first(found) for found in answers])),
  )


def _read(records: Records, index: int, fields: tuple[str, ...], *, label: str, side: int) -> Question:
  """The texts and the answers of a row.

  Raises:
    ValueError: a field is missing or holds no text, or an answer does not stand where it is said to.
  """
  row = records[index]
  for name in fields:
    if not isinstance(as_written(row.get(name)), str):
      records.text(index, name)  # says what is wrong
  texts = tuple(as_written(row[name]) for name in fields)
  return Question(texts, _answers(row.get(label), texts[side], label, where=f'row {index} of {records.where}'))


def _answers(value: Any, text: str, label: str, *, where: str) -> Answers | None:
  """What a row holds as answers to be found in a text; None where it holds nothing.

  Raises:
    ValueError: they are of another form, or do not stand where they are said to.
  """
  if value is None:
    return None
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
      f"{where}: {label!r} holds {value!r}, and answers are {{'text': [...], 'answer_start': [...]}}, a text and its "
      'first character for each'
    )
  for answer, start in zip(texts, starts, strict=True):
    there = text[start : start + len(answer)] if start >= 0 else ''
    if there != answer or not answer:
      raise ValueError(
        f'{where}: the answer {answer!r} does not stand at character {start} of its text, where {there!r} is'
      )
  return Answers(tuple(texts), tuple(starts))


def _first(answers: Answers | None) -> tuple[int, int]:
  """The characters [start, end) of the first answer, which training reads; (-1, -1) where there is none."""
  if answers is None or not answers.texts:
    return -1, -1
  return answers.starts[0], answers.starts[0] + len(answers.texts[0])
