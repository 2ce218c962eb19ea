"""Repeated blocks: scanned, unrolled and rematerialised are the same function of the same parameters."""

import functools
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.core import sharding
from plm_jax.core.types import Execution
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Dense, normal
from plm_jax.layers.mlp import GatedMlp, Mlp
from plm_jax.layers.norm import LayerNorm, RMSNorm
from plm_jax.layers.stack import POLICIES, stack
from tests import tiny

pytestmark = pytest.mark.turns

EXECUTIONS = [Execution(layers=layers, remat=remat) for layers in ('scan', 'loop') for remat in ('none', *POLICIES)]
LAYERS, WIDTH = 5, 16


class Block(nn.Module):
  """A small block with all that a block may use: context, noise, a switch, a report."""

  rate: float = 0.25

  @nn.compact
  def __call__(self, x, context, train):
    y = jnp.tanh(Dense(WIDTH, axes=('embed', 'mlp'), kernel_init=normal(0.3), name='up')(x + context))
    y = Dropout(self.rate)(jnp.sin(y), train=train)
    return x + y, y.mean(axis=-1)


def program(execution: Execution, *, train: bool = True, rows: int = 4):
  """Build a function for loss, output and reports, and initial parameters."""
  layers = stack(Block, num_layers=LAYERS, execution=execution)()
  x = jax.random.normal(jax.random.key(1), (rows, WIDTH))

  def run(params, key):
    y, reports = layers.apply({'params': params}, x, x[:1], train, rngs={'dropout': key})
    return jnp.square(y).sum(), (y, reports)

  return run, jax.jit(lambda key: layers.init(key, x, x[:1], False)['params'])(jax.random.key(0))


@functools.lru_cache
def computed(execution: Execution):
  run, params = program(execution)
  return jax.jit(jax.value_and_grad(run, has_aux=True))(nn.unbox(params), jax.random.key(2))


@pytest.mark.parametrize('execution', EXECUTIONS[1:], ids=lambda e: f'{e.layers}-{e.remat}')
def test_every_execution_computes_the_same(execution):
  (loss, outputs), gradient = computed(EXECUTIONS[0])
  (other_loss, other_outputs), other_gradient = computed(execution)
  assert tiny.worst((other_loss, other_outputs), (loss, outputs)) < 1e-6
  assert tiny.gradient_error(other_gradient, gradient)[0] < 1e-6


def test_is_the_block_applied_in_turn():
  run, params = program(EXECUTIONS[0], train=False)
  _, (y, reports) = run(nn.unbox(params), jax.random.key(0))
  x = jax.random.normal(jax.random.key(1), (4, WIDTH))
  state = x
  for layer in range(LAYERS):
    own = jax.tree.map(lambda leaf, layer=layer: leaf[layer], nn.unbox(params))
    state, report = Block().apply({'params': own}, state, x[:1], False)
    assert tiny.worst(reports[layer], report) < 1e-5
  assert tiny.worst(y, state) < 1e-5


@pytest.mark.parametrize('execution', EXECUTIONS[1:], ids=lambda e: f'{e.layers}-{e.remat}')
def test_initial_parameters_do_not_depend_on_the_execution(execution):
  first, other = program(EXECUTIONS[0])[1], program(execution)[1]
  assert tiny.same(first, other)
  kernel = other['up']['kernel']
  assert kernel.names == ('layers', 'embed', 'mlp')
  assert kernel.value.shape == (LAYERS, WIDTH, WIDTH)


def test_layers_start_apart_and_drop_out_apart():
  _, params = program(EXECUTIONS[0])
  kernel = params['up']['kernel'].value
  assert len({kernel[layer].tobytes() for layer in range(LAYERS)}) == LAYERS
  # where all layers put out the same before dropout, a zero is the noise
  layers = stack(Same, num_layers=LAYERS, execution=EXECUTIONS[0])()
  _, kept = layers.apply({}, jnp.ones((64, WIDTH)), None, True, rngs={'dropout': jax.random.key(0)})
  kept = np.asarray(kept)
  assert len({layer.tobytes() for layer in kept}) == LAYERS
  assert (kept > 0).mean() == pytest.approx(0.5, abs=0.03)


class Same(nn.Module):
  @nn.compact
  def __call__(self, x, context, train):
    return x, Dropout(0.5)(x, train=train)


