"""Distillation of a large encoder into a small one (Sanh et al. 2019, DistilBERT §3; arXiv 1910.01108).

Loss = 5 KL(teacher || student), both softened by temperature 2, times 2^2; + 2 MLM; + 1 cosine distance of the last
states. The teacher's parameters are `params['teacher']`, named as in a run of objective mlm. It reads the same
corrupted rows, without dropout or gradient. `init_from` loads it, and optim.scale = (('teacher/.*', None), ('.*', 1.0))
freezes it.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.config import build
from plm_jax.core import errors
from plm_jax.core.errors import require
from plm_jax.core.keywords import Count, Temperature, Weight
from plm_jax.core.trunk import Attends
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Vocab
from plm_jax.layers.losses import divergence, in_chunks
from plm_jax.layers.means import batch_scale, exact_loss, metric, perplexity_of, row_terms, scaled_sum, whole_loss
from plm_jax.objectives import corrupt, mlm

PAPER = Paper(
  year=2019,
  title='Sanh et al., DistilBERT',
  architecture='encoder',
  objective_family='denoising',
  extension='compressed',
)
READS = ('tokens', 'segment_ids')
MAY_READ = ('word_marks',)

Positions = Literal['all', 'masked']


class Model(nn.Module):
  """The student `trunk` with its head, and the teacher, a model of objective mlm."""

  trunk: nn.Module
  mlm: nn.Module
  teacher: Any

  def __call__(self, predict: Array, train: bool = False, **inputs: Any) -> Array:
    """Compute the student's vocabulary logits f32[b, t, v] at `predict` int[b, t]."""
    if self.is_initializing():
      self.teacher(predict, **inputs)
    hidden = self.encode(**inputs, train=train)
    return self.attend(mlm.states_at(hidden, predict))

  def encode(self, train: bool = False, **inputs: Any) -> Array:
    """Compute states of the student [b, l, d]."""
    return self.trunk(**inputs, train=train)['hidden']

  def teach(self, train: bool = False, **inputs: Any) -> Array:
    """Compute states of the teacher [b, l, d], without dropout or gradient."""
    return jax.lax.stop_gradient(self.teacher.trunk(**inputs, train=False)['hidden'])

  def attend(self, features: Array, train: bool = False) -> Array:
    """Compute the student's vocabulary logits f32[..., v]."""
    return self.mlm(features, self.trunk.attend)

  def teacher_attend(self, features: Array, train: bool = False) -> Array:
    """Compute the teacher's vocabulary logits f32[..., v], without gradient."""
    return jax.lax.stop_gradient(self.teacher.mlm(features, self.teacher.trunk.attend))


class DistillSettings(NamedTuple):
  """Settings of corruption and comparison; those without a comment are explained in `make`."""

  masking: mlm.MlmSettings
  vocab_size: int  # number of logits compared
  temperature: float
  kl_weight: float
  mlm_weight: float
  cosine_weight: float
  mse_weight: float
  positions: Positions
  logit_rows: int


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  teacher: Annotated[Mapping[str, Any], 'models'] = {'name': 'bert', 'variant': 'bert-base'},
  where: Annotated[Mapping[str, Any], 'noise.where'] = {'name': 'frequency', 'rate': 0.15},
  edit: Annotated[Mapping[str, Any], 'noise.edit'] = {'name': 'bert_80_10_10'},
  temperature: Temperature = 2.0,
  kl_weight: Weight = 5.0,
  mlm_weight: Weight = 2.0,
  cosine_weight: Weight = 1.0,
  mse_weight: Weight = 0.0,
  positions: Positions = 'all',
  logit_rows: Count = 8,
) -> Task:
  """Build distillation into a bidirectional trunk.

  Weight 0 disables a term (§4, Table 4).

  Args:
    vocab: with a mask token, and with token counts if `where` uses frequencies.
    teacher: its trunk, as a model block, with the student's vocabulary.
    where: the tokens to corrupt, as in `mlm`; rare ones first, as released.
    edit: how to corrupt them, as in `mlm`.
    temperature: T.
    kl_weight: of the divergence of softened predictions.
    mlm_weight: of masked language modelling by the student.
    cosine_weight: of the cosine distance of the last states, at all tokens; needs states of one width.
    mse_weight: of the squared distance of the logits, summed over the vocabulary, an option of the released code.
    positions: compare predictions at 'all' tokens or at the 'masked' (corrupted) ones. Never at padding.
    logit_rows: rows of each device whose vocabulary logits are in memory at a time.

  Raises:
    ValueError: contradictory settings, or no loss.
  """
  errors.one_of('objective.positions', positions, Positions)
  corrupt.check_weights(kl_weight=kl_weight, mlm_weight=mlm_weight, cosine_weight=cosine_weight, mse_weight=mse_weight)
  if temperature <= 0:
    raise ValueError(f'objective.temperature={temperature} must be above 0')
  second = build.make('models', teacher, vocab_size=vocab.size, execution=trunk.execution)
  for network in (trunk, second):
    inputs = ('tokens', 'segment_ids')
    require(network, user="objective 'distill'", attention=('bidirectional',), inputs=inputs, offers=(Attends,))
  if cosine_weight and trunk.hidden_dim != second.hidden_dim:
    raise ValueError(
      f'objective.cosine_weight={cosine_weight} compares states, but the student has width {trunk.hidden_dim} and the '
      f'teacher {second.hidden_dim}: choose a teacher of the same hidden_dim, or objective.cosine_weight=0'
    )
  s = DistillSettings(
    masking=mlm.bind(vocab, where=where, edit=edit, user='objective distill'),
    vocab_size=vocab.size,
    temperature=temperature,
    kl_weight=kl_weight,
    mlm_weight=mlm_weight,
    cosine_weight=cosine_weight,
    mse_weight=mse_weight,
    positions=positions,
    logit_rows=logit_rows,
  )
  model = Model(trunk, mlm.make_head(trunk), mlm.Model(second, mlm.make_head(second)))
  summary = partial(perplexity_of, nats='mlm_loss')
  shares = {'kl_loss': kl_weight, 'mse_loss': mse_weight, 'mlm_loss': mlm_weight, 'cosine_loss': cosine_weight}
  exact = partial(exact_loss, terms={name: share for name, share in shares.items() if share})
  return Task(model, partial(prepare, s), partial(loss, s), mlm.predict, summary=summary, exact=exact)


