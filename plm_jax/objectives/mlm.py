"""Masked language modelling (Devlin et al. 2018, §3.1): predict the corrupted tokens from both sides.

BERT, RoBERTa and whole-word BERT differ in `where` and `masking` only. The head runs on a fixed number of gathered
positions, as in the released code, so its cost follows the mask rate and not the row length.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core import errors
from plm_jax.core.errors import require
from plm_jax.core.keywords import Count
from plm_jax.core.sharding import each_row
from plm_jax.core.trunk import Attends
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Vocab
from plm_jax.layers.losses import cross_entropy, most_likely
from plm_jax.layers.means import batch_scale, metric, perplexity_of, scaled_sum
from plm_jax.layers.vocab_head import make_head as make_head
from plm_jax.noise.keys import row_keys
from plm_jax.noise.row import Row, Spans
from plm_jax.objectives import corrupt

PAPER = Paper(year=2018, title='Devlin et al., BERT', architecture='encoder', objective_family='denoising')
READS = ('tokens', 'segment_ids')
MAY_READ = ('word_marks',)


class Model(nn.Module):
  """A bidirectional trunk with the head on gathered positions."""

  trunk: nn.Module
  mlm: nn.Module

  def __call__(self, predict: Array, train: bool = False, **inputs: Array) -> Array:
    """Compute vocabulary logits f32[b, t, v] at positions `predict` int[b, t]."""
    hidden = self.trunk(**inputs, train=train)['hidden']
    return self.mlm(states_at(hidden, predict), self.trunk.attend)

  def continued(self, predict: Array, carry: PyTree, train: bool = False, **inputs: Array) -> tuple[Array, PyTree]:
    """Compute logits with the memory `carry`; also the next memory."""
    out = self.trunk(**inputs, carry=carry, train=train)
    return self.mlm(states_at(out['hidden'], predict), self.trunk.attend), out['carry']


def states_at(hidden: Array, positions: Array) -> Array:
  """Gather states [b, l, d] at positions int[b, t]: [b, t, d]."""
  return jnp.take_along_axis(hidden, positions[..., None], axis=1)


class MlmSettings(NamedTuple):
  """Settings of the corruption of a row."""

  choose: Callable[..., Any]  # (key, row) -> `Spans`, the tokens to corrupt
  write: Callable[..., Any]  # (key, row, spans) -> `Slots`, the corrupted tokens
  special: np.ndarray  # bool[v], tokens that are never chosen
  starts_word: np.ndarray  # bool[v]
  every: Literal['step', 'epoch']  # how often new noise is sampled
  copies: int  # maskings of each row under 'epoch'


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  where: Annotated[Mapping[str, Any], 'noise.where'] = {'name': 'fixed_count'},
  edit: Annotated[Mapping[str, Any], 'noise.edit'] = {'name': 'bert_80_10_10'},
  masking: corrupt.Masking = 'dynamic',
  copies: Count = 10,
  memory: bool | None = None,
) -> Task:
  """Build masked language modelling for a bidirectional trunk.

  Args:
    where: the tokens to corrupt: a function of `noise/where/` with its settings.
    edit: how to corrupt them: a function of `noise.edit` with its settings. It may not move tokens.
    masking: 'dynamic' samples new masks at every step (RoBERTa), 'static' repeats `copies` maskings of each row (BERT).
    copies: maskings of a row when static.
    memory: carry the trunk's memory from row to row, for rows of `data.bptt` (Yang et al. 2019, Table 6, row 3).
  """
  inputs = ('tokens', 'segment_ids', *(('carry',) if memory else ()))
  attention = ('bidirectional', 'permutation')
  require(trunk, user="objective 'mlm'", attention=attention, inputs=inputs, offers=(Attends,))
  task = make_task(trunk, vocab, bind(vocab, where=where, edit=edit, masking=masking, copies=copies))
  return task._replace(loss=continued_loss, init_carry=trunk.init_carry) if memory else task


def bind(
  vocab: Vocab,
  *,
  where: Mapping[str, Any],
  edit: Mapping[str, Any],
  masking: corrupt.Masking = 'dynamic',
  copies: int = 10,
  user: str = 'objective mlm',
) -> MlmSettings:
  """Check and bind the settings of `make`; errors name `user`."""
  corrupt.find_mask(vocab, user=user)
  errors.one_of('objective.masking', masking, corrupt.Masking)
  return MlmSettings(
    choose=corrupt.pick_where(where, vocab=vocab),
    write=corrupt.pick_edit(edit, vocab=vocab, in_place=True),
    special=corrupt.special_table(vocab),
    starts_word=np.asarray(vocab.starts_word),
    every=corrupt.EVERY[masking],
    copies=copies,
  )


def make_task(trunk: nn.Module, vocab: Vocab, s: MlmSettings) -> Task:
  """Build the task of a trunk that `Attends`; other objectives replace parts."""
  model = Model(trunk, make_head(trunk))
  return Task(model, partial(prepare, s), loss, predict, summary=perplexity_of)


def prepare(s: MlmSettings, root: Array, batch: Batch) -> Example:
  """Build the inputs of `Model` and the targets of `score`."""
  keys = row_keys(root, batch, every=s.every, copies=s.copies)
  rows = each_row(partial(mask_row, s), keys, *corrupt.text(batch))
  inputs = {'tokens': rows['tokens'], 'segment_ids': batch['segment_ids'], 'predict': rows['predict']}
  return Example(inputs | corrupt.present(batch, 'type_ids'), make_targets(rows, batch['row_weight']))


def mask_row(s: MlmSettings, key: Array, *text: Array) -> dict[str, Array]:
  """Mask one row of `corrupt.text`, int32[l] each.

  'tokens' [l], 'predict', 'ids', 'weights' [t], 'excess' [].
  """
  return choose_and_write(s, key, *text)[2]


def choose_and_write(
  s: MlmSettings, key: Array, ids: Array, segments: Array, marks: Array | None = None
) -> tuple[Row, Spans, dict[str, Array]]:
  """Mask one row; return the clean row, spans and `mask_row`'s fields."""
  row = corrupt.make_row(ids, segments, special=s.special, starts_word=s.starts_word, marks=marks)
  where_key, edit_key = jax.random.split(key)
  spans = s.choose(where_key, row)
  slots = corrupt.capacity(s.choose, ids.shape[0])
  positions, weights, excess = corrupt.gather(spans.number > 0, slots=slots)
  tokens = s.write(edit_key, row, spans).ids
  fields = {'tokens': tokens, 'predict': positions, 'ids': ids[positions], 'weights': weights, 'excess': excess}
  return row, spans, fields


