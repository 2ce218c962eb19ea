"""Several objectives in one run, over one trunk: each step trains one of them, drawn by rate.

    objective = dict(name='mixture', rates=dict(denoise=0.75, lm=0.25), parts=dict(
        denoise=dict(name='mlm'), lm=dict(name='rtd', ...)))

The draw is a pure function of the root key and the step, the same on every device. All parts read the same rows. Only
the drawn part is computed; the heads of the others get a gradient of zero at that step. Denoisers that share one loss
(UL2) are better mixed per row, see `denoise_seq2seq`; text that differs per task is mixed by `data/mixture`.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.objectives import corrupt
from plm_jax.plugins import build
from plm_jax.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Vocab

PAPER = Paper(year=2019, title='Raffel et al., T5 §3.5.2', architecture='any', objective_family='denoising')
READS = ()  # beside what its parts read

# no row has this number: rows count from 0, and padding rows are -1
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


class Setup(NamedTuple):
  """The parts and how often each is drawn.

  Attributes:
    tasks: name -> task, in the order of names.
    bounds: f32[parts - 1], of `corrupt.share_bounds`.
  """

  tasks: dict[str, Task]
  bounds: np.ndarray


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  parts: Mapping[str, Annotated[Mapping[str, Any], 'objectives']],
  rates: Mapping[str, Annotated[float, '0 < x <= 1_000_000']],
) -> Task:
  """Trains each step by one of several objectives.

  Args:
    trunk: that every part can use.
    vocab: of the rows.
    parts: name -> a file of `objectives/` and its keywords.
    rates: name -> share of the steps; they are divided by their sum.

  Raises:
    ValueError: rates and parts name different things, a rate is not positive, or a part carries state.
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
  return make_task(Setup(tasks, corrupt.share_bounds([rates[name] for name in names])))


def make_task(s: Setup) -> Task:
  """The task of the parts."""
  tasks = s.tasks
  model: Any = Model({name: task.model for name, task in tasks.items()})
  return Task(
    model,
    partial(prepare, s),
    partial(loss, s),
    evaluate=partial(evaluate, s),
    summary=partial(summary, s),
    couples_rows=any(task.couples_rows for task in tasks.values()),
    row_length=partial(row_length, s),
    for_documents=partial(for_documents, s) if any(task.for_documents for task in tasks.values()) else None,
  )


def prepare(s: Setup, root: Array, batch: Batch) -> Example:
  """Inputs and targets of every part by its name, and 'drawn' int32[b], the number of the part that is trained."""
  draw = jax.random.uniform(jax.random.fold_in(jax.random.fold_in(root, _DRAW), batch['step']))
  examples = {name: task.prepare(root, batch) for name, task in s.tasks.items()}
  targets: dict[str, Any] = {name: example.targets for name, example in examples.items()}
  targets['drawn'] = jnp.broadcast_to(corrupt.pick_share(draw, s.bounds), batch['row_id'].shape)
  return Example({name: example.inputs for name, example in examples.items()}, targets)


def part_loss(s: Setup, name: str, forward: Forward, example: Example, rng: Array) -> Loss:
  """The loss of one part."""
  targets: Any = example.targets[name]

  def run(**inputs: Any) -> Any:
    return forward(part=name, **inputs)

  return s.tasks[name].loss(run, Example(example.inputs[name], targets), (), rng)


def named(metrics: Mapping[str, tuple[Array, Array]], name: str) -> dict[str, tuple[Array, Array]]:
  """Metrics of a part by their names among those of all parts: 'loss' -> 'lm/loss'."""
  return {f'{name}/{metric}': value for metric, value in metrics.items()}


def loss(s: Setup, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """The loss of the part that was drawn; the metrics of the others weigh 0."""
  del carry
  shapes = {
    name: jax.eval_shape(lambda name=name: part_loss(s, name, forward, example, rng).metrics) for name in s.tasks
  }
  nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

  def branch(name: str) -> Loss:
    result = part_loss(s, name, forward, example, rng)
    metrics = {key: value for other in s.tasks for key, value in named(nothing[other], other).items()}
    return Loss(result.value, {**metrics, **named(result.metrics, name), 'loss': result.metrics['loss']})

  return jax.lax.switch(example.targets['drawn'][0], [partial(branch, name) for name in s.tasks])


def evaluate(s: Setup, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """The losses of all parts."""
  del carry
  results = {name: part_loss(s, name, forward, example, rng) for name in s.tasks}
  metrics = {key: value for name, result in results.items() for key, value in named(result.metrics, name).items()}
  losses: list[Any] = [result.metrics['loss'] for result in results.values()]
  metrics['loss'] = (sum(total for total, _ in losses), sum(weight for _, weight in losses))
  values: list[Any] = [result.value for result in results.values()]
  return Loss(sum(values), metrics)


def summary(s: Setup, means: dict[str, float]) -> dict[str, float]:
  """The summary of each part under its name."""
  out: dict[str, float] = {}
  for name, task in s.tasks.items():
    own = {key.removeprefix(f'{name}/'): value for key, value in means.items() if key.startswith(f'{name}/')}
    out |= {f'{name}/{key}': value for key, value in task.summary(own).items()}
  return out


def row_length(s: Setup, length: int) -> int:
  """The longest row of any part."""
  return max(task.row_length(length) for task in s.tasks.values())


def for_documents(s: Setup, documents: int) -> Task:
  """The task whose parts have room for rows of so many documents."""
  sized = {
    name: task.for_documents(documents) if task.for_documents is not None else task for name, task in s.tasks.items()
  }
  return make_task(s._replace(tasks=sized))
