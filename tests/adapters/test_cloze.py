"""A word in a blank: an encoder's logits at the mask, words of several tokens, the three kinds of trunk."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.adapters import cloze
from plm_jax.models import bert
from plm_jax.noise.keys import with_step
from plm_jax.objectives import mlm
from plm_jax.training import step
from tests import tiny
from tests.adapters import test_prompt, test_sequence
from tests.generate import peers

VOCAB = test_sequence.VOCAB
WORDS = ('a', 'b', 'q')  # one token each


def make_trunk(name: str):
  if name == 'bert':
    sizes = tiny.SIZES | {'max_length': 16}
    return bert.make(vocab_size=VOCAB.size, variant='tiny', overrides=sizes)
  return test_sequence.make_trunk(name)


def make_batch():
  """Texts with the mask at place 1, options and labels."""
  batch = test_prompt.make_batch()
  return batch | {'tokens': batch['tokens'].at[:, 1].set(VOCAB.mask_id)}


@functools.cache
def params_of(name: str):
  if name != 'bert':
    return test_sequence.params_of(name)
  return tiny.init_params(cloze.make(trunk=make_trunk(name), vocab=VOCAB, words=WORDS), make_batch())


def run(task, params, batch):
  @jax.jit
  def compute(params, batch):
    example = task.prepare(jax.random.key(0), with_step(batch, 0))
    forward = step.bind(task, params, train=False, rng=jax.random.key(0))
    return task.loss(forward, example, (), jax.random.key(0)), task.predict(forward, example)

  return compute(params, batch)


def test_an_encoder_compares_its_logits_at_the_mask():
  """p(y | x) is the share of the word's probability among the words', by the head of pre-training."""
  batch, params = make_batch(), params_of('bert')
  loss, found = run(cloze.make(trunk=make_trunk('bert'), vocab=VOCAB, words=WORDS), params, batch)
  model = mlm.Model(make_trunk('bert'), mlm.make_head(make_trunk('bert')))  # parameters have the same names
  inputs = {name: batch[name] for name in ('tokens', 'segment_ids')}
  logits = model.apply({'params': params}, predict=jnp.ones((3, 1), jnp.int32), **inputs)[:, 0]
  words = np.array([VOCAB.encode(word)[0] for word in WORDS])
  shares = np.exp(np.asarray(jax.nn.log_softmax(logits), np.float64))[:, words]
  shares /= shares.sum(axis=1, keepdims=True)
  assert tiny.worst(found['probability'], shares) < 1e-5
  labels = np.asarray(batch['label'])
  assert float(loss.value) == pytest.approx(-np.log(shares[np.arange(3), labels]).mean(), rel=1e-5)
  assert tiny.means(loss.metrics)['accuracy'] == pytest.approx((shares.argmax(axis=1) == labels).mean())
  assert np.array_equal(found['label'], shares.argmax(axis=1))


def test_rows_are_those_that_are_asked_for():
  task, batch = cloze.make(trunk=make_trunk('bert'), vocab=VOCAB, words=WORDS), make_batch()
  task.check(batch)
  with pytest.raises(ValueError, match=r'adapter\.mask.*data\.blank'):
    task.check(batch | {'tokens': batch['tokens'].at[:, 1].set(7)})
  with pytest.raises(ValueError, match=r'adapter\.words.*\b3\b.*form\.options'):
    task.check({**batch, **{key: test_prompt.make_batch(options=False)[key] for key in ('option_tokens', 'label')}})
  with pytest.raises(ValueError, match=r'adapter\.words.*\b2\b.*\b3 labels.*form\.options'):
    cloze.make(trunk=make_trunk('bert'), vocab=VOCAB, words=WORDS[:2]).check(batch)


@functools.cache
def next_logits(name: str):
  """Logits behind the first `made` tokens of an answer, whose first one is the start, by one whole pass."""
  trunk = make_trunk(name)

  @jax.jit
  def compute(params, tokens, before, made):
    real = (jnp.arange(before.shape[1]) < made).astype(jnp.int32)[None]
    size = tokens.shape[1]
    if name == 'glm':
      inputs = {
        'tokens': jnp.concatenate([tokens, before], axis=1),
        'segment_ids': jnp.concatenate([jnp.ones_like(tokens), real], axis=1),
        'positions': jnp.concatenate([jnp.arange(size)[None], jnp.ones_like(before)], axis=1),  # the mask is at place 1
        'block_positions': jnp.concatenate([jnp.zeros_like(tokens), 1 + jnp.arange(before.shape[1])[None]], axis=1),
        'prefix': jnp.array([size]),
      }
    else:
      inputs = {'encoder_tokens': tokens, 'encoder_segment_ids': jnp.ones_like(tokens)}
      inputs |= {'decoder_tokens': before, 'decoder_segment_ids': real}
    hidden = trunk.apply({'params': params}, **inputs)['hidden']
    place = made - 1 + (size if name == 'glm' else 0)
    return trunk.apply({'params': params}, hidden[0, place], method='attend')

  return compute


def step_by_step(name: str, tokens, answer: list[int]) -> float:
  """log p of an answer in the blank of a text, token after token."""
  total, before = 0.0, [VOCAB.bos_id if name == 'glm' else VOCAB.pad_id]
  for token in answer:
    padded = jnp.array([[*before, *[0] * (8 - len(before))]], jnp.int32)
    logits = next_logits(name)(params_of(name)['trunk'], tokens, padded, len(before))
    total += float(jax.nn.log_softmax(logits)[token])
    before.append(token)
  return total


@pytest.mark.parametrize('name', ['glm', pytest.param('t5', marks=pytest.mark.slow)])
def test_words_are_written_into_the_blank(name):
  """Each option costs what its tokens cost one after another; T5 writes them behind the sentinel of the blank."""
  batch = make_batch()
  _, found = run(cloze.make(trunk=make_trunk(name), vocab=VOCAB), params_of(name), batch)
  lead = [VOCAB.mask_id] if name == 't5' else []  # the fake vocabulary has one token with a name
  for row, sizes in enumerate(test_prompt.SIZES[:2]):
    text = batch['tokens'][row : row + 1, : test_sequence.LENGTHS[row]]
    options = [np.asarray(batch['option_tokens'])[row, k, :size].tolist() for k, size in enumerate(sizes) if size]
    each = np.array([step_by_step(name, text, [*lead, *option]) for option in options])
    shares = np.exp(each - each.max()) / np.exp(each - each.max()).sum()
    np.testing.assert_allclose(np.asarray(found['probability'])[row, : len(options)], shares, rtol=1e-3, atol=1e-6)
    assert not np.asarray(found['probability'])[row, len(options) :].any()


def test_words_of_several_tokens_end_with_the_end_token():
  words = ('a', 'bc')
  assert cloze.word_ids(words, VOCAB, single=False) == [[*VOCAB.encode(word), VOCAB.eos_id] for word in words]
  assert cloze.word_ids(('a', 'b'), VOCAB, single=False) == [VOCAB.encode('a'), VOCAB.encode('b')]


@pytest.mark.parametrize('name', ['bert', 'glm'])
def test_rows_without_a_label_count_for_nothing(name):
  batch = make_batch()
  task = cloze.make(trunk=make_trunk(name), vocab=VOCAB, words=WORDS)
  some = {**batch, 'label': batch['label'].at[1].set(-1)}
  weighed = {**batch, 'row_weight': batch['row_weight'].at[1].set(0)}
  one, other = (run(task, params_of(name), each)[0] for each in (some, weighed))
  assert float(one.value) == pytest.approx(float(other.value), rel=1e-6)


@pytest.mark.parametrize(
  ('trunk', 'settings', 'message'),
  [
    ('bert', {}, r'adapter\.words=\(\)'),
    ('bert', {'words': ('a', 'bc')}, r"adapter\.words: 'bc'.*token"),
    ('bert', {'words': ('a', 'a')}, r"adapter\.words=\('a', 'a'\)"),
    ('gpt2', {'words': ('a', 'b')}, "adapter 'cloze'.*bidirectional or encoder-decoder or prefix"),
    ('prefix', {'words': ('a', 'b')}, "adapter 'cloze'.*adapter 'prompt'"),
  ],
)
def test_what_cannot_be_is_said(trunk, settings, message):
  vocab = Named(size=peers.VOCAB)
  with pytest.raises(ValueError, match=message):
    cloze.make(trunk=make_trunk(trunk), vocab=vocab, **settings)


class Named(tiny.FakeVocab):
  """The fake vocabulary with a name for each token."""

  def token(self, token_id: int) -> str:
    return f'w{token_id}'
