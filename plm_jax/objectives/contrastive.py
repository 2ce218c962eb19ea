"""Contrastive objectives: make the vector of each row most similar to that of its partner (InfoNCE).

Loss = -log e^{s(x, y+)} / (e^{s(x, y+)} + sum over negatives of e^{s(x, y-)}), with s a similarity over a temperature
(van den Oord et al. 2018, CPC §2.3; one negative is the pairwise form of Arora et al. 2019). Partners are:

  dropout   the same row under other dropout (Gao et al. 2021, SimCSE §3; cosine, temperature .05)
  fields    the next text of the row: an anchor, its positive and optionally a hard negative (SimCSE §4)
  ngram     a short n-gram alone, paired with the row in which it is masked (Kong et al. 2020, InfoWord §4), usually
            with MLM

The loss of a row depends on the other rows of its batch, so batches are not divided into micro-batches. With several
devices the vectors of all of them are gathered.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core import errors
from plm_jax.core.errors import require
from plm_jax.core.keywords import Count, Temperature, Weight
from plm_jax.core.sharding import each_row
from plm_jax.core.trunk import Attends
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Vocab
from plm_jax.layers import pooling
from plm_jax.layers.means import batch_scale, exact_loss, metric, row_terms, scaled_sum, whole_loss
from plm_jax.noise.keys import row_keys
from plm_jax.noise.row import Row
from plm_jax.objectives import corrupt, mlm

PAPER = Paper(year=2021, title='Gao et al., SimCSE', architecture='any', objective_family='contrastive')
READS = ('tokens', 'segment_ids')

Partners = Literal['dropout', 'fields', 'ngram']
Similarity = Literal['cosine', 'dot']
Pool = Literal['mean', 'trunk']


class Model(nn.Module):
  """A trunk as an encoder of whole rows."""

  trunk: nn.Module
  mlm: Any  # head of masked language modelling; None without
  pool: Pool  # 'mean' of the states of a row, or 'trunk', the trunk's own pooling

  def __call__(
    self, tokens: Array, segment_ids: Array, train: bool = False, type_ids: Array | None = None, **others: Any
  ) -> Array:
    """Compute one vector per row, f32[b, d]."""
    if self.is_initializing() and self.mlm is not None:
      self.fill(others['predict'], tokens=tokens, segment_ids=segment_ids)
    types = {} if type_ids is None else {'type_ids': type_ids}
    hidden = self.trunk(tokens, segment_ids=segment_ids, train=train, **types)['hidden'].astype(jnp.float32)
    if self.pool == 'trunk':
      return self.trunk.pool(hidden, segment_ids).astype(jnp.float32)
    return pooling.mean(hidden, segment_ids)

  def fill(self, predict: Array, train: bool = False, **inputs: Any) -> Array:
    """Compute vocabulary logits f32[b, t, v] at positions `predict` int[b, t]."""
    hidden = self.trunk(**inputs, train=train)['hidden']
    return self.mlm(mlm.states_at(hidden, predict), self.trunk.attend)


class ContrastiveSettings(NamedTuple):
  """Settings of partners and their comparison; those without a comment are explained in `make`."""

  masking: mlm.MlmSettings | None  # of masked language modelling; None without it
  special: np.ndarray  # bool[v], tokens that are in no n-gram
  mask_id: int  # replaces the tokens of an n-gram; -1 without n-grams
  pad_id: int
  first: tuple[int, ...]  # ids before an n-gram, at most one
  partners: Partners
  similarity_of: Similarity
  temperature: float
  negatives: int | None
  texts: int  # number of texts in a row of 'fields'
  longest: int
  weight: float
  mlm_weight: float


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  partners: Partners = 'dropout',
  similarity_of: Similarity = 'cosine',
  temperature: Temperature = 0.05,
  negatives: Count | None = None,
  hard_negatives: bool = False,
  pool: Pool = 'mean',
  longest: Count = 5,
  weight: Weight = 1.0,
  mlm_weight: Weight = 0.0,
  where: Annotated[Mapping[str, Any], 'noise.where'] = {'name': 'fixed_count'},
  edit: Annotated[Mapping[str, Any], 'noise.edit'] = {'name': 'bert_80_10_10'},
) -> Task:
  """Build a contrastive objective.

  Args:
    trunk: any trunk that reads `tokens`; bidirectional for n-grams and MLM. 'dropout' needs its dropout.
    partners: 'dropout', 'fields' or 'ngram', see the head of this file. Rows hold one text, or with 'fields' two or
      three, numbered by `type_ids`.
    similarity_of: of two vectors: 'cosine' or 'dot' product.
    temperature: divides the similarity.
    negatives: partners of other rows that each row is compared with; None is all of the batch, 1 the pairwise form.
    hard_negatives: use the third text of each row as a candidate for every row; a row may have none.
    pool: the vector of a row: the 'mean' of its states, or 'trunk', the trunk's own pooling.
    longest: tokens of the longest n-gram.
    weight: of the contrastive loss.
    mlm_weight: of masked language modelling on the same rows, in a separate pass; 0 disables it.
    where: for MLM, as in `mlm`.
    edit: for MLM, as in `mlm`.

  Raises:
    ValueError: contradictory settings, or no loss.
  """
  errors.one_of('objective.partners', partners, Partners)
  errors.one_of('objective.similarity_of', similarity_of, Similarity)
  errors.one_of('objective.pool', pool, Pool)
  if temperature <= 0 or longest < 1:
    raise ValueError(f'objective.temperature={temperature} must be above 0, and objective.longest={longest} at least 1')
  if hard_negatives and partners != 'fields':
    raise ValueError(
      f"objective.hard_negatives needs partners='fields' and rows of three texts, not partners={partners!r}"
    )
  corrupt.check_weights(weight=weight, mlm_weight=mlm_weight)
  fills, grams = mlm_weight > 0, partners == 'ngram'
  kinds, offers = ('bidirectional',) if fills or grams else ('bidirectional', 'causal'), (Attends,) if fills else ()
  require(trunk, user="objective 'contrastive'", attention=kinds, inputs=('tokens', 'segment_ids'), offers=offers)
  user = "objective contrastive with partners='ngram'"
  s = ContrastiveSettings(
    masking=mlm.bind(vocab, where=where, edit=edit, user='objective contrastive with mlm_weight') if fills else None,
    special=corrupt.special_table(vocab),
    mask_id=corrupt.find_mask(vocab, user=user) if grams else -1,
    pad_id=vocab.pad_id,
    first=() if vocab.cls_id is None else (vocab.cls_id,),
    partners=partners,
    similarity_of=similarity_of,
    temperature=temperature,
    negatives=negatives,
    texts=3 if hard_negatives else 2,
    longest=longest,
    weight=weight,
    mlm_weight=mlm_weight,
  )
  model = Model(trunk, mlm.make_head(trunk) if fills else None, pool)
  exact = partial(exact_loss, terms={'contrastive_loss': weight} | ({'mlm_loss': mlm_weight} if fills else {}))
  return Task(model, partial(prepare, s), partial(loss, s), partial(predict, s), couples_rows=True, exact=exact)


def prepare(s: ContrastiveSettings, root: Array, batch: Batch) -> Example:
  """Build the rows, their partner texts, and with MLM the masked rows.

  Raises ValueError: `partners` is 'fields' and the rows do not hold several texts.
  """
  inputs: dict[str, Array] = {'tokens': batch['tokens'], 'segment_ids': batch['segment_ids']}
  # pairs with a number, such as STS-B in an evaluation: their similarity is predicted
  is_judged = 'label' in batch and jnp.issubdtype(batch['label'].dtype, jnp.floating)
  if s.partners == 'fields' or (s.partners == 'dropout' and is_judged and 'type_ids' in batch):
    if 'type_ids' not in batch:
      raise ValueError("objective.partners='fields' needs rows of several texts, with type_ids: set data.fields")
    inputs = jax.vmap(partial(split_fields, s))({**inputs, 'type_ids': batch['type_ids']})
  elif s.partners == 'ngram':
    keys = row_keys(jax.random.fold_in(root, 1), batch, every='step')
    inputs = each_row(partial(cut_ngram, s), keys, inputs['tokens'], inputs['segment_ids'])
  if 'other_tokens' not in inputs or s.partners == 'ngram':
    inputs |= corrupt.present(batch, 'type_ids')
  real = (inputs['segment_ids'] > 0).any(axis=1)
  has_text = jnp.ones((len(real), 1), bool)  # [b, texts - 1]
  if 'other_segment_ids' in inputs:
    has_text = inputs['other_segment_ids'].sum(axis=2) > (len(s.first) if s.partners == 'ngram' else 0)
    real &= has_text[:, 0]
  weights = batch['row_weight'] * real
  targets = {'weights': weights, 'scale': batch_scale(weights), **row_terms(batch['row_weight'])}
  targets['candidates'] = has_text & (weights > 0)[:, None]
  if s.masking is not None:
    example = mlm.prepare(s.masking, root, batch)
    inputs |= {'masked_tokens': example.inputs['tokens'], 'predict': example.inputs['predict']}
    read = corrupt.present(batch, 'segment_ids', 'type_ids')
    targets |= {f'mlm_{name}': value for name, value in (example.targets | read).items()}
  return Example(inputs, targets)


def split_fields(s: ContrastiveSettings, fields: Mapping[str, Array]) -> dict[str, Array]:
  """Split a row into its texts.

  All texts begin with [CLS] if the row does. A text of special tokens only is empty. Returns tokens and segment_ids [l]
  of the first text, other_tokens and other_segment_ids [texts - 1, l] of the others.
  """
  # [CLS] a [SEP] b [SEP] [SEP] of types 0 0 0 1 1 2   ->   [CLS] a [SEP]   [CLS] b [SEP]   nothing
  tokens, length = fields['tokens'], fields['tokens'].shape[0]
  ordinary = ~jnp.asarray(s.special)[tokens]
  first = jnp.asarray(s.first, tokens.dtype)  # [0] or [1]

  def text(index: int) -> tuple[Array, Array]:
    own = (fields['segment_ids'] > 0) & (fields['type_ids'] == index)
    own &= (own & ordinary).any()
    begins = (tokens[:1] == first) & own.any() & (index > 0)
    # only later texts get a [CLS], and they lack at least the first token of the row: everything fits
    ids, segments = alone(jnp.concatenate([first, tokens]), jnp.concatenate([begins, own]))
    return ids[:length], segments[:length]

  ids, segments = (jnp.stack(parts) for parts in zip(*map(text, range(s.texts)), strict=True))
  return {
    'tokens': ids[0], 'segment_ids': segments[0], 'other_tokens': ids[1:], 'other_segment_ids': segments[1:]
  }  # fmt: skip


def alone(tokens: Array, keep: Array) -> tuple[Array, Array]:
  """Move kept tokens int[l] to the front; segment ids 1, then 0."""
  # tokens a b c, keep 0 1 1   ->   b c a, segments 1 1 0
  order = jnp.argsort(~keep, stable=True)
  return tokens[order], jnp.sort(keep, descending=True).astype(jnp.int32)


def cut_ngram(s: ContrastiveSettings, key: Array, ids: Array, segments: Array) -> dict[str, Array]:
  """Mask an n-gram; also return it alone, [1, m], after [CLS]."""
  row = corrupt.make_row(ids, segments, special=s.special)
  start, size = draw_ngram(key, row, longest=s.longest)
  # a b c d, start 1, size 2, longest 3   ->   a [MASK] [MASK] d   and   [CLS] b c [PAD]
  position, offset = jnp.arange(ids.shape[0]), jnp.arange(s.longest)
  inside = (position >= start) & (position < start + size)
  in_gram = offset < size
  gram = jnp.where(in_gram, ids[jnp.minimum(start + offset, ids.shape[0] - 1)], s.pad_id)
  other = jnp.concatenate([jnp.asarray(s.first, ids.dtype), gram])
  real = jnp.concatenate([jnp.ones(len(s.first), jnp.int32), in_gram.astype(jnp.int32)])
  return {
    'tokens': jnp.where(inside, s.mask_id, ids),
    'segment_ids': segments,
    'other_tokens': other[None],
    'other_segment_ids': real[None],
  }


def draw_ngram(key: Array, row: Row, *, longest: int) -> tuple[Array, Array]:
  """Sample the start and length int32[] of an n-gram of ordinary tokens.

  It lies inside one document. The length is uniform in 1..longest, reduced to the largest that fits anywhere; 0 if none
  fits.
  """
  # eligible 1 1 0 1, longest 2   starts of 1: 1 1 0 1, of 2: 1 0 0 0
  length = row.ids.shape[0]
  size_key, start_key = jax.random.split(key)
  step = jnp.arange(length)
  fits = [row.eligible]  # [l] each: an n-gram may start here
  for n in range(1, longest):
    after = (step + n < length) & jnp.roll(row.eligible, -n) & (jnp.roll(row.segment_ids, -n) == row.segment_ids)
    fits.append(fits[-1] & after)
  table = jnp.stack(fits)  # [longest, l]
  size = jax.random.randint(size_key, (), 1, longest + 1)
  size = jnp.minimum(size, table.any(axis=1).sum())  # if n tokens fit, n - 1 fit too
  here = table[jnp.maximum(size - 1, 0)] & (size > 0)
  return jnp.where(here, jax.random.uniform(start_key, (length,)), -1.0).argmax().astype(jnp.int32), size


def loss(s: ContrastiveSettings, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute InfoNCE over the batch, plus MLM where it has a weight."""
  targets, weights = example.targets, example.targets['weights']
  anchors, candidates = encode(s, forward, example)
  rows, columns = anchors.shape[0], candidates.shape[0]
  is_candidate = targets['candidates'].T.reshape(columns)  # all first texts, then all second ones
  scores = similarity(anchors, candidates, cosine=s.similarity_of == 'cosine') / s.temperature
  near = np.ones((rows, columns), bool)
  near[:, :rows] = neighbours(rows, s.negatives)
  allowed = jnp.asarray(near) & is_candidate[None]
  nats = info_nce(scores, allowed)
  best = jnp.where(allowed, scores, -jnp.inf).argmax(axis=1) == jnp.arange(rows)
  value = s.weight * scaled_sum(nats, weights, targets['scale'])
  metrics = {
    'contrastive_loss': metric(nats, weights),
    'accuracy': metric(best, weights),
    'similarity': metric(jnp.diagonal(scores) * s.temperature, weights),
  }
  if s.masking is not None:
    masked = fill(forward, example)
    value = value + s.mlm_weight * masked.value
    metrics |= {'mlm_loss': masked.metrics['loss'], 'mlm_accuracy': masked.metrics['accuracy']}
    metrics['targets_without_slot'] = masked.metrics['targets_without_slot']
  return Loss(value, metrics | {'loss': whole_loss(value, targets)})


