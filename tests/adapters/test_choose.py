"""A choice between options: scores beside transformers, options that are not there, the language model beside it."""

import json
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import config, weights
from plm_jax.adapters import choose
from plm_jax.models import bart
from plm_jax.noise import keys
from plm_jax.runs import metrics
from plm_jax.text import byte_bpe
from plm_jax.training import loop, step
from tests import runs, tiny
from tests.adapters import running
from tests.adapters.running import nats_of, predict

pytestmark = pytest.mark.turns

SIZES = ((16, 7, 12), (5, 9, 3), (4, 4, 4), (11, 2, 6))  # tokens of each option of each row


def make_task(trunk: str = 'bert', *, fields=None, **settings):
  return choose.make(trunk=tiny.make_trunk(trunk, **(fields or {})), vocab=tiny.VOCAB, **settings)


def make_batch(sizes=SIZES, *, seed: int = 0):
  """Rows of options; each option is one text, type_ids included."""
  options = tiny.make_batch(tuple((size,) for row in sizes for size in row), seed=seed)
  rows, count = len(sizes), len(sizes[0])
  batch = {name: options[name].reshape(rows, count, -1) for name in ('tokens', 'segment_ids', 'type_ids')}
  number = jnp.arange(rows, dtype=jnp.int32)
  return batch | {
    'label': number % count, 'row_id': number, 'epoch': 0 * number, 'row_weight': jnp.ones(rows, jnp.float32)
  }  # fmt: skip


def run(task, batch, params=None):
  """(score of each option f32[b, k], states, Loss)."""
  (outputs, hidden), loss = running.run(task, batch, params)
  return outputs[..., 0], hidden, loss


BERT, GPT = make_task('bert'), make_task('gpt')


@pytest.mark.parametrize('name', ['bert', 'gpt'])
def test_every_option_is_scored_by_itself(name):
  task, batch = {'bert': BERT, 'gpt': GPT}[name], make_batch()
  params = tiny.init_params(task, batch)
  scores, hidden, loss = run(task, batch, params)
  assert scores.shape == (4, 3)
  states = np.asarray(hidden).reshape(4, 3, 16, 32)
  for row, sizes in enumerate(SIZES):
    for option, size in enumerate(sizes):
      if name == 'bert':
        pooler = params['trunk']['pooler']
        vector = np.tanh(states[row, option, 0] @ np.asarray(pooler['kernel']) + np.asarray(pooler['bias']))
      else:
        vector = states[row, option, size - 1]  # the last token, wherever padding begins
      expected = vector @ np.asarray(params['head']['kernel'])[:, 0] + float(params['head']['bias'][0])
      assert float(scores[row, option]) == pytest.approx(float(expected), abs=1e-5)
  nats = nats_of(scores, batch['label'])
  means = tiny.means(loss.metrics)
  assert float(loss.value) == pytest.approx(nats.mean(), rel=1e-5) == pytest.approx(means['loss'], rel=1e-5)
  assert means['accuracy'] == (np.asarray(scores).argmax(-1) == np.asarray(batch['label'])).mean()


def test_scores_are_those_of_transformers(tmp_path):
  torch, model = pytest.importorskip('torch'), running.their_bert('BertForMultipleChoice')
  batch = make_batch()
  with torch.no_grad():
    tokens, inputs = running.torch_inputs(batch)
    theirs = model(tokens, **inputs).logits
  model.save_pretrained(tmp_path)
  trunk, params = weights.load(tmp_path)
  head = params.pop('head')
  task = choose.make(trunk=trunk, vocab=tiny.VOCAB)
  scores, _, _ = run(task, batch, {'trunk': params, 'head': head})
  assert tiny.worst(scores, theirs.numpy()) < 1e-5


def test_options_that_a_row_does_not_have_are_never_chosen():
  batch = make_batch()
  gone = batch['segment_ids'].at[1, 2].set(0).at[2, 1:].set(0)
  some = {**batch, 'segment_ids': gone, 'label': jnp.array([0, 1, 0, 1])}
  params = tiny.init_params(BERT, some)
  probability = np.asarray(predict(BERT, some, params)['probability'])
  assert (probability[1, 2], *probability[2]) == (0, 1, 0, 0)
  assert probability[1, :2].sum() == pytest.approx(1)
  # what would stand there changes nothing, in the gradient neither
  noise = {**some, 'tokens': jnp.where(gone > 0, some['tokens'], 51)}
  loss, gradient = tiny.loss_and_gradient(BERT, params, some)
  other, other_gradient = tiny.loss_and_gradient(BERT, params, noise)
  assert tiny.same(loss, other) and tiny.same(gradient, other_gradient)
  scores, _, _ = run(BERT, some, params)
  nats = [nats_of(np.asarray(scores)[row : row + 1, :count], [label])[0]
          for row, (count, label) in enumerate(((3, 0), (2, 1), (1, 0), (3, 1)))]  # fmt: skip
  assert float(loss.value) == pytest.approx(np.mean(nats), rel=1e-5)


