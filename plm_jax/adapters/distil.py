"""Distillation of a fine-tuned network into a smaller one on the task (Hinton et al. 2015; Turc et al. 2019, §2).

    adapter = dict(name='distil', teacher=dict(name='bert', variant='bert-base'), inner=dict(name='classify'))

Loss = (1 - weight) task loss + weight T^2 KL(teacher || student), both softened by temperature T. The teacher has the
same inner task over its own trunk, reads the same batch without dropout or gradient, and its parameters are stored
under `distil`. `init_from` loads it from its run, and can initialise the student from every other layer of it:

    init_from = (dict(source=RUN, from_='', to='distil'), dict(source=RUN, layers=(0, 2, 4)), ...)

The predictions of the inner task are compared: probabilities of classes or options, or a number (squared error instead
of KL). A run is evaluated, opened and exported as the student only. For pre-training: objective 'distill'.

Logits are computed from the probabilities. They differ from the networks' logits if a class has less than e^-87.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.adapters import wrapped
from plm_jax.config import build, signatures
from plm_jax.core.keywords import Rate, Temperature
from plm_jax.core.param_paths import both
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, PyTree, Supervised, Task, Vocab
from plm_jax.layers.losses import divergence
from plm_jax.layers.means import metric, row_terms, scaled_sum, whole_loss
from plm_jax.layers.task_mixture import computed_once

PAPER = Supervised(year=2015, title='Hinton et al.', extension='compressed')
READS = ()  # in addition to the inner task
ADDS = 'distil'
TAUGHT = 'taught'  # key of the teacher's inputs among those of the student
ALONE = True  # the other parameters are a whole network: weights/folders.py omits these
NEVER = -1e9  # softened score of a missing option


class DistilSettings(NamedTuple):
  """Both tasks, and the comparison; the settings are explained in `make`."""

  student: Task
  teacher: Task
  temperature: float
  weight: float


class Model:
  """Models of student and teacher, with the two linen methods that a task uses."""

  def __init__(self, student: Any, teacher: Any):
    self.student, self.teacher = student, teacher

  def init(self, key: Array, train: bool = False, *, taught: Mapping[str, Array], **inputs: Any) -> dict[str, PyTree]:
    """Initialise the student, as without a teacher, and the teacher under `distil`."""
    own, other = self.student.init(key, train=train, **inputs), self.teacher.init(key, train=train, **taught)
    return {'params': {**own['params'], ADDS: other['params']}}

  def apply(
    self, variables: Mapping[str, PyTree], *, teacher: bool = False, taught: Any = None, **arguments: Any
  ) -> Any:
    """Run the student, or the teacher; `taught` is read by `compare` only."""
    params = variables['params']
    if teacher:
      return self.teacher.apply({'params': params[ADDS]}, **arguments)
    return self.student.apply({'params': {name: tree for name, tree in params.items() if name != ADDS}}, **arguments)


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  second_vocab: Vocab | None = None,
  inner: Annotated[Mapping[str, Any], 'adapters | objectives'],
  teacher: Annotated[Mapping[str, Any], 'models'] = {'name': 'bert', 'variant': 'bert-base'},
  temperature: Temperature = 2.0,
  weight: Rate = 0.5,
) -> Task:
  """Train the inner task on its labels and on the teacher's predictions.

  Args:
    vocab: vocabulary of the data, for both networks.
    inner: a task that predicts probabilities or a number per example (`OF_A_ROW` in its file), and its keywords; the
      same as in the teacher's run.
    teacher: trunk of the teacher, as a model block.
    temperature: T; above 1, the teacher's probabilities of the wrong classes count more.
    weight: weight of the comparison; the labels have 1 - weight.

  Raises:
    ValueError: the inner task is a wrapper, freezes its trunk, or predicts something else.
  """
  make_inner = partial(wrapped.make_inner, inner, vocab=vocab, second_vocab=second_vocab)
  student = make_inner(trunk=trunk)
  compared = [name for name, file in signatures.places(wrapped.INNER).items() if signatures.literal(file, 'OF_A_ROW')]
  if inner['name'] not in compared:
    raise ValueError(
      f'adapter.inner.name={inner["name"]!r} has no prediction per example to distil: set it to one of '
      f"{', '.join(sorted(compared))}. For pre-training set objective.name='distill'"
    )
  teacher_trunk = build.make('models', teacher, vocab_size=vocab.size, execution=trunk.execution)
  s = DistilSettings(student=student, teacher=make_inner(trunk=teacher_trunk), temperature=temperature, weight=weight)
  return _joined(s)


def _joined(s: DistilSettings) -> Task:
  """Add the teacher to the student's task."""
  student = s.student

  def sized(make: Callable[[int], Task], documents: int) -> Task:
    make_teacher = s.teacher.for_documents
    assert make_teacher is not None  # the same kind of task
    return _joined(s._replace(student=make(documents), teacher=make_teacher(documents)))

  return student._replace(
    model=Model(student.model, s.teacher.model),  # type: ignore[arg-type]  # it has the two methods that a task uses
    prepare=partial(prepare, s),
    loss=partial(loss, s),
    evaluate=student.evaluate or student.loss,
    trains=tuple(both(pattern, f'(?!{ADDS}/).*') for pattern in student.trains),
    for_documents=None if student.for_documents is None else partial(sized, student.for_documents),
  )


