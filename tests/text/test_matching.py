"""Tokens of two vocabularies that stand for the same, whatever their ids and whatever marks the beginning of a word."""

import numpy as np

from plm_jax.text import byte_bpe, matching, wordpiece, words

TEXTS = ['the cat sat on the mat', 'the dog sat on the log', 'a cat and a dog'] * 3
OTHERS = ['the dog ran', 'a red dog ran on', 'the end of the log'] * 3


def pairs(new, old):
  """Token of `new` -> token of `old`, for those that are there."""
  rows = matching.rows_of(new, old)
  assert rows.shape == (new.size,)
  return {new.token(number): old.token(row) for number, row in enumerate(rows) if row >= 0}


def test_words_are_found_by_their_text_wherever_they_stand():
  old, new = (words.train(texts, size=40, min_frequency=1) for texts in (TEXTS, OTHERS))
  found = pairs(new, old)
  ordinary = {token for number, token in enumerate(new.tokens) if number not in new.special_ids}
  assert {token for token in ordinary if token not in found} == {'ran', 'red', 'end', 'of'}
  assert all(token == other for token, other in found.items())
  assert any(new.id(token) != old.id(token) for token in found)  # so ids would not have done


def test_a_vocabulary_finds_all_of_itself():
  for vocab in (
    words.train(TEXTS, size=40, min_frequency=1),
    wordpiece.train(TEXTS, size=60),
    byte_bpe.train(TEXTS, size=300),
  ):
    np.testing.assert_array_equal(matching.rows_of(vocab, vocab), np.arange(vocab.size))


def test_marks_of_beginnings_are_no_letters():
  whole, pieces = byte_bpe.train(TEXTS, size=320), wordpiece.train(TEXTS, size=60)
  found = pairs(whole, pieces)
  assert found['Ġthe'] == 'the'
  assert found['a'] == '##a' and found['Ġa'] == 'a'
  assert pairs(pieces, whole)['##t'] == 't'


def test_special_tokens_are_found_by_what_they_do():
  found = pairs(byte_bpe.train(TEXTS, size=300), wordpiece.train(TEXTS, size=60))
  assert (found['<pad>'], found['<mask>']) == ('[PAD]', '[MASK]')
