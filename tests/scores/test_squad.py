"""SQuAD's rule against what the official scripts print, and how windows are joined; MultiRC and ReCoRD by hand."""

import json
import pathlib

import numpy as np
import pytest

from plm_jax.core.errors import ConfigError
from plm_jax.data.rows.forms import t5
from plm_jax.runs import predicted, scoring
from plm_jax.scores import multirc, record, squad, squad2, superglue

# 150 hand-made and random answers, and the numbers of evaluate-v1.1.py (of those with an answer) and evaluate-v2.0.py
OFFICIAL = json.loads((pathlib.Path(__file__).parent / 'squad_official.json').read_text(encoding='utf-8'))
NAMES = {
  'exact': 'exact_match', 'f1': 'f1',
  'HasAns_exact': 'has_answer_exact_match', 'HasAns_f1': 'has_answer_f1',
  'NoAns_exact': 'no_answer_exact_match', 'NoAns_f1': 'no_answer_f1',
  'best_exact': 'best_exact_match', 'best_exact_thresh': 'best_exact_match_threshold',
  'best_f1': 'best_f1', 'best_f1_thresh': 'best_f1_threshold',
}  # fmt: skip


def window(answer: str, golds: list[str], *, score: float = 0.0, null: float = 0.0, group: object = 0):
  """The prediction and the record of a row whose best answer is this text."""
  context = f'before {answer} behind'
  record = {
    'row': {'id': f'id of {group}'}, 'context': context, 'answers': golds, 'group': group,
    'characters': np.array([(0, 6), (7, 7 + len(answer)), (8 + len(answer), len(context))]), 'first': 4,
  }  # fmt: skip
  prediction = {
    'start': np.array([5, 4]), 'end': np.array([5, 4]), 'score': np.array([score, score - 1], np.float32),
    'no_answer': np.float32(null),
  }  # fmt: skip
  return prediction, record


def rows(questions):
  made = [window(answer, golds, null=null, group=n) for n, (answer, golds, null) in enumerate(questions)]
  return [prediction for prediction, _ in made], [record for _, record in made]


def test_numbers_are_those_of_the_official_script():
  questions = [question for question in OFFICIAL['questions'] if question[1]]
  found = squad.score(*rows(questions))
  assert set(found) == set(squad.METRICS)
  assert found == pytest.approx(OFFICIAL['v1.1'], rel=1e-12)


def written(answer: str, golds: list[str], *, context: str = '', number: int = 0):
  """The prediction and the record of a question whose answer was written."""
  row = {'id': f'id of {number}', 'context': context, 'answers': {'text': golds, 'answer_start': [0] * len(golds)}}
  return {'text': answer}, {'row': row, 'references': golds, 'options': (), 'label': 0}


def test_numbers_of_written_answers_are_those_of_the_official_script():
  made = [written(*question[:2], number=n) for n, question in enumerate(OFFICIAL['questions']) if question[1]]
  predictions, records = [one for one, _ in made], [one for _, one in made]
  assert scoring.score('squad', predictions, records) == pytest.approx(OFFICIAL['v1.1'], rel=1e-12)
  answers = json.loads(squad.submission(predictions, records))
  assert answers == {record['row']['id']: one['text'] for one, record in made}
  predicted.check_format('squad', ['text', 'tokens'])
  with pytest.raises(ConfigError, match=r'--format=squad.*start, end, score or text'):
    predicted.check_format('squad', ['label'])
  with pytest.raises(ConfigError, match=r"'answers'.*'text'.*None"):
    scoring.score('squad', [{'text': 'a'}], [{'row': {}}])


@pytest.mark.parametrize(
  'answer', ['U.S.', '$1,000-a-day (or "more")', "children's books", 'a b', 'New  York', "O'Neil & Co., Inc."]
)
def test_answers_of_t5_stand_as_in_the_context(answer):
  """T5 reads and writes spaces around punctuation, and the official script compares 'u s' with 'us'."""
  context = f'First, "{answer}", it said.'
  one, record = written(t5.spaced(answer), [answer], context=context)
  assert squad.score([one], [record]) == {'exact_match': 100, 'f1': 100}
  assert json.loads(squad.submission([one], [record])) == {'id of 0': answer}


