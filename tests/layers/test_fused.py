"""Every implementation of attention against the plain formula: outputs, gradients, unsupported inputs."""

import dataclasses
import functools
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.core import sharding
from plm_jax.layers import attention, fused, tiled
from plm_jax.layers.masks import Mask, visible
from plm_jax.planning import topology
from tests import conftest, tiny

LENGTH = 150  # two blocks of the TPU kernel, the second mostly padding, and 5 chunks of 32 with a rest
HEADS, HEAD_DIM = 2, 8


def draw(*shape: int, seed: int = 0) -> jax.Array:
  return jnp.asarray(np.random.default_rng([seed, *shape]).normal(size=shape), jnp.float32)


def runs(*lengths: int, length: int = LENGTH) -> np.ndarray:
  """Segment ids of documents of these lengths; a negative one is padding."""
  ids = [np.full(abs(size), number if size > 0 else 0) for number, size in enumerate(lengths, start=1)]
  row = np.concatenate(ids)
  return np.pad(row, (0, length - len(row))).astype(np.int32)


# whole; padded on the right; on the left; packed with padding
ROWS = jnp.asarray(np.stack([runs(LENGTH), runs(101), runs(-20, 130), runs(3, 70, -5, 60)]))
ALLOWED = jnp.asarray(np.random.default_rng(1).random((4, LENGTH, LENGTH)) < 0.5).at[0, 3].set(False)
# the second row looks for a document that the keys lack
CROSS = jnp.asarray(
  np.stack([runs(90, length=90), np.full(90, 7, np.int32), runs(90, length=90), runs(3, 50, length=90)])
)
MASKS = {
  'packed': Mask(ROWS, ROWS),
  'causal': Mask(ROWS, ROWS, causal=True),
  'window': Mask(ROWS, ROWS, causal=True, window=37),
  'cross': Mask(ROWS, CROSS),
  'prefix': Mask(ROWS, ROWS, causal=True, prefix=jnp.array([0, 40, 150, 75])),
  'prefix and window': Mask(ROWS, ROWS, window=9, prefix=jnp.array([0, 40, 150, 75])),
  'allowed': Mask(ROWS, ROWS, allowed=ALLOWED),
}
BIASES = {
  'none': None,
  'shared by rows': draw(1, HEADS, LENGTH, LENGTH),  # T5
  'of each row': draw(4, HEADS, LENGTH, LENGTH),  # DeBERTa, XLNet
  'of each key': draw(1, HEADS, 1, LENGTH),
}
WAYS = {
  'chunked': functools.partial(attention.chunked, chunk=32),
  'flash': functools.partial(fused.flash, interpret=True),
  'tiled': functools.partial(tiled.attend, interpret=True, largest=128),
  'cudnn': functools.partial(fused.cudnn, interpret=True),
}
TAKES = {way: {'packed', 'causal', 'window', 'cross'} if way == 'flash' else set(MASKS) for way in WAYS}


def operands(mask: Mask) -> tuple[jax.Array, jax.Array, jax.Array]:
  queries, keys = mask.query_segments.shape[1], mask.key_segments.shape[1]
  return tuple(draw(4, n, HEADS, HEAD_DIM, seed=i) for i, n in enumerate((queries, keys, keys)))


@functools.cache
def found(way: str, mask: str, bias: str, scale: float | None = None):
  """Compute the output and its gradients by query, key, value and bias."""
  function = WAYS.get(way, attention.plain)
  args = operands(MASKS[mask]) + (() if BIASES[bias] is None else (BIASES[bias],))
  target = draw(4, LENGTH, HEADS, HEAD_DIM, seed=9)

  def loss(args):
    more = {'bias': args[3]} if args[3:] else {}
    out = function(*args[:3], mask=MASKS[mask], scale=scale, **more)
    return (out * target).sum(), out

  (_, out), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(args)
  return out, gradients


