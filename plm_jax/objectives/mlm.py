"""Masked language modelling (Devlin et al. 2018, §3.1): predict the corrupted tokens from both sides.

BERT, RoBERTa and whole-word BERT differ in `where` and `masking` only. The head runs on a fixed number of gathered
positions, as in the released code, so its cost follows the mask rate and not the row length.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.layers.linear import Dense, truncated_normal
from plm_jax.layers.losses import cross_entropy, perplexity
from plm_jax.layers.mlp import ACTIVATIONS
from plm_jax.layers.norm import LayerNorm
from plm_jax.noise.keys import row_keys
from plm_jax.noise.row import Row, word_ids
from plm_jax.objectives.corrupt import capacity, pick_edit, pick_where
from plm_jax.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Vocab, require

PAPER = Paper(year=2018, title='Devlin et al., BERT', architecture='encoder', objective_family='denoising')


class Head(nn.Module):
  """Dense, activation, norm; the vocabulary product and this head's output bias follow (BERT's "transform").

  Attributes:
    vocab_size: ids of the vocabulary.
    activation: a name of `ACTIVATIONS`.
    norm_epsilon: of the LayerNorm.
    init_std: of the dense kernel.
    dtype: of the dense product.
    features: width of the vocabulary's table, where it is not that of the states (ALBERT, ELECTRA).
  """

  vocab_size: int
  activation: str
  norm_epsilon: float
  init_std: float
  dtype: str
  features: int | None = None

  def setup(self) -> None:
    self.bias = self.param('bias', nn.with_logical_partitioning(nn.initializers.zeros, ('vocab',)), (self.vocab_size,))
    self.norm = LayerNorm(self.norm_epsilon, self.dtype)

  @nn.compact
  def __call__(self, features: Array, attend: Callable[[Array], Array]) -> Array:
    init = truncated_normal(self.init_std)
    width = self.features or features.shape[-1]
    dense = Dense(width, axes=('embed', 'embed_out'), kernel_init=init, dtype=self.dtype, name='dense')
    logits = attend(self.norm(ACTIVATIONS[self.activation](dense(features))))  # [..., d] -> [..., e] -> [..., v]
    padding = logits.shape[-1] - self.vocab_size  # of a table padded by vocab_multiple
    return logits + jnp.pad(self.bias, (0, padding))


def make_head(trunk: nn.Module, vocab: Vocab) -> Head:
  """The head for a trunk with a tied table, with the trunk's activation, initialisation and compute dtype."""
  c, width = trunk.config, trunk.bind({}).token_embed.features
  return Head(vocab.size, c.activation, c.norm_epsilon, c.init_std, trunk.execution.dtype, width)


class Model(nn.Module):
  """A bidirectional trunk with the head on gathered positions."""

  trunk: nn.Module
  mlm: nn.Module

  def __call__(self, predict: Array, train: bool = False, **inputs: Array) -> Array:
    """Vocabulary logits f32[b, t, v] at positions `predict` int[b, t]."""
    hidden = self.trunk(**inputs, train=train)['hidden']
    features = jnp.take_along_axis(hidden, predict[..., None], axis=1)  # [b, l, d] -> [b, t, d]
    return self.mlm(features, self.trunk.attend)


def score(logits: Array, targets: Mapping[str, Array]) -> Loss:
  """Cross-entropy at the predicted positions.

  Args:
    logits: f32[b, t, v].
    targets: 'ids' int[b, t]; 'weights' f32[b, t], 1 where the slot is in use; 'scale' f32[b], one over the batch's
      number of targets; 'excess' f32[b], chosen tokens that found no slot.
  """
  nats = cross_entropy(logits, targets['ids'])
  weights = targets['weights']
  correct = (logits.argmax(axis=-1) == targets['ids']) * weights
  total, excess = weights.sum(), targets['excess'].sum()
  return Loss(
    value=(nats * weights * targets['scale'][:, None]).sum(),
    metrics={
      'loss': ((nats * weights).sum(), total),
      'accuracy': (correct.sum(), total),
      'targets_without_slot': (excess, total + excess),  # a share, so that micro-batches add up
    },
  )


def make_row(batch_row: Mapping[str, Array], *, special: Array, starts_word: Array | None) -> Row:
  """A row whose special tokens and padding are out of bounds; `special` is bool[v]."""
  ids, segments = batch_row['tokens'], batch_row['segment_ids']
  words = None if starts_word is None else word_ids(ids, starts_word)
  return Row(ids, ~special[ids] & (segments > 0), segments, words)


