"""The part of a text that answers a question (BERT §4.2 and §4.3): where it starts and where it ends.

The state of every token gives a score to start and one to end, and an answer costs the mean of the two cross-entropies
over the places of the row; a row that does not hold it has to point at the token that stands for the whole of it. What
is predicted are the `n_best` legal pairs (j >= i, both in the text, at most `max_answer` tokens, the start where no
other window shows more around it) by the sum of their scores, and the sum at the token that stands for no answer.
`scores/squad.py` and `scores/squad2.py` join the windows of a question, and read the characters of the text.

With end='conditional' the score to end depends on where the answer starts, and a classifier tells whether there is one
(XLNet §3.4 and its released code, ELECTRA §3.1): the end is learnt from the right start, and predicted from each of the
`starts` likeliest.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.adapters.texts import inputs_of, read_text, trained
from plm_jax.core import errors
from plm_jax.core.types import (
  Array,
  Batch,
  Count,
  Example,
  Forward,
  Loss,
  Paper,
  PartRate,
  PyTree,
  Std,
  Task,
  Vocab,
  Weight,
)
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Dense, normal
from plm_jax.layers.losses import cross_entropy
from plm_jax.layers.means import batch_scale, metric, scaled_sum
from plm_jax.layers.norm import LayerNorm
from plm_jax.scores import Group, squad, squad2

PAPER = Paper(
  year=2018, title='BERT §4.2, §4.3', architecture='any', objective_family='supervised', supervision='supervised'
)
READS = ('tokens', 'segment_ids', 'start', 'end', 'context')
End = Literal['independent', 'conditional']
SHOWN, MAXIMUM, NO_ANSWER = 1, 2, 3  # what stands in `context`, as `data/rows/question_windows.py` writes it
NEVER = -1e30  # the score of a pair that is not legal; twice as much is finite in float32


class Conditional(nn.Module):
  """Scores to start, to end behind a start, and to hold no answer (XLNet's released code, `get_qa_outputs`).

  Attributes:
    features: d, of the states.
    init_std: of the kernels.
  """

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
    """f32[b, l], of states [b, l, d]."""
    return self.start(hidden)[..., 0]

  def ends(self, hidden: Array, states: Array) -> Array:
    """f32[b, n, l], of states [b, l, d] where the answer starts with one of the states [b, n, d]."""
    shape = (*states.shape[:2], *hidden.shape[1:])  # [b, n, l, d]
    pair = jnp.concatenate([jnp.broadcast_to(x, shape) for x in (hidden[:, None], states[:, :, None])], axis=-1)
    return self.end(self.end_norm(jnp.tanh(self.end_inner(pair))))[..., 0]

  def impossible(self, whole: Array, state: Array) -> Array:
    """f32[b], of what stands for the row [b, d] and the mean state where an answer might start [b, d]."""
    return self.none(jnp.tanh(self.none_inner(jnp.concatenate([state, whole], axis=-1))))[..., 0]


class Model(nn.Module):
  """Trunk, dropout and one dense layer of two outputs over every token, or the head `Conditional`.

  Attributes:
    trunk: any trunk.
    dropout: rate before the head.
    frozen: the trunk runs without dropout and gets no gradient.
    init_std: of the head's kernels.
    conditional: the head is `Conditional`.
  """

  trunk: nn.Module
  dropout: float
  frozen: bool
  init_std: float
  conditional: bool

  def setup(self) -> None:
    if self.conditional:
      self.joint = Conditional(self.trunk.hidden_dim, self.init_std, name='head')
    else:
      self.head = Dense(2, axes=('embed', 'classes'), kernel_init=normal(self.init_std))
    self.head_dropout = Dropout(self.dropout)

  def __call__(self, train: bool = False, **inputs: Array) -> tuple[Array, Array]:
    """(scores f32[b, l, 2] of each token to start and to end, or f32[b, l, 1] to start; the states [b, l, d])."""
    hidden = self.trunk(**inputs, train=train and not self.frozen)['hidden']
    if self.frozen:
      hidden = jax.lax.stop_gradient(hidden)
    hidden = self.head_dropout(hidden.astype(jnp.float32), train=train)
    if not self.conditional:
      return self.head(hidden), hidden
    if self.is_initializing():
      self.ends(hidden, hidden[:, :1])
      self.impossible(hidden[:, 0], hidden[:, 0])
    return self.joint.starts(hidden)[..., None], hidden

  def ends(self, hidden: Array, states: Array, train: bool = False) -> Array:
    """See `Conditional`."""
    del train
    return self.joint.ends(hidden, states)

  def impossible(self, whole: Array, state: Array, train: bool = False) -> Array:
    """See `Conditional`."""
    del train
    return self.joint.impossible(whole, state)


class Setup(NamedTuple):
  """What is read and predicted.

  Attributes:
    inputs: what the trunk reads.
    n_best: pairs that are predicted.
    max_answer: tokens of the longest answer that is predicted.
    threshold: by which no answer has to score more than the best one.
    starts: from which an end is predicted where it depends on them.
    weight: of the classifier that tells whether there is an answer.
  """

  inputs: tuple[str, ...]
  n_best: int
  max_answer: int
  threshold: float
  starts: int
  weight: float


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
) -> Task:
  """Answers to questions, from rows as `data/labelled.py` makes them with kind='spans'.

  Args:
    trunk: any trunk.
    vocab: of the rows.
    n_best: pairs of start and end that are predicted for each row.
    max_answer: tokens of the longest answer that is predicted.
    no_answer: texts may hold no answer, as in SQuAD 2: answers are scored by its rule, and a question is left
      unanswered where that scores more than the best answer.
    threshold: by how much it has to score more; `best_f1_threshold` of `scores/squad2.py` is what to add, from a
      validation set.
    end: 'independent' of the start, or 'conditional' on it, with a classifier that tells whether there is an answer;
      what it says decides whether a question is left unanswered.
    starts: with 'conditional', the likeliest ones, from each of which ends are predicted.
    answerable_weight: with 'conditional', of the loss of the classifier.
    dropout: rate before the head.
    frozen: feature extraction: the trunk runs without dropout and keeps its values, whatever `optim` says.
    init_std: of the head's kernels.

  Raises:
    ValueError: an `end` that is no choice.
  """
  del vocab
  errors.one_of('adapter.end', end, End)
  s = Setup(inputs_of(trunk), n_best, max_answer, threshold, starts, answerable_weight)
  conditional = end == 'conditional'
  model = Model(trunk, dropout, frozen, init_std, conditional)
  losses, predictions = (conditional_loss, conditional_predict) if conditional else (loss, predict)
  words = partial(in_words, no_answer=no_answer)
  task = Task(model, partial(prepare, s), partial(losses, s), partial(predictions, s), in_words=words)
  return task._replace(scores=('squad2',) if no_answer else ('squad',), trains=trained(frozen, trunk))


def prepare(s: Setup, root: Array, batch: Batch) -> Example:
  """The row, where its answer starts and ends, and where one may."""
  del root
  weights = batch['row_weight']
  targets = {
    'start': batch['start'],
    'end': batch['end'],
    'context': batch['context'],
    'segment_ids': batch['segment_ids'],
    'weights': weights,
    'scale': batch_scale(weights),
  }
  return Example(read_text(batch, s.inputs), targets)


def loss(s: Setup, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """The mean of the cross-entropies of start and end; 'accuracy' counts rows with both of them right."""
  del s, carry, rng
  targets, weights = example.targets, example.targets['weights']
  start, end = _scores(forward, example)
  values = (cross_entropy(start, targets['start']) + cross_entropy(end, targets['end'])) / 2
  right = (start.argmax(axis=1) == targets['start']) & (end.argmax(axis=1) == targets['end'])
  metrics = {'loss': metric(values, weights), 'accuracy': metric(right, weights)}
  return Loss(scaled_sum(values, weights, targets['scale']), metrics)


def predict(s: Setup, forward: Forward, example: Example) -> dict[str, Array]:
  """The best pairs 'start' and 'end' int32[b, n] with 'score' f32[b, n], falling, and 'no_answer' f32[b], its score."""
  start, end = _scores(forward, example)
  found = best_spans(start, end, example.targets['context'], n_best=s.n_best, max_answer=s.max_answer)
  return {**found, 'no_answer': found['no_answer'] - s.threshold}


def in_words(prediction: Mapping[str, Any], record: Mapping[str, Any], *, no_answer: bool = False) -> dict[str, Any]:
  """The best answer of one window, as it stands in the text; '' where it shows none.

  Args:
    prediction: of the window.
    record: of it.
    no_answer: texts may hold no answer: '' as well where the window says so.
  """
  window = Group([prediction], [record])
  if no_answer and squad2.question_of(window).unanswered:
    return {'answer': ''}
  return {'answer': squad.best(window)[0]}


def _scores(forward: Forward, example: Example) -> tuple[Array, Array]:
  """The scores to start and to end, f32[b, l] each, `NEVER` on padding."""
  scores = jnp.where(example.targets['segment_ids'][..., None] > 0, forward(**example.inputs)[0], NEVER)
  return scores[..., 0], scores[..., 1]


def best_spans(start: Array, end: Array, context: Array, *, n_best: int, max_answer: int) -> dict[str, Array]:
  """The pairs i <= j < i + max_answer with the largest start[i] + end[j], and the sum where no answer is.

  Args:
    start: f32[b, l].
    end: f32[b, l].
    context: int[b, l], of the batch.
    n_best: pairs that are returned; those that are no legal ones score `NEVER` or less.
    max_answer: largest j - i + 1.

  Returns:
    'start', 'end' int32[b, n_best], 'score' f32[b, n_best], 'no_answer' f32[b].
  """
  # start 5 1 2, end 0 3 4, max_answer 2: sums of (i, i), (i, i + 1)   5 8 | 4 5 | 6 -   best (0, 1), (2, 2), (0, 0)
  length, widest = start.shape[1], min(max_answer, start.shape[1])
  opens = jnp.where(context == MAXIMUM, start, NEVER)
  closes = jnp.where((context == SHOWN) | (context == MAXIMUM), end, NEVER)
  closes = jnp.pad(closes, ((0, 0), (0, widest)), constant_values=NEVER)
  ahead = jnp.stack([closes[:, more : more + length] for more in range(widest)], axis=2)  # [b, l, widest]
  sums = (opens[:, :, None] + ahead).reshape(len(start), -1)
  sums = jnp.pad(sums, ((0, 0), (0, max(0, n_best - sums.shape[1]))), constant_values=NEVER)
  score, place = jax.lax.top_k(sums, n_best)
  null = jnp.where(context == NO_ANSWER, start + end, 0.0).sum(axis=1)
  first = jnp.minimum(place // widest, length - 1)
  return {'start': first, 'end': jnp.minimum(first + place % widest, length - 1), 'score': score, 'no_answer': null}


# An end that depends on the start ------------------------------------------------------------------------------------


def conditional_loss(s: Setup, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """The mean of the cross-entropies of the start and of the end behind the right start, and the classifier's loss."""
  del carry, rng
  targets, weights = example.targets, example.targets['weights']
  start, hidden, none = _start_and_none(forward, example)
  right = jnp.take_along_axis(hidden, targets['start'][:, None, None], axis=1)  # [b, 1, d]
  end = jnp.where(targets['context'] > 0, forward(method='ends', hidden=hidden, states=right)[:, 0], NEVER)
  values = (cross_entropy(start, targets['start']) + cross_entropy(end, targets['end'])) / 2
  absent = jnp.take_along_axis(targets['context'], targets['start'][:, None], axis=1)[:, 0] == NO_ANSWER
  told = jax.nn.softplus(jnp.where(absent, -none, none))  # -log p of what is the case
  hits = (start.argmax(axis=1) == targets['start']) & (end.argmax(axis=1) == targets['end'])
  metrics = {'span_loss': metric(values, weights), 'answerable_loss': metric(told, weights)}
  metrics |= {'accuracy': metric(hits, weights), 'answerable_accuracy': metric((none > 0) == absent, weights)}
  values = values + s.weight * told
  return Loss(scaled_sum(values, weights, targets['scale']), metrics | {'loss': metric(values, weights)})


def conditional_predict(s: Setup, forward: Forward, example: Example) -> dict[str, Array]:
  """As `predict`, by log-probabilities; 'impossible' f32[b] says whether a row holds no answer, from 0 on."""
  context = example.targets['context']
  start, hidden, none = _start_and_none(forward, example)
  length = start.shape[1]
  likeliest, first = jax.lax.top_k(
    jnp.where(context == MAXIMUM, jax.nn.log_softmax(start), NEVER), min(s.starts, length)
  )
  states = jnp.take_along_axis(hidden, first[..., None], axis=1)  # [b, n, d]
  end = forward(method='ends', hidden=hidden, states=states)  # [b, n, l]
  end = jax.nn.log_softmax(jnp.where((context > 0)[:, None], end, NEVER))
  place = jnp.arange(length)
  legal = (place >= first[..., None]) & (place < first[..., None] + s.max_answer)
  legal &= ((context == SHOWN) | (context == MAXIMUM))[:, None]
  sums = (likeliest[..., None] + jnp.where(legal, end, NEVER)).reshape(len(start), -1)
  sums = jnp.pad(sums, ((0, 0), (0, max(0, s.n_best - sums.shape[1]))), constant_values=NEVER)
  score, chosen = jax.lax.top_k(sums, s.n_best)
  begin = jnp.take_along_axis(first, jnp.minimum(chosen // length, first.shape[1] - 1), axis=1)
  found = {'start': begin, 'end': chosen % length, 'score': score}
  return {**found, 'no_answer': none, 'impossible': none - s.threshold}


def _start_and_none(forward: Forward, example: Example) -> tuple[Array, Array, Array]:
  """Scores to start f32[b, l], `NEVER` outside of the text, the states [b, l, d], and the logit of no answer f32[b]."""
  context = example.targets['context']
  scores, hidden = forward(**example.inputs)
  start = jnp.where(context > 0, scores[..., 0], NEVER)
  state = jnp.einsum('bl,bld->bd', jax.nn.softmax(start), hidden)
  whole = jnp.take_along_axis(hidden, (context == NO_ANSWER).argmax(axis=1)[:, None, None], axis=1)[:, 0]
  return start, hidden, forward(method='impossible', whole=whole, state=state)