def assert_equals_plain(way: str, mask: str, bias: str = 'none', scale: float | None = None) -> None:
  out, gradients = found(way, mask, bias, scale)
  expected, expected_gradients = found('plain', mask, bias, scale)
  assert tiny.worst(out, expected) < 3e-6
  for gradient, other in zip(gradients, expected_gradients, strict=True):
    assert np.linalg.norm(gradient - other) < 3e-6 * np.linalg.norm(other)


@pytest.mark.parametrize(('way', 'mask'), [(way, mask) for way in WAYS for mask in MASKS if mask in TAKES[way]])
def test_equals_the_plain_formula(way, mask):
  assert_equals_plain(way, mask)


@pytest.mark.parametrize('bias', [name for name in BIASES if name != 'none'])
@pytest.mark.parametrize('way', ['chunked', 'tiled', 'cudnn'])
def test_equals_the_plain_formula_with_a_bias(way, bias):
  assert_equals_plain(way, 'causal', bias, 1.0)


def test_scale():
  assert_equals_plain('flash', 'packed', scale=0.1)
  assert tiny.worst(found('flash', 'packed', 'none', 0.1)[0], found('flash', 'packed', 'none')[0]) > 0.1


@pytest.mark.parametrize('way', WAYS)
@pytest.mark.parametrize('mask', ['packed', 'cross'])
def test_a_query_that_sees_nothing_gives_zeros_and_no_gradient(way, mask):
  out, gradients = found(way, mask, 'none')
  blind = np.array(ROWS == 0)
  if mask == 'cross':
    blind |= ~(np.asarray(ROWS)[:, :, None] == np.asarray(CROSS)[:, None, :]).any(-1)
  assert blind.any()
  assert (np.asarray(out)[blind] == 0).all()
  assert (np.asarray(gradients[0])[blind] == 0).all()
  assert all(np.isfinite(gradient).all() for gradient in gradients)
  if mask == 'cross':  # nor do keys that no query sees
    assert (np.asarray(gradients[1])[1] == 0).all()
    assert (np.asarray(gradients[2])[1] == 0).all()


@pytest.mark.parametrize('mask', ['packed', 'causal', 'cross'])
def test_cudnn_gets_no_query_that_sees_nothing(mask, monkeypatch):
  """Check that no row of the mask is empty, for a finite gradient."""
  given = []

  def attention_of_jax(query, key, value, *, mask, **rest):
    given.append(mask)
    return query

  monkeypatch.setattr(jax.nn, 'dot_product_attention', attention_of_jax)
  out = fused.cudnn(*operands(MASKS[mask]), mask=MASKS[mask])
  assert given[0].any(axis=-1).all()
  blind = ~np.asarray(visible(MASKS[mask]).any(axis=-1))
  assert blind.any() and (np.asarray(out)[blind] == 0).all()


def test_half_precision_keeps_its_type():
  args = tuple(x.astype(jnp.bfloat16) for x in operands(MASKS['causal']))
  expected = attention.plain(*operands(MASKS['causal']), mask=MASKS['causal'])
  for way in WAYS.values():
    out = jax.jit(functools.partial(way, mask=MASKS['causal']))(*args)
    assert out.dtype == jnp.bfloat16
    assert tiny.worst(out.astype(jnp.float32), expected) < 0.05


@pytest.mark.skipif(jax.default_backend() != 'gpu', reason='needs a GPU')
@pytest.mark.parametrize(
  ('mask', 'bias'), [*((mask, 'none') for mask in MASKS), *(('causal', bias) for bias in BIASES if bias != 'none')]
)
def test_the_kernel_of_a_gpu_equals_the_plain_formula(mask, bias):
  halves = [x.astype(jnp.bfloat16) for x in operands(MASKS[mask])]
  more = {} if BIASES[bias] is None else {'bias': BIASES[bias].astype(jnp.bfloat16)}
  target = draw(4, LENGTH, HEADS, HEAD_DIM, seed=9)

  def loss(args, function):
    out = function(*args, mask=MASKS[mask], **more).astype(jnp.float32)
    return (out * target).sum(), out

  compiled = jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnums=1)
  (_, out), gradients = compiled(halves, fused.cudnn)
  with jax.default_matmul_precision('highest'):
    (_, expected), others = compiled([x.astype(jnp.float32) for x in halves], attention.plain)
  for one, other in zip((out, *gradients), (expected, *others), strict=True):
    assert np.linalg.norm(one.astype(jnp.float32) - other) < 0.01 * np.linalg.norm(other)


