"""One block repeated: parameters stacked along a leading `layers` axis, compiled once or unrolled."""

from collections.abc import Sequence

import flax.linen as nn
import jax

from plm_jax.core.errors import one_of
from plm_jax.core.types import Execution, Layers, Remat

POLICIES = {
  'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  'full': jax.checkpoint_policies.nothing_saveable,
}


def stack(
  block: type[nn.Module], *, num_layers: int, execution: Execution, methods: Sequence[str] = ()
) -> type[nn.Module]:
  """The class of `num_layers` blocks in a row.

  Args:
    block: called as `block(x, context, train)`; returns (x, what each layer reports).
    num_layers: how many.
    execution: `layers='loop'` unrolls the scan: the same parameters and the same bits of noise, with the memory and
      the compile time of a hand-written loop. `remat` says what the backward pass keeps.
    methods: others of the block that run through the layers, called as `method(x, context, cache)` with a cache that
      has a slice for each layer along axis 0; they return (x, what each layer reports).

  Returns:
    A module class with the fields of `block`, called alike; reports come back stacked along axis 0, and so does what
    blocks sow into the collection 'attention' when a caller makes it mutable.
  """
  one_of('execution.remat', execution.remat, Remat)
  one_of('execution.layers', execution.layers, Layers)
  if execution.remat in POLICIES:
    # inside a compiled loop nothing can merge the two computations; unrolled, the compiler would, and keep everything
    merges = execution.layers == 'loop'
    block = nn.remat(block, policy=POLICIES[execution.remat], prevent_cse=merges, static_argnums=(3,))
  through = {
    'variable_axes': {'params': 0, 'attention': 0},
    'split_rngs': {'params': True, 'dropout': True},
    'length': num_layers,
    'unroll': num_layers if execution.layers == 'loop' else 1,
    'metadata_params': {nn.PARTITION_NAME: 'layers'},
  }
  calls = {'__call__': through | {'in_axes': (nn.broadcast, nn.broadcast)}}
  calls |= {method: through | {'in_axes': (nn.broadcast, 0)} for method in methods}
  return nn.scan(block, methods=calls)
