"""GLM: sizes, an independent numpy forward and gradient, who sees whom, generation step by step."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.core.types import Execution
from plm_jax.models import glm
from plm_jax.noise import keys
from plm_jax.objectives import blank_infilling
from plm_jax.training import step
from tests import tiny
from tests.models import glm_reference

pytestmark = pytest.mark.turns

TOLERANCE = 1e-5
PLACEMENTS = ('pre', 'post', 'deepnorm')
INPUTS = blank_infilling.INPUTS
SMALL = tiny.SIZES | {'hidden_dim': 8, 'mlp_dim': 12, 'max_length': 16}
VOCAB = tiny.FakeVocab(size=17)


def make_task(placement='pre', execution=tiny.PLAIN, sizes=SMALL, **settings):
  trunk = glm.make(
    vocab_size=VOCAB.size, variant='tiny', overrides=sizes | {'norm_placement': placement}, execution=execution
  )
  return blank_infilling.make(trunk=trunk, vocab=VOCAB, **settings)


@functools.cache
def make_example(rate=0.3):
  """Two documents in a row, one with padding on the left, one alone, with two to four blanks."""
  batch = dict(tiny.make_batch(((8, 7), (9,), (15,)), length=15))
  batch['tokens'] = jnp.where(batch['tokens'] > 6, 7 + batch['tokens'] % 10, batch['tokens'])
  for name in ('tokens', 'segment_ids'):
    batch[name] = batch[name].at[1].set(jnp.roll(batch[name][1], 6))
  return batch, jax.jit(make_task(rate=rate).prepare)(jax.random.key(16), keys.with_step(batch, 0))


def rows_of(example):
  fields = {name: np.asarray(value) for name, value in (example.inputs | example.targets).items()}
  return [{name: value[row] for name, value in fields.items()} for row in range(len(fields['tokens']))]


@functools.cache
def params_of(placement='pre'):
  batch, _ = make_example()
  return tiny.init_params(make_task(placement), batch)


def as_numpy(tree):
  return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def run(trunk, params, inputs):
  out = trunk.apply({'params': params}, **inputs)
  return out | {'logits': trunk.apply({'params': params}, out['hidden'], method='attend')}


@functools.cache
def runner(placement='pre'):
  trunk = make_task(placement).model.trunk
  return jax.jit(lambda params, inputs: run(trunk, params, inputs))


@pytest.mark.parametrize('variant', glm.PUBLISHED)
def test_counts_are_the_published_ones(variant):
  published = glm.PUBLISHED[variant]
  trunk = glm.make(vocab_size=published.vocab_size, variant=variant)
  ids = jnp.ones((1, 4), jnp.int32)
  shapes = jax.eval_shape(lambda key: trunk.init(key, ids, segment_ids=ids)['params'], jax.random.key(0))
  assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == published.parameters
  c = trunk.config
  d, closed = c.hidden_dim, published.vocab_size * c.hidden_dim + 2 * (c.max_length + 1) * c.hidden_dim
  assert closed + c.num_layers * (12 * d * d + 13 * d) + 2 * d == published.parameters


def test_padding_the_table_adds_rows_that_are_never_chosen():
  sizes = SMALL | {'vocab_multiple': 8}
  trunk = glm.make(vocab_size=17, variant='tiny', overrides=sizes)
  ids = jnp.ones((1, 4), jnp.int32)
  params = nn.meta.unbox(jax.jit(lambda key: trunk.init(key, ids, segment_ids=ids)['params'])(jax.random.key(0)))
  assert params['token_embed']['table'].shape == (24, 8)
  assert float(run(trunk, params, {'tokens': ids, 'segment_ids': ids})['logits'][..., 17:].max()) < -1e8


@pytest.mark.parametrize('placement', PLACEMENTS)
def test_states_logits_and_loss_equal_the_reference(placement):
  _, example = make_example()
  params = params_of(placement)
  ours = runner(placement)(params['trunk'], example.inputs)
  rows = rows_of(example)
  assert {int(row['blanks']) for row in rows} == {2, 3, 4}
  for number, row in enumerate(rows):
    theirs = glm_reference.forward(as_numpy(params['trunk']), row, placement=placement)
    real = row['segment_ids'] > 0
    for layer in range(3):
      assert tiny.worst(ours['layers'][layer, number, real], theirs['layers'][layer, real]) < TOLERANCE, layer
    assert tiny.worst(ours['hidden'][number, real], theirs['hidden'][real]) < TOLERANCE
    assert tiny.worst(ours['logits'][number, real], theirs['logits'][real]) < TOLERANCE
  task = make_task(placement)
  loss = task.loss(step.bind(task, params, train=False, rng=jax.random.key(0)), example, (), jax.random.key(0))
  expected = glm_reference.loss(as_numpy(params['trunk']), rows, placement=placement)
  assert float(loss.value) == pytest.approx(expected, rel=TOLERANCE)


@pytest.mark.parametrize('placement', PLACEMENTS)
def test_gradients_equal_the_reference(placement):
  _, example = make_example()
  example = jax.tree.map(lambda leaf: leaf[:1], example)  # the row of two documents
  example.targets['scale'] = 1 / example.targets['weights'].sum(axis=1)
  task, params = make_task(placement), params_of(placement)

  @jax.jit
  @jax.grad
  def gradient(params):
    forward = step.bind(task, params, train=False, rng=jax.random.key(0))
    return task.loss(forward, example, (), jax.random.key(0)).value

  ours = as_numpy(gradient(params)['trunk'])
  theirs = glm_reference.gradient(as_numpy(params['trunk']), rows_of(example), placement=placement)
  error, where = tiny.gradient_error(ours, theirs)
  assert error < TOLERANCE, where


def test_placements_are_three_models():
  _, example = make_example()
  params = params_of('post')['trunk']
  assert 'final_norm' in params_of('pre')['trunk']
  assert 'final_norm' not in params and 'final_norm' not in params_of('deepnorm')['trunk']
  post, deep = (runner(name)(params, example.inputs)['hidden'] for name in ('post', 'deepnorm'))
  assert tiny.worst(deep, post) > 0.1
  with pytest.raises(ValueError, match=r"norm_placement='sandwich'.*pre, post, deepnorm"):
    glm.Config(norm_placement='sandwich')


@pytest.mark.parametrize('placement', ['pre', 'deepnorm'])
def test_kernels_start_with_the_published_deviations(placement):
  sizes = {'hidden_dim': 128, 'num_heads': 4, 'mlp_dim': 512, 'num_layers': 4, 'max_length': 255}
  trunk = glm.make(vocab_size=500, variant='tiny', overrides=sizes | {'norm_placement': placement})
  ids = jnp.ones((1, 4), jnp.int32)
  params = nn.meta.unbox(jax.jit(lambda key: trunk.init(key, ids, segment_ids=ids)['params'])(jax.random.key(0)))
  layers = params['layers']
  square, wide, gain = np.sqrt(2 / 256), np.sqrt(2 / 640), 8**-0.5
  expected = {
    'pre': dict.fromkeys(('query', 'key', 'value', 'up'), 0.02) | dict.fromkeys(('out', 'down'), 0.02 * gain),
    'deepnorm': {
      'query': square, 'key': square, 'value': gain * square, 'out': gain * square, 'up': gain * wide,
      'down': gain * wide,
    },
  }[placement]  # fmt: skip
  found = {name: layers[name] for name in ('query', 'key', 'value', 'out')} | layers['mlp']
  for name, deviation in expected.items():
    assert float(found[name]['kernel'].std()) == pytest.approx(deviation, rel=0.02), name
    assert not np.asarray(found[name]['bias']).any()
  for table in ('token_embed', 'position_embed', 'block_position_embed'):
    assert float(params[table]['table'].std()) == pytest.approx(0.02, rel=0.02), table
  assert params['position_embed']['table'].shape == params['block_position_embed']['table'].shape == (256, 128)


# Who sees whom ------------------------------------------------------------------------------------------------------


def changed_by(place, *, row, token=12):
  """bool[l]: the places whose state changes with the token at `place`."""
  _, example = make_example()
  params, inputs = params_of()['trunk'], dict(example.inputs)
  before = runner()(params, inputs)
  assert int(inputs['tokens'][row, place]) != token
  after = runner()(params, inputs | {'tokens': inputs['tokens'].at[row, place].set(token)})
  difference = np.abs(np.asarray(before['logits'] - after['logits']))
  assert not np.delete(difference, row, axis=0).any()
  return difference[row].max(axis=-1) > 0


def test_a_token_changes_exactly_what_may_see_it():
  """A later token of B never changes earlier logits; B sees all of A and what is before it in B; A does not see B."""
  _, example = make_example()
  for row, fields in enumerate(rows_of(example)):
    segments, prefix = fields['segment_ids'], int(fields['prefix'])
    places = np.arange(len(segments))
    for place in np.flatnonzero(segments):
      expected = (segments == segments[place]) & ((place < prefix) | (places >= place))
      token = 12 if fields['tokens'][place] != 12 else 13
      np.testing.assert_array_equal(changed_by(place, row=row, token=token), expected, err_msg=f'{row} {place}')


def test_a_later_blank_sees_an_earlier_one_of_its_document_only():
  _, example = make_example()
  fields = rows_of(example)[0]
  starts = np.flatnonzero((fields['block_positions'] == 1) & (fields['segment_ids'] > 0))
  owners = fields['segment_ids'][starts]
  assert set(owners) == {1, 2} and len(starts) == 4
  for place, owner in zip(starts, owners, strict=True):
    seen = changed_by(place, row=0)[starts]
    np.testing.assert_array_equal(seen, (owners == owner) & (starts >= place))


def test_without_a_prefix_the_whole_row_is_context():
  batch, _ = make_example()
  params, read = params_of()['trunk'], {name: batch[name] for name in ('tokens', 'segment_ids')}
  before = runner()(params, read)['hidden']
  after = runner()(params, read | {'tokens': read['tokens'].at[0, 7].set(12)})['hidden']
  assert (np.abs(np.asarray(before - after)[0]).max(axis=-1) > 0).tolist() == [True] * 8 + [False] * 7
  whole = {'prefix': jnp.full(3, 15), 'block_positions': jnp.zeros((3, 15), jnp.int32)}
  assert tiny.same(runner()(params, read | whole)['hidden'], before)


def test_a_row_longer_than_the_table_needs_positions():
  trunk, params = make_task().model.trunk, params_of()['trunk']
  ids = jnp.ones((1, 17), jnp.int32)
  with pytest.raises(ValueError, match=r'Glm\b.*\b16\b.*\b17\b'):
    trunk.apply({'params': params}, ids, segment_ids=ids)
  out = trunk.apply({'params': params}, ids, segment_ids=ids, positions=jnp.minimum(jnp.arange(17), 16)[None])
  assert out['hidden'].shape == (1, 17, 8)


@pytest.mark.parametrize('execution', [Execution(layers='loop'), Execution(remat='full'), Execution(dtype='bfloat16')])
def test_execution_changes_nothing_but_rounding(execution):
  batch, _ = make_example()
  params = params_of()
  plain, other = (
    tiny.loss_and_gradient(make_task(execution=how, rate=0.3), params, batch) for how in (tiny.PLAIN, execution)
  )
  limit = 0.05 if execution.dtype == 'bfloat16' else 1e-5
  assert tiny.gradient_error(other[1], plain[1])[0] < limit
  assert float(other[0].value) == pytest.approx(float(plain[0].value), rel=limit)


# Generation ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('placement', PLACEMENTS)
@pytest.mark.parametrize('side', ['left', 'right'])
def test_steps_give_the_logits_of_the_whole(placement, side):
  """Part A in one call, then B token by token, with part A padded to one size on either side."""
  _, example = make_example()
  params, trunk = params_of(placement)['trunk'], make_task(placement).model.trunk
  whole = np.asarray(runner(placement)(params, example.inputs)['logits'])
  step_logits = jax.jit(
    lambda tokens, cache, whole, **fields: trunk.apply(
      {'params': params}, tokens, cache, whole=whole, **fields, method='decode_step'
    ),
    static_argnames='whole',
  )
  rows = rows_of(example)
  names = ('tokens', 'segment_ids', 'positions', 'block_positions')
  width = max(int(row['prefix']) for row in rows)
  rest = len(rows[0]['tokens']) - min(int(row['prefix']) for row in rows)
  context = {name: np.zeros((len(rows), width), np.int32) for name in names}
  blanks = {name: np.zeros((len(rows), rest), np.int32) for name in names}
  shift = []
  for number, row in enumerate(rows):
    prefix = int(row['prefix'])
    shift.append(width - prefix if side == 'left' else 0)
    for name in names:
      context[name][number, shift[-1] : shift[-1] + prefix] = row[name][:prefix]
      blanks[name][number, : len(row[name]) - prefix] = row[name][prefix:]
  cache = trunk.apply({'params': params}, len(rows), width + rest, method='init_cache')
  first, cache = step_logits(cache=cache, whole=True, **context)
  found = [[] for _ in rows]
  for place in range(rest):
    logits, cache = step_logits(cache=cache, whole=False, **{k: v[:, place : place + 1] for k, v in blanks.items()})
    for number in range(len(rows)):
      found[number].append(np.asarray(logits)[number, 0])
  assert int(cache['index']) == width + rest
  for number, row in enumerate(rows):
    prefix, real = int(row['prefix']), row['segment_ids'] > 0
    assert tiny.worst(first[number, shift[number] : shift[number] + prefix], whole[number, :prefix]) < TOLERANCE
    own = np.stack(found[number])[: real.sum() - prefix]
    assert tiny.worst(own, whole[number, prefix : real.sum()]) < TOLERANCE


def test_a_prefix_in_one_call_differs_from_one_read_from_left_to_right():
  _, example = make_example()
  params, trunk = params_of()['trunk'], make_task().model.trunk
  fields = {name: example.inputs[name][2:, :8] for name in ('segment_ids', 'positions')}
  both, left = (
    trunk.apply(
      {'params': params}, example.inputs['tokens'][2:, :8], cache, whole=whole, **fields, method='decode_step'
    )
    for whole, cache in ((w, trunk.apply({'params': params}, 1, 9, method='init_cache')) for w in (True, False))
  )
  assert tiny.worst(both[0][:, -1], left[0][:, -1]) > 1e-3
  causal = runner()(params, {'tokens': example.inputs['tokens'][2:, :8], 'prefix': jnp.zeros(1, jnp.int32), **fields})
  assert tiny.worst(left[0], causal['logits']) < TOLERANCE


def test_a_loss_falls_over_60_steps():
  """On held-out rows of a language in which each word follows from the one before."""
  task = make_task(sizes=tiny.SIZES, rate=0.3)
  draw = np.random.default_rng(0)

  def text(rows):
    tokens = (7 + (draw.integers(0, 10, (rows, 1)) + np.arange(16)) % 10).astype(np.int32)
    tokens[:, 0], tokens[:, -1] = VOCAB.cls_id, VOCAB.sep_id
    ones = np.ones(rows, np.float32)
    return {
      'tokens': jnp.asarray(tokens),
      'segment_ids': jnp.ones((rows, 16), jnp.int32),
      'row_id': jnp.asarray(draw.integers(0, 10**6, rows), jnp.int32),
      'epoch': jnp.zeros(rows, jnp.int32),
      'row_weight': jnp.asarray(ones),
    }

  held_out, first = text(64), text(16)
  tx = tiny.make_optimiser(task, first, rate=5e-3)
  state = tiny.make_state(task, first, tx)
  train = jax.jit(functools.partial(step.train_step, task=task, tx=tx))
  evaluate = jax.jit(functools.partial(step.eval_step, task=task))
  score = lambda: tiny.means(evaluate(state.params, held_out, (), jax.random.key(9))[0])['loss']  # noqa: E731
  before = score()
  for _ in range(60):
    state, _ = train(state, text(16), jax.random.key(1))
  assert score() < 0.6 * before
