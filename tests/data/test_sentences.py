"""What ends a sentence: BERT's corpus form and others, in every form of text and kind of vocabulary."""

import itertools
import json
import pathlib

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from plm_jax.core.errors import ConfigError
from plm_jax.data import pairs, stream
from plm_jax.data.rows import boundaries
from plm_jax.data.rows.sentences import any_script, line
from plm_jax.noise import pair
from plm_jax.text import byte_bpe, sentencepiece, wordpiece, words

# lines without full stops, with full stops and small letters after them, and scripts without spaces
LINES = (
  'the cat sat on the mat', 'it slept. then it ate. then it left', 'Rain came', 'we went home', '3.14 is pi. yes',
  '床前明月光 疑是地上霜', 'a line with  two blanks', 'x', 'An end.', 'another one!',
)  # fmt: skip
DOCUMENTS = [
  [' '.join((LINES[(7 * d + 3 * i) % 10], f'n{d}')) for i in range(3 + d % 4)] for d in range(12)
]  # lines of each document
TEXT = [' '.join(lines) for lines in DOCUMENTS] * 3
VOCABS = {
  'wordpiece': lambda: wordpiece.train(TEXT, size=200, min_frequency=1),
  'cased': lambda: wordpiece.train(TEXT, size=200, min_frequency=1, lowercase=False),
  'byte_bpe': lambda: byte_bpe.train(['\n'.join(lines) for lines in DOCUMENTS] * 3, size=400),
  'sentencepiece': lambda: sentencepiece.train(TEXT, size=150),
  'words': lambda: words.train(TEXT, size=200, min_frequency=1),
}
FORMS = ('txt', 'crlf', 'jsonl', 'parquet')


@pytest.fixture(scope='module', params=VOCABS)
def vocab(request):
  return VOCABS[request.param]()


def write(folder, form, documents=DOCUMENTS):
  texts = ['\n'.join(lines) for lines in documents]
  if form == 'jsonl':
    path = folder / 'corpus.jsonl'
    path.write_text(''.join(json.dumps({'text': text}) + '\n' for text in texts))
  elif form == 'parquet':
    path = folder / 'corpus.parquet'
    pyarrow.parquet.write_table(pa.table({'text': texts}), path)
  else:
    path = folder / 'corpus.txt'
    text = '\n\n'.join(texts) + '\n'
    path.write_bytes((text.replace('\n', '\r\n') if form == 'crlf' else text).encode())
  return str(path)


def make(path, vocab, *, module=pairs, **changes):
  cache = str(pathlib.Path(path).parent / 'cache')
  settings = dict(vocab=vocab, path=path, length=48, batch_size=4, seed=0, cache=cache, shuffle=False)
  return module.make(**(settings | changes))


def lines_of(vocab, documents=DOCUMENTS):
  """Return the tokens of each line, without line feeds."""
  return [[vocab.encode(text) for text in lines] for lines in documents]


def without_feeds(vocab, ids):
  return [i for i in map(int, ids) if vocab.decode([i]) != '\n']


@pytest.mark.parametrize('form', FORMS)
def test_lines_are_sentences_in_every_form_and_vocabulary(tmp_path, vocab, form):
  source = make(write(tmp_path, form), vocab, unit='sentence', sentences='line')
  got = [
    tuple(without_feeds(vocab, batch[name][row, : batch[f'{name}_length'][row]]) for name in ('first', 'next'))
    for batch in source.once()
    for row in np.flatnonzero(batch['row_weight'])
  ]
  expected = [
    (lines[at], lines[at + 1] if at + 1 < len(lines) else [])
    for lines in lines_of(vocab)
    for at in range(0, len(lines), 2)
  ]
  assert got == expected


