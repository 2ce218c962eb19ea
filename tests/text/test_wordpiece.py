"""WordPiece against a slow implementation of its definition and against transformers; its training."""

import os
import pathlib
import random
import subprocess
import sys
import unicodedata

import pytest

from plm_jax.text import wordpiece

CHINESE = '我们的世界很大，我的朋友在北京学习。你喜欢我的书吗？我喜欢学习中文，也喜欢看书。'
ROOT = pathlib.Path(__file__).resolve().parents[2]
RANGES = ((0x20, 0x7E), (0x20, 0x7E), (0xA1, 0x17F), (0x391, 0x3A1), (0x3A3, 0x3C9), (0x410, 0x44F), (0x4E00, 0x4E40))
ODD = '\t\n\r\u00a0\u3000\u0301\u0308\u200b\ufffd\x00\x07—“”…。，😀'


@pytest.fixture(scope='module')
def uncased(tiny_corpus):
  return wordpiece.train([*tiny_corpus, CHINESE, CHINESE], size=700)


@pytest.fixture(scope='module')
def cased(tiny_corpus):
  return wordpiece.train([*tiny_corpus, CHINESE, CHINESE], size=700, lowercase=False)


def slow_words(text, *, lowercase):
  """Clean and split text as BERT, letter by letter.

  See google-research/bert, tokenization.py.
  """
  spaced = ''
  for letter in text:
    category = unicodedata.category(letter)
    if letter in '\t\n\r' or category == 'Zs':
      spaced += ' '
    elif letter in '\x00\ufffd' or category in ('Cc', 'Cf'):
      continue
    elif 0x4E00 <= ord(letter) <= 0x9FFF:
      spaced += f' {letter} '
    else:
      spaced += letter
  if lowercase:
    spaced = ''.join(c for c in unicodedata.normalize('NFD', spaced) if unicodedata.category(c) != 'Mn')
    spaced = ''.join(letter.lower() for letter in spaced)
  words = []
  for part in spaced.split():
    word = ''
    for letter in part:
      ascii_sign = letter.isascii() and not letter.isalnum()
      if ascii_sign or unicodedata.category(letter).startswith('P'):
        words += [word, letter]
        word = ''
      else:
        word += letter
    words.append(word)
  return [word for word in words if word]


def slow_pieces(text, tokens, *, lowercase):
  """Longest match first, a whole word at a time."""
  known, pieces = set(tokens), []
  for word in slow_words(text, lowercase=lowercase):
    found, start = [], 0
    while start < len(word):
      ends = (end for end in range(len(word), start, -1) if ('##' if start else '') + word[start:end] in known)
      end = next(ends, None)
      if end is None:
        found = ['[UNK]']
        break
      found.append(('##' if start else '') + word[start:end])
      start = end
    pieces += found if len(word) <= 100 else ['[UNK]']
  return pieces


def draw_text(draw, words):
  parts = []
  for _ in range(draw.randint(1, 30)):
    kind = draw.random()
    if kind < 0.5:
      parts.append(draw.choice(words))
    elif kind < 0.9:
      parts.append(''.join(chr(draw.randint(*draw.choice(RANGES))) for _ in range(draw.randint(1, 8))))
    else:
      parts.append(draw.choice(ODD))
    parts.append(draw.choice(('', ' ', '  ', '\n')))
  return ''.join(parts)


@pytest.mark.parametrize('lowercase', [True, False])
def test_longest_match_first_as_defined(request, tiny_corpus, lowercase):
  vocab = request.getfixturevalue('uncased' if lowercase else 'cased')
  draw = random.Random(0)
  words = sorted({word for text in tiny_corpus for word in text.split()})
  texts = [*tiny_corpus[:50], CHINESE, 'a' * 101, 'a' * 100, *(draw_text(draw, words) for _ in range(500))]
  for text in texts:
    found = [vocab.token(token_id) for token_id in vocab.encode(text)]
    assert found == slow_pieces(text, vocab.tokens, lowercase=lowercase), repr(text)
  assert vocab.unk_id in vocab.encode(texts[-1] + 'ξψ') and vocab.unk_id not in vocab.encode(tiny_corpus[0])


@pytest.mark.parametrize('lowercase', [True, False])
def test_equal_to_transformers(request, tiny_corpus, lowercase):
  transformers = pytest.importorskip('transformers')
  from transformers.models.bert_japanese.tokenization_bert_japanese import BasicTokenizer, WordpieceTokenizer

  vocab = request.getfixturevalue('uncased' if lowercase else 'cased')
  ids = {token: token_id for token_id, token in enumerate(vocab.tokens)}
  fast = transformers.BertTokenizerFast(vocab=ids, do_lower_case=lowercase)
  split, cut = BasicTokenizer(do_lower_case=lowercase), WordpieceTokenizer(ids, unk_token='[UNK]')
  draw = random.Random(1)
  words = sorted({word for text in tiny_corpus for word in text.split()})
  for text in [*tiny_corpus[:50], CHINESE, *(draw_text(draw, words) for _ in range(200))]:
    found = vocab.encode(text)
    assert found == fast.encode(text, add_special_tokens=False), repr(text)
    assert [vocab.token(i) for i in found] == [piece for word in split.tokenize(text) for piece in cut.tokenize(word)]


