"""Extractive question answering: start and end of the answer in a text (BERT §4.2 and §4.3).

The state of every token gives a start score and an end score. The loss is the mean of the two cross-entropies over the
positions of a window; a window without the answer has to point at its no-answer token ([CLS]). Predictions are the
`n_best` legal pairs by the sum of their scores, and the sum at the no-answer token. A pair is legal if j >= i, both are
in the text, it has at most `max_answer` tokens, and no other window has more context around the start.
`scores/squad.py` and `scores/squad2.py` join the windows of a question, and read the characters of the text.

With end='conditional' the end score depends on the start, and a classifier predicts whether there is an answer (XLNet
§3.4 and its released code, ELECTRA §3.1). The end is trained from the right start, and predicted from each of the
`starts` likeliest.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.adapters.texts import Inputs, inputs_of, make_lstm, read_text, segments_of, trained
from plm_jax.core import errors
from plm_jax.core.keywords import Count, NonNegativeInt, PartRate, Std, Weight
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, PyTree, Supervised, Task, Vocab
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Dense, normal
from plm_jax.layers.losses import cross_entropy
from plm_jax.layers.means import batch_scale, metric, scaled_sum
from plm_jax.layers.norm import LayerNorm
from plm_jax.scores import Group, squad, squad2

PAPER = Supervised(year=2018, title='BERT §4.2, §4.3')
READS = ('tokens', 'segment_ids', 'start', 'end', 'context')
DATA = dict(name='labelled', kind='spans')  # keys of the data block of a published head
TEXTS = 2  # of an example
End = Literal['independent', 'conditional']
SHOWN, MAXIMUM, NO_ANSWER = 1, 2, 3  # values of `context`, see `data/rows/question_windows.py`
NEVER = -1e30  # score of an illegal pair; twice this value is finite in float32


class Conditional(nn.Module):
  """Scores of starts, of ends given a start, and of no answer (XLNet's released code, `get_qa_outputs`)."""

  features: int
  init_std: float

  def setup(self) -> None:
    init = normal(self.init_std)
    inner = partial(Dense, self.features, axes=('embed', 'mlp'), kernel_init=init)
    self.start = Dense(1, axes=('embed', 'classes'), kernel_init=init)
    self.end_inner, self.end_norm = inner(), LayerNorm(1e-12)
    self.end = Dense(1, axes=('mlp', 'classes'), kernel_init=init)
    self.none_inner = inner()
    self.none = Dense(1, axes=('mlp', 'classes'), kernel_init=init, use_bias=False)

  def starts(self, hidden: Array) -> Array:
    """Compute start scores f32[b, l] of states [b, l, d]."""
    return self.start(hidden)[..., 0]

  def ends(self, hidden: Array, states: Array) -> Array:
    """Compute end scores f32[b, n, l] for states [b, n, d]."""
    shape = (*states.shape[:2], *hidden.shape[1:])  # [b, n, l, d]
    pair = jnp.concatenate([jnp.broadcast_to(x, shape) for x in (hidden[:, None], states[:, :, None])], axis=-1)
    return self.end(self.end_norm(jnp.tanh(self.end_inner(pair))))[..., 0]

  def impossible(self, whole: Array, state: Array) -> Array:
    """Compute no-answer logits f32[b].

    The [b, d] inputs are the state of the no-answer token, and the mean state weighted by the probability to start.
    """
    return self.none(jnp.tanh(self.none_inner(jnp.concatenate([state, whole], axis=-1))))[..., 0]


class Model(nn.Module):
  """Trunk, dropout and one dense layer with two outputs per token, or the head `Conditional`; see `make`."""

  trunk: nn.Module
  dropout: float
  frozen: bool
  init_std: float
  conditional: bool
  lstm_layers: int

  def setup(self) -> None:
    self.lstm = make_lstm(self.trunk, self.lstm_layers, dropout=self.dropout)
    if self.conditional:
      self.joint = Conditional(self.trunk.hidden_dim, self.init_std, name='head')
    else:
      self.head = Dense(2, axes=('embed', 'classes'), kernel_init=normal(self.init_std))
    self.head_dropout = Dropout(self.dropout)

  def __call__(self, train: bool = False, **inputs: Array) -> tuple[Array, Array]:
    """Compute scores f32[b, l, 2] of start and end, and states.

    With `conditional` the scores are f32[b, l, 1], of starts only. States are [b, l, d].
    """
    hidden = self.trunk(**inputs, train=train and not self.frozen)['hidden']
    if self.frozen:
      hidden = jax.lax.stop_gradient(hidden)
    if self.lstm_layers:
      hidden = self.lstm(hidden, segments_of(inputs), train=train)
    hidden = self.head_dropout(hidden.astype(jnp.float32), train=train)
    if not self.conditional:
      return self.head(hidden), hidden
    if self.is_initializing():
      self.ends(hidden, hidden[:, :1])
      self.impossible(hidden[:, 0], hidden[:, 0])
    return self.joint.starts(hidden)[..., None], hidden

  def ends(self, hidden: Array, states: Array, train: bool = False) -> Array:
    """Call the method of `Conditional`."""
    return self.joint.ends(hidden, states)

  def impossible(self, whole: Array, state: Array, train: bool = False) -> Array:
    """Call the method of `Conditional`."""
    return self.joint.impossible(whole, state)


class SpanSettings(NamedTuple):
  """Inputs, loss and predictions; those not listed are explained in `make`."""

  inputs: Inputs
  n_best: int
  max_answer: int
  threshold: float  # margin by which no answer has to score above the best answer
  starts: int
  weight: float  # weight of the classifier of questions without an answer


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  n_best: Count = 20,
  max_answer: Count = 30,
  no_answer: bool = False,
  threshold: Annotated[float, 'any'] = 0.0,
  end: End = 'independent',
  starts: Count = 5,
  answerable_weight: Weight = 0.5,
  dropout: PartRate = 0.0,
  frozen: bool = False,
  init_std: Std = 0.02,
  lstm_layers: NonNegativeInt | None = None,
) -> Task:
  """Find the answer to a question in a text.

  The data are those of `data/labelled.py` with kind='spans'.

  Args:
    n_best: number of predicted pairs of start and end per window.
    max_answer: maximum number of tokens of an answer.
    no_answer: texts may contain no answer, as in SQuAD 2: answers are scored by its rule, and a question is left
      unanswered if no answer scores above the best answer.
    threshold: required margin; add `best_f1_threshold` of `scores/squad2.py` from a validation set.
    end: 'independent' of the start, or 'conditional' on it, with a classifier that decides whether a question is left
      unanswered.
    starts: with 'conditional', number of likeliest starts from which ends are predicted.
    answerable_weight: with 'conditional', weight of the classifier's loss.
    dropout: rate before the head.
    frozen: feature extraction: the trunk runs without dropout and does not train, whatever `optim` says.
    init_std: standard deviation of the head's kernels.
    lstm_layers: number of new BiLSTM layers, as wide as the trunk, below the head; None for none.

  Raises:
    ValueError: an unknown `end`.
  """
  errors.one_of('adapter.end', end, End)
  s = SpanSettings(inputs_of(trunk), n_best, max_answer, threshold, starts, answerable_weight)
  conditional = end == 'conditional'
  return Task(
    model=Model(trunk, dropout, frozen, init_std, conditional, lstm_layers or 0),
    prepare=partial(prepare, s),
    loss=partial(conditional_loss if conditional else loss, s),
    predict=partial(conditional_predict if conditional else predict, s),
    in_words=partial(in_words, no_answer=no_answer),
    scores=('squad2',) if no_answer else ('squad',),
    trains=trained(frozen, trunk),
  )