def make_targets(rows: Mapping[str, Array], row_weight: Array) -> dict[str, Array]:
  """Build the targets of `score`, for `row_weight` f32[b].

  `rows` have 'ids' int[b, t]; 'weights' f32[b, t], 1 in used slots; 'excess' f32[b], chosen tokens without a slot.
  """
  weights = rows['weights'] * row_weight[:, None]
  scale = batch_scale(weights)
  return {'ids': rows['ids'], 'weights': weights, 'scale': scale, 'excess': rows['excess'] * row_weight}


def loss(forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute the cross-entropy of the corrupted tokens."""
  return score(forward(**example.inputs), example.targets)


def continued_loss(forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute `loss` with the memory of earlier rows; also the next memory."""
  logits, after = forward(method='continued', **example.inputs, carry=carry)
  return score(logits, example.targets)._replace(carry=after)


def score(logits: Array, targets: Mapping[str, Array]) -> Loss:
  """Compute the cross-entropy of logits f32[b, t, v], targets of `make_targets`."""
  nats, correct = cross_entropy(logits, targets['ids']), most_likely(logits, targets['ids'])
  weights, excess = targets['weights'], targets['excess'].sum()
  return Loss(
    value=scaled_sum(nats, weights, targets['scale']),
    metrics={
      'loss': metric(nats, weights),
      'accuracy': metric(correct, weights),
      'targets_without_slot': (excess, weights.sum() + excess),  # a (sum, weight) pair, so that micro-batches add up
    },
  )


def predict(forward: Forward, example: Example) -> dict[str, Array]:
  """Predict the most likely token of each slot."""
  return predicted(forward(**example.inputs), example)


def predicted(logits: Array, example: Example) -> dict[str, Array]:
  """Build the predictions of logits f32[b, t, v]."""
  ids, weights = logits.argmax(axis=-1), example.targets['weights']
  nats = cross_entropy(logits, example.targets['ids']) * weights
  return {'positions': example.inputs['predict'], 'ids': ids, 'nats': nats, 'weights': weights}
