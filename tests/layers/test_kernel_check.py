"""A kernel is compared with the formula at its first use, and is not used where it is wrong."""

import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.core import meshes, sharding
from plm_jax.layers import attention, kernel_check, tiled
from plm_jax.layers.masks import Mask

PLAIN = kernel_check.Case(
  queries=24, keys=40, groups=1, size=8, dtype='float32', causal=False, window=None, prefix=False, allowed=False,
  bias=False, dropout=0.0,
)  # fmt: skip
CASES = {
  'plain': PLAIN,
  'half precision': PLAIN._replace(dtype='bfloat16'),
  'causal': PLAIN._replace(keys=24, causal=True, window=5, prefix=True),
  'matrix': PLAIN._replace(groups=2, allowed=True, bias=True),
  'dropout': PLAIN._replace(dropout=0.3, bias=True),
}


@pytest.fixture(autouse=True)
def _forget():
  kernel_check._fault.cache_clear()
  attention._log_once.cache_clear()
  yield
  kernel_check._fault.cache_clear()


@pytest.mark.parametrize('name', CASES)
def test_the_tiled_kernel_passes(name):
  kernel = functools.partial(tiled.attend, interpret=True)
  assert kernel_check.fault('tiled', kernel, CASES[name]) is None


def wrong_output(query, key, value, **more):
  return attention.plain(query, key, value, **more) * 1.1


@jax.custom_vjp
def wrong_below(x):
  return x


wrong_below.defvjp(lambda x: (x, None), lambda _, gradient: (gradient * jnp.nan,))


def wrong_gradient(query, key, value, **more):
  return attention.plain(query, wrong_below(key), value, **more)


def raising(query, key, value, **more):
  raise RuntimeError('no such instruction')


@pytest.mark.parametrize(
  ('kernel', 'words'),
  [
    (wrong_output, 'the output differs by 0.1'),
    (wrong_gradient, 'the gradient of the key is not finite'),
    (raising, 'tiled raised RuntimeError'),
  ],
)
def test_what_is_wrong_is_named(kernel, words):
  assert words in (kernel_check.fault('tiled', kernel, PLAIN) or '')


@pytest.mark.parametrize('is_right', [True, False])
def test_attention_falls_back_to_the_formula_with_one_line(is_right, monkeypatch, caplog):
  """Also inside of a compiled function; the kernel is asked for once."""
  kernel = functools.partial(tiled.attend, interpret=True) if is_right else wrong_output
  monkeypatch.setattr(tiled, 'attend', kernel)
  monkeypatch.setattr(attention, '_device', lambda device: ('tpu', 0.0))
  draw = np.random.default_rng(0)
  query, key, value = (jnp.asarray(draw.standard_normal((2, 16, 2, 8)), jnp.float32) for _ in range(3))
  mask = Mask(query_segments=jnp.ones((2, 16), jnp.int32), key_segments=jnp.ones((2, 16), jnp.int32))
  with caplog.at_level(logging.INFO):
    compute = jax.jit(functools.partial(attention.attend, implementation='tiled'))
    out = compute(query, key, value, mask=mask)
    jax.jit(functools.partial(attention.attend, implementation='tiled'))(query, key, value, mask=mask)
  np.testing.assert_allclose(out, attention.plain(query, key, value, mask=mask), atol=1e-5)
  lines = [record.getMessage() for record in caplog.records if 'attention' in record.getMessage()]
  assert len(lines) == 1
  assert ('xla, because tiled fails its check' in lines[0]) is not is_right


def test_a_plan_for_described_devices_runs_nothing():
  mesh = meshes.make_mesh({'data': -1})
  with sharding.use(sharding.make_layout(mesh, 'data', described=True)):
    assert kernel_check.fault('tiled', raising, PLAIN) is None
