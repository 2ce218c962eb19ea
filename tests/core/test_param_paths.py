"""Names of parameters: without boxes, with fields of a state; trees to dicts and back."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import pytest

from plm_jax.core import param_paths


def boxed(shape):
  return nn.LogicallyPartitioned(jnp.zeros(shape), tuple('abc'[: len(shape)]))


def tree():
  return {'trunk': {'embed': {'table': boxed((4, 3))}, 'layers': {'mlp': {'kernel': boxed((2, 3, 3))}}}, 'head': [1, 2]}


def test_a_box_does_not_show_in_a_path():
  names = ['head/0', 'head/1', 'trunk/embed/table', 'trunk/layers/mlp/kernel']
  assert list(param_paths.flat(tree())) == names
  assert list(param_paths.flat(nn.unbox(tree()))) == names
  leaves = jax.tree_util.tree_leaves_with_path(tree())
  assert [param_paths.path_name(path) for path, _ in leaves] == names


def test_the_moments_of_a_parameter_have_different_paths():
  state = optax.scale_by_adam().init({'head': {'kernel': jnp.zeros(3)}})
  assert set(param_paths.flat({'rule': (state,)})) == {'rule/0/count', 'rule/0/mu/head/kernel', 'rule/0/nu/head/kernel'}


def test_a_dict_by_path_becomes_the_tree_again():
  whole = {'a': {'b': 1, 'c': {'d': 2}}, 'e': 3}
  assert param_paths.nested(param_paths.flat(whole)) == whole
  assert param_paths.nested(param_paths.flat(7)) == 7


@pytest.mark.parametrize(
  ('path', 'virtual'),
  [
    ('trunk/layers/mlp/kernel', ['trunk/layers/0/mlp/kernel', 'trunk/layers/1/mlp/kernel']),
    ('trunk/layers/3/mlp/kernel', ['trunk/layers/3/mlp/kernel']),
    ('trunk/embed/layers', ['trunk/embed/layers']),
  ],
)
def test_a_stacked_parameter_has_a_path_for_each_layer(path, virtual):
  assert param_paths.virtual_paths(path, jnp.zeros((2, 3))) == virtual


def test_groups_are_parts_of_the_trunk_and_heads():
  assert [param_paths.group_name(path) for path in ('trunk/embed/x', 'trunk/layers/0/x', 'mlm/dense/kernel')] == [
    'trunk/embed',
    'trunk/layers',
    'mlm',
  ]