def test_chunks_drop_out_each_with_its_own_bits():
  mask = Mask(jnp.ones((4, LENGTH), jnp.int32), jnp.ones((4, LENGTH), jnp.int32))
  query, key, _ = operands(mask)
  value = jnp.ones((4, LENGTH, HEADS, HEAD_DIM))
  out = attention.chunked(query * 0, key, value, mask=mask, dropout=0.5, rng=jax.random.key(0), chunk=30)
  kept = np.asarray(out)[..., 0]  # twice the share of the keys that were kept
  assert abs(kept.mean() - 1) < 0.02
  parts = kept.reshape(4, 5, 30, HEADS)
  assert all(not np.array_equal(parts[:, 0], parts[:, number]) for number in range(1, 5))


@pytest.mark.parametrize('way', ['xla', *WAYS])
def test_heads_that_share_a_key(way, monkeypatch):
  """Compare shared keys with keys repeated for each head, through `attend`."""
  monkeypatch.setattr(attention, 'choose', lambda *_, **__: (way, 'a test'))
  monkeypatch.setattr(attention, 'chunked', WAYS['chunked'])
  monkeypatch.setattr(fused, 'flash', WAYS['flash'])
  monkeypatch.setattr(tiled, 'attend', WAYS['tiled'])
  monkeypatch.setattr(fused, 'cudnn', WAYS['cudnn'])
  mask = MASKS['causal']
  query, key, value = (draw(4, LENGTH, heads, HEAD_DIM, seed=i) for i, heads in enumerate((6, 2, 2)))
  target = draw(4, LENGTH, 6, HEAD_DIM, seed=9)

  def shared(query, key, value):
    out = attention.attend(query, key, value, mask=mask)
    return (out * target).sum(), out

  def repeated(query, key, value):
    out = attention.plain(query, jnp.repeat(key, 3, axis=2), jnp.repeat(value, 3, axis=2), mask=mask)
    return (out * target).sum(), out

  results = [
    jax.jit(jax.value_and_grad(f, argnums=(0, 1, 2), has_aux=True))(query, key, value) for f in (shared, repeated)
  ]
  ((_, out), gradients), ((_, expected), expected_gradients) = results
  assert tiny.worst(out, expected) < 3e-6
  for gradient, other in zip(gradients, expected_gradients, strict=True):
    assert gradient.shape == other.shape
    assert np.linalg.norm(gradient - other) < 3e-6 * np.linalg.norm(other)


def test_short_rows_are_one_chunk():
  mask = MASKS['causal']
  args = operands(mask)
  rng = jax.random.key(3)
  whole = attention.plain(*args, mask=mask, dropout=0.3, rng=rng)
  assert tiny.same(attention.chunked(*args, mask=mask, dropout=0.3, rng=rng), whole)


# The compiled forms.


@pytest.mark.parametrize('mask', sorted(TAKES['flash']))
@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_the_kernel_lowers_for_a_tpu(mask, dtype):
  """Lower forward and backward passes for TPUs without a TPU."""

  def loss(query, key, value):
    return fused.flash(query, key, value, mask=MASKS[mask]).astype(jnp.float32).sum()

  args = [x.astype(dtype) for x in operands(MASKS[mask])]
  lowered = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(*args).lower(lowering_platforms=('tpu',))
  assert lowered.as_text().count('tpu_custom_call') == 3  # forward; backward to queries; to keys and values