def encode(s: ContrastiveSettings, forward: Forward, example: Example) -> tuple[Array, Array]:
  """Encode anchors f32[b, d] and candidates f32[c, d], own ones first."""
  inputs = example.inputs
  read: dict[str, Any] = {name: inputs[name] for name in ('tokens', 'segment_ids', 'type_ids') if name in inputs}
  anchors = forward(**read)
  if 'other_tokens' not in inputs:
    return anchors, forward(**read)
  texts = [
    forward(tokens=inputs['other_tokens'][:, index], segment_ids=inputs['other_segment_ids'][:, index])
    for index in range(inputs['other_tokens'].shape[1])
  ]
  return anchors, jnp.concatenate(texts)


def fill(forward: Forward, example: Example) -> Loss:
  """Compute the loss of masked language modelling."""
  inputs = example.inputs
  own = {name.removeprefix('mlm_'): value for name, value in example.targets.items() if name.startswith('mlm_')}
  read: dict[str, Any] = {name: own[name] for name in ('segment_ids', 'type_ids') if name in own}
  return mlm.score(forward(method='fill', predict=inputs['predict'], tokens=inputs['masked_tokens'], **read), own)


def similarity(anchors: Array, candidates: Array, *, cosine: bool) -> Array:
  """Compute cosines or products of all pairs.

  f32[b, d], f32[c, d] -> f32[b, c]. The cosine with a zero vector is 0.
  """
  if cosine:
    unit = lambda x: x * jax.lax.rsqrt(jnp.maximum((x * x).sum(axis=-1, keepdims=True), 1e-24))  # noqa: E731
    anchors, candidates = unit(anchors), unit(candidates)
  return anchors @ candidates.T


