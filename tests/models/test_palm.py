"""PaLM: sizes, equality with its equations, causality, packing, initial kernels, generation step by step."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.core.types import Execution
from plm_jax.models import palm
from tests import tiny
from tests.models import plain_palm, stepping

pytestmark = pytest.mark.turns

FORMS = {'palm': {'num_heads': 4, 'head_dim': 12}, 'two keys': {'num_heads': 4, 'head_dim': 8, 'num_kv_heads': 2}}


def make_trunk(execution=tiny.PLAIN, **fields):
  return palm.make(vocab_size=tiny.VOCAB.size, variant='tiny', overrides=tiny.SIZES | fields, execution=execution)


def shapes_of(trunk):
  ids = jnp.ones((1, 4), jnp.int32)
  return nn.unbox(jax.eval_shape(lambda key: trunk.init(key, ids, segment_ids=ids)['params'], jax.random.key(0)))


@functools.cache
def form(name):
  """(trunk, parameters, function of tokens and segments -> states of all layers and the output) of one of `FORMS`."""
  trunk = make_trunk(**FORMS[name])
  params = tiny.draw(shapes_of(trunk))

  @jax.jit
  def run(tokens, segment_ids):
    out = trunk.apply({'params': params}, tokens, segment_ids=segment_ids)
    return jnp.concatenate([out['layers'], out['hidden'][None]])

  return trunk, params, lambda *inputs: np.asarray(run(*inputs))


@pytest.mark.parametrize('variant', palm.PUBLISHED)
def test_counts_are_the_published_ones(variant):
  published, c = palm.PUBLISHED[variant], palm.CONFIGS[variant]
  trunk = palm.make(vocab_size=published.vocab_size, variant=variant)
  assert sum(leaf.size for leaf in jax.tree.leaves(shapes_of(trunk))) == published.parameters
  d = c.hidden_dim
  layer = 2 * d * 256 * c.num_heads + 2 * 256 * d + 12 * d * d + d
  assert 256_000 * d + c.num_layers * layer + d == published.parameters
  assert round(published.parameters / 1e9, 2) == pytest.approx(float(published.paper.removesuffix('B')), abs=0.011)


@pytest.mark.parametrize('name', FORMS)
def test_equals_the_equations(name):
  trunk, params, run = form(name)
  batch = tiny.make_batch()
  tokens, segments = np.asarray(batch['tokens']), np.asarray(batch['segment_ids'])
  found = run(tokens, segments)
  exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
  for row in range(len(tokens)):
    for document in set(segments[row]) - {0}:
      places = np.flatnonzero(segments[row] == document)
      states, hidden, logits = plain_palm.forward(exact, tokens[row, places], trunk.config)
      for layer, expected in enumerate([*states, hidden]):
        assert tiny.worst(found[layer, row, places], expected) < 1e-5, (row, document, layer)
      ours = trunk.apply({'params': params}, found[-1, row, places], method='attend')
      assert tiny.worst(ours, logits) < 1e-5


def test_the_branches_read_one_norm():
  """What makes the block PaLM's: nothing of attention reaches the feed-forward of its own layer."""
  trunk = make_trunk(num_layers=1)
  params = tiny.draw(shapes_of(trunk))
  batch = tiny.make_batch(((16,),))
  run = jax.jit(
    lambda layers: trunk.apply(
      {'params': params | {'layers': layers}}, batch['tokens'], segment_ids=batch['segment_ids']
    )['layers'][1]
  )
  without = {}
  for part in ('out', 'mlp', 'both'):
    silent = {'out': {'kernel': params['layers']['out']['kernel'] * 0}} if part != 'mlp' else {}
    if part != 'out':
      silent['mlp'] = jax.tree.map(jnp.zeros_like, params['layers']['mlp'])
    without[part] = np.asarray(run(params['layers'] | silent))
  whole, x = np.asarray(run(params['layers'])), without['both']
  assert np.abs(without['out'] - x).max() > 1e-3
  assert np.abs(without['mlp'] - x).max() > 1e-3
  assert tiny.worst(without['out'] + without['mlp'] - x, whole) < 1e-5


def test_kernels_start_from_their_fan_in():
  fields = {'hidden_dim': 64, 'num_layers': 3, 'num_heads': 2, 'head_dim': 32, 'mlp_dim': 256}
  trunk = palm.make(vocab_size=500, variant='palm-8b', overrides=fields)
  ids = jnp.ones((1, 4), jnp.int32)
  params = nn.unbox(jax.jit(lambda key: trunk.init(key, ids, segment_ids=ids)['params'])(jax.random.key(0)))
  layers = params['layers']
  found = {part: layers[part]['kernel'].std() for part in ('query', 'key', 'value', 'out')}
  found |= {part: layers['mlp'][part]['kernel'].std() for part in ('gate', 'up', 'down')}
  for part, std in found.items():
    inputs = 256 if part == 'down' else 64
    assert std == pytest.approx(inputs**-0.5, rel=0.05), part
  assert params['token_embed']['table'].std() == pytest.approx(1, rel=0.05)
  assert not [path for path, _ in jax.tree_util.tree_leaves_with_path(params) if 'bias' in str(path)]


@pytest.mark.parametrize('name', FORMS)
@pytest.mark.parametrize('left', [False, True])
def test_goes_step_by_step(name, left):
  trunk, params, _ = form(name)
  stepping.check(trunk, params, left=left)


def test_the_cache_holds_the_shared_head_once():
  cache = jax.eval_shape(lambda: make_trunk(**FORMS['palm']).apply({}, 3, 9, method='init_cache'))
  assert (cache['keys'].shape, cache['values'].shape) == ((2, 3 * 1, 12, 9), (2, 3 * 1, 9, 12))


def test_the_future_changes_nothing():
  _, _, run = form('palm')
  batch = tiny.make_batch(((16,),) * 4)
  before = run(batch['tokens'], batch['segment_ids'])
  for place in (1, 7, 15):
    after = run(batch['tokens'].at[0, place].set(20), batch['segment_ids'])
    assert tiny.same(before[:, :, :place], after[:, :, :place]), place
    assert (np.abs(before[1:, 0, place:] - after[1:, 0, place:]).max(axis=-1) > 0).all()


def test_an_unrolled_stack_is_the_same():
  _, params, run = form('palm')
  batch = tiny.make_batch()
  loop = make_trunk(Execution(layers='loop'), **FORMS['palm'])
  found = loop.apply({'params': params}, batch['tokens'], segment_ids=batch['segment_ids'])['hidden']
  assert tiny.worst(found, run(batch['tokens'], batch['segment_ids'])[-1]) < 1e-5


def test_the_last_real_token_is_pooled():
  trunk, _, _ = form('palm')
  hidden = jnp.arange(12.0).reshape(2, 6, 1)
  segments = jnp.array([[1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1]])
  assert trunk.apply({}, hidden, segments, method='pool')[:, 0].tolist() == [2, 11]


def test_wrong_settings_are_refused():
  with pytest.raises(ValueError, match=r'num_heads\W2\b.*num_kv_heads\W4\b'):
    make_trunk(num_kv_heads=4)
  with pytest.raises(ValueError, match=r'head_dim\W7\b'):
    make_trunk(head_dim=7)