@pytest.mark.parametrize('form', ['txt', 'jsonl'])
def test_tokens_of_a_stream_name_their_line(tmp_path, vocab, form):
  source = make(write(tmp_path, form), vocab, module=stream, sentences='line', begin='', end='', length=160)
  got = {}
  for batch in source.once():
    for row in np.flatnonzero(batch['row_weight']):
      keys = zip(batch['segment_ids'][row], batch['sentence_ids'][row], batch['tokens'][row], strict=True)
      for (segment, _), group in itertools.groupby(keys, key=lambda token: token[:2]):
        if segment:
          got.setdefault((int(batch['row_id'][row]), int(segment)), []).append(
            without_feeds(vocab, [token for _, _, token in group])
          )
  assert sorted(got.values()) == sorted(lines_of(vocab))


def test_both_are_the_lines_and_the_punctuation_in_them(tmp_path):
  vocab = VOCABS['wordpiece']()
  path = write(tmp_path, 'txt', [['the cat. sat', 'went home'], ['it slept. then', 'home']])
  rule = {
    name: [
      vocab.decode(batch['first'][row, : batch['first_length'][row]])
      for batch in make(path, vocab, unit='sentence', sentences=name).once()
      for row in np.flatnonzero(batch['row_weight'])
    ]
    for name in ('line', 'both', 'punctuation')
  }
  assert [len(found) for found in rule.values()] == [2, 4, 2]
  assert rule['line'][0] == 'the cat. sat' and rule['both'] == ['the cat.', 'went home', 'it slept.', 'home']


@pytest.mark.parametrize('text', ['a\nb', 'a\r\nb', 'a\rb', 'a \n\t\n  b', '\na\nb\n'])
def test_line_starts(text):
  found = line.starts(text)
  assert text[found[-1]] == 'b'


@pytest.mark.parametrize('question', [pair.next_or_other, pair.in_order_or_swapped])
def test_both_labels_occur_with_lines(tmp_path, question):
  source = make(write(tmp_path, 'txt'), VOCABS['wordpiece'](), sentences='line', length=16)
  batch = {k: np.concatenate([b[k] for b in source.once()]) for k in source.spec}
  parts = [pair.Segment(batch[name], batch[f'{name}_length']) for name in ('first', 'next', 'other')]
  labels = jax.vmap(question)(jax.random.split(jax.random.key(0), len(batch['row_id'])), *parts).label
  assert 0.15 < np.mean(labels) < 0.85


@pytest.mark.parametrize(
  ('documents', 'settings', 'fix'),
  [
    (DOCUMENTS, {}, "data.sentences='line'"),
    ([['one two. three four.'], ['five. six.']], {'sentences': 'line'}, "data.sentences='punctuation'"),
    (DOCUMENTS, {'documents': 'line'}, "data.documents='blank_line' and data.sentences='line'"),
  ],
)
def test_one_label_is_refused_and_the_fix_works(tmp_path, documents, settings, fix):
  plain = [[text.replace('.', '').replace('!', '') for text in lines] for lines in documents]
  path = write(tmp_path, 'txt', documents if settings.get('sentences') else plain)
  vocab = VOCABS['wordpiece']()
  with pytest.raises(ValueError, match=r'single sentence.*same label') as error:
    make(path, vocab, **settings)
  message = str(error.value)
  assert fix in message and len(message.replace(path, '')) < 240
  changes = dict(
    part.removeprefix('data.').split('=') for part in message.split('; set ')[1].rstrip('.').split(' and ')
  )
  make(path, vocab, **(settings | {key: value.strip("'") for key, value in changes.items()}))


SCRIPTS = {
  'zh': ['他来了！', '“我们走吧。”', '他说：好；对。', '（真的？）', '是'],
  'ja': ['「行こう。」', '『猫。』', '本当？！', 'はい｡', '次'],
  'hi': ['यह पहला है। ', 'तीसरा है॥ ', 'दो'],
  'ar': ['هل هذا أول؟ ', 'نعم هذا۔ ', 'وعاد. ', 'ثم'],
  'others': ['Մեկ։ ', 'ပထမ။', 'አንድ። ', 'ខ្មែរ។ ', 'a'],
  'lines': ['a b\u2028', 'c d\u0085', 'e\x0c', 'g\u2029', 'h\x0b', 'i\r\n', 'j'],
  'en': [
    'Dr. No met J. Smith. ',
    '"It slept." ',
    'Rain?! ',
    'No... ',
    '3.14 is pi at example.com! so what',
    '\n',
    'e.',
  ],
}


