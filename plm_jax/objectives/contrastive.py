"""Contrastive objectives: a vector of each row must pick its partner among those of the whole batch (InfoNCE).

Loss = -log e^{s(x, y+)} / (e^{s(x, y+)} + sum over negatives of e^{s(x, y-)}), with s a similarity over a temperature
(van den Oord et al. 2018, CPC §2.3; one negative is the pairwise form of Arora et al. 2019). Partners are:

  dropout   the same row under other dropout (Gao et al. 2021, SimCSE §3; cosine, temperature .05)
  fields    the next text of the row: an anchor, its positive and, where asked for, a hard negative (SimCSE §4)
  ngram     a short n-gram by itself, for the row where it is masked (Kong et al. 2020, InfoWord §4), usually with MLM

Rows see each other, so the batch is not cut into micro-batches; over several devices the vectors are gathered.
"""

from collections.abc import Mapping
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.noise.keys import row_keys
from plm_jax.noise.row import Row
from plm_jax.objectives import mlm
from plm_jax.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Vocab, require

PAPER = Paper(year=2021, title='Gao et al., SimCSE', architecture='any', objective_family='contrastive')


class Model(nn.Module):
  """A trunk as an encoder of whole rows.

  Attributes:
    trunk: any trunk that reads tokens.
    mlm: head of masked language modelling, None without.
    pool: 'mean' of the states of a row, or the 'trunk's own.
  """

  trunk: nn.Module
  mlm: Any
  pool: str

  def __call__(
    self, tokens: Array, segment_ids: Array, train: bool = False, type_ids: Array | None = None, **others: Any
  ) -> Array:
    """Vectors f32[b, d] of the rows."""
    if self.is_initializing() and self.mlm is not None:
      self.fill(others['predict'], tokens=tokens, segment_ids=segment_ids)
    types = {} if type_ids is None else {'type_ids': type_ids}
    hidden = self.trunk(tokens, segment_ids=segment_ids, train=train, **types)['hidden'].astype(jnp.float32)
    if self.pool == 'trunk':
      return self.trunk.pool(hidden, segment_ids).astype(jnp.float32)
    real = (segment_ids > 0).astype(jnp.float32)[..., None]
    return (hidden * real).sum(axis=1) / jnp.maximum(real.sum(axis=1), 1.0)  # [b, l, d] -> [b, d]

  def fill(self, predict: Array, train: bool = False, **inputs: Any) -> Array:
    """Vocabulary logits f32[b, t, v] at positions `predict` int[b, t]."""
    hidden = self.trunk(**inputs, train=train)['hidden']
    return self.mlm(jnp.take_along_axis(hidden, predict[..., None], axis=1), self.trunk.attend)


def similarity(anchors: Array, candidates: Array, *, cosine: bool) -> Array:
  """Cosines or plain products of all pairs: f32[b, d], f32[c, d] -> f32[b, c]; the cosine with a zero vector is 0."""
  if cosine:
    unit = lambda x: x * jax.lax.rsqrt(jnp.maximum((x * x).sum(axis=-1, keepdims=True), 1e-24))  # noqa: E731
    anchors, candidates = unit(anchors), unit(candidates)
  return anchors @ candidates.T


def info_nce(scores: Array, allowed: Array) -> Array:
  """-log softmax of each row's own candidate among those allowed: f32[b].

  Args:
    scores: f32[b, c], c >= b; the candidate of row i is i.
    allowed: bool[b, c]; a row's own candidate always is.
  """
  own = jnp.eye(scores.shape[0], scores.shape[1], dtype=bool)
  return -jnp.diagonal(jax.nn.log_softmax(jnp.where(allowed | own, scores, -jnp.inf)))


def neighbours(rows: int, negatives: int | None) -> np.ndarray:
  """bool[rows, rows]: which candidates serve a row: all, or its own and the next `negatives` ones, around the end."""
  if negatives is None:
    return np.ones((rows, rows), bool)
  if not 0 < negatives < rows:
    raise ValueError(f'objective.negatives={negatives}: a batch of {rows} rows has 1 to {rows - 1} negatives a row')
  distance = (np.arange(rows)[None] - np.arange(rows)[:, None]) % rows
  return distance <= negatives


def draw_ngram(key: Array, row: Row, *, longest: int) -> tuple[Array, Array]:
  """Start int32[] and length int32[] of an n-gram of ordinary tokens inside one document.

  The length is uniform in 1..longest, or the largest below what was drawn that fits anywhere; 0 where nothing fits.
  """
  length = row.ids.shape[0]
  size_key, start_key = jax.random.split(key)
  step = jnp.arange(length)
  fits = [row.eligible]  # [l] each: an n-gram may start here
  for n in range(1, longest):
    after = (step + n < length) & jnp.roll(row.eligible, -n) & (jnp.roll(row.segment_ids, -n) == row.segment_ids)
    fits.append(fits[-1] & after)
  table = jnp.stack(fits)  # [longest, l]
  size = jax.random.randint(size_key, (), 1, longest + 1)
  size = jnp.minimum(size, table.any(axis=1).sum())  # whatever holds n tokens holds n - 1
  here = table[jnp.maximum(size - 1, 0)] & (size > 0)
  return jnp.where(here, jax.random.uniform(start_key, (length,)), -1.0).argmax().astype(jnp.int32), size