def prepare(s: SpanSettings, root: Array, batch: Batch) -> Example:
  """Prepare windows, their answers and the positions where answers may be."""
  weights = batch['row_weight']
  targets = {name: batch[name] for name in ('start', 'end', 'context', 'segment_ids')}
  return Example(read_text(batch, s.inputs), targets | {'weights': weights, 'scale': batch_scale(weights)})


def loss(s: SpanSettings, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute mean cross-entropy of start and end; 'accuracy' needs both right."""
  targets, weights = example.targets, example.targets['weights']
  start, end = _scores(forward, example)
  values = (cross_entropy(start, targets['start']) + cross_entropy(end, targets['end'])) / 2
  right = (start.argmax(axis=1) == targets['start']) & (end.argmax(axis=1) == targets['end'])
  metrics = {'loss': metric(values, weights), 'accuracy': metric(right, weights)}
  return Loss(scaled_sum(values, weights, targets['scale']), metrics)


def predict(s: SpanSettings, forward: Forward, example: Example) -> dict[str, Array]:
  """Predict the best pairs, in order of their score.

  Returns:
    'start', 'end' int32[b, n], 'score' f32[b, n], and 'no_answer' f32[b], the score of no answer.
  """
  start, end = _scores(forward, example)
  best = best_spans(start, end, example.targets['context'], n_best=s.n_best, max_answer=s.max_answer)
  return {**best, 'no_answer': best['no_answer'] - s.threshold}


def in_words(prediction: Mapping[str, Any], record: Mapping[str, Any], *, no_answer: bool = False) -> dict[str, Any]:
  """Return a window's best answer; '' for none if allowed and predicted."""
  window = Group([prediction], [record])
  if no_answer and squad2.question_of(window).unanswered:
    return {'answer': ''}
  return {'answer': squad.best(window)[0]}


def _scores(forward: Forward, example: Example) -> tuple[Array, Array]:
  """Compute start and end scores, f32[b, l] each, `NEVER` on padding."""
  scores = jnp.where(example.targets['segment_ids'][..., None] > 0, forward(**example.inputs)[0], NEVER)
  return scores[..., 0], scores[..., 1]


def best_spans(start: Array, end: Array, context: Array, *, n_best: int, max_answer: int) -> dict[str, Array]:
  """Find the legal pairs with the largest start[i] + end[j].

  A pair has i <= j < i + max_answer. Inputs are [b, l] each. Returns 'start', 'end' int32[b, n_best], 'score'
  f32[b, n_best], `NEVER` or less for illegal pairs, and 'no_answer' f32[b], the sum at the no-answer token.
  """
  # start 5 1 2, end 0 3 4, max_answer 2: sums of (i, i), (i, i + 1)   5 8 | 4 5 | 6 -   best (0, 1), (2, 2), (0, 0)
  length, widest = start.shape[1], min(max_answer, start.shape[1])
  # 1. scores of legal starts and ends
  opens = jnp.where(context == MAXIMUM, start, NEVER)
  closes = jnp.where((context == SHOWN) | (context == MAXIMUM), end, NEVER)
  # 2. sums of all pairs, [b, l, widest] -> [b, l widest], padded to n_best
  closes = jnp.pad(closes, ((0, 0), (0, widest)), constant_values=NEVER)
  ahead = jnp.stack([closes[:, more : more + length] for more in range(widest)], axis=2)  # [b, l, widest]
  sums = (opens[:, :, None] + ahead).reshape(len(start), -1)
  sums = jnp.pad(sums, ((0, 0), (0, max(0, n_best - sums.shape[1]))), constant_values=NEVER)
  # 3. the best ones
  score, index = jax.lax.top_k(sums, n_best)
  null = jnp.where(context == NO_ANSWER, start + end, 0.0).sum(axis=1)
  first = jnp.minimum(index // widest, length - 1)
  return {'start': first, 'end': jnp.minimum(first + index % widest, length - 1), 'score': score, 'no_answer': null}


# An end that depends on the start ------------------------------------------------------------------------------------


def conditional_loss(s: SpanSettings, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute the mean cross-entropy of start and end, plus the classifier's loss.

  The end is conditional on the right start.
  """
  targets, weights = example.targets, example.targets['weights']
  # 1. start, and end given the right start
  start, hidden, no_answer = _start_and_no_answer(forward, example)
  right = jnp.take_along_axis(hidden, targets['start'][:, None, None], axis=1)  # [b, 1, d]
  end = jnp.where(targets['context'] > 0, forward(method='ends', hidden=hidden, states=right)[:, 0], NEVER)
  values = (cross_entropy(start, targets['start']) + cross_entropy(end, targets['end'])) / 2
  # 2. classifier
  absent = jnp.take_along_axis(targets['context'], targets['start'][:, None], axis=1)[:, 0] == NO_ANSWER
  answerable_nats = jax.nn.softplus(jnp.where(absent, -no_answer, no_answer))
  hits = (start.argmax(axis=1) == targets['start']) & (end.argmax(axis=1) == targets['end'])
  metrics = {'span_loss': metric(values, weights), 'answerable_loss': metric(answerable_nats, weights)}
  metrics |= {'accuracy': metric(hits, weights), 'answerable_accuracy': metric((no_answer > 0) == absent, weights)}
  total = values + s.weight * answerable_nats
  return Loss(scaled_sum(total, weights, targets['scale']), metrics | {'loss': metric(total, weights)})


def conditional_predict(s: SpanSettings, forward: Forward, example: Example) -> dict[str, Array]:
  """Predict like `predict`, by log-probabilities.

  'impossible' f32[b] is 0 or more if a window is predicted to contain no answer.
  """
  context = example.targets['context']
  start, hidden, no_answer = _start_and_no_answer(forward, example)
  length = start.shape[1]
  # 1. the likeliest starts, [b, n]
  opens = jnp.where(context == MAXIMUM, jax.nn.log_softmax(start), NEVER)
  likeliest, first = jax.lax.top_k(opens, min(s.starts, length))
  # 2. ends given each of them
  states = jnp.take_along_axis(hidden, first[..., None], axis=1)  # [b, n, d]
  end = forward(method='ends', hidden=hidden, states=states)  # [b, n, l]
  end = jax.nn.log_softmax(jnp.where((context > 0)[:, None], end, NEVER))
  position = jnp.arange(length)
  legal = (position >= first[..., None]) & (position < first[..., None] + s.max_answer)
  legal &= ((context == SHOWN) | (context == MAXIMUM))[:, None]
  # 3. the best pairs, [b, n l] -> [b, n_best]
  sums = (likeliest[..., None] + jnp.where(legal, end, NEVER)).reshape(len(start), -1)
  sums = jnp.pad(sums, ((0, 0), (0, max(0, s.n_best - sums.shape[1]))), constant_values=NEVER)
  score, chosen = jax.lax.top_k(sums, s.n_best)
  begin = jnp.take_along_axis(first, jnp.minimum(chosen // length, first.shape[1] - 1), axis=1)
  pairs = {'start': begin, 'end': chosen % length, 'score': score}
  return {**pairs, 'no_answer': no_answer, 'impossible': no_answer - s.threshold}


def _start_and_no_answer(forward: Forward, example: Example) -> tuple[Array, Array, Array]:
  """Compute start scores, states and no-answer logits.

  They are f32[b, l] with `NEVER` outside of the text, [b, l, d] and f32[b].
  """
  context = example.targets['context']
  scores, hidden = forward(**example.inputs)
  start = jnp.where(context > 0, scores[..., 0], NEVER)
  state = jnp.einsum('bl,bld->bd', jax.nn.softmax(start), hidden)
  whole = jnp.take_along_axis(hidden, (context == NO_ANSWER).argmax(axis=1)[:, None, None], axis=1)[:, 0]
  return start, hidden, forward(method='impossible', whole=whole, state=state)
