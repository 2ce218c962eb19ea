"""Scores of texts beside the official packages, beside numbers worked out by hand, and on published examples."""

import math
import statistics

import numpy as np
import pytest

from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Source, Task
from plm_jax.runs import predicted, scoring
from plm_jax.scores import bleu, draws, f1, macro_f1, match, rouge
from plm_jax.training import evaluation


def rows(texts):
  return [{'text': text} for text in texts]


def records(targets, **more):
  return [{'references': list(each), **more} for each in targets]


def test_rouge_by_hand():
  """The example of the package's README: 6 of 8 words are among the 9, and 3 of 7 pairs among the 8."""
  pytest.importorskip('rouge_score')
  found = rouge.score(
    rows(['The quick brown dog jumps on the log.']), records([['The quick brown fox jumps over the lazy dog']])
  )
  assert found['rouge1'] == pytest.approx(100 * 2 * 6 / (8 + 9))
  assert found['rouge2'] == pytest.approx(100 * 2 * 2 / (7 + 8))  # the quick, quick brown
  assert found['rougeL'] == pytest.approx(100 * 2 * 5 / (8 + 9))  # the quick brown jumps the


def test_rouge_takes_the_best_reference_and_the_mean_over_rows():
  pytest.importorskip('rouge_score')
  found = rouge.score(rows(['a b c', 'x']), records([['z', 'a b c'], ['y']]))
  assert found['rouge1'] == found['rougeLsum'] == pytest.approx(50)


def test_rouge_stems_words_and_compares_sentences():
  pytest.importorskip('rouge_score')
  assert rouge.score(rows(['running dogs']), records([['runs dog']]))['rouge1'] == pytest.approx(100)
  swapped = rouge.score(rows(['One two three. Four five six.']), records([['Four five six. One two three.']]))
  assert swapped['rougeLsum'] == pytest.approx(100)
  assert swapped['rougeL'] == pytest.approx(50)
  assert rouge.in_lines('A b. C d! E') == 'A b.\nC d!\nE'
  assert rouge.in_lines('A b.\nC d! E') == 'A b.\nC d! E'


def test_bleu_is_that_of_sacrebleu():
  """The example of sacrebleu's README, with its published score."""
  sacrebleu = pytest.importorskip('sacrebleu')
  texts = ['The dog bit the man.', "It wasn't surprising.", 'The man had just bitten him.']
  references = [
    ['The dog bit the man.', 'The dog had bit the man.'],
    ['It was not unexpected.', 'No one was surprised.'],
    ['The man bit him first.', 'The man had bitten the dog.'],
  ]
  found = bleu.score(rows(texts), records(references))
  assert found['bleu'] == pytest.approx(48.53, abs=0.005)
  columns = [list(column) for column in zip(*references, strict=True)]
  assert found['bleu_intl'] == pytest.approx(sacrebleu.corpus_bleu(texts, columns, tokenize='intl').score)


def test_bleu_by_hand():
  """One text of 4 words whose last is wrong: precisions 3/4, 2/3, 1/2, and 0, which counts as 1/2 of a match."""
  pytest.importorskip('sacrebleu')
  found = bleu.score(rows(['a b c d']), records([['a b c e']]))
  assert found['bleu'] == pytest.approx(100 * math.prod((3 / 4, 2 / 3, 1 / 2, 1 / 2)) ** 0.25)


def test_bleu_with_fewer_references_of_a_row():
  pytest.importorskip('sacrebleu')
  found = bleu.score(rows(['a b c d e', 'f g h i j']), records([['x', 'a b c d e'], ['f g h i j']]))
  assert found['bleu'] == pytest.approx(100)


def test_a_match_is_one_of_the_targets():
  found = match.score(
    rows(['positive', 'The  Cat!', 'dog', 'neither']),
    [*records([['positive'], ['a cat'], ['cat', 'dog']]), *records([['negative']], options=('negative', 'positive'))],
  )
  assert found == {'exact_match': 0.5, 'normalised_match': 0.75, 'unmatched': 0.25}


