"""Training for 8 bits: one network in training, by its fold, and as int8."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.adapters import quantise
from plm_jax.compression import quantise as maps
from plm_jax.core import param_paths
from plm_jax.models import cove
from plm_jax.training import step
from tests import tiny

CLASSIFY = {'name': 'classify', 'dropout': 0.0}
BATCH = tiny.make_batch()
KEY = jax.random.key(0)
INPUTS = {name: BATCH[name] for name in ('tokens', 'segment_ids')}


@functools.cache
def trained(model='bert'):
  """A task and the parameters of a run of two steps."""
  task = quantise.make(trunk=tiny.make_trunk(model), vocab=tiny.VOCAB, inner=CLASSIFY)
  tx = tiny.make_optimiser(task, BATCH, rate=1e-2, decay=0.1)
  state = tiny.make_state(task, BATCH, tx)
  state = state.replace(params=step.advanced(task, state.params, jnp.int32(0)))
  update = jax.jit(functools.partial(step.train_step, task=task, tx=tx))
  for _ in range(2):
    state, _ = update(state, BATCH, KEY)
  return task, state.params


def split(params):
  """(the parameters of the inner task by path, the scale of each quantised one)."""
  leaves = {path: np.asarray(leaf) for path, leaf in param_paths.flat(params).items()}
  own = {path: leaf for path, leaf in leaves.items() if not path.startswith('quantise/')}
  scales = {path: leaves[at] for path in own if (at := f'quantise/{path.rpartition("/")[0]}/scale') in leaves
            if path.endswith(('kernel', 'table'))}  # fmt: skip
  return own, scales


def test_dense_layers_and_the_table_are_quantised_and_scales_follow_them():
  own, scales = split(trained()[1])
  dense = {f'trunk/layers/{name}/kernel' for name in ('query', 'key', 'value', 'out', 'mlp/up', 'mlp/down')}
  assert scales.keys() == dense | {'trunk/pooler/kernel', 'trunk/token_embed/table'}
  for path, scale in scales.items():
    axes = tuple(axis for axis, size in enumerate(scale.shape) if size == 1 and own[path].shape[axis] > 1)
    np.testing.assert_allclose(scale, np.abs(own[path]).max(axis=axes, keepdims=True) / 127, rtol=1e-6, err_msg=path)


@pytest.mark.parametrize('model', ['bert', 'gpt'])
def test_int8_and_fold_compute_what_was_trained(model):
  task, params = trained(model)
  own, scales = split(params)
  folded = {path: quantise.fold(own[path], {'scale': scale}, {}) for path, scale in scales.items()}
  numbers = {path: maps.quantise(folded[path], scale) for path, scale in scales.items()}
  assert {leaf.dtype for leaf in numbers.values()} == {np.dtype(np.int8)}
  beside = {f'{path}{param_paths.SCALE}': scale for path, scale in scales.items()}
  ours = task.model.apply({'params': params}, **INPUTS)[0]
  by_fold = task.model.inner.apply({'params': param_paths.nested({**own, **folded})}, **INPUTS)[0]
  as_int8 = task.model.inner.apply({'params': param_paths.nested({**own, **numbers, **beside})}, **INPUTS)[0]
  np.testing.assert_array_equal(ours, by_fold)
  np.testing.assert_allclose(as_int8, ours, rtol=1e-5, atol=1e-6)
  plain = task.model.inner.apply({'params': param_paths.nested(own)}, **INPUTS)[0]
  assert np.abs(np.asarray(plain) - ours).max() > 1e-5  # the rounding is there


def test_scales_get_no_gradient_and_all_weights_do():
  task, params = trained()
  _, gradient = tiny.loss_and_gradient(task, params, BATCH)
  own, scales = split(gradient)
  assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient['quantise']))
  assert all(own[path].any() for path in scales)


def test_tasks_over_a_trunk_with_given_vectors_are_quantised():
  parts = {'one': CLASSIFY, 'two': {'name': 'tag', 'tags': ('O', 'B-name')}}
  trunk = cove.make(vocab_size=tiny.VOCAB.size, variant='tiny')
  task = quantise.make(trunk=trunk, vocab=tiny.VOCAB, inner={'name': 'multitask', 'parts': parts})

  def trains(path):
    return any(re.fullmatch(pattern, path) for pattern in task.trains)

  assert trains('one/head/kernel') and trains('trunk/lstm_0/gates/kernel')
  assert not trains('trunk/token_embed/table') and not trains('quantise/one/head/scale')
