"""SpanBERT: predict masked spans from the whole text, and from their two neighbours (Joshi et al. 2019, §3).

The span boundary objective predicts each token of a masked run from the states just outside the run and the index of
the token in it. A run is a sequence of masked tokens without a gap: spans that touch or overlap count as one. A run at
the start or end of its text lacks an outer neighbour and is left out, and so are the tokens of a run beyond
`max_targets`. The loss is the sum of two separate means.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.core.errors import require
from plm_jax.core.keywords import Count, Weight
from plm_jax.core.sharding import each_row
from plm_jax.core.trunk import Attends
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Vocab
from plm_jax.layers.linear import Dense, Embed, truncated_normal
from plm_jax.layers.losses import cross_entropy, most_likely
from plm_jax.layers.means import batch_scale, exact_loss, metric, perplexity_of, row_terms, scaled_sum, whole_loss
from plm_jax.layers.mlp import ACTIVATIONS
from plm_jax.layers.norm import LayerNorm
from plm_jax.noise.keys import row_keys
from plm_jax.objectives import corrupt, mlm

PAPER = Paper(year=2019, title='Joshi et al., SpanBERT', architecture='encoder', objective_family='denoising')
READS = ('tokens', 'segment_ids')
MAY_READ = ('word_marks',)


class Boundary(nn.Module):
  """Two times dense, activation, norm on [left; right; index] (§3.2), then the product with the table and a bias."""

  vocab_size: int
  features: int  # width of the vocabulary's table
  places: int  # rows of the table of indices in a run
  place_dim: int  # its width
  activation: str
  norm_epsilon: float  # of both norms
  init_std: float
  dtype: str

  @nn.compact
  def __call__(self, left: Array, right: Array, place: Array, attend: Callable[[Array], Array]) -> Array:
    """Compute vocabulary logits f32[b, t, v].

    Args:
      left: [b, t, d], state before the run of each target.
      right: [b, t, d], state after it.
      place: int[b, t], index of the target in its run, from 0.
      attend: features -> logits by the trunk's table.
    """
    init, width = truncated_normal(self.init_std), left.shape[-1]
    table = Embed(self.places, self.place_dim, ('positions', 'embed'), init, dtype=self.dtype, name='place')
    x = jnp.concatenate([left, right, table(place)], axis=-1)  # [b, t, 2 d + 200]
    for number, size in enumerate((width, self.features), start=1):
      dense = Dense(size, axes=('embed', 'embed_out'), kernel_init=init, dtype=self.dtype, name=f'dense_{number}')
      x = ACTIVATIONS[self.activation](dense(x))
      x = LayerNorm(self.norm_epsilon, self.dtype, name=f'norm_{number}')(x)
    bias = self.param('bias', nn.with_logical_partitioning(nn.initializers.zeros, ('vocab',)), (self.vocab_size,))
    logits = attend(x)
    return logits + jnp.pad(bias, (0, logits.shape[-1] - self.vocab_size))


class Model(nn.Module):
  """A bidirectional trunk with both heads on gathered positions."""

  trunk: nn.Module
  mlm: nn.Module
  boundary: nn.Module

  def __call__(
    self, predict: Array, left: Array, right: Array, place: Array, train: bool = False, **inputs: Array
  ) -> tuple[Array, Array]:
    """Compute vocabulary logits f32[b, t, v] of both heads at `predict`.

    `left` and `right` int[b, t] are the positions around the run of each target.
    """
    hidden = self.trunk(**inputs, train=train)['hidden']
    at, before, after = (mlm.states_at(hidden, positions) for positions in (predict, left, right))
    return self.mlm(at, self.trunk.attend), self.boundary(before, after, place, self.trunk.attend)


class SpanBoundarySettings(NamedTuple):
  """Settings of masks and of the span boundary term."""

  masking: mlm.MlmSettings
  weight: float  # of the span boundary term
  max_targets: int  # tokens of a run that are predicted from its neighbours


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  where: Annotated[Mapping[str, Any], 'noise.where'] = {'name': 'geometric_spans'},
  edit: Annotated[Mapping[str, Any], 'noise.edit'] = {'name': 'bert_80_10_10', 'per': 'span'},
  masking: corrupt.Masking = 'dynamic',
  copies: Count = 10,
  weight: Weight = 1.0,
  max_targets: Count = 15,
  places: Count = 20,
  place_dim: Count = 200,
) -> Task:
  """Build masked language modelling with the span boundary objective.

  Args:
    where: the tokens to corrupt, as in `mlm`.
    edit: how to corrupt them, as in `mlm`; SpanBERT samples once per span.
    masking: 'dynamic' samples new masks at every step, 'static' repeats `copies` maskings of each row.
    copies: maskings of a row when static.
    weight: of the span boundary term; 0 leaves only masked language modelling (SpanBERT's "1seq").
    max_targets: tokens at the beginning of a run that are predicted from its neighbours.
    places: rows of the table of indices in a run; the released code has 20 by default.
    place_dim: its width.
  """
  user, inputs = "objective 'span_boundary'", ('tokens', 'segment_ids')
  require(trunk, user=user, attention=('bidirectional',), inputs=inputs, offers=(Attends,))
  if not 1 <= max_targets <= places:
    raise ValueError(f'objective.max_targets={max_targets} must be in 1..{places}: lower it, or raise objective.places')
  s = SpanBoundarySettings(
    masking=mlm.bind(vocab, where=where, edit=edit, masking=masking, copies=copies, user='objective span_boundary'),
    weight=weight,
    max_targets=max_targets,
  )
  style = trunk.head_style
  sizes = (trunk.vocab_size, trunk.token_dim, places, place_dim)
  boundary = Boundary(*sizes, style.activation, style.norm_epsilon, style.init_std, trunk.execution.dtype)
  model = Model(trunk, mlm.make_head(trunk), boundary)
  summary = partial(perplexity_of, nats='mlm_loss')
  exact = partial(exact_loss, terms={'mlm_loss': 1.0, 'sbo_loss': s.weight})
  return Task(model, partial(prepare, s), partial(loss, s), predict, summary=summary, exact=exact)


def prepare(s: SpanBoundarySettings, root: Array, batch: Batch) -> Example:
  """Build the inputs of `Model`, and the targets of both terms."""
  keys = row_keys(root, batch, every=s.masking.every, copies=s.masking.copies)
  rows = each_row(partial(mask_row, s), keys, *corrupt.text(batch))
  inputs = {name: rows[name] for name in ('tokens', 'predict', 'left', 'right', 'place')}
  inputs |= {'segment_ids': batch['segment_ids'], **corrupt.present(batch, 'type_ids')}
  weights = rows['boundary_weights'] * batch['row_weight'][:, None]
  targets = mlm.make_targets(rows, batch['row_weight'])
  targets |= {'boundary_weights': weights, 'boundary_scale': batch_scale(weights)}
  return Example(inputs, targets | row_terms(batch['row_weight']))


def mask_row(s: SpanBoundarySettings, key: Array, *text: Array) -> dict[str, Array]:
  """Mask one row as `mlm.mask_row`, and find the neighbours of its runs.

  Adds 'left', 'right' and 'place' int[t] of `neighbours`, and 'boundary_weights' f32[t].
  """
  row, spans, fields = mlm.choose_and_write(s.masking, key, *text)
  left, right, place, allowed = neighbours(spans.number > 0, row.eligible, row.segment_ids, limit=s.max_targets)
  at = fields['predict']
  weights = fields['weights'] * allowed[at]
  return fields | {'left': left[at], 'right': right[at], 'place': place[at], 'boundary_weights': weights}


def loss(s: SpanBoundarySettings, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute the cross-entropy of the masked tokens, by both heads."""
  targets = example.targets
  logits, boundary_logits = forward(**example.inputs)
  masked = mlm.score(logits, targets)
  nats, weights = cross_entropy(boundary_logits, targets['ids']), targets['boundary_weights']
  value = masked.value + s.weight * scaled_sum(nats, weights, targets['boundary_scale'])
  metrics = masked.metrics | {
    'loss': whole_loss(value, targets),
    'mlm_loss': masked.metrics['loss'],
    'sbo_loss': metric(nats, weights),
    'sbo_accuracy': metric(most_likely(boundary_logits, targets['ids']), weights),
  }
  return Loss(value, metrics)


def predict(forward: Forward, example: Example) -> dict[str, Array]:
  """Predict the most likely token of each slot, by each head."""
  logits, boundary_logits = forward(**example.inputs)
  ids, weights = boundary_logits.argmax(axis=-1), example.targets['boundary_weights']
  return mlm.predicted(logits, example) | {'boundary_ids': ids, 'boundary_weights': weights}


def neighbours(chosen: Array, text: Array, segment_ids: Array, *, limit: int) -> tuple[Array, Array, Array, Array]:
  """Find the two neighbours of the run of each chosen token.

  Returns left int32[l] and right int32[l], the positions next to the run; place int32[l], the index in the run, from 0;
  and bool[l], chosen tokens below the limit whose run has text of its segment on both sides.

  Args:
    chosen: bool[l], masked.
    text: bool[l], False on special tokens and padding.
    segment_ids: int[l]; a run stays inside its segment.
    limit: targets of a run.
  """
  # chosen  0 1 1 0 1 0    start 0 1 1 3 4 5    end 0 2 2 3 4 5
  # left    0 0 0 2 3 4    right 1 3 3 4 5 5    place 0 0 1 0 0 0
  length = chosen.shape[0]
  index = jnp.arange(length, dtype=jnp.int32)
  joined = chosen[1:] & chosen[:-1] & (segment_ids[1:] == segment_ids[:-1])
  begins = jnp.concatenate([jnp.ones(1, bool), ~joined])
  ends = jnp.concatenate([~joined, jnp.ones(1, bool)])
  start = jax.lax.cummax(jnp.where(begins, index, 0))
  end = jax.lax.cummin(jnp.where(ends, index, length - 1), reverse=True)
  left, right = jnp.maximum(start - 1, 0), jnp.minimum(end + 1, length - 1)
  inside = (start > 0) & (end < length - 1)
  for side in (left, right):
    inside &= text[side] & (segment_ids[side] == segment_ids)
  place = index - start
  return left, right, jnp.minimum(place, limit - 1), chosen & inside & (place < limit)
