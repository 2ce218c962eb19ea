"""GPT-BERT beside its published code, and its two directions.

references/gpt_bert.npz holds what the class `Bert` of evaluation/blimp/model_extra.py computes (github.com/ltgoslo/
gpt-bert at 9fc1507, MIT License), in float64, from weights that `peers.draw_params` makes of names and shapes alone:
logits in both directions, and the gradient of each tensor as `peers.summaries`. With that file,
`python -m tests.models.test_gpt_bert model_extra.py` computes the numbers anew.
"""

import functools
import importlib.util
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import weights
from plm_jax.models import gpt_bert
from plm_jax.objectives import gpt_bert as objective
from plm_jax.weights.architectures import ltgbert
from tests import tiny
from tests.models import peers

FILE = peers.REFERENCES / 'gpt_bert.npz'
SIZES = {'hidden_dim': 16, 'num_layers': 3, 'num_heads': 2, 'mlp_dim': 24, 'num_buckets': 4, 'max_distance': 9}
LENGTHS = (17, 9, 4)


def make(**fields: Any) -> gpt_bert.GptBert:
  return gpt_bert.make(vocab_size=tiny.VOCAB.size, variant='gpt-bert-base', overrides=SIZES | fields)


@functools.cache
def draw() -> Any:
  task = objective.make(trunk=make(), vocab=tiny.VOCAB)
  params = peers.draw_params(task, tiny.make_batch())
  # near the first weights of depth, at which sums stay small
  params['trunk']['depth'] = {name: (0.2 * row).at[-1].add(1) for name, row in params['trunk']['depth'].items()}
  return params


def inputs() -> dict[str, np.ndarray]:
  segments = (np.arange(max(LENGTHS)) < np.asarray(LENGTHS)[:, None]).astype(np.int32)
  tokens = np.random.default_rng(3).integers(7, tiny.VOCAB.size, segments.shape).astype(np.int32)
  return {'tokens': tokens * segments, 'segment_ids': segments}


def values_of(logits: Any, segments: Any, xp: Any) -> Any:
  """A number with a gradient everywhere: each real logit by a fixed direction."""
  index = np.arange(np.prod(logits.shape)).reshape(logits.shape)
  direction = np.cos(0.3 * index) * np.asarray(segments)[..., None]
  return (logits * xp(direction)).sum()


@functools.cache
def ours(causal: bool) -> tuple[np.ndarray, dict[str, np.ndarray]]:
  trunk, read = make(causal=causal), inputs()

  @jax.jit
  def compute(params: Any) -> Any:
    def loss(params: Any) -> Any:
      hidden = trunk.apply({'params': params['trunk']}, **read)['hidden']
      logits = trunk.apply({'params': params['trunk']}, hidden, method='attend')
      return values_of(logits, read['segment_ids'], jnp.asarray), logits

    return jax.grad(loss, has_aux=True)(params)

  gradient, logits = compute(draw())
  names = peers.table_names(gradient, trunk=trunk, weights=ltgbert)
  return np.asarray(logits) * read['segment_ids'][..., None], names


def theirs(module: Any, causal: bool) -> tuple[np.ndarray, dict[str, np.ndarray]]:
  import torch

  torch.set_default_dtype(torch.float64)
  c = ltgbert.write_config(make(), ())
  model = module.Bert(types.SimpleNamespace(**c)).double().eval()
  state = peers.table_names(draw(), trunk=make(), weights=ltgbert)
  found = model.load_state_dict(
    {name: torch.tensor(np.asarray(value, np.float64)) for name, value in state.items()}, strict=False
  )
  assert not found.unexpected_keys, found
  read = inputs()
  hidden = np.broadcast_to((read['segment_ids'] == 0)[:, None, :], (len(LENGTHS), max(LENGTHS), max(LENGTHS)))
  if causal:
    hidden = hidden | (np.arange(max(LENGTHS)) > np.arange(max(LENGTHS))[:, None])
  tokens = torch.tensor(read['tokens'].T).long()
  logits = model(tokens, torch.tensor(hidden), tokens).reshape(*tokens.shape, -1).transpose(0, 1)
  values_of(logits, read['segment_ids'], torch.tensor).backward()
  gradient = {name: value.grad.numpy() for name, value in model.named_parameters() if value.grad is not None}
  return logits.detach().numpy() * read['segment_ids'][..., None], gradient


def compute(module: Any) -> dict[str, np.ndarray]:
  out = {}
  for name, causal in (('masked', False), ('causal', True)):
    logits, gradient = theirs(module, causal)
    out |= {f'{name}_logits': logits[..., ::5].astype(np.float32), f'{name}_gradient': peers.summaries(gradient)}
  return out


