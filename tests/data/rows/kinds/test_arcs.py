"""Dependency trees as examples: positions of heads, roots, words outside of the tree, cut words, errors."""

import json

import numpy as np
import pytest

from plm_jax.data import labelled
from plm_jax.data.rows.kinds import arcs
from plm_jax.text import wordpiece

ROWS = [
  {'tokens': ['It', 'has', 'not', 'rained'], 'head': [4, 4, 4, 0], 'deprel': ['nsubj', 'aux', 'advmod', 'root']},
  # a contraction and its two parts, as Universal Dependencies have them
  {'tokens': ['du', 'de', 'le', 'lac'], 'head': ['_', '3', '3', '0'], 'deprel': ['_', 'case', 'det', 'root']},
]


@pytest.fixture(scope='module')
def vocab():
  return wordpiece.train(['It has not rain ed du de le lac'] * 3 + ['strained'], size=50)


def write(folder, rows):
  folder.mkdir(exist_ok=True)
  (folder / 'train.jsonl').write_text(''.join(f'{json.dumps(row)}\n' for row in rows))
  return str(folder)


def read(vocab, path, **settings):
  given = {'kind': 'arcs', 'fields': ('tokens', 'head'), 'label': 'deprel', 'layout': 'bert', 'length': 16}
  given |= {'batch_size': 2, 'seed': 0, 'shuffle': False, 'characters': False, **settings}
  source = labelled.make(vocab=vocab, path=path, **given)
  return source, next(source.read(0))


def words_of(batch, row):
  """Return the positions of the first tokens of words, in order."""
  return np.flatnonzero(batch['heads'][row] != -1)


def test_heads_are_places_of_first_tokens_and_roots_are_their_own(vocab, tmp_path):
  source, batch = read(vocab, write(tmp_path / 'data', ROWS))
  pieces = [len(vocab.encode(f' {word}')) for word in ROWS[0]['tokens']]
  assert max(pieces) > 1, 'one word has several pieces'
  begins = 1 + np.cumsum([0, *pieces[:-1]])
  assert words_of(batch, 0).tolist() == begins.tolist()
  assert batch['heads'][0][begins].tolist() == [begins[3]] * 4
  names = [source.names[label] for label in batch['labels'][0][begins]]
  assert names == ROWS[0]['deprel']
  assert (batch['labels'][0] >= 0).sum() == 4
  record = source.record(0)
  assert record['heads'] == [3, 3, 3, 3] and record['places'] == [0, 1, 2, 3]


def test_a_word_outside_the_tree_has_no_number(vocab, tmp_path):
  source, batch = read(vocab, write(tmp_path / 'data', ROWS))
  begins = words_of(batch, 1)
  assert len(begins) == 3 and batch['heads'][1][begins].tolist() == [begins[2]] * 3
  assert ((batch['labels'][1] >= 0) == (batch['heads'][1] != -1)).all()
  assert source.record(1)['heads'] == [-1, 3, 3, 3] and source.record(1)['places'] == [1, 2, 3]
  assert '_' not in source.names, 'what stands for no relation is none'


def test_a_word_outside_the_tree_may_have_no_relation(vocab, tmp_path):
  row = {'tokens': 'du de le lac', 'head': '-1 3 3 0', 'deprel': [None, 'case', 'det', 'root']}
  source, batch = read(vocab, write(tmp_path / 'data', [row, ROWS[1] | {'head': [None, 3.0, 3.0, 0.0]}]))
  assert source.names == ('case', 'det', 'root')
  np.testing.assert_array_equal(batch['heads'][0], batch['heads'][1])


def test_trees_with_words_outside_them_are_scored_where_unlabelled_rows_stay(vocab, tmp_path):
  path = write(tmp_path / 'data', ROWS)
  source, batch = read(vocab, path, keep_unlabelled=True)
  assert not source.unlabelled
  np.testing.assert_array_equal(batch['heads'], read(vocab, path)[1]['heads'])
  assert source.record(1)['places'] == [1, 2, 3]
  for nothing in (None, [], '', ['_'] * 4):
    _, batch = read(vocab, write(tmp_path / 'none', [ROWS[0] | {'head': nothing}] * 2), keep_unlabelled=True)
    assert (batch['heads'][0][words_of(batch, 0)] == arcs.UNKNOWN).all() and len(words_of(batch, 0)) == 4


def test_a_head_that_was_cut_off_is_unknown(vocab, tmp_path):
  pieces = [len(vocab.encode(f' {word}')) for word in ROWS[0]['tokens']]
  _, batch = read(vocab, write(tmp_path / 'data', ROWS[:1]), length=2 + sum(pieces[:3]), batch_size=1)
  begins = words_of(batch, 0)
  assert len(begins) == 3
  assert batch['heads'][0][begins].tolist() == [arcs.UNKNOWN] * 3
  assert (batch['labels'][0][begins] >= 0).all()  # relations are known all the same


def test_rows_to_be_predicted_need_no_tree(vocab, tmp_path):
  rows = [{'tokens': row['tokens']} for row in ROWS]
  _, batch = read(vocab, write(tmp_path / 'data', rows), keep_unlabelled=True)
  for row in (0, 1):
    begins = words_of(batch, row)
    assert len(begins) == 4
    assert (batch['heads'][row][begins] == arcs.UNKNOWN).all() and (batch['labels'][row][begins] == 0).all()


def test_lists_may_be_texts(vocab, tmp_path):
  row = {key: ' '.join(map(str, value)) for key, value in ROWS[0].items()}
  _, as_text = read(vocab, write(tmp_path / 'text', [row, row]))
  _, as_list = read(vocab, write(tmp_path / 'list', ROWS[:1] * 2))
  for key in ('tokens', 'heads', 'labels'):
    np.testing.assert_array_equal(as_text[key], as_list[key])


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'head': [5, 4, 4, 0]}, r"row 0 of .*'head' holds 5.*4"),
    ({'head': [4, 4, 0]}, "row 0 of .*'head'.*4 words"),
    ({'head': [4, 'x', 4, 0]}, "holds 'x'"),
    ({'head': [4, 2, 4, 0]}, "row 0 of .*'head' holds 2 for word 2"),
    ({'head': None}, "row 0 of .*'head'"),
  ],
)
def test_mistakes_in_rows(vocab, tmp_path, change, message):
  with pytest.raises(ValueError, match=message):
    read(vocab, write(tmp_path / 'data', [ROWS[0] | change]), batch_size=1)


def test_mistakes_in_settings(vocab, tmp_path):
  path = write(tmp_path / 'data', ROWS)
  with pytest.raises(ValueError, match=r'arcs.*fields'):
    read(vocab, path, fields=('tokens',))
  with pytest.raises(ValueError, match="no field 'heads'"):
    read(vocab, path, fields=('tokens', 'heads'))
