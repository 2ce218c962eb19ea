"""XLNet: parity with Hugging Face, who sees whom in each stream, the memory, reversed rows, packing, the last token."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.adapters import classify
from plm_jax.core.types import Execution
from plm_jax.models import xlnet
from plm_jax.noise import permutation
from plm_jax.weights.architectures import xlnet as weights
from tests import tiny
from tests.models import peers, xlnet_peer

TOLERANCE = 1e-5
SIZES = {'hidden_dim': 32, 'num_layers': 3, 'num_heads': 2, 'mlp_dim': 64, 'dropout': 0.0, 'attention_dropout': 0.0}


@functools.cache
def make_trunk(memory: int = 8, reuse: int | None = None, execution: Execution = tiny.PLAIN, **fields) -> xlnet.Xlnet:
  overrides = SIZES | {'memory_length': memory, 'reuse_length': reuse} | fields
  return xlnet.make(vocab_size=tiny.VOCAB.size, variant='tiny', overrides=overrides, execution=execution)


@functools.cache
def params_of():
  tokens = jnp.ones((1, 4), jnp.int32)
  variables = jax.eval_shape(lambda key: make_trunk().init(key, tokens, segment_ids=tokens), jax.random.key(0))
  return tiny.draw(nn.unbox(variables['params']))


@functools.cache
def compiled(trunk: xlnet.Xlnet):
  return jax.jit(lambda params, inputs: trunk.apply({'params': params}, **inputs))


def run(trunk: xlnet.Xlnet, tokens, **inputs):
  tokens = jnp.asarray(tokens)
  inputs = {'tokens': tokens, 'segment_ids': jnp.ones_like(tokens)} | {k: v for k, v in inputs.items() if v is not None}
  return jax.tree.map(np.asarray, compiled(trunk)(params_of(), inputs))


def text(rows: int, length: int, seed: int = 0) -> np.ndarray:
  return np.random.default_rng(seed).integers(len(tiny.VOCAB.special_ids), tiny.VOCAB.size, (rows, length))


# Parity -------------------------------------------------------------------------------------------------------------


def check(ours: xlnet_peer.Outcome, theirs: xlnet_peer.Outcome) -> None:
  (numbers, gradient), (their_numbers, their_gradient) = ours, theirs
  assert numbers.keys() == their_numbers.keys()
  for key, value in numbers.items():
    assert tiny.worst(value, their_numbers[key]) < TOLERANCE, key
  assert gradient.keys() == their_gradient.keys()
  error, where = tiny.gradient_error(dict(gradient), {name: their_gradient[name] for name in gradient})
  assert error < TOLERANCE, where


@pytest.mark.turns
@pytest.mark.parametrize('case', xlnet_peer.CASES)
def test_equals_hugging_face(case):
  pytest.importorskip('torch')
  pytest.importorskip('transformers')
  check(xlnet_peer.run_ours(case), xlnet_peer.run_theirs(case))


@pytest.mark.parametrize('case', xlnet_peer.CASES)
def test_equals_the_stored_numbers_of_hugging_face(case):
  stored = peers.read('xlnet')
  numbers, gradient = xlnet_peer.run_ours(case)
  for key, value in numbers.items():
    assert tiny.worst(value, stored[f'{case}/{key}']) < TOLERANCE, key
  summaries = stored[f'{case}/gradient']
  whole = np.sqrt((summaries[:, 0] ** 2).sum())
  assert len(summaries) == len(gradient)
  for tensor, a, b in zip(sorted(gradient), peers.summaries(gradient), summaries, strict=True):
    limit = TOLERANCE * max(b[0], 1e-3 * whole) * np.sqrt(gradient[tensor].size)
    np.testing.assert_allclose(a, b, rtol=0, atol=limit, err_msg=tensor)


def test_the_stored_numbers_are_not_stale():
  pytest.importorskip('torch')
  pytest.importorskip('transformers')
  stored, computed = peers.read('xlnet'), xlnet_peer.compute()
  assert stored.keys() == computed.keys()
  for key in stored:
    np.testing.assert_allclose(stored[key], computed[key], rtol=1e-5, atol=1e-6, err_msg=key)


def test_classifier_equals_hugging_face():
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  inputs = xlnet_peer.make_inputs('content')
  sizes = np.asarray(inputs['segment_ids']).sum(axis=1)
  # theirs reads the last position, so padding stands on the left
  batch = {
    name: jnp.asarray([np.roll(row, xlnet_peer.LENGTH - size) for row, size in zip(value, sizes, strict=True)])
    for name, value in inputs.items()
  }
  label = np.array([2, 0, 1, 2])
  batch |= {'label': jnp.asarray(label), 'row_weight': jnp.ones(4)}
  task = classify.make(trunk=xlnet_peer.TRUNK, vocab=tiny.VOCAB, classes=3)
  params = peers.draw_params(task, batch)
  loss, gradient = tiny.loss_and_gradient(task, params, batch)
  state = xlnet_peer.names(params, ('ForSequenceClassification',))
  kind = transformers.XLNetForSequenceClassification
  model = peers.load(xlnet_peer.make_peer(kind, num_labels=3, summary_last_dropout=0.0), state)
  out = model(
    torch.tensor(np.asarray(batch['tokens'])).long(),
    attention_mask=torch.tensor(np.asarray(batch['segment_ids'])).double(),
    token_type_ids=torch.tensor(np.asarray(batch['type_ids'])).long(),
    labels=torch.tensor(label),
  )
  out.loss.backward()
  assert tiny.worst(loss.value, out.loss.detach().numpy()) < TOLERANCE
  ours = xlnet_peer.names(gradient, ('ForSequenceClassification',))
  theirs = {
    name: np.zeros(value.shape) if value.grad is None else value.grad.numpy()
    for name, value in model.named_parameters()
  }
  error, where = tiny.gradient_error(ours, {name: theirs[name] for name in ours})
  assert error < TOLERANCE, where


# Names and configs of releases --------------------------------------------------------------------------------------


def test_every_tensor_goes_there_and_back():
  flat = {
    jax.tree_util.keystr(path, simple=True, separator='/'): np.asarray(leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(xlnet_peer.draw_params())
  }
  entries = weights.entries(xlnet_peer.TRUNK, ('lm',))
  tensors = xlnet_peer.names(xlnet_peer.draw_params())
  again = peers.to_ours(entries, tensors, {name: x.shape for name, x in flat.items()})
  assert again.keys() == flat.keys()
  assert all(np.array_equal(again[name], flat[name]) for name in flat)


def test_config_goes_there_and_back():
  trunk = xlnet_peer.TRUNK
  theirs = weights.write_config(trunk, ('lm',)) | {'mem_len': xlnet_peer.MEMORY, 'reuse_len': xlnet_peer.REUSE}
  assert xlnet.make(**weights.read_config(theirs)) == trunk


@pytest.mark.parametrize(
  ('field', 'value'), [('untie_r', False), ('attn_type', 'uni'), ('ff_activation', 'prelu'), ('clamp_len', 5)]
)
def test_another_structure_is_refused(field, value):
  with pytest.raises(ValueError, match=f'{field}.*{value!r}'):
    weights.read_config(weights.write_config(xlnet_peer.TRUNK, ()) | {field: value})


# Who sees whom ------------------------------------------------------------------------------------------------------


def test_order_2_4_3_1():
  """Tokens w1 to w4 in the order w2, w4, w3, w1: w3 is predicted from w2 and w4 alone, and so on."""
  expected = {2: set(), 4: {2}, 3: {2, 4}, 1: {2, 3, 4}}
  ranks = jnp.array([3, 0, 2, 1])
  mask = permutation.visible(ranks, jnp.ones(4, bool), jnp.zeros(4, bool), boundary=0)
  tokens = np.array([[10, 20, 30, 40]])
  trunk, places = make_trunk(), jnp.arange(4)[None]
  before = run(trunk, tokens, permutation_mask=mask[None], target_positions=places)
  changed, content_changed = {place: set() for place in range(1, 5)}, {place: set() for place in range(1, 5)}
  for token in range(1, 5):
    other = tokens.copy()
    other[0, token - 1] = 50
    after = run(trunk, other, permutation_mask=mask[None], target_positions=places)
    for place in range(1, 5):
      if not np.array_equal(before['queries'][0, place - 1], after['queries'][0, place - 1]):
        changed[place].add(token)
      if not np.array_equal(before['hidden'][0, place - 1], after['hidden'][0, place - 1]):
        content_changed[place].add(token)
  assert changed == expected
  assert content_changed == {place: {place, *seen} for place, seen in expected.items()}

  def queries_of(params):
    inputs = {'segment_ids': jnp.ones((1, 4), jnp.int32), 'permutation_mask': mask[None], 'target_positions': places}
    return trunk.apply({'params': params}, jnp.asarray(tokens), **inputs)['queries'][0] ** 3

  jacobian = jax.jit(jax.jacrev(lambda params: queries_of(params).sum(axis=-1)))(params_of())
  reached = np.abs(jacobian['token_embed']['table'][:, [10, 20, 30, 40]]).max(axis=-1) > 0  # [place, token]
  assert {place: {token for token in range(1, 5) if reached[place - 1, token - 1]} for place in expected} == expected


def test_a_token_changes_nothing_that_may_not_see_it():
  length, boundary = 24, 12
  ids = text(1, length)[0]
  functional = np.isin(np.arange(length), [17, 22, 23])
  targets = np.random.default_rng(1).random(length) < 0.4
  targets &= ~functional
  ranks = permutation.draw_ranks(jax.random.key(3), length, boundary=boundary)
  mask = np.asarray(permutation.visible(ranks, jnp.asarray(targets), jnp.asarray(functional), boundary=boundary))
  places = np.flatnonzero(targets)
  # row 0 as it is; in row 1 + j, token j is another one
  tokens = np.repeat(ids[None], length + 1, axis=0)
  tokens[1 + np.arange(length), np.arange(length)] = (ids - 6) % 54 + 7
  rows = length + 1
  out = run(
    make_trunk(),
    tokens,
    permutation_mask=jnp.broadcast_to(mask, (rows, length, length)),
    target_positions=jnp.broadcast_to(places, (rows, len(places))),
  )
  for states, sees in ((out['queries'], mask[places]), (out['hidden'], mask | np.eye(length, dtype=bool))):
    changed = np.abs(states[1:] - states[0]).max(axis=-1).T > 0  # [query, token]
    np.testing.assert_array_equal(changed, sees)


def test_a_query_stream_without_a_mask_is_refused():
  with pytest.raises(ValueError, match=r'target_positions.*permutation_mask'):
    run(make_trunk(), text(1, 4), target_positions=jnp.zeros((1, 1), jnp.int32))


def test_without_a_mask_every_token_sees_every_other():
  tokens = np.repeat(text(1, 6), 7, axis=0)
  tokens[1 + np.arange(6), np.arange(6)] = 60
  hidden = run(make_trunk(), tokens)['hidden']
  assert (np.abs(hidden[1:] - hidden[0]).max(axis=-1) > 0).all()


# Memory -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('sign', [False, True])
def test_windows_with_a_memory_equal_one_long_window(sign):
  """Windows of 8 that move by 4: their first halves see the past and themselves, the second half everything before."""
  tokens, trunk = text(2, 20), make_trunk(memory=12, reuse=4)
  flags = jnp.array([sign, not sign])
  blocks = np.arange(20) // 4
  long_mask = jnp.broadcast_to(blocks[:, None] >= blocks[None, :], (2, 20, 20))
  places = jnp.array([[12, 15, 18], [13, 17, 19]])
  hidden_from = long_mask.at[:, :, 17].set(False).at[:, 18, 13].set(False)
  types = np.where(np.arange(20) < 16, 0, 1 + np.arange(20) % 2)[None].repeat(2, axis=0)
  arguments = {'permutation_mask': hidden_from, 'target_positions': places, 'reversed': flags}
  whole = run(make_trunk(memory=0), tokens, type_ids=jnp.asarray(types), **arguments)
  carry = trunk.init_carry(2)
  for start in (0, 4, 8, 12):
    part = slice(start, start + 8)
    out = run(
      trunk,
      tokens[:, part],
      type_ids=jnp.asarray(types[:, part]),
      permutation_mask=hidden_from[:, part, part],
      target_positions=jnp.clip(places - start, 0, 7),
      carry=carry,
      reversed=flags,
    )
    carry = out['carry']
    assert (carry['segment_ids'] > 0).sum(axis=1).tolist() == [min(start + 4, 12)] * 2
    if start < 12:  # its second half is read again by the next window
      assert tiny.worst(out['hidden'][:, :4], whole['hidden'][:, start : start + 4]) < TOLERANCE
  assert tiny.worst(out['hidden'], whole['hidden'][:, 12:]) < TOLERANCE
  assert tiny.worst(out['queries'], whole['queries']) < TOLERANCE


def test_a_memory_that_is_too_short_forgets():
  tokens = text(1, 12)
  long, short = make_trunk(memory=8, reuse=4), make_trunk(memory=4, reuse=4)
  states = {}
  for name, trunk in (('long', long), ('short', short)):
    carry = trunk.init_carry(1)
    for start in (0, 4, 8):
      out = run(trunk, tokens[:, start : start + 4], carry=carry)
      carry = out['carry']
      states[name, start] = out['hidden']
    assert carry['states'].shape == (1, 3, trunk.config.memory_length, 32)
  assert tiny.worst(states['long', 0], states['short', 0]) < TOLERANCE  # sums of as many zeros more, in another order
  assert tiny.worst(states['long', 4], states['short', 4]) < TOLERANCE
  assert tiny.worst(states['long', 8], states['short', 8]) > 1e-3


def test_an_empty_memory_is_no_memory():
  tokens = text(2, 6)
  without, empty = run(make_trunk(), tokens), run(make_trunk(), tokens, carry=make_trunk().init_carry(2))
  assert tiny.worst(without['hidden'], empty['hidden']) < TOLERANCE
  assert tiny.worst(without['carry'], empty['carry']) < TOLERANCE


def test_memory_holds_what_each_block_read_and_passes_no_gradient():
  tokens, trunk = jnp.asarray(text(1, 6)), make_trunk(memory=5, reuse=3)
  ones = jnp.ones_like(tokens)
  out = run(trunk, tokens)
  assert np.array_equal(out['carry']['states'][0, :, 2:], out['layers'][:3, 0, :3])
  assert not out['carry']['states'][0, :, :2].any()

  @jax.jit
  @jax.grad
  def through_memory(params):
    carry = trunk.apply({'params': params}, tokens, segment_ids=ones)['carry']
    return (carry['states'] ** 2).sum()

  assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(through_memory(params_of())))


def test_a_row_of_its_own_memory_is_alone_in_it():
  """Zeroing the carry of a row, as a step does at a reset, empties its memory and no other."""
  tokens, trunk = text(2, 8), make_trunk()
  carry = run(trunk, tokens)['carry']
  emptied = jax.tree.map(
    lambda leaf: leaf * np.array([1, 0]).reshape(-1, *[1] * (leaf.ndim - 1)).astype(leaf.dtype), carry
  )
  full, half, none = (run(trunk, tokens, carry=c)['hidden'] for c in (carry, emptied, trunk.init_carry(2)))
  assert np.array_equal(half[0], full[0]) and np.array_equal(half[1], none[1])
  assert np.abs(full[1] - none[1]).max() > 1e-3


@pytest.mark.parametrize('execution', [Execution(layers='loop'), Execution(remat='full'), Execution(remat='dots')])
def test_execution_changes_nothing(execution):
  tokens = text(2, 8)
  carry = run(make_trunk(), tokens)['carry']
  mask, places = jnp.tril(jnp.ones((2, 8, 8), bool), -1).at[:, :, 0].set(True), jnp.array([[3, 5], [7, 1]])
  inputs = {'permutation_mask': mask, 'target_positions': places, 'carry': carry}
  one, other = run(make_trunk(), tokens, **inputs), run(make_trunk(execution=execution), tokens, **inputs)
  for name in ('hidden', 'queries', 'layers'):
    assert tiny.worst(one[name], other[name]) < TOLERANCE, name


def test_the_memory_has_the_dtype_of_activations():
  trunk = make_trunk(execution=Execution(dtype='bfloat16'))
  carry = trunk.init_carry(1)
  after = run(trunk, text(1, 8), carry=carry)['carry']
  assert jax.tree.map(lambda leaf: leaf.dtype, after) == jax.tree.map(lambda leaf: leaf.dtype, carry)


# Rows ---------------------------------------------------------------------------------------------------------------


def test_a_reversed_row_is_read_as_the_row_is():
  tokens, types = text(2, 9), np.sort(np.arange(18).reshape(2, 9) % 2, axis=1)
  forward = run(make_trunk(), tokens, type_ids=jnp.asarray(types))['hidden']
  flipped = {'type_ids': jnp.asarray(types[:, ::-1])}
  backward = run(make_trunk(), tokens[:, ::-1], **flipped, reversed=jnp.array([True, False]))['hidden'][:, ::-1]
  assert tiny.worst(backward[0], forward[0]) < TOLERANCE
  assert tiny.worst(backward[1], forward[1]) > 1e-2


def test_packed_documents_equal_documents_alone():
  batch = tiny.make_batch()
  tokens, segments, types = (np.asarray(batch[name]) for name in ('tokens', 'segment_ids', 'type_ids'))
  packed = run(make_trunk(), tokens, segment_ids=jnp.asarray(segments), type_ids=jnp.asarray(types))['hidden']
  for row, document in [(1, 1), (1, 2), (3, 1), (3, 2), (3, 3)]:
    places = np.flatnonzero(segments[row] == document)
    alone = run(make_trunk(), tokens[row, places][None], type_ids=jnp.asarray(types[row, places][None]))['hidden']
    assert tiny.worst(packed[row, places], alone[0]) < TOLERANCE, (row, document)


def test_content_of_padding_changes_nothing():
  batch = tiny.make_batch()
  real = np.asarray(batch['segment_ids'] > 0)
  inputs = {'segment_ids': batch['segment_ids'], 'type_ids': batch['type_ids']}
  clean = run(make_trunk(), batch['tokens'], **inputs)['hidden']
  dirty = run(make_trunk(), jnp.where(real, batch['tokens'], 50), **inputs)['hidden']
  assert np.array_equal(clean[real], dirty[real])


def test_only_equality_of_types_counts():
  tokens, types = text(1, 8), np.array([[0, 0, 0, 1, 1, 1, 1, 2]])
  one = run(make_trunk(), tokens, type_ids=jnp.asarray(types))['hidden']
  other = run(make_trunk(), tokens, type_ids=jnp.asarray((types + 1) % 3))['hidden']
  alike = run(make_trunk(), tokens, type_ids=jnp.zeros((1, 8), jnp.int32))['hidden']
  assert np.array_equal(one, other)
  assert np.abs(one - alike).max() > 1e-3
  assert tiny.worst(alike, run(make_trunk(), tokens)['hidden']) < TOLERANCE


def test_pooling_reads_the_last_token_wherever_padding_stands():
  hidden = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5, 32)), jnp.float32)
  segments = jnp.array([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 2, 2, 2, 0]])
  kernel, bias = (jnp.asarray(np.random.default_rng(1).normal(size=shape), jnp.float32) for shape in ((32, 32), (32,)))
  params = {'pooler': {'kernel': kernel, 'bias': bias}}
  pooled = make_trunk().apply({'params': params}, hidden, segments, method='pool')
  expected = np.tanh(np.asarray(hidden)[np.arange(3), [2, 4, 3]] @ kernel + bias)
  assert tiny.worst(pooled, expected) < TOLERANCE


def test_kernels_and_vectors_start_with_the_published_deviation():
  trunk = xlnet.make(vocab_size=500, variant='tiny', overrides={'num_layers': 8})
  tokens = jnp.ones((1, 4), jnp.int32)
  params = jax.jit(lambda key: trunk.init(key, tokens, segment_ids=tokens)['params'])(jax.random.key(0))
  layers = params['layers']
  for leaf in (layers['query']['kernel'], layers['out']['kernel'], layers['types'], layers['content_bias']):
    assert float(leaf.value.std()) == pytest.approx(0.02, rel=0.05)
  assert float(params['token_embed']['table'].value.std()) == pytest.approx(0.02, rel=0.02)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'hidden_dim': 30, 'num_heads': 4}, r'hidden_dim\W30\b.*num_heads\W4\b'),
    ({'hidden_dim': 33, 'num_heads': 1}, r'hidden_dim\W33\b'),
    ({'memory_length': -1}, r'memory_length\W-1'),
    ({'reuse_length': 0}, r'reuse_length\W0'),
  ],
)
def test_wrong_settings_are_refused(fields, message):
  with pytest.raises(ValueError, match=message):
    xlnet.make(vocab_size=61, variant='tiny', overrides=fields)
