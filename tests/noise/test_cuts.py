"""Choices from left to right are equal token by token and over the whole row at once.

The first form runs on CPUs, the second on TPUs; here the second runs on a CPU, in every function and objective.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.config import build, signatures
from plm_jax.noise import cuts, keys, runs
from plm_jax.noise.where import spans
from tests import test_contract, tiny
from tests.noise.spans_reference import make_row, random_rows
from tests.objectives import test_sentences

ROWS = 20
OBJECTIVES = signatures.names('objectives')


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

  rows = random_rows(ROWS, length, seed=3)
  by_token, by_part = both(rows, (cuts.cut_by_token, cuts.cut_by_part), arguments)
  for one, other in zip(by_token, by_part, strict=True):
    np.testing.assert_array_equal(one, other)
  if rate and length > 2:
    assert by_token[0].any()


@pytest.mark.parametrize('length', [2, 48, 512])
@pytest.mark.parametrize('rate', [0.15, 0.5, 1.0, 1.7])
def test_selecting_in_rounds_is_selecting_by_token(length, rate):
  def arguments(row):
    found = runs.find_runs(row)
    candidates = found.inside & (jnp.arange(length) % 3 != 1)
    total = found.total(candidates)
    # above 1, some runs want more than they have
    wanted = jnp.maximum(jnp.ceil(total * rate).astype(jnp.int32) - (rate > 1) * (found.group % 3), 0)
    return candidates, found.fresh, wanted, total

  rows = random_rows(ROWS, length, seed=4)
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


@pytest.fixture
def on_tpu(monkeypatch):
  """Run the form of TPUs within the function that this returns, which counts its uses."""
  original, used = jax.lax.platform_dependent, []

  def choose(*arguments, cpu, default):
    if cpu in (runs.select_by_token, cuts.cut_by_token):
      used.append(cpu)
      return default(*arguments)
    return original(*arguments, cpu=cpu, default=default)

  def within(function):
    def run(*arguments):
      with monkeypatch.context() as patch:
        patch.setattr(jax.lax, 'platform_dependent', choose)
        return function(*arguments)

    return run

  return within, used


def check_forms(on_tpu, function, *arguments):
  """Compare both forms bit for bit; return whether the function chooses from left to right."""
  within, used = on_tpu
  jax.eval_shape(within(lambda *given: function(*given)), *arguments)  # a new function is traced again
  if not used:
    return False
  by_part = jax.jit(within(lambda *given: function(*given)))(*arguments)
  jax.tree.map(np.testing.assert_array_equal, jax.jit(function)(*arguments), by_part)
  return True


SETTINGS = {
  'random_gaps': {'rate': 0.9},  # more than there are positions, where text is short
  'poisson_spans': {'rate': 0.6, 'mean': 0.5},  # more insertions than gaps
  'permute_sentences': {'ratio': 0.5},
}
LEFT_TO_RIGHT = {'exact_spans', 'exact_units', 'poisson_spans', 'random_gaps', 'permute_sentences'}


@pytest.mark.parametrize('name', [*signatures.places('noise.where'), *signatures.places('noise.rearrange')])
def test_every_function_of_the_noise(name, on_tpu):
  kind = 'noise.where' if name in signatures.places('noise.where') else 'noise.rearrange'
  counts = np.arange(1, 2001) if name == 'frequency' else None
  function = build.pick(
    kind, {'name': name, **SETTINGS.get(name, {})}, **({} if counts is None else {'counts': counts})
  )
  rows = random_rows(ROWS, 48, seed=5)
  rows = rows._replace(sentence_ids=rows.word_ids // 3)
  chooses = check_forms(on_tpu, jax.vmap(function), jax.random.split(jax.random.key(0), ROWS), rows)
  assert chooses == (name in LEFT_TO_RIGHT)


@pytest.mark.parametrize('name', OBJECTIVES)
def test_every_objective(name, on_tpu):
  pair = test_contract.first_pair(f'objectives/{name}')
  check_forms(on_tpu, pair.task.prepare, jax.random.key(1), keys.with_step(pair.batch, 0))


SEQ2SEQ = {'name': 'denoise_seq2seq', 'start': 'eos', 'append_eos': False, 'target': 'text'}
NOISES = {
  'T5': {'target': 'sentinels', 'edit': {'name': 'to_sentinels'}, 'where': {'name': 'exact_spans', 'rate': 0.5}},
  'UL2': {
    'target': 'sentinels',
    'edit': {'name': 'to_sentinels'},
    'denoisers': ({'where': {'name': 'exact_spans', 'rate': 0.5}}, {'where': {'name': 'exact_spans', 'mean': 8.0}}),
  },
  'BART': {
    'rearrange': ({'name': 'permute_sentences', 'ratio': 0.5},),
    'where': {'name': 'poisson_spans', 'rate': 0.5, 'mean': 1.0},
    'edit': {'name': 'collapse_to_mask', 'max_insert': 1},
  },
  'units': {'where': {'name': 'exact_units', 'rate': 0.3}, 'edit': {'name': 'drop'}},
  'gaps': {'where': {'name': 'random_gaps', 'rate': 0.3}, 'edit': {'name': 'insert'}},
}


@pytest.mark.parametrize('name', NOISES)
def test_every_noise_of_text_to_text(name, on_tpu):
  vocab = test_sentences.bart_rows.V
  trunk = test_sentences.bart.make(vocab_size=vocab.size, variant='tiny', overrides={**tiny.SIZES, 'max_length': 64})
  task = build.make('objectives', SEQ2SEQ | NOISES[name], trunk=trunk, vocab=vocab)
  assert check_forms(on_tpu, task.prepare, jax.random.key(1), test_sentences.rows(8))
