"""The step: exact under accumulation, unmoved by bad gradients, the same by key, jitted or not."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import optim
from plm_jax.adapters import classify
from plm_jax.core import sharding
from plm_jax.core.types import Example, Loss, Task
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Dense, Embed, normal
from plm_jax.noise import keys
from plm_jax.planning import hlo
from plm_jax.training import step
from tests import tiny

LENGTHS = ((16,), (7, 5), (11,), (3, 4, 5), (2,), (16,), (9, 7), (13,))
KEY = 11


class Recurrence(nn.Module):
  """A state for each row, driven by one token a step."""

  width: int = 6

  @nn.compact
  def __call__(self, tokens, state, train=False):
    embedded = Embed(61, self.width, ('vocab', 'embed'), normal(1.0), name='embed')(tokens[:, 0])
    update = Dense(self.width, axes=('embed', 'embed_out'), kernel_init=normal(0.5), name='update')
    return jnp.tanh(update(state) + embedded)


def recurrent_task(width: int = 6) -> Task:
  """A task whose next step reads what this one leaves behind."""

  def prepare(root, batch):
    del root
    weights = batch['row_weight']
    scale = jnp.broadcast_to(1 / jnp.maximum(weights.sum(), 1.0), weights.shape)
    targets = {'weights': weights, 'scale': scale}
    return Example({'tokens': batch['tokens'], 'state': jnp.zeros((len(weights), width))}, targets)

  def loss(forward, example, carry, rng):
    del rng
    state = forward(tokens=example.inputs['tokens'], state=carry)
    weights = example.targets['weights']
    values = jnp.square(state - 0.5).sum(axis=1) * weights
    metrics = {'loss': (values.sum(), weights.sum())}
    return Loss((values * example.targets['scale']).sum(), metrics, jax.lax.stop_gradient(state))

  return Task(Recurrence(width), prepare, loss, init_carry=lambda rows: jnp.zeros((rows, width)))


def _classify(dropout):
  trunk = tiny.make_trunk('gpt', norm_placement='post', dropout=dropout, attention_dropout=dropout)
  return classify.make(trunk=trunk, vocab=tiny.VOCAB, lm_weight=0.5, dropout=dropout)


# test_contract.py sees to the others
TASKS = {'classify': _classify, 'recurrent': lambda dropout: recurrent_task()}


class Setup:
  """A task, its optimiser (SGD with momentum: linear in the gradient), a batch and a state, and compiled steps."""

  def __init__(self, name: str, *, dropout: float = 0.0):
    self.task = TASKS[name](dropout)
    self.batch = tiny.make_batch(LENGTHS)
    self.tx = tiny.make_optimiser(self.task, self.batch, name='momentum', rate=0.1)
    self.state = tiny.make_state(self.task, self.batch, self.tx)

  @functools.cache  # noqa: B019 - setups live as long as the tests
  def compiled(self, accumulate: int = 1):
    return jax.jit(functools.partial(step.train_step, task=self.task, tx=self.tx, accumulate=accumulate))

  def run(self, state=None, batch=None, *, key: int = KEY, accumulate: int = 1):
    state = self.state if state is None else state
    return self.compiled(accumulate)(state, self.batch if batch is None else batch, jax.random.key(key))


setup = functools.cache(Setup)


@pytest.mark.parametrize('name', TASKS)
def test_accumulating_changes_nothing(name):
  one, one_metrics = setup(name).run()
  four, four_metrics = setup(name).run(accumulate=4)
  error, where = tiny.gradient_error(four.opt_state['rule'], one.opt_state['rule'])
  assert error < 1e-5, where
  assert tiny.worst(four.params, one.params) < 1e-5
  assert tiny.same(four.carry, one.carry) or tiny.worst(four.carry, one.carry) < 1e-6
  ours, theirs = tiny.means(four_metrics), tiny.means(one_metrics)
  assert ours.keys() == theirs.keys()
  for metric, value in theirs.items():
    assert ours[metric] == pytest.approx(value, rel=2e-5, abs=1e-7), metric


def test_accumulating_coupled_rows_is_refused():
  one = setup('recurrent')
  with pytest.raises(ValueError, match=r'couples the rows of a batch: accumulate must be 1'):
    step.train_step(
      one.state, one.batch, jax.random.key(0), task=one.task._replace(couples_rows=True), tx=one.tx, accumulate=2
    )


four_devices = pytest.mark.skipif(jax.device_count() != 4, reason='needs four (simulated) devices')


def compiled_on(name: str, rules: str, mesh: dict[str, int], *, dropout: float, random: str = 'threefry2x32'):
  """A step of two micro-batches on four devices: the compiled program, its next state and metrics."""
  one = setup(name, dropout=dropout)
  layout = sharding.make_layout(sharding.make_mesh(mesh), rules)
  place = sharding.batch_sharding(layout)
  maker = step.state_maker(one.task, one.tx, tiny.spec(one.batch), layout=layout)
  with sharding.use(layout):
    state, batch = jax.device_put((one.state, one.batch), (maker.places, place))
    run = jax.jit(
      functools.partial(step.train_step, task=one.task, tx=one.tx, accumulate=2, random=random),
      in_shardings=(maker.places, place, None),
      out_shardings=(maker.places, None),
    )
    compiled = run.lower(state, batch, jax.random.key(KEY)).compile()
    return compiled, *compiled(state, batch, jax.random.key(KEY))


@four_devices
@pytest.mark.parametrize(
  ('name', 'rules', 'mesh', 'random'),
  [
    ('classify', 'data', {'data': 4}, 'threefry2x32'),
    ('classify', 'data', {'data': 4}, 'rbg'),
    ('classify', 'tensor', {'data': 2, 'model': 2}, 'threefry2x32'),
    ('recurrent', 'data', {'data': 4}, 'threefry2x32'),
    ('classify', 'data', {'replica': 2, 'data': 2}, 'threefry2x32'),
    ('classify', 'fsdp', {'replica': 2, 'data': 2}, 'threefry2x32'),
    ('classify', 'fsdp_any', {'replica': 2, 'data': 2}, 'rbg'),
    ('classify', 'fsdp_tensor', {'replica': 2, 'model': 2}, 'threefry2x32'),
    ('recurrent', 'fsdp', {'replica': 2, 'data': 2}, 'threefry2x32'),
  ],
)
def test_devices_that_add_up_once_change_nothing(name, rules, mesh, random):
  """Dropout, a carry and metrics are those of one device."""
  one = setup(name, dropout=0.3)
  run = jax.jit(functools.partial(step.train_step, task=one.task, tx=one.tx, accumulate=2, random=random))
  alone, alone_metrics = run(one.state, one.batch, jax.random.key(KEY))
  _, apart, apart_metrics = compiled_on(name, rules, mesh, dropout=0.3, random=random)
  error, where = tiny.gradient_error(apart.opt_state['rule'], alone.opt_state['rule'])
  assert error < 1e-5, where
  assert tiny.same(apart.carry, alone.carry) or tiny.worst(apart.carry, alone.carry) < 1e-6
  assert tiny.means(apart_metrics) == pytest.approx(tiny.means(alone_metrics), rel=2e-5, abs=1e-7)


@four_devices
@pytest.mark.parametrize(
  ('rules', 'mesh'), [('data', {'data': 4}), ('data', {'replica': 2, 'data': 2}), ('tensor', {'data': 2, 'model': 2})]
)
def test_gradients_are_added_up_between_devices_once_a_step(rules, mesh):
  compiled, state, _ = compiled_on('classify', rules, mesh, dropout=0.0)
  sent = hlo.collectives(compiled.as_text())
  layers = sum(leaf.nbytes for leaf in jax.tree.leaves(state.params['trunk']['layers'])) // mesh.get('model', 1)
  gradients = [one for one in sent if one.bytes >= layers]  # combined into one transfer
  assert [(one.kind, one.runs) for one in gradients] == [('all-reduce', 1)]
  if rules == 'data':  # and nothing else but whether an update is finite
    assert {one.runs for one in sent} == {1}


@four_devices
@pytest.mark.parametrize(
  ('rules', 'mesh', 'rows', 'once'),
  [
    ('data', {'data': 4}, 16, True),
    ('data', {'data': 4}, 12, False),  # 3 rows of a device are no 2 parts
    ('data', {'data': 1, 'model': 4}, 16, False),
    ('tensor', {'data': 2, 'model': 2}, 16, True),
    # a whole gradient on each device is what these rules avoid
    ('fsdp', {'data': 4}, 16, False),
    ('fsdp_any', {'data': 4}, 16, False),
    ('fsdp_tensor', {'data': 2, 'model': 2}, 16, False),
    ('data', {'replica': 2, 'data': 2}, 16, True),
    ('data', {'replica': 2, 'data': 2}, 12, False),
    ('fsdp', {'replica': 2, 'data': 2}, 16, False),
  ],
)
def test_where_devices_compute_apart(rules, mesh, rows, once):
  seen = []

  def function(rows, whole):
    seen.append((sharding.apart()[0], rows.shape[0]))
    return rows.sum() * whole, rows

  x, layout = jnp.arange(float(rows)), sharding.make_layout(sharding.make_mesh(mesh), rules)
  with sharding.use(layout):
    total, kept = jax.jit(lambda x: sharding.sum_over_devices(function, x, jnp.float32(2), parts=2))(x)
  assert (float(total), kept.tolist()) == (rows * (rows - 1), x.tolist())
  devices = mesh.get('replica', 1) * mesh['data'] if once else 1
  assert seen == [(devices, rows // devices)]
  assert sharding.apart() == (1, 0)


@pytest.mark.parametrize('name', TASKS)
@pytest.mark.parametrize('value', [np.nan, np.inf])
def test_bad_gradients_change_nothing_at_exactly_their_steps(name, value):
  bad_steps, state, in_a_row = {1, 2, 4}, setup(name).state, 0
  good = setup(name).batch
  # which row is bad must not matter: the sum is
  bad = {**good, 'row_weight': good['row_weight'].at[3].set(value)}
  for number in range(6):
    new, metrics = setup(name).run(state, bad if number in bad_steps else good)
    in_a_row = in_a_row + 1 if number in bad_steps else 0
    for part in ('params', 'opt_state'):
      assert tiny.same(getattr(new, part), getattr(state, part)) is (number in bad_steps), (number, part)
    if name == 'recurrent':
      assert tiny.same(new.carry, state.carry) is (number in bad_steps)
    done = sum(past <= number for past in bad_steps)
    counters = (int(new.step), int(new.skipped), int(new.skipped_in_a_row))
    assert counters == (number + 1, done, in_a_row)
    assert tiny.means(metrics)['skipped'] == done
    assert tiny.means(metrics)['skipped_in_a_row'] == in_a_row
    state = new
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


def test_a_skipped_step_leaves_no_trace_in_the_training_that_follows():
  """Good, bad, good equals good, good of a task without noise, but for the counters."""
  one = setup('classify')
  bad = {**one.batch, 'row_weight': one.batch['row_weight'] * np.nan}
  state = one.run(one.run(one.run()[0], bad)[0])[0]
  plain = one.run(one.run()[0])[0]
  assert tiny.same((state.params, state.opt_state), (plain.params, plain.opt_state))
  assert (int(state.skipped), int(plain.skipped)) == (1, 0)


def test_same_key_same_result_and_another_key_another():
  run = functools.partial(setup('classify', dropout=0.5).run, accumulate=4)
  first, again, other = run(), run(), run(key=KEY + 1)
  assert tiny.same(first, again)
  assert not tiny.same(first[0].params, other[0].params)
  # the next step draws anew from the same key
  later = run(setup('classify', dropout=0.5).state.replace(step=jnp.int32(1)))
  assert not tiny.same(first[0].params, later[0].params)


def test_dropout_differs_from_one_micro_batch_to_the_next():
  one = setup('classify', dropout=0.5)
  # equal rows, of which only those of one micro-batch count
  rows = {name: jnp.repeat(value[:1], 8, axis=0) for name, value in one.batch.items()}
  losses = []
  for part in range(4):
    weights = jnp.zeros(8).at[jnp.array([part, part + 4])].set(1.0)
    losses.append(tiny.means(one.run(batch={**rows, 'row_weight': weights}, accumulate=4)[1])['loss'])
  assert len(set(losses)) == 4


def check_jitted_equals_eager(name):
  one = setup(name)
  state, metrics = one.run()
  eager, eager_metrics = step.train_step(one.state, one.batch, jax.random.key(KEY), task=one.task, tx=one.tx)
  error, where = tiny.gradient_error(eager.opt_state['rule'], state.opt_state['rule'])
  assert error < 1e-5, where
  assert tiny.means(eager_metrics) == pytest.approx(tiny.means(metrics), rel=1e-4, abs=1e-6)


def test_jitted_equals_eager():
  check_jitted_equals_eager('recurrent')


@pytest.mark.slow
def test_jitted_equals_eager_for_a_trunk():
  check_jitted_equals_eager('classify')


@pytest.mark.parametrize('name', TASKS)
def test_a_step_lowers_the_loss(name):
  one = setup(name)
  evaluate = jax.jit(functools.partial(step.eval_step, task=one.task))

  def loss(state):
    return tiny.means(evaluate(state.params, one.batch, one.state.carry, jax.random.key(KEY))[0])['loss']

  losses = [loss(one.state)]
  state = one.state
  for _ in range(3):
    # the same noise each time, which is that of evaluation too
    state = one.run(state)[0].replace(step=jnp.int32(0), carry=one.state.carry)
    losses.append(loss(state))
  assert losses[1] < losses[0] - 1e-3, losses
  assert losses[-1] < losses[0] - 1e-3, losses


def test_metrics_tell_what_happened():
  one = setup('classify')
  state, metrics = one.run()
  means = tiny.means(metrics)
  gradient = state.opt_state['rule']  # momentum of the first step is the gradient
  squares = dict.fromkeys(('trunk/layers', 'trunk/token_embed', 'head'), 0.0)
  for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    for part in squares:
      squares[part] += float(jnp.square(leaf).sum()) * (f'/{part}/' in f'/{name}/')
  for part, square in squares.items():
    assert means[f'gradient_norm/{part}'] == pytest.approx(np.sqrt(square), rel=1e-5), part
    assert means[f'update_norm/{part}'] == pytest.approx(0.1 * np.sqrt(square), rel=1e-5), part
  whole = np.sqrt(sum(float(jnp.square(leaf).sum()) for leaf in jax.tree.leaves(one.state.params['head'])))
  assert means['parameter_norm/head'] == pytest.approx(whole, rel=1e-5)
  parts = [value for name, value in means.items() if name.startswith('gradient_norm/')]
  assert means['gradient_norm'] == pytest.approx(np.linalg.norm(parts), rel=1e-5)
  assert means['learning_rate'] == pytest.approx(0.1)  # of the next update, where some were skipped
  assert {'loss', 'accuracy', 'skipped', 'skipped_in_a_row'} <= set(means)


def test_frozen_parameters_are_not_differentiated_nor_kept_moments_of():
  one = setup('classify')
  scale = (('trunk/(token|position)_embed/.*', None), ('trunk/layers/0/.*', None), ('.*', 1.0))
  tx = tiny.make_optimiser(one.task, one.batch, scale=scale)
  state = tiny.make_state(one.task, one.batch, tx)
  new, metrics = jax.jit(functools.partial(step.train_step, task=one.task, tx=tx))(
    state, one.batch, jax.random.key(KEY)
  )
  for name in ('token_embed', 'position_embed'):
    assert tiny.same(new.params['trunk'][name], state.params['trunk'][name])
  for old, leaf in zip(*(jax.tree.leaves(s.params['trunk']['layers']) for s in (state, new)), strict=True):
    assert tiny.same(old[0], leaf[0])
  assert not tiny.same(new.params['trunk']['layers']['mlp'], state.params['trunk']['layers']['mlp'])
  assert not any('embed/' in name for name in metrics if name.startswith('gradient_norm/'))
  shapes = [leaf.shape for leaf in jax.tree.leaves(state.opt_state)]
  assert (61, 32) not in shapes


def test_the_carry_flows_and_reset_rows_start_anew():
  one = setup('recurrent')
  first, _ = one.run()
  second, _ = one.run(first)
  assert not tiny.same(first.carry, second.carry)
  fresh, _ = one.run(first.replace(carry=jnp.zeros_like(first.carry)))
  reset = jnp.array([True, False] * 4)
  mixed, _ = one.run(first, {**one.batch, 'reset': reset})
  assert tiny.same(mixed.carry[0::2], fresh.carry[0::2])
  assert tiny.same(mixed.carry[1::2], second.carry[1::2])
  # every micro-batch sees the carry of its own rows
  quarter, _ = one.run(first, {**one.batch, 'reset': reset}, accumulate=4)
  assert tiny.worst(quarter.carry, mixed.carry) < 1e-6


def test_micro_batches_have_rows_of_every_device_and_join_again():
  rows = {'x': jnp.arange(16).reshape(8, 2)}
  parts = step._micro_batches(rows, 4)
  assert parts['x'][:, :, 0].tolist() == [[0, 8], [2, 10], [4, 12], [6, 14]]
  assert tiny.same(step._join(parts), rows)


def test_evaluation_does_not_drop_out():
  one = setup('classify', dropout=0.5)
  results = [
    jax.jit(functools.partial(step.eval_step, task=task))(one.state.params, one.batch, (), jax.random.key(KEY))
    for task in (one.task, setup('classify').task)
  ]
  assert tiny.same(*results)


class Noisy(nn.Module):
  @nn.compact
  def __call__(self, x, train=False):
    return Dropout(0.5)(x, train=train)


@pytest.mark.parametrize('name', TASKS)
def test_an_evaluation_in_parts_is_that_of_the_whole_batch(name):
  one = setup(name)
  read = one.state.params, one.batch, one.state.carry, jax.random.key(KEY)
  whole, carry = jax.jit(functools.partial(step.eval_step, task=one.task))(*read)
  in_parts = jax.jit(functools.partial(step.eval_step, task=one.task, rows=2))
  parts, carry_of_parts = in_parts(*read)
  assert parts.keys() == whole.keys()
  assert tiny.worst(tiny.means(parts), tiny.means(whole)) < 1e-5
  assert tiny.same(carry_of_parts, carry) or tiny.worst(carry_of_parts, carry) < 1e-6
  assert 'stablehlo.while' in in_parts.lower(*read).as_text()


def test_forward_folds_in_the_number_of_the_call():
  task = recurrent_task()._replace(model=Noisy())
  forward = step.bind(task, {}, train=True, rng=jax.random.key(0))
  x, own = jnp.ones((4, 64)), jax.random.key(5)
  first, second = forward(x=x), forward(x=x)
  assert not tiny.same(first, second)
  assert tiny.same(forward(x=x, rng=own), forward(x=x, rng=own))
  assert tiny.same(forward(x=x, train=False), x)
  again = step.bind(task, {}, train=True, rng=jax.random.key(0))
  assert tiny.same((first, second), (again(x=x), again(x=x)))
  assert tiny.same(step.bind(task, {}, train=False, rng=own)(x=x), x)


def test_keys_of_noise_and_of_dropout_are_apart():
  key = jax.random.key(0)
  data = lambda key: tuple(np.asarray(jax.random.key_data(key)).tolist())  # noqa: E731
  steps = {data(step.step_rng(key, jnp.int32(number))) for number in range(100)}
  assert len(steps) == 100
  assert data(keys.noise_root(key)) not in steps
  faster = step.step_rng(key, jnp.int32(3), random='rbg')
  assert str(jax.random.key_impl(faster)) == 'rbg'
  assert data(faster) == data(step.step_rng(key, jnp.int32(3))) * 2


def test_a_donated_state_is_written_in_place():
  one = setup('recurrent')
  lowered = jax.jit(functools.partial(step.train_step, task=one.task, tx=one.tx), donate_argnums=0).lower(
    one.state, one.batch, jax.random.key(KEY)
  )
  analysis = lowered.compile().memory_analysis()
  if analysis is None:
    pytest.skip('this backend does not say how memory is used')
  assert analysis.alias_size_in_bytes == sum(leaf.nbytes for leaf in jax.tree.leaves(one.state))


def test_an_update_needs_memory_for_gradients_and_directions_alone():
  """On one CPU, without a copy of the parameters and without a second array of updates."""
  task, batch = recurrent_task(256), setup('recurrent').batch
  params = step.abstract_params(task, tiny.spec(batch))
  tx = optim.make(params=params, steps=10, rate=0.1, name='adamw', decay=0.1, clip=1.0)
  state = tiny.make_state(task, batch, tx)
  run = jax.jit(functools.partial(step.train_step, task=task, tx=tx), donate_argnums=0)
  analysis = run.lower(state, batch, jax.random.key(KEY)).compile().memory_analysis()
  if analysis is None:
    pytest.skip('this backend does not say how memory is used')
  assert analysis.temp_size_in_bytes < 2.5 * sum(leaf.nbytes for leaf in jax.tree.leaves(state.params))


def test_predictions_need_a_predict():
  one = setup('recurrent')
  with pytest.raises(ValueError, match='this task makes no predictions'):
    step.predict_step(one.state.params, one.batch, jax.random.key(0), task=one.task)


def test_abstract_parameters_take_no_memory():
  one = setup('classify')
  abstract = step.abstract_params(one.task, tiny.spec(one.batch))
  assert jax.tree.structure(abstract) == jax.tree.structure(one.state.params)
  assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(abstract))
  assert tiny.same(*(jax.tree.map(lambda x: np.array(x.shape), tree) for tree in (abstract, one.state.params)))


def test_average_parameters_are_untouched_by_a_bad_step():
  one = setup('recurrent')
  tx = optim.make(params=one.state.params, steps=10, rate=0.1, name='sgd', schedule='constant', ema=0.9)
  state = tiny.make_state(one.task, one.batch, tx)
  run = jax.jit(functools.partial(step.train_step, task=one.task, tx=tx))
  state, _ = run(state, one.batch, jax.random.key(0))
  bad, _ = run(state, {**one.batch, 'row_weight': one.batch['row_weight'] * np.nan}, jax.random.key(0))
  assert tiny.same(tx.eval_params(bad.opt_state, bad.params), tx.eval_params(state.opt_state, state.params))
