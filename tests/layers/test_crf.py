"""Conditional random fields against the enumeration of all paths."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.layers import crf

LABELS = 3
# is a token labelled, and of which text is it: gaps inside a text, several texts in a row, padding, no word at all
TOKENS = {
  'one text': ('xxxx.', '11111'),
  'pieces between': ('.x.xx', '11111'),
  'two texts': ('x.xxx', '11222'),
  'texts of one word': ('xxx..', '12300'),
  'one word': ('..x..', '11110'),
  'none': ('.....', '11000'),
}


def rows():
  """Build is_word, segment_ids, scores, labels and chain for `TOKENS`."""
  draw = np.random.default_rng(0)
  is_word = np.array([[mark == 'x' for mark in marks] for marks, _ in TOKENS.values()])
  segment_ids = np.array([[int(text) for text in texts] for _, texts in TOKENS.values()])
  scores = draw.normal(0, 2, (*is_word.shape, LABELS)).astype(np.float32)
  labels = np.where(is_word, draw.integers(0, LABELS, is_word.shape), -1)
  chain = crf.Chain(*(draw.normal(0, 2, shape).astype(np.float32) for shape in ((LABELS, LABELS), LABELS, LABELS)))
  return is_word, segment_ids, scores, labels, chain


IS_WORD, SEGMENT_IDS, SCORES, GIVEN, CHAIN = rows()


@jax.jit
def ours(scores, labels, chain):
  """Compute log-likelihood, best path and label probabilities of all rows."""
  words, order = crf.side_by_side(jnp.asarray(IS_WORD), jnp.asarray(SEGMENT_IDS))
  move = lambda values: jnp.take_along_axis(values, order.reshape(*order.shape, *[1] * (values.ndim - 2)), axis=1)  # noqa: E731
  found = crf.log_likelihood(move(scores), move(labels), words, chain)
  back = jnp.argsort(order, axis=1)
  path = jnp.take_along_axis(crf.best_path(move(scores), words, chain), back, axis=1)
  shares = jnp.take_along_axis(crf.probabilities(move(scores), words, chain), back[..., None], axis=1)
  return found, path, shares


def enumerated(row):
  """Enumerate the label paths and scores of each text in float64."""
  chain = crf.Chain(*(np.asarray(part, np.float64) for part in CHAIN))
  for text in sorted(set(SEGMENT_IDS[row]) - {0}):
    words = np.flatnonzero(IS_WORD[row] & (SEGMENT_IDS[row] == text))
    if len(words):
      paths = list(itertools.product(range(LABELS), repeat=len(words)))
      totals = []
      for path in paths:
        total = chain.start[path[0]] + chain.end[path[-1]]
        total += sum(float(SCORES[row, word, label]) for word, label in zip(words, path, strict=True))
        total += sum(chain.transitions[a, b] for a, b in itertools.pairwise(path))
        totals.append(total)
      yield words, np.array(paths), np.array(totals)


@pytest.mark.parametrize('name', TOKENS)
def test_equals_the_enumeration_of_all_paths(name):
  row = list(TOKENS).index(name)
  found, path, probability = (np.asarray(each)[row] for each in ours(SCORES, GIVEN, CHAIN))
  expected, best, shares = 0.0, np.zeros(5, int), np.zeros((5, LABELS))
  for words, paths, totals in enumerated(row):
    nats = np.log(np.exp(totals).sum())
    expected += totals[(paths == GIVEN[row, words]).all(axis=1)].item() - nats
    best[words] = paths[totals.argmax()]
    for place, word in enumerate(words):
      for label in range(LABELS):
        shares[word, label] = np.exp(totals[paths[:, place] == label] - nats).sum()
  assert float(found) == pytest.approx(expected, rel=1e-5, abs=1e-6)
  assert path.tolist() == best.tolist()
  np.testing.assert_allclose(probability, shares, atol=1e-5)
  assert (expected == 0) == (name == 'none')


def test_probabilities_of_all_labellings_add_up_to_one():
  row = list(TOKENS).index('two texts')
  words = np.flatnonzero(IS_WORD[row])
  total = 0.0
  for labels in itertools.product(range(LABELS), repeat=len(words)):
    given = GIVEN.copy()
    given[row, words] = labels
    total += np.exp(float(ours(SCORES, given, CHAIN)[0][row]))
  assert total == pytest.approx(1, rel=1e-4)


def test_without_transitions_each_word_is_labelled_by_itself():
  nothing = crf.Chain(*(np.zeros_like(part) for part in CHAIN))
  found, path, _ = ours(SCORES, GIVEN, nothing)
  nats = np.log(np.exp(SCORES).sum(-1)) - np.take_along_axis(SCORES, np.maximum(GIVEN, 0)[..., None], 2)[..., 0]
  np.testing.assert_allclose(found, -(nats * IS_WORD).sum(axis=1), rtol=1e-5)
  assert np.array_equal(path, np.where(IS_WORD, SCORES.argmax(-1), 0))


def test_labels_where_no_word_is_are_not_read():
  before, after = ours(SCORES, GIVEN, CHAIN), ours(SCORES, np.where(IS_WORD, GIVEN, 2), CHAIN)
  assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_long_text_stays_finite():
  scores = jnp.full((1, 2000, LABELS), 50.0)
  words = crf.Words(jnp.ones((1, 2000), bool), jnp.ones((1, 2000), bool).at[0, 0].set(False))
  chain = crf.Chain(*map(jnp.asarray, CHAIN))
  value, gradient = jax.value_and_grad(lambda s: crf.log_likelihood(s, jnp.zeros((1, 2000), int), words, chain)[0])(
    scores
  )
  assert np.isfinite(float(value)) and np.isfinite(np.asarray(gradient)).all()
