"""Exact match and F1 of answers, in per cent: the rule of SQuAD (Rajpurkar et al. 2016; evaluate-v1.1.py).

An answer is compared without case, punctuation, the words a, an and the, and superfluous white space. Exact match
requires the same text, F1 is that of the common words, and the best of several right answers counts. Numbers are those
of the official script.

An answer is a part of the context from one token to another, or a written text ('text'). T5 writes spaces around
punctuation. A text that is no part of the context, but would be one with other spaces there, is replaced by that part.

`eval.NAME.tokenize`: 'squad' is that rule, in which words end at spaces. 'cmrc' is that of CMRC 2018's script, for
Chinese and other scripts without spaces, whose characters are words: F1 is of the longest common substring, and exact
match ignores punctuation. By default the script of the answers decides.
"""

import collections
import difflib
import itertools
import json
import re
import string
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from plm_jax.scores import Group, Row, grouped, tokens

METRICS = ('exact_match', 'f1')
READS = ('start', 'end', 'score')
RECORDS = ('context', 'answers', 'characters', 'first')
INSTEAD = (('text',), ('row',))
BY_ROW = ('exact_match', 'f1')
TOKENIZE = ('squad', 'cmrc')
_BY_SCRIPT: dict[tokens.Script, str] = {'ascii': 'squad', 'letters': 'squad', 'chinese': 'cmrc', 'characters': 'cmrc'}

NEVER = -1e30  # score of invalid pairs (`adapters/span.py`)
_ARTICLES = re.compile(r'\b(a|an|the)\b')
_PUNCTUATION = str.maketrans('', '', string.punctuation)


def chosen(records: Iterable[Row]) -> str:
  """Choose the rule by the script of the right answers."""
  return _BY_SCRIPT[tokens.script(golds_of(record) or () for record in records)]


def check(records: Iterable[Row], tokenize: str | None = None) -> None:
  """Raise ValueError for a question without an answer or its tokens."""
  answers = [golds_of(record) for record in records]
  if without := sum(not golds for golds in answers):
    raise ValueError(
      f"{without:,} of {len(answers):,} questions have no answer, which score 'squad' does not support: set "
      "adapter.no_answer=True, or use the score 'squad2' if answers are written"
    )
  tokenize = tokenize or _BY_SCRIPT[tokens.script(answers)]
  if tokenize == 'cmrc':  # SQuAD's own rule has values for answers such as 'the'
    tokens.check('squad', answers, tokens.mixed, tokenize=tokenize)


def score(predictions: Sequence[Row], records: Sequence[Row], tokenize: str = 'squad') -> dict[str, float]:
  """Average over all questions; the windows of a question are joined."""
  groups = grouped(predictions, records)
  check([group.records[0] for group in groups], tokenize)
  each = [(answer_of(group), golds_of(group.records[0])) for group in groups]
  rule = RULES[tokenize]
  return {
    'exact_match': 100 * mean([most(rule.exact, answer, gold) for answer, gold in each]),
    'f1': 100 * mean([most(rule.f1, answer, gold) for answer, gold in each]),
  }


def submission(predictions: Sequence[Row], records: Sequence[Row]) -> str:
  """Format the answers by question id, for the official script."""
  return as_json({id_of(group): answer_of(group) for group in grouped(predictions, records)})


def id_of(group: Group) -> str:
  """Return the id of a question; raise ValueError if there is none."""
  row = group.records[0]['row']
  if 'id' not in row:
    raise ValueError(f"--format=squad needs rows with the 'id' of a question, but they have {', '.join(row)}")
  return row['id']


def as_json(answers: Mapping[str, str]) -> str:
  """Format a JSON object in one line."""
  return json.dumps(answers, ensure_ascii=False) + '\n'


def answer_of(group: Group) -> str:
  """Return the answer of a question, from all windows or as written."""
  prediction, record = group.predictions[0], group.records[0]
  return spelt(prediction['text'], record['row'].get('context', '')) if 'text' in prediction else best(group)[0]


