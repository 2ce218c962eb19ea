"""Masked language modelling of sentence pairs, with next-sentence prediction (Devlin et al. 2018, §3.1, tasks 1 and 2).

Or with sentence-order prediction (Lan et al. 2019, §3.1). The label is predicted from the pooled state, which trains
the trunk's pooler for downstream tasks. The terms are separate means; those of the papers have the same weight.
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
from plm_jax.core.keywords import Count, Weight
from plm_jax.core.sharding import each_row
from plm_jax.core.trunk import Attends
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Template, Vocab
from plm_jax.layers.linear import Dense, truncated_normal
from plm_jax.layers.losses import cross_entropy
from plm_jax.layers.means import exact_loss, metric, perplexity_of, row_terms, scaled_sum, whole_loss
from plm_jax.noise import pair as pairs
from plm_jax.noise.keys import row_keys
from plm_jax.objectives import corrupt, mlm

PAPER = Paper(year=2018, title='Devlin et al., BERT', architecture='encoder', objective_family='contrastive')
READS = ('first', 'next', 'other', 'first_length', 'next_length', 'other_length')
MAY_READ = ('word_marks',)  # they are part of the ids, see `data/pairs.py`
OF_A_ROW = True  # it predicts one label per row, which adapters/distil.py can compare

Question = Literal['nsp', 'sop']
Layout = Literal['bert', 'roberta']
QUESTIONS: Mapping[Question, Callable[..., pairs.Pair]] = {'nsp': pairs.next_or_other, 'sop': pairs.in_order_or_swapped}
SEPARATORS: Mapping[Layout, int] = {'bert': 1, 'roberta': 2}
_PAIR = np.uint32(2**31 + 1)  # not a row id, so the keys of pairs differ from those of masks


class Model(nn.Module):
  """A bidirectional trunk with the vocabulary head on gathered positions and two labels on the pooled state."""

  trunk: nn.Module
  mlm: nn.Module
  init_std: float

  @nn.compact
  def __call__(self, predict: Array, train: bool = False, **inputs: Array) -> tuple[Array, Array]:
    """Compute logits f32[b, t, v] at `predict`, and of labels f32[b, 2]."""
    hidden = self.trunk(**inputs, train=train)['hidden']
    pooled = self.trunk.pool(hidden, inputs['segment_ids'])  # [b, d]
    head = Dense(2, axes=('embed', 'classes'), kernel_init=truncated_normal(self.init_std), name='pair')
    return self.mlm(mlm.states_at(hidden, predict), self.trunk.attend), head(pooled).astype(jnp.float32)


class SentencePairSettings(NamedTuple):
  """Settings of rows of two segments and their masks."""

  masking: mlm.MlmSettings
  question: Question  # 'nsp' or 'sop'
  choose: Callable[..., pairs.Pair]  # (key, first, following, other) -> `pairs.Pair`
  join: Callable[..., pairs.Joined]  # (first, second, length=) -> `pairs.Joined`
  frame: int  # number of tokens of a row outside both segments
  weight: float


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  question: Question = 'nsp',
  layout: Layout = 'bert',
  where: Annotated[Mapping[str, Any], 'noise.where'] = {'name': 'fixed_count'},
  edit: Annotated[Mapping[str, Any], 'noise.edit'] = {'name': 'bert_80_10_10'},
  masking: corrupt.Masking = 'dynamic',
  copies: Count = 10,
  weight: Weight | None = None,
) -> Task:
  """Build masked language modelling with a label of two segments.

  Needs rows of `data/pairs.py`.

  Args:
    trunk: an encoder with a pooler.
    vocab: with tokens for a mask, for the beginning of a row and between segments.
    question: the label: 'nsp', the second segment follows the first or is from elsewhere (`NextSentence`); 'sop', both
      are in order or swapped (`SentenceOrder`).
    layout: 'bert' is [CLS] A [SEP] B [SEP]; 'roberta' has two separators in the middle.
    where: the tokens to mask, as in `mlm`.
    edit: how to corrupt them, as in `mlm`.
    masking: 'dynamic' samples new masks and pairs at every step, 'static' repeats those of `copies` epochs (BERT; set
      the same `copies` for the data).
    copies: of each row when static.
    weight: of the label's loss, whose gradient in small batches can drown that of the masked tokens. Default 1.
  """
  user, inputs = "objective 'sentence_pair'", ('tokens', 'segment_ids', 'type_ids')
  require(trunk, user=user, attention=('bidirectional',), inputs=inputs, offers=(Attends,))
  errors.one_of('objective.question', question, Question)
  errors.one_of('objective.layout', layout, Layout)
  if vocab.cls_id is None or vocab.sep_id is None:
    raise ValueError(
      'objective sentence_pair needs a vocabulary with tokens [CLS] and [SEP]; vocab.roles can name them'
    )
  frame = partial(pairs.join, cls_id=vocab.cls_id, sep_id=vocab.sep_id, pad_id=vocab.pad_id)
  s = SentencePairSettings(
    masking=mlm.bind(vocab, where=where, edit=edit, masking=masking, copies=copies, user='objective sentence_pair'),
    question=question,
    choose=QUESTIONS[question],
    join=partial(frame, separators=SEPARATORS[layout]),
    frame=2 + SEPARATORS[layout],
    weight=1.0 if weight is None else weight,
  )
  model = Model(trunk, mlm.make_head(trunk), trunk.head_style.init_std)
  return Task(
    model,
    partial(prepare, s),
    partial(loss, s),
    predict,
    summary=partial(perplexity_of, nats='mlm_loss'),
    exact=partial(exact_loss, terms={'mlm_loss': 1.0, f'{question}_loss': s.weight}),
  )


def template(*, vocab: Vocab, rows: Template | None, layout: Layout = 'bert', **rest: Any) -> Template:
  """Build the template of the two segments."""
  cls_id, sep_id = vocab.cls_id, vocab.sep_id
  assert cls_id is not None and sep_id is not None  # `make` checks this
  between = ((sep_id, 0),) * SEPARATORS[layout]
  return Template(((cls_id, 0), ('A', 0), (sep_id, 0)), ((cls_id, 0), ('A', 0), *between, ('B', 1), (sep_id, 1)))


def prepare(s: SentencePairSettings, root: Array, batch: Batch) -> Example:
  """Build the inputs of `Model`, its targets and its labels."""
  keys = row_keys(jax.random.fold_in(root, _PAIR), batch, every=s.masking.every, copies=s.masking.copies)
  rows, labels = each_row(partial(join, s), keys, {name: batch[name] for name in READS})
  marks, ids = jnp.divmod(rows.ids, len(s.masking.special))  # of a segmenter, else 0
  joined = {'tokens': ids, 'word_marks': marks, 'segment_ids': rows.segment_ids, 'type_ids': rows.type_ids}
  example = mlm.prepare(s.masking, root, corrupt.identity(batch) | joined)
  targets = {'label': labels, 'num_tokens': rows.segment_ids.sum(axis=1).astype(jnp.float32)}
  return Example(example.inputs, example.targets | targets | row_terms(batch['row_weight']))


def join(s: SentencePairSettings, key: Array, row: Mapping[str, Array]) -> tuple[pairs.Joined, Array]:
  """Join two sampled segments, cut to fit; also their label int32[]."""
  choose_key, cut_key = jax.random.split(key)
  parts = (pairs.Segment(row[name], row[f'{name}_length']) for name in ('first', 'next', 'other'))
  chosen = s.choose(choose_key, *parts)
  length = row['first'].shape[0]
  cut = pairs.truncate(cut_key, chosen.first, chosen.second, room=length - s.frame)
  return s.join(*cut, length=length), chosen.label


def loss(s: SentencePairSettings, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute the cross-entropy of the masked tokens and of the label."""
  targets = example.targets
  logits, label_logits = forward(**example.inputs)
  masked = mlm.score(logits, targets)
  nats, weights = cross_entropy(label_logits, targets['label']), targets['row_weight']
  value = masked.value + s.weight * scaled_sum(nats, weights, targets['row_scale'])
  metrics = masked.metrics | {
    'loss': whole_loss(value, targets),
    'mlm_loss': masked.metrics['loss'],
    f'{s.question}_loss': metric(nats, weights),
    f'{s.question}_accuracy': metric(label_logits.argmax(axis=-1) == targets['label'], weights),
    'tokens_per_row': metric(targets['num_tokens'], weights),
  }
  return Loss(value, metrics)


def predict(forward: Forward, example: Example) -> dict[str, Array]:
  """Predict the token of each slot, and the label of each pair."""
  logits, label_logits = forward(**example.inputs)
  label, probability = label_logits.argmax(axis=-1), jax.nn.softmax(label_logits, axis=-1)
  return mlm.predicted(logits, example) | {'label': label, 'probability': probability}
