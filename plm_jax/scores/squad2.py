"""Exact match and F1 if texts may hold no answer, in per cent: SQuAD 2 (Rajpurkar et al. 2018; evaluate-v2.0.py).

A question is left unanswered if 'no answer' scores more than the best answer: n - s > 0, with s the largest score of a
pair in its windows and n the smallest score of 'no answer'; or if a classifier says so for all its windows (key
'impossible' of a prediction, a logit). `best_exact_match` and `best_f1` are the results of the best threshold on these
rows, and `best_f1_threshold` is such a threshold: the largest margin n - s to answer, or a value below all margins if
it is best to answer nothing. Add it to adapter.threshold to use it on other rows. The official script has 0 if it is
best to answer nothing, as its probabilities of no answer are never less. As there, some questions with one margin may
be answered and others not, which no threshold does: then the threshold gives a little less.

Answers may be written instead ('text'); an empty text means no answer, and all other texts are answers. 'No answer' has
no score then: `best_exact_match` and `best_f1` are `exact_match` and `f1`, and their thresholds are nan. Questions
without an answer are kept with `keep_unlabelled=True`.
"""

import functools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from plm_jax.scores import Group, Row, grouped, squad

METRICS = (
  'exact_match', 'f1', 'has_answer_exact_match', 'has_answer_f1', 'no_answer_exact_match', 'no_answer_f1',
  'best_exact_match', 'best_exact_match_threshold', 'best_f1', 'best_f1_threshold',
)  # fmt: skip
READS = ('start', 'end', 'score', 'no_answer')
RECORDS = ('context', 'answers', 'characters', 'first')
INSTEAD = (('text',), ('row',))
BY_ROW = ('exact_match', 'f1')
UNLABELLED = ('text',)
TOKENIZE = ('squad', 'cmrc')  # as of `squad`

chosen = squad.chosen


class Question(NamedTuple):
  """A question with its predicted and right answers."""

  answer: str  # the best one
  margin: float  # score of 'no answer' minus that of the best answer; nan if the answer was written
  golds: Sequence[str]  # the right answers; () if there is none

  @property
  def unanswered(self) -> bool:
    """Return True if 'no answer' is predicted; False for written answers."""
    return self.margin > 0


def score(predictions: Sequence[Row], records: Sequence[Row], tokenize: str = 'squad') -> dict[str, float]:
  """Average over all questions and both kinds, and find the best thresholds."""
  questions = questions_of(predictions, records)
  metrics: dict[str, float] = {}
  own = squad.RULES[tokenize]
  for name, rule in (('exact_match', own.exact), ('f1', functools.partial(f1, rule=own))):
    # the best answer counts; right answers that normalise to '' are ignored
    values = [squad.most(rule, q.answer, [gold for gold in q.golds if own.normal(gold)] or ['']) for q in questions]
    final = [float(not q.golds) if q.unanswered else value for q, value in zip(questions, values, strict=True)]
    best, threshold = best_threshold(questions, values)
    metrics |= {
      name: 100 * squad.mean(final),
      f'has_answer_{name}': 100 * squad.mean([v for q, v in zip(questions, final, strict=True) if q.golds]),
      f'no_answer_{name}': 100 * squad.mean([v for q, v in zip(questions, final, strict=True) if not q.golds]),
      f'best_{name}': 100 * best,
      f'best_{name}_threshold': threshold,
    }
  return metrics


def check(records: Iterable[Row], tokenize: str | None = None) -> None:
  """Raise ValueError for a question without a field of answers.

  A text without a token, by any `tokenize`, is no answer.
  """
  for record in records:
    squad.golds_of(record)


def submission(predictions: Sequence[Row], records: Sequence[Row]) -> str:
  """Format answers by question id for the official script, '' for none."""
  ids = [squad.id_of(group) for group in grouped(predictions, records)]
  pairs = zip(ids, questions_of(predictions, records), strict=True)
  return squad.as_json({id_: '' if question.unanswered else question.answer for id_, question in pairs})


def questions_of(predictions: Sequence[Row], records: Sequence[Row]) -> list[Question]:
  """Join the windows of each question."""
  return [question_of(group) for group in grouped(predictions, records)]


def question_of(group: Group) -> Question:
  """Build a question, from its windows or from its written answer."""
  golds = tuple(squad.golds_of(group.records[0]) or ())
  if 'text' in group.predictions[0]:
    return Question(answer=squad.answer_of(group), margin=math.nan, golds=golds)
  answer, value = squad.best(group)
  null = min(float(prediction['no_answer']) for prediction in group.predictions)
  logits = [float(prediction['impossible']) for prediction in group.predictions if 'impossible' in prediction]
  return Question(answer=answer, margin=min(logits) if logits else null - value, golds=golds)


def f1(answer: str, gold: str, rule: squad.Rule = squad.RULES['squad']) -> float:
  """Compute F1 of the words.

  If a text has none, 1 if both have none, else 0.
  """
  if not rule.normal(answer) or not rule.normal(gold):
    return float(rule.normal(answer) == rule.normal(gold))
  return rule.f1(answer, gold)


def best_threshold(questions: Sequence[Question], values: Sequence[float]) -> tuple[float, float]:
  """Find the threshold of the margin with the largest mean of `values`.

  Returns the mean and the threshold: a question is answered if its margin is not above it. For written answers, which
  cannot be left unanswered, the mean of `values` and nan.
  """
  if any(math.isnan(question.margin) for question in questions):
    return squad.mean(values), math.nan
  # margins -2 1 3, values 1 0 1, the second without an answer   answered 0 1 2 3 -> worth 1 2 2 3, up to a margin of 3
  worth = best = float(sum(not question.golds for question in questions))
  ordered = sorted(zip(questions, values, strict=True), key=lambda pair: pair[0].margin)
  smallest = ordered[0][0].margin if ordered else math.inf
  threshold = 0.0 if smallest > 0 else smallest - 1  # by more than the float32 error when the adapter subtracts it
  for question, value in ordered:
    worth += value if question.golds else -1.0 if question.answer else 0.0
    if worth > best:
      best, threshold = worth, question.margin
  return best / max(len(questions), 1), threshold