def golds_of(record: Row) -> Sequence[str]:
  """Return the right answers of a question; raise ValueError without their field."""
  if 'answers' in record:
    return record['answers']
  given = record['row'].get('answers')
  if not isinstance(given, Mapping) or given.get('text') is None:
    raise ValueError(f"score 'squad' needs rows with 'answers' and their 'text', as in SQuAD, got {given!r}")
  return given['text']


def spelt(text: str, context: str) -> str:
  """Find a text in a context, ignoring spaces around punctuation.

  Return the part of the context, or the text itself if it is not found.
  """
  # U . S . dollars   ->   U\s*\.\s*S\s*\.\s*dollars
  if text in context:
    return text
  words = text.split()
  gaps = [r'\s*' if {a[-1], b[0]} & {*string.punctuation} else r'\s+' for a, b in itertools.pairwise(words)]
  match = re.search(''.join(map(str.__add__, map(re.escape, words), [*gaps, ''])), context)
  return match[0] if match else text


def best(group: Group) -> tuple[str, float]:
  """Return the best answer and its score; '' and `NEVER` without one."""
  scores = [float(prediction['score'][0]) for prediction in group.predictions]
  window = scores.index(max(scores))
  if scores[window] <= NEVER:
    return '', NEVER
  prediction, record = group.predictions[window], group.records[window]
  return text_of(record, int(prediction['start'][0]), int(prediction['end'][0])), scores[window]


def text_of(record: Mapping[str, Any], start: int, end: int) -> str:
  """Cut the text from token `start` to token `end`.

  Both are positions of the row. White space around it is removed. It is cut out of the context by characters: decoded
  tokens would lose case and spaces.
  """
  begin, over = characters_of(record, start, end)
  return record['context'][begin:over]


def characters_of(record: Mapping[str, Any], start: int, end: int) -> tuple[int, int]:
  """Return characters [begin, over) of `text_of`, including marks of its last letter."""
  # cafe and U+0301, read as 'cafe': the token ends before the accent, and the answer after it
  context, characters, first = record['context'], record['characters'], record['first']
  begin, over = int(characters[start - first][0]), int(characters[end - first][1])
  while over < len(context) and unicodedata.category(context[over])[0] == 'M':
    over += 1
  shown = context[begin:over]
  begin += len(shown) - len(shown.lstrip())
  return begin, begin + len(shown.strip())


def normal(text: str) -> str:
  """Normalise a text: no case, ASCII punctuation, articles or repeated spaces."""
  return ' '.join(_ARTICLES.sub(' ', text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, gold: str) -> float:
  """Return 1 if two texts are equal after normalisation, else 0."""
  return float(normal(answer) == normal(gold))


def f1(answer: str, gold: str) -> float:
  """Compute the F1 of the words of an answer; 0 without any."""
  predicted, right = normal(answer).split(), normal(gold).split()
  same = sum((collections.Counter(predicted) & collections.Counter(right)).values())
  return 2 * same / (len(predicted) + len(right)) if same else 0.0


def exact_match_cmrc(answer: str, gold: str) -> float:
  """Return 1 if two texts are equal without punctuation, else 0."""
  return float(tokens.without_marks(answer) == tokens.without_marks(gold))


def f1_cmrc(answer: str, gold: str) -> float:
  """Compute the F1 of the longest common substring of tokens."""
  predicted, right = tokens.mixed(answer), tokens.mixed(gold)
  matcher = difflib.SequenceMatcher(None, predicted, right, autojunk=False)
  same = matcher.find_longest_match().size
  return 2 * same / (len(predicted) + len(right)) if same else 0.0


class Rule(NamedTuple):
  """A way to compare texts: what is compared, exact match, and F1 of tokens, 0 without common ones."""

  normal: Callable[[str], str]
  exact: Callable[[str, str], float]
  f1: Callable[[str, str], float]


RULES = {'squad': Rule(normal, exact_match, f1), 'cmrc': Rule(tokens.without_marks, exact_match_cmrc, f1_cmrc)}


def most(rule: Callable[[str, str], float], answer: str, golds: Sequence[str]) -> float:
  """Return the largest value of a rule over several right answers."""
  return max(rule(answer, gold) for gold in golds)


def mean(values: Sequence[float]) -> float:
  """Average the values; nan if there are none."""
  return sum(values) / len(values) if values else float('nan')
