"""Scores of texts that are not Latin: tokens by script, by setting, and beside what others' programs print."""

import logging
import unicodedata

import pytest

from plm_jax.core.errors import ConfigError
from plm_jax.runs import predicted, scoring
from plm_jax.scores import bleu, rouge, squad, tokens

TEXTS = {
  'Chinese': '我们今天去北京看长城。',
  'traditional Chinese with Latin': '我們用 BERT 模型預測下一個詞',
  'Japanese': '今日は東京タワーへ行きます。',
  'Thai': 'สวัสดีครับผมชื่อสมชาย',
  'Khmer': 'ខ្ញុំចូលចិត្តអានសៀវភៅ',
  'Korean': '나는 오늘 서울에 갔다',
  'Arabic': 'السلام عليكم ورحمة الله',
  'Hindi': 'नमस्ते दुनिया कैसे हो',
  'Cyrillic': 'Привет, как дела сегодня?',
  'German': 'Schöne Grüße aus Köln',
  'Vietnamese': 'Tôi là sinh viên đại học',
}
# right and predicted answers, with exact match and F1 of cmrc2018_evaluate.py (words split by nltk's Treebank rules)
CMRC = [
  ('光荣和ω-force', '光荣和ω-force', 1, 1.0),
  ('光荣', '光荣和ω-force', 0, 2 / 3),
  ('《村雨城》', '任天堂游戏谜之村雨城', 0, 6 / 13),
  ('1999年3.5亿', '3.5亿', 0, 2 / 3),
  ('Google Maps。', 'google maps', 1, 1.0),
  ("don't 知道", 'do 知道', 0, 4 / 7),
  ('长城，北京', '北京长城', 0, 0.5),
  ('无', '有', 0, 0.0),
]


def score(name, text, *references):
  row = {'answers': {'text': list(references)}, 'context': ''}
  return scoring.score(name, [{'text': text}], [{'references': list(references), 'row': row}])


