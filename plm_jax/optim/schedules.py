"""Learning-rate schedules: pure functions of the step, as multiples of the peak rate.

The step t is the number of updates already made, so the first update of a run with warmup has rate 0, as in the
released code of BERT, ELECTRA and GPT. w is the number of warmup steps and T the number of steps of the run. `floor` is
the multiple at the end of the decay, and `until` the step of that end: a number of steps, or a fraction of the run (GLM
decays over 0.8 of it).
"""

import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import jax.numpy as jnp

from plm_jax.config.values import as_steps
from plm_jax.core.errors import ConfigError, check_choice, one_of
from plm_jax.core.keywords import Duration, NonNegativeInt, Rate
from plm_jax.core.types import Array

Schedule = Callable[[Array], Array]
Mode = Literal['min', 'max']


def constant(step: Array, *, steps: int, warmup: int) -> Array:
  """Compute min(1, t / w)."""
  return _warm(step, warmup)


def linear(step: Array, *, steps: int, warmup: int, floor: Rate = 0.0, until: Duration = 1.0) -> Array:
  """Warm up, then fall in a straight line to `floor`."""
  return polynomial(step, steps=steps, warmup=warmup, floor=floor, until=until, power=1.0)


def linear_bert(step: Array, *, steps: int, warmup: int) -> Array:
  """Warm up by t / w, then use 1 - t/T.

  Warmup replaces the decayed rate (google-research/bert, optimization.py).
  """
  step = _float(step)
  return jnp.where(step < warmup, _warm(step, warmup), jnp.maximum(1.0 - step / max(steps, 1), 0.0))


def gpt(step: Array, *, steps: int, warmup: int) -> Array:
  """Compute min(1, t / w) (1 - t / T).

  Warmup scales the decayed rate (GPT's and ELECTRA's released code).
  """
  return _warm(step, warmup) * jnp.maximum(1.0 - _float(step) / max(steps, 1), 0.0)


def cosine(step: Array, *, steps: int, warmup: int, floor: Rate = 0.0, until: Duration = 1.0) -> Array:
  """Warm up, then fall by half a cosine to `floor`."""
  progress = _progress(step, steps=steps, warmup=warmup, until=until)
  return _warm(step, warmup) * (floor + (1.0 - floor) * 0.5 * (1.0 + jnp.cos(math.pi * progress)))


def polynomial(
  step: Array,
  *,
  steps: int,
  warmup: int,
  power: Annotated[float, '0 < x <= 100'] = 1.0,
  floor: Rate = 0.0,
  until: Duration = 1.0,
) -> Array:
  """Warm up, then compute floor + (1 - floor) (1 - progress)^power."""
  progress = _progress(step, steps=steps, warmup=warmup, until=until)
  return _warm(step, warmup) * (floor + (1.0 - floor) * (1.0 - progress) ** power)


def inverse_sqrt(step: Array, *, steps: int, warmup: int, hold: Duration | None = None) -> Array:
  """Compute min(1, t / w) sqrt(k / max(t, k)).

  The rate is the peak until step k = `hold`, then proportional to 1 / sqrt(t). T5's 1 / sqrt(max(t, 10^4)) and PaLM's
  10^-2 then 1 / sqrt(t) are rate 0.01 with hold 10,000 and no warmup; fairseq's rate * sqrt(w / t) is warmup w.

  Args:
    steps: horizon.
    warmup: steps of linear warmup.
    hold: k; None is the warmup, or 10,000 without warmup.
  """
  k = (warmup or 10_000) if hold is None else as_steps(hold, steps, 'hold')
  k = max(k, 1)
  return _warm(step, warmup) * jnp.sqrt(k / jnp.maximum(_float(step), k))


def stlr(
  step: Array, *, steps: int, cut: Annotated[float, '0 < x < 1'] = 0.1, ratio: Annotated[float, '1 <= x'] = 32.0
) -> Array:
  """Compute the slanted triangular rate of ULMFiT.

  It rises from 1 / ratio to 1 at floor(T cut), then falls to 1 / ratio at T. p = t / c while t < c, then
  1 - (t - c) / (c (1 / cut - 1)) with c = floor(T cut); the multiple is (1 + p (ratio - 1)) / ratio.
  """
  if not 0.0 < cut < 1.0:
    raise ConfigError(f'optim.cut={cut} is out of range: give a fraction of the run between 0 and 1.')
  step = _float(step)
  peak = max(math.floor(steps * cut), 1)
  p = jnp.where(step < peak, step / peak, 1.0 - (step - peak) / (peak * (1.0 / cut - 1.0)))
  return (1.0 + jnp.clip(p, 0.0, 1.0) * (ratio - 1.0)) / ratio