@pytest.mark.parametrize('script', SCRIPTS)
def test_sentences_of_any_script(script):
  parts = [part for part in SCRIPTS[script] if part != '\n']
  text = ''.join(SCRIPTS[script])
  cuts = [0, *any_script.starts(text), len(text)]
  assert [text[a:b].strip() for a, b in itertools.pairwise(cuts)] == [part.strip() for part in parts]


@pytest.mark.parametrize('train', [byte_bpe.train, wordpiece.train])
def test_chinese_on_one_line_names_the_rule_that_works(tmp_path, train):
  texts = ['“我们走吧。”他说。真的吗？好。', '他来了！他走了。天黑了。']
  path, vocab = write(tmp_path, 'jsonl', [[text] for text in texts]), train(texts * 20, size=500)
  with pytest.raises(ValueError, match=r"single sentence.*set data\.sentences='any_script'|set data\.sentences='punc"):
    make(path, vocab, sentences='line')
  source = make(path, vocab, sentences='any_script', unit='sentence')
  first = next(iter(source.once()))
  assert vocab.decode(first['first'][0, : first['first_length'][0]]).replace(' ', '') == '“我们走吧。”'


def test_a_text_without_sentences_names_no_rule_again(tmp_path):
  path = write(tmp_path, 'txt', [['one two'], ['three four']])
  with pytest.raises(ValueError, match=r'write a sentence a line.*function of yours'):
    make(path, VOCABS['wordpiece'](), sentences='line')


def test_many_single_sentences_are_counted(tmp_path, caplog):
  path = write(tmp_path, 'txt', [['alone'], ['also alone'], ['two lines', 'here']])
  make(path, VOCABS['wordpiece'](), sentences='line')
  assert '2 of 3 examples are a single sentence' in caplog.text and 'set data' not in caplog.text
  with pytest.raises(ValueError, match=r"all 3 examples.*data\.sentences='line'"):
    make(path, VOCABS['wordpiece']())


def test_documents_of_one_sentence_are_reported_by_a_stream(tmp_path, caplog):
  path = write(tmp_path, 'txt', [['one two three'], ['four five']])
  make(path, VOCABS['wordpiece'](), module=stream, sentences='line')
  assert 'all 2 documents are a single sentence' in caplog.text


def test_an_unknown_rule_names_the_nearest():
  with pytest.raises(ConfigError, match=r"data\.sentences.*'lines'.*line"):
    boundaries.rule_of('lines')


def test_a_slice_by_tokens_keeps_its_lines(tmp_path):
  vocab, path = VOCABS['wordpiece'](), write(tmp_path, 'txt')
  whole = make(path, vocab, unit='sentence', sentences='line')
  part = make(path, vocab, unit='sentence', sentences='line', split='train[50%tokens:]')
  first = [b['first'][r].tolist() for b in whole.once() for r in range(4)]
  later = [b['first'][r].tolist() for b in part.once() for r in range(4)]
  assert sum(row in first for row in later) >= len(later) // 2


def test_a_function_of_a_user_ends_sentences(tmp_path, monkeypatch):
  module = "SENTENCES = ('at_semicolons', 'texts')\ndef at_semicolons(text):\n"
  module += "  return [i + 1 for i, c in enumerate(text) if c == ';']\ndef texts(text):\n  return [text]\n"
  (tmp_path / 'my_sentences.py').write_text(module)
  monkeypatch.syspath_prepend(tmp_path)
  path = write(tmp_path, 'txt', [['a b; c d', 'e; f'], ['g; h']])
  source = make(path, VOCABS['words'](), unit='sentence', sentences='my_sentences:at_semicolons')
  lengths = np.concatenate([b['first_length'] for b in source.once()])
  assert source.rows == 3 and lengths.min() > 0
  for name, message in (('texts', 'indices of characters'), ('other', 'does not list'), ('os:system', 'does not list')):
    with pytest.raises(ConfigError, match=message):
      make(path, VOCABS['words'](), sentences=name if ':' in name else f'my_sentences:{name}')
