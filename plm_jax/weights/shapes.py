"""The shapes of all parameters of a trunk, whatever an objective reads of them; nothing is computed."""

import flax.linen as nn
import jax

from plm_jax.core.param_paths import path_name


def shapes(trunk: nn.Module) -> dict[str, tuple[int, ...]]:
  """Leaf path below the trunk, joined by '/', -> shape."""
  made = jax.eval_shape(lambda key: trunk.init(key, method='init_all'), jax.random.key(0))
  leaves = jax.tree_util.tree_leaves_with_path(nn.unbox(made)['params'])
  return {path_name(path): tuple(leaf.shape) for path, leaf in leaves}
