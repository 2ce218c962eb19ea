"""What an evaluation reports does not depend on how many rows it reads at a time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.config import build
from plm_jax.training import evaluation
from plm_jax.training.step import eval_step
from tests import tiny
from tests.test_contract import KEY, SETTINGS, TASKS, Pair, batch_of, find, make_trunk

ROWS, SIZES = 32, (3, 8, 32)
# the other rows of a batch are the negatives of a row, or hold the other sentence of its pair
COUPLED = {'objectives/contrastive', 'objectives/minimal_pairs'}
# more terms than those of `SETTINGS`: name -> (folder, settings)
ALWAYS = ('objectives/sentence_pair', 'objectives/span_boundary', 'adapters/classify', 'mixture')
GENERATOR = {'name': 'bert', 'variant': 'tiny', 'overrides': tiny.SIZES}
RTD = {'name': 'rtd', 'generator': GENERATOR}
VARIANTS = {
  'sop': ('objectives', {'name': 'sentence_pair', 'question': 'sop'}),
  'rtd likelihood': ('objectives', RTD | {'weight': 50.0, 'generator_weight': 2.0}),
  'rtd adversarial': ('objectives', RTD | {'learning': 'adversarial'}),
  'rtd frozen': ('objectives', RTD | {'learning': 'frozen', 'sharing': 'none'}),
  'rtd replaced': ('objectives', RTD | {'predict': 'replace_mlm'}),
  'rtd all tokens': ('objectives', RTD | {'predict': 'all_tokens_mlm'}),
  'distill': ('objectives', SETTINGS['distill'] | {'name': 'distill', 'mse_weight': 0.5, 'positions': 'masked'}),
  'lora of pairs': ('adapters', {'name': 'lora', 'inner': {'name': 'sentence_pair'}}),
  'mixture': (
    'objectives',
    {
      'name': 'mixture',
      'parts': {'a': {'name': 'sentence_pair'}, 'b': {'name': 'span_boundary', **SETTINGS['span_boundary']}},
      'rates': {'a': 0.5, 'b': 0.5},
    },
  ),
}


def rows_of(folder, name):
  """Return 32 rows of different lengths and noise."""
  four = batch_of(folder, name)
  rows = {key: jnp.concatenate([value] * (ROWS // 4)) for key, value in four.items()}
  rows['row_id'] = jnp.arange(ROWS, dtype=jnp.int32)
  if 'reset' in rows:
    rows['reset'] = jnp.ones(ROWS, bool)
  order = np.random.default_rng(1).permutation(ROWS)
  return {key: value[order] for key, value in rows.items()} | {'row_id': rows['row_id']}


def batches(rows, size):
  """Cut rows into batches, the last one filled with copies without weight."""
  for first in range(0, ROWS, size):
    index = np.minimum(np.arange(first, first + size), ROWS - 1)
    real = jnp.asarray(np.arange(first, first + size) < ROWS)
    batch = {key: value[index] for key, value in rows.items()}
    yield batch | {'row_weight': real.astype(jnp.float32), 'row_id': jnp.where(real, batch['row_id'], -1)}


def evaluated(pair, rows, params):
  """Return the metrics of an evaluation by batch size."""
  step, found = jax.jit(functools.partial(eval_step, task=pair.task)), {}
  for size in SIZES:
    totals = None
    for batch in batches(rows, size):
      sums, _ = step(params, batch, pair.task.init_carry(size), jax.random.key(KEY))
      totals = sums if totals is None else jax.tree.map(jnp.add, totals, sums)
    found[size] = evaluation.means_of(pair.task, jax.device_get(totals))
  return found


def check(pair):
  rows = rows_of(pair.folder, pair.name)
  first = next(batches(rows, 8))
  tx = tiny.make_optimiser(pair.task, first, name='momentum', rate=0.1)
  found = evaluated(pair, rows, tiny.make_state(pair.task, first, tx).params)
  assert np.isfinite(found[32]['loss']) and found[32]['loss'] != 0
  for size in SIZES:
    assert found[size] == pytest.approx(found[32], rel=1e-5, abs=1e-6, nan_ok=True), size


def in_turn(name):
  return name if name in ALWAYS else pytest.param(name, marks=pytest.mark.turns)


@pytest.mark.parametrize('on', [in_turn(name) for name in TASKS if name not in COUPLED])
def test_every_task(on):
  check(find(on))


@pytest.mark.parametrize('name', map(in_turn, VARIANTS))
def test_several_terms(name):
  folder, settings = VARIANTS[name]
  task = build.make(folder, settings, trunk=make_trunk('bert'), vocab=tiny.VOCAB)
  read = ('objectives', 'sentence_pair') if name == 'lora of pairs' else (folder, settings['name'])
  check(Pair(*read, 'bert', task, {}))


@pytest.mark.turns
def test_the_others_couple_their_rows():
  assert {name for name in TASKS if find(name).task.couples_rows} == COUPLED


def test_a_loss_that_is_not_finite_stays_so():
  task = find('objectives/sentence_pair').task
  totals = {'loss': (np.nan, 4.0), 'mlm_loss': (np.nan, 3.0), 'nsp_loss': (1.0, 4.0)}
  assert np.isnan(evaluation.means_of(task, totals)['loss'])
  totals = {'loss': (4.0, 4.0), 'mlm_loss': (0.0, 0.0), 'nsp_loss': (6.0, 4.0)}
  assert evaluation.means_of(task, totals)['loss'] == 1.5  # a term without a target is 0
