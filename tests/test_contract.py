"""What every model, objective and adapter keeps to; a new file in one of the three folders is tested the day it lands.

A file whose `make` has keywords without defaults, or whose batches have fields of their own, gets a line in `SETTINGS`
or `FIELDS`; a parameter that rightly has no gradient gets one in `NO_GRADIENT`.
"""

import dataclasses
import functools
import importlib
import re
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import sharding
from plm_jax.noise import keys
from plm_jax.paths import is_stacked, path_name
from plm_jax.plugins import build, signatures
from plm_jax.training.step import abstract_params, eval_step, init_params, predict_step, state_maker, train_step
from plm_jax.types import Batch, Execution, Paper, Task
from tests import tiny

# keywords of `make`, by file: those without a default, and dropout of a head's own
SETTINGS: dict[str, dict[str, Any]] = {
  'classify': {'dropout': 0.0},
  'denoise_seq2seq': {
    'rearrange': ({'name': 'rotate', 'rate': 0.5},),
    'where': {'name': 'poisson_spans'},
    'edit': {'name': 'collapse_to_mask'},
    'target': 'text',
    'start': 'eos',
    'append_eos': False,
  },
  'mixture': {
    'parts': {
      'bert': {'name': 'mlm'},
      'iid': {'name': 'mlm', 'where': {'name': 'iid', 'rate': 0.3}, 'edit': {'name': 'to_mask'}},
    },
    'rates': {'bert': 0.5, 'iid': 0.5},
  },
  'tag': {'tags': ('O', 'B-name', 'I-name'), 'dropout': 0.0},
  'span_boundary': {'where': {'name': 'geometric_spans', 'rate': 0.3, 'max_words': 1}},
  'rtd': {'sharing': 'all', 'weight': 1.0},
  'distill': {
    'teacher': {'name': 'bert', 'variant': 'tiny', 'overrides': tiny.SIZES},
    'where': {'name': 'fixed_count'},
  },
}
# fields of a batch beside or instead of those of `tiny.make_batch`, by file
FIELDS: dict[str, dict[str, Any]] = {
  'sentence_pair': tiny.make_pairs(),
  'tag': {'labels': jnp.asarray(np.arange(64, dtype=np.int32).reshape(4, 16) % 5 % 4 - 1)},  # -1 to 2
}
# (file, or folder of the task and model; pattern of parameters): why they get no gradient
NO_GRADIENT: dict[tuple[str, str], str] = {
  ('', r'.*/key/bias'): 'softmax does not see what is added to all logits of a query',
  ('distill', r'teacher/.*'): 'the teacher is frozen',
  ('adapters-xlnet', r'trunk/start/vector'): 'fine-tuning has no query stream',
  ('adapters-llama', r'trunk/output/table'): 'an adapter predicts no tokens',
  ('contrastive', r'trunk/output/table'): 'rows are compared, and no tokens are predicted',
}

MODELS = signatures.names('models')
TASKS = [(folder, name) for folder in ('objectives', 'adapters') for name in signatures.names(folder)]
KEY = 5


def make_trunk(model: str) -> nn.Module:
  """The model's row 'tiny', smaller still, without dropout."""
  config = importlib.import_module(f'plm_jax.models.{model}').CONFIGS['tiny']
  own = {field.name for field in dataclasses.fields(config)}
  overrides = {name: value for name, value in tiny.SIZES.items() if name in own}
  return build.make(
    'models', {'name': model, 'variant': 'tiny', 'overrides': overrides, **SETTINGS.get(model, {})}, vocab_size=61
  )


class Pair(NamedTuple):
  """A task on a trunk, with a batch."""

  folder: str
  name: str
  model: str
  task: Task
  batch: Batch


def make_pairs() -> dict[str, Pair]:
  """Every objective and adapter on every trunk that it accepts."""
  pairs = {}
  for folder, name in TASKS:
    batch = tiny.make_batch() | FIELDS.get(name, {})
    for model in sorted(MODELS, key=lambda name: name not in ('bert', 'gpt')):  # the best known first
      try:
        task = build.make(folder, {'name': name, **SETTINGS.get(name, {})}, trunk=make_trunk(model), vocab=tiny.VOCAB)
      except ValueError as error:
        if 'choose another model.name' not in str(error):
          raise
        continue
      pairs[f'{name}-{model}'] = Pair(folder, name, model, task, batch)
  return pairs


PAIRS = make_pairs()


def essential() -> set[str]:
  """As few pairs as hold every task and every model once."""
  chosen: dict[str, Pair] = {}
  for on, pair in PAIRS.items():
    tasks = {(other.folder, other.name) for other in chosen.values()}
    models = {other.model for other in chosen.values()}
    if (pair.folder, pair.name) not in tasks or pair.model not in models:
      chosen[on] = pair
  return set(chosen)