def prepare(s: DistillSettings, root: Array, batch: Batch) -> Example:
  """Build the example of `mlm.prepare`, and weights of all tokens."""
  inputs, targets = mlm.prepare(s.masking, root, batch)
  real = (batch['segment_ids'] > 0) * batch['row_weight'][:, None]
  more = {'token_weights': real, 'token_scale': batch_scale(real), **row_terms(batch['row_weight'])}
  return Example(inputs, targets | more)


def loss(s: DistillSettings, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute the weighted sum of all terms in use."""
  targets, positions = example.targets, example.inputs['predict']
  read: dict[str, Any] = {name: value for name, value in example.inputs.items() if name != 'predict'}
  hidden = forward(method='encode', **read)
  compares = bool(s.kl_weight or s.mse_weight)
  value, metrics = jnp.float32(0), {}
  if compares or s.cosine_weight:
    taught = forward(method='teach', train=False, **read)
  if compares:
    states, weights, scale = (hidden, taught), targets['token_weights'], targets['token_scale']
    if s.positions == 'masked':
      states = mlm.states_at(hidden, positions), mlm.states_at(taught, positions)
      weights, scale = targets['weights'], targets['scale']
    nats, squares = compare(s, forward, states)
    for name, values, share in (('kl', nats, s.kl_weight), ('mse', squares, s.mse_weight)):
      if share:
        value = value + share * scaled_sum(values, weights, scale)
        metrics[f'{name}_loss'] = metric(values, weights)
  if s.mlm_weight:
    masked = mlm.score(forward(method='attend', features=mlm.states_at(hidden, positions)), targets)
    value = value + s.mlm_weight * masked.value
    metrics |= {'mlm_loss': masked.metrics['loss'], 'accuracy': masked.metrics['accuracy']}
    metrics['targets_without_slot'] = masked.metrics['targets_without_slot']
  if s.cosine_weight:
    distance, weights = cosine_distance(hidden, taught), targets['token_weights']
    value = value + s.cosine_weight * scaled_sum(distance, weights, targets['token_scale'])
    metrics['cosine_loss'] = metric(distance, weights)
  return Loss(value, metrics | {'loss': whole_loss(value, targets)})


def compare(s: DistillSettings, forward: Forward, states: tuple[Array, Array]) -> tuple[Array, Array]:
  """Compare student and teacher at states [b, t, d] of each.

  Return the divergence and the squared distance of the logits, f32[b, t] twice.
  """

  def both(states: tuple[Array, Array]) -> tuple[Array, Array]:
    student = forward(method='attend', features=states[0])
    teacher = forward(method='teacher_attend', features=states[1])
    squares = jnp.square(student - teacher)[..., : s.vocab_size].sum(axis=-1)
    return divergence(student, teacher, temperature=s.temperature), squares

  return in_chunks(both, states, rows=s.logit_rows)


def cosine_distance(a: Array, b: Array) -> Array:
  """Compute 1 - cosine: [..., d] twice -> f32[...]; 1 for zeros."""
  a, b = a.astype(jnp.float32), b.astype(jnp.float32)
  squares = (a * a).sum(axis=-1) * (b * b).sum(axis=-1)
  return 1 - (a * b).sum(axis=-1) * jax.lax.rsqrt(jnp.maximum(squares, 1e-24))
