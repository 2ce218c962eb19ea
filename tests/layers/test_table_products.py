"""Products of pairs in blocks: the same numbers and gradients as all at once, and no block after the last pair."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.core import sharding
from plm_jax.layers import table_products


def make(*, b=4, length=6, n=37, k=3, v=20, d=5, seed=0):
  draw = np.random.default_rng(seed)
  vectors, table = draw.normal(size=(b, length, d)), draw.normal(size=(v, d))
  readers, ids = draw.integers(0, length, (b, n)), draw.integers(0, v, (b, n, k))
  numbers = (jnp.asarray(each, jnp.float32) for each in (vectors, table))
  return *numbers, jnp.asarray(readers, jnp.int32), jnp.asarray(ids, jnp.int32)


def at_once(vectors, table, readers, ids):
  return jnp.einsum('bnd,bnkd->bnk', jnp.take_along_axis(vectors, readers[..., None], axis=1), table[ids])


def gradients(function, weights, vectors, table):
  return jax.grad(lambda *both: (weights * jnp.sin(function(*both))).sum(), argnums=(0, 1))(vectors, table)


@pytest.mark.parametrize('number', [0, 1, 20, 37])
@pytest.mark.parametrize('block', [1, 12, 10_000])
def test_equal_to_all_at_once(monkeypatch, number, block):
  monkeypatch.setattr(table_products, 'BLOCK', block)
  vectors, table, readers, ids = make()
  real = (jnp.arange(37) < number)[None, :, None]
  in_blocks = lambda vectors, table: table_products.products(vectors, table, readers, ids, jnp.int32(number))  # noqa: E731
  expected = at_once(vectors, table, readers, ids)
  assert np.allclose(jnp.where(real, in_blocks(vectors, table) - expected, 0), 0, atol=1e-5)
  ours = gradients(in_blocks, real, vectors, table)
  theirs = gradients(lambda vectors, table: at_once(vectors, table, readers, ids), real, vectors, table)
  for one, other in zip(ours, theirs, strict=True):
    assert np.allclose(one, other, atol=1e-5) and bool(other.any()) == (number > 0)


def test_behind_the_last_pair_nothing_is_computed():
  vectors, table, readers, ids = make(b=1, n=3000)
  table = table.at[7].set(jnp.nan)
  ids = jnp.where(jnp.arange(3000)[None, :, None] < 256, 1, 7)
  run = lambda number: table_products.products(vectors, table, readers, ids, jnp.int32(number))  # noqa: E731
  assert np.isfinite(run(256)).all() and not np.isfinite(run(257)[:, 256]).any()


@pytest.mark.skipif(jax.device_count() < 4, reason='needs four devices')
@pytest.mark.parametrize('rules', ['data', 'fsdp_tensor'])
def test_on_devices(rules):
  vectors, table, readers, ids = make()
  layout = sharding.make_layout(sharding.make_mesh({'data': 2, 'model': 2}), rules)

  def both(vectors, table, readers, ids):
    return gradients(lambda *own: table_products.products(*own, readers, ids, jnp.int32(37)), 1, vectors, table)

  alone = both(vectors, table, readers, ids)
  with sharding.use(layout):
    place = sharding.batch_sharding(layout)
    rows = [jax.device_put(each, place) for each in (vectors, readers, ids)]
    many = jax.jit(both)(rows[0], table, *rows[1:])
  for one, other in zip(many, alone, strict=True):
    assert np.allclose(one, other, atol=1e-5)
