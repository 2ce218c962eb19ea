"""Byte-level BPE against a slow implementation of its definition and against transformers; it loses no byte."""

import itertools
import json
import random
import re

import numpy as np
import pytest

from plm_jax.text import byte_bpe, spec

CHINESE = ['我们的世界很大，我的朋友在北京学习。', '你喜欢我的书吗？我喜欢学习中文，也喜欢看书。'] * 20
# GPT-2's pattern, in the classes that `re` has: right for the scripts drawn here
WORDS = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")
RANGES = (
  (0x20, 0x7E),
  (0x20, 0x7E),
  (0xC0, 0xD6),
  (0x391, 0x3A1),
  (0x410, 0x44F),
  (0x4E00, 0x5000),
  (0x1F600, 0x1F640),
)


@pytest.fixture(scope='module')
def vocab(tiny_corpus):
  return byte_bpe.train([*tiny_corpus, *CHINESE], size=800)


def draw_text(draw, ranges):
  letters = [chr(draw.randint(*draw.choice(ranges))) for _ in range(draw.randint(0, 60))]
  return ''.join(draw.choice((letter, letter, f' {letter}', f'{letter}\n', "'s ")) for letter in letters)


def slow_encode(text, vocab):
  """Merge the first learned pair of a word until none is left.

  This is algorithm 1 of Sennrich et al. 2016.
  """
  merges = json.loads(vocab.content)['model']['merges']
  rank = {tuple(map(spec.byte_level_bytes, pair)): number for number, pair in enumerate(merges)}
  by_bytes = {spec.byte_level_bytes(vocab.token(i)): i for i in range(vocab.size) if i not in vocab.special_ids}
  ids = []
  for word in WORDS.findall(text):
    parts = [bytes([byte]) for byte in word.encode()]
    while pairs := [pair for pair in itertools.pairwise(parts) if pair in rank]:
      first = min(pairs, key=rank.__getitem__)
      merged, rest = [], parts
      while rest:
        size = 2 if tuple(rest[:2]) == first else 1
        merged.append(b''.join(rest[:size]))
        rest = rest[size:]
      parts = merged
    ids += [by_bytes[part] for part in parts]
  return ids


def test_encodes_as_defined(vocab, tiny_corpus):
  draw = random.Random(0)
  for text in [*tiny_corpus[:10], *CHINESE[:2], *(draw_text(draw, RANGES) for _ in range(150))]:
    assert ''.join(WORDS.findall(text)) == text
    assert vocab.encode(text) == slow_encode(text, vocab), repr(text)


def test_equal_to_transformers(tiny_corpus):
  transformers = pytest.importorskip('transformers')
  vocab = byte_bpe.train([*tiny_corpus, *CHINESE], size=800, specials='gpt2')
  ids = {token: token_id for token_id, token in enumerate(vocab.tokens)}
  merges = [tuple(pair) for pair in json.loads(vocab.content)['model']['merges']]
  fast = transformers.GPT2TokenizerFast(vocab=ids, merges=merges)
  assert fast.convert_tokens_to_ids('<|endoftext|>') == vocab.eos_id == vocab.size - 1
  draw = random.Random(1)
  for text in [*tiny_corpus[:20], *CHINESE[:2], *(draw_text(draw, RANGES) for _ in range(150))]:
    assert vocab.encode(text) == fast.encode(text), repr(text)


def test_every_text_comes_back(vocab):
  draw = random.Random(2)
  anything = ((0x0, 0xD7FF), (0xE000, 0x10FFFF), (0x0, 0x7F))
  for text in [
    '',
    ' ',
    '\n\n\t ',
    'a  b',
    '我',
    'e\u0301',
    *CHINESE[:2],
    *(draw_text(draw, anything) for _ in range(300)),
  ]:
    ids = vocab.encode(text)
    assert vocab.decode(ids) == text
    assert b''.join(spec.byte_level_bytes(vocab.token(i)) for i in ids) == text.encode()
    assert vocab.num_bytes[ids].sum() == len(text.encode())


