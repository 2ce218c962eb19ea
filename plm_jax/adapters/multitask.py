"""Several tasks at once over one trunk, each with a head, scores and rows of its own (T5 §3.5.2; Liu et al., MT-DNN).

    data = dict(name='mixture', per='step', parts=dict(rte=dict(name='labelled', ...), sst2=dict(...)), ...)
    adapter = dict(name='multitask', parts=dict(rte=dict(name='classify'), sst2=dict(name='classify')))

The rows of a step are those of one task, which `data/mixture` draws by rate, and train the trunk and the head of that
task. Metrics, scores and predictions are those of the parts under their names, as 'rte/accuracy'; so are parameters of
the heads, as 'rte/head/kernel', and of what a wrapper adds for a part, as 'rte/lora/...'. A part that keeps the trunk
gives it no gradient. In text-to-text form (`sequence`) tasks need no heads of their own: there, one adapter reads a
mixture.
"""

import re
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.config import build
from plm_jax.core.types import EVERYTHING, Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Vocab
from plm_jax.layers import task_mixture
from plm_jax.layers.task_mixture import Tasks

PAPER = Paper(
  year=2019,
  title='T5 §3.5.2; Liu et al., MT-DNN',
  architecture='any',
  objective_family='supervised',
  supervision='supervised',
)
READS = ('part',)  # beside what its parts read
TAKEN = ('trunk', 'train', 'part')  # what else stands beside parameters, inputs and predictions of parts


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  second_vocab: Vocab | None = None,
  parts: Mapping[str, Annotated[Mapping[str, Any], 'adapters']],
  scores: Mapping[str, tuple[Annotated[str, 'scores'], ...]] = {},
) -> Task:
  """Trains each step by the adapter that its rows belong to.

  Args:
    trunk: that every part can use.
    vocab: of the rows.
    second_vocab: of the run, for parts that take one.
    parts: name -> a file of `adapters/` and its keywords; names are those of the parts of the data.
    scores: name -> files of `plm_jax/scores/` that score all predictions of a part; others have those of their adapter.

  Raises:
    ValueError: no part, a part with a name that is taken, one that carries state, or scores of what is none.
  """
  if not parts or set(parts) & set(TAKEN):
    taken = ' or '.join(TAKEN)
    raise ValueError(f'adapter.parts names {", ".join(parts) or "nothing"}: name tasks, none of them {taken}')
  offered = {'second_vocab': second_vocab}
  names = sorted(parts)  # the order in which the data number them
  made = {name: build.make('adapters', parts[name], trunk=trunk, vocab=vocab, offered=offered) for name in names}
  task_mixture.check(made, where='adapter.parts')
  if unknown := sorted(set(scores) - set(made)):
    raise ValueError(f'adapter.scores names {unknown[0]!r}, and adapter.parts {", ".join(made)}')
  return join(made, scores=scores)


def adapters_by_part(settings: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
  """Part -> the adapter that computes it by itself (`config/one_part.py`), from the block of this one."""
  return settings['parts']


def join(made: Tasks, *, scores: Mapping[str, tuple[str, ...]] = {}) -> Task:
  """The task of several tasks, by name in the order of names, each of which trains on rows of its own.

  Args:
    made: their models have the same trunk, and may be given other heads than their own (`Forward` with `part`).
    scores: of those whose scores are not those that they name themselves.
  """
  of_parts = {name: scores.get(name, task.scores) for name, task in made.items()}
  model: Any = task_mixture.Model(made, own_heads=True)
  return Task(
    model,
    partial(prepare, made),
    partial(loss, made),
    partial(predict, made) if all(task.predict for task in made.values()) else None,
    evaluate=partial(evaluate, made),
    summary=partial(task_mixture.summary, made),
    couples_rows=any(task.couples_rows for task in made.values()),
    row_length=partial(task_mixture.row_length, made),
    scores=tuple(f'{name}/{score}' for name, own in of_parts.items() for score in own),
    in_words=partial(in_words, made),
    words=tuple(f'{name}/{word}' for name, task in made.items() for word in task.words),
    parts=made,
    trains=trained(made),
  )


def trained(parts: Tasks) -> tuple[str, ...]:
  """`Task.trains`: of the trunk what any part trains, and of what stands under its name what a part trains there."""
  first, *others = dict.fromkeys(task.trains for task in parts.values())
  if not others and len(first) == 1 and (first == EVERYTHING or first[0].startswith('(?!trunk/')):
    return first  # it holds back parameters of the trunk alone, or none
  pairs = [(name, pattern) for name, task in parts.items() for pattern in task.trains]
  return (*(f'(?=trunk/)(?:{own})' for _, own in pairs), *(f'{re.escape(name)}/(?:{own})' for name, own in pairs))


def prepare(parts: Tasks, root: Array, batch: Batch) -> Example:
  """Inputs and targets of every part by its name, and 'part' int32[b]."""
  examples = {name: task.prepare(root, _own(task, batch)) for name, task in parts.items()}
  targets: dict[str, Any] = {name: example.targets for name, example in examples.items()}
  return Example({name: example.inputs for name, example in examples.items()}, targets | {'part': batch['part']})


def _own(task: Task, batch: Batch) -> Batch:
  """The batch with a label as the task has it: beside a regression, classes come as f32."""
  if task.classes and 'label' in batch and batch['label'].dtype != jnp.int32:
    return {**batch, 'label': batch['label'].astype(jnp.int32)}
  return batch


def loss(parts: Tasks, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """The loss of the part whose rows these are; the metrics of the others weigh 0."""
  del carry
  return task_mixture.loss_of_one(parts, example.targets['part'][0], forward, example, rng)


def evaluate(parts: Tasks, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """The same with what the part scores in an evaluation."""
  del carry
  return task_mixture.loss_of_one(parts, example.targets['part'][0], forward, example, rng, evaluate=True)


def predict(parts: Tasks, forward: Forward, example: Example) -> dict[str, Array]:
  """The predictions of every part by names as 'rte/label', and 'part' int32[b], whose of them count."""
  found = {'part': example.targets['part']}
  for name, task in parts.items():
    assert task.predict is not None
    targets: Any = example.targets[name]
    own = task.predict(partial(forward, part=name), Example(example.inputs[name], targets))  # type: ignore[arg-type]
    found |= {f'{name}/{key}': value for key, value in own.items()}
  return found


def in_words(parts: Tasks, prediction: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
  """What the part of a row says of its own predictions, and the name of the part."""
  name = list(parts)[int(prediction['part'])]
  return {'part': name, **parts[name].in_words(of_part(name, prediction), record)}


def of_part(name: str, prediction: Mapping[str, Any]) -> dict[str, Any]:
  """The predictions of a part, of one row or of many: 'rte/label' -> 'label'."""
  return {key.removeprefix(f'{name}/'): value for key, value in prediction.items() if key.startswith(f'{name}/')}