def test_words_are_not_joined_to_those_of_the_context():
  assert squad.spelt('new york', 'in newyork') == 'new york'
  assert squad.spelt('x . y', 'x-y') == 'x . y'
  assert squad.spelt('', 'a') == ''


def test_written_answers_are_scored_as_the_official_script_does_where_texts_may_hold_no_answer():
  made = [written(*question[:2], number=n) for n, question in enumerate(OFFICIAL['questions'])]
  predictions, records = [one for one, _ in made], [one for _, one in made]
  found = scoring.score('squad2', predictions, records)
  theirs = {NAMES[name]: value for name, value in OFFICIAL['v2.0 of answers alone'].items() if name in NAMES}
  assert {name: found[name] for name in theirs} == pytest.approx(theirs, rel=1e-12)
  for name in ('exact_match', 'f1'):  # no score, no threshold
    assert found[f'best_{name}'] == found[name] and np.isnan(found[f'best_{name}_threshold'])
  for form in (squad, squad2):
    answers = json.loads(form.submission(predictions, records))
    assert answers == {record['row']['id']: one['text'] for one, record in made}
  predicted.check_format('squad2', ['text', 'tokens'])
  with pytest.raises(ConfigError, match=r"'answers'.*'text'.*None"):
    scoring.score('squad2', [{'text': ''}], [{'row': {}}])
  with pytest.raises(ConfigError, match="'squad2'"):
    scoring.score('squad', predictions, records)


def test_an_empty_text_alone_says_that_there_is_no_answer():
  made = [written(answer, golds) for answer, golds in (('', []), ('no answer', []), ('', ['x']), ('x', ['the x']))]
  found = squad2.score([one for one, _ in made], [one for _, one in made])
  assert (found['no_answer_exact_match'], found['has_answer_exact_match'], found['f1']) == (50, 50, 50)


def test_entities_that_are_written_are_scored_by_the_rule():
  records = [{'row': {'answers': ['Obama', 'Mr. Obama']}}, {'row': {'answers': ['Oslo']}}]
  found = scoring.score('record', [{'text': 'obama'}, {'text': 'Rome'}], records)
  assert found == {'exact_match': 50, 'f1': 50}


def test_numbers_are_those_of_the_official_script_where_texts_may_hold_no_answer():
  found = squad2.score(*rows(OFFICIAL['questions']))
  assert set(found) == set(squad2.METRICS)
  theirs = {NAMES[name]: value for name, value in OFFICIAL['v2.0'].items() if name in NAMES}
  assert found == pytest.approx(theirs, rel=1e-6)  # margins are float32


def official_best(questions, values):
  """`find_best_thresh` of evaluate-v2.0.py."""
  worth = best = sum(not question.golds for question in questions)
  threshold = 0.0
  for question, value in sorted(zip(questions, values, strict=True), key=lambda pair: pair[0].margin):
    worth += value if question.golds else -1 if question.answer else 0
    if worth > best:
      best, threshold = worth, question.margin
  return best / len(questions), threshold


def mean_at(threshold, questions, values):
  """What leaving questions with a larger margin unanswered gives."""
  pairs = [(q._replace(margin=q.margin - threshold), value) for q, value in zip(questions, values, strict=True)]
  kept = [float(not q.golds) if q.unanswered or not q.answer else value for q, value in pairs]
  return squad.mean(kept)


@pytest.mark.parametrize('shift', [-6, 0, 6])
@pytest.mark.parametrize('tied', [False, True])
@pytest.mark.parametrize('seed', range(40))
def test_the_best_threshold_gives_the_best_value(seed, tied, shift):
  rng = np.random.default_rng(seed)
  count, unanswerable = int(rng.integers(1, 12)), rng.random()
  margins = rng.integers(-2, 3, count) if tied else rng.permutation(count) - count // 2 + rng.random()
  questions, values = [], []
  for margin in margins:
    golds, answer = () if rng.random() < unanswerable else ('a',), str(rng.choice(['a', 'b', '']))
    questions.append(squad2.Question(answer, float(margin + shift), golds))
    values.append(float(rng.choice([0, 0.25, 1])) if golds and answer else float(not golds and not answer))
  best, threshold = squad2.best_threshold(questions, values)
  theirs, at = official_best(questions, values)
  assert best == theirs
  assert threshold == at or at == 0.0  # where it is best to answer nothing
  if tied:
    assert mean_at(threshold, questions, values) <= best  # of those with one margin, some may be answered there
  else:
    assert mean_at(threshold, questions, values) == best


