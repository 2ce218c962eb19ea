"""Words of a segmenter: which tokens continue a word, who reads it, and what a config may name."""

import functools
import itertools
import re
import sys

import jax
import numpy as np
import pytest

from launch import phrases
from plm_jax.config import build
from plm_jax.config.load import resolve
from plm_jax.core.errors import ConfigError
from plm_jax.data import mixture, pairs, stream
from plm_jax.data.rows import segments
from plm_jax.noise import keys
from plm_jax.objectives import denoise_seq2seq, mlm, permuted_lm, rtd, sentence_pair, span_boundary, unilm
from plm_jax.text import byte_bpe, wordpiece
from tests import tiny
from tests.objectives import test_permutation_lm

TEXT = '使用语言模型来预测下一个词的probability。'
WORDS = [
  '使用',
  '语言',
  '模型',
  '来',
  '预测',
  '下',
  '一个',
  '词',
  '的',
  'probability',
  '。',
]  # the example of github.com/ymcui/Chinese-BERT-wwm
MODULE = """
import re
SEGMENTERS = ('pairs', 'upper', 'drops', 'numbers')
def pairs(text): return re.findall('..?', text, re.DOTALL)
def upper(text): return [text.upper()]
def drops(text): return list(text)[1:]
def numbers(text): return [1]
def hidden(text): return list(text)
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
  """Write a module with segmenters, and one that fails when it is run."""
  (tmp_path / 'my_words.py').write_text(MODULE)
  (tmp_path / 'bomb.py').write_text('raise RuntimeError("it was run")\n')
  monkeypatch.syspath_prepend(tmp_path)
  segments.segmenter.cache_clear()
  yield
  sys.modules.pop('my_words', None)


def cut(text, name):
  places = np.flatnonzero(segments.words(text, name))
  return [text[start:end] for start, end in itertools.pairwise(places)]


def test_jieba_finds_the_words_of_the_published_example():
  pytest.importorskip('jieba', reason='pip install -r requirements/chinese.txt')
  assert cut(TEXT, 'jieba') == WORDS
  assert cut('Привет, мир! cafe\u0301 卡拉OK', 'jieba') == [
    'Привет',
    ',',
    ' ',
    'мир',
    '!',
    ' ',
    'cafe\u0301',
    ' ',
    '卡拉',
    'OK',
  ]


def make(folder, vocab, **changes):
  settings = dict(path=str(folder), cache=str(folder), length=16, batch_size=2, seed=0, vocab=vocab, shuffle=False)
  return stream.make(**(settings | dict(layout='rows', segmenter='my_words:pairs') | changes))


@pytest.mark.parametrize('kind', [wordpiece, byte_bpe], ids=['wordpiece', 'byte_bpe'])
def test_marks_follow_the_segmenter(tmp_path, kind):
  """Each token of the text that begins a pair of letters has 2, others 1, special tokens 0; tokens do not change."""
  (tmp_path / 'train.txt').write_text('我们在野生动物园\n\n玩playing卡拉')
  vocab = kind.train(['我们在野生动物园 玩playing卡拉'] * 3, size=70 if kind is wordpiece else 300)
  batches = list(make(tmp_path, vocab).once())
  plain = list(make(tmp_path, vocab, segmenter=None).once())
  seen = 0
  for batch, same in zip(batches, plain, strict=True):
    marks = batch.pop('word_marks')
    for key in same:
      np.testing.assert_array_equal(batch[key], same[key])
    for ids, row in zip(batch['tokens'], marks, strict=True):
      special = np.isin(ids, vocab.special_ids)
      assert not row[special].any() and row[~special].all()
      text = next(
        (text for text in ('我们在野生动物园', '玩playing卡拉') if vocab.encode(text) == ids[~special].tolist()), None
      )
      if text is not None:
        spans = vocab.encode_offsets(text)[1]
        wanted = [1 + (start % 2 == 0 and (not at or spans[at - 1][1] <= start)) for at, (start, _) in enumerate(spans)]
        assert row[~special].tolist() == wanted
        seen += 1
  assert seen == 2


def test_a_slice_by_tokens_keeps_its_marks(tmp_path):
  (tmp_path / 'train.txt').write_text('我们在野生动物园')
  vocab = wordpiece.train(['我们在野生动物园'] * 3, size=60)
  (batch,) = make(tmp_path, vocab, split='train[3tokens:]', batch_size=1).once()
  assert batch['word_marks'][0, 1:6].tolist() == [1, 2, 1, 2, 1]  # the fourth letter continues its pair


def test_a_segmenter_of_one_part_of_a_mixture_by_rows(tmp_path):
  """Rows of the other part leave words and sentences to the vocabulary."""
  (tmp_path / 'train.txt').write_text('\n\n'.join(['我们在野生\n动物园'] * 4))
  vocab = wordpiece.train(['我们在野生动物园'] * 3, size=60)
  part = dict(name='stream', path=str(tmp_path), cache=str(tmp_path))
  parts = dict(a=dict(part, segmenter='my_words:pairs'), b=part, c=dict(part, sentences='line'))
  source = mixture.make(vocab=vocab, parts=parts, length=16, batch_size=4, seed=0)
  keys_of = ('part', 'word_marks', 'sentence_ids')
  rows = [row for batch in source.once() for row in zip(*(batch[key] for key in keys_of), strict=True)]
  by_part = {part: [row[1:] for row in rows if row[0] == part] for part in range(3)}
  assert [any(marks.max() > 1 for marks, _ in found) for found in by_part.values()] == [True, False, False]
  assert [all(ids.max() < 0 for _, ids in found) for found in by_part.values()] == [True, True, False]


CASES = {
  'mlm': (mlm, dict(where={'name': 'whole_word', 'rate': 0.4})),
  'span_boundary': (span_boundary, dict(where={'name': 'whole_word', 'rate': 0.4})),
  'rtd': (rtd, dict(where={'name': 'whole_word', 'rate': 0.4}, sampling='uniform')),
  'unilm': (unilm, dict(where={'name': 'whole_word', 'rate': 0.4})),
}


@pytest.mark.parametrize('name', CASES)
def test_masks_cover_the_words_of_the_segmenter(name):
  """Words of four tokens by the marks are chosen whole; a mark of 0 leaves it to the vocabulary."""
  module, settings = CASES[name]
  task = module.make(trunk=tiny.make_trunk('bert'), vocab=tiny.VOCAB, **settings)
  batch = dict(tiny.make_batch())
  shape = batch['tokens'].shape
  words = np.broadcast_to(np.arange(shape[1]) // 4, shape)
  prepare = jax.jit(task.prepare)
  marks = np.where(np.arange(shape[1]) % 4, 1, 2) + np.zeros(shape, np.int32)
  plain, unmarked, marked = (
    prepare(jax.random.key(0), keys.with_step(batch | extra, 0))
    for extra in ({}, {'word_marks': 0 * marks}, {'word_marks': marks})
  )
  jax.tree.map(np.testing.assert_array_equal, plain, unmarked)
  whole = functools.partial(_whole, words=words, batch=batch)
  assert whole(marked) and not whole(plain)


def test_text_infilling_and_moved_sentences_keep_the_words_of_the_segmenter():
  settings = dict(where={'name': 'whole_word', 'rate': 0.4}, edit={'name': 'to_mask'}, target='text', start='eos')
  trunk = build.make('models', dict(name='bart', variant='tiny'), vocab_size=tiny.VOCAB.size, execution=tiny.PLAIN)
  batch = dict(tiny.make_batch())
  marks = np.where(np.arange(batch['tokens'].shape[1]) % 4, 1, 2) + np.zeros(batch['tokens'].shape, np.int32)
  for moves in ((), ({'name': 'rotate'},)):
    task = denoise_seq2seq.make(trunk=trunk, vocab=tiny.VOCAB, append_eos=False, rearrange=moves, **settings)
    prepare = jax.jit(task.prepare)
    plain, unmarked, marked = (
      prepare(jax.random.key(0), keys.with_step(batch | extra, 0))
      for extra in ({}, {'word_marks': 0 * marks}, {'word_marks': marks})
    )
    jax.tree.map(np.testing.assert_array_equal, plain, unmarked)
    masked = [np.asarray(each.inputs['encoder_tokens']) == tiny.VOCAB.mask_id for each in (plain, marked)]
    if moves:
      assert not tiny.same(*masked)
    else:
      assert [_all_whole(each, words=np.cumsum(marks > 1, axis=1), batch=batch) for each in masked] == [False, True]


def test_pairs_of_sentences_have_the_words_of_the_segmenter(tmp_path):
  (tmp_path / 'train.txt').write_text('\n\n'.join(['我们在野生动物园玩\n卡拉卡拉我们玩玩'] * 6))
  vocab = wordpiece.train(['我们在野生动物园 玩卡拉'] * 3, size=60)
  given = dict(path=str(tmp_path), cache=str(tmp_path), length=24, batch_size=6, seed=0, vocab=vocab, sentences='line')
  given |= dict(short_probability=0.0)
  where = {'name': 'whole_word', 'rate': 0.4}
  task = sentence_pair.make(trunk=tiny.make_trunk('bert', vocab_size=vocab.size), vocab=vocab, where=where)
  prepare = jax.jit(task.prepare)
  (plain,), (marked,) = (list(pairs.make(**given, segmenter=name).once()) for name in (None, 'my_words:pairs'))
  assert not tiny.same(plain, marked)
  for name in ('first', 'next', 'other'):
    np.testing.assert_array_equal(marked[name] % vocab.size, plain[name])
  others, made = (prepare(jax.random.key(0), keys.with_step(dict(batch), 0)) for batch in (plain, marked))
  np.testing.assert_array_equal(others.targets['label'], made.targets['label'])
  assert made.inputs['tokens'].max() < vocab.size
  rows = zip(*(np.asarray(made.inputs[key]) for key in ('predict', 'segment_ids')), strict=True)
  for (predict, real), weights in zip(rows, np.asarray(made.targets['weights']), strict=True):
    # [CLS] A of nine tokens [SEP] B [SEP]: pairs begin with the sentence, a last single token is alone
    for begin, size in ((1, 9), (11, 8)) if real.sum() == 20 else ():  # others are cut
      chosen = {at - begin for at in predict[weights > 0] if begin <= at < begin + size}
      assert all(at ^ 1 in chosen or at ^ 1 == size for at in chosen)


def _whole(example, *, words, batch):
  """Return whether the changeable tokens of each word are chosen together."""
  chosen = np.zeros(words.shape, bool)
  for row, weights in enumerate(np.asarray(example.targets['weights'])):
    chosen[row, example.inputs['predict'][row][weights > 0]] = True
  return _all_whole(chosen, words=words, batch=batch)


def _all_whole(chosen, *, words, batch):
  eligible = ~np.isin(batch['tokens'], tiny.VOCAB.special_ids) & (np.asarray(batch['segment_ids']) > 0)
  partly = 0
  for row, own in enumerate(chosen):
    # a word ends with its document, and before a special token
    joined = words[row] + 100 * np.asarray(batch['segment_ids'])[row] + 10_000 * np.cumsum(~eligible[row])
    pieces = [(joined == word) & eligible[row] for word in set(joined)]
    partly += sum(0 < own[piece].sum() < piece.sum() for piece in pieces)
  return not partly


@pytest.mark.parametrize('name', ['permutation_lm', 'permuted_lm'])
def test_orders_follow_the_words_of_the_segmenter(name):
  if name == 'permutation_lm':
    task, batch = test_permutation_lm.make_task(), test_permutation_lm.make_batch()
  else:
    where = {'name': 'whole_word', 'rate': 0.4}
    task, batch = (
      permuted_lm.make(trunk=tiny.make_trunk('bert', max_length=64), vocab=tiny.VOCAB, where=where),
      tiny.make_batch(),
    )
  marks, prepare = np.ones(batch['tokens'].shape, np.int32), jax.jit(task.prepare)
  plain, unmarked, marked = (
    prepare(jax.random.key(0), keys.with_step(batch | extra, 0))
    for extra in ({}, {'word_marks': 0 * marks}, {'word_marks': marks})
  )
  jax.tree.map(np.testing.assert_array_equal, plain, unmarked)
  assert not tiny.same(plain.targets['ids'], marked.targets['ids'])


@pytest.mark.parametrize(
  ('name', 'says'),
  [
    ('nope', 'jieba'),
    ('os:system', 'is not found|SEGMENTERS'),
    ('my_words:hidden', r"SEGMENTERS = \('hidden',\)"),
    ('bomb:words', 'SEGMENTERS'),
    ('my_words:upper', 'in order, unchanged'),
    ('my_words:drops', 'in order, unchanged'),
    ('my_words:numbers', 'in order, unchanged'),
  ],
)
def test_other_segmenters_are_refused_before_the_text_is_read(tmp_path, name, says):
  (tmp_path / 'train.txt').write_text('abc def')
  with pytest.raises(ConfigError, match=says) as error:
    stream.look(path=str(tmp_path), segmenter=name)
  assert len(str(error.value)) <= 240


@pytest.mark.parametrize(
  ('objective', 'says'),
  [
    (dict(name='causal_lm'), "'causal_lm' does not read them: .*choose .*mlm"),
    (dict(name='mlm', where=dict(name='fixed_count')), "where 'fixed_count' chooses tokens: set .*'whole_word'"),
    (dict(name='mlm', where=dict(name='poisson_spans', units='tokens')), "'poisson_spans' chooses tokens"),
    (dict(name='mlm', where=dict(name='poisson_spans')), None),
    (dict(name='mlm', where=dict(name='whole_word')), None),
    (dict(name='emd_mlm'), None),
    (dict(name='denoise_seq2seq'), "where 'exact_spans' chooses tokens"),
    (dict(name='denoise_seq2seq', denoisers=(dict(), dict(where=dict(name='whole_word')))), None),
  ],
)
@pytest.mark.parametrize('mixed', [False, True])
def test_a_segmenter_without_use_is_refused(objective, says, mixed):
  data = dict(name='stream', path='x', length=16, batch_size=2, segmenter='jieba')
  if mixed:
    parts = {name: dict(name='stream', path='x', segmenter='jieba') for name in 'ab'}
    data, says = dict(name='mixture', parts=parts, length=16, batch_size=2), says and f'data.parts.a.segmenter.*{says}'
  optim = dict(name='adamw', rate=1e-3)
  config = dict(
    vocab=dict(name='wordpiece', path='v'),
    model=dict(name='bert', variant='tiny'),
    objective=objective,
    data=data,
    optim=optim,
    steps=1,
  )
  if says is None:
    resolve(config)
  else:
    with pytest.raises(ConfigError, match=says) as error:
      resolve(config)
    assert len(str(error.value)) <= 240


def test_a_file_of_the_current_folder_is_found_without_a_path(tmp_path, monkeypatch):
  folder = tmp_path / 'here'
  folder.mkdir()
  (folder / 'cut_here.py').write_text('SEGMENTERS = ("letters",)\ndef letters(text): return list(text)\n')
  monkeypatch.chdir(folder)
  monkeypatch.setattr(sys, 'path', [entry for entry in sys.path if entry not in ('', '.', str(folder))])
  assert cut('长城 a', 'cut_here:letters') == list('长城 a')
  sys.modules.pop('cut_here')


class _Tagger:
  """Knows the parts of speech of a few words."""

  TAGS = {'The': 'DET', 'old': 'ADJ', 'two': 'NUM', 'dogs': 'NOUN', 'man': 'NOUN', 'Anna': 'PROPN', 'Smith': 'PROPN'}

  def tag(self, texts):
    found = [list(re.finditer(r'\w+|[^\w\s]', text)) for text in texts]
    return [
      [dict(word=m[0], tag=self.TAGS.get(m[0], 'VERB'), start=m.start(), end=m.end()) for m in words] for words in found
    ]


def test_phrases_of_a_tagger_are_words_of_a_segmenter(monkeypatch, tmp_path):
  monkeypatch.setattr(phrases, 'tagger', _Tagger)
  text = 'The old  man met Anna Smith.\n\nHe has two dogs.'
  assert phrases.noun_phrases(text) == ['The old  man', 'met', 'Anna Smith', '.', 'He', 'has', 'two dogs', '.']
  assert phrases.names(text)[:5] == ['The', 'old', 'man', 'met', 'Anna Smith']
  long = ' '.join(['dogs'] * 24)
  assert [word.count(' ') + 1 for word in phrases.noun_phrases(long)] == [10, 10, 4]
  begins = segments.words(text, 'launch.phrases:noun_phrases')
  assert [text[at] for at in np.flatnonzero(begins[:-1]) if not text[at].isspace()] == list('TmA.Hht.')


def test_phrases_without_a_tagger_name_its_command(monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  phrases.tagger.cache_clear()
  with pytest.raises(ConfigError, match='first command of launch/phrases'):
    phrases.names('A text.')
