"""Hierarchical softmax: the tree of word2vec.c, probabilities that add up to 1, the loss of each pair in turn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.models import static
from plm_jax.noise import keys
from plm_jax.objectives import hierarchical_softmax as hs
from tests import tiny

VOCAB = tiny.FakeVocab(size=40)


def make(**settings):
  trunk = static.make(vocab_size=40, variant='tiny', overrides={'hidden_dim': 6})
  return hs.make(trunk=trunk, vocab=VOCAB, **({'window': 3, 'subsample': 0.0} | settings))


def make_batch():
  rows = tiny.make_batch()
  return rows | {'tokens': jnp.where(rows['segment_ids'] > 0, rows['tokens'] % 40, 0)}


def word2vec_c(counts):
  """CreateBinaryTree of word2vec.c for counts in descending order, line by line: codes and points of each word."""
  size = len(counts)
  count, binary, parent = list(counts) + [10**15] * size, [0] * (2 * size), [0] * (2 * size)
  pos1, pos2 = size - 1, size
  for a in range(size - 1):
    least = []
    for _ in range(2):
      if pos1 >= 0 and count[pos1] < count[pos2]:
        least.append(pos1)
        pos1 -= 1
      else:
        least.append(pos2)
        pos2 += 1
    count[size + a] = count[least[0]] + count[least[1]]
    parent[least[0]] = parent[least[1]] = size + a
    binary[least[1]] = 1
  ways = []
  for a in range(size):
    code, point, b = [], [], a
    while True:
      code.append(binary[b])
      point.append(b)
      b = parent[b]
      if b == 2 * size - 2:
        break
    ways.append(([size - 2] + [node - size for node in reversed(point[1:])], code[::-1]))
  return ways


@pytest.mark.parametrize('counts', [[9, 5, 4, 4, 2, 1], [1, 1], [7] * 9, list(range(300, 0, -3)), [1000, 1, 1, 1]])
def test_the_tree_is_that_of_word2vec_c(counts):
  tree = hs.huffman(np.array(counts, float))
  for word, (points, code) in enumerate(word2vec_c(counts)):
    there = tree.bits[word] >= 0
    assert tree.nodes[word][there].tolist() == points and tree.bits[word][there].tolist() == code


def test_words_may_stand_in_any_order():
  shuffled = np.random.default_rng(0).permutation(np.arange(1, 60))
  tree, expected = hs.huffman(shuffled.astype(float)), word2vec_c(sorted(shuffled, reverse=True))
  for word, count in enumerate(shuffled):
    assert tree.bits[word][tree.bits[word] >= 0].tolist() == expected[59 - count][1]


def test_probabilities_of_all_words_add_up_to_one():
  tree = hs.huffman(np.asarray(VOCAB.counts, float))
  logits = np.random.default_rng(1).normal(size=39) * 3
  nats = hs.nats_of(jnp.asarray(logits)[tree.nodes], jnp.asarray(tree.bits))
  assert nats.shape == (40,) and float(jnp.exp(-nats).sum()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize('architecture', ['skipgram', 'cbow'])
def test_loss_and_gradient_are_those_of_each_pair_in_turn(architecture):
  task, batch = make(architecture=architecture), make_batch()
  params = jax.tree.map(lambda leaf: 5 * leaf, tiny.init_params(task, batch))
  loss, gradient = tiny.loss_and_gradient(task, params, batch)
  inputs, nodes = (np.asarray(t['table'], np.float64) for t in (params['trunk']['token_embed'], params['output']))
  example = jax.jit(task.prepare)(keys.noise_root(jax.random.key(0)), keys.with_step(batch, 0))
  tokens, pairs = (np.asarray(example.inputs[name]) for name in ('tokens', 'pairs'))
  counts = np.where(np.arange(40) < 7, 0, VOCAB.counts)
  words = sorted(range(7, 40), key=lambda word: -counts[word])
  ways = dict(zip(words, word2vec_c([int(counts[word]) for word in words]), strict=True))
  total, number, slopes = 0.0, 0, (np.zeros_like(inputs), np.zeros_like(nodes))
  offsets = [-3, -2, -1, 1, 2, 3]

  def one(readers, centre):
    nonlocal total, number
    mean = inputs[readers].mean(axis=0)
    for node, bit in zip(*ways[centre], strict=True):
      chance = 1 / (1 + np.exp(-mean @ nodes[node]))
      total -= np.log(1 - chance if bit else chance)
      for reader in readers:
        slopes[0][reader] += (chance - (1 - bit)) * nodes[node]  # the whole error, as in word2vec.c
      slopes[1][node] += (chance - (1 - bit)) * mean
    number += 1

  for row, place in np.ndindex(tokens.shape):
    near = [tokens[row, place + offsets[slot]] for slot in range(6) if pairs[row, place, slot]]
    if architecture == 'cbow' and near:
      one(near, tokens[row, place])
    elif architecture == 'skipgram':
      for centre in near:
        one([tokens[row, place]], centre)
  assert number > 15 and float(loss.metrics['loss'][1]) == number
  assert float(loss.value) == pytest.approx(total, rel=1e-5)
  assert np.allclose(gradient['trunk']['token_embed']['table'], slopes[0], atol=1e-5)
  assert np.allclose(gradient['output']['table'], slopes[1], atol=1e-5)
