"""Attention in tiles with dropout, biases and several devices. `test_fused.WAYS` tests it without dropout."""

import functools
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.core import sharding
from plm_jax.layers import attention, dropout, tiled
from plm_jax.layers.masks import Mask
from tests import tiny
from tests.layers.test_fused import BIASES, HEAD_DIM, HEADS, LENGTH, MASKS, ahead, draw, operands

pytestmark = pytest.mark.turns

RATE = 0.3
KEY = jax.random.key(7)
attend = functools.partial(tiled.attend, interpret=True, largest=128)  # two tiles each way


def keep(rng: jax.Array, *, rows: int, heads: int, queries: int, keys: int, rate: float) -> jax.Array:
  """Compute the weights that dropout keeps: bool[b, h, l, m]."""
  words = tiled.draw(rng, rows=rows, heads=heads, keys=keys)
  index = jnp.arange(queries, dtype=jnp.int32)[:, None]
  return tiled.keep_mask((words[:, :, :1], words[:, :, 1:]), index, cut=dropout.cut_of(rate))


def formula(query, key, value, *, mask, bias=None):
  """Compute attention by its formula, with the dropout of the kernel."""
  shares = attention.weights(query, key, mask=mask, bias=bias)
  rows, heads, queries, keys = shares.shape
  where = keep(KEY, rows=rows, heads=heads, queries=queries, keys=keys, rate=RATE)
  rounded = dropout.cut_of(RATE) / 65536
  return jnp.einsum('bhlm,bmhk->blhk', jnp.where(where, shares / (1 - rounded), 0), value)


@pytest.mark.parametrize(
  ('mask', 'bias'), [*((mask, 'none') for mask in MASKS), *(('prefix', name) for name in BIASES if name != 'none')]
)
def test_output_and_gradients_with_dropout_equal_the_formula(mask, bias):
  args = operands(MASKS[mask]) + (() if BIASES[bias] is None else (BIASES[bias],))
  target = draw(4, LENGTH, HEADS, HEAD_DIM, seed=9)

  def found(function, **more):
    def loss(args):
      out = function(*args[:3], mask=MASKS[mask], bias=args[3] if args[3:] else None, **more)
      return (out * target).sum(), out

    return jax.jit(jax.value_and_grad(loss, has_aux=True))(args)

  (_, out), gradients = found(attend, dropout=RATE, rng=KEY)
  (_, expected), expected_gradients = found(formula)
  assert tiny.worst(out, expected) < 3e-6
  assert tiny.worst(out, attend(*args[:3], mask=MASKS[mask], bias=BIASES[bias])) > 0.1
  assert len(gradients) == len(args)
  for gradient, other in zip(gradients, expected_gradients, strict=True):
    assert gradient.shape == other.shape
    assert np.linalg.norm(gradient - other) < 3e-6 * np.linalg.norm(other)


@pytest.mark.parametrize('largest', [128, 256])
def test_what_the_kernel_drops_can_be_told_outside(largest):
  """Build equal weights, and values that encode their position."""
  query = jnp.zeros((2, 200, 3, 256))
  key, value = jnp.zeros((2, 256, 3, 256)), jnp.broadcast_to(jnp.eye(256)[None, :, None], (2, 256, 3, 256))
  mask = Mask(jnp.ones((2, 200), jnp.int32), jnp.ones((2, 256), jnp.int32))
  run = functools.partial(attend, largest=largest)
  out = run(query, key, value, mask=mask, dropout=RATE, rng=KEY)  # [b, l, h, m], 0 or 1 / 256 / (1 - rate)
  where = keep(KEY, rows=2, heads=3, queries=200, keys=256, rate=RATE)
  assert tiny.same(jnp.swapaxes(out, 1, 2) > 0, where)
  grown = 65536 / (65536 - dropout.cut_of(RATE))
  np.testing.assert_allclose(np.asarray(out)[np.asarray(out) > 0], grown / 256, rtol=1e-6)


@pytest.mark.parametrize('rate', [0.1, 0.5, 0.9])
def test_rate(rate):
  where = np.asarray(keep(KEY, rows=8, heads=4, queries=256, keys=512, rate=rate))
  deviation = np.sqrt(rate * (1 - rate))
  assert abs(where.mean() - (1 - rate)) < 4 * deviation / np.sqrt(where.size) + 2**-17
  for axis in range(4):  # nor is there a row, head, query or key that keeps more than another
    rest = tuple(other for other in range(4) if other != axis)
    means = where.mean(axis=rest)
    score = (means - (1 - rate)) / (deviation / np.sqrt(where.size / len(means)))
    assert abs(score).max() < 5
    assert 0.5 < score.std() < 1.5 or len(score) < 32