def prepare(s: DistilSettings, root: Array, batch: Batch) -> Example:
  """Prepare the inner task's example, example weights and the teacher's inputs.

  The inputs are separate because one network may read characters and the other tokens.
  """
  inputs, targets = s.student.prepare(root, batch)
  taught = s.teacher.prepare(root, batch).inputs
  return Example({**inputs, TAUGHT: taught}, targets | row_terms(batch['row_weight']))


def loss(s: DistilSettings, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute the inner task's loss plus the distance of both predictions."""
  student = computed_once(forward)
  task_loss = s.student.loss(student, example, carry, rng)
  teacher: Any = partial(forward, teacher=True, train=False)
  values = compare(s, student, teacher, example)
  targets, weights = example.targets, example.targets['row_weight']
  value = (1 - s.weight) * task_loss.value + s.weight * scaled_sum(values, weights, targets['row_scale'])
  metrics = {**task_loss.metrics, 'task_loss': task_loss.metrics['loss'], 'distil_loss': metric(values, weights)}
  return task_loss._replace(value=value, metrics={**metrics, 'loss': whole_loss(value, targets)})


def compare(s: DistilSettings, student: Forward, teacher: Forward, example: Example) -> Array:
  """Compute the distance f32[b] between predictions of student and teacher."""
  assert s.student.predict is not None and s.teacher.predict is not None  # given by `OF_A_ROW`
  ours = s.student.predict(student, example)
  read = example._replace(inputs=example.inputs[TAUGHT])
  taught = jax.tree.map(jax.lax.stop_gradient, s.teacher.predict(teacher, read))
  if 'value' in ours:
    return jnp.square(ours['value'] - taught['value'])
  several = 'threshold' in ours  # each class is a choice between it and nothing
  shares = [jnp.stack([p, 1 - p], axis=-1) if several else p for p in (ours['probability'], taught['probability'])]
  values = divergence(*to_logits(*shares, temperature=s.temperature), temperature=s.temperature)
  return values.mean(axis=-1) if several else values


def to_logits(ours: Array, theirs: Array, *, temperature: float) -> tuple[Array, Array]:
  """Convert probabilities f32[b, c] of student and teacher to logits.

  softmax(logits / T) is the same for log-probabilities instead of logits. An option with probability 0 from both is
  missing from the example; it keeps probability 0 at any temperature.
  """
  # probabilities .5 .5 0 and .9 .1 0   logits log .5, log .5, never and log .9, log .1, never
  present = (ours > 0) | (theirs > 0)

  def logits(probabilities: Array) -> Array:
    return jnp.where(present, jnp.log(jnp.maximum(probabilities, jnp.finfo(jnp.float32).tiny)), NEVER * temperature)

  return logits(ours), logits(theirs)
