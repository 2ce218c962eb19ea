"""Skip-gram and bag of words: what is paired, what is drawn, and gradients by the formulas of the papers in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.core.types import Example
from plm_jax.models import static
from plm_jax.noise import keys
from plm_jax.objectives import context_windows, skipgram
from tests import tiny

pytestmark = pytest.mark.turns

VOCAB = tiny.FakeVocab(size=40)
COUNTS = np.where(np.arange(40) < 7, 0, VOCAB.counts)


def make(**settings):
  trunk = static.make(vocab_size=VOCAB.size, variant='tiny', overrides={'hidden_dim': 6})
  return skipgram.make(trunk=trunk, vocab=VOCAB, **({'window': 3, 'negatives': 2, 'subsample': 0.0} | settings))


def make_batch(lengths=((16,), (7, 5), (11,), (3, 4, 5))):
  rows = tiny.make_batch(lengths)
  return rows | {'tokens': jnp.where(rows['segment_ids'] > 0, rows['tokens'] % VOCAB.size, 0)}


def prepared(task, batch, *, step=0):
  example = jax.jit(task.prepare)(keys.noise_root(jax.random.key(0)), keys.with_step(batch, step))
  return {name: np.asarray(value) for name, value in {**example.inputs, **example.targets}.items()}


def in_numpy(params, found, *, architecture, window, divided=False):
  """Loss and gradient of each pair in turn, by Mikolov et al. 2013b, eq. 4, without any array code of ours.

  Words of a bag have the whole error of their mean, as in word2vec.c, or what a true gradient gives them, `divided`.
  """
  inputs = np.asarray(params['trunk']['token_embed']['table'], np.float64)
  outputs = np.asarray(params['output']['table'], np.float64)
  gradients, total, number = (np.zeros_like(inputs), np.zeros_like(outputs)), 0.0, 0
  offsets = [offset for offset in range(-window, window + 1) if offset]
  tokens, pairs, words = found['tokens'], found['pairs'], found['words']

  def one(readers, centre, drawn):
    nonlocal total, number
    mean = inputs[readers].mean(axis=0)
    for word, true in [(centre, 1.0), *((word, 0.0) for word in drawn if word != centre)]:
      chance = 1 / (1 + np.exp(-mean @ outputs[word]))
      total -= np.log(chance if true else 1 - chance)
      for reader in readers:
        gradients[0][reader] += (chance - true) * outputs[word] / (len(readers) if divided else 1)
      gradients[1][word] += (chance - true) * mean
    number += 1

  for row, place in np.ndindex(pairs.shape[:2]):
    if architecture == 'cbow':
      near = [slot for slot in range(len(offsets)) if pairs[row, place, slot]]
      if near:
        one([tokens[row, place + offsets[slot]] for slot in near], tokens[row, place], words[row, place, 1:])
    elif place < found['number'][row]:
      reader, centre = pairs[row, place]
      assert 0 < abs(reader - centre) <= window
      one([tokens[row, reader]], tokens[row, centre], words[row, place, 1:])
  return total, number, gradients


@pytest.mark.parametrize('architecture', ['skipgram', 'cbow'])
def test_loss_and_gradient_are_those_of_the_paper(architecture):
  task, batch = make(architecture=architecture, subsample=0.02), make_batch()
  params = jax.tree.map(lambda leaf: 5 * leaf, tiny.init_params(task, batch))
  loss, gradient = tiny.loss_and_gradient(task, params, batch)
  total, number, (inputs, outputs) = in_numpy(params, prepared(task, batch), architecture=architecture, window=3)
  assert number > 15 and float(loss.value) == pytest.approx(total, rel=1e-5)
  assert float(loss.metrics['loss'][1]) == number
  assert np.allclose(gradient['trunk']['token_embed']['table'], inputs, atol=1e-5)
  assert np.allclose(gradient['output']['table'], outputs, atol=1e-5)
  mean, mean_gradient = tiny.loss_and_gradient(
    make(architecture=architecture, subsample=0.02, reduction='mean'), params, batch
  )
  assert float(mean.value) == pytest.approx(total / number, rel=1e-5)
  *_, (inputs, _) = in_numpy(params, prepared(task, batch), architecture=architecture, window=3, divided=True)
  assert np.allclose(np.asarray(mean_gradient['trunk']['token_embed']['table']) * number, inputs, atol=1e-5)
  assert np.allclose(np.asarray(mean_gradient['output']['table']) * number, outputs, atol=1e-5)


def test_a_bag_moves_its_words_as_word2vec_c_does():
  """One bag of two words and one of one, line by line after TrainModelThread, both from the same vectors."""
  rng, alpha, task = np.random.default_rng(1), 0.05, make(architecture='cbow', window=1)
  syn0, syn1neg = rng.normal(size=(2, VOCAB.size, 6)).astype(np.float32)
  tokens, words = np.array([[8, 9, 10]]), np.array([[[8, 20], [9, 21], [10, 22]]])  # each centre, a negative behind it
  pairs = np.array([[[False, True], [True, True], [False, False]]])  # 9 around 8, 8 and 10 around 9
  inputs = {'tokens': tokens, 'pairs': pairs, 'words': words, 'number': np.array([2])}
  targets = {'weights': np.array([[1.0, 1.0, 0.0]]), 'scale': np.ones(1), 'others': words != tokens[..., None]}
  example = Example(*jax.tree.map(jnp.asarray, (inputs, targets)))

  def loss_of(params):
    return task.loss(lambda **inputs: task.model.apply({'params': params}, **inputs), example, (), None).value

  gradient = jax.grad(loss_of)({'trunk': {'token_embed': {'table': syn0}}, 'output': {'table': syn1neg}})
  moved0, moved1 = np.zeros_like(syn0), np.zeros_like(syn1neg)
  for context, (word, negative) in (((9,), (8, 20)), ((8, 10), (9, 21))):
    neu1, neu1e = sum(syn0[at] for at in context) / len(context), 0.0
    for target, label in ((word, 1), (negative, 0)):
      g = (label - 1 / (1 + np.exp(-neu1 @ syn1neg[target]))) * alpha
      neu1e = neu1e + g * syn1neg[target]
      moved1[target] += g * neu1
    for at in context:
      moved0[at] += neu1e
  assert np.allclose(-alpha * gradient['trunk']['token_embed']['table'], moved0, atol=1e-6)
  assert np.allclose(-alpha * gradient['output']['table'], moved1, atol=1e-6)


def test_windows_end_at_documents_and_reach_as_far_as_drawn():
  found = prepared(make(), make_batch())
  for row in range(4):
    words = (found['tokens'][row] > 0).sum()  # special tokens are left out, the others moved together
    assert (found['tokens'][row, :words] >= 7).all()
    real = found['pairs'][row, : found['number'][row]]
    assert ((real >= 0) & (real < words)).all()
    reader, centre = real.T
    assert (np.abs(reader - centre) <= 3).all() and len({tuple(pair) for pair in real}) == len(real)
    reach = [np.abs(reader - centre)[centre == place].max(initial=0) for place in range(words)]
    for place in range(words) if row in (0, 2) else ():  # one document: a centre takes all as near as it reaches
      assert set(reader[centre == place]) == {at for at in range(words) if 0 < abs(at - place) <= reach[place]}
  alone = prepared(make(), make_batch(((3,), (3, 3, 3, 3, 3), (16,), (2,))))  # [CLS] [SEP] [SEP] have no word between
  assert (alone['number'] > 0).tolist() == [False, False, True, False]


def test_pairs_stand_first_and_in_order():
  pairs = np.random.default_rng(0).random((3, 7, 4)) < np.array([0.4, 0.0, 1.0])[:, None, None]
  places = np.arange(7)[:, None] + np.array([-2, -1, 1, 2])
  pairs &= (places >= 0) & (places < 7)
  listed, number = context_windows.listed(jnp.asarray(pairs))
  for row in range(3):
    expected = [(place, places[place, slot]) for place, slot in np.argwhere(pairs[row])]
    assert number[row] == len(expected)
    assert [tuple(pair) for pair in np.asarray(listed[row, : len(expected)]).tolist()] == expected
  assert number[1] == 0 and number[2] == 22 and listed.shape == (3, 28, 2)


def test_reaches_are_uniform():
  segments, task = jnp.ones((1, 30), jnp.int32), make(window=4, architecture='cbow')
  batch = make_batch(((16,),)) | {'row_id': jnp.zeros(1, jnp.int32)}
  batch |= {'tokens': jnp.full((1, 30), 9), 'segment_ids': segments, 'row_weight': jnp.ones(1)}
  many = jax.vmap(lambda step: task.prepare(jax.random.key(1), keys.with_step(batch, step)).inputs['pairs'])(
    jnp.arange(300)
  )
  reach = np.asarray(many)[:, 0, 4:26].sum(axis=-1) / 2  # of those with 4 words to each side
  share = [(reach == one).mean() for one in (1, 2, 3, 4)]
  assert sum(share) == pytest.approx(1) and share == pytest.approx([0.25] * 4, abs=0.02)


def test_words_stay_by_their_frequency():
  rates = context_windows.keep_rates(COUNTS, 0.01)
  frequency = COUNTS / COUNTS.sum()
  for word in (7, 20, 39):  # word2vec.c: (sqrt(f / t) + 1) t / f
    expected = min((np.sqrt(frequency[word] / 0.01) + 1) * 0.01 / frequency[word], 1)
    assert rates[word] == pytest.approx(expected)
  assert not rates[:7].any() and (context_windows.keep_rates(COUNTS, 0.0)[7:] == 1).all()


def test_negatives_are_drawn_by_frequency():
  drawn = np.bincount(prepared(make(negatives=96), make_batch())['words'][..., 1:].reshape(-1), minlength=40)
  expected = COUNTS**0.75 / (COUNTS**0.75).sum()
  assert not drawn[:7].any() and np.abs(drawn / drawn.sum() - expected).max() < 0.006


def test_pairs_of_a_centre_share_their_negatives():
  found, own = (prepared(make(negatives=4, shared_negatives=shared), make_batch()) for shared in (True, None))
  for name in ('tokens', 'pairs', 'number'):
    np.testing.assert_array_equal(found[name], own[name])
  several = 0
  for row, number in enumerate(found['number'].tolist()):
    if not number:
      continue
    pairs = range(number)
    drawn = {centre: {tuple(found['words'][row, pair, 1:]) for pair in pairs if found['pairs'][row, pair, 1] == centre}
             for centre in found['pairs'][row, :number, 1]}  # fmt: skip
    assert all(len(each) == 1 for each in drawn.values()) and len(set.union(*drawn.values())) > len(drawn) / 2
    several += number - len(drawn)
    assert len({tuple(own['words'][row, pair, 1:]) for pair in pairs}) > number / 2
  assert several > 20
  words = np.concatenate([prepared(make(negatives=4, shared_negatives=True), make_batch(), step=step)['words'][..., 1:]
                          for step in range(20)])  # fmt: skip
  assert set(np.unique(words)) == set(range(7, 40)) - set(np.flatnonzero(VOCAB.counts == 0))


def test_mistakes():
  trunk = static.make(vocab_size=40, variant='tiny')
  with pytest.raises(ValueError, match=r'counts.*`plm-jax vocab train'):
    skipgram.make(trunk=trunk, vocab=tiny.FakeVocab(size=40, counts=None))
  with pytest.raises(ValueError, match=r"objective\.architecture='glove'.*skipgram, cbow"):
    make(architecture='glove')
  with pytest.raises(ValueError, match=r'none.*Bert.*bidirectional'):
    skipgram.make(trunk=tiny.make_trunk(), vocab=tiny.VOCAB)
