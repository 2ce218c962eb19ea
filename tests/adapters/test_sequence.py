"""Text from text: losses beside transformers', what is written beside what is scored, options, settings."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.adapters import answers, sequence
from plm_jax.config import build
from plm_jax.generate import generate
from plm_jax.models import glm, t5
from plm_jax.noise.keys import with_step
from plm_jax.training import step
from tests import tiny
from tests.generate import peers

pytestmark = pytest.mark.turns

VOCAB = tiny.FakeVocab(size=peers.VOCAB)
LENGTHS, ANSWERS = (6, 3, 5), (4, 5, 1)


def make_batch(*, mask: bool = False, seed: int = 0):
  """Texts of 6, 3 and 5 tokens, one of them the mask where asked for, and targets of 4, 5 and 1 with their end."""
  draw = np.random.default_rng(seed)
  sides = {}
  for name, sizes, width in (('', LENGTHS, 7), ('target_', ANSWERS, 5)):
    real = np.arange(width) < np.array(sizes)[:, None]
    ids = np.where(real, draw.integers(7, VOCAB.size, real.shape), VOCAB.pad_id)
    sides |= {f'{name}tokens': ids.astype(np.int32), f'{name}segment_ids': real.astype(np.int32)}
  for row, size in enumerate(ANSWERS):
    sides['target_tokens'][row, size - 1] = VOCAB.eos_id
  if mask:
    sides['tokens'][:, 1] = VOCAB.mask_id
  extra = {'row_id': np.arange(3, dtype=np.int32), 'epoch': np.zeros(3, np.int32), 'row_weight': np.ones(3, np.float32)}
  return {name: jnp.asarray(value) for name, value in (sides | extra).items()}


def make_trunk(name: str):
  """One of each kind of trunk that writes."""
  sizes = peers.SIZES | {'max_length': 32}
  if name == 'glm':
    return glm.make(vocab_size=peers.VOCAB, variant='tiny', overrides=sizes | {'dropout': 0.0})
  if name == 'prefix':
    fields = peers.SIZES | {'head_dim': 8, 'num_buckets': 8, 'max_distance': 11, 'structure': 'prefix', 'dropout': 0.0}
    return t5.make(vocab_size=peers.VOCAB, variant='t5-small', overrides=fields)
  return peers.CASES[name].trunk


@functools.cache
def params_of(name: str):
  return {
    'trunk': peers.params_of(name) if name in peers.CASES else jax.device_put(peers.draw_params(make_trunk(name)))
  }


def run(task, params, batch):
  @jax.jit
  def compute(params, batch):
    example = task.prepare(jax.random.key(0), with_step(batch, 0))
    forward = step.bind(task, params, train=False, rng=jax.random.key(0))
    return task.loss(forward, example, (), jax.random.key(0))

  return compute(params, batch)


@pytest.mark.parametrize('name', ['bart', 'gpt2', 'glm'])
def test_a_row_without_a_target_counts_in_no_mean(name):
  """Such rows are kept to be written for (`keep_unlabelled`)."""
  batch = make_batch(mask=name == 'glm')
  rows = {key: batch[key].at[2].set(0) for key in ('target_tokens', 'target_segment_ids')}
  task = sequence.make(trunk=make_trunk(name), vocab=VOCAB)
  found = run(task, params_of(name), batch | rows)
  two = run(task, params_of(name), batch | {'row_weight': jnp.array([1.0, 1.0, 0.0])})
  for key, value in two.metrics.items():
    np.testing.assert_allclose(found.metrics[key], value, rtol=1e-5)


# Beside transformers -------------------------------------------------------------------------------------------------


def their_logits_and_labels(name: str, batch):
  """Logits of their model as it shifts the labels by itself, and the labels, -100 where none counts."""
  import torch

  model = peers.peer(name)
  tokens, segments, targets, real = (torch.tensor(np.asarray(batch[key])).long() for key in sequence.READS)
  labels = torch.where(real > 0, targets, -100)
  if peers.CASES[name].is_seq2seq:
    model.config.pad_token_id = VOCAB.pad_id
    model.config.decoder_start_token_id = VOCAB.pad_id if name == 't5' else VOCAB.eos_id
    with torch.no_grad():
      out = model(input_ids=tokens, attention_mask=segments, labels=labels)
    return out, labels
  rows = [torch.cat([t[:n], a[:m]]) for t, n, a, m in zip(tokens, LENGTHS, targets, ANSWERS, strict=True)]
  whole = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
  labels = torch.full_like(whole, -100)
  for row, (text, answer) in enumerate(zip(LENGTHS, ANSWERS, strict=True)):
    labels[row, text : text + answer] = whole[row, text : text + answer]
  with torch.no_grad():
    return model(input_ids=whole, labels=labels), labels


@pytest.mark.parametrize(
  ('name', 'start'), [('bart', 'eos'), pytest.param('t5', None, marks=pytest.mark.slow), ('gpt2', None)]
)
def test_losses_are_those_of_transformers(name, start):
  pytest.importorskip('torch')
  pytest.importorskip('transformers')
  from transformers.trainer_pt_utils import LabelSmoother

  batch = make_batch()
  out, labels = their_logits_and_labels(name, batch)
  task = sequence.make(trunk=make_trunk(name), vocab=VOCAB, start=start)
  assert float(run(task, params_of(name), batch).value) == pytest.approx(float(out.loss), rel=1e-5)
  smooth = sequence.make(trunk=make_trunk(name), vocab=VOCAB, start=start, label_smoothing=0.1)
  found = run(smooth, params_of(name), batch)
  theirs = LabelSmoother(epsilon=0.1)(out, labels, shift_labels=name == 'gpt2')
  assert float(found.value) == pytest.approx(float(theirs), rel=1e-5)
  assert tiny.means(found.metrics)['loss'] == pytest.approx(float(out.loss), rel=1e-5)


def test_label_smoothing_in_closed_form():
  """A share e of the target goes to all v tokens alike: the loss of two logits a, b is a sum of two logarithms."""
  reader = answers.Reader('encoder-decoder', 0, None, 3, 8)
  logits = jnp.array([[[2.0, 0.0, -1.0, -1e9]]])  # the last row only fills the vocabulary up
  forward = lambda **inputs: logits if inputs.get('method') == 'attend' else jnp.zeros((1, 1, 4))  # noqa: E731
  found = answers.score(reader, forward, {}, jnp.array([[1]]), length=1)
  total = math.log(math.exp(2) + 1 + math.exp(-1))
  assert float(found.nats[0, 0]) == pytest.approx(total, rel=1e-6)
  assert float(found.others[0, 0]) == pytest.approx(total - 1 / 3, rel=1e-6)


# What is written beside what is scored -------------------------------------------------------------------------------


@pytest.mark.parametrize(
  'name', ['gpt2', 'glm', *(pytest.param(name, marks=pytest.mark.slow) for name in ('t5', 'bart', 'prefix'))]
)
def test_what_is_written_greedily_is_the_likeliest_at_each_token(name):
  """Reading and writing agree, for every kind of trunk: each token of a greedy text is the best one when it is read."""
  batch = make_batch(mask=name == 'glm')
  task = sequence.make(trunk=make_trunk(name), vocab=VOCAB)
  predict = jax.jit(functools.partial(step.predict_step, task=task))
  made = predict(params_of(name), batch, jax.random.key(0))
  assert made['tokens'].shape == (3, 5)
  real = (np.arange(5) < np.asarray(made['written'])[:, None]).astype(np.int32)
  again = {**batch, 'target_tokens': made['tokens'], 'target_segment_ids': jnp.asarray(real)}
  metrics = tiny.means(run(task, params_of(name), again).metrics)
  assert metrics['token_accuracy'] == 1.0
  nats = metrics['loss'] * real.sum()
  assert nats == pytest.approx(-float(np.asarray(made['score']).sum()), rel=1e-4)
  other = {**again, 'target_tokens': jnp.where(jnp.asarray(real) > 0, (made['tokens'] + 1) % VOCAB.size, 0)}
  assert tiny.means(run(task, params_of(name), other).metrics)['loss'] > metrics['loss']


def test_an_evaluation_writes_with_the_settings_of_decoding():
  batch = make_batch()
  decoding = {'method': 'beam', 'beams': 3, 'length_penalty': 2.0, 'min_new': 2, 'max_new': 8, 'no_repeat': 2}
  task = sequence.make(trunk=make_trunk('t5'), vocab=VOCAB, decoding=decoding)
  made = jax.jit(functools.partial(step.predict_step, task=task))(params_of('t5'), batch, jax.random.key(0))
  theirs = generate(
    make_trunk('t5'),
    params_of('t5')['trunk'],
    batch['tokens'],
    segment_ids=batch['segment_ids'],
    start_id=VOCAB.pad_id,
    eos_id=VOCAB.eos_id,
    pad_id=VOCAB.pad_id,
    **decoding,
  )
  assert np.array_equal(made['tokens'], theirs.tokens)
  assert np.array_equal(made['written'], theirs.lengths)


def test_padding_of_prompts_changes_nothing():
  """A decoder's prompt has its padding before it, so the target follows at once."""
  batch = make_batch()
  task = sequence.make(trunk=make_trunk('gpt2'), vocab=VOCAB)
  wider = {**batch, **{name: jnp.pad(batch[name], ((0, 0), (0, 5))) for name in ('tokens', 'segment_ids')}}
  one, other = (run(task, params_of('gpt2'), each) for each in (batch, wider))
  assert float(one.value) == pytest.approx(float(other.value), rel=1e-6)


