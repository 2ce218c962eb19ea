"""SpanBERT: masked spans, told from both sides and once more from their two neighbours (Joshi et al. 2019, §3).

The span boundary objective predicts each token of a masked run from the states just outside the run and the place of
the token in it. A run is what is masked without a gap: spans that touch or overlap count as one. A run that begins or
ends its text has no outer neighbour and is left out, and so are the tokens of a run beyond `max_targets`. Each term is
a mean of its own; their sum is minimised.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.layers.linear import Dense, Embed, truncated_normal
from plm_jax.layers.losses import cross_entropy, perplexity
from plm_jax.layers.mlp import ACTIVATIONS
from plm_jax.layers.norm import LayerNorm
from plm_jax.noise.keys import row_keys
from plm_jax.objectives import corrupt, mlm
from plm_jax.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Vocab, require

PAPER = Paper(year=2019, title='Joshi et al., SpanBERT', architecture='encoder', objective_family='denoising')


class Boundary(nn.Module):
  """Two times dense, activation, norm on [left; right; place] (§3.2); the product with the table and a bias follow.

  Attributes:
    vocab_size: ids of the vocabulary.
    features: width of the vocabulary's table.
    places: rows of the table of places in a run.
    place_dim: its width.
    activation: a name of `ACTIVATIONS`.
    norm_epsilon: of both norms.
    init_std: of kernels and table.
    dtype: of the products.
  """

  vocab_size: int
  features: int
  places: int
  place_dim: int
  activation: str
  norm_epsilon: float
  init_std: float
  dtype: str

  @nn.compact
  def __call__(self, left: Array, right: Array, place: Array, attend: Callable[[Array], Array]) -> Array:
    """Vocabulary logits f32[b, t, v].

    Args:
      left: [b, t, d], state before the run that each target is in.
      right: [b, t, d], state behind it.
      place: int[b, t] of the target in its run, from 0.
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
    """Vocabulary logits f32[b, t, v] of both heads for targets at `predict`, with runs between `left` and `right`."""
    hidden = self.trunk(**inputs, train=train)['hidden']
    at = [jnp.take_along_axis(hidden, places[..., None], axis=1) for places in (predict, left, right)]
    return self.mlm(at[0], self.trunk.attend), self.boundary(at[1], at[2], place, self.trunk.attend)


