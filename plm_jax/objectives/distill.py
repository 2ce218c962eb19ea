"""Distillation of a large encoder into a small one (Sanh et al. 2019, DistilBERT §3; arXiv 1910.01108).

Loss = 5 KL(teacher || student), both softened by temperature 2, times 2^2; + 2 MLM; + 1 cosine distance of the last
states. The teacher lies under `params['teacher']` as a run of objective mlm keeps it and reads the same corrupted rows
without dropout or gradient; `init_from` fills it, and optim.scale = (('teacher/.*', None), ('.*', 1.0)) keeps it.
"""

from collections.abc import Mapping
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.layers.losses import in_chunks, perplexity
from plm_jax.objectives import mlm
from plm_jax.plugins import build
from plm_jax.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Vocab, require

PAPER = Paper(
  year=2019,
  title='Sanh et al., DistilBERT',
  architecture='encoder',
  objective_family='denoising',
  extension='compressed',
)


class Model(nn.Module):
  """The student `trunk` with its head, and the teacher, a model of objective mlm."""

  trunk: nn.Module
  mlm: nn.Module
  teacher: Any

  def __call__(self, predict: Array, train: bool = False, **inputs: Any) -> Array:
    """The student's vocabulary logits f32[b, t, v] at positions `predict` int[b, t]."""
    if self.is_initializing():
      self.teacher(predict, **inputs)
    hidden = self.encode(**inputs, train=train)
    return self.attend(jnp.take_along_axis(hidden, predict[..., None], axis=1))  # [b, l, d] -> [b, t, d] -> [b, t, v]

  def encode(self, train: bool = False, **inputs: Any) -> Array:
    """States of the student [b, l, d]."""
    return self.trunk(**inputs, train=train)['hidden']

  def teach(self, train: bool = False, **inputs: Any) -> Array:
    """States of the teacher [b, l, d], without dropout or gradient."""
    del train
    return jax.lax.stop_gradient(self.teacher.trunk(**inputs, train=False)['hidden'])

  def attend(self, features: Array, train: bool = False) -> Array:
    """The student's vocabulary logits f32[..., v]."""
    del train
    return self.mlm(features, self.trunk.attend)

  def teacher_attend(self, features: Array, train: bool = False) -> Array:
    """The teacher's vocabulary logits f32[..., v], without gradient."""
    del train
    return jax.lax.stop_gradient(self.teacher.mlm(features, self.teacher.trunk.attend))


def divergence(student: Array, teacher: Array, *, temperature: float) -> Array:
  """T^2 KL(softmax(teacher / T) || softmax(student / T)) in nats: f32[..., v] twice -> f32[...].

  T^2 keeps the size of gradients where T changes (Hinton et al. 2015, §2).
  """
  ours = jax.nn.log_softmax(student.astype(jnp.float32) / temperature)
  theirs = jax.nn.log_softmax(teacher.astype(jnp.float32) / temperature)
  return temperature**2 * (jnp.exp(theirs) * (theirs - ours)).sum(axis=-1)