def test_draws_have_a_mean_and_a_spread():
  right = {0: [1, 1, 0, 0], 1: [1, 1, 1, 0], 2: [1, 1, 1, 1]}
  predictions = [{'label': label} for draw in right.values() for label in draw]
  gold = [{'label': 1, 'draw': draw} for draw, labels in right.items() for _ in labels]
  found = draws.score(predictions, gold)
  assert found == {'draws_accuracy': 0.75, 'draws_spread': pytest.approx(statistics.stdev([0.5, 0.75, 1.0]))}
  assert draws.score(predictions[:4], gold[:4]) == {'draws_accuracy': 0.5, 'draws_spread': 0.0}


def test_draws_of_written_answers_have_a_mean_and_a_spread():
  """LAMBADA has no options: the prediction says itself whether it is right."""
  right = {0: [1, 1, 0, 0], 1: [1, 1, 1, 0]}
  predictions = [{'right': np.bool_(one)} for draw in right.values() for one in draw]
  gold = [{'label': 0, 'draw': draw} for draw, each in right.items() for _ in each]
  expected = {'draws_accuracy': 0.625, 'draws_spread': pytest.approx(statistics.stdev([0.5, 0.75]))}
  assert scoring.score('draws', predictions, gold) == expected
  assert predicted.fitting(predictions, gold) == ['draws']
  scoring.check(('draws',), ['nats', 'right'], where='eval.test', user="adapter 'prompt'")
  with pytest.raises(ConfigError, match=r"'draws'.*label or right"):
    scoring.check(('draws',), ['nats'], where='eval.test', user="adapter 'prompt'")


def test_a_text_that_is_no_label_is_no_class_of_macro_f1():
  """By hand: class 0 is found in one of two rows, class 1 in all, each without a false one."""
  pytest.importorskip('sklearn')
  found = macro_f1.score([{'label': label} for label in (0, -1, 1)], [{'label': label} for label in (0, 0, 1)])
  assert found['macro_f1'] == pytest.approx((2 / 3 + 1) / 2)


def test_scores_read_what_a_task_says_in_words(monkeypatch):
  """Text is made of tokens on the host, so an evaluation scores it beside what was predicted on the device."""
  references = ['one', 'two']
  source = Source({}, 2, iter, iter, '', record=lambda row: {'references': [references[row]], 'options': references})
  write = lambda prediction, record: {'text': record['references'][0] if prediction['row_id'] else 'none'}  # noqa: E731
  task = Task(None, None, None, in_words=write, words=('text',), scores=('match',))
  rows = [{'row_id': 0}, {'row_id': 1}]
  monkeypatch.setattr(evaluation, '_over_rows', lambda *args, **kwargs: ({'loss': (1.0, 1.0)}, rows))
  found = evaluation.evaluate(source, None, None, task=task, steps=None, layout=None, scores=('match',))
  assert found.metrics == {'loss': 1.0, 'exact_match': 0.5, 'normalised_match': 0.5, 'unmatched': 0.5}
  assert [row['text'] for row in found.predictions] == ['none', 'two']


def test_a_score_of_labels_says_that_texts_have_none():
  with pytest.raises(ConfigError, match=r"'draws'.*label"):
    scoring.score('draws', [{'text': 'a'}], [{'label': 1, 'draw': 0}])


def test_a_text_that_is_no_label_counts_as_the_wrong_class():
  """By hand: of gold 1 1 0 and predictions 1 -1 -1, one hit, one miss and one false alarm."""
  pytest.importorskip('sklearn')
  found = f1.score([{'label': label} for label in (1, -1, -1)], [{'label': label} for label in (1, 1, 0)])
  assert found['f1'] == pytest.approx(2 / (2 + 1 + 1))