@pytest.mark.parametrize('name', tiny.MAKERS)
def test_a_trunk_computes_the_same_with_dropout(name):
  batch, results = tiny.make_batch(), []
  inputs = {name: batch[name] for name in ('tokens', 'segment_ids')}
  params = None
  for execution in (EXECUTIONS[0], EXECUTIONS[-1]):
    trunk = tiny.make_trunk(name, execution=execution, dropout=0.1, attention_dropout=0.1)
    if params is None:
      abstract = jax.eval_shape(lambda key, trunk=trunk: trunk.init(key, **inputs)['params'], jax.random.key(0))
      params = tiny.draw(nn.unbox(abstract))

    def loss_of(params, trunk=trunk):
      out = trunk.apply({'params': params}, **inputs, train=True, rngs={'dropout': jax.random.key(0)})
      return jnp.square(out['hidden'] * jnp.arange(32.0)).mean()

    results.append(jax.jit(jax.value_and_grad(loss_of))(params))
  (loss, gradient), (other_loss, other_gradient) = results
  assert tiny.worst(other_loss, loss) < 1e-6
  error, where = tiny.gradient_error(other_gradient, gradient)
  assert error < 1e-5, where


def test_remat_saves_memory_in_a_scan():
  sizes = []
  for execution in EXECUTIONS[:3]:
    run, params = program(execution, rows=2000)
    lowered = jax.jit(jax.grad(run, has_aux=True)).lower(nn.unbox(params), jax.random.key(0))
    sizes.append(lowered.compile().memory_analysis().temp_size_in_bytes)
  none, dots, full = sizes
  assert full < dots < none


@pytest.mark.parametrize('execution', EXECUTIONS[3:], ids=lambda e: f'{e.layers}-{e.remat}')
def test_remat_of_unrolled_layers_is_walled_off_from_the_compiler(execution):
  # without a barrier the compiler merges what is computed twice, and keeps everything; a CPU ignores the barrier
  run, params = program(execution)
  text = jax.jit(jax.grad(run, has_aux=True)).lower(nn.unbox(params), jax.random.key(0)).as_text()
  assert ('optimization_barrier' in text) is (execution.remat != 'none')


def test_auto_unrolls_layers_on_a_tpu_only(monkeypatch):
  def is_a_loop():
    run, params = program(Execution(layers='auto'), train=False)
    return 'stablehlo.while' in jax.jit(run).lower(nn.unbox(params), jax.random.key(0)).as_text()

  assert is_a_loop()
  monkeypatch.setattr(sharding, 'device', lambda: types.SimpleNamespace(platform='tpu'))
  assert not is_a_loop()


def test_wrong_choices_are_refused():
  with pytest.raises(ValueError, match=r"execution\.remat='some'.*none, dots, full"):
    stack(Block, num_layers=2, execution=Execution(remat='some'))
  with pytest.raises(ValueError, match=r"execution\.layers='unrolled'.*scan, loop"):
    stack(Block, num_layers=2, execution=Execution(layers='unrolled'))


SHORT = {
  'gelu': Mlp(64, 'gelu_tanh', normal(0.3), normal(0.3), dtype='bfloat16'),
  'silu': GatedMlp(64, 'silu', normal(0.3), normal(0.3), dtype='bfloat16'),
  'layer norm': LayerNorm(1e-5, 'bfloat16'),
  'rms norm': RMSNorm(1e-5, 'bfloat16'),
}
# elements that the backward pass reads of 4 x 32 inputs and 4 x 64 activations, besides kernels, biases and scales
SAVED = {'gelu': 128 + 2 * 256, 'silu': 128 + 4 * 256, 'layer norm': 128, 'rms norm': 128}


@pytest.mark.parametrize('name', SHORT)
def test_on_a_tpu_short_computations_save_only_their_inputs(name, monkeypatch):
  monkeypatch.setattr(sharding, 'one_cpu', lambda: False)  # where activations are computed again as well
  x = jax.random.normal(jax.random.key(0), (4, 32)).astype(jnp.bfloat16)
  params = nn.unbox(SHORT[name].init(jax.random.key(1), x))

  def run(params, x):
    return SHORT[name].apply(params, x).astype(jnp.float32)

  def gradients(params, x):
    return jax.grad(lambda *given: jnp.sin(run(*given)).sum(), argnums=(0, 1))(params, x)

  def saved():
    """Count the elements of all activations that the backward pass reads."""
    leaves = jax.tree.leaves(jax.eval_shape(lambda *given: jax.vjp(run, *given)[1], params, x))
    return sum(leaf.size for leaf in leaves if leaf.shape[:1] == (4,))

  before, everything = jax.jit(gradients)(params, x), saved()
  monkeypatch.setattr(sharding, 'device', lambda: types.SimpleNamespace(platform='tpu'))
  jax.clear_caches()
  assert saved() == SAVED[name] < everything
  assert tiny.gradient_error(jax.jit(gradients)(params, x), before)[0] < 1e-2  # bfloat16