ESSENTIAL = essential()
every_pair = pytest.mark.parametrize(
  'on', [on if on in ESSENTIAL else pytest.param(on, marks=pytest.mark.slow) for on in PAIRS]
)


class Run:
  """A pair in training: SGD with momentum, whose first momentum is the gradient."""

  def __init__(self, pair: Pair):
    self.batch = pair.batch
    self.tx = tiny.make_optimiser(pair.task, pair.batch, name='momentum', rate=0.05)
    self.state = tiny.make_state(pair.task, pair.batch, self.tx)
    self.train = jax.jit(functools.partial(train_step, task=pair.task, tx=self.tx), static_argnames='accumulate')
    self.evaluate = jax.jit(functools.partial(eval_step, task=pair.task))

  def step(self, *, accumulate: int = 1):
    return self.train(self.state, self.batch, jax.random.key(KEY), accumulate=accumulate)

  def metrics(self, state=None, batch=None):
    state, batch = self.state if state is None else state, self.batch if batch is None else batch
    return self.evaluate(state.params, batch, self.state.carry, jax.random.key(KEY))[0]


@functools.cache
def run_of(on: str) -> Run:
  return Run(PAIRS[on])


# Files --------------------------------------------------------------------------------------------------------------


def test_every_file_is_here():
  assert {'bert', 'gpt'} <= set(MODELS)
  assert {('objectives', 'mlm'), ('objectives', 'causal_lm'), ('adapters', 'classify')} <= set(TASKS)


@pytest.mark.parametrize('model', MODELS)
def test_every_model_serves_some_objective(model):
  assert any(pair.model == model and pair.folder == 'objectives' for pair in PAIRS.values())


@pytest.mark.parametrize(('folder', 'name'), TASKS)
def test_every_task_has_some_model(folder, name):
  assert any((pair.folder, pair.name) == (folder, name) for pair in PAIRS.values())


@pytest.mark.parametrize('module', [f'models.{name}' for name in MODELS] + ['.'.join(task) for task in TASKS])
def test_every_file_says_where_it_comes_from(module):
  module = importlib.import_module(f'plm_jax.{module}')
  assert isinstance(module.PAPER, Paper)
  assert 2000 < module.PAPER.year < 2030
  assert module.__doc__.strip().split('\n')[0].endswith('.')


# Models -------------------------------------------------------------------------------------------------------------


def reads(trunk: nn.Module) -> Batch:
  """What the trunk reads of a batch; an encoder-decoder the same rows on both sides."""
  batch = tiny.make_batch()
  if 'encoder_tokens' in trunk.INPUTS:
    parts = 'tokens', 'segment_ids'
    return {f'{side}_{part}': batch[part] for side in ('encoder', 'decoder') for part in parts}
  return {name: batch[name] for name in ('tokens', 'segment_ids', 'type_ids')}


@pytest.mark.parametrize('model', MODELS)
def test_every_trunk_has_states_by_name(model):
  trunk = make_trunk(model)
  assert trunk.ATTENTION in ('bidirectional', 'causal', 'encoder-decoder', 'permutation', 'prefix')
  batch = reads(trunk)
  assert set(trunk.INPUTS) >= set(batch)

  def call(key):
    features = jnp.zeros((4, 3, trunk.bind({}).token_embed.features))  # as wide as the table
    logits, _ = trunk.init_with_output(key, features, method='attend')
    return trunk.init_with_output(key, **batch)[0], logits

  out, logits = jax.eval_shape(call, jax.random.key(0))
  assert out['hidden'].shape == (4, 16, 32)
  assert out['layers'].shape == (3, 4, 16, 32)
  assert (logits.shape, logits.dtype) == ((4, 3, 61), jnp.float32)
  pooled = jax.eval_shape(
    lambda key: trunk.init_with_output(key, jnp.zeros((4, 16, 32)), jnp.ones((4, 16), int), method='pool')[0],
    jax.random.key(0),
  )
  assert pooled.shape == (4, 32)
  carry = trunk.init_carry(4)
  assert jax.tree.structure(carry) == jax.tree.structure(out['carry'])
  assert all(leaf.shape[0] == 4 for leaf in jax.tree.leaves(carry))


@pytest.mark.parametrize('model', [model for model in MODELS if model not in ('cnn', 'lstm')])  # without attention
def test_every_trunk_computes_attention_as_execution_says(model):
  trunk = make_trunk(model).clone(execution=Execution(attention='flash'))
  with pytest.raises(ValueError, match=r"execution\.attention='flash' cannot be used here"):
    jax.eval_shape(lambda key: trunk.init(key, **reads(trunk)), jax.random.key(0))