def test_rows_without_a_label_cost_nothing():
  batch = make_batch()
  params = tiny.init_params(BERT, batch)
  _, _, loss = run(BERT, {**batch, 'label': jnp.array([0, -1, 2, -1])}, params)
  _, _, some = run(BERT, {**batch, 'row_weight': jnp.array([1.0, 0, 1, 0])}, params)
  assert tiny.same(loss, some)


def test_predictions_are_the_option_and_probabilities():
  batch = make_batch()
  params = tiny.init_params(GPT, batch)
  scores, _, _ = run(GPT, batch, params)
  found = predict(GPT, batch, params)
  shares = np.exp(np.asarray(scores, np.float64))
  assert found['label'].tolist() == np.asarray(scores).argmax(-1).tolist()
  assert tiny.worst(found['probability'], shares / shares.sum(-1, keepdims=True)) < 1e-5
  assert choose.in_words({'label': np.int32(2)}, {'options': ['a', 'b', 'c']}) == {'option': 'c'}


def test_the_language_model_reads_every_option():
  """Released GPT code: the mean over the tokens of a sequence, over the sequences of a row, over rows."""
  task, batch = make_task('gpt', lm_weight=0.5), make_batch()
  batch['segment_ids'] = batch['segment_ids'].at[2, 1:].set(0)
  batch['label'] = batch['label'].at[2].set(0)
  params = tiny.init_params(task, batch)
  scores, hidden, loss = run(task, batch, params)
  logits = np.asarray(hidden, np.float64) @ np.asarray(params['trunk']['token_embed']['table'], np.float64).T
  logits = logits.reshape(4, 3, 16, -1)
  rows = []
  for row, sizes in enumerate(SIZES):
    ids = np.asarray(batch['tokens'])[row]
    sizes = sizes[:1] if row == 2 else sizes
    rows.append(np.mean([np.mean([nats_of(logits[row, k, place][None], [ids[k, place + 1]])[0]
                                  for place in range(size - 1)]) for k, size in enumerate(sizes)]))  # fmt: skip
  means = tiny.means(loss.metrics)
  assert means['lm_loss'] == pytest.approx(np.mean(rows), rel=1e-5)
  present = np.asarray((batch['segment_ids'] > 0).any(-1))
  own = nats_of(np.where(present, np.asarray(scores), -1e30), batch['label'])
  assert means['task_loss'] == pytest.approx(own.mean(), rel=1e-5)
  assert float(loss.value) == pytest.approx(own.mean() + 0.5 * np.mean(rows), rel=1e-5)


def test_options_may_drop_the_same_components():
  batch = make_batch(((6, 6, 6), (5, 5, 5)))
  one = {name: jnp.broadcast_to(value[:, :1], value.shape) if value.ndim == 3 else value
         for name, value in batch.items()}  # fmt: skip

  def spread(**settings):
    """How far apart the scores of equal options are in training."""
    task = make_task('gpt', dropout=0.5, **settings)
    params = tiny.init_params(task, one)
    example = task.prepare(jax.random.key(0), keys.with_step(one, 0))
    scores, _ = jax.jit(lambda: step.bind(task, params, train=True, rng=jax.random.key(1))(**example.inputs))()
    return float(jnp.abs(scores - scores[:, :1]).max())

  assert spread(same_dropout=True) < 1e-6 < spread()


def test_an_encoder_decoder_reads_each_option_on_both_sides():
  trunk = bart.make(vocab_size=tiny.VOCAB.size, variant='tiny', overrides=tiny.SIZES)
  task = choose.make(trunk=trunk, vocab=tiny.VOCAB, hidden=16)
  batch = make_batch()
  params = tiny.init_params(task, batch)
  scores, _, _ = run(task, batch, params)
  turned = {name: value[:, ::-1] if value.ndim == 3 else value for name, value in batch.items()}
  assert tiny.worst(run(task, turned, params)[0], np.asarray(scores)[:, ::-1]) < 1e-5
  assert set(params['head']) == {'hidden', 'out'}


