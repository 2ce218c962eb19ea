"""Update rules against formulas in numpy, against torch and transformers, and on stacked layers against single ones."""

import math
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from plm_jax import optim
from plm_jax.optim import averages, rules

STEPS = 6
DECAY = (('.*(bias|scale)', 0.0), ('trunk/layers/1/.*', 0.3), ('.*', 0.1))
SCALE = (('trunk/layers/0/.*', 0.5), ('trunk/layers/1/.*', {'unfreeze': 3}), ('.*', 1.0))


def random_tree(seed: int, *, size: float = 1.0) -> dict:
  """A tree with three stacked layers."""
  draw = np.random.default_rng(seed)
  shapes = {
    'trunk': {
      'embed': {'table': (40, 20)},
      'layers': {
        'attention': {'query': {'kernel': (3, 20, 4, 24), 'bias': (3, 4, 24)}},
        'mlp': {'up': {'kernel': (3, 20, 24)}},
        'norm': {'scale': (3, 20)},
        'gate': (3,),
      },
    },
    'head': {'kernel': (20, 5)},
  }
  return jax.tree.map(
    # each layer on a scale of its own, so that a rule that looks at the whole stack shows
    lambda shape: jnp.asarray(
      size * draw.standard_normal(shape) * (10.0 ** np.arange(shape[0])).reshape(-1, *[1] * (len(shape) - 1))
      if shape[0] == 3
      else size * draw.standard_normal(shape),
      jnp.float32,
    ),
    shapes,
    is_leaf=lambda leaf: isinstance(leaf, tuple),
  )


def per_layer(tree: dict) -> dict:
  """The same tree with a sub-tree for each layer."""
  layers = tree['trunk']['layers']
  split = {str(layer): jax.tree.map(lambda leaf, layer=layer: leaf[layer], layers) for layer in range(3)}
  return {**tree, 'trunk': {**tree['trunk'], 'layers': split}}


def run(params: dict, gradients: list[dict], **settings) -> list[dict]:
  """The updates of a run."""
  tx = optim.make(params=params, steps=len(gradients), **settings)
  state, updates = tx.init(params), []
  step = jax.jit(tx.update)
  for gradient in gradients:
    update, state = step(gradient, state, params)
    params = optax.apply_updates(params, update)
    updates.append(update)
  return updates


RULES = {
  'sgd': {},
  'momentum': {'momentum': 0.8, 'nesterov': True},
  'adagrad': {},
  'adam': {},
  'adamw': {},
  'bert_adam': {},
  'lamb': {'adapt': (('.*(bias|scale)', 0.0), ('.*', 1.0))},
  'adafactor': {'factor_min': 16, 'b1': 0.9},
  'asgd': {'start': 2},
}


def test_every_rule_is_in_the_stacking_test():
  assert set(RULES) == {rule.__name__ for rule in rules.RULES}


CASES = [(name, {'clip': 1.0}) for name in RULES] + [('sgd', {}), ('sgd', {'clip': 0.5, 'clip_by': 'element'})]


@pytest.mark.turns
@pytest.mark.parametrize(('name', 'clip'), CASES)
def test_stacked_layers_train_as_layers_on_their_own(name, clip):
  params, gradients = random_tree(0), [random_tree(seed, size=0.3) for seed in range(1, STEPS + 1)]
  settings = RULES[name] | clip | {'name': name, 'rate': 0.01, 'warmup': 2, 'decay': DECAY, 'scale': SCALE}
  stacked = run(params, gradients, **settings)
  alone = run(per_layer(params), [per_layer(gradient) for gradient in gradients], **settings)
  for step, (one, other) in enumerate(zip(stacked, alone, strict=True)):
    jax.tree.map(
      lambda a, b, step=step: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=f'step {step}'),
      per_layer(one),
      other,
    )
  moved = [float(jnp.abs(update['trunk']['layers']['mlp']['up']['kernel'][1]).max()) for update in stacked]
  assert moved[2] == 0
  assert moved[4] > 0