def cosine_distance(a: Array, b: Array) -> Array:
  """1 - cos of the angle: [..., d] twice -> f32[...]; 1 where a vector is 0."""
  a, b = a.astype(jnp.float32), b.astype(jnp.float32)
  squares = (a * a).sum(axis=-1) * (b * b).sum(axis=-1)
  return 1 - (a * b).sum(axis=-1) * jax.lax.rsqrt(jnp.maximum(squares, 1e-24))


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  teacher: Mapping[str, Any] = {'name': 'bert', 'variant': 'bert-base'},
  where: Mapping[str, Any] = {'name': 'frequency', 'rate': 0.15},
  edit: Mapping[str, Any] = {'name': 'bert_80_10_10'},
  temperature: float = 2.0,
  kl_weight: float = 5.0,
  mlm_weight: float = 2.0,
  cosine_weight: float = 1.0,
  mse_weight: float = 0.0,
  positions: Literal['all', 'masked'] = 'all',
  logit_rows: int = 8,
) -> Task:
  """Distillation into a bidirectional trunk; a weight of 0 leaves its term out (§4, Table 4).

  Args:
    trunk: the student.
    vocab: with a mask token, and token counts where `where` goes by frequency.
    teacher: its trunk, as a model block, with the student's vocabulary.
    where: which tokens are corrupted, a function of `noise.where` with its settings; rare ones first, as released.
    edit: what becomes of them, a function of `noise.edit` with its settings.
    temperature: T.
    kl_weight: of the divergence of softened predictions.
    mlm_weight: of masked language modelling by the student.
    cosine_weight: of the cosine distance of the last states, at all tokens; needs states of one width.
    mse_weight: of the squared distance of the logits, summed over the vocabulary, an option of the released code.
    positions: where predictions are compared: 'all' tokens or the 'masked' (corrupted) ones. Never at padding.
    logit_rows: batch rows whose vocabulary logits are in memory at a time.
  """
  require(trunk, user="objective 'distill'", attention=('bidirectional',), inputs=('tokens', 'segment_ids'))
  if positions not in ('all', 'masked'):
    raise ValueError(f'objective.positions={positions!r}; choices are all, masked')
  if temperature <= 0:
    raise ValueError(f'objective.temperature={temperature} must be above 0')
  second = build.make('models', teacher, vocab_size=vocab.size, execution=trunk.execution)
  require(second, user="objective 'distill'", attention=('bidirectional',), inputs=('tokens', 'segment_ids'))
  ours, theirs = trunk.config.hidden_dim, second.config.hidden_dim
  if cosine_weight and ours != theirs:
    raise ValueError(
      f'objective.cosine_weight={cosine_weight} compares states, and those of the student are {ours} wide and of the '
      f'teacher {theirs}: choose a teacher of the same hidden_dim, or 0'
    )
  masked = mlm.make(trunk=trunk, vocab=vocab, where=where, edit=edit)
  compares = bool(kl_weight or mse_weight)
  model = Model(trunk, mlm.make_head(trunk, vocab), mlm.Model(second, mlm.make_head(second, vocab)))

  def prepare(root: Array, batch: Batch) -> Example:
    inputs, targets = masked.prepare(root, batch)
    row_weight = batch['row_weight']
    real = (batch['segment_ids'] > 0) * row_weight[:, None]
    share = lambda total: jnp.broadcast_to(1 / jnp.maximum(total, 1.0), row_weight.shape)  # noqa: E731
    more = {
      'token_weights': real,
      'token_scale': share(real.sum()),
      'row_weight': row_weight,
      'row_scale': share(row_weight.sum()),
    }
    return Example(inputs, {**targets, **more})

  def compare(forward: Forward, states: tuple[Array, Array]) -> tuple[Array, Array]:
    """(divergence, squared distance of the logits) at each position, f32[b, l] both."""

    def both(states: tuple[Array, Array]) -> tuple[Array, Array]:
      student = forward(method='attend', features=states[0])
      teacher = forward(method='teacher_attend', features=states[1])
      squares = jnp.square(student - teacher)[..., : vocab.size].sum(axis=-1)
      return divergence(student, teacher, temperature=temperature), squares

    return in_chunks(both, states, rows=logit_rows)

  def loss(forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
    del carry, rng
    targets, places = example.targets, example.inputs['predict'][..., None]
    read: dict[str, Any] = {name: value for name, value in example.inputs.items() if name != 'predict'}
    hidden = forward(method='encode', **read)
    value, metrics = jnp.float32(0), {}
    if compares or cosine_weight:
      taught = forward(method='teach', train=False, **read)
    if compares:
      states, weights, scale = (hidden, taught), targets['token_weights'], targets['token_scale']
      if positions == 'masked':
        states = jax.tree.map(lambda x: jnp.take_along_axis(x, places, axis=1), states)  # [b, l, d] -> [b, t, d]
        weights, scale = targets['weights'], targets['scale']
      nats, squares = compare(forward, states)
      for name, values, share in (('kl', nats, kl_weight), ('mse', squares, mse_weight)):
        if share:
          value = value + share * (values * weights * scale[:, None]).sum()
          metrics[f'{name}_loss'] = ((values * weights).sum(), weights.sum())
    if mlm_weight:
      logits = forward(method='attend', features=jnp.take_along_axis(hidden, places, axis=1))
      found = mlm.score(logits, targets)
      value = value + mlm_weight * found.value
      metrics |= {'mlm_loss': found.metrics['loss'], 'accuracy': found.metrics['accuracy']}
      metrics['targets_without_slot'] = found.metrics['targets_without_slot']
    if cosine_weight:
      weights = targets['token_weights']
      distance = cosine_distance(hidden, taught)
      value = value + cosine_weight * (distance * weights * targets['token_scale'][:, None]).sum()
      metrics['cosine_loss'] = ((distance * weights).sum(), weights.sum())
    # each term is divided by the total of the whole batch: as a mean over rows, parts of a batch add up to it
    metrics['loss'] = (value / targets['row_scale'][0], targets['row_weight'].sum())
    return Loss(value, metrics)

  def summary(means: dict[str, float]) -> dict[str, float]:
    return {'perplexity': perplexity(means['mlm_loss'])} if 'mlm_loss' in means else {}

  return Task(model, prepare, loss, masked.predict, summary=summary)
