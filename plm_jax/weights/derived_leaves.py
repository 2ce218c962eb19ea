"""Parameters computed from saved ones when they are read: wrapper updates, 8-bit scales, second trunks."""

from collections.abc import Callable, Mapping

import flax.linen as nn
import numpy as np

from plm_jax.checkpoint import Leaf, Params
from plm_jax.checkpoint.tensor_files import WeightsError
from plm_jax.core.param_paths import SCALE
from plm_jax.weights import shapes
from plm_jax.weights.table import TOKENS

# A leaf of the trunk alone -> the two leaves whose sum it is in a run that also trains a generator; the second is the
# trunk's own part (DeBERTa-v3's gradient-disentangled table).
SUMS: Mapping[str, tuple[str, str]] = {TOKENS: ('generator/token_embed/table', 'delta/table')}


def with_updates(saved: Params, name: str, fold: Callable[..., np.ndarray]) -> dict[str, Leaf]:
  """Compute the leaves changed by the wrapper `fold` with parameters `name`."""
  updates: dict[str, dict[str, Leaf]] = {}
  for path in saved:
    if path.startswith(f'{name}/'):
      layer_path, _, part = path.removeprefix(f'{name}/').rpartition('/')
      kernel = f'{layer_path}/kernel'
      updates.setdefault(kernel if kernel in saved else f'{layer_path}/table', {})[part] = saved[path]

  def folded(kernel: Leaf, parts: Mapping[str, Leaf]) -> Leaf:
    def read(layer: int | None) -> np.ndarray:
      return fold(kernel.read(layer), {part: leaf.read(layer) for part, leaf in parts.items()})

    return Leaf(kernel.shape, read)

  return {path: folded(saved[path], parts) for path, parts in updates.items()}


def without_scales(params: Params) -> Params:
  """Return the parameters as float32, with 8-bit ones multiplied by their scales."""
  scales = {path: leaf for path, leaf in params.items() if path.removesuffix(SCALE) in params and path.endswith(SCALE)}
  if not scales:
    return params

  def scaled(integers: Leaf, scale: Leaf) -> Leaf:
    return Leaf(integers.shape, lambda layer: integers.read(layer).astype(np.float32) * scale.read(layer))

  leaves = {path: leaf for path, leaf in params.items() if path not in scales}
  leaves |= {path.removesuffix(SCALE): scaled(leaves[path.removesuffix(SCALE)], leaf) for path, leaf in scales.items()}
  return Params(leaves, where=params.where)


def generator(params: Params, trunk: nn.Module) -> dict[str, Leaf]:
  """Select the second trunk, its head and shared parameters, or raise WeightsError."""
  if not any(path.startswith('generator/') for path in params):
    raise WeightsError("this run has no parameters of a generator: leave out part='generator'")
  leaves = {}
  for path in shapes.shapes(trunk):
    leaf = params.get(f'generator/{path}') or params.get(f'trunk/{path}')
    if leaf is not None:
      leaves[f'trunk/{path}'] = leaf
  return leaves | {path: leaf for path, leaf in params.items() if path.startswith('mlm/')}


def first_trunk(params: Params) -> dict[str, Leaf]:
  """Select the first of two trunks with its heads, or everything."""
  second = any(path.startswith('generator/') for path in params)
  of_second = ('generator/', 'mlm/', *(own for _, own in SUMS.values()))
  return {path: leaf for path, leaf in params.with_sums(SUMS).items() if not (second and path.startswith(of_second))}
