"""Cross-view training of a translator: pairs of texts, and texts that nobody translated (Clark et al. 2018, §3.4).

    objective = dict(name='translate_views', labelled='pairs', unlabelled='text', ...)
    data = dict(name='mixture', per='step', alternate='text', parts=dict(
                pairs=dict(name='text_to_text', second='targets', layout='bare', ...),
                text=dict(name='stream', layout='rows', begin='', end='', ...)), ...)

On rows of `labelled` a step is that of `translate`, whose decoder here reads no context-adjusted state. On rows of
`unlabelled` this decoder writes a translation w without a gradient, by beam search, and two views learn to write it:

  dropped  attention of its own, of whose weights a share is dropped
  future   attention of its own; h~_(t-1), which has read the words before w_(t-1), says what w_t is

Views share the encoder, the vectors of the words that are written and the LSTM of the decoder; each has W1, b1, W2, b2,
W and b of its own. Since a translation exists only once it is written, each text weighs as much as any other in the
loss of a view, and a token as much as any other of its text. Evaluation reads the decoder, as 'pairs/bleu'.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.adapters import answers, multitask, sequence, texts
from plm_jax.adapters.answers import Reader, Start
from plm_jax.core.types import Array, Batch, Count, Example, Forward, Loss, Paper, PartRate, PyTree, Std, Task, Vocab
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Dense, uniform
from plm_jax.layers.losses import cross_entropy, in_chunks, most_likely
from plm_jax.layers.lstm import State
from plm_jax.layers.means import metric, row_terms, scaled_sum, whole_loss
from plm_jax.objectives import translate

PAPER = Paper(
  year=2018,
  title='Clark et al., Cross-View Training',
  architecture='lstm',
  objective_family='supervised',
  supervision='supervised',
)
READS = ('part', 'tokens', 'segment_ids', 'target_tokens', 'target_segment_ids')

VIEWS = ('dropped', 'future')


class View(nn.Module):
  """What a view has of its own: the attention and the output of `translate.Decoder`.

  Attributes:
    vocab_size: v, of what is written.
    hidden_dim: d.
    biases: whether there are b1 and b2.
    dropout: rate on the weights of attention.
    init_range: parameters start from U(-init_range, init_range), the bias of the output from 0.
    dtype: of states and products.
  """

  vocab_size: int
  hidden_dim: int
  biases: bool
  dropout: float
  init_range: float
  dtype: str

  def setup(self) -> None:
    init = uniform(self.init_range)
    self.attention = translate.attention_params(self, self.hidden_dim, self.biases, init, self.dtype)
    self.drop = Dropout(self.dropout)
    self.output = Dense(self.vocab_size, axes=('embed', 'vocab'), kernel_init=init, dtype=self.dtype)

  def __call__(self, states: Array, hidden: Array, segment_ids: Array, *, train: bool) -> Array:
    """h~ [b, t, d] of states s_t [b, t, d] over the states [b, m, d] of a text."""
    source = self.attention.source(hidden, segment_ids)
    return self.attention.look(states, source, drop=partial(self.drop, train=train))

  def attend(self, features: Array) -> Array:
    """Vocabulary logits f32[..., v] of h~ [..., d]."""
    return self.output(features).astype(jnp.float32)


class Views(nn.Module):
  """An encoder, and what the views have of their own."""

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
    """The states [b, m, d] of texts int[b, m], and where each layer ends."""
    out = self.trunk(tokens, segment_ids=segment_ids, train=train)
    if self.is_initializing():
      for name, features in self.look(out['hidden'], out['hidden'], segment_ids).items():
        self.attend(features, name)
    return out['hidden'], out['ends']

  def look(self, states: Array, hidden: Array, segment_ids: Array, train: bool = False) -> dict[str, Array]:
    """What each view says the tokens of a translation are, as h~ [b, t, d]; see `View`."""
    seen = {name: view(states, hidden, segment_ids, train=train) for name, view in self.views.items()}
    # h~ of steps 0 1 2   ->   nothing, 0, 1
    return seen | {'future': jnp.pad(seen['future'][:, :-1], ((0, 0), (1, 0), (0, 0)))}

  def attend(self, features: Array, view: str, train: bool = False) -> Array:
    """Vocabulary logits f32[..., v] of a view."""
    del train
    return self.views[view].attend(features)


class TranslateViewsSettings(NamedTuple):
  """How unlabelled texts are written and read.

  Attributes:
    labelled: the part whose model writes.
    reader: how it reads a text and a translation.
    search: keywords of `generate`, but `max_new` where it is None.
  """

  labelled: str
  reader: Reader
  search: Mapping[str, Any]


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
  """Writes the translation of a text, and learns from texts without one as well.

  Args:
    trunk: a recurrent encoder, see `types.Ends`.
    vocab: of what is read.
    second_vocab: of what is written, with an end token, which targets end with.
    labelled: name of the part of the data that has translations.
    unlabelled: name of the part whose rows need none.
    word_dim: width of the vectors of words that were written.
    biases: b1 and b2 of the attention.
    dropout: rate between layers of the decoder.
    attention_dropout: rate on the weights of attention of the view 'dropped'.
    init_range: see `translate.Decoder`.
    start: what the decoder reads first.
    label_smoothing: of the decoder on labelled rows.
    search: how the translations are written that views learn; `max_new` None is the length of the texts.
    decoding: how an evaluation writes text.
    scores: `labelled` -> files of `plm_jax/scores/` that score all translations of an evaluation.
    logit_rows: rows of each device whose logits are in memory at a time.

  Raises:
    ValueError: what `translate` refuses, parts with one name or one that is taken, or scores of another part.
  """
  if len({labelled, unlabelled, *multitask.TAKEN}) < 2 + len(multitask.TAKEN):
    raise ValueError(
      f'objective.labelled={labelled!r} and objective.unlabelled={unlabelled!r}: name two parts of the data, none of '
      f'them {" or ".join(multitask.TAKEN)}'
    )
  if unknown := sorted(set(scores) - {labelled}):
    raise ValueError(f'objective.scores names {unknown[0]!r}, and objective.labelled {labelled!r}')
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
  s = TranslateViewsSettings(labelled, reader, settings)
  views = Task(model, prepare, partial(loss, s), lambda forward, example: {}, trains=texts.all_but_fixed(trunk))
  both = {labelled: writer, unlabelled: views}
  return multitask.join({name: both[name] for name in sorted(both)}, scores=scores)


def objectives_by_part(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
  """The objective of the translator by itself (`config/one_part.py`), from the block of this one."""
  of_views = ('name', 'labelled', 'unlabelled', 'attention_dropout', 'search', 'scores')
  own = {key: value for key, value in settings.items() if key not in of_views}
  return {settings.get('labelled', 'pairs'): {'name': 'translate', 'feeding': False, **own}}


def prepare(root: Array, batch: Batch) -> Example:
  """Texts without a translation; of a row that holds several the first."""
  # segments 1 1 2 2 0   ->   1 1 0 0 0
  del root
  first = (batch['segment_ids'] == 1).astype(jnp.int32)
  return Example({'tokens': batch['tokens'], 'segment_ids': first}, row_terms(batch['row_weight']))


def loss(s: TranslateViewsSettings, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """sum over views of the mean over texts of -log p(w_t), the mean over tokens of the translation that is written."""
  del carry
  text, targets = example.inputs, example.targets
  settings = {'max_new': text['tokens'].shape[1], **s.search}
  settings |= {'rng': rng} if settings.get('method') == 'sample' else {}
  made = forward(part=s.labelled, method='write', train=False, settings=settings, **text)
  there = jnp.arange(made.tokens.shape[1]) < made.lengths[:, None]  # bool[b, t]
  read = answers.read(s.reader, **text, answer=made.tokens, answer_segments=there.astype(jnp.int32))
  hidden, ends = forward(**text)
  states = forward(part=s.labelled, method='states', tokens=read['decoder_tokens'], ends=ends)
  seen = forward(method='look', states=states, hidden=hidden, segment_ids=text['segment_ids'])
  value, metrics = jnp.zeros(()), dict[str, tuple[Array, Array]]()
  for view in VIEWS:
    told = there.at[:, 0].set(False) if view == 'future' else there
    weights = told * targets['row_weight'][:, None]
    nats, right = _scored(s, forward, view, seen[view], made.tokens)
    per_text = (nats * told).sum(axis=1) / jnp.maximum(told.sum(axis=1), 1)
    value += scaled_sum(per_text, targets['row_weight'], targets['row_scale'])
    metrics |= {view: metric(nats, weights), f'{view}_accuracy': metric(right, weights)}
  return Loss(value, metrics | {'loss': whole_loss(value, targets)})


def _scored(s: TranslateViewsSettings, forward: Forward, view: str, features: Array, ids: Array) -> tuple[Array, Array]:
  """-log p of the tokens int[b, t], and whether each is the likeliest, of h~ [b, t, d]."""

  def one(chunk: tuple[Array, Array]) -> tuple[Array, Array]:
    logits = forward(method='attend', features=chunk[0], view=view)
    return cross_entropy(logits, chunk[1]), most_likely(logits, chunk[1]).astype(jnp.float32)

  return in_chunks(one, (features, ids), rows=s.reader.rows)
