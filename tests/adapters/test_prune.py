"""Pruning while training: counts at each step of the schedule, zeros that stay, one network by every door."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.adapters import prune
from plm_jax.compression import prune as rules
from plm_jax.core import param_paths
from plm_jax.training import step
from tests import tiny

CLASSIFY = {'name': 'classify', 'dropout': 0.0}
BATCH = tiny.make_batch()
KEY = jax.random.key(0)


def make(model='bert', **settings):
  return prune.make(trunk=tiny.make_trunk(model), vocab=tiny.VOCAB, inner=CLASSIFY, **settings)


def trained(task, *, steps):
  """Every state of a run, the first one included; with a rate and a decay that would move what is pruned."""
  tx = tiny.make_optimiser(task, BATCH, rate=1e-2, decay=0.1, ema=0.5)
  state = tiny.make_state(task, BATCH, tx)
  params = {**state.params, 'prune': jax.tree.map(jnp.ones_like, state.params['prune'])}
  state = state.replace(params=step.advanced(task, params, jnp.int32(0)))
  update = jax.jit(functools.partial(step.train_step, task=task, tx=tx))
  states = [state]
  for _ in range(steps):
    state, _ = update(state, BATCH, KEY)
    states.append(state)
  return states


def pruned(state):
  """Path of each kernel -> its mask, its values."""
  leaves = param_paths.flat(state.params)
  masks = {path: leaf for path, leaf in leaves.items() if path.startswith('prune/')}
  return {
    path: (np.asarray(mask), np.asarray(leaves[f'{path.removeprefix("prune/").removesuffix("/mask")}/kernel']))
    for path, mask in masks.items()
  }


def test_the_schedule_is_followed_exactly_and_zeros_stay():
  states = trained(make(sparsity=0.75, begin=1, end=5, every=2), steps=7)
  before: dict[str, np.ndarray] = {}
  for number, state in enumerate(states):
    drawn = max((at for at in (1, 2, 4, 5) if at <= number), default=0)  # steps at which masks are drawn
    asked = float(rules.cubic(jnp.int32(drawn), sparsity=0.75, begin=1, end=5))
    found = pruned(state)
    total = sum(mask.size for mask, _ in found.values())
    assert sum(int((mask == 0).sum()) for mask, _ in found.values()) == round(asked * total), number
    for path, (mask, values) in found.items():
      assert not values[mask == 0].any(), (number, path)  # exact zeros, in spite of moments and decay
      assert not (before.get(path, mask) < mask).any(), (number, path)  # what was pruned stays pruned
      before[path] = mask
  assert all((values[mask == 1] != 0).all() for mask, values in pruned(states[-1]).values())


@pytest.mark.parametrize(('unit', 'scope'), [('weight', 'matrix'), ('head', 'matrix')])
def test_what_is_pruned_at_once_is_gone_from_the_first_step(unit, scope):
  states = trained(make(sparsity=0.5, unit=unit, scope=scope), steps=1)
  for mask, values in pruned(states[0]).values():
    layers = mask.shape[0]
    if unit == 'head':  # one head of two in each layer
      assert mask.shape == (2, 2, 1, 1) and (mask == 0).sum(axis=(1, 2, 3)).tolist() == [1, 1]
    elif mask.ndim > 2:
      assert (mask.reshape(layers, -1) == 0).sum(axis=1).tolist() == [round(mask[0].size / 2)] * layers
    assert not np.where(mask == 0, values, 0).any()
  assert tiny.same(states[0].params['prune'], states[1].params['prune'])


def test_the_fold_is_what_the_model_computes_with():
  task = make(sparsity=0.5)
  (state,) = trained(task, steps=0)
  params = tiny.init_params(task, BATCH)  # weights that are not 0 where the masks are: the model must see to it
  params = {**params, 'prune': state.params['prune']}
  leaves = {path: np.asarray(leaf) for path, leaf in param_paths.flat(params).items()}
  for path in [path for path in leaves if path.startswith('prune/')]:
    kernel = f'{path.removeprefix("prune/").removesuffix("/mask")}/kernel'
    leaves[kernel] = prune.fold(leaves[kernel], {'mask': leaves[path]}, {})
  folded = param_paths.nested({path: leaf for path, leaf in leaves.items() if not path.startswith('prune/')})
  own, plain = task.model, task.model.inner
  inputs = {name: BATCH[name] for name in ('tokens', 'segment_ids')}
  ours, theirs = own.apply({'params': params}, **inputs)[0], plain.apply({'params': folded}, **inputs)[0]
  np.testing.assert_array_equal(ours, theirs)


def test_what_is_pruned_gets_no_gradient():
  task = make(sparsity=0.5)
  (state,) = trained(task, steps=0)
  _, gradient = tiny.loss_and_gradient(task, state.params, BATCH)
  leaves = param_paths.flat(gradient)
  for path, (mask, _) in pruned(state).items():
    kernel = np.asarray(leaves[f'{path.removeprefix("prune/").removesuffix("/mask")}/kernel'])
    assert not kernel[mask == 0].any() and kernel[mask == 1].any(), path


def test_a_target_that_is_no_dense_layer_is_refused():
  with pytest.raises(ValueError, match=r"adapter\.targets.*'keys'"):
    make(targets=('keys',))
