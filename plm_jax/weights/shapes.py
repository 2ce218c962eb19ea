"""All parameters of a trunk by shape, whatever an objective reads of them: no memory, no computation."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.types import Array


class Whole(nn.Module):
  """Runs every part of a trunk, so that all its parameters exist: the pass, the pooling, the output matrix."""

  trunk: nn.Module

  def __call__(self, **inputs: Array) -> tuple[Array, Array]:
    hidden = self.trunk(**inputs)['hidden']
    segment_ids = inputs['decoder_segment_ids' if 'decoder_segment_ids' in inputs else 'segment_ids']
    features = jnp.zeros((*segment_ids.shape, self.trunk.token_embed.features))  # as wide as the table
    return self.trunk.pool(hidden, segment_ids), self.trunk.attend(features)


def inputs(trunk: nn.Module, *, rows: int = 1, length: int = 8) -> dict[str, jax.ShapeDtypeStruct]:
  """The least that the trunk's `__call__` takes, int32[rows, length] each."""
  one = ('tokens', 'segment_ids')
  names = [f'{side}_{name}' for side in ('encoder', 'decoder') for name in one] if 'tokens' not in trunk.INPUTS else one
  return {name: jax.ShapeDtypeStruct((rows, length), jnp.int32) for name in names}


def shapes(trunk: nn.Module) -> dict[str, tuple[int, ...]]:
  """Leaf path below the trunk, joined by '/', -> shape."""
  made = jax.eval_shape(lambda batch: Whole(trunk).init(jax.random.key(0), **batch), inputs(trunk))
  leaves = jax.tree_util.tree_leaves_with_path(nn.unbox(made)['params']['trunk'])
  return {'/'.join(str(key.key) for key in path): tuple(leaf.shape) for path, leaf in leaves}
