"""Words as characters, against the rules of bilm's code written out again."""

import dataclasses

import numpy as np
import pytest

from plm_jax.core import batch
from plm_jax.layers import characters
from plm_jax.models import elmo
from plm_jax.text import chars, words


def by_bilm(word: str) -> list[int]:
  """Compute the ids of a word by the published code, one higher.

  256 to 260 are its <S>, </S>, <W>, </W> and padding.
  """
  ids = [260] * 50
  ids[0] = 258
  code = word.encode('utf-8')[:48]
  for place, byte in enumerate(code, start=1):
    ids[place] = byte
  ids[len(code) + 1] = 259
  return [number + 1 for number in ids]


@pytest.mark.parametrize('word', ['a', 'the', 'été', '漢字', 'x' * 47, 'x' * 48, 'x' * 49, 'x' * 500, '語' * 20])
def test_slots_are_those_of_bilm(word):
  slots = chars.of_word(word)
  assert (slots.shape, slots.dtype) == ((50,), np.int32)
  assert slots.tolist() == by_bilm(word)


def test_an_empty_word_is_refused():
  with pytest.raises(ValueError, match='empty'):
    chars.of_word('')


@pytest.mark.parametrize('specials', ['all', 'elmo'])
def test_a_table_has_every_word_and_the_ends_of_a_sentence(specials):
  vocab = words.train(['the cat , the dog'], size=20, min_frequency=1, specials=specials)
  table = chars.table(vocab)
  assert table.shape == (vocab.size, 50)
  for word in ('the', 'cat', ','):
    assert table[vocab.id(word)].tolist() == by_bilm(word)
  assert table[vocab.bos_id, :4].tolist() == [259, 257, 260, 261]
  assert table[vocab.eos_id, :4].tolist() == [259, 258, 260, 261]
  assert table[vocab.unk_id].tolist() == by_bilm('<UNK>')
  assert bool(table[vocab.pad_id].any()) == (specials == 'elmo')  # there rows are padded with the end of a sentence


def test_a_vocabulary_with_one_token_for_both_ends_is_refused():
  vocab = words.train(['a b'], size=20, min_frequency=1)
  with pytest.raises(ValueError, match='tokens'):
    chars.table(dataclasses.replace(vocab, roles={**vocab.roles, 'bos': '</s>'}))


def test_the_trunk_numbers_characters_alike():
  assert chars.SLOTS == batch.SLOTS
  for word, character in ((elmo.BEGINS, chars.SENTENCE_BEGINS), (elmo.ENDS, chars.SENTENCE_ENDS)):
    assert chars.boundary(character)[:3].tolist() == list(word)
  assert elmo.PADDING == chars.PADDING == characters.CHARACTERS - 1
