"""XLNet of Hugging Face with our weights and the numbers it computes, live or from a small file beside this one.

`python -m tests.models.xlnet_peer` computes the file anew; it needs torch and transformers, reading it does not. The
peer runs in float64, so that what is measured is our own rounding.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.types import PyTree
from plm_jax.layers import linear
from plm_jax.models import xlnet
from plm_jax.objectives import permutation_lm
from plm_jax.weights import table
from plm_jax.weights.architectures import xlnet as weights
from tests import tiny
from tests.models import peers

VOCAB, ROWS, LENGTH, MEMORY, REUSE = tiny.VOCAB.size, 4, 13, 7, 5
TRUNK = xlnet.make(
  vocab_size=VOCAB,
  variant='xlnet-base',
  overrides={
    'hidden_dim': 16,
    'num_layers': 3,
    'num_heads': 2,
    'mlp_dim': 40,
    'dropout': 0.0,
    'attention_dropout': 0.0,
    'memory_length': MEMORY,
    'reuse_length': REUSE,
  },
)
# two streams with a memory, the last two rows reversed; two streams without; the content stream alone
CASES = ('memory', 'streams', 'content')
Outcome = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]  # numbers, gradient under their names


def make_inputs(case: str) -> dict[str, Any]:
  """Inputs of our trunk: rows of 13, 5, 12 and 9 tokens of three types; any mask that leaves everybody something."""
  draw = np.random.Generator(np.random.PCG64(3))
  index = np.arange(LENGTH)
  sizes = np.array([13, 5, 12, 9])
  real = index < sizes[:, None]
  tokens = (draw.random((ROWS, LENGTH)) * (VOCAB - 7)).astype(np.int32) + 7
  types = np.where(index < sizes[:, None] // 2, 0, np.where(index < sizes[:, None] - 1, 1, 2))
  inputs: dict[str, Any] = {
    'tokens': np.where(real, tokens, 0),
    'segment_ids': real.astype(np.int32),
    'type_ids': types,
  }
  if case != 'content':
    mask = draw.random((ROWS, LENGTH, LENGTH)) < 0.5
    mask[:, :, 0] = True
    inputs['permutation_mask'] = mask
    inputs['target_positions'] = np.array([[12, 3, 7], [1, 4, 2], [5, 11, 6], [8, 1, 3]])
  if case == 'memory':
    states = 2 * draw.random((ROWS, 3, MEMORY, 16)) - 1
    inputs['carry'] = {'states': states.astype(np.float32), 'segment_ids': np.ones((ROWS, MEMORY), np.int32)}
    inputs['reversed'] = np.array([False, False, True, True])
  return jax.tree.map(jnp.asarray, inputs)


def make_labels() -> np.ndarray:
  return (np.random.Generator(np.random.PCG64(4)).random((ROWS, 3)) * VOCAB).astype(np.int64)


def directions() -> np.ndarray:
  """What the content stream alone is multiplied with for a loss, [b, l, d]."""
  return np.random.Generator(np.random.PCG64(5)).random((ROWS, LENGTH, 16)).astype(np.float32)


@functools.cache
def draw_params() -> PyTree:
  """Parameters of the trunk and its head whose numbers depend on path and shape alone."""
  model = permutation_lm.Model(TRUNK, linear.OutputBias(VOCAB))
  shapes = jax.eval_shape(lambda key: model.init(key, **make_inputs('streams'))['params'], jax.random.key(0))

  def draw(path, leaf):
    generator = np.random.Generator(np.random.PCG64([*map(ord, jax.tree_util.keystr(path, simple=True))]))
    values = 0.4 * (generator.random(leaf.shape) * 2 - 1)
    return jnp.asarray(1 + values if path[-1].key == 'scale' else values, jnp.float32)

  return jax.tree_util.tree_map_with_path(draw, nn.unbox(shapes))


def names(params: PyTree, heads: tuple[str, ...] = ('lm',)) -> dict[str, np.ndarray]:
  """Our parameters, or a gradient, under their names and in their shapes."""
  flat = {
    jax.tree_util.keystr(path, simple=True, separator='/'): np.asarray(leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params)
  }
  out = {}
  for entry in weights.entries(TRUNK, heads):
    leaf = flat.pop(entry.ours)
    if entry.stacked:
      out |= {entry.name(layer): table.to_theirs(entry, part) for layer, part in enumerate(leaf)}
    else:
      out[entry.theirs] = table.to_theirs(entry, leaf)
  assert not flat, f'no entry for {sorted(flat)}'
  return out


def run_ours(case: str) -> Outcome:
  """States of the content stream, memory, logits and loss of a case, and the gradient."""
  inputs, labels, head = make_inputs(case), make_labels(), linear.OutputBias(VOCAB)

  @jax.jit
  def compute(params: PyTree) -> Any:
    def loss_of(params: PyTree) -> Any:
      out = TRUNK.apply({'params': params['trunk']}, **inputs)
      numbers = {'layers': out['layers'], 'memory': out['carry']['states']}
      if case == 'content':
        real = (inputs['segment_ids'] > 0)[..., None]
        return (out['hidden'] * directions() * real).sum(), numbers
      logits = TRUNK.apply({'params': params['trunk']}, out['queries'], method='attend')
      logits = head.apply({'params': params['lm']}, logits)
      nats = -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)
      return nats.mean(), numbers | {'logits': logits}

    (loss, numbers), gradient = jax.value_and_grad(loss_of, has_aux=True)(params)
    return numbers | {'loss': loss}, gradient

  numbers, gradient = compute(draw_params())
  return _where_real({key: np.asarray(value) for key, value in numbers.items()}, inputs), names(gradient)


def _where_real(numbers: dict[str, np.ndarray], inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
  """Zeroes what stands at padding, which nobody reads."""
  real = np.asarray(inputs['segment_ids'] > 0)
  return numbers | {'layers': numbers['layers'] * real[None, :, :, None]}


def make_peer(kind: Callable[[Any], Any], **fields: Any) -> Any:
  """A model of theirs of this class with sinusoids in float64, without weights."""
  from transformers import XLNetConfig

  settings = weights.write_config(TRUNK, ('lm',)) | {'mem_len': MEMORY, 'reuse_len': REUSE} | fields
  model = kind(XLNetConfig(**settings))
  body = model.transformer
  theirs = body.positional_embedding
  body.positional_embedding = lambda places, rates, rows=None: theirs(places.double(), rates.double(), rows)
  return model


def run_theirs(case: str) -> Outcome:
  """What `run_ours` returns, by the peer."""
  import torch
  from transformers import XLNetLMHeadModel

  inputs, params = make_inputs(case), draw_params()
  model = peers.load(make_peer(XLNetLMHeadModel, bi_data='reversed' in inputs), names(params))
  real = np.asarray(inputs['segment_ids'] > 0)
  arguments: dict[str, Any] = {
    'attention_mask': torch.tensor(real).double(),
    'token_type_ids': torch.tensor(np.asarray(inputs['type_ids'])).long(),
    'output_hidden_states': True,
    'use_mems': True,
  }
  if 'carry' in inputs:
    states = torch.tensor(np.asarray(inputs['carry']['states'], np.float64))
    arguments['mems'] = list(states.permute(1, 2, 0, 3))  # [b, n, m, d] -> n of [m, b, d]
  if case != 'content':
    arguments['perm_mask'] = torch.tensor(~np.asarray(inputs['permutation_mask'])).double()
    mapping = np.eye(LENGTH)[np.asarray(inputs['target_positions'])]  # [b, t, l]
    arguments['target_mapping'] = torch.tensor(mapping)
    arguments['labels'] = torch.tensor(make_labels())
  tokens = torch.tensor(np.asarray(inputs['tokens'])).long()
  if case == 'content':
    out = model.transformer(tokens, **arguments)
    loss = (out.last_hidden_state * torch.tensor(directions() * real[..., None])).sum()
    numbers, content = {}, out.hidden_states
  else:
    out = model(tokens, **arguments)
    loss, content = out.loss, out.hidden_states[::2]  # content and query states take turns
    numbers = {'logits': out.logits.detach().numpy()}
  loss.backward()
  numbers['layers'] = np.stack([states.detach().numpy() for states in content])
  memory = torch.stack(list(out.mems)).permute(2, 0, 1, 3).numpy()  # n of [m, b, d] -> [b, n, m, d]
  numbers['memory'] = np.concatenate([np.zeros((ROWS, 3, MEMORY - memory.shape[2], 16)), memory], axis=2)
  numbers['loss'] = loss.detach().numpy()
  gradient = {
    name: np.zeros(value.shape) if value.grad is None else value.grad.numpy()
    for name, value in model.named_parameters()
  }
  return _where_real(numbers, inputs), gradient


def compute() -> dict[str, np.ndarray]:
  """What the file holds, by the peer as installed."""
  out = {}
  for case in CASES:
    numbers, gradient = run_theirs(case)
    out |= {f'{case}/{key}': value.astype(np.float32) for key, value in numbers.items()}
    out[f'{case}/gradient'] = peers.summaries(gradient)
  return out


def main() -> None:
  file = peers.REFERENCES / 'xlnet.npz'
  np.savez_compressed(file, **compute())
  print(f'{file.name}: {file.stat().st_size:,} bytes')


if __name__ == '__main__':
  main()