@pytest.mark.parametrize('causal', [False, True], ids=['masked', 'causal'])
def test_the_numbers_of_the_published_code(causal: bool) -> None:
  stored, name = np.load(FILE), 'causal' if causal else 'masked'
  logits, gradient = ours(causal)
  assert tiny.worst(logits[..., ::5], stored[f'{name}_logits']) < 1e-5
  sums = stored[f'{name}_gradient']
  whole = np.sqrt((sums[:, 0] ** 2).sum())
  for tensor, a, b in zip(sorted(gradient), peers.summaries(gradient), sums, strict=True):
    limit = 1e-5 * max(b[0], 1e-3 * whole) * np.sqrt(gradient[tensor].size)
    np.testing.assert_allclose(a, b, rtol=0, atol=limit, err_msg=tensor)


def test_weights_are_written_and_read_with_the_buffers_of_the_published_file(tmp_path: Any) -> None:
  trunk, params = make(causal=True), draw()
  weights.save(tmp_path / 'out', trunk, params['trunk'])
  again, read = weights.load(tmp_path / 'out')
  assert again.config == trunk.config
  jax.tree.map(np.testing.assert_array_equal, read, params['trunk'])
  rows = ltgbert._holds_rows
  index = np.arange(9)
  buffer = trunk.config.rows[index[:, None] - index + 8]
  assert rows(trunk, buffer) and not rows(trunk, buffer + 1)


def test_steps_of_generation_are_the_causal_network() -> None:
  trunk, params = make(causal=True), {'params': draw()['trunk']}
  tokens = inputs()['tokens'][:1, :12]
  one = np.ones_like(tokens)
  logits = trunk.apply(params, trunk.apply(params, tokens, segment_ids=one)['hidden'], method='attend')
  cache = trunk.apply(params, 1, 12, method='init_cache')
  step = jax.jit(functools.partial(trunk.apply, params, method='decode_step'))
  start = 0
  for stop in (5, 6, 9, 12):
    at = np.arange(start, stop, dtype=np.int32)[None]
    out, cache = step(tokens[:, start:stop], cache, segment_ids=one[:, start:stop], positions=at)
    assert tiny.worst(out, logits[:, start:stop]) < 1e-5
    start = stop


def test_the_objective_mixes_both_means() -> None:
  trunk = make(dropout=0.0, attention_dropout=0.0)
  batch = tiny.make_batch()
  task = objective.make(trunk=trunk, vocab=tiny.VOCAB, causal=0.5, z_loss=0.0)
  example = task.prepare(jax.random.key(1), peers.keys.with_step(batch, 0))
  t = {name: np.asarray(value) for name, value in example.targets.items()}
  kinds = t['causal'].sum(axis=1) > 0
  assert kinds.any() and not kinds.all()
  tokens, segments = np.asarray(batch['tokens']), np.asarray(batch['segment_ids'])
  changed = np.asarray(example.inputs['tokens']) != tokens
  assert not changed[kinds].any() and changed[~kinds].any()
  # every changed token of a text but its first is a target of the position before it, and causal rows predict all
  inside = np.pad((segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0), ((0, 0), (0, 1)))
  assert ((t['masked'] > 0) >= (np.pad(changed, ((0, 0), (0, 1)))[:, 1:] & inside)).all()
  np.testing.assert_array_equal(t['causal'][kinds] > 0, inside[kinds])
  allowed = np.asarray(example.inputs['allowed'])
  np.testing.assert_array_equal(allowed[kinds].all(axis=0), np.tri(tokens.shape[1], dtype=bool))
  assert allowed[~kinds].all()
  value, _ = tiny.loss_and_gradient(task, draw(), batch)
  parts = {name: float(total / weight) for name, (total, weight) in value.metrics.items()}
  assert abs(parts['loss'] - (parts['masked_loss'] + parts['causal_loss']) / 2) < 1e-5
  assert abs(float(value.value) - parts['loss']) < 1e-5


def test_a_blank_is_read_before_it() -> None:
  trunk, params = make(), draw()
  read = inputs()
  logits = objective.Model(trunk).apply({'params': params}, predict=np.full((3, 1), 3), **read)
  masked, _ = ours(False)
  assert tiny.worst(logits[:, 0], masked[:, 2]) < 1e-5


if __name__ == '__main__':
  spec: Any = importlib.util.spec_from_file_location('model_extra', sys.argv[1])
  loaded = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(loaded)
  np.savez_compressed(FILE, **compute(loaded))
