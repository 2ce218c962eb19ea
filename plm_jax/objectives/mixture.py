"""Several objectives in one run, over one trunk: each step trains one of them, drawn by rate.

    objective = dict(name='mixture', rates=dict(denoise=0.75, lm=0.25), parts=dict(
        denoise=dict(name='mlm'), lm=dict(name='rtd', ...)))

The draw is a pure function of the root key and the step, the same on every device. All parts read the same rows. Only
the drawn part is computed; the heads of the others get a gradient of zero at that step. Denoisers that share one loss
(UL2) are better mixed per row, see `denoise_seq2seq`; text that differs per task is mixed by `data/mixture`.
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.plugins import build
from plm_jax.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Vocab

PAPER = Paper(year=2019, title='Raffel et al., T5 §3.5.2', architecture='any', objective_family='denoising')

# a number that no row has: rows count from 0, and padding rows are -1
_DRAW = np.uint32(2**31)


class Model:
  """The models of all parts over one trunk, with the two methods of a linen module that a task uses.

  Parameters that parts have in common, the trunk first of all, exist once.
  """

  def __init__(self, parts: Mapping[str, nn.Module]):
    self.parts = dict(parts)

  def init(self, key: Array, train: bool = False, **inputs: Mapping[str, Any]) -> dict[str, PyTree]:
    """Parameters of every part; `inputs` are those of each part by its name."""
    params: dict[str, PyTree] = {}
    owner: dict[str, str] = {}
    for name, model in self.parts.items():
      for module, tree in model.init(key, **inputs[name], train=train)['params'].items():
        other = owner.setdefault(module, name)
        shapes = [jax.tree.map(jnp.shape, nn.unbox(t)) for t in (params.setdefault(module, tree), tree)]
        if shapes[0] != shapes[1]:
          raise ValueError(f'objective.parts: {other!r} and {name!r} both have a head {module!r}, of other shapes')
    return {'params': params}

  def apply(self, variables: Mapping[str, PyTree], *, part: str, **arguments: Any) -> Any:
    """Runs the model of one part."""
    return self.parts[part].apply(variables, **arguments)


def make(*, trunk: nn.Module, vocab: Vocab, parts: Mapping[str, Mapping[str, Any]], rates: Mapping[str, float]) -> Task:
  """Trains each step by one of several objectives.

  Args:
    trunk: that every part can use.
    vocab: of the rows.
    parts: name -> a file of `objectives/` and its keywords.
    rates: name -> share of the steps; they are divided by their sum.

  Raises:
    ValueError: rates and parts name different things, or a rate is not positive.
  """
  if not parts or set(parts) != set(rates):
    raise ValueError(f'objective.rates names {sorted(rates)}, and objective.parts {sorted(parts)}: name the same parts')
  if min(rates.values()) <= 0:
    raise ValueError(f'objective.rates={dict(rates)}: every rate must be positive; leave a part out instead')
  names = sorted(parts)  # an order that does not depend on how the config was written
  tasks = {name: build.make('objectives', parts[name], trunk=trunk, vocab=vocab) for name in names}
  for name, task in tasks.items():
    if jax.tree.leaves(task.init_carry(1)):
      raise ValueError(f'objective.parts: {name!r} carries state from step to step, which a mixture cannot')
  shares = np.array([rates[name] for name in names], np.float64)
  edges = np.cumsum(shares / shares.sum())[:-1].astype(np.float32)

  def bound(forward: Forward, name: str) -> Forward:
    def run(**inputs: Any) -> Any:
      return forward(part=name, **inputs)

    return run

  def prepare(root: Array, batch: Batch) -> Example:
    draw = jax.random.uniform(jax.random.fold_in(jax.random.fold_in(root, _DRAW), batch['step']))
    drawn = jnp.searchsorted(jnp.asarray(edges), draw, side='right').astype(jnp.int32)
    examples = {name: task.prepare(root, batch) for name, task in tasks.items()}
    targets: dict[str, Any] = {name: example.targets for name, example in examples.items()}
    targets['drawn'] = jnp.broadcast_to(drawn, batch['row_id'].shape)
    return Example({name: example.inputs for name, example in examples.items()}, targets)

  def part(example: Example, name: str) -> Example:
    targets: Any = example.targets[name]
    return Example(example.inputs[name], targets)

  def named(metrics: Mapping[str, tuple[Array, Array]], name: str) -> dict[str, tuple[Array, Array]]:
    return {f'{name}/{metric}': value for metric, value in metrics.items()}

  def loss(forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
    del carry

    def one(name: str) -> Loss:
      return tasks[name].loss(bound(forward, name), part(example, name), (), rng)

    shapes = {name: jax.eval_shape(lambda name=name: one(name).metrics) for name in names}
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def branch(name: str) -> Loss:
      result = one(name)
      metrics = {key: value for other in names for key, value in named(nothing[other], other).items()}
      return Loss(result.value, {**metrics, **named(result.metrics, name), 'loss': result.metrics['loss']})

    return jax.lax.switch(example.targets['drawn'][0], [lambda name=name: branch(name) for name in names])

  def evaluate(forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
    del carry
    results = {name: tasks[name].loss(bound(forward, name), part(example, name), (), rng) for name in names}
    metrics = {key: value for name, result in results.items() for key, value in named(result.metrics, name).items()}
    losses = [result.metrics['loss'] for result in results.values()]
    metrics['loss'] = (sum(total for total, _ in losses), sum(weight for _, weight in losses))
    return Loss(sum(result.value for result in results.values()), metrics)

  def summary(means: dict[str, float]) -> dict[str, float]:
    out: dict[str, float] = {}
    for name, task in tasks.items():
      own = {key.removeprefix(f'{name}/'): value for key, value in means.items() if key.startswith(f'{name}/')}
      out |= {f'{name}/{key}': value for key, value in task.summary(own).items()}
    return out

  model: Any = Model({name: task.model for name, task in tasks.items()})
  couples = any(task.couples_rows for task in tasks.values())

  def row_length(length: int) -> int:
    return max(task.row_length(length) for task in tasks.values())

  return Task(model, prepare, loss, evaluate=evaluate, summary=summary, couples_rows=couples, row_length=row_length)