def gather(chosen: Array, *, slots: int) -> tuple[Array, Array, Array]:
  """Positions of a row's chosen tokens in a fixed number of slots, left to right.

  Args:
    chosen: bool[l].
    slots: t.

  Returns:
    positions int32[t] (0 where unused), weights f32[t], and how many chosen tokens found no slot, f32[].
  """
  place = jnp.where(chosen, jnp.cumsum(chosen) - 1, slots)
  index = jnp.arange(chosen.shape[0], dtype=jnp.int32)
  positions = jnp.zeros(slots, jnp.int32).at[place].set(index, mode='drop')
  count = chosen.sum()
  weights = (jnp.arange(slots) < count).astype(jnp.float32)
  return positions, weights, jnp.maximum(count - slots, 0).astype(jnp.float32)


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  where: Mapping[str, Any] = {'name': 'fixed_count'},
  edit: Mapping[str, Any] = {'name': 'bert_80_10_10'},
  masking: Literal['dynamic', 'static'] = 'dynamic',
  copies: int = 10,
) -> Task:
  """Masked language modelling of a bidirectional trunk.

  Args:
    trunk: an encoder.
    vocab: with a mask token.
    where: which tokens, a function of `noise.where` or `noise.spans` with its settings.
    edit: what becomes of them, a function of `noise.edit` that leaves every token in its place, with its settings.
    masking: 'dynamic' draws anew at every step (RoBERTa), 'static' repeats `copies` maskings of each row (BERT).
    copies: maskings of a row when static.
  """
  require(trunk, user="objective 'mlm'", attention=('bidirectional',), inputs=('tokens', 'segment_ids'))
  if vocab.mask_id is None:
    raise ValueError('objective mlm needs a vocabulary with a mask token; vocab.extra adds one')
  if masking not in ('dynamic', 'static'):
    raise ValueError(f'objective.masking={masking!r}; choices are dynamic, static')
  choose = pick_where(where, vocab=vocab)
  write = pick_edit(edit, vocab=vocab, in_place=True)
  every: Literal['step', 'epoch'] = 'step' if masking == 'dynamic' else 'epoch'
  is_special = np.zeros(vocab.size, bool)
  is_special[list(vocab.special_ids)] = True
  starts = np.asarray(vocab.starts_word)

  def corrupt(key: Array, batch_row: Mapping[str, Array]) -> dict[str, Array]:
    row = make_row(batch_row, special=jnp.asarray(is_special), starts_word=jnp.asarray(starts))
    where_key, edit_key = jax.random.split(key)
    spans = choose(where_key, row)
    slots = capacity(choose, row.ids.shape[0])
    positions, weights, excess = gather(spans.number > 0, slots=slots)
    ids = write(edit_key, row, spans).ids
    return {'tokens': ids, 'predict': positions, 'ids': row.ids[positions], 'weights': weights, 'excess': excess}

  def prepare(root: Array, batch: Batch) -> Example:
    keys = row_keys(root, batch, every=every, copies=copies)
    rows = jax.vmap(corrupt)(keys, {'tokens': batch['tokens'], 'segment_ids': batch['segment_ids']})
    weights = rows['weights'] * batch['row_weight'][:, None]
    scale = 1 / jnp.maximum(weights.sum(), 1.0)
    inputs = {'tokens': rows['tokens'], 'segment_ids': batch['segment_ids'], 'predict': rows['predict']}
    if 'type_ids' in batch:
      inputs['type_ids'] = batch['type_ids']
    targets = {
      'ids': rows['ids'],
      'weights': weights,
      'scale': jnp.broadcast_to(scale, weights.shape[:1]),
      'excess': rows['excess'] * batch['row_weight'],
    }
    return Example(inputs, targets)

  def loss(forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
    del carry, rng
    return score(forward(**example.inputs), example.targets)

  def predict(forward: Forward, example: Example) -> dict[str, Array]:
    logits = forward(**example.inputs)
    ids, weights = logits.argmax(axis=-1), example.targets['weights']
    return {'positions': example.inputs['predict'], 'ids': ids, 'weights': weights}

  def summary(means: dict[str, float]) -> dict[str, float]:
    return {'perplexity': perplexity(means['loss'])}

  return Task(Model(trunk, make_head(trunk, vocab)), prepare, loss, predict, summary=summary)