def ahead(program: str, *arguments: str, folder: pathlib.Path) -> dict[str, str]:
  """Run a program that compiles for TPUs and parse its output."""
  # libtpu ends a process at a flag for CPUs
  environment = {name: value for name, value in os.environ.items() if name != 'XLA_FLAGS'}
  done = subprocess.run(
    [sys.executable, '-c', program, *arguments],
    env={**environment, **topology.ENVIRONMENT, 'JAX_PLATFORMS': 'cpu', 'TPU_LOG_DIR': str(folder)},
    cwd=conftest.ROOT,
    capture_output=True,
    text=True,
    timeout=500,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-4000:]
  return dict(line.split(': ') for line in done.stdout.splitlines())


@pytest.mark.plan
@pytest.mark.skipif(importlib.util.find_spec('libtpu') is None, reason='needs libtpu, a compiler for TPUs')
def test_the_kernel_compiles_for_a_tpu(tmp_path):
  """Compile ahead of time for TPUs in a separate process."""
  needed = ahead(COMPILE, *sorted(TAKES['flash']), folder=tmp_path)
  assert len(needed) == 2 * len(TAKES['flash'])
  assert all(0 < int(size) < 0.2 * 4 * 2 * 1024**2 * 4 for size in needed.values())  # bytes, of the weights once


# prints for each mask and type the bytes that a training step's attention works in
COMPILE = """
import sys
import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding
from plm_jax.layers import fused
from plm_jax.layers.masks import Mask

place = SingleDeviceSharding(topologies.get_topology_desc('v5e:2x2', platform='tpu').devices[0])
more = {'causal': {'causal': True}, 'window': {'causal': True, 'window': 37}}
for name in sys.argv[1:]:
  for dtype in (jnp.float32, jnp.bfloat16):
    queries, keys = 1024, 384 if name == 'cross' else 1024

    def loss(query, key, value, of_query, of_key):
      mask = Mask(of_query, of_key, **more.get(name, {}))
      return fused.flash(query, key, value, mask=mask).astype(jnp.float32).sum()

    heads = [jax.ShapeDtypeStruct((4, n, 2, 64), dtype, sharding=place) for n in (queries, keys, keys)]
    ids = [jax.ShapeDtypeStruct((4, n), jnp.int32, sharding=place) for n in (queries, keys)]
    compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*heads, *ids).compile()
    print(f'{name} {dtype.__name__}: {compiled.memory_analysis().temp_size_in_bytes}')
"""


@pytest.mark.parametrize('bias', ['none', 'shared by rows'])
def test_chunks_hold_a_small_part_of_the_weights(bias):
  length = 2048
  ids = jnp.ones((1, length), jnp.int32)
  shape = jax.ShapeDtypeStruct((1, length, HEADS, HEAD_DIM), jnp.float32)
  one = jax.ShapeDtypeStruct((1, HEADS, length, length) if bias != 'none' else (1, 1, 1, 1), jnp.float32)

  def needs(function) -> int:
    def loss(query, key, value, bias):
      return function(query, key, value, mask=Mask(ids, ids, causal=True), bias=bias).sum()

    compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(shape, shape, shape, one).compile()
    return compiled.memory_analysis().temp_size_in_bytes

  assert needs(attention.chunked) < (0.35 if bias == 'none' else 0.75) * needs(attention.plain)


@pytest.mark.skipif(jax.device_count() < 4, reason='needs four devices')
def test_over_a_mesh_each_device_computes_its_rows_and_heads():
  layout = sharding.make_layout(sharding.make_mesh({'data': 2, 'model': 2}), 'tensor')
  mask = MASKS['causal']
  with sharding.use(layout):
    run = jax.jit(lambda *args: fused.flash(*args, mask=mask, interpret=True))
    out = run(*operands(mask))
    text = run.lower(*operands(mask)).as_text()
  assert tiny.worst(out, found('plain', 'causal', 'none')[0]) < 3e-6
  assert 'manual_computation' in text or 'shard_map' in text


