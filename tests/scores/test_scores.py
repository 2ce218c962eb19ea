"""Scores against the library on random rows, closed forms, hand-made cases, and what every file of `scores/` states."""

import json
import math

import numpy as np
import pytest

from plm_jax import scores
from plm_jax.config import build, signatures
from plm_jax.core.errors import ConfigError
from plm_jax.scores import (
  accuracy,
  correlation,
  f1,
  gender_parity,
  glue,
  macro_f1,
  matthews,
  multilabel,
  seqeval,
  superglue,
  threshold,
  wsc,
)

NAMES = ('O', 'B-person', 'I-person', 'B-place', 'I-place')


def classes(predicted, gold):
  return [{'label': np.int32(label)} for label in predicted], [{'label': label} for label in gold]


def draw(seed, classes=2, rows=200):
  random = np.random.default_rng(seed)
  gold = random.integers(0, classes, rows)
  return np.where(random.random(rows) < 0.6, gold, random.integers(0, classes, rows)).tolist(), gold.tolist()


@pytest.mark.parametrize('count', [1, 2, 5])
def test_scores_of_several_classes_are_those_of_scikit_learn(count):
  peers, random = pytest.importorskip('sklearn.metrics'), np.random.default_rng(count)
  probabilities = random.random((60, count)).round(1).astype(np.float32)  # with ties
  gold = (random.random((60, count)) < 0.3).astype(int)
  gold[:, -1] *= count < 5  # one class is never right, and never predicted
  probabilities[:, -1] *= 0.3 if count == 5 else 1
  predictions = [{'probability': row, 'threshold': np.float32(0.35)} for row in probabilities]
  found = multilabel.score(predictions, [{'classes': np.flatnonzero(row).tolist()} for row in gold])
  predicted = (probabilities > np.float32(0.35)).astype(int)
  for mean in ('micro', 'macro'):
    each = [peers.f1_score(gold[:, k], predicted[:, k], zero_division=0) for k in range(count)]
    expected = np.mean(each) if count == 1 else peers.f1_score(gold, predicted, average=mean, zero_division=0)
    assert found[f'{mean}_f1'] == pytest.approx(expected, abs=1e-12)
  assert found['lrap'] == pytest.approx(peers.label_ranking_average_precision_score(gold, probabilities), abs=1e-12)


# What every file states.


@pytest.mark.parametrize('name', signatures.names('scores'))
def test_a_score_states_what_it_returns_and_reads(name):
  file = build.import_file(f'scores.{name}')
  assert file.METRICS and len(set(file.METRICS)) == len(file.METRICS)
  assert file.READS and (file.RECORDS or name == 'nats')  # which compares with no label
  # read from source, before anything runs
  for key in ('METRICS', 'READS', 'RECORDS', 'INSTEAD', 'UNLABELLED', 'NEEDS'):
    assert signatures.literal(f'scores.{name}', key) == getattr(file, key, None)


def test_a_missing_package_is_named():
  scores.check_installed('matthews', ('numpy',))
  with pytest.raises(ConfigError, match=r"score 'x'.*pip install no-such-thing"):
    scores.check_installed('x', ('no-such-thing',))


def test_groups_are_joined_in_the_order_of_their_first_rows():
  predictions = [{'value': number} for number in range(5)]
  records = [{'group': 'a'}, {'group': ('b', 1)}, {'group': 'a'}, {}, {}]
  found = [
    ([row['value'] for row in group.predictions], group.records) for group in scores.grouped(predictions, records)
  ]
  assert found == [([0, 2], [records[0], records[2]]), ([1], [records[1]]), ([3], [{}]), ([4], [{}])]


# Classes.


@pytest.mark.parametrize('seed', range(5))
def test_two_classes_are_scored_as_the_formulas_say(seed):
  predicted, gold = draw(seed)
  pairs = list(zip(predicted, gold, strict=True))
  tp, tn, fp, fn = (pairs.count(pair) for pair in ((1, 1), (0, 0), (1, 0), (0, 1)))
  root = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
  rows = classes(predicted, gold)
  assert accuracy.score(*rows)['accuracy'] == pytest.approx((tp + tn) / len(pairs))
  assert f1.score(*rows)['f1'] == pytest.approx(2 * tp / (2 * tp + fp + fn))
  assert macro_f1.score(*rows)['macro_f1'] == pytest.approx(tp / (2 * tp + fp + fn) + tn / (2 * tn + fp + fn))
  assert matthews.score(*rows)['matthews'] == pytest.approx((tp * tn - fp * fn) / root)


