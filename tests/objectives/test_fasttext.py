"""fastText: n-grams, hashes and vectors as gensim has them; unseen words; what is trained is the mean."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.core import subwords
from plm_jax.models import static
from plm_jax.objectives import fasttext
from plm_jax.training import step
from tests import tiny

VOCAB = tiny.FakeVocab(size=40)
WORDS = ('where', 'a', 'naïve', '東京', 'is', 'Ünïcødé', 'antidisestablishment', '<b>')
LETTERS = {'shortest': 2, 'longest': 3, 'buckets': 50}


def make(**settings):
  trunk = static.make(vocab_size=40, variant='tiny', overrides={'hidden_dim': 6})
  return fasttext.make(trunk=trunk, vocab=VOCAB, **(LETTERS | {'window': 3, 'subsample': 0.0} | settings))


def make_batch():
  rows = tiny.make_batch()
  return rows | {'tokens': jnp.where(rows['segment_ids'] > 0, rows['tokens'] % 40, 0)}


def test_ngrams_of_the_paper():
  assert subwords.ngrams('where', shortest=3, longest=3) == ['<wh', 'whe', 'her', 'ere', 're>']
  assert subwords.ngrams('a', shortest=1, longest=2) == ['<a', 'a', 'a>']


def test_hashes_are_fnv_1a():
  """Test vectors of Fowler, Noll and Vo."""
  for text, value in (('a', 0xE40C292C), ('foobar', 0xBF9CF968)):
    assert subwords.bucket(text, buckets=2**32) == value
  assert subwords.bucket('', buckets=2**32) == 2166136261


def test_buckets_are_those_of_gensim():
  theirs = pytest.importorskip('gensim.models.fasttext')
  for word in WORDS:
    expected = theirs.ft_ngram_hashes(word, 3, 6, 2_000_000)
    assert sorted(subwords.buckets_of(word, shortest=3, longest=6, buckets=2_000_000)) == sorted(expected), word


def test_what_is_read_is_the_mean_of_a_word_and_its_ngrams():
  task, batch = make(), make_batch()
  params = tiny.init_params(task, batch)
  words, ngrams = (np.asarray(t['table']) for t in (params['trunk']['token_embed'], params['ngrams']))
  expected = words.copy()
  for number in range(7, 40):
    own = [subwords.bucket(n, buckets=50) for n in subwords.ngrams(VOCAB.token(number), shortest=2, longest=3)]
    expected[number] = (words[number] + sum(ngrams[one] for one in own)) / (1 + len(own))
  grams = jnp.asarray(fasttext.grams_of(VOCAB, **LETTERS))[None]
  read = task.model.apply({'params': params}, jnp.arange(40)[None], grams=grams, method='read')
  table = fasttext.word_table(params, VOCAB, **LETTERS)
  assert np.allclose(read[0], expected, atol=1e-6) and np.allclose(table.vectors, expected, atol=1e-6)
  own = [subwords.bucket(n, buckets=50) for n in subwords.ngrams('new', shortest=2, longest=3)]
  assert np.allclose(table.unseen('new'), sum(ngrams[one] for one in own) / len(own), atol=1e-6)


class WithOneLongWord(tiny.FakeVocab):
  """Its last word has 200 letters."""

  def token(self, id):
    return 'xy' * 100 if id == self.size - 1 else super().token(id)


def test_a_long_word_does_not_widen_the_table_of_all(caplog):
  caplog.set_level('INFO')
  most = len(subwords.ngrams('a' * 40, shortest=2, longest=3))
  grams, short = (fasttext.grams_of(vocab, **LETTERS) for vocab in (WithOneLongWord(size=40), VOCAB))
  assert grams.shape == (40, most) and short.shape[1] < most and (grams[39] >= 0).all()
  assert np.array_equal(grams[:39, : short.shape[1]], short[:39]) and (grams[:39, short.shape[1] :] == -1).all()
  assert len(caplog.messages) == 1 and re.search(rf'\b1 of 40 words .*\b{most} n-grams', caplog.messages[0])
  params = {'trunk': {'token_embed': {'table': np.ones((40, 6))}}}
  params['ngrams'] = {'table': np.random.default_rng(0).normal(size=(50, 6))}
  long, other = (fasttext.word_table(params, vocab, **LETTERS) for vocab in (WithOneLongWord(size=40), VOCAB))
  assert np.array_equal(long.vectors[:39], other.vectors[:39])
  read = params['ngrams']['table'][grams[39]]
  assert np.allclose(long.vectors[39], (1 + read.sum(axis=0)) / (1 + most), atol=1e-6)
  assert np.allclose(long.unseen('xy' * 100), read.mean(axis=0), atol=1e-6)


def test_gradient_agrees_with_differences_and_rows_with_tables():
  batch = make_batch()
  task, rows = make(reduction='mean'), make(update='rows')
  params = jax.tree.map(lambda leaf: 3 * leaf, tiny.init_params(task, batch))
  loss, gradient = tiny.loss_and_gradient(task, params, batch)
  way = tiny.draw(jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params), seed=4)
  ahead, behind = (
    tiny.loss_and_gradient(task, jax.tree.map(lambda a, b, size=size: a + size * b, params, way), batch)[0].value
    for size in (1e-2, -1e-2)
  )
  slope = sum(jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(way), strict=True))
  assert float(ahead - behind) / 2e-2 == pytest.approx(float(slope), rel=2e-2)
  read = rows.rows(jax.jit(rows.prepare)(jax.random.key(0), {**batch, 'step': jnp.int32(0)}))
  assert set(read) == {'trunk/token_embed/table', 'output/table', 'ngrams/table'} and float(loss.value) > 0


def test_each_part_of_a_word_has_the_whole_gradient_of_their_mean():
  """As `Model::update` of the released code, which divides by the number of parts in its classifier alone."""
  batch = make_batch()
  params = jax.tree.map(lambda leaf: 3 * leaf, tiny.init_params(make(), batch))

  def gradients(reduction):
    found = tiny.loss_and_gradient(make(reduction=reduction), params, batch)[1]
    tables = {'words': found['trunk']['token_embed'], 'ngrams': found['ngrams'], 'output': found['output']}
    return {name: np.asarray(one['table']) for name, one in tables.items()}

  whole, mean = gradients('sum'), gradients('mean')
  parts = 1 + (fasttext.grams_of(VOCAB, **LETTERS) >= 0).sum(axis=1)
  pairs = np.linalg.norm(whole['output']) / np.linalg.norm(mean['output'])
  assert pairs > 2 and np.allclose(whole['output'], pairs * mean['output'], atol=1e-6)
  assert np.allclose(whole['words'], pairs * parts[:, None] * mean['words'], atol=1e-5)
  shares = np.zeros((50, 40))  # how often a bucket is in a word
  for word, own in enumerate(fasttext.grams_of(VOCAB, **LETTERS)):
    np.add.at(shares, (own[own >= 0], word), 1)
  assert np.abs(whole['words']).max() > 1e-2 and np.allclose(whole['ngrams'], shares @ whole['words'], atol=1e-5)


def test_an_unseen_word_is_near_those_that_stand_with_its_stem():
  """Words b., c. stand together, and words d., e.; letters alone do not bring b and c together.

  Two words of 43 are drawn for each true neighbour, r = 40 / 43 of them stand with the word as well, and the rest can
  be told: log(1 + r) + r log(1 + 1 / r) nats at best, 3 log 3 - 2 log 2 where nothing is told.
  """
  vocab = tiny.FakeVocab(size=50, counts=np.ones(50))  # 10 to 19 are ba to bj, 20 to 29 ca to cj
  trunk = static.make(vocab_size=50, variant='tiny', overrides={'hidden_dim': 16})
  settings = {'window': 2, 'negatives': 2, 'subsample': 0.0, 'reduction': 'mean'} | LETTERS | {'buckets': 1000}
  task = fasttext.make(trunk=trunk, vocab=vocab, **settings)
  draw = np.random.default_rng(0)

  def text():
    tokens = draw.integers(10, 30, (16, 32)) + 20 * (np.arange(16) % 2)[:, None]
    rows = {'tokens': tokens, 'segment_ids': np.ones_like(tokens), 'row_id': np.arange(16), 'epoch': np.zeros(16)}
    return {key: jnp.asarray(value, jnp.int32) for key, value in rows.items()} | {'row_weight': jnp.ones(16)}

  batch = text()
  tx = tiny.make_optimiser(task, batch, name='adam', rate=0.02)
  run, state = jax.jit(functools.partial(step.train_step, task=task, tx=tx)), tiny.make_state(task, batch, tx)

  def cosines(params):
    """[stems of unseen words, stems of others]: the mean cosine."""
    table = fasttext.word_table(params, vocab, shortest=2, longest=3, buckets=1000)
    unit = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)  # noqa: E731
    known = unit(np.asarray(table.vectors)[10:]).reshape(4, 10, -1)
    return np.stack([known @ unit(np.asarray(table.unseen(f'{stem}xq'))) for stem in 'bcde']).mean(axis=-1)

  before = cosines(state.params)
  for _ in range(300):
    state, metrics = run(state, text(), jax.random.key(0))
  r, loss, after = 40 / 43, tiny.means(metrics)['loss'], cosines(state.params)
  best, none = math.log(1 + r) + r * math.log(1 + 1 / r), 3 * math.log(3) - 2 * math.log(2)
  assert best - 0.05 < loss < none - 0.2
  partners, strangers = after[[0, 1, 2, 3], [1, 0, 3, 2]], after[[0, 0, 1, 1, 2, 2, 3, 3], [2, 3, 2, 3, 0, 1, 0, 1]]
  assert partners.min() > strangers.max() + 0.1
  assert before[[0, 1, 2, 3], [1, 0, 3, 2]].min() < 0.1


def test_mistakes():
  with pytest.raises(ValueError, match=r'shortest=4.*longest=3'):
    make(shortest=4)