def alone(tokens: Array, keep: Array) -> tuple[Array, Array]:
  """The kept tokens of a row moved to its front, int[l], and their segment ids, 1 and then 0."""
  order = jnp.argsort(~keep, stable=True)
  return tokens[order], jnp.sort(keep, descending=True).astype(jnp.int32)


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  partners: Literal['dropout', 'fields', 'ngram'] = 'dropout',
  similarity_of: Literal['cosine', 'dot'] = 'cosine',
  temperature: float = 0.05,
  negatives: int | None = None,
  hard_negatives: bool = False,
  pool: Literal['mean', 'trunk'] = 'mean',
  longest: int = 5,
  weight: float = 1.0,
  mlm_weight: float = 0.0,
  where: Mapping[str, Any] = {'name': 'fixed_count'},
  edit: Mapping[str, Any] = {'name': 'bert_80_10_10'},
) -> Task:
  """A contrastive objective.

  Args:
    trunk: any trunk that reads `tokens`; bidirectional for n-grams and MLM. 'dropout' needs its dropout.
    vocab: of the rows.
    partners: see the head of this file. Rows hold one text, or with 'fields' two or three, told apart by `type_ids`.
    similarity_of: two vectors: 'cosine' or 'dot' product.
    temperature: divides it.
    negatives: how many partners of other rows a row is set against; None is all of the batch, 1 the pairwise form.
    hard_negatives: the third text of each row is a candidate as well, for every row.
    pool: the vector of a row: the 'mean' of its states or the 'trunk's own pooling.
    longest: tokens of the longest n-gram.
    weight: of the contrastive loss.
    mlm_weight: of masked language modelling on the same rows, in a pass of its own; 0 leaves it out.
    where: for MLM, as there.
    edit: for MLM, as there.
  """
  for name, value, choices in (
    ('partners', partners, ('dropout', 'fields', 'ngram')),
    ('similarity_of', similarity_of, ('cosine', 'dot')),
    ('pool', pool, ('mean', 'trunk')),
  ):
    if value not in choices:
      raise ValueError(f'objective.{name}={value!r}; choices are {", ".join(choices)}')
  if temperature <= 0 or longest < 1:
    raise ValueError(f'objective: temperature={temperature} must be above 0 and longest={longest} at least 1')
  if hard_negatives and partners != 'fields':
    raise ValueError(f"objective.hard_negatives needs partners='fields' and rows of three texts, not {partners!r}")
  fills = mlm_weight > 0
  kinds = ('bidirectional',) if fills or partners == 'ngram' else ('bidirectional', 'causal')
  require(trunk, user="objective 'contrastive'", attention=kinds, inputs=('tokens', 'segment_ids'))
  mask_id = -1 if vocab.mask_id is None else vocab.mask_id
  if partners == 'ngram' and mask_id < 0:
    raise ValueError("objective.partners='ngram' needs a vocabulary with a mask token; vocab.extra adds one")
  masked = mlm.make(trunk=trunk, vocab=vocab, where=where, edit=edit) if fills else None
  is_special = np.zeros(vocab.size, bool)
  is_special[list(vocab.special_ids)] = True
  first = () if vocab.cls_id is None else (vocab.cls_id,)

  def split_fields(batch_row: Mapping[str, Array]) -> dict[str, Array]:
    """Each text of a row by itself: tokens and segment_ids [l], other_tokens and other_segment_ids [s, l]."""
    texts = [
      alone(batch_row['tokens'], (batch_row['segment_ids'] > 0) & (batch_row['type_ids'] == number))
      for number in range(3 if hard_negatives else 2)
    ]
    tokens, segments = (jnp.stack(parts) for parts in zip(*texts, strict=True))
    out = {'tokens': tokens[0], 'segment_ids': segments[0]}
    return out | {'other_tokens': tokens[1:], 'other_segment_ids': segments[1:]}

  def cut_ngram(key: Array, batch_row: Mapping[str, Array]) -> dict[str, Array]:
    """The row with an n-gram masked, and the n-gram by itself [1, m] behind [CLS] where there is one."""
    row = mlm.make_row(batch_row, special=jnp.asarray(is_special), starts_word=None)
    start, size = draw_ngram(key, row, longest=longest)
    place = jnp.arange(row.ids.shape[0])
    inside = (place >= start) & (place < start + size)
    there = jnp.arange(longest) < size
    gram = jnp.where(there, row.ids[jnp.minimum(start + jnp.arange(longest), row.ids.shape[0] - 1)], vocab.pad_id)
    other = jnp.concatenate([jnp.asarray(first, row.ids.dtype), gram])
    real = jnp.concatenate([jnp.ones(len(first), jnp.int32), there.astype(jnp.int32)])
    return {
      'tokens': jnp.where(inside, mask_id, row.ids),
      'segment_ids': row.segment_ids,
      'other_tokens': other[None],
      'other_segment_ids': real[None],
    }

  def prepare(root: Array, batch: Batch) -> Example:
    inputs: dict[str, Array] = {'tokens': batch['tokens'], 'segment_ids': batch['segment_ids']}
    if partners == 'fields':
      if 'type_ids' not in batch:
        raise ValueError("objective.partners='fields' needs rows of several texts: data with fields and type_ids")
      inputs = jax.vmap(split_fields)({**inputs, 'type_ids': batch['type_ids']})
    elif partners == 'ngram':
      inputs = jax.vmap(cut_ngram)(row_keys(jax.random.fold_in(root, 1), batch, every='step'), inputs)
    if partners != 'fields' and 'type_ids' in batch:
      inputs['type_ids'] = batch['type_ids']
    real = (inputs['segment_ids'] > 0).any(axis=1)
    if 'other_segment_ids' in inputs:
      real &= inputs['other_segment_ids'][:, 0].sum(axis=1) > (len(first) if partners == 'ngram' else 0)
    weights = batch['row_weight'] * real
    targets = {
      'weights': weights,
      'scale': jnp.broadcast_to(1 / jnp.maximum(weights.sum(), 1.0), weights.shape),
      'row_weight': batch['row_weight'],
      'row_scale': jnp.broadcast_to(1 / jnp.maximum(batch['row_weight'].sum(), 1.0), weights.shape),
    }
    if masked is not None:
      example = masked.prepare(root, batch)
      inputs |= {'masked_tokens': example.inputs['tokens'], 'predict': example.inputs['predict']}
      targets |= {f'mlm_{name}': value for name, value in example.targets.items()}
      targets |= {f'mlm_{name}': batch[name] for name in ('segment_ids', 'type_ids') if name in batch}
    return Example(inputs, targets)

  def encode(forward: Forward, example: Example) -> tuple[Array, Array]:
    """Vectors of the anchors f32[b, d] and of the candidates f32[c, d], each row's own first."""
    inputs = example.inputs
    read: dict[str, Any] = {n: inputs[n] for n in ('tokens', 'segment_ids', 'type_ids') if n in inputs}
    anchors = forward(**read)
    if partners == 'dropout':
      return anchors, forward(**read)
    texts = [
      forward(tokens=inputs['other_tokens'][:, number], segment_ids=inputs['other_segment_ids'][:, number])
      for number in range(inputs['other_tokens'].shape[1])
    ]
    return anchors, jnp.concatenate(texts)

  def loss(forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
    del carry, rng
    targets, weights = example.targets, example.targets['weights']
    anchors, candidates = encode(forward, example)
    rows, columns = anchors.shape[0], candidates.shape[0]
    scores = similarity(anchors, candidates, cosine=similarity_of == 'cosine') / temperature
    near = np.ones((rows, columns), bool)
    near[:, :rows] = neighbours(rows, negatives)
    allowed = jnp.asarray(near) & jnp.tile(weights > 0, columns // rows)[None]
    nats = info_nce(scores, allowed)
    best = jnp.where(allowed, scores, -jnp.inf).argmax(axis=1) == jnp.arange(rows)
    total = weights.sum()
    value = weight * (nats * weights * targets['scale']).sum()
    metrics = {
      'contrastive_loss': ((nats * weights).sum(), total),
      'accuracy': ((best * weights).sum(), total),
      'similarity': ((jnp.diagonal(scores) * temperature * weights).sum(), total),
    }
    if fills:
      inputs = example.inputs
      read: dict[str, Any] = {n: targets[f'mlm_{n}'] for n in ('segment_ids', 'type_ids') if f'mlm_{n}' in targets}
      logits = forward(method='fill', predict=inputs['predict'], tokens=inputs['masked_tokens'], **read)
      found = mlm.score(logits, {name: targets[f'mlm_{name}'] for name in ('ids', 'weights', 'scale', 'excess')})
      value = value + mlm_weight * found.value
      metrics |= {'mlm_loss': found.metrics['loss'], 'mlm_accuracy': found.metrics['accuracy']}
      metrics['targets_without_slot'] = found.metrics['targets_without_slot']
    metrics['loss'] = (value / targets['row_scale'][0], targets['row_weight'].sum())
    return Loss(value, metrics)

  def predict(forward: Forward, example: Example) -> dict[str, Array]:
    return {'vector': encode(forward, example)[0]}

  model = Model(trunk, mlm.make_head(trunk, vocab) if fills else None, pool)
  return Task(model, prepare, loss, predict, couples_rows=True)
