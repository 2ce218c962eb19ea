"""Questions on texts as SQuAD is published: one JSON object, {"data": [{"title", "paragraphs": [{"context", "qas"}]}]}.

A list of objects, as pandas writes it with orient='records', is read as rows. So is one object on each line.

A row is a question: `id`, `title`, `context`, `question`, `answers` {"text": [...], "answer_start": [...]} as in
TensorFlow Datasets, and `is_impossible` if the file has it. A question without `answers`, as in test sets, has none in
the row. A question that lacks something else is a row that raises a ValueError when it is read. The whole file is held
in memory.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from plm_jax.data.corpora import local
from plm_jax.data.corpora.formats import jsonl
from plm_jax.data.corpora.records import Opened
from plm_jax.io import files

SUFFIXES = ('.json',)
SCHEME = None
_LINES = re.compile(rb'$|\s*\{(?!\s*"(data|version)"\s*:).*\}\s*$', re.S)  # an object on one line, not of SQuAD
_LAYOUT = '{"id", "question", "answers": [{"text", "answer_start"}]}'  # a question


def open(path: local.File, split: str, cache: str) -> Opened:
  """Open the questions of a file."""
  lines = path.lines()
  first, second = next(lines, b''), next(lines, b'')
  # {"text": {"0": "a"}} alone is not a row
  if _LINES.match(first) and (second.strip() or first.count(b'{') < 2):
    return jsonl.open(path, split, cache)
  with path.stream() as stream:
    content = stream.read(path.max_bytes + 1)
  if len(content) > path.max_bytes:
    raise ValueError(f'{path.path} has more than {path.max_bytes:,} bytes, the limit: raise data.max_bytes')
  try:
    whole = files.parse_json(local.decoded(content))
  except json.JSONDecodeError as error:
    raise ValueError(f'{path.path}, line {error.lineno}: not valid JSON ({error.msg})') from error
  except ValueError as error:
    raise ValueError(f'{path.path}: {error}') from error
  if isinstance(whole, list) and whole and all(isinstance(row, dict) for row in whole):
    return Opened(Questions(path, rows=whole), f'{path.digest(cache=cache)} rows')
  try:
    questions = [(doc, text, qa) for doc in whole['data'] for text in doc['paragraphs'] for qa in text['qas']]
  except (KeyError, TypeError, AttributeError) as error:
    raise ValueError(
      f'{path.path} is neither a list of objects, [{{"text": "...", "label": "..."}}, ...] (of pandas: '
      f"orient='records'), nor in the format of SQuAD ({type(error).__name__}: {error})"
    ) from error
  if not questions:
    raise ValueError(f'{path.path} holds no questions')
  return Opened(Questions(path, questions), f'{path.digest(cache=cache)} rows')


class Questions(Sequence[local.Row]):
  """The questions of a file."""

  def __init__(
    self, file: local.File, questions: Sequence[tuple[Any, Any, Any]] = (), *, rows: Sequence[local.Row] = ()
  ):
    """Take rows, or build those of questions: article, paragraph, question."""
    self.file = file
    self._rows: list[local.Row] = list(rows)
    self._bad: dict[int, str] = {}  # index of an unreadable question -> the reason
    for index, (article, text, question) in enumerate(questions):
      try:
        self._rows.append(_row(article, text, question))
      except (KeyError, TypeError, AttributeError) as error:
        self._rows.append({'id': question['id']} if isinstance(question, dict) and 'id' in question else {})
        self._bad[index] = f'not in the format of SQuAD ({type(error).__name__}: {error}): {_LAYOUT}'

  def __len__(self) -> int:
    return len(self._rows)

  def __getitem__(self, index: int) -> local.Row:  # type: ignore[override]  # no slices
    if index in self._bad:
      raise ValueError(f'{self.place(index)}: {self._bad[index]}')
    return self._rows[index]

  def place(self, index: int) -> str:
    """Return file and question (its id, else number) of a row."""
    row = self._rows[index]
    return f'{self.file.path}, question {row["id"]!r}' if 'id' in row else f'{self.file.path}, question {index + 1}'


def _row(article: Any, text: Any, question: Any) -> local.Row:
  row: local.Row = {
    'id': question['id'],
    'title': article.get('title', ''),
    'context': text['context'],
    'question': question['question'],
  }
  if 'answers' in question:
    row['answers'] = {key: [answer[key] for answer in question['answers']] for key in ('text', 'answer_start')}
  if 'is_impossible' in question:
    row['is_impossible'] = question['is_impossible']
  return row
