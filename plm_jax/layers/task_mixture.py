"""Several tasks over one trunk, of which a step runs one: what mixtures of objectives and of adapters share.

Only the part that a step runs is computed (`jax.lax.switch`); parameters of the others get a gradient of zero.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import get_opaque_trace_state

from plm_jax.core.param_paths import path_name, virtual_paths
from plm_jax.core.types import EVERYTHING, Array, Example, Forward, Loss, PyTree, Task

Tasks = Mapping[str, Task]


class Model:
  """The models of all parts over one trunk, with the two methods of a linen module that a task uses.

  Parameters that parts have in common, the trunk first of all, exist once. With `own_heads` that is the trunk alone,
  and what else a part has stands under its name. A part gives a gradient to what it trains, `Task.trains`.
  """

  def __init__(self, tasks: Tasks, *, own_heads: bool = False):
    self.parts = {name: task.model for name, task in tasks.items()}
    self.trains = {name: task.trains for name, task in tasks.items()}
    self.own_heads = own_heads

  def init(self, key: Array, /, train: bool = False, **inputs: Mapping[str, Any]) -> dict[str, PyTree]:
    """Parameters of every part; `inputs` are those of each part by its name."""
    params: dict[str, PyTree] = {}
    owner: dict[str, str] = {}
    for name, model in self.parts.items():
      tree = model.init(key, **inputs[name], train=train)['params']
      if self.own_heads:
        tree = {'trunk': tree['trunk'], name: {head: tree[head] for head in tree if head != 'trunk'}}
      for module, below in tree.items():
        other = owner.setdefault(module, name)
        try:
          params[module] = _joined(params[module], below) if module in params else below
        except ValueError:
          raise ValueError(f'parts {other!r} and {name!r} both have a head {module!r}, of other shapes') from None
    return {'params': params}

  def apply(self, variables: Mapping[str, PyTree], *, part: str, **arguments: Any) -> Any:
    """Runs the model of one part."""
    if self.own_heads:
      params = variables['params']
      variables = {**variables, 'params': {'trunk': params['trunk'], **params.get(part, {})}}
    variables = {**variables, 'params': _training(variables['params'], self.trains[part])}
    return self.parts[part].apply(variables, **arguments)


def _training(params: PyTree, trains: Sequence[str]) -> PyTree:
  """The parameters, of which those that no pattern of `Task.trains` matches get no gradient."""
  if trains == EVERYTHING:
    return params
  patterns = [re.compile(pattern) for pattern in trains]

  def one(path: Sequence[Any], leaf: Array) -> Array:
    may = [any(each.fullmatch(virtual) for each in patterns) for virtual in virtual_paths(path_name(path), leaf)]
    if len(set(may)) == 1:
      return leaf if may[0] else jax.lax.stop_gradient(leaf)
    layers = np.reshape(may, (-1,) + (1,) * (leaf.ndim - 1))
    return jnp.where(layers, leaf, jax.lax.stop_gradient(leaf))

  return jax.tree_util.tree_map_with_path(one, params)


def _joined(one: PyTree, other: PyTree) -> PyTree:
  """Both of two trees, such as a trunk with its pooler and one without; leaves that both have are those of the first.

  Raises:
    ValueError: they have a leaf of other shapes in the same place.
  """
  if isinstance(one, Mapping) and isinstance(other, Mapping):
    both = {key: _joined(one[key], other[key]) for key in one if key in other}
    return {**one, **other, **both}
  shapes = [jax.tree.map(jnp.shape, nn.unbox(tree)) for tree in (one, other)]
  if shapes[0] != shapes[1]:
    raise ValueError('other shapes')
  return one


def check(tasks: Tasks, *, where: str) -> None:
  """Raises ValueError where a part carries state from step to step; `where` is what holds the parts."""
  for name, task in tasks.items():
    if jax.tree.leaves(task.init_carry(1)):
      raise ValueError(f'{where}: {name!r} carries state from step to step, which a mixture cannot')
    if task.keeps:
      raise ValueError(f'{where}: {name!r} keeps averages over batches, which a mixture cannot: give it norms=True')


def part_loss(tasks: Tasks, name: str, forward: Forward, example: Example, rng: Array, *, evaluate: bool) -> Loss:
  """The loss of one part, or what it scores in an evaluation; inputs and targets stand under its name."""
  task, targets = tasks[name], example.targets[name]
  score = task.evaluate if evaluate and task.evaluate is not None else task.loss
  return score(partial(forward, part=name), Example(example.inputs[name], targets), (), rng)  # type: ignore[arg-type]


def named(metrics: Mapping[str, tuple[Array, Array]], name: str) -> dict[str, tuple[Array, Array]]:
  """Metrics of a part by their names among those of all parts: 'loss' -> 'lm/loss'."""
  return {f'{name}/{metric}': value for metric, value in metrics.items()}


def loss_of_one(
  tasks: Tasks, number: Array, forward: Forward, example: Example, rng: Array, *, evaluate: bool = False
) -> Loss:
  """The loss of part `number`, int32[], in the order of the tasks; the metrics of the others weigh 0."""

  def one(name: str) -> Loss:
    return part_loss(tasks, name, forward, example, rng, evaluate=evaluate)

  shapes = {name: jax.eval_shape(lambda name=name: one(name).metrics) for name in tasks}
  nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

  def branch(name: str) -> Loss:
    result = one(name)
    metrics = {key: value for other in tasks for key, value in named(nothing[other], other).items()}
    return Loss(result.value, {**metrics, **named(result.metrics, name), 'loss': result.metrics['loss']})

  return jax.lax.switch(number, [partial(branch, name) for name in tasks])


def summary(tasks: Tasks, means: dict[str, float]) -> dict[str, float]:
  """The summary of each part under its name."""
  out: dict[str, float] = {}
  for name, task in tasks.items():
    own = {key.removeprefix(f'{name}/'): value for key, value in means.items() if key.startswith(f'{name}/')}
    out |= {f'{name}/{key}': value for key, value in task.summary(own).items()}
  return out


def row_length(tasks: Tasks, length: int) -> int:
  """The longest row of any part."""
  return max(task.row_length(length) for task in tasks.values())


def sized(tasks: Tasks, documents: int) -> dict[str, Task]:
  """The tasks with room for rows of so many documents."""
  return {
    name: task.for_documents(documents) if task.for_documents is not None else task for name, task in tasks.items()
  }


def computed_once(forward: Forward) -> Forward:
  """The same, where a call with the arguments of an earlier one returns what that returned.

  Calls inside what is traced by itself, as a branch of `jax.lax.switch`, are made each time: what they return is of use
  there only.
  """
  calls: dict[Any, tuple[PyTree, Any]] = {}
  outside = get_opaque_trace_state()

  def call(
    *,
    method: str | Callable[..., Any] | None = None,
    train: bool | None = None,
    rng: Array | None = None,
    **inputs: Any,
  ) -> Any:
    if get_opaque_trace_state() != outside:
      return forward(method=method, train=train, rng=rng, **inputs)
    leaves, form = jax.tree.flatten((rng, inputs))
    key = (method, train, form, *map(id, leaves))
    if key not in calls:  # what is kept with the result keeps its arguments, and so their ids, in use
      calls[key] = leaves, forward(method=method, train=train, rng=rng, **inputs)
    return calls[key][1]

  return call