def neighbours(chosen: Array, text: Array, segment_ids: Array, *, limit: int) -> tuple[Array, Array, Array, Array]:
  """The two sides of the run that each chosen token is in.

  Args:
    chosen: bool[l], masked.
    text: bool[l], False on special tokens and padding.
    segment_ids: int[l]; a run does not go beyond its segment.
    limit: targets of a run.

  Returns:
    left int32[l] and right int32[l], the tokens next to the run; place int32[l] in the run, from 0; and bool[l], chosen
    tokens whose run has text of its own segment on both sides and whose place is below the limit.
  """
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


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  where: Mapping[str, Any] = {'name': 'geometric_spans'},
  edit: Mapping[str, Any] = {'name': 'bert_80_10_10', 'per': 'span'},
  masking: Literal['dynamic', 'static'] = 'dynamic',
  copies: int = 10,
  weight: float = 1.0,
  max_targets: int = 15,
  places: int = 20,
  place_dim: int = 200,
) -> Task:
  """Masked language modelling with the span boundary objective.

  Args:
    trunk: an encoder.
    vocab: with a mask token.
    where: which tokens, as in `mlm`.
    edit: what becomes of them, as in `mlm`; SpanBERT draws once a span.
    masking: 'dynamic' draws anew at every step, 'static' repeats `copies` maskings of each row.
    copies: maskings of a row when static.
    weight: of the span boundary term; 0 leaves the masked language model (SpanBERT's "1seq").
    max_targets: tokens of a run that are told from its neighbours, from its beginning.
    places: rows of the table of places; the released code has 20 unless told otherwise.
    place_dim: its width.
  """
  require(trunk, user="objective 'span_boundary'", attention=('bidirectional',), inputs=('tokens', 'segment_ids'))
  if vocab.mask_id is None:
    raise ValueError('objective span_boundary needs a vocabulary with a mask token; vocab.extra adds one')
  if masking not in ('dynamic', 'static'):
    raise ValueError(f'objective.masking={masking!r}; choices are dynamic, static')
  if not 1 <= max_targets <= places:
    raise ValueError(f'objective.max_targets={max_targets} is not in 1..{places}, the rows of the table of places')
  choose = corrupt.pick_where(where, vocab=vocab)
  write = corrupt.pick_edit(edit, vocab=vocab, in_place=True)
  every: Literal['step', 'epoch'] = 'step' if masking == 'dynamic' else 'epoch'
  is_special = np.zeros(vocab.size, bool)
  is_special[list(vocab.special_ids)] = True
  starts = np.asarray(vocab.starts_word)
  c, head = trunk.config, mlm.make_head(trunk, vocab)
  width = trunk.bind({}).token_embed.features
  boundary = Boundary(
    vocab.size, width, places, place_dim, c.activation, c.norm_epsilon, c.init_std, trunk.execution.dtype
  )

  def mask(key: Array, batch_row: Mapping[str, Array]) -> dict[str, Array]:
    row = mlm.make_row(batch_row, special=jnp.asarray(is_special), starts_word=jnp.asarray(starts))
    where_key, edit_key = jax.random.split(key)
    spans = choose(where_key, row)
    chosen = spans.number > 0
    positions, weights, excess = mlm.gather(chosen, slots=corrupt.capacity(choose, row.ids.shape[0]))
    left, right, place, told = neighbours(chosen, row.eligible, row.segment_ids, limit=max_targets)
    return {
      'tokens': write(edit_key, row, spans).ids,
      'predict': positions,
      'left': left[positions],
      'right': right[positions],
      'place': place[positions],
      'ids': row.ids[positions],
      'weights': weights,
      'told': weights * told[positions],
      'excess': excess,
    }

  def prepare(root: Array, batch: Batch) -> Example:
    keys = row_keys(root, batch, every=every, copies=copies)
    rows = jax.vmap(mask)(keys, {'tokens': batch['tokens'], 'segment_ids': batch['segment_ids']})
    row_weight = batch['row_weight']
    weights, told = (rows[name] * row_weight[:, None] for name in ('weights', 'told'))
    inputs = {name: rows[name] for name in ('tokens', 'predict', 'left', 'right', 'place')}
    inputs['segment_ids'] = batch['segment_ids']
    if 'type_ids' in batch:
      inputs['type_ids'] = batch['type_ids']

    def one_over(total: Array) -> Array:
      return jnp.broadcast_to(1 / jnp.maximum(total, 1.0), row_weight.shape)

    targets = {
      'ids': rows['ids'],
      'weights': weights,
      'scale': one_over(weights.sum()),
      'excess': rows['excess'] * row_weight,
      'told': told,
      'told_scale': one_over(told.sum()),
      'row_weight': row_weight,
      'row_scale': one_over(row_weight.sum()),
    }
    return Example(inputs, targets)

  def loss(forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
    del carry, rng
    targets = example.targets
    logits, boundary_logits = forward(**example.inputs)
    masked = mlm.score(logits, targets)
    nats = cross_entropy(boundary_logits, targets['ids'])
    told = targets['told']
    correct = (boundary_logits.argmax(axis=-1) == targets['ids']) * told
    value = masked.value + weight * (nats * told * targets['told_scale'][:, None]).sum()
    metrics = masked.metrics | {
      'loss': (value / targets['row_scale'][0], targets['row_weight'].sum()),  # as trained: each term a batch's mean
      'mlm_loss': masked.metrics['loss'],
      'sbo_loss': ((nats * told).sum(), told.sum()),
      'sbo_accuracy': (correct.sum(), told.sum()),
    }
    return Loss(value, metrics)

  def predict(forward: Forward, example: Example) -> dict[str, Array]:
    logits, boundary_logits = forward(**example.inputs)
    return {
      'positions': example.inputs['predict'],
      'ids': logits.argmax(axis=-1),
      'weights': example.targets['weights'],
      'boundary_ids': boundary_logits.argmax(axis=-1),
      'boundary_weights': example.targets['told'],
    }

  def summary(means: dict[str, float]) -> dict[str, float]:
    return {'perplexity': perplexity(means['mlm_loss'])}

  return Task(Model(trunk, head, boundary), prepare, loss, predict, summary=summary)
