"""Floating-point operations of a function, counted on its jaxpr, and the peak of known chips.

Only matrix products and convolutions count, 2 m n k for [m, k] x [k, n], as in published utilisation figures. A step
without recomputation is three forward passes. XLA's own cost analysis does not help: it counts the body of a scan once,
and kernels hardly at all.
"""

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxprs_in_params
from jax.interpreters.partial_eval import dce_jaxpr

from plm_jax.core.types import PyTree

log = logging.getLogger(__name__)

# dense bfloat16 operations per second of one device as jax sees it, by its `device_kind`
PEAK = {
  'TPU v4': 275e12,  # glennklockwood.com/garden/tpuv4, quoting Google's page
  'TPU v5 lite': 197e12,  # cloud.google.com/tpu/docs/v5e
  'TPU v5e': 197e12,
  'TPU v5': 459e12,  # cloud.google.com/tpu/docs/v5p
  'TPU v5p': 459e12,
  'TPU v6 lite': 918e12,  # cloud.google.com/tpu/docs/v6e
  'TPU v6e': 918e12,
  'TPU7x': 2307e12 / 2,  # docs.cloud.google.com/tpu/docs/tpu7x: 2,307 of a chip, of which jax sees two devices
  # NVIDIA's data sheets, without sparsity; float16 runs at the same rate. Cards that are not listed differ
  'NVIDIA A100-SXM4-40GB': 312e12,
  'NVIDIA A100-SXM4-80GB': 312e12,
  'NVIDIA A100-PCIE-40GB': 312e12,
  'NVIDIA A100 80GB PCIe': 312e12,
  'NVIDIA H100 80GB HBM3': 989e12,
  'NVIDIA H200': 989e12,
}


class Cost(NamedTuple):
  """Size and cost of a model: layers may share parameters, but not operations."""

  parameters: int  # numbers stored
  flops: int  # operations of a forward pass per row


def count(function: Callable[..., Any], *args: PyTree) -> int:
  """Count the matrix-product operations of one call.

  Operations that the outputs do not need are left out. A scan counts every iteration, a conditional its most expensive
  branch, a kernel its whole grid, and a while loop one iteration, with a line in the log at level DEBUG. For a
  rematerialised function, which recomputes in its gradient, count the forward pass and multiply by three.

  Args:
    function: of `args`.
    *args: arrays or their shapes.
  """
  jaxpr = jax.make_jaxpr(function)(*args).jaxpr
  needed, _ = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
  return _of_jaxpr(needed)


def forward(model: nn.Module, inputs: Mapping[str, jax.ShapeDtypeStruct]) -> Cost:
  """Count a model's parameters and a row's operations, by shape.

  `inputs` maps names to shapes and dtypes, rows first.
  """
  params = parameters(model, inputs)
  flops = count(lambda params, inputs: model.apply({'params': params}, **inputs), params, dict(inputs))
  rows = next(iter(inputs.values())).shape[0]
  return Cost(sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params)), flops // rows)


def parameters(model: nn.Module, inputs: Mapping[str, jax.ShapeDtypeStruct]) -> PyTree:
  """Return a model's parameters as shapes; `inputs` are those of `forward`."""
  init = lambda key, inputs: model.init(key, **inputs)['params']  # noqa: E731
  return nn.unbox(jax.eval_shape(init, jax.random.key(0), dict(inputs)))


def report(costs: Mapping[str, Cost]) -> str:
  """Format parameters and operations, one line per variant, with ratios."""
  first = next(iter(costs.values()))
  width = max(map(len, costs))
  lines = [f'{"":{width}}  {"parameters":>15}  {"":>7}  {"GFLOP per row":>13}']
  for name, cost in costs.items():
    stored, worked = cost.parameters / first.parameters, cost.flops / max(first.flops, 1)
    lines.append(f'{name:{width}}  {cost.parameters:>15,}  {stored:>6.2f}x  {cost.flops / 1e9:>13.3f}  {worked:>6.2f}x')
  return '\n'.join(lines)


def peak_flops(device_kind: str, dtype: str) -> float | None:
  """Return the peak operations per second of a device, if known.

  Args:
    device_kind: as in `jax.devices()[0].device_kind`.
    dtype: of the matrix products. TPUs have figures for bfloat16, NVIDIA cards for bfloat16 and float16; what float32
      reaches depends on the matmul precision and is not listed.
  """
  fast = ('bfloat16', 'float16') if device_kind.startswith('NVIDIA') else ('bfloat16',)
  return PEAK.get(device_kind) if dtype in fast else None


def _of_jaxpr(jaxpr: Jaxpr | ClosedJaxpr) -> int:
  return sum(_of_equation(equation) for equation in jaxpr.eqns)


def _of_equation(equation: JaxprEqn) -> int:
  params = equation.params
  inner = [_of_jaxpr(part) for part in jaxprs_in_params(params)]
  match equation.primitive.name:
    case 'dot_general':
      return _product(equation, params['dimension_numbers'])
    case 'ragged_dot_general':
      dimensions = params['ragged_dot_dimension_numbers']
      contracting = dimensions.dot_dimension_numbers[0][0]
      groups = _shape(equation.invars[2])[-1]
      # if the groups divide the contracted axis, each contracts its own share of it
      shares = groups if set(dimensions.lhs_ragged_dimensions) & set(contracting) else 1
      return _product(equation, dimensions.dot_dimension_numbers) // shares
    case 'conv_general_dilated':
      kernel = _shape(equation.invars[1])
      features = kernel[params['dimension_numbers'].rhs_spec[0]]
      return 2 * math.prod(_shape(equation.outvars[0])) * math.prod(kernel) // features
    case 'scan':
      return params['length'] * sum(inner)
    case 'cond':
      return max(inner)
    case 'pallas_call':
      return math.prod(params['grid_mapping'].grid) * sum(inner)
    case 'shard_map':
      return math.prod(params['mesh'].shape[axis] for axis in params['newly_manual_axes']) * sum(inner)
    case 'while' if sum(inner):
      log.debug('flops: a while loop of unknown length is counted as one iteration')
  return sum(inner)


def _product(equation: JaxprEqn, dimension_numbers: Any) -> int:
  (contracting, _), _ = dimension_numbers
  left = _shape(equation.invars[0])
  return 2 * math.prod(_shape(equation.outvars[0])) * math.prod(left[axis] for axis in contracting)


def _shape(variable: Any) -> tuple[int, ...]:
  return variable.aval.shape
