"""What tests of encoder-decoders share: peers at Hugging Face with stored numbers, and properties of every trunk.

`python -m tests.models.seq2seq [CASE ...]` computes the files anew; it needs torch and transformers, reading them does
not. The peers run in float64.
"""

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core import param_paths
from plm_jax.core.types import Execution, PyTree
from plm_jax.models import bart, t5
from plm_jax.weights import table
from plm_jax.weights.architectures import bart as bart_weights
from plm_jax.weights.architectures import mbart as mbart_weights
from plm_jax.weights.architectures import t5 as t5_weights
from tests import tiny
from tests.models import peers

TOLERANCE = 1e-5
VOCAB = 61
T5_SIZES = {
  'hidden_dim': 16,
  'num_layers': 3,
  'num_heads': 2,
  'head_dim': 6,
  'mlp_dim': 40,
  'num_buckets': 8,
  'max_distance': 11,
  'dropout': 0.0,
  'attention_dropout': 0.0,
}
BART_SIZES = {'hidden_dim': 16, 'num_layers': 3, 'num_heads': 2, 'mlp_dim': 40, 'max_length': 32, 'dropout': 0.0}


class Case(NamedTuple):
  """One pair of implementations: our trunk, the file with its names, and how to make theirs without weights."""

  trunk: nn.Module
  weights: Any
  peer: Callable[[], Any]


def _t5_v1_1() -> Any:
  from transformers import T5Config, T5Model

  # their model with an output matrix ties it whatever the config says: the product is made in `run_theirs`
  return T5Model(T5Config(**t5_weights.write_config(CASES['t5_v1_1'].trunk, ())))


def _t5_of(name: str) -> Any:
  from transformers import T5Config, T5ForConditionalGeneration

  return T5ForConditionalGeneration(T5Config(**t5_weights.write_config(CASES[name].trunk, ())))


def _bart_of(name: str) -> Any:
  import transformers

  case = CASES[name]
  about = case.weights.write_config(case.trunk, ())
  family = {'bart': 'Bart', 'mbart': 'MBart'}[about['model_type']]
  config = getattr(transformers, f'{family}Config')(**about)
  config._attn_implementation = 'eager'
  return getattr(transformers, f'{family}ForConditionalGeneration')(config)


def _make_t5(variant: str, **fields: Any) -> nn.Module:
  return t5.make(vocab_size=VOCAB, variant=variant, overrides=T5_SIZES | fields)


def _make_bart(variant: str, **fields: Any) -> nn.Module:
  return bart.make(vocab_size=VOCAB, variant=variant, overrides=BART_SIZES | fields)


# a decoder that is shallower than its encoder: a distilled BART, an efficient T5
CASES = {
  't5': Case(_make_t5('t5-small'), t5_weights, functools.partial(_t5_of, 't5')),
  't5_v1_1': Case(_make_t5('t5-v1_1-small'), t5_weights, _t5_v1_1),
  't5_deep': Case(_make_t5('t5-small', num_decoder_layers=1), t5_weights, functools.partial(_t5_of, 't5_deep')),
  'bart': Case(_make_bart('bart-base'), bart_weights, functools.partial(_bart_of, 'bart')),
  'distilbart': Case(
    _make_bart('bart-base', num_decoder_layers=1), bart_weights, functools.partial(_bart_of, 'distilbart')
  ),
  'mbart': Case(
    _make_bart('mbart-large-cc25', num_decoder_layers=2), mbart_weights, functools.partial(_bart_of, 'mbart')
  ),
}

# Batches and parameters ---------------------------------------------------------------------------------------------


