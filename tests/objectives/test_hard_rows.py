"""Every objective on rows that leave it little to do or nothing, and its noise: one draw a row, one program."""

import functools
import importlib
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.config import build, signatures
from plm_jax.core import sharding
from plm_jax.noise import keys
from plm_jax.training import step
from tests import test_contract, tiny

V = tiny.VOCAB
LENGTH = 16
INDEX = np.arange(LENGTH)
WORDS = 7 + INDEX * 5 % 54
ENDS = np.where((INDEX == 0) | (INDEX == LENGTH - 1), V.sep_id, WORDS)
HARD = {  # name -> tokens, segments
  'nothing': (WORDS * 0, INDEX * 0),
  'one token': (WORDS, INDEX < 1),
  'shorter than a span': (WORDS, INDEX < 2),
  'one token between special ones': (np.where(INDEX == 1, 9, V.cls_id), INDEX < 3),
  'all special': (np.full(LENGTH, V.cls_id), INDEX >= 0),
  'a sentence longer than the row': (WORDS, INDEX >= 0),
  'documents of one token': (WORDS, INDEX + 1),
  'several documents': (np.where(INDEX % 5 == 0, V.cls_id, ENDS), 1 + INDEX // 5),
}
ROWS = len(HARD)
PAIRS = ((0, 0, 0), (1, 0, 1), (1, 1, 1), (16, 0, 16), (16, 16, 16), (2, 3, 16), (1, 16, 1), (16, 1, 1))
OBJECTIVES = [name for name in signatures.names('objectives') if name != 'minimal_pairs']  # which reads pairs only
QUICK = ('causal_lm', 'mlm')
every_objective = pytest.mark.parametrize(
  'name', [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in OBJECTIVES]
)


def make_batch(rows=tuple(HARD), *, seed: int = 0):
  """Rows by name; other words and numbers for other seeds."""
  tokens, segments = (np.stack([HARD[row][part] for row in rows]).astype(np.int32) for part in (0, 1))
  tokens = np.where((tokens > 6) & (segments > 0), 7 + (tokens + 11 * seed) % 54, tokens * (segments > 0))
  fields = tiny.make_batch() | {
    'tokens': tokens,
    'segment_ids': segments,
    'type_ids': np.zeros_like(tokens),
    'label': np.arange(len(rows)) % 2,
    'row_id': len(rows) * seed + np.arange(len(rows)),
    'epoch': np.zeros(len(rows)),
    'labels': np.where(segments > 0, tokens % 4 - 1, -1),
    'part': np.ones(len(rows)),  # of `multiview`, unlabelled
  }
  batch = {field: jnp.asarray(value, jnp.int32) for field, value in fields.items()}
  batch |= tiny.make_pairs(PAIRS[: len(rows)], seed=seed) | {'row_weight': jnp.ones(len(rows))}
  batch |= {f'target_{name}': batch[name] for name in ('tokens', 'segment_ids')}
  return batch | tiny.make_streams(batch) | tiny.make_counted(batch)


def given(name: str, batch):
  """What the objective reads of it: pairs or rows."""
  pairs = tiny.make_pairs()
  return batch if name == 'sentence_pair' else {field: batch[field] for field in batch if field not in pairs}


@functools.cache
def make_task(name: str, rate: float | None = None):
  module = importlib.import_module(f'plm_jax.objectives.{name}')
  settings = dict(test_contract.SETTINGS.get(name, {}))
  if rate is not None:
    settings['where'] = {'name': 'poisson_spans' if name == 'denoise_seq2seq' else 'fixed_count', 'rate': rate}
  model = test_contract.first_pair(f'objectives/{name}').model
  assert 'make' in vars(module)
  trunk = test_contract.make_trunk(model)
  return build.make('objectives', {'name': name, **settings}, offered={'second_vocab': V}, trunk=trunk, vocab=V)


def check_finite(name: str, task, batches) -> None:
  params = tiny.init_params(task, given(name, make_batch()))

  @jax.jit
  def compute(params, batch):
    def loss_of(params):
      example = task.prepare(keys.noise_root(jax.random.key(1)), keys.with_step(batch, 3))
      rng = jax.random.key(2)
      loss = task.loss(step.bind(task, params, train=True, rng=rng), example, task.init_carry(ROWS), rng)
      return loss.value, loss.metrics

    return jax.value_and_grad(loss_of, has_aux=True)(params)

  for label, batch in batches.items():
    found = compute(params, given(name, batch))
    for path, leaf in jax.tree_util.tree_leaves_with_path(found):
      assert np.isfinite(np.asarray(leaf)).all(), (label, jax.tree_util.keystr(path))


@pytest.mark.parametrize('name', OBJECTIVES)
def test_hard_rows_have_finite_losses_and_gradients(name):
  batches = {'all': make_batch()} | {row: make_batch((row,) * ROWS) for row in HARD}
  batches['rows of weight 0'] = make_batch() | {'row_weight': jnp.zeros(ROWS)}
  check_finite(name, make_task(name), batches)


WITH_RATE = [
  name
  for name in OBJECTIVES
  if 'where' in inspect.signature(importlib.import_module(f'plm_jax.objectives.{name}').make).parameters
]


@pytest.mark.parametrize('rate', [0.0, 1.0])
@pytest.mark.parametrize('name', WITH_RATE)
def test_rates_0_and_1_have_finite_losses_and_gradients(name, rate):
  check_finite(name, make_task(name, rate), {'all': make_batch()})


def by_row(tree) -> dict[str, np.ndarray]:
  """Leaves that belong to a row alone: not what is divided by a total of the batch."""
  leaves = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
  return {
    name: np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)
    for name, leaf in leaves.items()
    if 'scale' not in name
  }


@every_objective
def test_a_row_has_the_same_noise_in_any_batch_on_any_number_of_devices(name):
  batch, root = given(name, make_batch()), jax.random.key(1)
  task = make_task(name)
  prepare = jax.jit(lambda root, batch: task.prepare(root, keys.with_step(batch, 3)))
  together = prepare(root, batch)
  rows = np.array([6, 2, 5])
  for field, leaf in by_row(prepare(root, {field: value[rows] for field, value in batch.items()})).items():
    assert np.array_equal(leaf, by_row(together)[field][rows]), field
  if jax.device_count() == 4:
    layout = sharding.make_layout(sharding.make_mesh({'data': 4}), 'data')
    assert tiny.same(by_row(prepare(root, jax.device_put(batch, sharding.batch_sharding(layout)))), by_row(together))


@every_objective
def test_100_batches_are_one_program(name):
  task = make_task(name)
  prepare = jax.jit(lambda root, batch: task.prepare(root, batch))
  draw = np.random.default_rng(0)
  for number in range(100):
    batch = given(name, make_batch(tuple(draw.choice(list(HARD), ROWS)), seed=number))
    prepare(jax.random.key(number), keys.with_step(batch, number))
  assert prepare._cache_size() == 1


def test_every_objective_is_here():
  assert sorted(signatures.names('objectives')) == sorted([*OBJECTIVES, 'minimal_pairs'])