# In words, and settings ----------------------------------------------------------------------------------------------


class Words:
  """Decodes ids as letters."""

  eos_id = 6

  def decode(self, ids):
    return ' '.join('abcdefghij'[int(token)] for token in ids if token != self.eos_id)


@pytest.mark.parametrize(
  ('options', 'label'),
  [((), None), (('a b', 'c'), 0), (('c', 'a b'), 1), (('a', 'c'), -1), ((' c', ' a b'), 1), (('a b ', 'c '), 0)],
)
def test_an_output_that_is_no_label_is_none(options, label):
  prediction = {'tokens': np.array([0, 1, 6, 0]), 'written': np.int32(3)}
  found = sequence.in_words(Words(), prediction, {'options': options})
  assert found == {'text': 'a b'} | ({} if label is None else {'label': label})


@pytest.mark.parametrize(('text', 'value'), [('3.4', 3.4), ('3', 3.0), ('three', -1.0), ('inf', -1.0), ('', -1.0)])
def test_an_output_that_is_no_number_is_none(text, value):
  assert sequence.number_of(text) == value
  assert sequence.in_words(Words(), {'tokens': np.array([0]), 'written': 1}, {'label': 3.2})['value'] == -1.0


@pytest.mark.parametrize(
  ('trunk', 'settings', 'message'),
  [
    ('bert', {}, "adapter 'sequence'.*encoder-decoder or causal or prefix"),
    ('gpt', {'start': 'bos'}, r"adapter 'sequence'.*start='bos'"),
    ('gpt', {'decoding': {'method': 'best'}}, r"adapter\.decoding\.method='best'.*greedy, sample, beam"),
    ('gpt', {'decoding': {'max_new': 2, 'min_new': 3}}, r'max_new=2.*min_new=3'),
  ],
)
def test_what_cannot_be_is_said(trunk, settings, message):
  with pytest.raises(ValueError, match=message):
    sequence.make(trunk=tiny.make_trunk(trunk), vocab=VOCAB, **settings)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['lora', 'prefix'])
def test_what_a_wrapper_adds_writes_as_well(name):
  """A wrapped task writes with what the wrapper adds: each token is the best one when it is read, and texts change."""
  batch = make_batch()
  task = build.make('adapters', {'name': name, 'inner': {'name': 'sequence'}}, trunk=make_trunk('gpt2'), vocab=VOCAB)
  params = jax.tree.map(lambda leaf: 3 * leaf, tiny.init_params(task, batch))
  params |= params_of('gpt2')
  predict = jax.jit(functools.partial(step.predict_step, task=task))
  made = predict(params, batch, jax.random.key(0))
  real = jnp.asarray((np.arange(5) < np.asarray(made['written'])[:, None]).astype(np.int32))
  again = {**batch, 'target_tokens': made['tokens'], 'target_segment_ids': real}
  assert tiny.means(run(task, params, again).metrics)['token_accuracy'] == 1.0
  plain = sequence.make(trunk=make_trunk('gpt2'), vocab=VOCAB)
  assert tiny.means(run(plain, params_of('gpt2'), again).metrics)['token_accuracy'] < 1.0