def inverse_time(step: Array, *, steps: int, warmup: int, coefficient: Annotated[float, '0 <= x'] = 0.005) -> Array:
  """Compute min(1, t / w) / (1 + c sqrt(t)) (CVT)."""
  return _warm(step, warmup) / (1.0 + coefficient * jnp.sqrt(_float(step)))


def plateau(
  step: Array,
  *,
  steps: int,
  warmup: int,
  patience: NonNegativeInt = 0,
  shrink: Annotated[float, '0 < x <= 1'] = 0.5,
  mode: Mode = 'min',
) -> Array:
  """Compute min(1, t / w); `observe_plateau` reduces the rate.

  The reduction is a factor in the optimiser's state.

  Args:
    steps: horizon.
    warmup: steps of linear warmup.
    patience: number of consecutive evaluations without improvement before the rate is reduced at the next one.
    shrink: factor of a reduction.
    mode: 'min' if a smaller metric is better, 'max' if a larger one is; the same as in config.best.
  """
  one_of('optim.mode', mode, Mode)
  return constant(step, steps=steps, warmup=warmup)


def start_plateau() -> dict[str, Array]:
  """Build the initial plateau state: rate factor, best metric, evaluations since."""
  return {'factor': jnp.ones(()), 'best': jnp.full((), jnp.inf), 'waited': jnp.zeros((), jnp.int32)}


def observe_plateau(
  state: dict[str, Array], metric: Array, *, patience: NonNegativeInt = 0, shrink: Annotated[float, '0 < x <= 1'] = 0.5
) -> dict[str, Array]:
  """Update the state of a plateau schedule after an evaluation.

  `metric` is f32[], the validation metric, times -1 if larger is better. See `plateau` for `patience` and `shrink`.
  """
  metric = jnp.asarray(metric, jnp.float32)
  better = metric < state['best']
  waited = jnp.where(better, 0, state['waited'] + 1)
  falls = waited > patience
  return {
    'factor': jnp.where(falls, state['factor'] * shrink, state['factor']),
    'best': jnp.where(better, metric, state['best']),
    'waited': jnp.where(falls, 0, waited),
  }


SCHEDULES: tuple[Callable[..., Array], ...] = (
  constant, linear, linear_bert, gpt, cosine, polynomial, inverse_sqrt, stlr, inverse_time, plateau
)  # fmt: skip


def make(*, name: str, rate: float, steps: int, warmup: int | float = 0, **settings: Any) -> Schedule:
  """Build a schedule of `SCHEDULES`: step -> learning rate f32[].

  `rate` is the peak, and a float `warmup` up to 1.0 is a fraction of `steps`. `settings` are its other keywords.

  Raises:
    ConfigError: an unknown name, a setting out of range, a warmup for a schedule without one.
  """
  schedule = choose(SCHEDULES, name, label='optim.schedule', what='schedule')
  bound: dict[str, Any] = dict(settings, steps=steps)
  if 'warmup' in keywords(schedule):
    bound['warmup'] = as_steps(warmup, steps, 'warmup')
  elif warmup:
    raise ConfigError(f'optim.warmup={warmup}: optim.schedule={name!r} has its own warmup; set optim.warmup to 0.')
  shape = partial(schedule, **bound)
  shape(jnp.zeros(()))  # raises for settings out of range
  return lambda step: rate * shape(step)


def choose(functions: Sequence[Callable[..., Any]], name: str, *, label: str, what: str) -> Callable[..., Any]:
  """Return the function called `name`; raise ConfigError with the choices."""
  names = [function.__name__ for function in functions]
  check_choice(label, what, name, names)
  return functions[names.index(name)]


def keywords(function: Callable[..., Any]) -> list[str]:
  """Return the names of a function's keyword-only parameters."""
  parameters = inspect.signature(function).parameters.values()
  return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


def _float(step: Array) -> Array:
  return jnp.asarray(step, jnp.float32)


def _warm(step: Array, warmup: int) -> Array:
  return jnp.minimum(_float(step) / warmup, 1.0) if warmup else jnp.ones_like(_float(step))


def _progress(step: Array, *, steps: int, warmup: int, until: int | float) -> Array:
  """Compute the progress of the decay, from 0 to 1."""
  end = as_steps(until, steps, 'until')
  return jnp.clip((_float(step) - warmup) / max(end - warmup, 1), 0.0, 1.0)