@pytest.mark.parametrize('model', MODELS)
def test_every_trunk_knows_its_learned_positions(model):
  """Each table of absolute positions is named with the rows in use, and a longer row is refused with both numbers."""
  trunk = make_trunk(model)
  variables = jax.eval_shape(lambda key: trunk.init(key, **reads(trunk)), jax.random.key(0))
  paths = jax.tree_util.tree_leaves_with_path(nn.unbox(variables['params']))
  shapes = {path_name(path): leaf.shape for path, leaf in paths}
  tables = {path.removesuffix('/table'): rows for path, (rows, *_) in shapes.items() if 'position_embed/table' in path}
  assert {name: rows.stop for name, rows in trunk.position_rows.items()} == tables
  most = min(map(len, trunk.position_rows.values()), default=None)
  batch = {name: jnp.zeros((1, (most or 100) + 1), value.dtype) for name, value in reads(trunk).items()}
  if most is None:
    jax.eval_shape(lambda key: trunk.init(key, **batch), jax.random.key(0))
  else:
    with pytest.raises(ValueError, match=rf'learned positions for {most} tokens and was given a row of {most + 1}'):
      jax.eval_shape(lambda key: trunk.init(key, **batch), jax.random.key(0))


@pytest.mark.parametrize('model', MODELS)
def test_every_trunk_shares_a_table_handed_in(model):
  own = make_trunk(model)
  table = own.bind({}).token_embed.clone(parent=None, name=None)

  class Two(nn.Module):
    def setup(self):
      self.table = table.copy()
      self.first = own.clone(embed=self.table)
      self.second = own.clone(embed=self.table)

    def __call__(self, **batch):
      return self.first(**batch)['hidden'] + self.second(**batch)['hidden']

  batch = reads(own)
  params = jax.eval_shape(lambda key: Two().init(key, **batch)['params'], jax.random.key(0))
  paths = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
  assert [path for path in paths if 'token_embed' in path or path.startswith('table')] == ['table/table']


# Tasks --------------------------------------------------------------------------------------------------------------


@every_pair
@pytest.mark.parametrize('rules', sharding.RULES)
def test_places_are_found_under_every_table(on, rules):
  pair = PAIRS[on]
  layout = sharding.make_layout(sharding.make_mesh({'data': -1}), rules)
  if jax.device_count() == 4:
    layout = sharding.make_layout(sharding.make_mesh({'data': 2, 'model': 2}), rules)
  tx = tiny.make_optimiser(pair.task, pair.batch)
  maker = state_maker(pair.task, tx, tiny.spec(pair.batch), layout=layout)
  pieces = [
    (leaf.shape, place.shard_shape(leaf.shape))
    for leaf, place in zip(jax.tree.leaves(maker.abstract.params), jax.tree.leaves(maker.places.params), strict=True)
  ]
  if jax.device_count() == 4:
    assert any(whole != piece for whole, piece in pieces) is (rules != 'data')


@every_pair
def test_every_parameter_has_axis_names(on):
  pair = PAIRS[on]
  boxed = jax.eval_shape(lambda key: init_params(pair.task, tiny.spec(pair.batch), key), jax.random.key(0))
  assert 'trunk' in boxed
  leaves = jax.tree_util.tree_leaves_with_path(boxed, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned))
  for path, leaf in leaves:
    name = path_name(path)
    assert isinstance(leaf, nn.LogicallyPartitioned), name
    assert len(leaf.names) == leaf.value.ndim, name
    assert set(leaf.names) - {None} <= set(sharding.AXES), name
    assert leaf.value.dtype == jnp.float32, name
    assert ('layers' in leaf.names) == is_stacked(name, leaf.value), name


@every_pair
def test_one_step_lowers_the_loss(on):
  run = run_of(on)
  before, after = (tiny.means(run.metrics(state))['loss'] for state in (run.state, run.step()[0]))
  assert after < before - 1e-4


@every_pair
def test_same_key_same_result(on):
  run = run_of(on)
  assert tiny.same(run.step(), run.step())


@every_pair
def test_accumulating_changes_nothing(on):
  run, pair = run_of(on), PAIRS[on]
  if pair.task.couples_rows:
    with pytest.raises(ValueError, match='couples the rows of a batch'):
      run.step(accumulate=4)
    return
  (one, one_metrics), (four, four_metrics) = run.step(), run.step(accumulate=4)
  error, where = tiny.gradient_error(four.opt_state['rule'], one.opt_state['rule'])
  assert error < 1e-5, where
  assert tiny.means(four_metrics) == pytest.approx(tiny.means(one_metrics), rel=2e-5, abs=1e-7)


