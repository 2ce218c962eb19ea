"""Masked language modelling of sentence pairs, with next-sentence prediction (Devlin et al. 2018, §3.1, tasks 1 and 2).

Or with sentence-order prediction (Lan et al. 2019, §3.1). The label is read off the pooled first token, so the trunk's
pooler is trained here and goes along to downstream tasks. Both terms are means of their own and weigh the same.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.layers.linear import Dense, truncated_normal
from plm_jax.layers.losses import cross_entropy, perplexity
from plm_jax.noise import pair as pairs
from plm_jax.noise.keys import row_keys
from plm_jax.objectives import mlm
from plm_jax.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Vocab, require

PAPER = Paper(year=2018, title='Devlin et al., BERT', architecture='encoder', objective_family='denoising')

QUESTIONS = {'nsp': pairs.next_or_other, 'sop': pairs.in_order_or_swapped}
SEPARATORS = {'bert': 1, 'roberta': 2}
_PAIR = np.uint32(2**31 + 1)  # a number that no row has: sets the keys of pairs apart from those of masks


class Model(nn.Module):
  """A bidirectional trunk with the vocabulary head on gathered positions and two labels on the pooled state."""

  trunk: nn.Module
  mlm: nn.Module
  init_std: float

  @nn.compact
  def __call__(self, predict: Array, train: bool = False, **inputs: Array) -> tuple[Array, Array]:
    """Vocabulary logits f32[b, t, v] at positions `predict` int[b, t], and f32[b, 2] of the two labels."""
    hidden = self.trunk(**inputs, train=train)['hidden']
    features = jnp.take_along_axis(hidden, predict[..., None], axis=1)  # [b, l, d] -> [b, t, d]
    pooled = self.trunk.pool(hidden, inputs['segment_ids'])  # [b, d]
    head = Dense(2, axes=('embed', 'classes'), kernel_init=truncated_normal(self.init_std), name='pair')
    return self.mlm(features, self.trunk.attend), head(pooled).astype(jnp.float32)


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  question: Literal['nsp', 'sop'] = 'nsp',
  layout: Literal['bert', 'roberta'] = 'bert',
  where: Mapping[str, Any] = {'name': 'fixed_count'},
  edit: Mapping[str, Any] = {'name': 'bert_80_10_10'},
  masking: Literal['dynamic', 'static'] = 'dynamic',
  copies: int = 10,
) -> Task:
  """Masked language modelling and a question about two segments; needs the rows of `data/pairs.py`.

  Args:
    trunk: an encoder with a pooler.
    vocab: with tokens for a mask, for the beginning of a row and between segments.
    question: 'nsp' asks whether the second segment follows the first or is from elsewhere (`NextSentence`), 'sop'
      whether both stand in their order (`SentenceOrder`).
    layout: 'bert' is [CLS] A [SEP] B [SEP]; 'roberta' has two separators in the middle.
    where: which tokens are masked, as in `mlm`.
    edit: what becomes of them, as in `mlm`.
    masking: 'dynamic' draws masks and pairs anew at every step, 'static' repeats those of `copies` epochs (BERT; give
      the data the same `copies`).
    copies: of each row when static.
  """
  require(
    trunk, user="objective 'sentence_pair'", attention=('bidirectional',), inputs=('tokens', 'segment_ids', 'type_ids')
  )
  if question not in QUESTIONS:
    raise ValueError(f'objective.question={question!r}; choices are {", ".join(QUESTIONS)}')
  if layout not in SEPARATORS:
    raise ValueError(f'objective.layout={layout!r}; choices are {", ".join(SEPARATORS)}')
  if vocab.cls_id is None or vocab.sep_id is None:
    raise ValueError('objective sentence_pair needs a vocabulary with tokens that begin a row and part segments')
  masked = mlm.make(trunk=trunk, vocab=vocab, where=where, edit=edit, masking=masking, copies=copies)
  choose, separators = QUESTIONS[question], SEPARATORS[layout]
  frame = partial(pairs.join, cls_id=vocab.cls_id, sep_id=vocab.sep_id, pad_id=vocab.pad_id, separators=separators)
  every: Literal['step', 'epoch'] = 'step' if masking == 'dynamic' else 'epoch'

  def join(key: Array, row: Mapping[str, Array]) -> tuple[pairs.Joined, Array]:
    choose_key, cut_key = jax.random.split(key)
    parts = (pairs.Segment(row[name], row[f'{name}_length']) for name in ('first', 'next', 'other'))
    chosen = choose(choose_key, *parts)
    length = row['first'].shape[0]
    cut = pairs.truncate(cut_key, chosen.first, chosen.second, room=length - 2 - separators)
    return frame(*cut, length=length), chosen.label

  def prepare(root: Array, batch: Batch) -> Example:
    keys = row_keys(jax.random.fold_in(root, _PAIR), batch, every=every, copies=copies)
    names = [name + end for name in ('first', 'next', 'other') for end in ('', '_length')]
    rows, labels = jax.vmap(join)(keys, {name: batch[name] for name in names})
    joined = {'tokens': rows.ids, 'segment_ids': rows.segment_ids, 'type_ids': rows.type_ids}
    example = masked.prepare(root, {**batch, **joined})
    weights = batch['row_weight']
    targets = {
      'label': labels,
      'row_weights': weights,
      'row_scale': jnp.broadcast_to(1 / jnp.maximum(weights.sum(), 1.0), weights.shape),
      'num_tokens': rows.segment_ids.sum(axis=1).astype(jnp.float32),
    }
    return Example(example.inputs, example.targets | targets)

  def loss(forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
    del carry, rng
    targets = example.targets
    logits, label_logits = forward(**example.inputs)
    masked_loss = mlm.score(logits, targets)
    nats = cross_entropy(label_logits, targets['label'])
    weights = targets['row_weights']
    correct = (label_logits.argmax(axis=-1) == targets['label']) * weights
    total = weights.sum()
    value = masked_loss.value + (nats * weights * targets['row_scale']).sum()
    metrics = masked_loss.metrics | {
      'loss': (value / targets['row_scale'][0], total),  # as trained: each term a mean over the batch
      'mlm_loss': masked_loss.metrics['loss'],
      f'{question}_loss': ((nats * weights).sum(), total),
      f'{question}_accuracy': (correct.sum(), total),
      'tokens_per_row': ((targets['num_tokens'] * weights).sum(), total),
    }
    return Loss(value, metrics)

  def predict(forward: Forward, example: Example) -> dict[str, Array]:
    logits, label_logits = forward(**example.inputs)
    return {
      'positions': example.inputs['predict'],
      'ids': logits.argmax(axis=-1),
      'weights': example.targets['weights'],
      'label': label_logits.argmax(axis=-1),
      'probability': jax.nn.softmax(label_logits, axis=-1),
    }

  def summary(means: dict[str, float]) -> dict[str, float]:
    return {'perplexity': perplexity(means['mlm_loss'])}

  model = Model(trunk, mlm.make_head(trunk, vocab), trunk.config.init_std)
  return Task(model, prepare, loss, predict, summary=summary)
