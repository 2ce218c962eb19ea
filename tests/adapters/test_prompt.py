"""Options behind a prompt: log-probabilities beside transformers', three comparisons, one answer without options."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.adapters import prompt
from plm_jax.noise.keys import with_step
from plm_jax.training import step
from tests import tiny
from tests.adapters import test_sequence
from tests.generate import peers

pytestmark = pytest.mark.turns

VOCAB = test_sequence.VOCAB
SIZES = ((4, 2, 0), (1, 5, 3), (2, 2, 2))  # tokens of the options; 0 is one that the row does not have


LEADS = np.array(((2, 0, 0), (0, 1, 0), (0, 0, 0)))  # of their tokens are read and not compared


def make_batch(*, options: bool = True):
  batch = test_sequence.make_batch()
  ids = np.random.default_rng(3).integers(7, VOCAB.size, (3, 3, 5))
  real = np.arange(5) < np.array(SIZES)[..., None]
  made = {'option_tokens': np.where(real, ids, 0), 'option_segment_ids': real}
  if not options:
    made = {name: np.asarray(batch[name.replace('option', 'target')])[:, None] for name in made}
  made['label'] = np.array([1, 2, 0]) * options
  made['option_lead'] = LEADS * options
  made['option_characters'] = 4 * np.array(SIZES) - LEADS
  return batch | {name: jnp.asarray(value, jnp.int32) for name, value in made.items()}


def evaluated(task, params, batch):
  @jax.jit
  def compute(params, batch):
    example = task.prepare(jax.random.key(0), with_step(batch, 0))
    forward = step.bind(task, params, train=False, rng=jax.random.key(0))
    return task.evaluate(forward, example, (), jax.random.key(0))

  return tiny.means(compute(params, batch).metrics)


def predicted(task, params, batch):
  return jax.jit(functools.partial(step.predict_step, task=task))(params, batch, jax.random.key(0))


def their_log_probability(model, text, answer, lead):
  """Sum of the log-probabilities of the tokens of an answer but for the first ones, by GPT-2 of transformers."""
  import torch

  with torch.no_grad():
    logits = model(torch.tensor([[*text, *answer]])).logits[0].log_softmax(-1).numpy()
  return sum(logits[len(text) - 1 + place, token] for place, token in enumerate(answer) if place >= lead)


def test_options_have_the_log_probabilities_of_transformers():
  pytest.importorskip('torch')
  pytest.importorskip('transformers')
  batch, model = make_batch(), peers.peer('gpt2')
  task = prompt.make(trunk=test_sequence.make_trunk('gpt2'), vocab=VOCAB, choose='mean')
  found = predicted(task, test_sequence.params_of('gpt2'), batch)
  against = VOCAB.encode('Answer:')
  chosen = {name: np.full((3, 3), -1e9) for name in ('sum', 'mean', 'characters', 'against')}
  for row, sizes in enumerate(SIZES):
    text = np.asarray(batch['tokens'])[row, : test_sequence.LENGTHS[row]].tolist()
    for option, size in enumerate(sizes):
      if size:
        answer = np.asarray(batch['option_tokens'])[row, option, :size].tolist()
        lead = LEADS[row, option]
        total = their_log_probability(model, text, answer, lead)
        chosen['sum'][row, option], chosen['mean'][row, option] = total, total / (size - lead)
        chosen['characters'][row, option] = total / (4 * size - lead)
        chosen['against'][row, option] = total - their_log_probability(model, against, answer, lead)
  for name, values in chosen.items():
    np.testing.assert_allclose(found[f'log_probability_{name}'], values, rtol=1e-4, atol=1e-4)
  assert np.array_equal(found['label'], chosen['mean'].argmax(axis=1))
  metrics = evaluated(task, test_sequence.params_of('gpt2'), batch)
  for name, values in chosen.items():
    assert metrics[f'accuracy_{name}'] == pytest.approx((values.argmax(axis=1) == np.asarray(batch['label'])).mean())
  assert metrics['accuracy'] == metrics['accuracy_mean']


def test_another_text_stands_between_the_special_tokens_of_the_prompt():
  # 1 begins a row, 2 ends one
  tokens = jnp.array(
    [[1, 8, 9, 2, 0], [8, 9, 7, 2, 0], [1, 8, 9, 0, 0], [8, 9, 0, 0, 0], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]]
  )
  found, real = prompt.in_place((5, 6), tokens, (tokens > 0).astype(jnp.int32), specials=(1, 2))
  assert found.tolist() == [[1, 5, 6, 2], [5, 6, 2, 0], [1, 5, 6, 0], [5, 6, 0, 0], [5, 6, 0, 0], [1, 5, 6, 0]]
  assert np.array_equal(real, found > 0)


def test_a_prompt_behind_a_begin_token_is_compared_with_one_behind_it():
  pytest.importorskip('torch')
  pytest.importorskip('transformers')
  batch, model = make_batch(), peers.peer('gpt2')
  begin = VOCAB.special_ids[0] if VOCAB.special_ids[0] != VOCAB.pad_id else VOCAB.special_ids[1]
  batch['tokens'] = batch['tokens'].at[:, 0].set(begin)
  task = prompt.make(trunk=test_sequence.make_trunk('gpt2'), vocab=VOCAB)
  found = predicted(task, test_sequence.params_of('gpt2'), batch)
  sums, others = (np.asarray(found[f'log_probability_{name}']) for name in ('sum', 'against'))
  answer = np.asarray(batch['option_tokens'])[2, 0, :2].tolist()
  alone = their_log_probability(model, [begin, *VOCAB.encode('Answer:')], answer, 0)
  np.testing.assert_allclose(sums[2, 0] - others[2, 0], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('choose', ['sum', 'mean', 'characters', 'against'])
def test_what_is_chosen_is_the_largest_of_the_comparison(choose):
  task = prompt.make(trunk=test_sequence.make_trunk('t5'), vocab=VOCAB, choose=choose)
  found = predicted(task, test_sequence.params_of('t5'), make_batch())
  assert np.array_equal(found['label'], np.asarray(found[f'log_probability_{choose}']).argmax(axis=1))
  assert found['label'][0] != 2  # an option that the row does not have
  np.testing.assert_allclose(np.asarray(found['probability']).sum(axis=1), 1, rtol=1e-5)
  words = [task.in_words({'label': label}, {'options': ('a', 'b', 'c')}) for label in np.asarray(found['label'])]
  assert words == [{'option': 'abc'[label]} for label in found['label'].tolist()]


def test_an_option_of_which_its_lead_alone_is_left_is_not_chosen():
  batch = make_batch()
  batch['option_lead'] = batch['option_lead'].at[1, 0].set(1)  # of one token, which begins what is compared
  task = prompt.make(trunk=test_sequence.make_trunk('gpt2'), vocab=VOCAB)
  found = predicted(task, test_sequence.params_of('gpt2'), batch)
  for name in ('sum', 'mean', 'characters', 'against'):
    values = np.asarray(found[f'log_probability_{name}'])[1]
    assert values[0] == pytest.approx(-1e9)
    assert values[0] < values[1:].min()


def test_the_comparisons_differ():
  """The longest option has the lowest sum."""
  task = prompt.make(trunk=test_sequence.make_trunk('gpt2'), vocab=VOCAB)
  found = predicted(task, test_sequence.params_of('gpt2'), make_batch())
  sums, means, others = (np.asarray(found[f'log_probability_{name}']) for name in ('sum', 'mean', 'against'))
  sizes = np.array(SIZES) - LEADS
  real = np.array(SIZES) > 0
  np.testing.assert_allclose(sums[real], (means * sizes)[real], rtol=1e-5)
  assert np.abs((sums - others)[real]).max() > 0.1


def test_an_answer_without_options_is_right_where_each_token_is_the_likeliest():
  batch = make_batch(options=False)
  trunk, params = test_sequence.make_trunk('gpt2'), test_sequence.params_of('gpt2')
  task = prompt.make(trunk=trunk, vocab=VOCAB)
  best = peers_greedy(batch)
  batch['target_tokens'] = batch['target_tokens'].at[0].set(best[0]).at[2, 0].set(best[2, 0])
  batch['target_segment_ids'] = batch['target_segment_ids'].at[0].set(1)
  found, metrics = predicted(task, params, batch), evaluated(task, params, batch)
  assert found['right'].tolist() == [True, False, True]
  assert metrics['answer_accuracy'] == pytest.approx(2 / 3)
  assert metrics['nats_per_answer'] == pytest.approx(float(found['nats'].mean()), rel=1e-5)
  tokens = np.asarray(batch['target_segment_ids']).sum(axis=1)
  np.testing.assert_allclose(found['nats_per_token'], np.asarray(found['nats']) / tokens, rtol=1e-5)
  assert 'accuracy' not in metrics
  assert task.in_words({name: values[0] for name, values in found.items()}, {'options': ()}) == {}


def peers_greedy(batch):
  """Five tokens behind each text, each the likeliest, by a whole pass for each."""
  trunk, params = test_sequence.make_trunk('gpt2'), test_sequence.params_of('gpt2')['trunk']
  made = np.zeros((3, 5), np.int32)
  for row, size in enumerate(test_sequence.LENGTHS):
    ids = np.asarray(batch['tokens'])[row, :size].tolist()
    for place in range(5):
      tokens = jnp.array([[*ids, *[0] * (16 - len(ids))]], jnp.int32)
      segments = (jnp.arange(16) < len(ids)).astype(jnp.int32)[None]
      made[row, place] = int(last_logits(trunk)(params, tokens, segments)[0, len(ids) - 1].argmax())
      ids.append(int(made[row, place]))
  return made


@functools.cache
def last_logits(trunk):
  @jax.jit
  def logits(params, tokens, segments):
    hidden = trunk.apply({'params': params}, tokens=tokens, segment_ids=segments)['hidden']
    return trunk.apply({'params': params}, hidden, method='attend')

  return logits


def test_what_cannot_be_is_said():
  with pytest.raises(ValueError, match=r"adapter 'prompt'.*encoder-decoder or causal or prefix"):
    prompt.make(trunk=tiny.make_trunk('bert'), vocab=VOCAB)
  with pytest.raises(ValueError, match=r"adapter\.choose='best'.*sum, mean, characters, against"):
    prompt.make(trunk=tiny.make_trunk('gpt'), vocab=VOCAB, choose='best')
  with pytest.raises(ValueError, match=r"adapter\.choose='against'.*adapter\.against=''"):
    prompt.make(trunk=tiny.make_trunk('gpt'), vocab=VOCAB, choose='against', against='')