def test_draws_are_independent():
  """Compare correlations of rows, heads, queries and keys with fair coins."""
  where = np.asarray(keep(KEY, rows=8, heads=8, queries=128, keys=256, rate=0.5), np.float32) * 2 - 1
  for axis in range(4):
    for step in (1, 2, 3, where.shape[axis] // 2):
      near, far = where.take(range(step, where.shape[axis]), axis), where.take(range(where.shape[axis] - step), axis)
      assert abs((near * far).mean()) * np.sqrt(near.size) < 4.5
  for axis in (2, 3):  # all pairs of queries, all pairs of keys
    rows = np.moveaxis(where, axis, 0).reshape(where.shape[axis], -1)
    pairs = (rows @ rows.T / np.sqrt(rows.shape[1]))[np.triu_indices(len(rows), 1)]
    assert abs(pairs).max() < 6
    assert 0.97 < pairs.std() < 1.03
  blocks = where[:, :, 1:, 1:] * where[:, :, :-1, 1:] * where[:, :, 1:, :-1] * where[:, :, :-1, :-1]
  assert abs(blocks.mean()) * np.sqrt(blocks.size) < 4.5


@pytest.mark.parametrize('word', [0, 1])
def test_each_bit_of_a_word_decides_half_of_the_draws(word):
  words = tiled.draw(KEY, rows=1, heads=1, keys=20_000)[0, 0]
  index = jnp.int32(77)
  before = np.asarray(tiled.keep_mask(tuple(words), index, cut=32768))
  for bit in range(32):
    other = words.at[word].set(words[word] ^ jnp.int32(-(2**31) if bit == 31 else 2**bit))
    after = np.asarray(tiled.keep_mask(tuple(other), index, cut=32768))
    assert 0.47 < (before != after).mean() < 0.53


def test_another_key_draws_otherwise_and_no_rate_draws_nothing():
  mask, args = MASKS['causal'], operands(MASKS['causal'])
  one, same, other = (attend(*args, mask=mask, dropout=RATE, rng=jax.random.key(k)) for k in (1, 1, 2))
  assert tiny.same(one, same)
  assert not tiny.same(one, other)
  assert tiny.same(attend(*args, mask=mask, dropout=0.0, rng=KEY), attend(*args, mask=mask))
  with pytest.raises(ValueError, match=r'\[0, 1\)'):
    attend(*args, mask=mask, dropout=1.0, rng=KEY)


@pytest.mark.parametrize('size', [1.0, 1e4])
def test_a_query_that_sees_nothing_gives_zeros_and_finite_gradients(size):
  ids = jnp.zeros((2, 140), jnp.int32).at[0, :100].set(1)
  args = [draw(2, 140, 2, HEAD_DIM, seed=i) * size for i in range(3)]

  def loss(args):
    out = attend(*args, mask=Mask(ids, ids, causal=True), dropout=RATE, rng=KEY)
    return jnp.square(out).sum(), out

  (_, out), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(args)
  assert np.isfinite(out).all()
  assert (np.asarray(out)[np.asarray(ids) == 0] == 0).all()
  for gradient in gradients:
    assert np.isfinite(gradient).all()
    assert (np.asarray(gradient)[np.asarray(ids) == 0] == 0).all()


@pytest.mark.skipif(jax.device_count() < 4, reason='needs four devices')
@pytest.mark.parametrize(
  ('mesh', 'bias'),
  [
    ({'data': 4}, 'shared by rows'),
    ({'data': 2, 'model': 2}, 'shared by rows'),
    ({'data': 2, 'model': 2}, 'of each row'),
    ({'data': 1, 'model': 4}, 'none'),
  ],
)
def test_devices_draw_and_add_up_what_one_would(mesh, bias):
  """Cut rows and heads, with shared keys and a shared bias."""
  layout = sharding.make_layout(sharding.make_mesh(mesh), 'tensor')
  args = [draw(4, 20, 4, HEAD_DIM), draw(4, 20, 2, HEAD_DIM, seed=1), draw(4, 20, 2, HEAD_DIM, seed=2)]
  args += [] if bias == 'none' else [draw(1 if bias == 'shared by rows' else 4, 4, 20, 20)]
  mask = Mask(
    MASKS['packed'].query_segments[:, :20], MASKS['packed'].key_segments[:, :20], prefix=jnp.arange(4), causal=True
  )

  def loss(args):
    more = {'bias': args[3]} if args[3:] else {}
    return jnp.square(attend(*args[:3], mask=mask, dropout=RATE, rng=KEY, **more)).sum()

  run = jax.value_and_grad(loss)
  expected, expected_gradients = jax.jit(run)(args)
  with sharding.use(layout):
    found, gradients = jax.jit(run)(args)
  assert float(found) == pytest.approx(float(expected), rel=1e-5)
  for gradient, other in zip(gradients, expected_gradients, strict=True):
    assert np.linalg.norm(gradient - other) < 3e-6 * np.linalg.norm(other)


# The compiled forms.


@pytest.mark.parametrize(
  ('bias', 'length', 'kernels'), [('none', 256, 2), ('of each row', 1024, 3), ('shared', 512, 3), ('shared', 1024, 4)]
)
def test_it_lowers_for_a_tpu(bias, length, kernels):
  """Lower the forward kernel and the three backward kernels without a TPU."""
  rows = {'none': 0, 'shared': 1}.get(bias, 2)
  ids = jnp.ones((2, length), jnp.int32)
  shape = jax.ShapeDtypeStruct((2, length, 2, 64), jnp.bfloat16)
  args = [shape] * 3 + ([jax.ShapeDtypeStruct((rows, 2, length, length), jnp.float32)] if rows else [])

  def loss(args):
    bias = args[3] if args[3:] else None
    mask = Mask(ids, ids, causal=True, window=99, prefix=jnp.zeros(2, jnp.int32), allowed=jnp.ones((2, 1, 1), bool))
    out = tiled.attend(*args[:3], mask=mask, bias=bias, dropout=0.1, rng=KEY)
    return out.astype(jnp.float32).sum()

  lowered = jax.jit(jax.grad(loss)).trace(args).lower(lowering_platforms=('tpu',))
  assert lowered.as_text().count('tpu_custom_call') == kernels


@pytest.mark.plan
@pytest.mark.skipif(importlib.util.find_spec('libtpu') is None, reason='needs libtpu, a compiler for TPUs')
def test_it_compiles_for_tpus(tmp_path):
  """Compile ahead of time for TPUs in a separate process."""
  found = ahead(COMPILE, folder=tmp_path)
  assert set(found) == {'one', 'mesh'}
  (needed, kernels), (each, same) = (map(int, found[name].split()) for name in ('one', 'mesh'))
  assert needed < 0.5 * 4 * 4 * 1024**2 * 2  # bytes, of the weights once
  assert each < 0.5 * needed
  assert kernels == same == 3  # forward; backward to keys and values; to queries


# prints the bytes that attention of a training step works in, and its kernels, on one chip and cut over four
COMPILE = """
import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec
from plm_jax.core import sharding
from plm_jax.layers.attention import attend
from plm_jax.layers.masks import Mask

devices = topologies.get_topology_desc('v5e:2x2', platform='tpu').devices
for mesh in ('one', 'mesh'):
  part = devices[:1] if mesh == 'one' else devices
  layout = sharding.make_layout(sharding.make_mesh({'data': -1, 'model': len(part) // 2 or 1}, part), 'tensor',
                                described=True)
  place = lambda *axes: NamedSharding(layout.mesh, PartitionSpec(*axes))

  def loss(args, ids, rng):
    out = attend(*args, mask=Mask(ids, ids, causal=True), dropout=0.1, rng=rng, implementation='tiled')
    return out.astype(jnp.float32).sum()

  heads = [jax.ShapeDtypeStruct((4, 1024, 4, 64), jnp.bfloat16, sharding=place('data', None, 'model'))] * 3
  ids = jax.ShapeDtypeStruct((4, 1024), jnp.int32, sharding=place('data'))
  key = jax.eval_shape(lambda: jax.random.key(0))
  with sharding.use(layout):
    compiled = jax.jit(jax.grad(loss)).lower(heads, ids, key).compile()
  kernels = compiled.as_text().count('tpu_custom_call')
  print(f'{mesh}: {compiled.memory_analysis().temp_size_in_bytes} {kernels}')
"""


@pytest.mark.skipif(jax.device_count() != 4, reason='needs four (simulated) devices')
def test_rows_that_devices_compute_apart_have_the_words_of_one():
  def words(x, key):
    return x.sum(), tiled.draw(key, rows=x.shape[0], heads=2, keys=8)

  x = jnp.ones((8, 3))
  layout = sharding.make_layout(sharding.make_mesh({'data': 4}), 'data')
  with sharding.use(layout):
    _, apart = jax.jit(lambda x, key: sharding.sum_over_devices(words, x, key, parts=1))(x, KEY)
  assert tiny.same(apart, words(x, KEY)[1])
