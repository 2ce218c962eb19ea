"""Several objectives in one run, over one trunk: each step trains one of them, sampled by rate.

    objective = dict(name='mixture', rates=dict(denoise=0.75, lm=0.25), parts=dict(
        denoise=dict(name='mlm'), lm=dict(name='rtd', ...)))

The sampled part is a pure function of the root key and the step, the same on every device. All parts read the same
rows. Only the sampled part is computed; the heads of the others get a zero gradient at that step. Denoisers that share
one loss (UL2) are better mixed per row, see `denoise_seq2seq`.

If each objective has its own text, the data decide: without `rates`, a step trains the part of its batch, which
`data/mixture` with per='step' samples; its parts have the same names.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.config import build
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Vocab
from plm_jax.layers import task_mixture as tasks
from plm_jax.objectives import corrupt

PAPER = Paper(year=2019, title='Raffel et al., T5 §3.5.2', architecture='any', objective_family='denoising')
READS = ()  # in addition to the inputs of its parts

# not a row id: rows count from 0, and padding rows are -1
_DRAW = np.uint32(2**31)


class MixtureSettings(NamedTuple):
  """The parts and their rates."""

  tasks: dict[str, Task]  # name -> task, in the order of names
  bounds: np.ndarray | None  # f32[parts - 1], of `corrupt.share_bounds`; None if the data decide


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  second_vocab: Vocab | None = None,
  parts: Mapping[str, Annotated[Mapping[str, Any], 'objectives']],
  rates: Mapping[str, Annotated[float, '0 < x <= 1_000_000']] | None = None,
) -> Task:
  """Build a task that trains one of several objectives at each step.

  Args:
    trunk: a trunk that every part can use.
    second_vocab: of the run, for parts that take one.
    parts: name -> a file of `objectives/` and its keywords.
    rates: name -> share of the steps; they are divided by their sum. None: each step trains the part of its rows.

  Raises:
    ValueError: rates and parts have different names, a rate is not positive, or a part carries state.
  """
  if not parts or (rates is not None and set(parts) != set(rates)):
    rated = sorted(rates or ())
    raise ValueError(f'objective.rates names {rated}, but objective.parts {sorted(parts)}: name the same parts')
  if rates is not None and min(rates.values()) <= 0:
    raise ValueError(f'objective.rates={dict(rates)}: every rate must be positive; leave a part out instead')
  offered = {'second_vocab': second_vocab}
  names = sorted(parts)  # independent of the order in the config
  by_name = {name: build.make('objectives', parts[name], trunk=trunk, vocab=vocab, offered=offered) for name in names}
  tasks.check(by_name, where='objective.parts')
  bounds = None if rates is None else corrupt.share_bounds([rates[name] for name in names])
  return make_task(MixtureSettings(tasks=by_name, bounds=bounds))


def make_task(s: MixtureSettings) -> Task:
  """Build the task of the parts."""
  model: Any = tasks.Model(s.tasks)
  return Task(
    model,
    partial(prepare, s),
    partial(loss, s),
    evaluate=partial(evaluate, s),
    summary=partial(tasks.summary, s.tasks),
    exact=partial(tasks.exact, s.tasks),
    couples_rows=any(task.couples_rows for task in s.tasks.values()),
    row_length=partial(tasks.row_length, s.tasks),
    for_documents=partial(for_documents, s) if any(task.for_documents for task in s.tasks.values()) else None,
    parts={} if s.bounds is not None else s.tasks,
  )


def prepare(s: MixtureSettings, root: Array, batch: Batch) -> Example:
  """Build inputs and targets by part; 'drawn' int32[b] indexes the trained part."""
  examples = {name: task.prepare(root, batch) for name, task in s.tasks.items()}
  targets: dict[str, Any] = {name: example.targets for name, example in examples.items()}
  targets['drawn'] = batch['part'] if s.bounds is None else draw(s.bounds, root, batch)
  return Example({name: example.inputs for name, example in examples.items()}, targets)


def draw(bounds: np.ndarray, root: Array, batch: Batch) -> Array:
  """Sample the part to train: its index, int32[b], equal in all rows."""
  uniform = jax.random.uniform(jax.random.fold_in(jax.random.fold_in(root, _DRAW), batch['step']))
  return jnp.broadcast_to(corrupt.pick_share(uniform, bounds), batch['row_id'].shape)


def loss(s: MixtureSettings, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute the loss of the sampled part; other metrics weigh 0."""
  targets: Any = example.targets
  return tasks.loss_of_one(s.tasks, targets['drawn'][0], forward, example, rng)


def evaluate(s: MixtureSettings, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute losses of all parts; of the rows' own if data decide."""
  targets: Any = example.targets
  if s.bounds is None:
    return tasks.loss_of_one(s.tasks, targets['drawn'][0], forward, example, rng, evaluate=True)
  results = {name: tasks.part_loss(s.tasks, name, forward, example, rng, evaluate=False) for name in s.tasks}
  metrics = {key: value for name, result in results.items() for key, value in tasks.named(result.metrics, name).items()}
  losses: list[Any] = [result.metrics['loss'] for result in results.values()]
  metrics['loss'] = (sum(total for total, _ in losses), sum(weight for _, weight in losses))
  values: list[Any] = [result.value for result in results.values()]
  return Loss(sum(values), metrics)


def for_documents(s: MixtureSettings, documents: int) -> Task:
  """Build the task whose parts have room for rows of `documents` documents."""
  return make_task(s._replace(tasks=tasks.sized(s.tasks, documents)))