@pytest.mark.parametrize(  # each operation is compiled by itself, which takes long
  'on', [on if on in ('mlm-bert', 'causal_lm-gpt') else pytest.param(on, marks=pytest.mark.slow) for on in PAIRS]
)
def test_jitted_equals_eager(on):
  pair = PAIRS[on]
  run = run_of(on)
  eager, _ = eval_step(run.state.params, run.batch, run.state.carry, jax.random.key(KEY), task=pair.task)
  assert tiny.means(eager) == pytest.approx(tiny.means(run.metrics()), rel=1e-5, abs=1e-6)


@every_pair
def test_content_of_padding_changes_nothing(on):
  run = run_of(on)
  noise = jax.random.randint(jax.random.key(1), run.batch['tokens'].shape, 0, tiny.VOCAB.size)
  dirty = {**run.batch, 'tokens': jnp.where(run.batch['segment_ids'] > 0, run.batch['tokens'], noise)}
  assert not tiny.same(dirty, run.batch)
  assert tiny.same(run.metrics(batch=dirty), run.metrics())


@every_pair
def test_rows_of_weight_zero_change_nothing(on):
  run = run_of(on)
  some = {**run.batch, 'row_weight': jnp.array([1.0, 0, 1, 0])}
  other = {**some, 'tokens': some['tokens'].at[1, 2].set(30).at[3, 1].set(31)}
  assert tiny.same(run.metrics(batch=some), run.metrics(batch=other))
  assert tiny.means(run.metrics(batch=some))['loss'] != tiny.means(run.metrics())['loss']


@every_pair
def test_every_parameter_gets_a_gradient_and_changes(on):
  pair = PAIRS[on]
  state, _ = run_of(on).step()
  old = jax.tree.leaves(run_of(on).state.params)
  gradient = jax.tree.leaves(state.opt_state['rule'])
  whole = np.sqrt(sum(float(jnp.square(leaf).sum()) for leaf in gradient))
  patterns = [
    pattern for name, pattern in NO_GRADIENT if name in ('', pair.name, pair.model, f'{pair.folder}-{pair.model}')
  ]
  new = jax.tree_util.tree_leaves_with_path(state.params)
  for (path, after), before, leaf in zip(new, old, gradient, strict=True):
    name = path_name(path)
    without = any(re.fullmatch(pattern, name) for pattern in patterns)
    for layer in leaf if is_stacked(name, leaf) else [leaf]:
      share = float(jnp.linalg.norm(layer.reshape(-1))) / whole
      assert (share < 1e-6) == without, (name, share)
    assert without or not tiny.same(after, before), name


def test_no_exception_is_stale():
  def names(pair):
    leaves = jax.tree_util.tree_leaves_with_path(abstract_params(pair.task, tiny.spec(pair.batch)))
    return [path_name(path) for path, _ in leaves]

  for file, pattern in NO_GRADIENT:
    pairs = [pair for pair in PAIRS.values() if file in ('', pair.name, pair.model, f'{pair.folder}-{pair.model}')]
    assert any(re.fullmatch(pattern, name) for pair in pairs for name in names(pair)), (file, pattern)


@every_pair
def test_metrics_and_predictions_have_their_form(on):
  pair = PAIRS[on]
  run = run_of(on)
  metrics = run.metrics()
  assert 'loss' in metrics
  for name, (total, weight) in metrics.items():
    assert (total.shape, weight.shape) == ((), ()), name
    assert (total.dtype, weight.dtype) == (jnp.float32, jnp.float32), name
  means = tiny.means(metrics)
  derived = pair.task.summary(means)
  assert not set(derived) & set(means)
  assert all(np.isfinite(value) for value in derived.values())
  if pair.task.predict is not None:
    predict = functools.partial(predict_step, task=pair.task)
    predicted = jax.eval_shape(predict, run.state.params, pair.batch, jax.random.key(0))
    assert {'row_id', 'row_weight'} < set(predicted)
    assert all(leaf.shape[0] == 4 for leaf in jax.tree.leaves(predicted))


@every_pair
def test_prepare_is_pure_and_keeps_its_shapes(on):
  pair = PAIRS[on]
  root = jax.random.key(0)
  prepare = jax.jit(pair.task.prepare)
  first, again = (prepare(root, keys.with_step(pair.batch, 3)) for _ in range(2))
  assert tiny.same(first, again)
  shorter = tiny.make_batch(((3,), (1,), (16,), (2, 2))) | FIELDS.get(pair.name, {})
  prepare(root, keys.with_step(shorter, 4))
  assert prepare._cache_size() == 1
  assert all(leaf.shape[0] == 4 for leaf in jax.tree.leaves(first))