@pytest.mark.parametrize('name', ['rouge', 'bleu', 'squad', 'squad2'])
@pytest.mark.parametrize('language', TEXTS)
def test_an_identical_text_is_right_and_a_changed_one_is_not(name, language):
  pytest.importorskip({'rouge': 'rouge_score', 'bleu': 'sacrebleu'}.get(name, 'numpy'))
  text, metric = TEXTS[language], {'rouge': 'rouge2', 'bleu': 'bleu'}.get(name, 'f1')
  half = text[: len(text) // 2]
  assert score(name, text, text)[metric] == pytest.approx(100)
  assert score(name, half, text)[metric] < 90
  assert score(name, 'zzz', text)[metric] == 0


def test_letters_and_their_marks_are_compared():
  pytest.importorskip('rouge_score')
  assert score('rouge', 'Grüße', 'Größe')['rouge1'] == 0
  assert score('rouge', 'cafe\u0301', 'café')['rouge1'] == 100
  assert score('rouge', 'कि', 'की')['rouge1'] == 0
  assert tokens.letters('Łódź_नमस्ते, 3٣ ＡＢ') == ['łódź', 'नमस्ते', '3٣', 'ab']


def test_decomposed_letters_are_not_ascii():
  pytest.importorskip('rouge_score')
  decomposed = [unicodedata.normalize('NFD', text) for text in ('con cửa của anh', 'con cưa cua anh')]
  assert tokens.script([decomposed[:1]]) == 'letters'
  assert score('rouge', decomposed[1], decomposed[0])['rouge1'] == pytest.approx(50)


def test_english_is_scored_as_before():
  pytest.importorskip('rouge_score')
  from rouge_score.rouge_scorer import RougeScorer

  text = 'The running dogs of the café barked at 5 p.m.'
  right = (
    'A dog at the café, 北京, barks in the evening, and runs. '
    + 'It was a long day for all of them, and they slept. ' * 30
  )
  own = score('rouge', text, right)
  theirs = RougeScorer(['rouge1', 'rougeL'], use_stemmer=True).score(right, text)
  assert {name: own[name] for name in theirs} == {name: 100 * value.fmeasure for name, value in theirs.items()}
  records = [{'references': [right], 'row': {'answers': {'text': [right]}}}]
  assert [module.chosen(records) for module in (rouge, bleu, squad)] == ['rouge', '13a', 'squad']


def test_answers_are_compared_as_by_the_script_of_cmrc_2018():
  for right, answer, exact, f1 in CMRC:
    found = score('squad:cmrc', answer, right)
    assert found == {'exact_match': 100 * exact, 'f1': pytest.approx(100 * f1)}


@pytest.mark.parametrize('tokenize', ['zh', 'char', 'intl', 'none', '13a'])
def test_bleu_has_the_tokens_of_sacrebleu(tokenize):
  sacrebleu = pytest.importorskip('sacrebleu')
  text, right = '我们明天去北京看 the Great Wall。', '我们今天去北京看 the great Wall。'
  assert (
    score(f'bleu:{tokenize}', text, right)['bleu'] == sacrebleu.corpus_bleu([text], [[right]], tokenize=tokenize).score
  )


@pytest.mark.parametrize(('tokenize', 'fix'), [('ja-mecab', r'pip install "sacrebleu\[ja\]"'), ('ko-mecab', r'\[ko\]')])
def test_tokens_whose_package_is_missing_are_refused_with_the_command(tokenize, fix, monkeypatch):
  metrics = pytest.importorskip('sacrebleu.metrics')

  def fail(*args, **kwargs):
    raise RuntimeError('not installed')

  monkeypatch.setattr(metrics, 'BLEU', fail)
  with pytest.raises(ConfigError, match=fix):
    bleu.check([{'references': ['a']}], tokenize)


def test_a_reference_without_a_token_is_refused_before_training():
  pytest.importorskip('rouge_score')
  rows = [{'references': ['一个词']}, {'references': ['。。。']}]
  with pytest.raises(ValueError, match=r"row 1, '。。。', has no token by tokenize='characters': remove that row"):
    rouge.check(rows)
  with pytest.raises(
    ValueError, match=r"row 0, '一个词', .*tokenize='rouge': set eval.NAME.tokenize=\('characters',\)"
  ):
    rouge.check(rows, 'rouge')
  with pytest.raises(ValueError, match=r"score 'bleu': row 0, ' ', has no token"):
    pytest.importorskip('sacrebleu') and bleu.check([{'references': [' ']}])
  with pytest.raises(ValueError, match=r"score 'squad': row 1, '《》', has no token"):
    squad.check([{'answers': ['长城']}, {'answers': ['《》']}])
  rouge.check([{'references': ['...', 'a']}, {'references': None}])  # one of several is enough


def test_the_setting_goes_to_the_score_that_has_it(caplog):
  wanted = scoring.tokenized(('rouge', 'bleu', 'match', 'qa/squad'), ('zh', 'cmrc', 'letters'), where='eval.test')
  assert wanted == ('rouge:letters', 'bleu:zh', 'match', 'qa/squad:cmrc')
  assert scoring.known(wanted[3]).part == 'qa' and scoring.metrics(wanted[:1]) == scoring.metrics(('rouge',))
  for names, given in ((('rouge',), ('zh',)), (('rouge',), ('letters', 'characters')), (('match',), ('zh',))):
    with pytest.raises(ConfigError, match=r"eval.test.tokenize: '\w+' fits no score"):
      scoring.tokenized(names, given, where='eval.test')


def test_what_the_script_chose_is_logged_once_and_holds_for_every_row(caplog):
  caplog.set_level(logging.INFO)
  scoring._tell.cache_clear()
  rows = [{'text': '长城'}, {'text': 'the wall'}], [{'row': {'answers': {'text': [text]}}} for text in ('长城', 'wall')]
  for _ in range(2):
    scoring.score('squad', *rows)
  assert [line for line in caplog.messages if "tokenize='cmrc'" in line] == [
    "score 'squad': tokenize='cmrc', by the script of the references; eval.NAME.tokenize sets it: squad, cmrc"
  ]
  assert scoring.settled('squad', rows[1]) == 'squad:cmrc'
  assert scoring.settled('squad:squad', rows[1]) == 'squad:squad' and scoring.settled('match', rows[1]) == 'match'


def test_files_of_predictions_are_scored_by_named_tokens():
  rows = [{'text': '长城'}], [{'row': {'answers': {'text': ['长城!']}, 'context': ''}}]
  assert predicted.score(*rows, names=('squad:cmrc',))['exact_match'] == 0
  assert predicted.score(*rows, names=('squad:squad',))['exact_match'] == 100
  with pytest.raises(ConfigError, match=r"unknown tokenize of 'squad' 'cmcr'.*cmrc"):
    predicted.score(*rows, names=('squad:cmcr',))