def test_the_best_threshold_where_it_is_best_to_answer_nothing():
  wrong = [squad2.Question('wrong', -2.0, ()), squad2.Question('wrong', -1.0, ()), squad2.Question('a', -0.5, ('b',))]
  best, threshold = squad2.best_threshold(wrong, [0, 0, 0])
  assert best == 2 / 3
  assert threshold < -2
  above = [question._replace(margin=question.margin + 3) for question in wrong]
  assert squad2.best_threshold(above, [0, 0, 0]) == (2 / 3, 0.0)
  # what the adapter takes off is float32
  found = squad2.score(*rows([('wrong', [], -2.7), ('wrong', [], -1.1)]))
  assert (found['f1'], found['best_f1']) == (0, 100)
  nulls = [float(np.float32(null) - np.float32(found['best_f1_threshold'])) for null in (-2.7, -1.1)]
  assert squad2.score(*rows([('wrong', [], null) for null in nulls]))['f1'] == 100


@pytest.mark.parametrize(
  ('answer', 'gold', 'exact', 'f1'),
  [
    ('The Nobel Prize.', 'nobel prize', 1, 1),
    ('Nobel', 'the Nobel Prize', 0, 2 / 3),
    ('a a b', 'b b a c', 0, 2 / 4),  # articles are left out: b against b b c
    ('U.S.', 'us', 1, 1),
    ('its', "it's", 1, 1),
    ('1,000', '1000', 1, 1),
    ('北京 大学', '北京大学', 0, 0),
    ('the', 'a', 1, 0),
    ('', 'cat', 0, 0),
  ],
)
def test_the_rule_by_hand(answer, gold, exact, f1):
  assert squad.exact_match(answer, gold) == exact
  assert squad.f1(answer, gold) == pytest.approx(f1)


def test_the_best_of_several_right_answers_counts():
  found = squad.score(*rows([('Nobel', ['Prize', 'the Nobel Prize', 'Nobel!'], 0.0), ('x', ['y', 'x z'], 0.0)]))
  assert found == pytest.approx({'exact_match': 50, 'f1': 100 * (1 + 2 / 3) / 2})


def test_windows_of_a_question_are_joined():
  golds = ['right']
  parts = [
    window('wrong', golds, score=1.0, null=5.0, group='a'),
    window('other', ['other'], score=0.0, null=-3.0, group='b'),
    window('right', golds, score=2.0, null=1.5, group='a'),
  ]
  predictions, records = ([part[k] for part in parts] for k in range(2))
  assert squad.score(predictions, records) == {'exact_match': 100.0, 'f1': 100.0}
  assert json.loads(squad.submission(predictions, records)) == {'id of a': 'right', 'id of b': 'other'}
  # no answer scores as little as in the window where it scores least: 1.5 against 2
  assert json.loads(squad2.submission(predictions, records)) == {'id of a': 'right', 'id of b': 'other'}
  predictions[2]['no_answer'] = np.float32(2.5)
  assert json.loads(squad2.submission(predictions, records)) == {'id of a': '', 'id of b': 'other'}


def test_a_classifier_may_tell_that_there_is_no_answer():
  parts = [window('right', ['right'], group='a'), window('wrong', ['right'], score=-1.0, group='a')]
  for told, answer in (((1.0, 2.0), ''), ((1.0, -0.5), 'right')):
    predictions = [{**part[0], 'impossible': np.float32(value)} for part, value in zip(parts, told, strict=True)]
    assert json.loads(squad2.submission(predictions, [part[1] for part in parts])) == {'id of a': answer}


