"""Schedules against the formulas of the papers in plain numpy, and against optax, torch and transformers."""

import math

import jax
import numpy as np
import optax
import pytest

from plm_jax.core.errors import ConfigError
from plm_jax.optim import schedules

T, W, RATE = 1000, 100, 3e-4
STEPS = np.array([0, 1, 50, 99, 100, 101, 400, 700, 999, 1000, 1300])


def values(name: str, *, rate: float = RATE, steps: int = T, warmup: int | float = W, **settings) -> np.ndarray:
  rate_at = schedules.make(name=name, rate=rate, steps=steps, warmup=warmup, **settings)
  return np.asarray(jax.jit(jax.vmap(rate_at))(STEPS))


def line(t: float, end: float = T) -> float:
  return min(max((end - t) / (end - W), 0.0), 1.0)


def cosine(t: float, end: float = T) -> float:
  return 0.5 * (1 + math.cos(math.pi * (1 - line(t, end))))


FORMULAS = {
  'constant': ({}, lambda t: min(t / W, 1)),
  'linear': ({}, lambda t: t / W if t < W else line(t)),
  'linear to a floor': ({'floor': 1e-4}, lambda t: t / W if t < W else 1e-4 + (1 - 1e-4) * line(t)),
  'linear_bert': ({}, lambda t: t / W if t < W else max(1 - t / T, 0)),
  'gpt': ({}, lambda t: min(t / W, 1) * max(1 - t / T, 0)),
  'cosine': ({}, lambda t: t / W if t < W else cosine(t)),
  'cosine over 0.8 to a floor': (
    {'floor': 0.05, 'until': 0.8},
    lambda t: t / W if t < W else 0.05 + 0.95 * cosine(t, 800),
  ),
  'cosine until a step': ({'until': 500}, lambda t: t / W if t < W else cosine(t, 500)),
  'polynomial': ({'power': 2.0, 'floor': 0.1}, lambda t: t / W if t < W else 0.1 + 0.9 * line(t) ** 2),
  'inverse_sqrt': ({}, lambda t: t / W if t < W else math.sqrt(W / t)),
  'inverse_sqrt held': ({'hold': 400}, lambda t: t / W if t < W else math.sqrt(400 / max(t, 400))),
  'inverse_time': ({'coefficient': 0.005}, lambda t: min(t / W, 1) / (1 + 0.005 * math.sqrt(t))),
  'plateau': ({}, lambda t: min(t / W, 1)),
}


@pytest.mark.parametrize('case', FORMULAS)
def test_equals_the_formula(case):
  settings, formula = FORMULAS[case]
  expected = [RATE * formula(float(t)) for t in STEPS]
  np.testing.assert_allclose(values(case.split()[0], **settings), expected, rtol=2e-6, atol=1e-10)


@pytest.mark.parametrize(('steps', 'cut', 'ratio'), [(1000, 0.1, 32.0), (1000, 0.25, 8.0), (777, 0.1, 32.0)])
def test_slanted_triangle(steps, cut, ratio):
  peak = math.floor(steps * cut)

  def formula(t):
    p = t / peak if t < peak else 1 - (t - peak) / (peak * (1 / cut - 1))
    return 0.01 * (1 + max(p, 0) * (ratio - 1)) / ratio

  found = values('stlr', rate=0.01, steps=steps, warmup=0, cut=cut, ratio=ratio)
  np.testing.assert_allclose(found, [formula(t) for t in STEPS], rtol=2e-5)
  assert np.isclose(schedules.make(name='stlr', rate=0.01, steps=steps, cut=cut)(peak), 0.01)


def test_t5_and_palm_rates():
  at = schedules.make(name='inverse_sqrt', rate=0.01, steps=2**19)
  for step in (0, 9_999, 10_000, 40_000, 2**19):
    assert np.isclose(at(step), 1 / math.sqrt(max(step, 10_000)), rtol=1e-6)


def test_equals_optax():
  peers = {
    'linear': optax.warmup_constant_schedule(0, RATE, W),
    'cosine': optax.warmup_cosine_decay_schedule(0, RATE, W, T, 0.1 * RATE),
    'polynomial': optax.join_schedules(
      [optax.linear_schedule(0, RATE, W), optax.polynomial_schedule(RATE, 0.1 * RATE, 3, T - W)], [W]
    ),
  }
  peers['linear'] = optax.join_schedules([peers['linear'], optax.linear_schedule(RATE, 0, T - W)], [W])
  settings = {'linear': {}, 'cosine': {'floor': 0.1}, 'polynomial': {'floor': 0.1, 'power': 3.0}}
  for name, peer in peers.items():
    np.testing.assert_allclose(values(name, **settings[name]), jax.vmap(peer)(STEPS), rtol=1e-5, atol=1e-10)