@pytest.mark.parametrize(
  'inner', [optax.scale_by_trust_ratio(), optax.clip_by_block_rms(0.1), optax.scale_by_param_block_rms()]
)
def test_the_stacking_test_can_fail(inner):
  """Rules that look at a whole tensor give other updates on a stack than on its layers."""
  params, gradient = random_tree(0), random_tree(1)
  whole, _ = inner.update(gradient, inner.init(params), params)
  each = rules.per_layer(inner)
  layered, _ = each.update(gradient, each.init(params), params)
  kernel = lambda tree: np.asarray(tree['trunk']['layers']['mlp']['up']['kernel'])  # noqa: E731
  assert not np.allclose(kernel(whole), kernel(layered), rtol=0.1)
  np.testing.assert_allclose(whole['head']['kernel'], layered['head']['kernel'], rtol=1e-5)


# Formulas ------------------------------------------------------------------------------------------------------------


def simple(seed: int) -> tuple[np.ndarray, list[np.ndarray]]:
  draw = np.random.default_rng(seed)
  return draw.standard_normal((6, 5)).astype(np.float32), [
    draw.standard_normal((6, 5)).astype(np.float32) for _ in range(STEPS)
  ]


def trained(param: np.ndarray, gradients: list[np.ndarray], **settings) -> np.ndarray:
  """The parameter after all updates."""
  updates = run({'w': jnp.asarray(param)}, [{'w': jnp.asarray(g)} for g in gradients], **settings)
  return param + sum(np.asarray(update['w'], np.float64) for update in updates)


def adam_formula(param, gradients, *, rate, b1, b2, eps, l2=0.0, decay=0.0, correct=True):
  p, m, v = np.float64(param), 0.0, 0.0
  for t, g in enumerate(gradients, 1):
    g = g + l2 * p
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
    mhat, vhat = (m / (1 - b1**t), v / (1 - b2**t)) if correct else (m, v)
    p = p - rate * (mhat / (np.sqrt(vhat) + eps) + decay * p)
  return p


BETAS = {'b1': 0.9, 'b2': 0.98, 'eps': 1e-6}