@pytest.mark.skipif(jax.device_count() < 4, reason='needs four devices')
@pytest.mark.parametrize(('groups', 'copies'), [(1, 4), (2, 4), (4, 4), (6, 12)])
def test_over_a_mesh_heads_keep_the_keys_that_they_share(groups, copies):
  """Cut 12 heads over four devices, with 2 and with 6 keys."""
  layout = sharding.make_layout(sharding.make_mesh({'data': 1, 'model': 4}, jax.devices()[:4]), 'tensor')
  query = draw(2, 20, 12, HEAD_DIM)
  key, value = (draw(2, 20, groups, HEAD_DIM, seed=i) for i in (1, 2))
  mask = Mask(ROWS[:2, :20], ROWS[:2, :20], causal=True)

  def loss(function):
    return jax.jit(jax.value_and_grad(lambda *args: jnp.square(function(*args, mask=mask)).sum(), argnums=(0, 1, 2)))

  expected = loss(attention.plain)(query, key, value)
  with sharding.use(layout):
    assert fused.beside_heads(query, key).shape[2] == copies
    found = loss(functools.partial(fused.flash, interpret=True))(query, key, value)
  assert tiny.worst(found[0], expected[0]) < 1e-5 * float(expected[0])
  for gradient, other in zip(found[1], expected[1], strict=True):
    assert np.linalg.norm(gradient - other) < 3e-6 * np.linalg.norm(other)


# What is chosen.

TPU, GPU, CPU = ('tpu', 0.0), ('gpu', 9.0), ('cpu', 0.0)


def chosen(
  name: str,
  device: tuple[str, float],
  *,
  mask: Mask = MASKS['causal'],
  dtype=jnp.bfloat16,
  bias=None,
  dropout=0.0,
  k=64,
) -> str:
  query = jax.ShapeDtypeStruct((4, mask.query_segments.shape[1], HEADS, k), dtype)
  key = jax.ShapeDtypeStruct((4, mask.key_segments.shape[1], HEADS, k), dtype)
  taken, reason = attention.choose(name, query, key, mask=mask, bias=bias, dropout=dropout, device=device)
  assert reason
  return taken


def test_auto_takes_a_kernel_where_it_can():
  assert chosen('auto', TPU) == chosen('auto', TPU, dtype=jnp.float32) == 'flash'
  assert chosen('auto', GPU) == 'cudnn'
  assert chosen('auto', CPU) == chosen('auto', ('gpu', 7.5)) == chosen('auto', GPU, dtype=jnp.float32) == 'xla'
  few = Mask(jnp.ones((4, 1), jnp.int32), ROWS)
  assert chosen('auto', TPU, mask=few) == 'xla'
  assert chosen('flash', TPU, mask=few) == 'flash'
  longer = Mask(jnp.ones((4, 256), jnp.int32), jnp.ones((4, 256), jnp.int32))
  for device, mask, taken in ((TPU, longer, 'tiled'), (TPU, MASKS['causal'], 'xla'), (GPU, longer, 'xla')):
    allowed = jnp.ones((4, mask.query_segments.shape[1], mask.key_segments.shape[1]), bool)
    assert chosen('auto', device, mask=dataclasses.replace(mask, allowed=allowed)) == taken
    assert chosen('auto', device, mask=dataclasses.replace(mask, prefix=jnp.zeros(4, jnp.int32))) == (
      'cudnn' if device == GPU else taken
    )
    assert chosen('auto', device, mask=mask, bias=BIASES['of each row']) == taken
    assert chosen('auto', device, mask=mask, dropout=0.1) == taken
    assert chosen('xla', device) == 'xla'
  for device in (TPU, GPU):
    assert chosen('chunked', device, dropout=0.1, bias=BIASES['of each row']) == 'chunked'
  assert chosen('cudnn', GPU, mask=MASKS['allowed'], bias=BIASES['of each row']) == 'cudnn'
  assert chosen('auto', GPU, mask=MASKS['cross']) == 'xla'  # 150 queries, 90 keys
  assert chosen('cudnn', GPU, mask=MASKS['cross']) == 'cudnn'


