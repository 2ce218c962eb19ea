"""Pruning: exact counts, the schedule of the paper, layers that stay."""

import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.compression import prune


@pytest.mark.parametrize(('shape', 'sparsity'), [((7, 5), 0.5), ((4, 8, 3), 0.9), ((10,), 0.0), ((10,), 0.7)])
def test_the_smallest_go_and_their_number_is_exact(shape, sparsity):
  values = np.random.default_rng(0).random(shape).astype(np.float32)
  mask = np.asarray(prune.keep_largest(jnp.asarray(values), sparsity))
  assert (mask == 0).sum() == round(sparsity * values.size)
  if (mask == 0).any():
    assert values[mask == 0].max() < values[mask == 1].min()


def test_equals_are_counted_too():
  assert np.asarray(prune.keep_largest(jnp.ones(10), 0.3)).tolist() == [0] * 3 + [1] * 7


def test_each_layer_has_its_own_count_and_all_have_one_together():
  values = jnp.asarray(np.random.default_rng(1).random((3, 4, 5)).astype(np.float32)) * jnp.array(
    [[[1.0]], [[9.0]], [[3.0]]]
  )
  each = np.asarray(prune.keep_in_each(values, 0.4, layers=1))
  assert (each == 0).sum(axis=(1, 2)).tolist() == [8, 8, 8]
  masks = prune.keep_among_all({'a': values[0], 'b': values[1]}, 0.4)
  assert sum(int((np.asarray(mask) == 0).sum()) for mask in masks.values()) == 16
  assert (np.asarray(masks['a']) == 0).sum() > (np.asarray(masks['b']) == 0).sum()


def test_pruning_equals_torch():
  torch_prune = pytest.importorskip('torch.nn.utils.prune')
  torch = pytest.importorskip('torch')
  values = np.random.default_rng(2).normal(size=(16, 24)).astype(np.float32)
  theirs = torch_prune.L1Unstructured(amount=0.7).compute_mask(torch.tensor(values), torch.ones(16, 24))
  np.testing.assert_array_equal(np.asarray(prune.keep_largest(jnp.abs(jnp.asarray(values)), 0.7)), theirs.numpy())


def test_the_schedule_is_that_of_the_paper():
  at = [float(prune.cubic(jnp.int32(step), sparsity=0.8, begin=10, end=110)) for step in (0, 9, 10, 60, 110, 500)]
  np.testing.assert_allclose(at, [0, 0, 0, 0.8 * (1 - 0.5**3), 0.8, 0.8], rtol=1e-6)
  assert float(prune.cubic(jnp.int32(0), sparsity=0.5, begin=0, end=0)) == 0.5


def test_head_norms_are_those_of_their_rows():
  kernel = np.random.default_rng(3).normal(size=(2, 4, 8, 16)).astype(np.float32)
  norms = np.asarray(prune.head_norms(jnp.asarray(kernel)))
  assert norms.shape == (2, 4, 1, 1)
  np.testing.assert_allclose(norms[1, 2, 0, 0], np.linalg.norm(kernel[1, 2]), rtol=1e-5)


def test_layers_that_stay():
  assert prune.every_other(6, 0.5) == (0, 2, 4)
  assert prune.every_other(12, 0.25) == (0, 1, 2, 4, 5, 6, 8, 9, 10)
  assert prune.lowest(6, 0.5) == (0, 1, 2)
