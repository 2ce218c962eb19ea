"""Cross-view training of a translator: pairs of texts, and texts without a translation (Clark et al. 2018, §3.4).

    objective = dict(name='translate_views', labelled='pairs', unlabelled='text', ...)
    data = dict(name='mixture', per='step', alternate='text', parts=dict(
                pairs=dict(name='text_to_text', second='targets', layout='bare', ...),
                text=dict(name='stream', layout='rows', begin='', end='', ...)), ...)

On rows of `labelled` a step is that of `translate`, with a decoder without input feeding. On rows of `unlabelled` this
decoder generates a translation w without a gradient, by beam search, and two views learn to write it:

  dropped  its own attention, with dropout on the weights
  future   its own attention; h~_(t-1), which has read the words before w_(t-1), predicts w_t

Views share the encoder, the target word vectors and the LSTM of the decoder; each has its own W1, b1, W2, b2, W and b.
The length of a translation is unknown before it is generated. So each text has the same weight in the loss of a view,
and each token the same weight within its text. Evaluation uses the decoder, as 'pairs/bleu'.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.adapters import answers, multitask, sequence, texts
from plm_jax.adapters.answers import Reader, Start
from plm_jax.core.keywords import Count, PartRate, Std
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, PyTree, Supervised, Task, Vocab
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Dense, uniform
from plm_jax.layers.losses import chunked_cross_entropy
from plm_jax.layers.lstm import State
from plm_jax.layers.means import metric, row_terms, scaled_sum, whole_loss
from plm_jax.objectives import translate
from plm_jax.objectives.translate_decoder import attention_params

PAPER = Supervised(year=2018, title='Clark et al., Cross-View Training', architecture='lstm')
READS = ('part', 'tokens', 'segment_ids', 'target_tokens', 'target_segment_ids')

VIEWS = ('dropped', 'future')


class View(nn.Module):
  """The parameters of a view: its attention and its output, as in `translate_decoder.Decoder`."""

  vocab_size: int
  hidden_dim: int
  biases: bool
  dropout: float  # rate on the weights of attention
  init_range: float
  dtype: str

  def setup(self) -> None:
    init = uniform(self.init_range)
    self.attention = attention_params(self, self.hidden_dim, self.biases, init, self.dtype)
    self.drop = Dropout(self.dropout)
    self.output = Dense(self.vocab_size, axes=('embed', 'vocab'), kernel_init=init, dtype=self.dtype)

  def __call__(self, states: Array, hidden: Array, segment_ids: Array, *, train: bool) -> Array:
    """Compute h~ [b, t, d] of s_t over `hidden` [b, m, d]."""
    source = self.attention.source(hidden, segment_ids)
    return self.attention.adjust_states(states, source, drop=partial(self.drop, train=train))

  def attend(self, features: Array) -> Array:
    """Compute vocabulary logits f32[..., v] of h~ [..., d]."""
    return self.output(features).astype(jnp.float32)


class Views(nn.Module):
  """An encoder and the parameters of the views."""

  trunk: nn.Module
  vocab_size: int
  biases: bool
  dropout: float
  init_range: float

  def setup(self) -> None:
    sizes = self.vocab_size, self.trunk.hidden_dim, self.biases
    self.views = {
      name: View(*sizes, self.dropout if name == 'dropped' else 0.0, self.init_range, self.trunk.execution.dtype)
      for name in VIEWS
    }

  def __call__(self, tokens: Array, segment_ids: Array, train: bool = False) -> tuple[Array, State]:
    """Compute the states [b, m, d] and final states of texts."""
    out = self.trunk(tokens, segment_ids=segment_ids, train=train)
    if self.is_initializing():
      for name, features in self.look(out['hidden'], out['hidden'], segment_ids).items():
        self.attend(features, name)
    return out['hidden'], out['ends']

  def look(self, states: Array, hidden: Array, segment_ids: Array, train: bool = False) -> dict[str, Array]:
    """Compute h~ [b, t, d] of each view, see `View`."""
    seen = {name: view(states, hidden, segment_ids, train=train) for name, view in self.views.items()}
    # h~ of steps 0 1 2   ->   zeros, 0, 1
    return seen | {'future': jnp.pad(seen['future'][:, :-1], ((0, 0), (1, 0), (0, 0)))}

  def attend(self, features: Array, view: str, train: bool = False) -> Array:
    """Compute vocabulary logits f32[..., v] of a view."""
    return self.views[view].attend(features)


class TranslateViewsSettings(NamedTuple):
  """Settings of translations of unlabelled texts."""

  labelled: str  # the part whose model generates them
  reader: Reader  # joins a text and a translation
  search: Mapping[str, Any]  # keywords of `generate`, without `max_new` if it is None


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  second_vocab: Vocab,
  labelled: str = 'pairs',
  unlabelled: str = 'text',
  word_dim: Count = 300,
  biases: bool = True,
  dropout: PartRate = 0.2,
  attention_dropout: PartRate = 0.5,
  init_range: Std = 0.1,
  start: Start = 'bos',
  label_smoothing: PartRate = 0.1,
  search: Annotated[Mapping[str, Any], 'adapters.sequence:Decoding'] = {'method': 'beam'},
  decoding: Annotated[Mapping[str, Any], 'adapters.sequence:Decoding'] = {},
  scores: Mapping[str, tuple[Annotated[str, 'scores'], ...]] = {},
  logit_rows: Count = 8,
) -> Task:
  """Build a translator that also learns from texts without translation.

  Args:
    trunk: a recurrent encoder, see `trunk.Ends`.
    second_vocab: of the target, with an end token, which ends each target.
    labelled: name of the part of the data that has translations.
    unlabelled: name of the part whose rows need none.
    word_dim: width of the vectors of target words.
    biases: b1 and b2 of the attention.
    dropout: rate between layers of the decoder.
    attention_dropout: rate on the weights of attention of the view 'dropped'.
    init_range: see `translate_decoder.Decoder`.
    start: the first token that the decoder reads.
    label_smoothing: of the decoder on labelled rows.
    search: how to generate the translations that views learn; `max_new` None is the length of the texts.
    decoding: how an evaluation generates text.
    scores: `labelled` -> files of `plm_jax/scores/` that score all translations of an evaluation.
    logit_rows: rows of each device whose logits are in memory at a time.

  Raises:
    ValueError: an error of `translate.make`, parts of equal or reserved names, or scores of another part.
  """
  if len({labelled, unlabelled, *multitask.TAKEN}) < 2 + len(multitask.TAKEN):
    raise ValueError(
      f'objective.labelled={labelled!r} and objective.unlabelled={unlabelled!r}: name two different parts of the data; '
      f'{", ".join(multitask.TAKEN)} are reserved'
    )
  if unknown := sorted(set(scores) - {labelled}):
    raise ValueError(
      f'objective.scores names {unknown[0]!r}, and objective.labelled {labelled!r}: only that part has scores'
    )
  writer = translate.make(
    trunk=trunk, vocab=vocab, second_vocab=second_vocab, word_dim=word_dim, biases=biases, feeding=False,
    dropout=dropout, init_range=init_range, start=start, label_smoothing=label_smoothing, decoding=decoding,
    logit_rows=logit_rows,
  )  # fmt: skip
  reader = answers.make_reader(
    writer.model, second_vocab, user="objective 'translate_views'", start=start, mask=None, rows=logit_rows
  )
  settings, _ = sequence.decoding_settings(search, second_vocab, reader)
  model = Views(trunk, second_vocab.size, biases, attention_dropout, init_range)
  s = TranslateViewsSettings(labelled=labelled, reader=reader, search=settings)
  views = Task(model, prepare, partial(loss, s), lambda forward, example: {}, trains=texts.all_but_fixed(trunk))
  both = {labelled: writer, unlabelled: views}
  return multitask.join({name: both[name] for name in sorted(both)}, scores=scores)


def objectives_by_part(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
  """Build the block of the translator alone (`config/one_part.py`)."""
  of_views = ('name', 'labelled', 'unlabelled', 'attention_dropout', 'search', 'scores')
  own = {key: value for key, value in settings.items() if key not in of_views}
  return {settings.get('labelled', 'pairs'): {'name': 'translate', 'feeding': False, **own}}


def prepare(root: Array, batch: Batch) -> Example:
  """Build texts without a translation, the first text of each row."""
  # segments 1 1 2 2 0   ->   1 1 0 0 0
  first = (batch['segment_ids'] == 1).astype(jnp.int32)
  return Example({'tokens': batch['tokens'], 'segment_ids': first}, row_terms(batch['row_weight']))


def loss(s: TranslateViewsSettings, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Average -log p(w_t) over tokens, then texts; sum over views."""
  text, targets = example.inputs, example.targets
  settings = {'max_new': text['tokens'].shape[1], **s.search}
  settings |= {'rng': rng} if settings.get('method') == 'sample' else {}
  # 1. generate translations
  generated = forward(part=s.labelled, method='write', train=False, settings=settings, **text)
  real = jnp.arange(generated.tokens.shape[1]) < generated.lengths[:, None]  # bool[b, t]
  # 2. run the views on them
  read = answers.read(s.reader, **text, answer=generated.tokens, answer_segments=real.astype(jnp.int32))
  hidden, ends = forward(**text)
  states = forward(part=s.labelled, method='states', tokens=read['decoder_tokens'], ends=ends)
  seen = forward(method='look', states=states, hidden=hidden, segment_ids=text['segment_ids'])
  # 3. average over tokens, then over texts
  value, metrics = jnp.zeros(()), dict[str, tuple[Array, Array]]()
  for view in VIEWS:
    predicted = real.at[:, 0].set(False) if view == 'future' else real
    weights = predicted * targets['row_weight'][:, None]
    attend = lambda part, view=view: forward(method='attend', features=part, view=view)  # noqa: E731
    nats, right = chunked_cross_entropy(attend, seen[view], generated.tokens, rows=s.reader.rows)
    per_text = (nats * predicted).sum(axis=1) / jnp.maximum(predicted.sum(axis=1), 1)
    value += scaled_sum(per_text, targets['row_weight'], targets['row_scale'])
    metrics |= {view: metric(nats, weights), f'{view}_accuracy': metric(right, weights)}
  return Loss(value, metrics | {'loss': whole_loss(value, targets)})
