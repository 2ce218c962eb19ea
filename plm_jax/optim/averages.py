"""Averages of parameters over steps, for evaluation."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from plm_jax.core.types import Array, PyTree


class Average(NamedTuple):
  """Functions that average parameters over steps."""

  init: Callable[[PyTree], PyTree]  # trainable parameters -> state; its 'params' is the average
  # (state, parameters after the step, number of updates before it) -> state
  update: Callable[[PyTree, PyTree, Array], PyTree]
  observe: Callable[[PyTree, Array], PyTree]  # (state, validation metric, smaller is better) -> state


def exponential_mean(decay: float) -> Average:
  """Build an exponential mean of the parameters.

  mean = decay mean + (1 - decay) parameters, starting at the initial parameters.
  """

  def update(state: PyTree, params: PyTree, step: Array) -> PyTree:
    return {'params': jax.tree.map(lambda mean, param: mean + (1.0 - decay) * (param - mean), state['params'], params)}

  return Average(_copy, update, observe=lambda state, metric: state)


def iterate_mean(*, start: int | None, nonmonotone: int) -> Average:
  """Build a plain mean of the parameters since the start.

  Before the start it is the latest parameters. With start=None the mean starts as in the AWD-LSTM code, at a loss above
  min(previous losses[:-nonmonotone]). For metrics where larger is better the loss is the metric times -1.
  """

  def init(params: PyTree) -> PyTree:
    trigger = {
      'recent': jnp.full((nonmonotone,), jnp.inf),
      'older': jnp.full((), jnp.inf),
      'started': jnp.zeros((), bool),
    }
    return _copy(params) | {'averaged': jnp.zeros((), jnp.int32), 'trigger': trigger}

  def update(state: PyTree, params: PyTree, step: Array) -> PyTree:
    running = state['trigger']['started'] if start is None else step >= start
    averaged = jnp.where(running, state['averaged'] + 1, 0)
    mean = jax.tree.map(
      lambda mean, param: jnp.where(averaged <= 1, param, mean + (param - mean) / jnp.maximum(averaged, 1)),
      state['params'],
      params,
    )
    return state | {'params': mean, 'averaged': averaged}

  def observe(state: PyTree, metric: Array) -> PyTree:
    recent, older, started = (state['trigger'][name] for name in ('recent', 'older', 'started'))
    started = started | (metric > older)
    older = jnp.minimum(older, recent[0])
    return state | {'trigger': {'recent': jnp.append(recent[1:], metric), 'older': older, 'started': started}}

  return Average(init, update, observe)


def _copy(params: PyTree) -> PyTree:
  # a copy, because a step that donates its state may not hold one buffer twice
  return {'params': jax.tree.map(lambda param: jnp.array(param, copy=True), params)}