@pytest.mark.parametrize(
  ('name', 'peer', 'settings', 'theirs'),
  [
    ('constant', 'get_constant_schedule_with_warmup', {}, {}),
    ('linear', 'get_linear_schedule_with_warmup', {}, {'num_training_steps': T}),
    ('cosine', 'get_cosine_schedule_with_warmup', {}, {'num_training_steps': T}),
    ('inverse_sqrt', 'get_inverse_sqrt_schedule', {}, {}),
    (
      'polynomial',
      'get_polynomial_decay_schedule_with_warmup',
      {'power': 2.0, 'floor': 0.1},
      {'num_training_steps': T, 'power': 2.0, 'lr_end': 0.1 * RATE},
    ),
  ],
)
def test_equals_transformers(name, peer, settings, theirs):
  torch = pytest.importorskip('torch')
  optimization = pytest.importorskip('transformers.optimization')
  optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=RATE)
  scheduler = vars(optimization)[peer](optimiser, num_warmup_steps=W, **theirs)
  rates = []
  for _ in range(T + 1):
    rates.append(scheduler.get_last_lr()[0])
    optimiser.step()
    scheduler.step()
  run = STEPS <= T  # theirs rises again after the end
  found, expected = values(name, **settings)[run], np.array(rates)[STEPS[run]]
  np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-10)


@pytest.mark.parametrize('mode', ['min', 'max'])
@pytest.mark.parametrize('patience', [0, 2])
def test_plateau_falls_as_torch_does(mode, patience):
  torch = pytest.importorskip('torch')
  metrics = [5.0, 4.0, 4.5, 4.0, 3.0, 3.5, 3.5, 3.5, 3.5, 3.5, 2.0, 2.5]
  optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
  peer = torch.optim.lr_scheduler.ReduceLROnPlateau(
    optimiser, mode=mode, factor=0.5, patience=patience, threshold=0.0, eps=0.0
  )
  state = schedules.start_plateau()
  for metric in metrics:
    peer.step(metric)
    state = schedules.observe_plateau(state, metric if mode == 'min' else -metric, patience=patience)
    assert float(state['factor']) == optimiser.param_groups[0]['lr']
  assert float(state['factor']) < 1


def test_warmup_as_a_fraction_of_the_run():
  np.testing.assert_array_equal(values('linear', warmup=0.1), values('linear', warmup=100))
  np.testing.assert_array_equal(values('gpt', warmup=0.0), values('gpt', warmup=0))


def test_first_update_of_a_warmup_has_rate_0_and_a_run_shorter_than_its_warmup_only_rises():
  rates = values('cosine', steps=50)
  assert rates[0] == 0
  assert np.isclose(rates[2], RATE / 2)
  assert np.all(np.isfinite(rates))


def test_a_long_run_keeps_its_precision():
  at = schedules.make(name='linear', rate=1.0, steps=2_400_000, warmup=10_000)
  assert np.isclose(at(2_399_999), 1 / 2_390_000, rtol=1e-2)
  assert at(2_400_000) == 0


def test_unknown_schedule_lists_the_choices_and_the_nearest():
  with pytest.raises(ConfigError, match=r"optim.schedule.*'linaer'.*'linear'.*cosine"):
    schedules.make(name='linaer', rate=1.0, steps=10)


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'name': 'stlr', 'warmup': 10}, 'optim.warmup.*10'),
    ({'name': 'stlr', 'cut': 1.5}, 'optim.cut=1.5'),
    ({'name': 'linear', 'warmup': -3}, 'optim.warmup=-3'),
    ({'name': 'linear', 'warmup': 2.5}, 'optim.warmup=2.5'),
    ({'name': 'cosine', 'until': 1.5}, 'optim.until=1.5'),
  ],
)
def test_settings_out_of_range(settings, message):
  with pytest.raises(ConfigError, match=message):
    schedules.make(rate=1.0, steps=100, **settings)


def test_plateau_mode_is_checked():
  with pytest.raises(ValueError, match='min, max'):
    schedules.make(name='plateau', rate=1.0, steps=10, mode='lowest')
