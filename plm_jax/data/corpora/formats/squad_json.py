"""Questions on texts as SQuAD is published: one JSON object, {"data": [{"title", "paragraphs": [{"context", "qas"}]}]}.

A row is a question: `id`, `title`, `context`, `question`, `answers` {"text": [...], "answer_start": [...]} as
TensorFlow Datasets has them, and `is_impossible` where the file says it. A question without `answers`, as in files that
are to be answered, has none in the row. The whole file is held in memory.
"""

import json
from collections.abc import Sequence
from typing import Any

from plm_jax import files
from plm_jax.data.corpora import local
from plm_jax.data.corpora.records import Opened

SUFFIXES = ('.json',)
SCHEME = None


def open(path: local.File, split: str, cache: str) -> Opened:
  """The questions of a file."""
  with path.stream() as stream:
    content = stream.read(path.max_bytes + 1)
  if len(content) > path.max_bytes:
    raise ValueError(f'{path.path} has more than {path.max_bytes:,} bytes, and is read whole: raise data.max_bytes')
  try:
    whole = files.parse_json(local.decoded(content))
  except json.JSONDecodeError as error:
    raise ValueError(f'{path.path}, line {error.lineno}: not valid JSON ({error.msg})') from error
  except ValueError as error:
    raise ValueError(f'{path.path}: {error}') from error
  try:
    rows = [_row(article, text, question) for article, text, question in _questions(whole)]
  except (KeyError, TypeError, AttributeError) as error:
    raise ValueError(
      f'{path.path} is not laid out as SQuAD is ({type(error).__name__}: {error}): {{"data": [{{"paragraphs": '
      '[{"context", "qas": [{"id", "question", "answers": [{"text", "answer_start"}]}]}]}]}; other rows are .jsonl '
      'files, with one object per line'
    ) from error
  if not rows:
    raise ValueError(f'{path.path} holds no questions')
  return Opened(Questions(path, rows), f'{path.digest(cache=cache)} rows')


class Questions(Sequence[local.Row]):
  """The questions of a file."""

  def __init__(self, file: local.File, rows: list[local.Row]):
    self.file = file
    self._rows = rows

  def __len__(self) -> int:
    return len(self._rows)

  def __getitem__(self, index: int) -> local.Row:  # type: ignore[override]  # no slices
    return self._rows[index]

  def place(self, index: int) -> str:
    """File and question of a row, for messages."""
    return f'{self.file.path}, question {self._rows[index]["id"]!r}'


def _questions(whole: Any) -> list[tuple[Any, Any, Any]]:
  """Article, paragraph and question of each question."""
  return [(article, text, qa) for article in whole['data'] for text in article['paragraphs'] for qa in text['qas']]


def _row(article: Any, text: Any, question: Any) -> local.Row:
  """A question as a row."""
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
