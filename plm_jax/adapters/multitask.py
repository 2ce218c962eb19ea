"""Several tasks over one trunk, each with its own head, scores and examples (T5 §3.5.2; Liu et al., MT-DNN).

    data = dict(name='mixture', per='step', parts=dict(rte=dict(name='labelled', ...), sst2=dict(...)), ...)
    adapter = dict(name='multitask', parts=dict(rte=dict(name='classify'), sst2=dict(name='classify')))

Each step trains on examples of one task, which `data/mixture` samples by rate; they train the trunk and the head of
that task. Metrics, scores and predictions have the name of their part as prefix ('rte/accuracy'), and so have the
parameters of heads ('rte/head/kernel') and of wrappers ('rte/lora/...'). A part that freezes the trunk gives it no
gradient. In text-to-text form (`sequence`) tasks need no separate heads: one adapter reads a mixture.
"""

import re
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.config import build, signatures
from plm_jax.core.types import EVERYTHING, Array, Batch, Example, Forward, Loss, PyTree, Supervised, Task, Vocab
from plm_jax.layers import task_mixture
from plm_jax.layers.task_mixture import Tasks

PAPER = Supervised(year=2019, title='T5 §3.5.2; Liu et al., MT-DNN')
PARTS = 'adapters | objectives'
READS = ('part',)  # in addition to its parts
TAKEN = ('trunk', 'train', 'part')  # reserved keys among parameters, inputs and predictions


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  second_vocab: Vocab | None = None,
  parts: Mapping[str, Annotated[Mapping[str, Any], 'adapters | objectives']],
  scores: Mapping[str, tuple[Annotated[str, 'scores'], ...]] = {},
) -> Task:
  """Train each step by the adapter of its examples.

  Args:
    trunk: trunk that every part supports.
    second_vocab: second vocabulary of the run, if a part takes one.
    parts: name -> a file of `adapters/` or `objectives/` and its keywords; names are those of the parts of the data. An
      objective trains on text next to the tasks (T5 §3.5.3).
    scores: name -> files of `plm_jax/scores/` that score all predictions of a part; default: those of its adapter.

  Raises:
    ValueError: no part, a part with a reserved name, one that carries state, or scores of an unknown part.
  """
  if not parts or set(parts) & set(TAKEN):
    taken = ' or '.join(TAKEN)
    raise ValueError(f'adapter.parts has {", ".join(parts) or "no names"}: give tasks a name, but not {taken}')
  offered = {'second_vocab': second_vocab}
  names = sorted(parts)  # the order of part ids in the data
  folders = {name: signatures.folder_of(PARTS, parts[name].get('name', '')) for name in names}
  tasks = {name: build.make(folders[name], parts[name], trunk=trunk, vocab=vocab, offered=offered) for name in names}
  task_mixture.check(tasks, where='adapter.parts')
  if unknown := sorted(set(scores) - set(tasks)):
    raise ValueError(f'adapter.scores has the unknown part {unknown[0]!r}: adapter.parts has {", ".join(tasks)}')
  return join(tasks, scores=scores)


def adapters_by_part(settings: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
  """Return the separate adapter of each part (`config/one_part.py`)."""
  return settings['parts']


def join(tasks: Tasks, *, scores: Mapping[str, tuple[str, ...]] = {}) -> Task:
  """Combine tasks, in the order of names, into one; `scores` replace theirs."""
  part_scores = {name: scores.get(name, task.scores) for name, task in tasks.items()}
  model: Any = task_mixture.Model(tasks, own_heads=True)
  return Task(
    model=model,
    prepare=partial(prepare, tasks),
    loss=partial(loss, tasks),
    predict=partial(predict, tasks) if any(task.predict for task in tasks.values()) else None,
    evaluate=partial(evaluate, tasks),
    summary=partial(task_mixture.summary, tasks),
    exact=partial(task_mixture.exact, tasks),
    couples_rows=any(task.couples_rows for task in tasks.values()),
    row_length=partial(task_mixture.row_length, tasks),
    scores=tuple(f'{name}/{score}' for name, own in part_scores.items() for score in own),
    in_words=partial(in_words, tasks),
    words=tuple(f'{name}/{word}' for name, task in tasks.items() for word in task.words),
    parts=tasks,
    trains=trained(tasks),
  )


def trained(parts: Tasks) -> tuple[str, ...]:
  """Build `Task.trains` from those of the parts.

  The trunk trains what any part trains; below its name a part trains its own parameters.
  """
  first, *others = dict.fromkeys(task.trains for task in parts.values())
  if not others and len(first) == 1 and (first == EVERYTHING or first[0].startswith('(?!trunk/')):
    return first  # freezes parameters of the trunk only, or none
  pairs = [(name, pattern) for name, task in parts.items() for pattern in task.trains]
  return (*(f'(?=trunk/)(?:{own})' for _, own in pairs), *(f'{re.escape(name)}/(?:{own})' for name, own in pairs))


def prepare(parts: Tasks, root: Array, batch: Batch) -> Example:
  """Prepare inputs and targets of every part by name, and 'part' int32[b]."""
  examples = {name: task.prepare(root, _own(task, batch)) for name, task in parts.items()}
  targets: dict[str, Any] = {name: example.targets for name, example in examples.items()}
  return Example({name: example.inputs for name, example in examples.items()}, targets | {'part': batch['part']})


def _own(task: Task, batch: Batch) -> Batch:
  """Convert class labels to int32; a mixture with a regression has f32."""
  if task.classes and 'label' in batch and batch['label'].dtype != jnp.int32:
    return {**batch, 'label': batch['label'].astype(jnp.int32)}
  return batch


def loss(parts: Tasks, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute the loss of the batch's part; other metrics weigh 0."""
  return task_mixture.loss_of_one(parts, example.targets['part'][0], forward, example, rng)


def evaluate(parts: Tasks, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute the loss with the evaluation metrics of the part."""
  return task_mixture.loss_of_one(parts, example.targets['part'][0], forward, example, rng, evaluate=True)


def predict(parts: Tasks, forward: Forward, example: Example) -> dict[str, Array]:
  """Predict with every part, such as 'rte/label'; 'part' int32[b] tells which counts."""
  predictions = {'part': example.targets['part']}
  for name, task in parts.items():
    if task.predict is None:  # an objective
      continue
    targets: Any = example.targets[name]
    own = task.predict(partial(forward, part=name), Example(example.inputs[name], targets))  # type: ignore[arg-type]
    predictions |= {f'{name}/{key}': value for key, value in own.items()}
  return predictions


def in_words(parts: Tasks, prediction: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
  """Return the readable predictions of an example's part, and the part's name."""
  name = list(parts)[int(prediction['part'])]
  # 'rte/label' -> 'label'
  own = {key.removeprefix(f'{name}/'): value for key, value in prediction.items() if key.startswith(f'{name}/')}
  return {'part': name, **parts[name].in_words(own, record)}
