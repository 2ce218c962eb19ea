"""Layers of LSTM that read both ways against torch.nn.LSTM on the same weights."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.layers import lstm
from tests import tiny

pytestmark = pytest.mark.turns

WIDTH, LAYERS, INPUTS = 6, 2, 5
SEGMENTS = jnp.array([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 2, 2, 0, 0], [1, 0, 0, 0, 0, 0, 0]])
STACK = lstm.StackedLstm(WIDTH, LAYERS, dropout=0.5)
X = jnp.asarray(np.random.default_rng(0).normal(size=(3, 7, INPUTS)), jnp.float32)


def parameters():
  abstract = jax.eval_shape(lambda: STACK.init(jax.random.key(0), X, SEGMENTS, train=False))['params']
  return jax.tree.map(lambda leaf: 5 * leaf, tiny.draw(lstm.nn.unbox(abstract)))


PARAMS = parameters()


def peer():
  """Build a torch.nn.LSTM with these parameters and a second bias of 0."""
  torch = pytest.importorskip('torch')
  made = torch.nn.LSTM(INPUTS, WIDTH, num_layers=LAYERS, batch_first=True, bidirectional=True, dtype=torch.float64)
  for layer in range(LAYERS):
    p = PARAMS[f'layer_{layer}']
    for direction, suffix in enumerate(('', '_reverse')):
      values = {
        'weight_ih': np.asarray(p['input']['kernel'])[:, direction].reshape(-1, 4 * WIDTH).T,
        'weight_hh': np.asarray(p['recurrent'])[direction].reshape(WIDTH, 4 * WIDTH).T,
        'bias_ih': np.asarray(p['bias'])[direction].reshape(-1),
        'bias_hh': np.zeros(4 * WIDTH),
      }
      for name, value in values.items():
        made.get_parameter(f'{name}_l{layer}{suffix}').data = torch.tensor(value.astype(np.float64))
  return made


def test_equals_torch_text_by_text():
  torch, made = pytest.importorskip('torch'), peer()
  ours = np.asarray(jax.jit(lambda p: STACK.apply({'params': p}, X, SEGMENTS, train=False))(PARAMS))
  assert ours.shape == (3, 7, 2 * WIDTH)
  for row, segments in enumerate(np.asarray(SEGMENTS)):
    for number in sorted(set(segments) - {0}):
      places = np.flatnonzero(segments == number)
      with torch.no_grad():
        theirs = made(torch.tensor(np.asarray(X, np.float64)[row, places][None]))[0][0].numpy()
      np.testing.assert_allclose(ours[row, places], theirs, atol=1e-5)


def test_equals_torch_on_padded_rows():
  torch, made = pytest.importorskip('torch'), peer()
  sizes = (7, 4, 2)
  segments = jnp.asarray((np.arange(7) < np.array(sizes)[:, None]).astype(np.int32))
  packed = torch.nn.utils.rnn.pack_padded_sequence(torch.tensor(np.asarray(X, np.float64)), sizes, batch_first=True)
  with torch.no_grad():
    theirs, _ = torch.nn.utils.rnn.pad_packed_sequence(made(packed)[0], batch_first=True)
  ours = STACK.apply({'params': PARAMS}, X, segments, train=False)
  np.testing.assert_allclose(
    np.asarray(ours)[np.asarray(segments) > 0], theirs.numpy()[np.asarray(segments) > 0], atol=1e-5
  )


def test_dropout_is_on_the_inputs_of_layers_in_training():
  run = jax.jit(lambda key: STACK.apply({'params': PARAMS}, X, SEGMENTS, train=True, rngs={'dropout': key}))
  first, again, other = run(jax.random.key(0)), run(jax.random.key(0)), run(jax.random.key(1))
  assert tiny.same(first, again)
  assert not tiny.same(first, other)


def test_gradients_equal_torch():
  """Compare gradients of weights and input on rows without boundaries."""
  torch, made = pytest.importorskip('torch'), peer()
  x = torch.tensor(np.asarray(X, np.float64), requires_grad=True)
  factors = np.random.default_rng(1).normal(size=(3, 7, 2 * WIDTH))
  (made(x)[0] * torch.tensor(factors)).sum().backward()

  def total(params, x):
    return (STACK.apply({'params': params}, x, jnp.ones((3, 7), jnp.int32), train=False) * factors).sum()

  params, inputs = jax.jit(jax.grad(total, argnums=(0, 1)))(PARAMS, X)
  np.testing.assert_allclose(inputs, x.grad, atol=1e-4)
  for layer in range(LAYERS):
    own = params[f'layer_{layer}']
    for direction, suffix in enumerate(('', '_reverse')):
      grad = lambda name: made.get_parameter(f'{name}_l{layer}{suffix}').grad.numpy()  # noqa: B023, E731
      kernel = np.asarray(own['input']['kernel'])[:, direction].reshape(-1, 4 * WIDTH).T
      recurrent = np.asarray(own['recurrent'])[direction].reshape(WIDTH, 4 * WIDTH).T
      np.testing.assert_allclose(kernel, grad('weight_ih'), atol=1e-4)
      np.testing.assert_allclose(recurrent, grad('weight_hh'), atol=1e-4)
      np.testing.assert_allclose(np.asarray(own['bias'])[direction].reshape(-1), grad('bias_ih'), atol=1e-4)


def test_a_loop_of_the_cpu_has_one_tanh():
  """XLA does not vectorise elementwise loops with several of exp and tanh: each takes ten times as long."""
  loss = lambda params: STACK.apply({'params': params}, X, SEGMENTS, train=False).sum()  # noqa: E731
  text = jax.jit(jax.grad(loss)).lower(PARAMS).compile().as_text()
  counts = [len(re.findall(r' (?:tanh|exponential|logistic)\(', part)) for part in text.split('\n\n')]
  assert max(counts) == 1


ROWS, TOKENS, CELLS, STATES = 3, 5, 4, 3


def drawn(*shape):
  return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape), jnp.float32)


def token_by_token(values, fresh, passed, *, projected, clipped):
  """Compute the recurrence by its formulas, without a scan."""
  h, c = values['h'], values['c']
  states = []
  for t in range(TOKENS):
    renew, stay = fresh[:, t, :, None], passed[:, t, :, None]
    h_old, c_old = jnp.where(renew, values['h0'], h), jnp.where(renew, values['c0'], c)
    pre = [values['gates'][:, t, :, g] + jnp.einsum('bcp,cpf->bcf', h_old, values['u'][:, :, g]) for g in range(4)]
    squash = lambda x: 1 / (1 + jnp.exp(-x))  # noqa: E731
    c_new = squash(pre[1]) * c_old + squash(pre[0]) * jnp.tanh(pre[2])
    c_new = jnp.clip(c_new, -0.7, 0.7) if clipped else c_new
    h_new = squash(pre[3]) * jnp.tanh(c_new)
    if projected:
      h_new = jnp.einsum('bcf,cfp->bcp', h_new, values['p'])
      h_new = jnp.clip(h_new, -0.5, 0.5) if clipped else h_new
    h, c = jnp.where(stay, h, h_new), jnp.where(stay, c, c_new)
    states.append(h)
  return (h, c), jnp.stack(states, axis=1)


@pytest.mark.parametrize('clipped', [False, True])
@pytest.mark.parametrize('projected', [False, True])
def test_values_and_gradients_are_those_of_the_formulas(projected, clipped):
  width = STATES if projected else CELLS
  values = {
    'gates': 2 * drawn(ROWS, TOKENS, 2, 4, CELLS),
    'u': drawn(2, width, 4, CELLS),
    'h': drawn(ROWS, 2, width),
    'c': drawn(ROWS, 2, CELLS),
    'h0': drawn(2, width),
    'c0': drawn(2, CELLS),
    'p': drawn(2, CELLS, width),
  }
  random = np.random.default_rng(3)
  fresh, passed = (jnp.asarray(random.random((ROWS, TOKENS, 2)) < 0.3) for _ in range(2))
  clips = dict(cell_clip=0.7, projection_clip=0.5) if clipped else {}

  def ours(values):
    return lstm.recur(
      values['gates'],
      values['u'],
      (values['h'], values['c']),
      fresh=fresh,
      begin=(values['h0'], values['c0']),
      passed=passed,
      projection=values['p'] if projected else None,
      **(clips if projected else {key: clip for key, clip in clips.items() if key == 'cell_clip'}),
    )

  def theirs(values):
    return token_by_token(values, fresh, passed, projected=projected, clipped=clipped)

  made, expected = jax.jit(ours)(values), jax.jit(theirs)(values)
  assert tiny.worst(made, expected) < 1e-5
  factors = jax.tree.map(lambda part: drawn(*part.shape), expected)

  def total(values, run):
    return sum(jax.tree.leaves(jax.tree.map(lambda a, b: (a * b).sum(), run(values), factors)))

  found, wanted = (jax.jit(jax.grad(total), static_argnums=1)(values, run) for run in (ours, theirs))
  assert tiny.worst(found, wanted) < 1e-4
  moved = {name for name, leaf in wanted.items() if float(jnp.abs(leaf).max()) > 1e-3}
  assert moved == set(values) - (set() if projected else {'p'})


KEPT = [('dots', 2), ('full', 2), ('full', 3), ('full', TOKENS)]  # windows that do and do not divide the row


@pytest.mark.parametrize(('remat', 'window'), KEPT)
def test_windows_that_are_computed_again_give_the_values_and_gradients_of_whole_rows(remat, window):
  """Compare with projections, clips, states, and fresh or passed tokens."""
  values = {
    'x': drawn(ROWS, TOKENS, 2, 3),
    'kernel': drawn(3, 2, 4, CELLS),
    'u': drawn(2, STATES, 4, CELLS),
    'h': drawn(ROWS, 2, STATES),
    'c': drawn(ROWS, 2, CELLS),
    'begin': (drawn(2, STATES), drawn(2, CELLS)),
    'p': drawn(2, CELLS, STATES),
  }
  random = np.random.default_rng(3)
  fresh, passed = (jnp.asarray(random.random((ROWS, TOKENS, 2)) < 0.3) for _ in range(2))

  def run(values, passed, **keeps):
    return lstm.recur_over(
      values['x'],
      values['u'],
      (values['h'], values['c']),
      gates_of=lambda x: jnp.einsum('blcd,dcgf->blcgf', x, values['kernel']),
      fresh=fresh,
      passed=passed,
      begin=values['begin'],
      projection=values['p'],
      cell_clip=0.7,
      projection_clip=0.5,
      **keeps,
    )

  for some in (passed, None):
    whole, made = (
      jax.jit(lambda values, keeps=keeps: run(values, some, **keeps))(values)  # noqa: B023
      for keeps in ({}, {'remat': remat, 'window': window})
    )
    assert tiny.worst(made, whole) < 1e-6
    factors = jax.tree.map(lambda part: drawn(*part.shape), whole)

    def total(values, **keeps):
      out = run(values, some, **keeps)  # noqa: B023
      return sum(jax.tree.leaves(jax.tree.map(lambda a, b: (a * b).sum(), out, factors)))  # noqa: B023

    wanted, found = (
      jax.jit(jax.grad(lambda values, keeps=keeps: total(values, **keeps)))(values)
      for keeps in ({}, {'remat': remat, 'window': window})
    )
    assert tiny.worst(found, wanted) < 1e-5


def test_what_the_backward_pass_keeps_has_a_list_of_choices():
  state = jnp.zeros((1, 1, 2)), jnp.zeros((1, 1, 2))
  with pytest.raises(ValueError, match=r"execution\.remat='some'.*none, dots, full"):
    lstm.recur_over(
      jnp.zeros((1, 3, 1, 4, 2)), jnp.zeros((1, 2, 4, 2)), state, fresh=jnp.zeros((1, 3, 1), bool), remat='some'
    )
