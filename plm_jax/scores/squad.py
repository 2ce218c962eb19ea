"""Exact match and F1 of answers, in per cent: the rule of SQuAD (Rajpurkar et al. 2016; evaluate-v1.1.py).

An answer is compared without case, punctuation, the words a, an and the, and superfluous white space. Exact match asks
for the same text, F1 is that of the words in common, and the best of several right answers counts. Numbers are those of
the official script.

An answer is a part of the context from one token to another, or a text that was written ('text'). T5 writes spaces
around punctuation: a text that is no part of the context, but would be one with other spaces there, is taken as it
stands in the context.
"""

import collections
import itertools
import json
import re
import string
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from plm_jax.scores import Group, Row, grouped

METRICS = ('exact_match', 'f1')
READS = ('start', 'end', 'score')
RECORDS = ('context', 'answers', 'characters', 'first')
INSTEAD = (('text',), ('row',))
BY_ROW = ('exact_match', 'f1')

NEVER = -1e30  # pairs that score as little are not legal (`adapters/span.py`)
_ARTICLES = re.compile(r'\b(a|an|the)\b')
_PUNCTUATION = str.maketrans('', '', string.punctuation)


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """Means over all questions; the windows of a question are joined."""
  each = [(answer_of(group), golds_of(group.records[0])) for group in grouped(predictions, records)]
  if not all(answers for _, answers in each):
    raise ValueError(
      'some questions have no answer, which this score does not know: set adapter.no_answer=True, or name the score '
      "'squad2' where answers are written"
    )
  return {
    'exact_match': 100 * mean([most(exact_match, answer, gold) for answer, gold in each]),
    'f1': 100 * mean([most(f1, answer, gold) for answer, gold in each]),
  }


def submission(predictions: Sequence[Row], records: Sequence[Row]) -> str:
  """The answer to each question by its id, as the official script reads them."""
  return as_json({id_of(group): answer_of(group) for group in grouped(predictions, records)})


def id_of(group: Group) -> str:
  """The id of a question; raises a ValueError where the data has none."""
  row = group.records[0]['row']
  if 'id' not in row:
    raise ValueError(f"answers are handed in by the 'id' of a question, and rows have {', '.join(row)}")
  return row['id']


def as_json(answers: Mapping[str, str]) -> str:
  """A JSON object in a line."""
  return json.dumps(answers, ensure_ascii=False) + '\n'


# Answers -----------------------------------------------------------------------------------------------------------


def answer_of(group: Group) -> str:
  """The answer of a question, from all its windows or as it was written."""
  prediction, record = group.predictions[0], group.records[0]
  return spelt(prediction['text'], record['row'].get('context', '')) if 'text' in prediction else best(group)[0]


def golds_of(record: Row) -> Sequence[str]:
  """The right answers of a question; raises a ValueError where the row has no field for them."""
  if 'answers' in record:
    return record['answers']
  given = record['row'].get('answers')
  if not isinstance(given, Mapping) or given.get('text') is None:
    raise ValueError(f"needs rows with 'answers' and their 'text', as SQuAD has them, got {given!r}")
  return given['text']


def spelt(text: str, context: str) -> str:
  """A text as it stands in a context, whatever spaces are around its punctuation; as it is where it does not."""
  # U . S . dollars   ->   U\s*\.\s*S\s*\.\s*dollars
  if text in context:
    return text
  words = text.split()
  gaps = [r'\s*' if {a[-1], b[0]} & {*string.punctuation} else r'\s+' for a, b in itertools.pairwise(words)]
  found = re.search(''.join(map(str.__add__, map(re.escape, words), [*gaps, ''])), context)
  return found[0] if found else text


def best(group: Group) -> tuple[str, float]:
  """The answer of a question, that of the best pair of all windows, and its score; '', `NEVER` where none is legal."""
  scores = [float(prediction['score'][0]) for prediction in group.predictions]
  window = scores.index(max(scores))
  if scores[window] <= NEVER:
    return '', NEVER
  prediction, record = group.predictions[window], group.records[window]
  return text_of(record, int(prediction['start'][0]), int(prediction['end'][0])), scores[window]


def text_of(record: Mapping[str, Any], start: int, end: int) -> str:
  """The part of the text from the token at place `start` of the row to that at `end`, white space around it left out.

  It is cut out of the text by characters: tokens that are put together again would have lost case and spaces.
  """
  begin, over = characters_of(record, start, end)
  return record['context'][begin:over]


def characters_of(record: Mapping[str, Any], start: int, end: int) -> tuple[int, int]:
  """The characters [begin, over) of `text_of`; marks belong to the letter before them, which tokens may leave out."""
  # cafe and U+0301, read as 'cafe': the token ends before the accent, and the answer behind it
  context, characters, first = record['context'], record['characters'], record['first']
  begin, over = int(characters[start - first][0]), int(characters[end - first][1])
  while over < len(context) and unicodedata.category(context[over])[0] == 'M':
    over += 1
  shown = context[begin:over]
  begin += len(shown) - len(shown.lstrip())
  return begin, begin + len(shown.strip())


# The rule ----------------------------------------------------------------------------------------------------------


def normal(text: str) -> str:
  """A text as it is compared."""
  return ' '.join(_ARTICLES.sub(' ', text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, gold: str) -> float:
  """1 where two texts are the same as they are compared, else 0."""
  return float(normal(answer) == normal(gold))


def f1(answer: str, gold: str) -> float:
  """The harmonic mean of precision and recall of the words of an answer; 0 where they have none in common."""
  found, right = normal(answer).split(), normal(gold).split()
  same = sum((collections.Counter(found) & collections.Counter(right)).values())
  return 2 * same / (len(found) + len(right)) if same else 0.0


def most(rule: Callable[[str, str], float], answer: str, golds: Sequence[str]) -> float:
  """The largest value of a rule over several right answers."""
  return max(rule(answer, gold) for gold in golds)


def mean(values: Sequence[float]) -> float:
  """Their mean; not a number where there are none."""
  return sum(values) / len(values) if values else float('nan')
