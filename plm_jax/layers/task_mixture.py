"""Several tasks over one trunk, one per step, for mixtures of objectives and of adapters.

Only the part of the step is computed (`jax.lax.switch`). Parameters of the other parts get a gradient of zero.
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

  Parameters that parts share, first of all the trunk, exist once. With `own_heads` they share only the trunk, and all
  other parameters of a part are stored under its name. A part gives a gradient only to the parameters that it trains
  (`Task.trains`).
  """

  def __init__(self, tasks: Tasks, *, own_heads: bool = False):
    self.parts = {name: task.model for name, task in tasks.items()}
    self.trains = {name: task.trains for name, task in tasks.items()}
    self.own_heads = own_heads

  def init(self, key: Array, /, train: bool = False, **inputs: Mapping[str, Any]) -> dict[str, PyTree]:
    """Initialise the parameters of every part; `inputs` are by name."""
    params: dict[str, PyTree] = {}
    owner: dict[str, str] = {}
    for name, model in self.parts.items():
      tree = model.init(key, **inputs[name], train=train)['params']
      # a separate name for all parameters except the trunk
      if self.own_heads:
        tree = {'trunk': tree['trunk'], name: {head: tree[head] for head in tree if head != 'trunk'}}
      # merge modules that parts share; `owner` is the first part with a module, for the message
      for module, below in tree.items():
        other = owner.setdefault(module, name)
        try:
          params[module] = _joined(params[module], below) if module in params else below
        except ValueError:
          raise ValueError(f'parts {other!r} and {name!r} have a head {module!r} of different shapes') from None
    return {'params': params}

  def apply(self, variables: Mapping[str, PyTree], *, part: str, **arguments: Any) -> Any:
    """Run the model of one part."""
    if self.own_heads:
      params = variables['params']
      variables = {**variables, 'params': {'trunk': params['trunk'], **params.get(part, {})}}
    variables = {**variables, 'params': _training(variables['params'], self.trains[part])}
    return self.parts[part].apply(variables, **arguments)


def _training(params: PyTree, trains: Sequence[str]) -> PyTree:
  """Stop the gradient of parameters that no pattern of `trains` matches."""
  if trains == EVERYTHING:
    return params
  # a pattern matches the whole path of a layer
  patterns = [re.compile(pattern) for pattern in trains]

  def stop(path: Sequence[Any], leaf: Array) -> Array:
    trained = [any(each.fullmatch(virtual) for each in patterns) for virtual in virtual_paths(path_name(path), leaf)]
    # all layers agree: the whole leaf trains or not
    if len(set(trained)) == 1:
      return leaf if trained[0] else jax.lax.stop_gradient(leaf)
    # a stacked leaf: select by layer
    layers = np.reshape(trained, (-1,) + (1,) * (leaf.ndim - 1))
    return jnp.where(layers, leaf, jax.lax.stop_gradient(leaf))

  return jax.tree_util.tree_map_with_path(stop, params)


def _joined(first: PyTree, second: PyTree) -> PyTree:
  """Merge two trees, the first preferred; raise ValueError for other shapes."""
  if isinstance(first, Mapping) and isinstance(second, Mapping):
    # keys of both are merged recursively
    both = {key: _joined(first[key], second[key]) for key in first if key in second}
    return {**first, **second, **both}
  shapes = [jax.tree.map(jnp.shape, nn.unbox(tree)) for tree in (first, second)]
  if shapes[0] != shapes[1]:
    raise ValueError('different shapes')
  return first


def check(tasks: Tasks, *, where: str) -> None:
  """Raise ValueError if a part (of `where`) carries state across steps."""
  for name, task in tasks.items():
    if jax.tree.leaves(task.init_carry(1)):
      raise ValueError(f'{where}: {name!r} carries state from step to step, which a mixture does not support')
    if task.keeps:
      raise ValueError(
        f'{where}: {name!r} keeps averages over batches, which a mixture does not support: set norms=True'
      )


def part_loss(tasks: Tasks, name: str, forward: Forward, example: Example, rng: Array, *, evaluate: bool) -> Loss:
  """Compute the loss of one part, or its scores in an evaluation."""
  task, targets = tasks[name], example.targets[name]
  score = task.evaluate if evaluate and task.evaluate is not None else task.loss
  return score(partial(forward, part=name), Example(example.inputs[name], targets), (), rng)  # type: ignore[arg-type]


def named(metrics: Mapping[str, tuple[Array, Array]], name: str) -> dict[str, tuple[Array, Array]]:
  """Prefix the metrics of a part with its name: 'loss' -> 'lm/loss'."""
  return {f'{name}/{metric}': value for metric, value in metrics.items()}


def loss_of_one(
  tasks: Tasks, number: Array, forward: Forward, example: Example, rng: Array, *, evaluate: bool = False
) -> Loss:
  """Compute the loss of part `number`, int32[].

  Parts are in the order of the tasks. Metrics of the others have weight 0.
  """

  def loss_of(name: str) -> Loss:
    return part_loss(tasks, name, forward, example, rng, evaluate=evaluate)

  # 1. zeros for the metrics of the other parts, since all branches of a switch return the same tree
  shapes = {name: jax.eval_shape(lambda name=name: loss_of(name).metrics) for name in tasks}
  nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

  # 2. one branch per part
  def branch(name: str) -> Loss:
    result = loss_of(name)
    metrics = {key: value for other in tasks for key, value in named(nothing[other], other).items()}
    return Loss(result.value, {**metrics, **named(result.metrics, name), 'loss': result.metrics['loss']})

  return jax.lax.switch(number, [partial(branch, name) for name in tasks])


def summary(tasks: Tasks, means: dict[str, float]) -> dict[str, float]:
  """Compute the summary of each part, under its name."""
  out: dict[str, float] = {}
  for name, task in tasks.items():
    own = {key.removeprefix(f'{name}/'): value for key, value in means.items() if key.startswith(f'{name}/')}
    out |= {f'{name}/{key}': value for key, value in task.summary(own).items()}
  return out


def exact(tasks: Tasks, totals: Mapping[str, tuple[Any, Any]]) -> Mapping[str, tuple[Any, Any]]:
  """Compute the exact 'loss' of each part, and their sum."""
  out = dict(totals)
  for name, task in tasks.items():
    own = {key.removeprefix(f'{name}/'): value for key, value in totals.items() if key.startswith(f'{name}/')}
    out |= named(task.exact(own), name)
  losses = [f'{name}/loss' for name in tasks]
  if any(out[loss] is not totals[loss] for loss in losses):
    sums, weights = zip(*(map(float, out[loss]) for loss in losses), strict=True)
    out['loss'] = sum(sums), sum(weights)
  return out


def row_length(tasks: Tasks, length: int) -> int:
  """Return the longest row of any part."""
  return max(task.row_length(length) for task in tasks.values())


def sized(tasks: Tasks, documents: int) -> dict[str, Task]:
  """Resize the tasks for rows of `documents` documents."""
  return {
    name: task.for_documents(documents) if task.for_documents is not None else task for name, task in tasks.items()
  }


def computed_once(forward: Forward) -> Forward:
  """Cache the results of a forward function by its arguments.

  Calls inside separately traced code, such as a branch of `jax.lax.switch`, are not cached, since their results are
  valid only there.
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
    # arrays are compared by identity, all other arguments by value
    leaves, form = jax.tree.flatten((rng, inputs))
    key = (method, train, form, *map(id, leaves))
    if key not in calls:  # the arguments are stored as well, so that their ids stay in use
      calls[key] = leaves, forward(method=method, train=train, rng=rng, **inputs)
    return calls[key][1]

  return call