@pytest.mark.parametrize(
  ('name', 'device', 'inputs', 'match'),
  [
    ('flash', CPU, {}, "attention='flash'.*TPU.*cpu"),
    ('cudnn', TPU, {}, 'compute capability 8.*tpu'),
    ('cudnn', ('gpu', 7.5), {}, r'gpu.*compute capability 7\.5'),
    ('flash', TPU, {'bias': BIASES['of each key']}, 'bias.*auto, xla or chunked'),
    ('flash', TPU, {'dropout': 0.1}, r'attention_dropout is 0\.1'),
    ('flash', TPU, {'mask': MASKS['allowed']}, r'mask\.allowed'),
    ('flash', TPU, {'mask': MASKS['prefix']}, 'prefix'),
    ('flash', TPU, {'mask': Mask(ROWS, CROSS, causal=True)}, '150.*90'),
    ('flash', TPU, {'dtype': jnp.float16}, 'float16'),
    ('tiled', TPU, {'dtype': jnp.float16}, 'float16'),
    ('tiled', TPU, {'k': 320}, '320'),
    ('tiled', GPU, {}, 'TPU.*gpu'),
    ('cudnn', GPU, {'dropout': 0.1}, r'attention_dropout is 0\.1'),
    ('cudnn', GPU, {'dtype': jnp.float32}, r'execution\.dtype.*float32'),
    ('cudnn', GPU, {'k': 20}, '20'),
    ('cudnn', GPU, {'mask': Mask(ROWS[:, :75], ROWS[:, :75])}, '75.*75'),
    ('fast', CPU, {}, "attention='fast'.*auto, xla, chunked, flash, tiled, cudnn"),
  ],
)
def test_what_cannot_be_taken_is_refused_with_the_reason(name, device, inputs, match):
  with pytest.raises(ValueError, match=match):
    chosen(name, device, **inputs)


def test_the_choice_is_logged_once(caplog):
  attention._log_once.cache_clear()
  args = operands(MASKS['causal'])
  with caplog.at_level('INFO', 'plm_jax'):
    for name in ('auto', 'auto', 'chunked', 'chunked'):
      attention.attend(*args, mask=MASKS['causal'], implementation=name)
  platform = jax.default_backend()
  if platform == 'cpu':
    first, second = (record.message for record in caplog.records)
    assert 'xla' in first
    assert 'chunked' in second


def test_the_log_tells_training_from_what_drops_nothing(monkeypatch):
  """Check the log with and without dropout, which may use different kernels."""
  monkeypatch.setattr(attention, '_device', lambda device: TPU)
  monkeypatch.setattr(fused, 'flash', WAYS['flash'])
  monkeypatch.setattr(tiled, 'attend', WAYS['tiled'])
  ids = jnp.ones((1, 256), jnp.int32)
  args = [draw(1, 256, 1, HEAD_DIM, seed=i) for i in range(3)]
  with attention.recorded() as said:
    for rng in (None, jax.random.key(0)):
      jax.eval_shape(lambda rng=rng: attention.attend(*args, mask=Mask(ids, ids), dropout=0.1, rng=rng))
  without, with_dropout = said
  assert 'flash' in without
  assert re.search(r'dropout 0\.1.*tiled.*attention_dropout', with_dropout)


@pytest.mark.skipif(jax.default_backend() != 'cpu', reason='on a CPU there is no kernel')
def test_attend_computes_what_was_asked_for():
  args = operands(MASKS['causal'])
  plain = attention.attend(*args, mask=MASKS['causal'], implementation='xla')
  assert tiny.same(attention.attend(*args, mask=MASKS['causal']), plain)
  assert tiny.worst(attention.attend(*args, mask=MASKS['causal'], implementation='chunked'), plain) < 1e-6
  with pytest.raises(ValueError, match=r'attention=.flash.*TPU'):
    attention.attend(*args, mask=MASKS['causal'], implementation='flash')
