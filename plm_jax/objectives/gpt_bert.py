"""Masked and causal language modelling by one network (Charpentier and Samuel 2024, §2; arXiv 2410.24159).

Of the rows, a share is intact and read from left to right, and every token is predicted. The others are masked and read
in both directions, and the chosen tokens are predicted. The state before a token predicts it in either case ("masked
next-token prediction"). The loss is the weighted mean of both means, by the same share. The kind of a row is sampled
by its key; the released code fixes it per device.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.core.errors import require
from plm_jax.core.keywords import Count, Rate, Weight
from plm_jax.core.sharding import each_row
from plm_jax.core.trunk import Attends
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Vocab
from plm_jax.layers.losses import next_tokens
from plm_jax.layers.means import batch_scale, exact_loss, metric, row_terms, scaled_sum, whole_loss
from plm_jax.noise.keys import row_keys
from plm_jax.objectives import causal_lm, mlm

PAPER = Paper(year=2024, title='Charpentier and Samuel, GPT-BERT', architecture='encoder', objective_family='denoising')
READS = ('tokens', 'segment_ids')
MAY_READ = ('word_marks',)


class Model(nn.Module):
  """Blanks filled by the states before them; arguments of `mlm.Model`."""

  trunk: nn.Module

  def __call__(self, predict: Array, train: bool = False, **inputs: Array) -> Array:
    """Compute logits f32[b, t, v] of tokens `predict` int[b, t]."""
    hidden = self.trunk(**inputs, train=train)['hidden']
    return self.trunk.attend(mlm.states_at(hidden, jnp.maximum(predict - 1, 0)))


class GptBertSettings(NamedTuple):
  """Settings of masks and losses, as in `make`."""

  masking: mlm.MlmSettings
  causal: float
  z_loss: float
  logit_rows: int


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  causal: Rate = 0.0625,
  where: Annotated[Mapping[str, Any], 'noise.where'] = {'name': 'fixed_count'},
  edit: Annotated[Mapping[str, Any], 'noise.edit'] = {'name': 'bert_80_10_10'},
  z_loss: Weight = 1e-4,
  logit_rows: Count = 8,
) -> Task:
  """Build masked and causal language modelling.

  Args:
    trunk: an encoder that takes an attention mask.
    causal: share of rows that are read from left to right, and of their loss.
    z_loss: weight of log^2 Z, as in `causal_lm`.
    logit_rows: rows of each device whose logits are in memory at a time.
  """
  inputs = ('tokens', 'segment_ids', 'allowed')
  require(trunk, user="objective 'gpt_bert'", attention=('bidirectional',), inputs=inputs, offers=(Attends,))
  masking = mlm.bind(vocab, where=where, edit=edit, user='objective gpt_bert')
  s = GptBertSettings(masking, causal, z_loss, logit_rows)
  terms = {'masked_loss': 1 - causal, 'causal_loss': causal}
  task = Task(causal_lm.Model(trunk), partial(prepare, s), partial(loss, s), partial(predict, s))
  return task._replace(exact=partial(exact_loss, terms=terms))


def prepare(s: GptBertSettings, root: Array, batch: Batch) -> Example:
  """Build the inputs, and the token after each as its target."""
  tokens, segments = batch['tokens'], batch['segment_ids']
  noise_root, kind_root = jax.random.split(root)
  # 1. masked rows and causal rows
  rows = each_row(partial(mask_row, s), row_keys(noise_root, batch, every='step'), *mlm.corrupt.text(batch))
  is_causal = (jax.vmap(jax.random.uniform)(row_keys(kind_root, batch, every='step')) < s.causal)[:, None]  # [b, 1]
  position = jnp.arange(tokens.shape[1])
  inputs = {
    'tokens': jnp.where(is_causal, tokens, rows['tokens']),
    'segment_ids': segments,
    'allowed': (position <= position[:, None]) | ~is_causal[..., None],  # [b, l, l]
  }
  # 2. targets: all of a causal row, the chosen tokens of a masked one
  ids, weights = next_tokens(tokens, segments)
  chosen = jnp.pad(rows['chosen'], ((0, 0), (0, 1)))[:, 1:]
  weights = weights * (is_causal | chosen) * batch['row_weight'][:, None]
  masked, causal = weights * ~is_causal, weights * is_causal
  scale = jnp.where(is_causal[:, 0], s.causal * batch_scale(causal), (1 - s.causal) * batch_scale(masked))
  targets = {'ids': ids, 'masked': masked, 'causal': causal, 'scale': scale}
  return Example(inputs, targets | row_terms(batch['row_weight']))


def mask_row(s: GptBertSettings, key: Array, *text: Array) -> dict[str, Array]:
  """Mask one row of `corrupt.text`: 'tokens' int32[l] and 'chosen' bool[l]."""
  _, spans, fields = mlm.choose_and_write(s.masking, key, *text)
  return {'tokens': fields['tokens'], 'chosen': spans.number > 0}


def loss(s: GptBertSettings, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute the cross-entropy of both kinds of rows."""
  targets = example.targets
  nats, correct, squares = _score(s, forward, example)
  weights = targets['masked'] + targets['causal']
  value = scaled_sum(nats, weights, targets['scale'])
  metrics = {
    'loss': whole_loss(value, targets),
    'masked_loss': metric(nats, targets['masked']),
    'causal_loss': metric(nats, targets['causal']),
    'masked_accuracy': metric(correct, targets['masked']),
    'causal_accuracy': metric(correct, targets['causal']),
  }
  return Loss(value + s.z_loss * scaled_sum(squares, weights, targets['scale']), metrics)


def predict(s: GptBertSettings, forward: Forward, example: Example) -> dict[str, Array]:
  """Compute nats of each weighted target."""
  weights = example.targets['masked'] + example.targets['causal']
  return {'nats': _score(s, forward, example)[0] * weights, 'weights': weights}


def _score(s: GptBertSettings, forward: Forward, example: Example) -> tuple[Array, Array, Array]:
  features, _, _ = forward(method='read', **example.inputs)
  return causal_lm.score_with_partition(forward, features, example.targets['ids'], rows=s.logit_rows)