@pytest.mark.parametrize(
  ('name', 'formula'),
  [('adam', {'l2': 0.1}), ('adamw', {'decay': 0.1}), ('bert_adam', {'decay': 0.1, 'correct': False})],
)
def test_adam_and_its_relatives(name, formula):
  param, gradients = simple(0)
  found = trained(param, gradients, name=name, rate=0.01, schedule='constant', decay=0.1, **BETAS)
  np.testing.assert_allclose(found, adam_formula(param, gradients, rate=0.01, **BETAS, **formula), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('correct', [True, False])
def test_lamb(correct):
  param, gradients = simple(1)
  p, m, v = np.float64(param), 0.0, 0.0
  for t, g in enumerate(gradients, 1):
    m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g**2
    mhat, vhat = (m / (1 - 0.9**t), v / (1 - 0.98**t)) if correct else (m, v)
    way = mhat / (np.sqrt(vhat) + 1e-6) + 0.1 * p
    p = p - 0.01 * np.linalg.norm(p) / np.linalg.norm(way) * way
  settings = {'rate': 0.01, 'schedule': 'constant', 'decay': 0.1, 'bias_correction': correct, **BETAS}
  np.testing.assert_allclose(trained(param, gradients, name='lamb', **settings), p, rtol=1e-5, atol=1e-6)


def test_lamb_leaves_exempt_tensors_to_adam():
  param, gradients = simple(1)
  settings = {'rate': 0.01, 'schedule': 'constant', **BETAS}
  exempt = trained(param, gradients, name='lamb', adapt=(('.*', 0.0),), **settings)
  np.testing.assert_allclose(exempt, trained(param, gradients, name='adamw', **settings), rtol=1e-6)
  assert not np.allclose(exempt, trained(param, gradients, name='lamb', **settings), rtol=1e-3)


def test_adagrad_as_in_elmo():
  param, gradients = simple(2)
  p, total = np.float64(param), 1.0
  for g in gradients:
    total = total + g**2
    p = p - 0.2 * g / np.sqrt(total)
  found = trained(param, gradients, name='adagrad', rate=0.2, schedule='constant', accumulator=1.0)
  np.testing.assert_allclose(found, p, rtol=1e-5)


@pytest.mark.parametrize('factored', [True, False])
def test_adafactor(factored):
  """Shazeer and Stern 2018, algorithms 4 and 5, with the first moment of PaLM."""
  param, gradients = simple(3)
  p, row, column, v, m = np.float64(param), 0.0, 0.0, 0.0, 0.0
  for t, g in enumerate(gradients, 1):
    b2, square = 1 - t**-0.8, np.float64(g) ** 2 + 1e-30
    row = b2 * row + (1 - b2) * square.mean(axis=1)
    column = b2 * column + (1 - b2) * square.mean(axis=0)
    v = np.outer(row, column) / row.mean() if factored else b2 * v + (1 - b2) * square
    way = g / np.sqrt(v)
    way = way / max(1.0, np.sqrt(np.mean(way**2))) * max(1e-3, np.sqrt(np.mean(p**2)))
    m = 0.9 * m + 0.1 * way
    p = p - 0.01 * (m + 0.01 * p)  # decay is the rate itself: lr^2
  found = trained(
    param, gradients, name='adafactor', rate=0.01, schedule='constant', decay=(('.*', 'rate'),), b1=0.9,
    factored=factored, factor_min=2,
  )  # fmt: skip
  np.testing.assert_allclose(found, p, rtol=1e-5, atol=1e-6)


def test_adafactor_without_a_limit_on_the_direction():
  param, gradients = simple(3)
  settings = {'name': 'adafactor', 'rate': 0.01, 'schedule': 'constant', 'parameter_scale': False}
  free = trained(param, gradients, block_clip=math.inf, **settings)
  assert np.all(np.isfinite(free))
  assert not np.allclose(free, trained(param, gradients, block_clip=0.5, **settings), rtol=1e-3)


def torch_trained(make, param, gradients):
  torch = pytest.importorskip('torch')
  weight = torch.nn.Parameter(torch.tensor(param))
  optimiser = make(torch, [weight])
  for gradient in gradients:
    weight.grad = torch.tensor(gradient)
    optimiser.step()
  return weight.detach().numpy(), optimiser.state[weight]


@pytest.mark.parametrize(
  ('settings', 'peer'),
  [
    ({'name': 'sgd'}, lambda torch, w: torch.optim.SGD(w, lr=0.05, weight_decay=0.1)),
    (
      {'name': 'momentum', 'momentum': 0.9},
      lambda torch, w: torch.optim.SGD(w, lr=0.05, momentum=0.9, weight_decay=0.1),
    ),
    (
      {'name': 'momentum', 'momentum': 0.9, 'nesterov': True},
      lambda torch, w: torch.optim.SGD(w, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
    ),
    (
      {'name': 'adagrad', 'accumulator': 0.1, 'eps': 1e-20},
      lambda torch, w: torch.optim.Adagrad(w, lr=0.05, initial_accumulator_value=0.1, eps=0, weight_decay=0.1),
    ),
    ({'name': 'adam'}, lambda torch, w: torch.optim.Adam(w, lr=0.05, weight_decay=0.1)),
    ({'name': 'adamw'}, lambda torch, w: torch.optim.AdamW(w, lr=0.05, weight_decay=0.1)),
  ],
  ids=['sgd', 'momentum', 'nesterov', 'adagrad', 'adam', 'adamw'],
)
def test_equals_torch(settings, peer):
  param, gradients = simple(4)
  expected, _ = torch_trained(peer, param, gradients)
  found = trained(param, gradients, rate=0.05, schedule='constant', decay=0.1, **settings)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_adafactor_equals_transformers():
  optimization = pytest.importorskip('transformers.optimization')
  param, gradients = simple(5)
  expected, _ = torch_trained(
    lambda torch, w: optimization.Adafactor(w, lr=0.01, relative_step=False, scale_parameter=True, beta1=0.9),
    param,
    gradients,
  )
  found = trained(param, gradients, name='adafactor', rate=0.01, schedule='constant', b1=0.9, factor_min=2)
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


# Averages ------------------------------------------------------------------------------------------------------------


def test_asgd_averages_as_torch_does():
  param, gradients = simple(6)
  # torch computes the weight of an iterate a step ahead: its t0 is one less
  _, state = torch_trained(lambda torch, w: torch.optim.ASGD(w, lr=0.05, lambd=0.0, t0=1, alpha=0.0), param, gradients)
  tx = optim.make(params={'w': param}, steps=STEPS, name='asgd', rate=0.05, schedule='constant', start=2)
  params = {'w': jnp.asarray(param)}
  opt_state, iterates = tx.init(params), []
  for gradient in gradients:
    updates, opt_state = tx.update({'w': jnp.asarray(gradient)}, opt_state, params)
    params = optax.apply_updates(params, updates)
    iterates.append(np.asarray(params['w']))
  averaged = tx.eval_params(opt_state, params)['w']
  np.testing.assert_allclose(averaged, np.mean(iterates[2:], axis=0), rtol=1e-5)
  np.testing.assert_allclose(averaged, state['ax'].numpy(), rtol=1e-5)


def test_nt_asgd_starts_when_the_awd_lstm_code_would():
  losses = [9.0, 7.0, 8.0, 6.0, 6.5, 6.4, 6.3, 6.2, 6.1, 6.6, 6.05, 5.0]
  for nonmonotone in (2, 3, 5):
    average = averages.iterate_mean(start=None, nonmonotone=nonmonotone)
    state, before, started = average.init({'w': jnp.zeros(2)}), [], False
    for loss in losses:
      started = started or (len(before) > nonmonotone and loss > min(before[:-nonmonotone]))
      before.append(loss)
      state = average.observe(state, loss)
      assert bool(state['trigger']['started']) == started
    assert started


def test_nt_asgd_evaluates_the_latest_parameters_until_it_starts():
  params = {'w': jnp.zeros(3)}
  tx = optim.make(params=params, steps=9, name='asgd', rate=1.0, schedule='constant', nonmonotone=1)
  state = tx.init(params)

  def step(params, state):
    updates, state = tx.update({'w': -jnp.ones(3)}, state, params)
    return optax.apply_updates(params, updates), state

  params, state = step(*step(params, state))
  np.testing.assert_array_equal(tx.eval_params(state, params)['w'], params['w'])
  for loss in (1.0, 2.0, 2.0):
    state = tx.observe(state, loss)
  params, state = step(*step(*step(params, state)))
  np.testing.assert_allclose(params['w'], 5.0)
  np.testing.assert_allclose(tx.eval_params(state, params)['w'], 4.0)


def test_a_mean_that_begins_at_a_step_waits_for_no_metric():
  with pytest.raises(ValueError, match=r'optim\.start=5.*optim\.nonmonotone'):
    optim.make(params={'w': jnp.zeros(3)}, steps=9, name='asgd', rate=1.0, start=5, nonmonotone=3)


def test_the_head_of_a_config_states_how_large_uncorrected_directions_are():
  """`experiments/finetune/classify.py` prints the ratio of directions of `bert_adam` and `adamw` at four steps."""
  text = ' '.join(pathlib.Path('experiments/finetune/classify.py').read_text().split())
  (stated,) = re.findall(r'([\d.]+) times at step 1, ([\d.]+) at step 12, ([\d.]+) at step 100, ([\d.]+) at ste', text)
  both = (rules.scale_by_uncorrected_adam(0.9, 0.999, 1e-12), optax.scale_by_adam(0.9, 0.999, 1e-12))

  def step(states, gradient):
    directions, states = zip(
      *(rule.update(gradient, state) for rule, state in zip(both, states, strict=True)), strict=True
    )
    return states, directions[0] / directions[1]

  gradients = jnp.asarray(np.random.default_rng(0).standard_normal(1000), jnp.float32)
  _, ratios = jax.lax.scan(step, tuple(rule.init(gradients[0]) for rule in both), gradients)
  assert [f'{float(ratios[at - 1]):.1f}' for at in (1, 12, 100, 1000)] == list(stated)
  assert int(ratios.argmax()) == 11  # step 12 is the largest
  assert f'{3e-5 * float(ratios[:100].mean()):.1e}' == '1.4e-04'
