"""Duplicates and evaluation sets inside a corpus."""

import itertools
import json
import random
import sqlite3

import numpy as np
import pytest

from plm_jax.core.errors import ConfigError
from plm_jax.data.corpora.cleaning import contamination
from plm_jax.data.corpora.cleaning.copies import SHINGLE, Copies

needs_datasketch = pytest.mark.skipif(
  not __import__('importlib.util', fromlist=['util']).find_spec('datasketch'),
  reason='needs datasketch: bash launch/setup.sh corpus',
)


def words(draw, count):
  return [''.join(draw.choices('abcdefghij', k=6)) for _ in range(count)]


def jaccard(a, b):
  """Compute the share of common runs of words by counting."""
  one, two = ({tuple(x[n : n + SHINGLE]) for n in range(len(x) - SHINGLE + 1)} for x in (a, b))
  return len(one & two) / len(one | two)


def test_the_same_text_apart_from_case_and_punctuation():
  copies = Copies(sqlite3.connect(':memory:'), threshold=None)
  assert copies.seen(0, 'A cat, a dog.') is None
  assert copies.seen(1, 'a CAT a dog') == (0, 'duplicate')
  assert copies.seen(2, 'a cat a dogs') is None


@needs_datasketch
def test_near_copies_are_those_of_a_high_share_of_common_runs():
  """Find those above .9 and keep those below .6.

  60 texts with some words changed; the shares are counted one by one.
  """
  draw = random.Random(0)
  copies = Copies(sqlite3.connect(':memory:'), threshold=0.75)
  base = words(draw, 400)
  assert copies.seen(0, ' '.join(base)) is None
  for number in range(1, 61):
    other = list(base)
    for place in draw.sample(range(len(other)), number // 2 + 1):
      other[place] = 'changed'
    fresh = Copies(sqlite3.connect(':memory:'), threshold=0.75)
    fresh.seen(0, ' '.join(base))
    found, share = fresh.seen(1, ' '.join(other)), jaccard(base, other)
    if share > 0.9:
      assert found == (0, 'near_duplicate'), share
    if share < 0.6:
      assert found is None, share


@needs_datasketch
def test_few_copies_above_the_threshold_are_missed():
  draw = random.Random(3)
  found = []
  for _ in range(40):
    base = words(draw, 400)
    other = list(base)
    for place in draw.sample(range(len(other)), 6):
      other[place] = 'changed'
    assert jaccard(base, other) > 0.84
    copies = Copies(sqlite3.connect(':memory:'), threshold=0.8)
    copies.seen(0, ' '.join(base))
    found.append(copies.seen(1, ' '.join(other)) is not None)
  assert sum(found) > 34, 'of 40'


@needs_datasketch
def test_a_pass_that_cut_signatures_otherwise_does_not_go_on():
  database = sqlite3.connect(':memory:')
  Copies(database, threshold=0.8).seen(0, 'one text of several words that is kept')
  Copies(database, threshold=0.8)
  with pytest.raises(ConfigError, match='remove the folder'):
    Copies(database, threshold=0.5)


@needs_datasketch
def test_of_several_like_texts_the_first_is_named():
  draw = random.Random(1)
  copies = Copies(sqlite3.connect(':memory:'), threshold=0.8)
  one, two = words(draw, 100), words(draw, 100)
  assert [copies.seen(n, ' '.join(x)) for n, x in enumerate((one, two))] == [None, None]
  assert copies.seen(2, ' '.join([*one, 'more'])) == (0, 'near_duplicate')
  assert copies.seen(3, ' '.join([*two, 'more'])) == (1, 'near_duplicate')
  assert copies.seen(4, 'short') is None
  assert copies.seen(5, '') is None


@needs_datasketch
def test_near_copies_in_a_script_without_spaces():
  """Compare letters as words.

  A change of one letter of 400 gives a near duplicate, of every fourth another text.
  """
  draw = random.Random(4)
  base = [chr(draw.randrange(0x4E00, 0x9FA6)) for _ in range(400)]
  for every, expected in ((200, (0, 'near_duplicate')), (4, None)):
    copies = Copies(sqlite3.connect(':memory:'), threshold=0.8)
    assert copies.seen(0, ''.join(base)) is None
    other = [letter if place % every else '的' for place, letter in enumerate(base)]
    assert copies.seen(1, ''.join(other)) == expected


def evaluation(folder, texts):
  (folder / 'set').mkdir()
  rows = [json.dumps({'text': text, 'label': 1}) for text in texts]
  (folder / 'set' / 'test.jsonl').write_text('\n'.join(rows) + '\n')
  return f'{folder / "set"}:test'


def test_thirteen_words_in_a_row_are_found(tmp_path):
  draw = random.Random(2)
  rows = [words(draw, 30), words(draw, 9), words(draw, 7)]
  name = evaluation(tmp_path, map(' '.join, rows))
  sets = contamination.Sets([name])
  assert sets.rows == {name: 3}
  assert sets.too_short == {name: 1}
  around = ' '.join(words(draw, 50))
  for count, expected in ((12, []), (13, [(name, 0)]), (27, [(name, 0)])):
    assert sets.inside(f'{around} {" ".join(rows[0][3 : 3 + count])} {around}') == expected
  assert sets.inside(f'{around}, {"; ".join(rows[1]).upper()}! {around}') == [(name, 1)]  # nine words: the whole
  assert sets.inside(f'{around} {" ".join(rows[1][:8])} {around}') == []
  assert sets.inside(' '.join(rows[2])) == []  # too short to say anything
  both = f'{" ".join(rows[1])} x {" ".join(rows[0])}'
  assert sets.inside(both) == [(name, 0), (name, 1)]


def test_hashes_of_runs():
  tokens = ['a', 'b', 'c', 'a', 'b']
  found = contamination.hashed(tokens, 2)
  assert len(found) == 4
  equal = [(i, j) for i, j in itertools.combinations(range(4), 2) if found[i] == found[j]]
  assert equal == [(0, 3)]
  assert contamination.hashed(tokens, 6).dtype == np.uint64
  assert len(contamination.hashed(tokens, 6)) == 0


@pytest.mark.parametrize('name', ['no_split', '../data/squad', 'a:'])
def test_a_set_without_a_split_is_refused(name):
  with pytest.raises(ValueError, match='PATH:SPLIT'):
    contamination.Sets([name])
