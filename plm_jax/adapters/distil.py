"""Distillation of a fine-tuned network into a smaller one on the task (Hinton et al. 2015; Turc et al. 2019, §2).

    adapter = dict(name='distil', teacher=dict(name='bert', variant='bert-base'), inner=dict(name='classify'))

Loss = (1 - weight) task loss + weight T^2 KL(teacher || student), both softened by temperature T. The teacher has the
same inner task over a trunk of its own, reads the same rows without dropout or gradient, and stands beside the student
under `distil`. `init_from` loads it from its run, and may give the student every other layer of it:

    init_from = (dict(source=RUN, from_='', to='distil'), dict(source=RUN, layers=(0, 2, 4)), ...)

What is compared are the predictions of the inner task: probabilities of classes or options, or a number (squared error
in place of KL). A run is evaluated, opened and exported as the student alone. For pre-training: objective 'distill'.

Logits are read off the probabilities, which differs from the networks' own where a class has less than e^-87 of them.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.adapters import wrapped
from plm_jax.config import build, signatures
from plm_jax.core.param_paths import both
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Rate, Task, Temperature, Vocab
from plm_jax.layers.losses import divergence
from plm_jax.layers.means import metric, row_terms, scaled_sum, whole_loss
from plm_jax.layers.task_mixture import computed_once

PAPER = Paper(
  year=2015,
  title='Hinton et al.',
  architecture='any',
  objective_family='supervised',
  supervision='supervised',
  extension='compressed',
)
READS = ()  # beside what the inner task reads
ADDS = 'distil'
TAUGHT = 'taught'  # what the teacher reads, among the inputs of the student
ALONE = True  # the rest of the parameters is a whole network: weights/folders.py leaves these out
NEVER = -1e9  # the softened score of an option that a row does not have


class Setup(NamedTuple):
  """Both tasks, and how the student is compared; settings are explained in `make`."""

  student: Task
  teacher: Task
  temperature: float
  weight: float


class Model:
  """The models of student and teacher, with the two methods of a linen module that a task uses."""

  def __init__(self, student: Any, teacher: Any):
    self.student, self.teacher = student, teacher

  def init(self, key: Array, train: bool = False, *, taught: Mapping[str, Array], **inputs: Any) -> dict[str, PyTree]:
    """Parameters of the student, the same as without a teacher, and those of the teacher under `distil`."""
    own, other = self.student.init(key, train=train, **inputs), self.teacher.init(key, train=train, **taught)
    return {'params': {**own['params'], ADDS: other['params']}}

  def apply(
    self, variables: Mapping[str, PyTree], *, teacher: bool = False, taught: Any = None, **arguments: Any
  ) -> Any:
    """Runs the student, or the teacher; `taught` is what the teacher reads, which `compare` hands it."""
    del taught
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
  """Trains the inner task on its labels and on what the teacher predicts.

  Args:
    trunk: the student.
    vocab: of the rows, which both read.
    second_vocab: of the run, for an inner task that takes one.
    inner: what predicts probabilities or a number for each row, as its file states (`OF_A_ROW`), and its keywords;
      those of the teacher's run.
    teacher: its trunk, as a model block.
    temperature: T; above 1, the teacher's opinion of the wrong classes counts more.
    weight: of the comparison; the labels have the rest.

  Raises:
    ValueError: the inner task is a wrapper, freezes its trunk, or predicts something else.
  """
  make_inner = partial(wrapped.make_inner, inner, vocab=vocab, second_vocab=second_vocab)
  student = make_inner(trunk=trunk)
  compared = [name for name, file in signatures.places(wrapped.INNER).items() if signatures.literal(file, 'OF_A_ROW')]
  if inner['name'] not in compared:
    raise ValueError(
      f'adapter.inner.name={inner["name"]!r}: distil compares what student and teacher predict for a whole row; '
      f"choices are {', '.join(sorted(compared))}. For pre-training there is objective.name='distill'"
    )
  other = build.make('models', teacher, vocab_size=vocab.size, execution=trunk.execution)
  return _joined(Setup(student, make_inner(trunk=other), temperature, weight))


def _joined(s: Setup) -> Task:
  """The student's task with the teacher beside it; also with room for more documents."""
  student = s.student

  def sized(make: Callable[[int], Task], documents: int) -> Task:
    other = s.teacher.for_documents
    assert other is not None  # the same kind of task
    return _joined(s._replace(student=make(documents), teacher=other(documents)))

  return student._replace(
    model=Model(student.model, s.teacher.model),  # type: ignore[arg-type]  # it has the two methods that a task uses
    prepare=partial(prepare, s),
    loss=partial(loss, s),
    evaluate=student.evaluate or student.loss,
    trains=tuple(both(pattern, f'(?!{ADDS}/).*') for pattern in student.trains),
    for_documents=None if student.for_documents is None else partial(sized, student.for_documents),
  )


def prepare(s: Setup, root: Array, batch: Batch) -> Example:
  """What the inner task makes, the weight of each row, and what the teacher reads: one may read letters, one tokens."""
  inputs, targets = s.student.prepare(root, batch)
  taught = s.teacher.prepare(root, batch).inputs
  return Example({**inputs, TAUGHT: taught}, targets | row_terms(batch['row_weight']))


def loss(s: Setup, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """The loss of the inner task and the distance of both predictions."""
  own = computed_once(forward)
  found = s.student.loss(own, example, carry, rng)
  theirs: Any = partial(forward, teacher=True, train=False)
  values = compare(s, own, theirs, example)
  targets, weights = example.targets, example.targets['row_weight']
  value = (1 - s.weight) * found.value + s.weight * scaled_sum(values, weights, targets['row_scale'])
  metrics = {**found.metrics, 'task_loss': found.metrics['loss'], 'distil_loss': metric(values, weights)}
  return found._replace(value=value, metrics={**metrics, 'loss': whole_loss(value, targets)})


def compare(s: Setup, own: Forward, theirs: Forward, example: Example) -> Array:
  """How far the student's prediction of each row is from the teacher's, f32[b]."""
  assert s.student.predict is not None and s.teacher.predict is not None  # as of all that state `OF_A_ROW`
  ours = s.student.predict(own, example)
  read = example._replace(inputs=example.inputs[TAUGHT])
  taught = jax.tree.map(jax.lax.stop_gradient, s.teacher.predict(theirs, read))
  if 'value' in ours:
    return jnp.square(ours['value'] - taught['value'])
  return divergence(
    *to_logits(ours['probability'], taught['probability'], temperature=s.temperature), temperature=s.temperature
  )


def to_logits(ours: Array, theirs: Array, *, temperature: float) -> tuple[Array, Array]:
  """Logits f32[b, c] of the probabilities f32[b, c] of student and teacher.

  softmax(logits / T) is the same for log-probabilities in place of logits. An option to which neither gives anything is
  one that the row does not have: it stays without a share at any temperature.
  """
  # probabilities .5 .5 0 and .9 .1 0   logits log .5, log .5, never and log .9, log .1, never
  there = (ours > 0) | (theirs > 0)

  def logits(shares: Array) -> Array:
    return jnp.where(there, jnp.log(jnp.maximum(shares, jnp.finfo(jnp.float32).tiny)), NEVER * temperature)

  return logits(ours), logits(theirs)
