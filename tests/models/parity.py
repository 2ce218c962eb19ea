"""Comparisons with Hugging Face that every trunk with a peer goes through."""

import functools

import jax
import numpy as np
import pytest

from tests import tiny
from tests.models import peers

TOLERANCE = 1e-5


@functools.cache
def run_ours(name: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
  """`peers.run_ours` of a case, once for both comparisons."""
  case, batch = peers.CASES[name], peers.make_batch()
  task = peers.make_task(case)
  return peers.run_ours(case, task, peers.draw_params(task, batch), batch)


def check_stored(name: str) -> None:
  """Ours against the numbers in the file: states of every layer, logits, loss and the gradient of every tensor."""
  stored = peers.read(name)
  ours, gradient = run_ours(name)
  rows = stored['layers'].shape[1]
  for layer, (a, b) in enumerate(zip(ours['layers'][:, :rows], stored['layers'], strict=True)):
    assert tiny.worst(a, b) < TOLERANCE, f'layer {layer}'
  assert tiny.worst(ours['logits'][:, : stored['logits'].shape[1]], stored['logits']) < TOLERANCE
  assert tiny.worst(ours['loss'], stored['loss']) < TOLERANCE
  whole = np.sqrt((stored['gradient'][:, 0] ** 2).sum())
  for tensor, a, b in zip(sorted(gradient), peers.summaries(gradient), stored['gradient'], strict=True):
    # a product with a direction of norm sqrt(n) is off by at most that times the error of the tensor
    limit = TOLERANCE * max(b[0], 1e-3 * whole) * np.sqrt(gradient[tensor].size)
    np.testing.assert_allclose(a, b, rtol=0, atol=limit, err_msg=tensor)


def check_live(name: str) -> None:
  """Ours against the peer as installed, and the file against it too."""
  pytest.importorskip('torch')
  pytest.importorskip('transformers')
  case, batch = peers.CASES[name], peers.make_batch()
  task = peers.make_task(case)
  params = peers.draw_params(task, batch)
  ours, our_gradient = run_ours(name)
  theirs, their_gradient = peers.run_theirs(case, task, params, batch)
  for layer, (a, b) in enumerate(zip(ours['layers'], theirs['layers'], strict=True)):
    assert tiny.worst(a, b) < TOLERANCE, f'layer {layer}'
  assert tiny.worst(ours['logits'], theirs['logits']) < TOLERANCE
  assert tiny.worst(ours['loss'], theirs['loss']) < TOLERANCE
  error, where = tiny.gradient_error(our_gradient, their_gradient)
  assert error < TOLERANCE, where
  stored, computed = peers.read(name), peers.compute(name)
  assert stored.keys() == computed.keys()
  for key in stored:
    np.testing.assert_allclose(stored[key], computed[key], rtol=1e-5, atol=1e-6, err_msg=f'stale {name}.npz: {key}')


def check_classifier(name: str, model: object, task, batch, *, targets) -> None:
  """A classifier of ours against `model`, made for it: outputs, loss and gradient, from one set of weights."""
  import torch

  params = peers.draw_params(task, batch)
  if name != 'bert':
    params['head']['bias'] *= 0  # theirs has none
  case = peers.CASES[name]
  loss, gradient = tiny.loss_and_gradient(task, params, batch)
  read = {key: batch[key] for key in ('tokens', 'segment_ids', 'type_ids')}
  outputs = jax.jit(lambda params: task.model.apply({'params': params}, **read)[0])(params)
  weights = case.names(params)
  model = peers.load(model, weights)
  real = np.asarray(batch['segment_ids']) > 0
  arguments = {'attention_mask': torch.tensor(real).long()}
  if name == 'bert':
    arguments['token_type_ids'] = torch.tensor(np.asarray(batch['type_ids'])).long()
  out = model(torch.tensor(np.asarray(batch['tokens'])).long(), labels=torch.tensor(targets), **arguments)
  out.loss.backward()
  assert tiny.worst(outputs, out.logits.detach().numpy()) < TOLERANCE
  assert tiny.worst(loss.value, out.loss.detach().numpy()) < TOLERANCE
  ours = case.names(gradient)
  error, where = tiny.gradient_error(ours, {key: p.grad.numpy() for key, p in model.named_parameters() if key in ours})
  assert error < TOLERANCE, where
