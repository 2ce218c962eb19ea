"""Choices from left to right are equal token by token and over the whole row at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.noise import cuts, runs
from plm_jax.noise.where import spans
from tests.noise.spans_reference import make_row, random_rows

pytestmark = pytest.mark.turns


def both(rows, forms, arguments):
  """Compare two forms of a choice from the same numbers."""
  keys = jax.random.split(jax.random.key(len(rows.ids)), len(rows.ids))

  def draw(form):
    return jax.jit(jax.vmap(lambda key, row: form(jax.random.uniform(key, row.ids.shape), *arguments(row))))

  return [jax.tree.map(np.asarray, draw(form)(keys, rows)) for form in forms]


@pytest.mark.parametrize('length', [2, 48, 568])
@pytest.mark.parametrize(('rate', 'mean'), [(0.15, 3.0), (0.5, 3.0), (0.9, 1.0), (0.5, 64.0)])
def test_cutting_by_part_is_cutting_by_token(length, rate, mean):
  table = jnp.asarray(spans.exact_tables(length, rate=rate, mean=mean))

  def arguments(row):
    found = runs.find_runs(row)
    hidden, number = table[:, found.size]
    return found.inside, found.fresh, hidden, found.size - hidden, jnp.maximum(number - 1, 0)

  rows = random_rows(100, length, seed=3)
  by_token, by_part = both(rows, (cuts.cut_by_token, cuts.cut_by_part), arguments)
  for one, other in zip(by_token, by_part, strict=True):
    np.testing.assert_array_equal(one, other)
  if rate and length > 2:
    assert by_token[0].any()


@pytest.mark.parametrize('length', [2, 48, 512])
@pytest.mark.parametrize('rate', [0.15, 0.5, 1.0])
def test_selecting_in_rounds_is_selecting_by_token(length, rate):
  def arguments(row):
    found = runs.find_runs(row)
    candidates = found.inside & (jnp.arange(length) % 3 != 1)
    total = found.total(candidates)
    return candidates, found.fresh, jnp.ceil(total * rate).astype(jnp.int32), total

  rows = random_rows(100, length, seed=4)
  by_token, in_rounds = both(rows, (runs.select_by_token, runs.select_in_rounds), arguments)
  np.testing.assert_array_equal(by_token, in_rounds)
  if rate and length > 2:
    assert by_token.any()


def test_a_row_of_one_run_has_as_many_parts_as_asked_for():
  row = make_row(568)
  found = runs.find_runs(row)
  hidden, number = jnp.asarray(spans.exact_tables(568))[:, found.size]
  uniform = jax.random.uniform(jax.random.key(0), (568,))
  hides, starts = cuts.cut_by_part(uniform, found.inside, found.fresh, hidden, found.size - hidden, number - 1)
  assert (int(hides.sum()), int(starts.sum())) == spans.exact_counts(568, rate=0.15, mean=3.0)
