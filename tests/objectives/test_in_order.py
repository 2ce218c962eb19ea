"""Updates in order: the loop of word2vec.c line by line in numpy, no copies, same bits, refusals with their fix."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.core.errors import ConfigError
from plm_jax.core.param_paths import flat
from plm_jax.models import static
from plm_jax.noise import keys
from plm_jax.objectives import fasttext, in_order, skipgram
from plm_jax.training import feed, step
from tests import tiny

pytest.importorskip('numba')

VOCAB = tiny.FakeVocab(size=53)
LETTERS = {'shortest': 2, 'longest': 3, 'buckets': 47}
BOTH = pytest.mark.parametrize('letters', [{}, LETTERS], ids=['words', 'letters'])


def make(letters=(), update='in_order', **settings):
  trunk = static.make(vocab_size=VOCAB.size, variant='tiny', overrides={'hidden_dim': 6})
  settings = {'window': 3, 'negatives': 3, 'subsample': 0.0, 'update': update} | dict(letters) | settings
  return (fasttext if letters else skipgram).make(trunk=trunk, vocab=VOCAB, **settings)


def make_batch():
  batch = tiny.make_batch()
  tokens = jnp.where(batch['segment_ids'] > 0, batch['tokens'] % VOCAB.size, 0)
  return batch | {'tokens': tokens, 'row_weight': batch['row_weight'].at[1].set(0)}


def make_step(task, batch, **settings):
  tx = tiny.make_optimiser(task, batch, **{'name': 'sgd', 'rate': 0.5} | settings)
  run = jax.jit(functools.partial(step.train_step, task=task, tx=tx), donate_argnums=0)
  return run, jax.tree.map(jnp.array, tiny.make_state(task, batch, tx))  # no leaf twice, since a step takes them over


def after_word2vec_c(params, example, *, bags, rate, output_rate):
  """TrainModelThread in float64, by input position; the loss of each pair."""
  tables = {path: np.array(leaf, np.float64) for path, leaf in flat(params).items()}
  inputs, outputs, ngrams = (tables.get(path) for path in (in_order.INPUTS, in_order.OUTPUTS, in_order.NGRAMS))
  found = jax.tree.map(np.asarray, example.inputs)
  tokens, pairs, words, number = (found[name] for name in ('tokens', 'pairs', 'words', 'number'))
  nats = []
  offsets = [offset for offset in range(-3, 4) if offset]
  for row in range(len(tokens)):
    parts = [[(inputs, token)] for token in tokens[row]]
    for own, grams in zip(parts, found.get('grams', [[()] * 16] * 4)[row], strict=True):
      own += [(ngrams, gram) for gram in grams if gram >= 0]
    if bags:
      bagged = [[at + offset for offset, take in zip(offsets, pairs[row, at], strict=True) if take] for at in range(16)]
      steps = [(near, at) for at, near in enumerate(bagged) if near]
    else:
      steps = [([at], n) for n, at in enumerate(pairs[row, : number[row], 0])]
    for near, n in steps:
      if not example.targets['weights'][row].any():
        continue
      mean, error = sum(sum(t[i] for t, i in parts[at]) / len(parts[at]) for at in near) / len(near), 0.0
      nats.append(0.0)
      for k, word in enumerate(words[row, n]):
        if not k or word != words[row, n, 0]:
          chance = 1 / (1 + np.exp(-mean @ outputs[word]))
          nats[-1] -= np.log(chance if k == 0 else 1 - chance)
          error, outputs[word] = (
            error + ((k == 0) - chance) * outputs[word],
            outputs[word] + output_rate * ((k == 0) - chance) * mean,
          )
      for at in near:
        for table, index in parts[at]:
          table[index] += rate * error
  return tables, nats


@BOTH
@pytest.mark.parametrize('architecture', ['skipgram', 'cbow'])
def test_a_step_is_that_of_word2vec_c(architecture, letters):
  task, batch = make(letters, architecture=architecture), make_batch()
  run, state = make_step(task, batch, scale=(('output/.*', 0.5), ('.*', 1.0)))
  state = state.replace(params=jax.tree.map(lambda leaf: 10 * leaf, state.params))
  before = jax.tree.map(np.array, state.params)  # the step takes over its arrays
  example = task.prepare(keys.noise_root(jax.random.key(1)), keys.with_step(batch, 0))
  expected, nats = after_word2vec_c(before, example, bags=architecture == 'cbow', rate=0.5, output_rate=0.25)
  new, metrics = run(state, batch, jax.random.key(1))
  assert int(new.step) == 1 and int(new.skipped) == 0
  assert metrics['loss'][1] == len(nats) > 15 and metrics['learning_rate'][0] == 0.5
  for path, leaf in flat(new.params).items():
    assert np.allclose(leaf, expected[path], atol=2e-5) and not np.allclose(leaf, flat(before)[path], atol=1e-2), path
  assert float(metrics['loss'][0]) == pytest.approx(sum(nats), rel=1e-5)


@BOTH
def test_metrics_are_those_of_a_gradient_and_small_steps_are_its_sum(letters):
  batch, rate = make_batch(), 1e-3
  task, plain = make(letters), make(letters, update='tables')
  (run, state), (other, other_state) = (make_step(one, batch, rate=rate) for one in (task, plain))
  before = flat(jax.tree.map(np.array, state.params))
  new, metrics = run(state, batch, jax.random.key(1))
  expected, others = other(other_state, batch, jax.random.key(1))
  for name in ('loss', 'accuracy'):
    assert metrics[name][1] == others[name][1] and float(metrics[name][0]) == pytest.approx(
      float(others[name][0]), rel=1e-2
    )
  for path, leaf in flat(new.params).items():
    moved, by_gradient = np.asarray(leaf) - before[path], np.asarray(flat(expected.params)[path]) - before[path]
    assert np.abs(moved - by_gradient).max() < 0.02 * np.abs(by_gradient).max(), path


def test_tables_are_updated_in_place_with_the_same_bits():
  task, batch = make(LETTERS), make_batch()
  run, state = make_step(task, batch)
  text = run.lower(state, batch, jax.random.key(1)).compile().as_text()
  assert 'plm_jax_in_order_6_False_True' in text
  assert not [line for line in text.splitlines() if ' copy(' in line and (',6]' in line.split('copy(')[0])]
  ends = []
  for prepare in (lambda batch: batch, feed.prepare_ahead(task, jax.random.key(1), first=0)):
    state = make_step(task, batch)[1]
    for _ in range(2):
      state, _ = run(state, prepare(batch), jax.random.key(1))
    ends.append(jax.tree.map(jnp.array, state))
    # a run that was stopped after two steps
    resumed = feed.prepare_ahead(task, jax.random.key(1), first=2)
    ends += [run(state, prepare(batch), jax.random.key(1))[0], run(ends[-1], resumed(batch), jax.random.key(1))[0]]
  assert tiny.same(ends[1], ends[2]) and tiny.same(ends[1], ends[4]) and tiny.same(ends[1], ends[5])


def test_a_number_that_is_not_finite_stays_where_it_is():
  task, batch = make(), make_batch()
  run, state = make_step(task, batch)
  state.params['output']['table'] = state.params['output']['table'].at[20].set(jnp.inf)
  new, metrics = run(state, batch, jax.random.key(1))
  assert int(new.skipped) == 1 and np.isfinite(metrics['loss'][0])
  assert np.flatnonzero(~np.isfinite(new.params['output']['table']).all(axis=1)).tolist() == [20]
  assert np.isfinite(new.params['trunk']['token_embed']['table']).all()


@pytest.mark.parametrize(
  ('settings', 'said'),
  [
    ({'name': 'adagrad'}, "optim.name='adagrad'.*set optim.name to sgd "),
    ({'clip': 1.0}, 'optim.clip needs the gradient'),
    ({'decay': 0.1}, 'optim.decay'),
  ],
)
def test_only_plain_gradients_are_followed(settings, said):
  task, batch = make(), make_batch()
  run, state = make_step(task, batch, **settings)
  with pytest.raises(ConfigError, match=said):
    run.lower(state, batch, jax.random.key(1))


def test_what_is_missing_is_named(monkeypatch):
  with pytest.raises(ValueError, match=r"reduction='mean'.*set objective.reduction='sum'"):
    make(reduction='mean')
  monkeypatch.setitem(sys.modules, 'numba', None)
  with pytest.raises(ConfigError, match=r'numba, which is not installed: bash launch/setup.sh numba'):
    in_order._registered(7, False, False)
  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  with pytest.raises(ConfigError, match=r"needs a CPU: set objective.update='rows'"):
    in_order._registered(7, False, False)


def test_many_words_a_step_do_not_diverge():
  """4,096 words, three in four of them the same: sums of old gradients overshoot, steps in order do not."""
  draw = np.random.default_rng(0)
  tokens = np.where(draw.random((32, 128)) < 0.75, 7, draw.integers(8, 53, (32, 128))).astype(np.int32)
  batch = {'tokens': jnp.asarray(tokens), 'segment_ids': jnp.ones((32, 128), jnp.int32), 'row_id': jnp.arange(32)}
  batch |= {'row_weight': jnp.ones(32), 'epoch': jnp.zeros(32, jnp.int32)}
  largest = {}
  for update in ('rows', 'in_order'):
    run, state = make_step(make(update=update), batch, rate=0.05)
    for _ in range(10):
      state, metrics = run(state, batch, jax.random.key(1))
    largest[update] = float(metrics['loss'][0] / metrics['loss'][1])
  assert largest['in_order'] < 4 * np.log(2) < largest['rows'], largest