@pytest.mark.parametrize('seed', range(5))
def test_several_classes_are_scored_as_the_formulas_say(seed):
  """MCC of several classes is the correlation of two indicator matrices (Gorodkin 2004)."""
  predicted, gold = draw(seed, classes=4)
  one_hot = [np.eye(4)[np.array(labels)] for labels in (predicted, gold)]
  x, y = (matrix - matrix.mean(axis=0) for matrix in one_hot)
  rows = classes(predicted, gold)
  assert matthews.score(*rows)['matthews'] == pytest.approx((x * y).sum() / math.sqrt((x * x).sum() * (y * y).sum()))
  tp = (one_hot[0] * one_hot[1]).sum(axis=0)
  each = 2 * tp / (one_hot[0].sum(axis=0) + one_hot[1].sum(axis=0))
  assert macro_f1.score(*rows)['macro_f1'] == pytest.approx(each.mean())
  with pytest.raises(ValueError, match=r"score 'f1'.*\b2\b.*'macro_f1'"):
    f1.score(*rows)


def test_all_rows_alike_have_a_score():
  for predicted, gold in (([0, 0], [0, 1]), ([1, 1], [0, 0]), ([0, 0], [0, 0])):
    assert matthews.score(*classes(predicted, gold)) == {'matthews': 0.0}
    assert f1.score(*classes(predicted, gold)) == {'f1': 0.0}