def make_side(lengths: tuple[tuple[int, ...], ...], length: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
  """Tokens and segments int[b, l] of rows that pack documents of these lengths, padded on the right."""
  draw = np.random.default_rng(seed)
  tokens, segments = np.zeros((len(lengths), length), np.int32), np.zeros((len(lengths), length), np.int32)
  for row, documents in enumerate(lengths):
    ids = np.repeat(np.arange(1, len(documents) + 1), documents)
    segments[row, : len(ids)] = ids
    tokens[row, : len(ids)] = draw.integers(7, VOCAB, len(ids))
  return tokens, segments


def make_inputs(
  encoder: tuple[tuple[int, ...], ...] = ((13,), (1,), (6,), (9,)),
  decoder: tuple[tuple[int, ...], ...] = ((7,), (9,), (1,), (4,)),
) -> dict[str, np.ndarray]:
  """What an encoder-decoder reads: 13 and 9 positions a row."""
  names = ('encoder_tokens', 'encoder_segment_ids'), ('decoder_tokens', 'decoder_segment_ids')
  sides = make_side(encoder, 13, seed=1), make_side(decoder, 9, seed=2)
  return {name: value for pair, side in zip(names, sides, strict=True) for name, value in zip(pair, side, strict=True)}


def draw_params(trunk: nn.Module) -> PyTree:
  """Parameters whose numbers depend on path and shape alone."""

  def init(key):
    hidden, variables = trunk.init_with_output(key, **make_inputs())
    output = trunk.init(key, hidden['hidden'], method='attend')
    return {**output['params'], **variables['params']}

  def draw(path, leaf):
    generator = np.random.Generator(np.random.PCG64([*map(ord, jax.tree_util.keystr(path))]))
    values = generator.random(leaf.shape) * 2 - 1
    values = {'scale': 1 + 0.3 * values, 'bias': 0.2 * values}.get(path[-1].key, 0.4 * values)
    return jnp.asarray(values, jnp.float32)

  return jax.tree_util.tree_map_with_path(draw, nn.unbox(jax.eval_shape(init, jax.random.key(0))))


def their_names(case: Case, params: PyTree) -> dict[str, np.ndarray]:
  """Our parameters, or a gradient, under their names and in their shapes."""
  flat = {param_paths.path_name(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
  flat = {f'trunk/{name}': leaf for name, leaf in flat.items()}
  entries = case.weights.entries(case.trunk, ())
  assert sorted(entry.ours for entry in entries) == sorted(flat)
  out = {}
  for entry in entries:
    leaf = flat[entry.ours]
    for layer in range(len(leaf)) if entry.stacked else (0,):
      out[entry.name(layer)] = table.to_theirs(entry, leaf[layer] if entry.stacked else leaf)
  return out


# What both compute --------------------------------------------------------------------------------------------------


def targets(inputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
  """Some token to predict at each place, and which places count."""
  real = inputs['decoder_segment_ids'] > 0
  return np.where(real, (inputs['decoder_tokens'] * 3 + 1) % VOCAB, 0), real


def run_ours(case: Case, params: PyTree) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
  """(states of all layers, logits and loss; the gradient under their names)."""
  inputs = make_inputs()
  ids, real = targets(inputs)

  @jax.jit
  def compute(params: PyTree) -> Any:
    def loss_of(params: PyTree) -> Any:
      out = case.trunk.apply({'params': params}, **inputs)
      logits = case.trunk.apply({'params': params}, out['hidden'], method='attend')
      nats = -jnp.take_along_axis(jax.nn.log_softmax(logits), ids[..., None], axis=-1)[..., 0]
      loss = jnp.where(real, nats, 0).sum() / real.sum()
      return loss, {**out, 'logits': logits, 'loss': loss}

    return jax.grad(loss_of, has_aux=True)(params)

  gradient, out = compute(params)
  result = {
    # theirs norm the last state before they report it
    'encoder_layers': np.concatenate([out['encoder_layers'][:-1], out['encoder_hidden'][None]]),
    'layers': np.concatenate([out['layers'][:-1], out['hidden'][None]]),
    'logits': out['logits'],
    'loss': out['loss'],
  }
  return _where_real(result, inputs), their_names(case, gradient)


def _where_real(result: Mapping[str, Any], inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  encoder, decoder = (inputs[f'{side}_segment_ids'] > 0 for side in ('encoder', 'decoder'))
  masks = {'encoder_layers': encoder[None, ..., None], 'layers': decoder[None, ..., None], 'logits': decoder[..., None]}
  return {name: np.asarray(value) * masks.get(name, 1) for name, value in result.items()}


def run_theirs(case: Case, params: PyTree) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
  """What `run_ours` returns, by the peer."""
  import torch

  inputs = make_inputs()
  ids, real = targets(inputs)
  weights = their_names(case, params)
  tensors = {name: torch.tensor(np.asarray(value, np.float64)) for name, value in weights.items()}
  output = tensors.pop('lm_head.weight', None)
  model = case.peer().double().eval()
  found = model.load_state_dict(tensors, strict=False)
  assert not found.unexpected_keys, found.unexpected_keys
  assert {name for name, _ in model.named_parameters()} == set(tensors)
  out = model(
    input_ids=torch.tensor(inputs['encoder_tokens']).long(),
    attention_mask=torch.tensor(inputs['encoder_segment_ids'] > 0).long(),
    decoder_input_ids=torch.tensor(inputs['decoder_tokens']).long(),
    decoder_attention_mask=torch.tensor(inputs['decoder_segment_ids'] > 0).long(),
    output_hidden_states=True,
  )
  if output is None:
    logits = out.logits
  else:
    output.requires_grad_()
    logits = out.last_hidden_state @ output.T
  labels = torch.tensor(np.where(real, ids, -100)).long()
  loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), labels.reshape(-1))
  loss.backward()
  result = {
    'encoder_layers': np.stack([states.detach().numpy() for states in out.encoder_hidden_states]),
    'layers': np.stack([states.detach().numpy() for states in out.decoder_hidden_states]),
    'logits': logits.detach().numpy(),
    'loss': loss.detach().numpy(),
  }
  gradient = {name: value.grad.numpy() for name, value in model.named_parameters()}
  if output is not None:
    gradient['lm_head.weight'] = output.grad.numpy()
  return _where_real(result, inputs), gradient


def compute(name: str) -> dict[str, np.ndarray]:
  """What the file of a case holds, by the peer as installed."""
  out, gradient = run_theirs(CASES[name], draw_params(CASES[name].trunk))
  keep = {key: out[key][:, :3] for key in ('encoder_layers', 'layers')} | {'logits': out['logits'][:2]}
  keep = {key: value.astype(np.float32) for key, value in keep.items()}
  return keep | {'loss': np.float32(out['loss']), 'gradient': peers.summaries(gradient)}


# Checks of every case -----------------------------------------------------------------------------------------------


def _check_states(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> None:
  for side in ('encoder_layers', 'layers'):
    rows = theirs[side].shape[1]
    for layer, (a, b) in enumerate(zip(ours[side][:, :rows], theirs[side], strict=True)):
      assert tiny.worst(a, b) < TOLERANCE, (side, layer)
  assert tiny.worst(ours['logits'][: len(theirs['logits'])], theirs['logits']) < TOLERANCE
  assert tiny.worst(ours['loss'], theirs['loss']) < TOLERANCE


def check_stored(name: str) -> None:
  """Ours against the numbers in the file: states of every layer, logits, loss and the gradient of every tensor."""
  case, stored = CASES[name], peers.read(name)
  ours, gradient = run_ours(case, draw_params(case.trunk))
  _check_states(ours, stored)
  whole = np.sqrt((stored['gradient'][:, 0] ** 2).sum())
  for tensor, a, b in zip(sorted(gradient), peers.summaries(gradient), stored['gradient'], strict=True):
    # a product with a direction of norm sqrt(n) is off by at most that times the error of the tensor
    limit = TOLERANCE * max(b[0], 1e-3 * whole) * np.sqrt(gradient[tensor].size)
    np.testing.assert_allclose(a, b, rtol=0, atol=limit, err_msg=tensor)


def check_live(name: str) -> None:
  """Ours against the peer as installed, and the file against it too."""
  case = CASES[name]
  params = draw_params(case.trunk)
  (ours, our_gradient), (theirs, their_gradient) = run_ours(case, params), run_theirs(case, params)
  _check_states(ours, theirs)
  error, where = tiny.gradient_error(our_gradient, their_gradient)
  assert error < TOLERANCE, where
  stored, computed = peers.read(name), compute(name)
  assert stored.keys() == computed.keys()
  for key in stored:
    np.testing.assert_allclose(stored[key], computed[key], rtol=1e-5, atol=1e-6, err_msg=f'stale {name}.npz: {key}')


def check_names(name: str) -> None:
  """Every tensor of theirs is read, and comes back as it was written."""
  case = CASES[name]
  params = draw_params(case.trunk)
  tensors = their_names(case, params)
  leaves = jax.tree_util.tree_leaves_with_path(params)
  ours = {f'trunk/{param_paths.path_name(path)}': np.asarray(leaf) for path, leaf in leaves}
  shapes = {name: leaf.shape for name, leaf in ours.items()}
  again = peers.to_ours(case.weights.entries(case.trunk, ()), tensors, shapes)
  assert ours.keys() == again.keys()
  assert all(np.array_equal(ours[name], again[name]) for name in ours)
  settings = case.weights.read_config(case.weights.write_config(case.trunk, ()))
  module = {'t5': t5, 'bart': bart}[case.weights.MODEL]
  again = module.make(**settings)
  assert (again.vocab_size, again.config) == (case.trunk.vocab_size, case.trunk.config)


@functools.cache
def program(trunk: nn.Module) -> Callable[..., dict[str, Any]]:
  """A trunk with drawn parameters as a function of its inputs."""
  params = draw_params(trunk)

  def run(inputs):
    out = trunk.apply({'params': params}, **inputs)
    return out | {'logits': trunk.apply({'params': params}, out['hidden'], method='attend')}

  compiled = jax.jit(run)
  return lambda **inputs: {name: np.asarray(value) for name, value in compiled(inputs).items() if name != 'carry'}


PACKED = ((13,), (6, 5), (3, 2, 4), (9,)), ((7,), (3, 5), (4, 1, 2), (9,))


def check_packing(trunk: nn.Module) -> None:
  """A document packed with others has the states that it has alone."""
  inputs = make_inputs(*PACKED)
  packed = program(trunk)(**inputs)
  for row, document in ((1, 1), (1, 2), (2, 1), (2, 2), (2, 3)):
    alone = {name: np.zeros_like(value) for name, value in inputs.items()}
    places = {}
    for side in ('encoder', 'decoder'):
      places[side] = np.flatnonzero(inputs[f'{side}_segment_ids'][row] == document)
      size = len(places[side])
      alone[f'{side}_tokens'][0, :size] = inputs[f'{side}_tokens'][row, places[side]]
      alone[f'{side}_segment_ids'][0, :size] = 1
    out = program(trunk)(**alone)
    for name, side in (('encoder_layers', 'encoder'), ('layers', 'decoder')):
      expected = out[name][:, 0, : len(places[side])]
      assert tiny.worst(packed[name][:, row, places[side]], expected) < TOLERANCE, (row, document, name)
    assert tiny.worst(packed['logits'][row, places['decoder']], out['logits'][0, : len(places['decoder'])]) < TOLERANCE


def check_sight(trunk: nn.Module) -> None:
  """The encoder sees both ways, the decoder backwards and its own document of the encoder; padding is not seen."""
  inputs = make_inputs(*PACKED)
  before = program(trunk)(**inputs)

  def changed(side: str, row: int, place: int) -> tuple[np.ndarray, np.ndarray]:
    tokens = inputs[f'{side}_tokens'].copy()
    tokens[row, place] = 7 + (tokens[row, place] - 6) % (VOCAB - 7)
    after = program(trunk)(**inputs | {f'{side}_tokens': tokens})
    names = 'encoder_hidden', 'hidden'
    return tuple(np.abs(after[name] - before[name]).max(axis=-1) > 1e-6 for name in names)

  # row 1 packs 6 + 5 tokens for the encoder and 3 + 5 for the decoder
  encoder, decoder = changed('encoder', 1, 4)
  assert not encoder[[0, 2, 3]].any() and not decoder[[0, 2, 3]].any()
  assert encoder[1].tolist() == [place < 6 for place in range(13)]
  assert decoder[1].tolist() == [place < 3 for place in range(9)]
  encoder, decoder = changed('decoder', 1, 4)
  assert not encoder.any()
  assert decoder[1].tolist() == [4 <= place < 8 for place in range(9)]
  for side, place in (('encoder', 12), ('decoder', 8)):
    encoder, decoder = changed(side, 1, place)
    assert not encoder[inputs['encoder_segment_ids'] > 0].any()
    assert not decoder[inputs['decoder_segment_ids'] > 0].any()


def shift(values: np.ndarray, sizes: np.ndarray) -> np.ndarray:
  """Rows with their padding moved from the right to the left."""
  return np.stack([np.roll(row, len(row) - size) for row, size in zip(values, sizes, strict=True)])


def check_generation(trunk: nn.Module, *, left: bool) -> None:
  """A prompt in one call and then token by token: the logits of one whole pass, and unused slots change nothing."""
  inputs = make_inputs(decoder=((9,), (9,), (9,), (9,)))
  full = program(trunk)(**inputs)['logits']
  params = draw_params(trunk)
  sizes = np.array([4, 1, 3, 2])
  tokens, real = inputs['decoder_tokens'], np.arange(4) < sizes[:, None]
  prompt, segments, positions = np.where(real, tokens[:, :4], 0), real.astype(np.int32), np.arange(4) * real
  encoder, encoder_segments = inputs['encoder_tokens'], inputs['encoder_segment_ids']
  if left:
    prompt, segments, positions = (shift(value, sizes) for value in (prompt, segments, positions))
    lengths = (encoder_segments > 0).sum(axis=1)
    encoder, encoder_segments = shift(encoder, lengths), shift(encoder_segments, lengths)

  @jax.jit
  def start():
    hidden = trunk.apply({'params': params}, encoder, segment_ids=encoder_segments, method='encode')
    given = {'encoder_hidden': hidden, 'encoder_segment_ids': encoder_segments}
    return trunk.apply({'params': params}, 4, 11, **given, method='init_cache')

  @jax.jit
  def step(tokens, cache, segment_ids, positions):
    given = {'segment_ids': segment_ids, 'positions': positions}
    return trunk.apply({'params': params}, tokens, cache, **given, method='decode_step')

  cache = start()
  logits, after = step(prompt, cache, segments, positions)
  logits = np.asarray(logits)
  assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, cache)
  found = logits[real] if not left else np.concatenate([row[4 - n :] for row, n in zip(logits, sizes, strict=True)])
  assert tiny.worst(found, full[:, :4][real]) < TOLERANCE
  for number in range(5):
    places = sizes + number
    given = tokens[np.arange(4), places][:, None]
    logits, after = step(given, after, np.ones((4, 1), np.int32), places[:, None])
    assert tiny.worst(logits[:, 0], full[np.arange(4), places]) < TOLERANCE, number
  assert int(after['index']) == 9


def check_executions(trunk: nn.Module) -> None:
  """Unrolled and rematerialised layers compute the same loss and gradient, with dropout."""
  inputs, params, results = make_inputs(*PACKED), draw_params(trunk), []
  for execution in (Execution(), Execution(layers='loop', remat='dots')):
    own = trunk.clone(execution=execution)

    def loss_of(params, own=own):
      # bits of this generator are quicker to compile
      rngs = {'dropout': jax.random.key(0, impl='rbg')}
      out = own.apply({'params': params}, **inputs, train=True, rngs=rngs)
      logits = own.apply({'params': params}, out['hidden'], method='attend')
      return jnp.square(logits * (inputs['decoder_segment_ids'] > 0)[..., None]).mean()

    results.append(jax.jit(jax.value_and_grad(loss_of))(params))
  (loss, gradient), (other_loss, other_gradient) = results
  assert tiny.worst(other_loss, loss) < 1e-6
  error, where = tiny.gradient_error(other_gradient, gradient)
  assert error < TOLERANCE, where


def main() -> None:
  for name in sys.argv[1:] or CASES:
    np.savez_compressed(peers.REFERENCES / f'{name}.npz', **compute(name))
    print(f'{name}.npz: {(peers.REFERENCES / f"{name}.npz").stat().st_size:,} bytes')


if __name__ == '__main__':
  main()