def test_a_frozen_trunk_is_kept():
  running.check_that_the_trunk_is_kept(make_task('bert', frozen=True, fields={'dropout': 0.5}), make_batch())


def test_what_cannot_be_is_refused():
  with pytest.raises(ValueError, match=r'choose.*causal.*Bert.*bidirectional'):
    make_task('bert', lm_weight=0.5)
  with pytest.raises(ValueError, match=r'adapter\.lm_weight=0\.5.*adapter\.frozen'):
    make_task('gpt', lm_weight=0.5, frozen=True)
  with pytest.raises(ValueError, match=r"adapter\.pool='max'.*trunk, mean"):
    make_task(pool='max')
  with pytest.raises(ValueError, match=r"adapter\.activation='swish'"):
    make_task(hidden=4, activation='swish')
  with pytest.raises(ValueError, match=r'adapter\.same_dropout.*adapter\.hidden=4'):
    make_task(hidden=4, same_dropout=True)


# Whole runs ------------------------------------------------------------------------------------------


def write_rows(folder, *, rows, seed=0):
  """Rows whose right ending repeats a word of the context."""
  draw = random.Random(seed)
  lines = []
  for _ in range(rows):
    words = draw.sample(('harbour', 'library', 'market', 'village', 'station', 'garden', 'museum', 'castle'), 4)
    label = draw.randrange(3)
    endings = [f'at the {word}' for word in words[:3]]
    lines.append({'context': f'I was at the {words[label]} and she was', 'endings': endings, 'label': label})
  folder.write_text('\n'.join(map(json.dumps, lines)) + '\n')


def settings(folder, *, trunk='bert', **changes):
  plain = {
    'steps': 4, 'log_every': 2, 'eval_every': 4, 'save_every': 4,
    'vocab': {'name': 'byte_bpe', 'path': str(folder / 'vocab'),
              'extra': ('_start_', '_delimiter_', '_classify_') if trunk == 'gpt' else ()},
    'model': {'name': trunk, 'variant': 'tiny', 'overrides': runs.SIZES},
    'adapter': {'name': 'choose'},
    'data': {'name': 'labelled', 'kind': 'options', 'path': str(folder), 'length': 32, 'batch_size': 8,
             'layout': 'gpt' if trunk == 'gpt' else 'bert', 'cache': str(folder / 'cache')},
    'optim': {'name': 'adamw', 'rate': 1e-3, 'schedule': 'constant'},
    'eval': {'validation': {'data': {'split': 'validation'}}},
    'best': ('validation/accuracy', 'max'),
  }  # fmt: skip
  return config.resolve(plain | changes)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  place = tmp_path_factory.mktemp('choose')
  write_rows(place / 'train.jsonl', rows=40)
  write_rows(place / 'validation.jsonl', rows=21, seed=1)
  texts = [
    ' '.join(map(str, row.values())) for row in map(json.loads, (place / 'train.jsonl').read_text().splitlines())
  ]
  byte_bpe.train(texts, size=350).save(place / 'vocab')
  return place


@pytest.mark.parametrize('trunk', ['bert', 'gpt'])
def test_a_run_trains_and_evaluates(folder, tmp_path, trunk):
  assert loop.train(settings(folder, trunk=trunk), tmp_path).exit_code == 0
  last = metrics.read(tmp_path)[-1]
  assert 0 <= last['validation/accuracy'] <= 1 and last['validation/loss'] > 0


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'options'), [('hellaswag', 4), ('super_glue_copa', 2)])
def test_real_options_are_read_and_scored(shared_data, folder, tmp_path, name, options):
  """From scratch nothing beats a guess: endings are filtered against models, and COPA has 400 rows for training."""
  changes = {
    'vocab': {'name': 'byte_bpe', 'path': str(folder / 'vocab')},
    'data': {'name': 'labelled', 'kind': 'options', 'path': str(shared_data(name)), 'length': 32, 'batch_size': 16,
             'layout': 'bert', 'cache': str(tmp_path / 'cache')},
  }  # fmt: skip
  assert loop.train(settings(folder, **changes), tmp_path / 'run').exit_code == 0
  last = metrics.read(tmp_path / 'run')[-1]
  assert last['validation/loss'] == pytest.approx(np.log(options), abs=0.2)
  assert last['validation/accuracy'] == pytest.approx(1 / options, abs=0.15)
