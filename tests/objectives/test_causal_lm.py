"""Causal language modelling: stepwise probabilities, packing, perplexity."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.core.types import nothing_after
from plm_jax.models import awd_lstm
from plm_jax.noise import keys
from plm_jax.objectives import causal_lm
from plm_jax.training import step
from tests import tiny

V = tiny.VOCAB


def make_task(**settings):
  return causal_lm.make(trunk=tiny.make_trunk('gpt'), vocab=V, **settings)


def loss_function(task, params):
  """(Loss, nats of each position) of a batch, compiled once."""

  @jax.jit
  def run(batch):
    example = task.prepare(jax.random.key(0), keys.with_step(batch, 0))
    forward = step.bind(task, params, train=False, rng=jax.random.key(0))
    return task.loss(forward, example, (), jax.random.key(0)), task.predict(forward, example)['nats']

  return run


@pytest.fixture(scope='module')
def params():
  return tiny.init_params(make_task(), tiny.make_batch())


@pytest.fixture(scope='module')
def run(params):
  return loss_function(make_task(), params)


@pytest.fixture(scope='module')
def run_stream(params):
  return loss_function(make_task(packing='stream'), params)


def test_each_prefix_predicts_exactly_one_token():
  ids = {token: number for number, token in enumerate(['<pad>', '今', '天', '气', '很', '好'])}
  tokens = jnp.array([[ids[token] for token in '今天天气很好'] + [0, 0]])
  targets, weights = causal_lm.next_tokens(tokens, (tokens > 0).astype(jnp.int32))
  names = {number: token for token, number in ids.items()}
  found = {
    ''.join(names[int(t)] for t in tokens[0, : place + 1]): names[int(targets[0, place])]
    for place in range(8)
    if weights[0, place]
  }
  assert found == {'今': '天', '今天': '天', '今天天': '气', '今天天气': '很', '今天天气很': '好'}


def test_no_target_crosses_a_document_or_reaches_padding():
  segments = jnp.array([[1, 1, 1, 2, 2, 0], [0, 0, 1, 1, 1, 2], [1, 2, 3, 0, 0, 0], [0] * 6])
  tokens = jnp.arange(24).reshape(4, 6)
  targets, weights = causal_lm.next_tokens(tokens, segments)
  assert weights.tolist() == [[1, 1, 0, 1, 0, 0], [0, 0, 1, 1, 0, 0], [0] * 6, [0] * 6]
  assert targets[0].tolist() == [1, 2, 3, 4, 5, 0]


def test_loss_is_the_sum_of_stepwise_log_probabilities(params, run):
  batch = tiny.make_batch(((9,), (5,), (16,), (2,)))
  trunk = tiny.make_trunk('gpt')

  @jax.jit
  def next_logits(tokens, segment_ids, last):
    hidden = trunk.apply({'params': params['trunk']}, tokens, segment_ids=segment_ids)['hidden']
    return trunk.apply({'params': params['trunk']}, hidden[:, last], method='attend')

  stepwise, count = 0.0, 0
  for size in range(1, 16):
    # each prefix alone: nothing after it is in the row
    there = (jnp.arange(16) < size) & (batch['segment_ids'] > 0)
    logits = next_logits(jnp.where(there, batch['tokens'], 0), there.astype(jnp.int32), size - 1)
    logits = np.asarray(logits, np.float64)
    for row in np.flatnonzero(np.asarray(batch['segment_ids'])[:, size]):
      shares = np.exp(logits[row] - logits[row].max())
      stepwise -= math.log(shares[int(batch['tokens'][row, size])] / shares.sum())
      count += 1
  loss, _ = run(batch)
  total, weight = loss.metrics['loss']
  assert float(weight) == count == 8 + 4 + 15 + 1
  assert float(total) == pytest.approx(stepwise, rel=1e-5)
  assert float(loss.value) == pytest.approx(stepwise / count, rel=1e-5)


def test_packed_documents_score_as_they_do_alone(run):
  packed = tiny.make_batch(((7, 5, 4), (3, 3), (16,), (8, 8)))
  _, nats = run(packed)
  total, segments = 0.0, np.asarray(packed['segment_ids'])
  documents = [(row, number) for row in range(4) for number in range(1, segments[row].max() + 1)]
  for start in range(0, len(documents), 4):
    alone = {name: np.zeros((4, 16), np.int32) for name in ('tokens', 'segment_ids')}
    for place, (row, number) in enumerate(documents[start : start + 4]):
      tokens = np.asarray(packed['tokens'])[row][segments[row] == number]
      alone['tokens'][place, : len(tokens)], alone['segment_ids'][place, : len(tokens)] = tokens, 1
    loss, own = run({**packed, **{name: jnp.asarray(value) for name, value in alone.items()}})
    total += float(loss.metrics['loss'][0])
    for place, (row, number) in enumerate(documents[start : start + 4]):
      size = int((segments[row] == number).sum())
      np.testing.assert_allclose(
        np.asarray(nats)[row][segments[row] == number], np.asarray(own)[place, :size], rtol=1e-5
      )
  assert float(np.asarray(nats).sum()) == pytest.approx(total, rel=1e-5)


def test_a_stream_runs_across_documents(run, run_stream):
  batch = tiny.make_batch(((7, 5), (16,), (4, 4), (9,)))
  changed = {**batch, 'tokens': batch['tokens'].at[0, 2].set(33)}
  walled, stream = run(batch), run_stream(batch)
  assert float(walled[0].metrics['loss'][1]) == 6 + 4 + 15 + 3 + 3 + 8
  assert float(stream[0].metrics['loss'][1]) == 11 + 15 + 7 + 8
  # in a stream the second document reads the first, and its first token is a target; with walls neither is so
  assert tiny.same(walled[1][0, 7:], run(changed)[1][0, 7:])
  assert np.abs(np.asarray(stream[1] - run_stream(changed)[1]))[0, 7:11].min() > 1e-6
  assert (float(walled[1][0, 6]), float(stream[1][0, 6]) > 0) == (0.0, True)
  # a row of one document is the same either way
  assert tiny.worst(stream[1][1], walled[1][1]) < 1e-6


def test_content_of_padding_and_rows_of_weight_zero_count_for_nothing(run):
  batch = tiny.make_batch()
  real = batch['segment_ids'] > 0
  assert tiny.same(run(batch), run({**batch, 'tokens': jnp.where(real, batch['tokens'], 44)}))
  half = {**batch, 'row_weight': jnp.array([0.0, 1, 0, 1])}
  other = {**half, 'tokens': batch['tokens'].at[0, 3].set(50)}
  assert tiny.same(run(half)[0], run(other)[0])
  alone = {name: value[jnp.array([1, 3, 0, 0])] for name, value in batch.items()}
  alone['row_weight'] = jnp.array([1.0, 1, 0, 0])
  assert tiny.worst(run(half)[0], run(alone)[0]) < 1e-6
  assert float(run({**batch, 'row_weight': jnp.zeros(4)})[0].value) == 0.0


def test_perplexity_of_a_uniform_distribution_is_the_vocabulary(params, run):
  uniform = jax.tree.map(jnp.zeros_like, params)
  task = make_task()
  loss, _ = loss_function(task, uniform)(tiny.make_batch())
  means = tiny.means(loss.metrics)
  assert task.summary(means)['perplexity'] == pytest.approx(V.size, rel=1e-5)
  assert task.summary(means)['bits_per_token'] == pytest.approx(math.log2(V.size), rel=1e-6)


def test_perplexity_identities(run):
  task = make_task()
  loss, nats = run(tiny.make_batch(((16,), (9,), (5,), (3,))))
  means = tiny.means(loss.metrics)
  summary = task.summary(means)
  nats = np.asarray(nats, np.float64)
  probabilities = np.exp(-nats[nats > 0])
  assert summary['perplexity'] == pytest.approx(2 ** summary['bits_per_token'], rel=1e-9)
  assert summary['perplexity'] == pytest.approx(probabilities.prod() ** (-1 / len(probabilities)), rel=1e-5)
  assert task.summary({'loss': 1e6})['perplexity'] == math.inf


def test_bits_per_byte_counts_the_bytes_of_what_is_predicted(run):
  batch = tiny.make_batch()
  # rows that begin with a word, whose bytes must not count
  batch = {**batch, 'tokens': batch['tokens'].at[:, 0].set(jnp.array([10, 11, 10, 11]))}
  loss, nats = run(batch)
  targets, weights = (np.asarray(x) for x in causal_lm.next_tokens(batch['tokens'], batch['segment_ids']))
  total_bytes = V.num_bytes[targets][weights > 0].sum()
  bits, weight = loss.metrics['bits_per_byte']
  assert float(weight) == total_bytes
  assert float(bits) == pytest.approx(np.asarray(nats).sum() / math.log(2), rel=1e-5)


def test_the_first_token_is_predicted_only_behind_a_bos():
  text = jnp.array([[10, 11, 12, 0]])
  with_bos = jnp.array([[V.bos_id, 10, 11, 12]])
  targets, weights = causal_lm.next_tokens(text, (text > 0).astype(jnp.int32))
  assert targets[weights > 0].tolist() == [11, 12]
  targets, weights = causal_lm.next_tokens(with_bos, (with_bos > 0).astype(jnp.int32))
  assert targets[weights > 0].tolist() == [10, 11, 12]


@pytest.mark.parametrize('rows', [1, 3])
def test_logits_in_chunks_change_nothing(params, run, rows):
  batch = tiny.make_batch()
  loss, _ = run(batch)
  chunked, _ = loss_function(make_task(logit_rows=rows), params)(batch)
  assert tiny.worst(chunked, loss) < 1e-6


@pytest.mark.parametrize('rows', [1, 8])
def test_the_partition_is_trained_towards_one(params, run, rows):
  batch = tiny.make_batch()
  task = make_task(z_loss=0.1, logit_rows=rows)
  found, _ = loss_function(task, params)(batch)
  plain, _ = run(batch)
  example = task.prepare(jax.random.key(0), keys.with_step(batch, 0))
  forward = step.bind(task, params, train=False, rng=jax.random.key(0))
  logits = np.asarray(forward(method='attend', features=forward(**example.inputs)), np.float64)
  squares = np.log(np.exp(logits).sum(-1)) ** 2
  weights = np.asarray(example.targets['weights'])
  expected = 0.1 * (squares * weights).sum() / weights.sum()
  assert float(found.value) == pytest.approx(float(plain.value) + expected, rel=1e-5)
  means = tiny.means(found.metrics)
  assert means['z_loss'] == pytest.approx(expected, rel=1e-5)
  assert means['loss'] == pytest.approx(tiny.means(plain.metrics)['loss'], rel=1e-6)


def test_an_untied_output_matrix_is_there_and_used():
  trunk = tiny.make_trunk('gpt', tied=False)
  task = causal_lm.make(trunk=trunk, vocab=V)
  batch = tiny.make_batch()
  params = tiny.init_params(task, batch)
  _, gradient = tiny.loss_and_gradient(task, params, batch)
  assert np.abs(np.asarray(gradient['trunk']['output']['table'])).max() > 1e-3


def test_what_cannot_be_is_refused():
  with pytest.raises(ValueError, match=r'causal.*Bert.*bidirectional'):
    causal_lm.make(trunk=tiny.make_trunk('bert'), vocab=V)
  with pytest.raises(ValueError, match=r"objective\.packing='walls'.*segments, stream"):
    make_task(packing='walls')


# Rows that go on -----------------------------------------------------------------------------------------------------


def recurrent(**settings):
  sizes = {'hidden_dim': 16, 'mlp_dim': 24, 'dropout': 0.0}
  return causal_lm.make(trunk=awd_lstm.make(vocab_size=V.size, variant='tiny', overrides=sizes), vocab=V, **settings)


def chunks(length):
  """A text of 24 tokens a row in rows of `length` that go on, and the last of its tokens as what follows."""
  text = np.random.default_rng(0).integers(len(V.special_ids), V.size, (4, 25)).astype(np.int32)
  for start in range(0, 24, length):
    batch = tiny.make_batch(((length,),) * 4, length=length)
    yield batch | {
      'tokens': jnp.asarray(text[:, start : start + length]),
      'next_token': jnp.asarray(text[:, start + length]),
      'reset': jnp.full(4, start == 0),
    }


@pytest.mark.parametrize('pads', [False, True])
def test_an_end_token_that_pads_as_well_is_predicted(pads):
  """Of four rows the first goes on with a word, the second with the end of its text, and nothing follows the others."""
  vocab = dataclasses.replace(V, pad_id=V.eos_id) if pads else V
  trunk = awd_lstm.make(vocab_size=V.size, variant='tiny', overrides={'hidden_dim': 16, 'mlp_dim': 24})
  task = causal_lm.make(trunk=trunk, vocab=vocab)
  batch = next(chunks(6)) | {'next_token': jnp.asarray([V.size - 1, V.eos_id, nothing_after(vocab), -1])}
  targets = task.prepare(jax.random.key(0), batch).targets
  assert targets['weights'][:, -1].tolist() == [1, 1, 0, 0]
  assert targets['ids'][:2, -1].tolist() == [V.size - 1, V.eos_id]


def test_rows_that_go_on_are_one_text():
  """Nats of a text cut into rows are those of the text as one row: its state is carried, no token is left out."""
  task = recurrent(memory=True)
  params = jax.tree.map(lambda leaf: 3 * leaf, tiny.init_params(task, next(chunks(24))))
  evaluate = jax.jit(functools.partial(step.eval_step, task=task))
  sums = {}
  for length in (6, 24):
    carry = jax.tree.map(jnp.ones_like, task.init_carry(4))  # is reset
    found = []
    for batch in chunks(length):
      metrics, carry = evaluate(params, batch, carry, jax.random.key(0))
      found.append(metrics['loss'])
    sums[length] = np.sum(found, axis=0)
  assert sums[6][1] == sums[24][1] == 4 * 24
  assert sums[6][0] == pytest.approx(sums[24][0], rel=1e-5)
  with pytest.raises(ValueError, match=r"objective\.memory=True.*data\.name='bptt'"):
    evaluate(params, tiny.make_batch(), task.init_carry(4), jax.random.key(0))


def test_a_memory_needs_a_trunk_with_a_carry():
  with pytest.raises(ValueError, match=r'memory.*carry.*Gpt'):
    make_task(memory=True)


def test_activations_and_their_changes_are_trained_on(params):
  """AR and TAR by the formulas of the released code (fastai, RNNTrainer.on_backward_begin) on rows without padding."""
  batch = tiny.make_batch(((16,),) * 4)
  task = make_task(activation=2.0, temporal=0.5)
  found, _ = loss_function(task, params)(batch)
  means = tiny.means(found.metrics)
  out = task.model.trunk.apply({'params': params['trunk']}, batch['tokens'], segment_ids=batch['segment_ids'])
  hidden, last = np.asarray(out['hidden'])[:, :-1], np.asarray(out['layers'][-1])  # the last token predicts nothing
  assert means['activation'] == pytest.approx(2 * np.square(hidden).mean(), rel=1e-5)
  changes = np.square(last[:, 1:-1] - last[:, :-2]).sum() / last.shape[-1] / (4 * 15)
  assert means['temporal'] == pytest.approx(0.5 * changes, rel=1e-5)
  assert found.value == pytest.approx(means['loss'] + means['activation'] + means['temporal'], rel=1e-5)


def test_tokens_that_a_row_shares_with_the_row_before_are_read_and_not_scored(run_stream):
  """Of 8 tokens 3 are shared: targets 3 to 7 count, whose nats see all of the row."""
  tokens = jnp.arange(10, 18)[None]
  batch = tiny.make_batch(((4,),), length=8) | {'tokens': tokens, 'segment_ids': jnp.ones((1, 8), jnp.int32)}
  (_, every), (shared, scored) = run_stream(batch), run_stream(batch | {'overlap': jnp.array([3])})
  np.testing.assert_allclose(scored[0], np.where(np.arange(8) >= 2, every[0], 0), atol=1e-6)
  assert float(shared.metrics['loss'][1]) == 5
