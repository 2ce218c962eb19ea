"""States, logits and gradients of real weights at full size, beside transformers in double precision."""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import weights
from plm_jax.core.types import PyTree
from plm_jax.weights import release
from tests import tiny

pytestmark = pytest.mark.released

TEXTS = [
  'Paris is the capital of France, and Berlin that of Germany.',
  'A man is playing a large flute.',
  'The quick brown fox jumps over the lazy dog; the dog, which had been asleep, did not notice anything at all.',
]
STATES, GRADIENT = 1e-5, 1e-5
# states of SmolLM2 reach 24,000 in one feature, so that float32 leaves its last norms 3e-5; transformers' 2e-5
GRADIENT_OF_30_LAYERS = 1e-4


def under_their_names(pair: Any, gradient: PyTree, folder: pathlib.Path) -> dict[str, np.ndarray]:
  """Write a gradient as a folder of weights, which moves and transposes it as it does a parameter."""
  weights.save(folder, pair.trunk, jax.device_get(gradient))
  files = release.Release(folder)
  return {name: files.read(name) for name in files}


def test_minilm_states_and_gradient(minilm: Any, tmp_path: pathlib.Path) -> None:
  import torch

  tokens, segments = minilm.rows(TEXTS)
  draw = np.random.default_rng(0).normal(size=(*tokens.shape, minilm.trunk.hidden_dim)).astype(np.float32)
  weight = draw * segments[:, :, None] / segments.sum()  # of a random linear function of the states

  def function(params: PyTree) -> tuple[jax.Array, Any]:
    out = minilm.trunk.apply({'params': params}, tokens=tokens, segment_ids=segments)
    return jnp.sum(out['hidden'] * weight), out['layers']

  gradient, layers = jax.jit(jax.grad(function, has_aux=True))(minilm.params)
  out = minilm.theirs(
    torch.tensor(tokens).long(), attention_mask=torch.tensor(segments), output_hidden_states=True, return_dict=True
  )
  real = segments > 0
  for number, (a, b) in enumerate(zip(layers, out.hidden_states, strict=True)):
    assert tiny.worst(np.asarray(a)[real], b.detach().numpy()[real]) < STATES, f'layer {number}'
  (out.last_hidden_state * torch.tensor(weight)).sum().backward()
  theirs = {name: value.grad.numpy() for name, value in minilm.theirs.named_parameters() if value.grad is not None}
  minilm.theirs.zero_grad()
  ours = under_their_names(minilm, gradient, tmp_path / 'gradient')
  assert len(theirs) == 101  # 6 layers of 16 and the embeddings; nothing reads the pooler
  error, where = tiny.gradient_error({name: ours[f'bert.{name}'] for name in theirs}, theirs)
  assert error < GRADIENT, where


def test_smollm2_logits(smollm2: Any) -> None:
  import torch

  tokens, segments = smollm2.rows(TEXTS)

  @jax.jit
  def compute(params: PyTree) -> jax.Array:
    hidden = smollm2.trunk.apply({'params': params}, tokens=tokens, segment_ids=segments)['hidden']
    return smollm2.trunk.apply({'params': params}, hidden, method='attend')

  with torch.inference_mode():
    theirs = smollm2.theirs(torch.tensor(tokens).long(), attention_mask=torch.tensor(segments)).logits.numpy()
  real = segments > 0
  assert tiny.worst(np.asarray(compute(smollm2.params))[real], theirs[real]) < STATES


@pytest.mark.slow
def test_smollm2_gradient(smollm2: Any, tmp_path: pathlib.Path) -> None:
  import torch

  tokens, segments = smollm2.rows(TEXTS)
  targets = np.where(segments[:, 1:] > 0, tokens[:, 1:], -100)

  def loss(params: PyTree) -> jax.Array:
    hidden = smollm2.trunk.apply({'params': params}, tokens=tokens, segment_ids=segments)['hidden']
    logits = smollm2.trunk.apply({'params': params}, hidden[:, :-1], method='attend')
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), np.maximum(targets, 0)[:, :, None], -1)[:, :, 0]
    return -jnp.sum(picked * (targets >= 0)) / np.sum(targets >= 0)

  value, gradient = jax.jit(jax.value_and_grad(loss))(smollm2.params)
  logits = smollm2.theirs(torch.tensor(tokens).long(), attention_mask=torch.tensor(segments)).logits[:, :-1]
  # their `labels` would compute the loss in single precision, which is off by 3e-4 in the last norms
  theirs_loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(targets).long().flatten())
  theirs_loss.backward()
  assert tiny.worst(value, theirs_loss.detach().numpy()) < STATES
  theirs = {name: parameter.grad.numpy() for name, parameter in smollm2.theirs.named_parameters()}
  ours = under_their_names(smollm2, gradient, tmp_path / 'gradient')
  smollm2.theirs.zero_grad()
  assert ours.keys() == theirs.keys()
  error, where = tiny.gradient_error(ours, theirs)
  assert error < GRADIENT_OF_30_LAYERS, where
