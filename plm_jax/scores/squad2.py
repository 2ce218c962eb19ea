"""Exact match and F1 where texts may hold no answer, in per cent: SQuAD 2 (Rajpurkar et al. 2018; evaluate-v2.0.py).

A question is left unanswered where no answer scores more than the best one: n - s > 0, with s the largest score of a
pair in all its windows and n the smallest score of no answer; or where a classifier says so of all its windows (key
'impossible' of a prediction, a logit). `best_exact_match` and `best_f1` are what another threshold than 0 would have
given on these rows, and `best_f1_threshold` is one that gives it: the smallest margin n - s up to which to answer, or
where it is best to answer nothing, one below all margins. Add it to adapter.threshold to use it on others. The official
script has 0 where it is best to answer nothing, as its probabilities of no answer are never less. As there, some of the
questions with one margin may be answered and others not, which no threshold does: then it gives a little less.

Answers may be written in place of that ('text'), and an empty text says that there is no answer; all other texts are
answers, whatever they say. 'No answer' has no score then: `best_exact_match` and `best_f1` are `exact_match` and `f1`,
and their thresholds are not a number. Questions without an answer are kept by `keep_unlabelled=True`.
"""

import math
from collections.abc import Callable, Sequence
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


class Question(NamedTuple):
  """What is known of a question.

  Attributes:
    answer: the best one.
    margin: how much more no answer scores than the best one; not a number where the answer was written.
    golds: the right answers; () where there is none.
  """

  answer: str
  margin: float
  golds: Sequence[str]

  @property
  def unanswered(self) -> bool:
    """Whether no answer is predicted; an answer that was written says it by itself."""
    return self.margin > 0


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """Means over all questions, over those with and without an answer, and the best thresholds."""
  questions = questions_of(predictions, records)
  found: dict[str, float] = {}
  for name, rule in (('exact_match', squad.exact_match), ('f1', f1)):
    values = [_value(rule, question) for question in questions]
    kept = [float(not q.golds) if q.unanswered else value for q, value in zip(questions, values, strict=True)]
    best, threshold = best_threshold(questions, values)
    found |= {
      name: 100 * squad.mean(kept),
      f'has_answer_{name}': 100 * squad.mean([v for q, v in zip(questions, kept, strict=True) if q.golds]),
      f'no_answer_{name}': 100 * squad.mean([v for q, v in zip(questions, kept, strict=True) if not q.golds]),
      f'best_{name}': 100 * best,
      f'best_{name}_threshold': threshold,
    }
  return found


def submission(predictions: Sequence[Row], records: Sequence[Row]) -> str:
  """The answer to each question by its id, '' for none, as the official script reads them."""
  ids = [squad.id_of(group) for group in grouped(predictions, records)]
  pairs = zip(ids, questions_of(predictions, records), strict=True)
  return squad.as_json({id_: '' if one.unanswered else one.answer for id_, one in pairs})


def questions_of(predictions: Sequence[Row], records: Sequence[Row]) -> list[Question]:
  """The questions, their windows joined."""
  return [question_of(group) for group in grouped(predictions, records)]


def question_of(group: Group) -> Question:
  """A question, from some or all of its windows or as its answer was written."""
  golds = tuple(squad.golds_of(group.records[0]) or ())
  if 'text' in group.predictions[0]:
    return Question(squad.answer_of(group), math.nan, golds)
  answer, value = squad.best(group)
  null = min(float(prediction['no_answer']) for prediction in group.predictions)
  told = [float(prediction['impossible']) for prediction in group.predictions if 'impossible' in prediction]
  return Question(answer, min(told) if told else null - value, golds)


def f1(answer: str, gold: str) -> float:
  """F1 of the words; where one of the texts has none, 1 if the other has none either."""
  if not squad.normal(answer) or not squad.normal(gold):
    return float(squad.normal(answer) == squad.normal(gold))
  return squad.f1(answer, gold)


def best_threshold(questions: Sequence[Question], values: Sequence[float]) -> tuple[float, float]:
  """The largest mean that leaving questions unanswered by their margin can give, and the threshold that gives it.

  Args:
    questions: all of them.
    values: what the best answer of each is worth.

  Returns:
    both: a question is answered where its margin is not larger than the threshold. Where answers were written and
    nothing can be left unanswered, the mean of `values` and not a number.
  """
  if any(math.isnan(question.margin) for question in questions):
    return squad.mean(values), math.nan
  # margins -2 1 3, values 1 0 1, the second without an answer   answered 0 1 2 3 -> worth 1 2 2 3, up to a margin of 3
  worth = best = float(sum(not question.golds for question in questions))
  ordered = sorted(zip(questions, values, strict=True), key=lambda pair: pair[0].margin)
  smallest = ordered[0][0].margin if ordered else math.inf
  threshold = 0.0 if smallest > 0 else smallest - 1  # by more than what float32 loses where the adapter takes it off
  for question, value in ordered:
    worth += value if question.golds else -1.0 if question.answer else 0.0
    if worth > best:
      best, threshold = worth, question.margin
  return best / max(len(questions), 1), threshold


def _value(rule: Callable[[str, str], float], question: Question) -> float:
  """What the best answer of a question is worth; right answers without a word that counts are left out."""
  return squad.most(rule, question.answer, [gold for gold in question.golds if squad.normal(gold)] or [''])