def info_nce(scores: Array, allowed: Array) -> Array:
  """Compute -log softmax of each row's own candidate among those allowed: f32[b].

  Scores are f32[b, c], c >= b. The candidate of row i is i, which is allowed whatever bool[b, c] `allowed` says.
  """
  own = jnp.eye(scores.shape[0], scores.shape[1], dtype=bool)
  return -jnp.diagonal(jax.nn.log_softmax(jnp.where(allowed | own, scores, -jnp.inf)))


def neighbours(rows: int, negatives: int | None) -> np.ndarray:
  """Mark the candidates of each row, bool[rows, rows].

  All, or its own and those of the next `negatives` rows, in a circle. Raises ValueError: the batch has fewer rows.
  """
  # 3 rows, 1 negative:   1 1 0 | 0 1 1 | 1 0 1
  if negatives is None:
    return np.ones((rows, rows), bool)
  if not 0 < negatives < rows:
    raise ValueError(f'objective.negatives={negatives}: a batch of {rows} rows allows 1 to {rows - 1}')
  distance = (np.arange(rows)[None] - np.arange(rows)[:, None]) % rows
  return distance <= negatives


def predict(s: ContrastiveSettings, forward: Forward, example: Example) -> dict[str, Array]:
  """Compute the vector of each row, and similarities of pairs."""
  anchors, candidates = encode(s, forward, example)
  if s.partners == 'ngram' or 'other_tokens' not in example.inputs:
    return {'vector': anchors}
  scores = similarity(anchors, candidates[: len(anchors)], cosine=s.similarity_of == 'cosine')
  return {'vector': anchors, 'value': jnp.diagonal(scores)}
