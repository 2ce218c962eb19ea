"""A block repeated: parameters stacked along a leading `layers` axis, compiled once or unrolled."""

from collections.abc import Callable, Sequence

import flax.linen as nn
import jax

from plm_jax.core import sharding
from plm_jax.core.errors import one_of
from plm_jax.core.types import Array, Execution, Layers, Remat

POLICIES = {
  'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  'full': jax.checkpoint_policies.nothing_saveable,
}


def recomputed(function: Callable[..., Array], *, cpu: bool = False) -> Callable[..., Array]:
  """Save only a function's inputs for gradients on TPUs and one `cpu`.

  Norms and activations are short computations with many intermediate arrays. The scan over layers would write and read
  all of them: 8 arrays for `gelu_tanh`, 2 of them float32 for a norm.
  """
  again = sharding.device().platform == 'tpu' or (cpu and sharding.one_cpu())
  return jax.checkpoint(function, prevent_cse=False) if again else function


def stack(
  block: type[nn.Module], *, num_layers: int, execution: Execution, methods: Sequence[str] = ()
) -> type[nn.Module]:
  """Build the class of `num_layers` blocks in sequence.

  Args:
    block: called as `block(x, context, train)`; returns (x, report of the layer).
    num_layers: number of blocks.
    execution: `layers='loop'` unrolls the scan: the same parameters and the same bits of noise, with the memory and the
      compile time of a hand-written loop. 'auto' does so on TPUs. `remat` selects the values that the backward pass
      saves.
    methods: other methods of the block that run through the layers, called as `method(x, context, cache)`. The cache
      has a slice for each layer along axis 0. They return (x, report of the layer).

  Returns:
    A module class with the fields of `block`, called with the same arguments. Reports are stacked along axis 0. So are
    the values that blocks sow into the collection 'attention', if a caller makes it mutable.
  """
  one_of('execution.remat', execution.remat, Remat)
  one_of('execution.layers', execution.layers, Layers)
  unrolled = execution.layers == 'loop' or (execution.layers == 'auto' and sharding.device().platform == 'tpu')
  if execution.remat in POLICIES:
    # unrolled, the compiler would merge the two computations and save everything; in a compiled loop it cannot
    block = nn.remat(block, policy=POLICIES[execution.remat], prevent_cse=unrolled, static_argnums=(3,))
  settings = {
    'variable_axes': {'params': 0, 'attention': 0},
    'split_rngs': {'params': True, 'dropout': True},
    'length': num_layers,
    'unroll': num_layers if unrolled else 1,
    'metadata_params': {nn.PARTITION_NAME: 'layers'},
  }
  # context and `train` are the same for all layers; a cache has a slice per layer
  calls = {'__call__': settings | {'in_axes': (nn.broadcast, nn.broadcast)}}
  calls |= {method: settings | {'in_axes': (nn.broadcast, 0)} for method in methods}
  return nn.scan(block, methods=calls)
