"""Compress the network of a run: remove weights, attention heads or layers, or quantize to 8 bits."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax import weights
from plm_jax.adapters import quantise as training_in_8_bits
from plm_jax.adapters import wrapped
from plm_jax.compression import prune, quantise
from plm_jax.compression.methods import Method
from plm_jax.config import build
from plm_jax.core import sharding
from plm_jax.core.errors import stage
from plm_jax.core.param_paths import SCALE, is_stacked, nested
from plm_jax.core.types import Array, Execution, Source
from plm_jax.noise.keys import noise_root, with_step
from plm_jax.training import parts
from plm_jax.training.parts import Parts, Settings
from plm_jax.training.step import bind, step_rng
from plm_jax.weights import shapes

MAX_EXAMPLES = 256  # training examples over which the importance of heads is averaged
Leaves = dict[str, np.ndarray]


class Network(NamedTuple):
  """A network during compression."""

  block: Mapping[str, Any]  # `model` block of its config
  leaves: Leaves  # path -> parameter
  scales: Mapping[str, np.ndarray] = {}  # path of a parameter -> its scale, if trained with adapter 'quantise'
  errors: Mapping[str, dict[str, float]] = {}  # path of an 8-bit parameter -> its distance from the original


class Subject(NamedTuple):
  """A run to compress: settings without wrappers, opened weights, and evaluation data."""

  settings: Settings
  opened: weights.Weights
  parts: Parts
  evaluation: str
  source: Source
  layout: sharding.Layout


def compress(network: Network, methods: Sequence[Method], subject: Subject, *, label: str) -> Network:
  """Apply methods in order; `label` names them in errors."""
  for name, share in methods:
    trunk = _trunk(network, subject)
    with stage(f'--methods: {label}'):
      if name == 'int8':
        network = in_8_bits(network, trunk)
      elif name in ('layers', 'top_layers'):
        network = without_layers(network, trunk, share, subject, highest=name == 'top_layers')
      elif name in ('prune', 'prune_matrix'):
        network = without_weights(network, trunk, share, each=name == 'prune_matrix')
      else:
        network = without_heads(network, trunk, share, subject if name == 'heads_gradient' else None)
  return network


def without_weights(network: Network, trunk: nn.Module, share: float, *, each: bool) -> Network:
  """Set the smallest weights of dense layers to 0, per matrix (`each`)."""
  dense = {f'{path}/kernel': sum(axes) for path, axes in wrapped.dense_layers(trunk).items()}
  sizes = {path: jnp.abs(network.leaves[path]) for path in dense if path in network.leaves}
  if each:
    masks = {path: prune.keep_in_each(size, share, layers=size.ndim - dense[path]) for path, size in sizes.items()}
  else:
    masks = prune.keep_among_all(sizes, share)
  return _masked(network, masks)


def without_heads(network: Network, trunk: nn.Module, share: float, subject: Subject | None) -> Network:
  """Set the output projections of the least important heads to 0.

  The training loss of `subject` measures importance, without one the norm of the projections.
  """
  kernels = {path: network.leaves[path] for path in head_kernels(trunk) if path in network.leaves}
  if not kernels:
    raise ValueError(f'this {type(trunk).__name__} has no attention heads')
  if subject is None:
    importance = {path: prune.head_norms(jnp.asarray(kernel)) for path, kernel in kernels.items()}
  else:
    importance = head_gradients(network, list(kernels), subject)
  masks = {path: prune.keep_in_each(heads, share, layers=heads.ndim - 3) for path, heads in importance.items()}
  return _masked(network, masks)


def head_kernels(trunk: nn.Module) -> list[str]:
  """List the output projections of attention, [..., h, k, d].

  These are dense layers 'out' with two input axes.
  """
  dense = wrapped.dense_layers(trunk)
  return [f'{path}/kernel' for path, axes in dense.items() if path.endswith('/out') and axes == (2, 1)]


def head_gradients(network: Network, kernels: Sequence[str], subject: Subject) -> dict[str, Array]:
  """Compute the importance of each head, f32[..., h, 1, 1].

  Importance is the mean of |d loss / d gate| over training examples. The gate of a head multiplies its output and is 1
  (Michel et al. 2019, §4.1; 1905.10650).
  """
  settings, task = subject.settings, subject.parts.task
  source = parts.make_source(settings['data'], subject.parts.vocab, seed=settings['seed'], reader=subject.parts)
  key = jax.random.key(settings['seed'])
  leaves = {path: jnp.asarray(leaf) for path, leaf in network.leaves.items()}
  ones = {path: jnp.ones((*leaves[path].shape[:-2], 1, 1)) for path in kernels}

  def loss_of(gates: dict[str, Array], leaves: dict[str, Array], example: dict[str, Array]) -> Array:
    params = nested({**leaves, **{path: leaves[path] * gate for path, gate in gates.items()}})
    batch = {name: value[None] for name, value in example.items()}
    prepared = task.prepare(noise_root(key), with_step(batch, 0))
    rng = step_rng(key, jnp.zeros((), jnp.int32))
    return task.loss(bind(task, params, train=False, rng=rng), prepared, task.init_carry(1), rng).value

  @jax.jit
  def sum_over(leaves: dict[str, Array], batch: dict[str, Array]) -> dict[str, Array]:
    gradients = jax.lax.map(lambda example: jax.grad(loss_of)(ones, leaves, example), batch)  # [b, ..., h, 1, 1]
    return jax.tree.map(lambda gradient: jnp.abs(gradient).sum(axis=0), gradients)

  total, count = jax.tree.map(jnp.zeros_like, ones), 0
  for batch in source.read(0):
    total = jax.tree.map(jnp.add, total, sum_over(leaves, {name: jnp.asarray(value) for name, value in batch.items()}))
    count += len(batch['row_id'])
    if count >= min(MAX_EXAMPLES, source.rows):
      break
  return {path: gradient / count for path, gradient in total.items()}


def without_layers(network: Network, trunk: nn.Module, share: float, subject: Subject, *, highest: bool) -> Network:
  """Remove layers from the trunk: the highest ones, or every other one."""
  layers = trunk.config.num_layers
  retained = (prune.lowest if highest else prune.every_other)(layers, share) if round(share * layers) < layers else ()
  if len(retained) in (0, layers):
    raise ValueError(
      f'a share of {share:g} removes {round(share * layers)} of {layers} layers: choose one that removes some, not all'
    )
  overrides = {**(network.block.get('overrides') or {}), 'num_layers': len(retained)}
  smaller = network._replace(block={**network.block, 'overrides': overrides})
  wanted = {f'trunk/{path}': shape for path, shape in shapes.shapes(_trunk(smaller, subject)).items()}
  leaves: Leaves = {}
  scales = dict(network.scales)
  for path, leaf in network.leaves.items():
    if path.startswith('trunk/') and is_stacked(path, leaf) and leaf.shape != wanted.get(path) and len(leaf) == layers:
      leaf = leaf[list(retained)]
      scales |= {path: scales[path][list(retained)]} if path in scales else {}
    if path.startswith('trunk/') and leaf.shape != wanted.get(path):
      raise ValueError(f'layers of this {type(trunk).__name__} cannot be removed: {path} has the shape {leaf.shape}')
    leaves[path] = leaf
  return smaller._replace(leaves=leaves, scales=scales)


def in_8_bits(network: Network, trunk: nn.Module) -> Network:
  """Quantize dense layers and tables to int8, by trained scales if any."""
  leaves, errors = dict(network.leaves), {}
  for path, axes in training_in_8_bits.channels_of(trunk).items():
    if path in leaves:
      original = leaves[path]
      scale = network.scales[path] if path in network.scales else quantise.scales(original, axes)
      leaves[path], leaves[f'{path}{SCALE}'] = quantise.quantise(original, scale), scale
      errors[path] = quantise.errors(original, leaves[path], scale)
  return network._replace(leaves=leaves, errors=errors)


def _masked(network: Network, masks: Mapping[str, Array]) -> Network:
  masked = {path: np.where(np.asarray(mask) > 0, network.leaves[path], np.float32(0)) for path, mask in masks.items()}
  return network._replace(leaves={**network.leaves, **masked})


def _trunk(network: Network, subject: Subject) -> nn.Module:
  execution = Execution(**subject.settings['execution'])
  return build.make('models', dict(network.block), vocab_size=subject.opened.model.vocab_size, execution=execution)