def test_every_byte_is_a_token(vocab):
  singles = {spec.byte_level_bytes(vocab.token(i)): i for i in range(vocab.size) if vocab.num_bytes[i] == 1}
  assert sorted(singles) == [bytes([byte]) for byte in range(256)]
  draw = random.Random(3)
  for _ in range(100):
    data = draw.randbytes(draw.randint(1, 20))
    assert vocab.decode([singles[data[i : i + 1]] for i in range(len(data))]) == data.decode(errors='replace')


def test_a_chinese_letter_is_three_bytes_that_merge_whole(vocab):
  assert '我'.encode() == bytes.fromhex('E6 88 91')
  [token_id] = vocab.encode('我')
  assert spec.byte_level_bytes(vocab.token(token_id)) == '我'.encode()
  merges = json.loads(vocab.content)['model']['merges']
  pairs = [tuple(map(spec.byte_level_bytes, pair)) for pair in merges]
  valid = {(b'\xe6', b'\x88\x91'), (b'\xe6\x88', b'\x91')}
  assert next(pair for pair in pairs if b''.join(pair) == '我'.encode()) in valid
  assert all(left and right for left, right in pairs)


def test_bytes_are_numbered_as_by_gpt2(tiny_corpus):
  vocab = byte_bpe.train(tiny_corpus, size=300, specials='gpt2')
  assert vocab.encode('!"#AB') == [0, 1, 2, 32, 33] and vocab.encode('\x00') == [188] and vocab.encode(' ') == [220]
  assert vocab.special_ids == (299,) and vocab.token(299) == '<|endoftext|>' and vocab.size == 300
  assert {vocab.pad_id, vocab.bos_id, vocab.eos_id, vocab.cls_id, vocab.sep_id} == {299}
  assert vocab.mask_id is None and vocab.unk_id is None


def test_special_tokens_of_roberta_and_of_all(tiny_corpus, vocab):
  roberta = byte_bpe.train(tiny_corpus, size=300, specials='roberta')
  assert roberta.tokens[:4] == ('<s>', '<pad>', '</s>', '<unk>') and roberta.token(299) == '<mask>'
  assert (roberta.cls_id, roberta.pad_id, roberta.sep_id, roberta.unk_id, roberta.mask_id) == (0, 1, 2, 3, 299)
  assert vocab.tokens[:4] == ('<pad>', '<s>', '</s>', '<mask>') and vocab.unk_id is None
  assert (vocab.pad_id, vocab.cls_id, vocab.bos_id, vocab.sep_id, vocab.eos_id, vocab.mask_id) == (0, 1, 1, 2, 2, 3)
  with pytest.raises(ValueError, match='all, gpt2, roberta'):
    byte_bpe.train(tiny_corpus, size=300, specials='bert')
  with pytest.raises(ValueError, match=r'size=250.*260'):
    byte_bpe.train(tiny_corpus, size=250)


def test_special_names_in_text_are_text(vocab):
  for name in ('<mask>', '<s>', '</s>', '<pad>'):
    assert not set(vocab.encode(f'I {name} you')) & set(vocab.special_ids)
    assert vocab.decode(vocab.encode(f'I {name} you')) == f'I {name} you'
  plain, marked = vocab.encode('I like you'), vocab.encode('I <mask> you', specials=True)
  assert [plain[0], vocab.mask_id, plain[-1]] == marked  # the blank before it is part of the hidden word
  assert vocab.decode(marked) == 'I you' and vocab.decode(marked, specials=True) == 'I<mask> you'


def test_words_begin_with_white_space(vocab):
  starts = [vocab.token(i) for i in np.flatnonzero(vocab.starts_word) if i not in vocab.special_ids]
  assert all(spec.byte_level_bytes(token)[:1].isspace() for token in starts) and 'Ġthe' in starts and 'Ċ' in starts
  rest = [vocab.token(i) for i in np.flatnonzero(~vocab.starts_word)]
  assert not any(spec.byte_level_bytes(token)[:1].isspace() for token in rest) and 'he' in rest


def test_counts_are_those_of_the_training_text(tiny_corpus):
  vocab = byte_bpe.train(tiny_corpus, size=400)
  assert (vocab.counts * vocab.num_bytes).sum() == sum(len(text.encode()) for text in tiny_corpus)
  assert vocab.counts.sum() == sum(len(vocab.encode(text)) for text in tiny_corpus)
  assert not vocab.counts[list(vocab.special_ids)].any()
