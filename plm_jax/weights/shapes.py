"""Shapes of all parameters of a trunk, without computing them."""

import flax.linen as nn
import jax

from plm_jax.core.param_paths import path_name


def shapes(trunk: nn.Module) -> dict[str, tuple[int, ...]]:
  """Compute the shapes of a trunk's parameters: 'a/b/kernel' -> shape."""
  variables = jax.eval_shape(lambda key: trunk.init(key, method='init_all'), jax.random.key(0))
  leaves = jax.tree_util.tree_leaves_with_path(nn.unbox(variables)['params'])
  return {path_name(path): tuple(leaf.shape) for path, leaf in leaves}