def test_a_window_without_a_legal_pair_gives_no_answer():
  prediction, one = window('right', ['right'])
  none = {**prediction, 'score': np.full(2, -2e30, np.float32)}
  assert squad.score([none, prediction], [one, one]) == {'exact_match': 100.0, 'f1': 100.0}
  assert json.loads(squad.submission([none], [one])) == {'id of 0': ''}
  assert squad2.score([none], [one])['f1'] == 0


def test_answers_are_cut_out_of_the_text():
  text = 'Das  grüne\nHaus, 北京大学 — "Nobel’s Prize".'
  spans = np.array([(0, 3), (3, 10), (10, 15), (15, 16), (16, 18), (17, 18), (18, 19)])
  place = {'context': text, 'characters': spans, 'first': 3}
  for start in range(7):
    for end in range(start, 7):
      answer = squad.text_of(place, 3 + start, 3 + end)
      assert answer in text and answer == answer.strip()
  assert squad.text_of(place, 4, 5) == 'grüne\nHaus'


def test_an_answer_has_the_marks_behind_its_last_letter():
  """A tokenizer without accents ends 'café' before its accent, where this one stands behind the letter."""
  text = 'le cafe\u0301 la\u0300.'
  place = {'context': text, 'characters': np.array([(0, 2), (3, 7), (9, 11)]), 'first': 0}
  assert squad.text_of(place, 1, 1) == 'cafe\u0301' and squad.text_of(place, 0, 2) == text[:-1]
  assert squad.characters_of(place, 1, 1) == (3, 8)


def test_questions_without_an_answer_need_the_rule_of_squad_2():
  with pytest.raises(ValueError, match=r'adapter\.no_answer=True'):
    squad.score(*rows([('x', [], 0.0)]))
  every = squad2.score(*rows([('x', [], 1.0), ('y', [], -1.0)]))
  assert (every['exact_match'], every['no_answer_f1']) == (50, 50)
  assert np.isnan(every['has_answer_f1'])
  assert every['best_f1'] == 100


def test_multirc_by_hand():
  # question: (found, right) of each answer
  questions = {(0, 0): [(1, 1), (0, 0)], (0, 1): [(1, 0), (1, 1), (0, 1)], (1, 0): [(0, 0)]}
  predictions, records = [], []
  for (paragraph, question), pairs in questions.items():
    for answer, (found, right) in enumerate(pairs):
      predictions.append({'label': np.int32(found)})
      idx = {'paragraph': paragraph, 'question': question, 'answer': answer}
      records.append({'row': {'idx': idx}, 'label': right})
  expected = {'f1a': 100 * 2 * 2 / (2 * 2 + 1 + 1), 'exact_match': 100 * 2 / 3}
  assert multirc.score(predictions, records) == pytest.approx(expected)
  sklearn = pytest.importorskip('sklearn.metrics')
  pairs = [(int(p['label']), r['label']) for p, r in zip(predictions, records, strict=True)]
  assert expected['f1a'] == pytest.approx(100 * sklearn.f1_score([r for _, r in pairs], [f for f, _ in pairs]))
  unmatched = [
    {**one, 'label': -1 if one['label'] != r['label'] else one['label']}
    for one, r in zip(predictions, records, strict=True)
  ]
  assert multirc.score(unmatched, records) == pytest.approx(expected)  # what is no label is the wrong one
  with pytest.raises(ValueError, match="'idx'"):
    multirc.score(predictions[:1], [{'row': {}, 'label': 1}])


def test_record_by_hand():
  entities = ['Barack Obama', 'Chicago', 'the White House']
  records = [
    {'row': {'answers': ['Obama', 'Mr. Obama']}, 'options': entities},
    {'row': {'answers': ['White House']}, 'options': entities},
  ]
  predictions = [{'label': np.int32(0)}, {'label': np.int32(2)}]
  lines = superglue.submission(predictions, [{**one, 'row': {**one['row'], 'entities': entities}} for one in records])
  assert [json.loads(line)['label'] for line in lines.splitlines()] == ['Barack Obama', 'the White House']
  assert record.score(predictions, records) == pytest.approx({'exact_match': 50, 'f1': 100 * (2 / 3 + 1) / 2})