def test_pairs_that_are_predicted_alike_are_counted():
  rows = [{'label': np.int32(label)} for label in (0, 0, 1, 0, 1, 1)]
  texts = ('The nurse saw his face, {}.', 'The nurse saw her face, {}.')
  records = [{'row': {'premise': texts[n % 2].format(n // 2), 'hypothesis': 'A face.', 'idx': n}} for n in range(6)]
  assert gender_parity.score(rows, records) == {'gender_parity': pytest.approx(2 / 3)}
  shuffled = [4, 0, 3, 1, 2, 5]
  assert gender_parity.score([rows[place] for place in shuffled], [records[place] for place in shuffled]) == {
    'gender_parity': pytest.approx(2 / 3)
  }
  records[4]['row']['hypothesis'] = 'No face.'
  for count in (5, 6):
    with pytest.raises(ValueError, match='pair 2'):
      gender_parity.score(rows[:count], records[:count])


# Values.


@pytest.mark.parametrize('seed', range(3))
def test_correlations_are_those_of_values_and_of_ranks(seed):
  random = np.random.default_rng(seed)
  gold = np.round(random.uniform(0, 5, 100), 1)  # with ties
  found = (gold + random.normal(0, 1, 100)).astype(np.float32)
  made = correlation.score([{'value': value} for value in found], [{'label': value} for value in gold.tolist()])

  def ranks(values):
    return [(values < value).sum() + ((values == value).sum() + 1) / 2 for value in values]

  assert made['pearson'] == pytest.approx(np.corrcoef(found, gold)[0, 1], abs=1e-6)
  assert made['spearman'] == pytest.approx(np.corrcoef(ranks(found), ranks(gold))[0, 1], abs=1e-9)


@pytest.mark.parametrize(('found', 'gold'), [([1.0, 1.0], [0.0, 2.0]), ([1.0, 2.0], [3.0, 3.0]), ([1.0], [2.0])])
def test_values_that_are_all_alike_have_correlation_0(found, gold):
  made = correlation.score([{'value': value} for value in found], [{'label': value} for value in gold])
  assert made == {'pearson': 0.0, 'spearman': 0.0}


# Tags.


def tagged(predicted, gold, places=None):
  """The prediction and the record of a row; a token more than there are words."""
  numbers = [NAMES.index(tag) for tag in predicted]
  labels = [NAMES.index(tag) if tag else -1 for tag in gold]
  places = [word for word, label in enumerate(labels) if label >= 0] if places is None else places
  return {'labels': np.array([-1, *numbers, -1])}, {'labels': labels, 'places': places, 'names': NAMES}


def strict(*rows):
  return list(seqeval.score([row for row, _ in rows], [record for _, record in rows]).values())


def test_an_entity_counts_if_its_place_and_type_are_right():
  row = tagged(['B-person', 'I-person', 'O', 'B-place'], ['B-person', 'I-person', 'O', 'B-person'])
  assert strict(row) == [0.5, 0.5, 0.5]
  other = tagged(['B-person', 'O', 'O'], ['B-person', 'I-person', 'O'])
  assert strict(row, other) == pytest.approx([1 / 3, 1 / 3, 1 / 3])


def test_an_i_that_continues_nothing_is_no_entity():
  assert strict(tagged(['I-person', 'I-person', 'B-place'], ['B-person', 'I-person', 'B-place'])) == pytest.approx(
    [1.0, 0.5, 2 / 3]
  )
  assert strict(tagged(['B-person', 'I-place'], ['B-person', 'O'])) == [1.0, 1.0, 1.0]


def test_words_that_were_cut_off_count_as_o():
  assert strict(
    tagged(['B-person', 'O'], ['B-person', 'O', 'B-place', 'I-place'], places=[0, 1, 2, 3])
  ) == pytest.approx([1.0, 0.5, 2 / 3])


def test_words_without_a_token_or_a_label_are_stepped_over():
  assert strict(tagged(['B-person', 'B-place'], ['B-person', 'O', 'B-place'], places=[0, 2])) == [1.0, 1.0, 1.0]
  row, record = tagged(['B-person', 'B-place'], ['B-person', '', 'B-place'])
  assert strict((row, record)) == [1.0, 1.0, 1.0]
  assert seqeval.tags_of(row['labels'], record) == ['B-person', None, 'B-place']


def test_rows_without_entities_have_a_score():
  assert strict(tagged(['O', 'O'], ['O', 'O'])) == [0.0, 0.0, 0.0]
  assert strict(tagged(['O'], ['B-person']), tagged([], [])) == [0.0, 0.0, 0.0]


def test_tags_need_names_of_iob2():
  for names, told in (((), 'names'), (('NOUN', 'VERB'), "'NOUN'")):
    with pytest.raises(ValueError, match=told):
      seqeval.score([{'labels': np.array([0])}], [{'labels': [0], 'places': [0], 'names': names}])


def test_random_tags_are_scored_as_by_pairs_of_sets():
  """Entities as sets of (row, first word, last word, type), found by hand in valid IOB2."""
  random = np.random.default_rng(0)

  def valid(length):
    tags = []
    for _ in range(length):
      before = tags[-1] if tags else 'O'
      choices = ['O', 'B-person', 'B-place', *([f'I-{before[2:]}'] if before != 'O' else [])]
      tags.append(choices[random.integers(len(choices))])
    return tags

  def entities(number, tags):
    found = set()
    for word, tag in enumerate(tags):
      if tag.startswith('B-'):
        last = word
        while last + 1 < len(tags) and tags[last + 1] == f'I-{tag[2:]}':
          last += 1
        found.add((number, word, last, tag))
    return found

  rows, right, found = [], set(), set()
  for number in range(50):
    gold = valid(8)
    predicted = gold if random.random() < 0.4 else valid(8)
    rows.append(tagged(predicted, gold))
    right, found = right | entities(number, gold), found | entities(number, predicted)
  both = len(right & found)
  assert strict(*rows) == pytest.approx([both / len(found), both / len(right), 2 * both / (len(found) + len(right))])


# Forms of benchmarks.


def test_glue_takes_numbers_words_and_values():
  def lines(predictions, names=(), idx=(5, 6)):
    records = [{'names': names, 'row': {'idx': number}} for number in idx]
    return glue.submission(predictions, records).splitlines()

  two = [{'label': np.int32(0)}, {'label': np.int32(1)}]
  assert lines(two, ('unacceptable', 'acceptable')) == ['index\tprediction', '5\t0', '6\t1']
  assert lines(two) == ['index\tprediction', '5\t0', '6\t1']
  assert lines(two, ('entailment', 'not_entailment'))[1:] == ['5\tentailment', '6\tnot_entailment']
  assert lines(two, ('entailment', 'neutral', 'contradiction'))[1:] == ['5\tentailment', '6\tneutral']
  assert lines(two, ('not_entailment', 'entailment'))[1:] == ['5\t0', '6\t1']  # WNLI
  values = [{'value': np.float32(5.25)}, {'value': np.float32(-0.5)}]
  assert lines(values)[1:] == ['5\t5.000', '6\t0.000']
  assert glue.submission(two, [{}, {}]).splitlines()[1:] == ['0\t0', '1\t1']


def test_glue_takes_a_noun_for_wnli():
  """T5 writes WNLI as WSC: a row has a text and no label."""
  rows = [{'text': text} for text in ('the worm', 'fish', '')]
  records = [{'row': {'idx': number, 'span1_text': 'The worm'}} for number in (3, 4, 5)]
  assert glue.submission(rows, records).splitlines()[1:] == ['3\t1', '4\t0', '5\t0']
  with pytest.raises(ValueError, match='WNLI'):
    glue.submission(rows[:1], [{'row': {'article': 'a'}}])


@pytest.mark.parametrize(
  ('names', 'row', 'label'),
  [
    (('False', 'True'), {'question': 'q', 'passage': 'p'}, 'true'),
    (('False', 'True'), {'span1_text': 'it', 'text': 't'}, 'True'),
    (('entailment', 'contradiction', 'neutral'), {}, 'contradiction'),
    (('False', 'True'), {'sentence1': 'a', 'sentence2': 'b', 'word': 'c'}, 'true'),
    (('entailment', 'not_entailment'), {'premise': 'p', 'hypothesis': 'h'}, 'not_entailment'),
    (('choice1', 'choice2'), {'choice1': 'a', 'choice2': 'b'}, 1),
    ((), {}, 1),
  ],
)
def test_superglue_takes_words_of_its_own(names, row, label):
  text = superglue.submission([{'label': np.int32(1)}], [{'names': names, 'row': {**row, 'idx': 7}}])
  assert [json.loads(line) for line in text.splitlines()] == [{'idx': 7, 'label': label}]


def test_superglue_takes_a_noun_for_wsc():
  rows = [{'text': text} for text in ('the trophy', 'suitcase', '')]
  records = [{'row': {'idx': number, 'span1_text': 'The trophy'}} for number in range(3)]
  found = [json.loads(line)['label'] for line in superglue.submission(rows, records).splitlines()]
  assert found == ['True', 'False', 'False']


@pytest.mark.parametrize(
  ('form', 'names', 'row', 'label'),
  [
    (glue, ('negative', 'positive'), {}, '0'),
    (glue, ('entailment', 'neutral', 'contradiction'), {}, 'entailment'),
    (superglue, ('False', 'True'), {'question': 'q', 'passage': 'p'}, 'false'),
    (superglue, ('entailment', 'contradiction', 'neutral'), {}, 'entailment'),
    (superglue, ('choice1', 'choice2'), {'choice1': 'a', 'choice2': 'b'}, 0),
  ],
)
@pytest.mark.parametrize('none', [-1, np.asarray(-1)])
def test_a_text_that_is_no_label_is_handed_in_as_the_first(form, names, row, label, none, caplog):
  predictions = [{'text': 'banana', 'label': none}, {'text': names[1], 'label': 1}]
  with caplog.at_level('WARNING'):
    text = form.submission(predictions, [{'names': names, 'row': {**row, 'idx': number}} for number in range(2)])
  found = text.splitlines()[1].split('\t')[1] if form is glue else json.loads(text.splitlines()[0])['label']
  assert found == label
  assert [message for message in caplog.messages if '1 of 2 texts' in message]
  caplog.clear()
  form.submission(predictions[1:], [{'names': names, 'row': row}])
  assert not caplog.messages
  assert predictions[0]['label'] == -1  # scores still count it as wrong


def test_a_text_that_spells_no_number_is_handed_in_as_0(caplog):
  lines = glue.submission([{'text': 'x', 'value': -1.0}, {'text': '3.2', 'value': 3.2}], [{}, {}]).splitlines()
  assert lines[1:] == ['0\t0.000', '1\t3.200'] and '1 of 2 texts' in caplog.text


def test_answers_of_multirc_that_are_no_label_are_handed_in_as_the_first():
  record = {'names': ('False', 'True'), 'row': {'idx': {'paragraph': 0, 'question': 1, 'answer': 2}}}
  line = json.loads(superglue.submission([{'text': 'x', 'label': -1}], [record]))
  assert line['passage']['questions'][0]['answers'] == [{'idx': 2, 'label': 0}]


def test_superglue_takes_the_text_that_is_written_for_record():
  row = {'idx': {'passage': 3, 'query': 8}, 'query': 'q', 'entities': ['Ann', 'Bea']}
  record = {'row': row, 'options': (), 'names': ()}
  assert json.loads(superglue.submission([{'text': 'Bea'}], [record])) == {'idx': 8, 'label': 'Bea'}
  with pytest.raises(ValueError, match='WSC and ReCoRD'):
    superglue.submission([{'text': 'Bea'}], [{'row': {'article': 'a'}}])


def test_superglue_takes_the_entity_that_is_chosen():
  record = {'row': {'idx': {'passage': 3, 'query': 8}, 'query': 'q'}, 'options': ['Ann', 'Bea'], 'names': ()}
  assert json.loads(superglue.submission([{'label': np.int32(1)}], [record])) == {'idx': 8, 'label': 'Bea'}


def test_superglue_takes_multirc_by_paragraph():
  places = [(0, 0, 0), (0, 0, 1), (0, 1, 2), (1, 2, 3)]
  records = [
    {'names': ('False', 'True'), 'row': {'idx': dict(zip(('paragraph', 'question', 'answer'), place, strict=True))}}
    for place in places
  ]
  text = superglue.submission([{'label': np.int32(label)} for label in (1, 0, 1, 0)], records)
  assert [json.loads(line) for line in text.splitlines()] == [
    {
      'idx': 0,
      'passage': {
        'questions': [
          {'idx': 0, 'answers': [{'idx': 0, 'label': 1}, {'idx': 1, 'label': 0}]},
          {'idx': 1, 'answers': [{'idx': 2, 'label': 1}]},
        ]
      },
    },
    {'idx': 1, 'passage': {'questions': [{'idx': 2, 'answers': [{'idx': 3, 'label': 0}]}]}},
  ]


# A threshold, and nouns.


def test_a_threshold_is_the_best_one_of_all():
  metrics = pytest.importorskip('sklearn.metrics')
  random = np.random.default_rng(0)
  gold = random.integers(0, 2, 60)
  values = np.round(gold + random.normal(0, 1, 60), 1)  # some are equal
  found = threshold.best_threshold(values, gold.astype(bool))
  each = {value: metrics.matthews_corrcoef(gold, values >= value) for value in values.tolist()}
  assert each[found] == max(each.values())
  assert float(threshold.matthews(values >= found, gold > 0)) == pytest.approx(each[found])


def test_each_half_is_judged_by_the_other():
  values = [3, 30, 1, 10, 4, 40, 0, 0]  # even places: from 3 on, odd ones: from 30 on
  rows = [{'nats_per_token': np.float32(-value)} for value in values]
  records = [{'row': {'label': int(label)}} for label in (1, 1, 0, 0, 1, 1, 0, 0)]
  # even places by 30: all are 0, so two of four are right; odd ones by 3: 30, 10 and 40 are 1, three of four are right
  found = threshold.score(rows, records)
  assert found['threshold_accuracy'] == pytest.approx(5 / 8)
  assert found['threshold_matthews'] == pytest.approx((2 * 3 - 1 * 2) / math.sqrt(3 * 4 * 4 * 5))
  with pytest.raises(ValueError, match=r"'label'.*0 or 1"):
    threshold.score(rows, [{'row': {'label': -1}}] * 8)


NOUNS = (
  ('the trophy', 'The trophy', 1), ('trophy', 'The brown trophy', 0), ("Bob's hat", 'Bob', 1), ('Ann', 'Bea', 0),
  ('Ann', 'Bea', 1), ('his fuzzy bunny', 'the bunny', 1),
)  # fmt: skip


def test_a_noun_is_judged_as_by_the_harness():
  """Its task `wsc-t5-prompt` has the rule of T5's code."""
  pytest.importorskip('lm_eval')
  from lm_eval.tasks.super_glue.wsc import t5_utils

  for text, noun, label in NOUNS:
    row = {'span1_text': noun, 'label': label}
    theirs = t5_utils.process_results(row, [text])['accuracy']
    assert wsc.score([{'text': text}], [{'row': row}]) == {'wsc_accuracy': theirs}


def test_no_noun_is_always_wrong():
  assert [wsc.names(text, noun) for text, noun, _ in NOUNS] == [True, True, False, False, False, True]
  for label in (0, 1):
    assert wsc.score([{'text': 'the '}], [{'row': {'span1_text': 'Ann', 'label': label}}]) == {'wsc_accuracy': 0}
  with pytest.raises(ValueError, match=r"score 'wsc'.*'span1_text'"):
    wsc.score([{'text': 'a'}], [{'row': {'label': 1}}])


def test_numbers_that_a_benchmark_takes_as_words_are_told(caplog):
  rows = [{'label': 1}, {'label': 0}]
  qnli, mrpc = {'question': 'a', 'sentence': 'b'}, {'sentence1': 'a', 'sentence2': 'b'}
  for form, fields, task in ((glue, qnli, 'QNLI'), (superglue, {'question': 'a', 'passage': 'b'}, 'BoolQ')):
    caplog.clear()
    form.submission(rows, [{'row': fields, 'names': ()}] * 2)
    assert task in caplog.text and 'labels.json' in caplog.text
  caplog.clear()
  glue.submission(rows, [{'row': mrpc, 'names': ()}] * 2)
  glue.submission(rows, [{'row': qnli, 'names': ('entailment', 'not_entailment')}] * 2)
  assert not caplog.messages
