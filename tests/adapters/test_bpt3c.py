"""Texts that are read in windows: the states of one reading, gradients inside windows, and rows that are turned."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.adapters import bpt3c, classify
from plm_jax.models import awd_lstm
from tests import tiny
from tests.adapters.running import nats_of, predict, run

SIZES = (16, 7, 11, 2)
TRUNK = awd_lstm.make(
  vocab_size=tiny.VOCAB.size, variant='ulmfit', overrides=dict(hidden_dim=32, num_layers=2, mlp_dim=24, dropout=0.0)
)


def make_task(**settings):
  return classify.make(trunk=TRUNK, vocab=tiny.VOCAB, classes=3, pool='concat', dropout=0.0, **settings)


BATCH = {**tiny.make_batch(tuple((size,) for size in SIZES)), 'label': jnp.array([2, 0, 1, 2])}
WHOLE = make_task()
PARAMS = jax.tree.map(lambda leaf: 3 * leaf, tiny.init_params(WHOLE, BATCH))


def by_hand(states, window, last):
  """Concatenated pooling of the windows that begin among the last tokens of each row, [b, 3 d]."""
  rows = []
  for row, size in enumerate(SIZES):
    begin = min(start for start in range(0, size, window) if size - start <= last)
    read = np.asarray(states, np.float64)[row, begin:size]
    rows.append(np.concatenate([read[-1], read.max(axis=0), read.mean(axis=0)]))
  return np.stack(rows)


@pytest.mark.parametrize(('window', 'last'), [(5, None), (16, None), (100, None), (4, 9), (3, 7), (1, 1)])
def test_the_last_windows_are_pooled_and_states_go_on(window, last):
  (_, hidden), _ = run(WHOLE, BATCH, PARAMS)
  task = make_task(window=window, last=last)
  (outputs, found), loss = run(task, BATCH, PARAMS)
  real = BATCH['segment_ids'] > 0
  assert tiny.worst(found[real], hidden[real]) < 1e-5
  pooled = by_hand(hidden, window, 10**9 if last is None else last)
  expected = pooled @ np.asarray(PARAMS['head']['kernel']) + np.asarray(PARAMS['head']['bias'])
  assert tiny.worst(outputs, expected) < 1e-5
  assert float(loss.value) == pytest.approx(nats_of(outputs, BATCH['label']).mean(), rel=1e-4)


def embedding_gradient(task):
  """f32[b, l]: how much the loss moves with the vector of each token, of rows whose tokens are all different."""
  numbers = jnp.arange(16)
  batch = {name: value[:1] for name, value in BATCH.items()} | {'tokens': numbers[None]}

  def total(params):
    return run(task, batch, params)[1].value

  return np.abs(np.asarray(jax.grad(total)(PARAMS)['trunk']['token_embed']['table'])[:16]).max(axis=1)


def test_only_pooled_windows_have_gradients():
  # windows of 4 in a row of 16: those from 8 and from 12 on begin among the last 9 tokens
  moved = embedding_gradient(make_task(window=4, last=9)) > 0
  assert moved.tolist() == [False] * 8 + [True] * 8
  assert (embedding_gradient(WHOLE) > 0).all()


def test_no_gradient_runs_from_one_window_into_another():
  """The last window alone is pooled, so the gradient is that of reading it from a state that is given."""
  found = embedding_gradient(make_task(window=4, last=4))
  assert (found[:12] == 0).all() and (found[12:] > 0).all()


def test_the_first_windows_still_say_something():
  task = make_task(window=4, last=4)
  other = {**BATCH, 'tokens': BATCH['tokens'].at[0, 0].set((BATCH['tokens'][0, 0] + 1) % tiny.VOCAB.size)}
  (one, _), (two, _) = run(task, BATCH, PARAMS)[0], run(task, other, PARAMS)[0]
  assert not tiny.same(one[0], two[0])
  assert tiny.same(one[1:], two[1:])


def test_rows_can_be_read_from_their_end():
  turned = np.zeros_like(BATCH['tokens'])
  for row, size in enumerate(SIZES):
    turned[row, :size] = np.asarray(BATCH['tokens'])[row, :size][::-1]
  assert (np.asarray(bpt3c.reversed_tokens(BATCH['tokens'], BATCH['segment_ids']))[BATCH['segment_ids'] > 0]
          == turned[BATCH['segment_ids'] > 0]).all()  # fmt: skip
  backward = predict(make_task(backward=True), BATCH, PARAMS)
  expected = predict(WHOLE, {**BATCH, 'tokens': jnp.asarray(turned)}, PARAMS)
  assert tiny.same(backward['probability'], expected['probability'])
  assert not tiny.same(backward['probability'], predict(WHOLE, BATCH, PARAMS)['probability'])


def test_what_cannot_be_read_so_is_refused():
  with pytest.raises(ValueError, match=r'adapter\.last.*adapter\.window'):
    make_task(last=3)
  with pytest.raises(ValueError, match='carry'):
    classify.make(trunk=tiny.make_trunk('gpt'), vocab=tiny.VOCAB, window=4)
  with pytest.raises(ValueError, match='causal'):
    classify.make(trunk=tiny.make_trunk('bert'), vocab=tiny.VOCAB, backward=True)
