"""Operation counts against closed forms."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.sharding import AxisType, PartitionSpec

from plm_jax.training.cost import flops

S = jax.ShapeDtypeStruct


def array(*shape: int) -> jax.ShapeDtypeStruct:
  return S(shape, jnp.float32)


def test_a_dense_stack():
  def function(x, weights):
    for weight in weights:
      x = jax.nn.relu(x @ weight)
    return x

  weights = [array(16, 32), array(32, 64), array(64, 8)]
  assert flops.count(function, array(5, 16), weights) == 2 * 5 * (16 * 32 + 32 * 64 + 64 * 8)


def test_batched_products_with_several_contracted_axes():
  function = lambda x, y: jnp.einsum('blhk,hkd->bld', x, y)  # noqa: E731
  assert flops.count(function, array(2, 7, 3, 4), array(3, 4, 12)) == 2 * (2 * 7) * 12 * (3 * 4)
  scores = lambda q, k: jnp.einsum('blhk,bmhk->bhlm', q, k)  # noqa: E731
  assert flops.count(scores, array(2, 7, 3, 4), array(2, 9, 3, 4)) == 2 * 2 * 3 * 7 * 9 * 4


def stack(x, weights):
  return jax.lax.scan(lambda x, weight: (jnp.tanh(x @ weight), None), x, weights)[0]


def test_a_scan_counts_its_length():
  assert flops.count(stack, array(4, 8), array(6, 8, 8)) == 6 * 2 * 4 * 8 * 8
  nested = lambda x, weights: jax.lax.scan(lambda x, _: (stack(x, weights), None), x, None, length=3)[0]  # noqa: E731
  assert flops.count(nested, array(4, 8), array(6, 8, 8)) == 3 * 6 * 2 * 4 * 8 * 8


def test_jit_and_remat_change_nothing_going_forward():
  plain = flops.count(stack, array(4, 8), array(6, 8, 8))
  assert flops.count(jax.jit(stack), array(4, 8), array(6, 8, 8)) == plain
  assert flops.count(jax.checkpoint(stack), array(4, 8), array(6, 8, 8)) == plain


def test_a_training_step_is_three_forward_passes_and_recompute_shows_in_the_gradient():
  def loss(stack, x, weights):
    return stack(x, weights).sum()

  def both(stack):
    gradient = jax.value_and_grad(lambda x, weights: loss(stack, x, weights), argnums=(0, 1))
    return flops.count(gradient, array(4, 8), array(6, 8, 8))

  forward = flops.count(stack, array(4, 8), array(6, 8, 8))
  assert both(stack) == 3 * forward
  assert both(jax.checkpoint(stack)) == 4 * forward


def test_custom_derivatives_count_their_function():
  @jax.custom_vjp
  def with_vjp(x, y):
    return x @ y

  with_vjp.defvjp(lambda x, y: (x @ y, (x, y)), lambda saved, g: (g @ saved[1].T, saved[0].T @ g))

  @jax.custom_jvp
  def with_jvp(x, y):
    return x @ y

  with_jvp.defjvp(lambda primals, tangents: (primals[0] @ primals[1], tangents[0] @ primals[1]))
  for function in (with_vjp, with_jvp):
    assert flops.count(function, array(4, 8), array(8, 3)) == 2 * 4 * 8 * 3


def test_a_conditional_costs_its_dearest_branch():
  def function(x):
    return jax.lax.switch(jnp.int32(x[0, 0]), [lambda x: x, lambda x: x @ x, lambda x: x @ x @ x], x)

  assert flops.count(function, array(4, 4)) == 2 * 2 * 4**3


@pytest.mark.filterwarnings('error')
def test_a_while_loop_counts_one_round_and_says_so(caplog):
  function = lambda x: jax.lax.while_loop(lambda x: x.sum() < 9, lambda x: x @ x, x)  # noqa: E731
  with caplog.at_level('DEBUG', logger='plm_jax'):
    assert flops.count(function, array(4, 4)) == 2 * 4**3
  assert [(record.levelname, 'one iteration' in record.message) for record in caplog.records] == [('DEBUG', True)]


def test_what_nobody_reads_is_not_counted():
  def function(x, weights):
    hidden = {'used': stack(x, weights), 'unused': x @ weights[0] @ weights[1]}
    return hidden['used']

  assert flops.count(function, array(4, 8), array(6, 8, 8)) == 6 * 2 * 4 * 8 * 8


def test_convolutions():
  function = lambda x, w: jax.lax.conv_general_dilated(x, w, (1,), 'SAME', dimension_numbers=('NHC', 'HIO', 'NHC'))  # noqa: E731
  assert flops.count(function, array(2, 10, 6), array(3, 6, 7)) == 2 * (2 * 10 * 7) * (3 * 6)
  groups = lambda x, w: jax.lax.conv_general_dilated(  # noqa: E731
    x, w, (1,), 'SAME', dimension_numbers=('NHC', 'HIO', 'NHC'), feature_group_count=3
  )
  assert flops.count(groups, array(2, 10, 6), array(3, 2, 9)) == 2 * (2 * 10 * 9) * (3 * 2)


def test_ragged_products():
  sizes = S((3,), jnp.int32)
  assert flops.count(jax.lax.ragged_dot, array(10, 4), array(3, 4, 5), sizes) == 2 * 10 * 4 * 5

  def backward(x, w, sizes):
    return jax.grad(lambda w: jax.lax.ragged_dot(x, w, sizes).sum())(w)

  assert flops.count(backward, array(10, 4), array(3, 4, 5), sizes) == 2 * 10 * 4 * 5


def test_a_kernel_counts_its_grid():
  def kernel(x, y, out):
    out[...] = x[...] @ y[...]

  product = pl.pallas_call(
    kernel,
    out_shape=array(64, 32),
    grid=(4, 2),
    in_specs=[pl.BlockSpec((16, 8), lambda i, j: (i, 0)), pl.BlockSpec((8, 16), lambda i, j: (0, j))],
    out_specs=pl.BlockSpec((16, 16), lambda i, j: (i, j)),
  )
  assert flops.count(product, array(64, 8), array(8, 32)) == 2 * 64 * 8 * 32


def test_a_mapped_function_counts_every_shard():
  if jax.device_count() < 2:
    pytest.skip('needs two devices')
  mesh = jax.make_mesh((2,), ('data',), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
  rows, whole = PartitionSpec('data'), PartitionSpec()
  function = jax.shard_map(lambda x, w: x @ w, mesh=mesh, in_specs=(rows, whole), out_specs=rows)
  assert flops.count(function, array(8, 4), array(4, 3)) == 2 * 8 * 4 * 3


class Encoder(nn.Module):
  """BERT's layers without embeddings, plain: what the closed form describes. Shared: one layer's parameters for all."""

  hidden: int
  heads: int
  num_layers: int
  shared: bool = False

  @nn.compact
  def __call__(self, x):
    layers = [
      (
        nn.MultiHeadDotProductAttention(self.heads, name=f'attention_{layer}'),
        nn.Dense(4 * self.hidden, name=f'up_{layer}'),
        nn.Dense(self.hidden, name=f'down_{layer}'),
      )
      for layer in range(1 if self.shared else self.num_layers)
    ]
    for layer in range(self.num_layers):
      attention, up, down = layers[0 if self.shared else layer]
      x = x + attention(x)
      x = x + down(jax.nn.gelu(up(x)))
    return x


@pytest.mark.parametrize(('batch', 'length'), [(1, 512), (4, 128)])
def test_bert_base(batch, length):
  """A row: 24 l d^2 for projections and feed-forward, 4 l^2 d for scores and mixing, in each layer."""
  cost = flops.forward(Encoder(hidden=768, heads=12, num_layers=12), {'x': array(batch, length, 768)})
  assert cost.flops == 12 * (24 * length * 768**2 + 4 * length**2 * 768)
  assert cost.parameters == 12 * (12 * 768**2 + (4 + 4 + 1) * 768)


def test_sharing_layers_saves_parameters_and_no_operations():
  inputs = {'x': array(2, 16, 32)}
  costs = {
    name: flops.forward(Encoder(hidden=32, heads=4, num_layers=6, shared=shared), inputs)
    for name, shared in (('own', False), ('shared', True))
  }
  assert costs['own'].parameters == 6 * costs['shared'].parameters
  assert costs['own'].flops == costs['shared'].flops
  text = flops.report(costs)
  assert text.splitlines()[2].split() == ['shared', f'{costs["shared"].parameters:,}', '0.17x', '0.003', '1.00x']


def test_peak():
  assert flops.peak_flops('TPU v4', 'bfloat16') == 275e12
  assert flops.peak_flops('TPU v5 lite', 'bfloat16') == 197e12
  assert flops.peak_flops('TPU v5', 'bfloat16') == 459e12
  assert flops.peak_flops('TPU v6 lite', 'bfloat16') == 918e12
  assert flops.peak_flops('NVIDIA H100 80GB HBM3', 'float16') == 989e12
  assert flops.peak_flops('NVIDIA H100 PCIe', 'bfloat16') is None
  assert flops.peak_flops('TPU v4', 'float32') is None
  assert flops.peak_flops('cpu', 'bfloat16') is None