def test_special_tokens_come_first_and_stand_in_for_start_and_end(uncased):
  assert uncased.tokens[:5] == ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]')
  assert (uncased.pad_id, uncased.unk_id, uncased.cls_id, uncased.sep_id, uncased.mask_id) == (0, 1, 2, 3, 4)
  assert (uncased.bos_id, uncased.eos_id) == (2, 3)
  assert uncased.special_ids == (0, 1, 2, 3, 4)


def test_special_names_in_text_are_text(uncased):
  assert not set(uncased.encode('a [MASK] b [SEP]')) & {uncased.mask_id, uncased.sep_id}
  marked = uncased.encode('i [MASK] you', specials=True)
  assert [uncased.token(i) for i in marked].count('[MASK]') == 1


def test_words_and_bytes(uncased):
  for token_id in range(5, uncased.size):
    token = uncased.token(token_id)
    inside = token.startswith('##')
    assert uncased.starts_word[token_id] == (not inside)
    assert uncased.num_bytes[token_id] == (len(token[2:].encode()) if inside else len(token.encode()) + 1)
  assert uncased.starts_word[:5].all() and not uncased.num_bytes[:5].any()
  text = 'the old sailor walked from the harbour to the library'
  assert uncased.num_bytes[uncased.encode(text)].sum() == len(text) + 1


def test_chinese_letters_are_words(uncased):
  assert [uncased.token(i) for i in uncased.encode('我的书')] == ['我', '的', '书']
  assert not any(token.startswith('##') and ord(token[2]) > 0x4DFF for token in uncased.tokens)


def test_size_and_rare_letters(tiny_corpus):
  text = ['aaaa bbbb ' * 20 + 'ccx dd']
  vocab = wordpiece.train(text, size=40, min_frequency=2)
  assert 'x' not in vocab.tokens and 'c' in vocab.tokens and vocab.size < 40
  assert vocab.encode('x') == [vocab.unk_id]
  few = wordpiece.train(tiny_corpus, size=200, alphabet=10)
  assert sum(len(token) == 1 for token in few.tokens) == 10 and few.size == 200
  half = wordpiece.train([CHINESE] * 2, size=35)
  assert sum(len(token) == 1 for token in half.tokens) == 15 and '我' in half.tokens
  with pytest.raises(ValueError, match=r'size=20.* 26 .*\d+'):
    wordpiece.train(['abcdefghijklmnopqrstuvwxyz ' * 2], size=20, alphabet=100)


def test_counts_are_those_of_the_training_text(tiny_corpus):
  vocab = wordpiece.train(tiny_corpus, size=300)
  ids = [token_id for text in tiny_corpus for token_id in vocab.encode(text)]
  assert vocab.counts.dtype == 'int64' and vocab.counts.sum() == len(ids)
  assert [vocab.counts[i] for i in range(vocab.size)] == [ids.count(i) for i in range(vocab.size)]


TRAIN = """
import random
from plm_jax.text import {kind}
draw = random.Random(7)
words = [''.join(draw.choice('abcdefghij我们的世界很大') for _ in range(draw.randint(1, 7))) for _ in range(4000)] * 2
vocab = {kind}.train([' '.join(words[i:i + 40]) for i in range(0, 8000, 40)], size=700)
print(vocab.size, vocab.digest, vocab.counts.tolist())
"""


@pytest.mark.parametrize('kind', ['wordpiece', 'byte_bpe', 'sentencepiece'])
def test_training_is_reproducible(kind):
  """Train on random words with many ties, where HF's WordPieceTrainer varies."""
  pytest.importorskip(kind if kind == 'sentencepiece' else 'tokenizers')
  code = TRAIN.format(kind=kind)
  settings = ({}, {'RAYON_NUM_THREADS': '1'}, {'RAYON_NUM_THREADS': '4', 'PYTHONHASHSEED': '5'})
  runs = [
    subprocess.Popen(
      [sys.executable, '-c', code], cwd=ROOT, env={**os.environ, **more}, stdout=subprocess.PIPE, text=True
    )
    for more in settings
  ]
  printed = [run.communicate(timeout=120)[0] for run in runs]
  size = int(printed[0].split()[0])
  assert size == 700 if kind != 'sentencepiece' else 500 < size <= 700  # a unigram model stops where pieces run out
  assert printed[0] == printed[1] == printed[2]
