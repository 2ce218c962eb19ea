"""Whole runs that read and write text: trained, scored by texts, predicted in words; prompts on a release as it is."""

import json
import random

import numpy as np
import pytest

from plm_jax import config, evaluate
from plm_jax.files import RunFolder
from plm_jax.text import byte_bpe
from plm_jax.training import loop
from tests import conftest, runs

PLACES = conftest.PLACES


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  """The corpus and the vocabulary of `runs.write_data`, and rows that say where a person is."""
  folder = runs.write_data(tmp_path_factory.mktemp('text'))
  draw = random.Random(5)
  (folder / 'asked').mkdir()
  for split, rows in {'train': 64, 'validation': 16}.items():
    lines = []
    for _ in range(rows):
      name, place, other = draw.choice(conftest.NAMES), *draw.sample(PLACES, 2)
      label = draw.randrange(2)
      row = {'premise': f'{name} went to the {place}.', 'place': place, 'question': ('cause', 'effect')[label]}
      choices = {f'choice{1 + label}': f'{name} is in the {place}.', f'choice{2 - label}': f'It is in the {other}.'}
      lines.append(json.dumps(row | choices | {'label': label, 'passage': f'{name} went to the {place}'}))
    (folder / 'asked' / f'{split}.jsonl').write_text('\n'.join(lines) + '\n')
  return folder


def settings(data, **changes):
  """A resolved config of a tiny T5 that reads and writes text."""
  sizes = {name: size for name, size in runs.SIZES.items() if name != 'max_length'} | {'head_dim': 16}
  return config.resolve({
    'log_every': 10,
    'vocab': {'name': 'byte_bpe', 'path': str(data / 'vocab')},
    'model': {'name': 't5', 'variant': 'tiny', 'overrides': sizes},
    'adapter': {'name': 'sequence'},
    'data': {
      'name': 'text_to_text', 'path': str(data / 'asked'), 'length': 24, 'target_length': 8, 'batch_size': 8,
      'layout': 'text', 'cache': str(data / 'cache'),
      'form': {'name': 'template', 'inputs': 'where: {premise}', 'target': '{place}'},
    },
    'optim': {'name': 'adamw', 'rate': 1e-2, 'schedule': 'linear', 'warmup': 10, 'clip': 1.0},
    'eval': {'validation': {'data': {'split': 'validation'}}},
    **changes,
  })  # fmt: skip


@pytest.mark.slow
def test_a_run_learns_to_write_and_is_scored_by_its_texts(data, tmp_path):
  """The place is copied from the text: after 150 steps most are right, and predictions have them in words."""
  changes = {'steps': 150, 'eval_every': 150, 'save_every': 150, 'best': ('validation/exact_match', 'max')}
  outcome = loop.train(settings(data, **changes), tmp_path / 'run')
  assert outcome.exit_code == 0
  found = outcome.result['metrics']
  file = tmp_path / 'predictions.jsonl'
  flags = (f'--config={tmp_path / "run"}', f'--workdir={tmp_path / "run"}', f'--predictions={file}')
  assert evaluate.main(flags) == 0
  rows = [json.loads(line) for line in file.read_text().splitlines()]
  assert len(rows) == 16
  right = np.mean([row['text'] == row['record']['row']['place'] for row in rows])
  assert right == pytest.approx(found['validation/exact_match'])
  assert right > 2 / len(PLACES)  # a place at random
  assert RunFolder.at(tmp_path / 'run').evaluations.exists()


@pytest.fixture(scope='module')
def released(data):
  """(folder, model, vocabulary): a random GPT-2 of Hugging Face."""
  transformers, torch = pytest.importorskip('transformers'), pytest.importorskip('torch')
  texts = (data / 'corpus' / 'train.txt').read_text().split('\n\n')
  vocab = byte_bpe.train(texts, size=400, specials='gpt2')
  torch.manual_seed(0)
  sizes = {'n_embd': 16, 'n_layer': 2, 'n_head': 2, 'n_positions': 128}
  model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=vocab.size, initializer_range=0.3, **sizes))
  model.eval().save_pretrained(data / 'released')
  vocab.save(data / 'released')
  return data / 'released', model, vocab


def log_probability(model, text, answer):
  """Of an answer behind a text, and whether each of its tokens is the likeliest."""
  import torch

  with torch.no_grad():
    logits = model(torch.tensor([[*text, *answer]])).logits[0].log_softmax(-1).numpy()[len(text) - 1 : -1]
  return logits[np.arange(len(answer)), answer].sum(), (logits.argmax(axis=1) == answer).all()


def run_prompt(folder, data, out, *, words, flags=()):
  file = conftest.ROOT / 'experiments' / 'gpt' / 'prompt.py'
  split = 'test' if 'lambada' in words else 'validation'
  places = ('--config.data', f'--config.eval.{split}.data')
  sizes = [f'{place}.{key}' for place in places for key in (f'path={data / "asked"}', 'length=96', 'target_length=24')]
  where = ('--config.eval.test.data.split=validation',) if split == 'test' else ()
  predictions = out / 'predictions.jsonl'
  run = (f'--config={file}:{words}', f'--weights={folder}', f'--workdir={out}', f'--predictions={predictions}')
  assert evaluate.main([*run, *sizes, *where, *flags]) == 0
  line = json.loads((out / 'evaluations.jsonl').read_text().splitlines()[-1])
  rows = [json.loads(line) for line in predictions.read_text().splitlines()]
  return {name.removeprefix(f'{split}/'): value for name, value in line.items()}, rows


def asked(data, split='validation'):
  return [json.loads(line) for line in (data / 'asked' / f'{split}.jsonl').read_text().splitlines()]


def test_copa_without_an_update(released, data, tmp_path):
  folder, model, vocab = released
  found, rows = run_prompt(folder, data, tmp_path, words='copa')
  chosen = []
  for row in asked(data):
    text = vocab.encode(row['premise'].rstrip('.') + {'cause': ' because', 'effect': ' so'}[row['question']])
    options = [vocab.encode(' ' + row[name][0].lower() + row[name][1:]) for name in ('choice1', 'choice2')]
    sums = [log_probability(model, text, option)[0] for option in options]
    chosen.append([sums, [total / len(option) for total, option in zip(sums, options, strict=True)]])
  for number, name in enumerate(('sum', 'mean')):
    values = np.array(chosen)[:, number]
    np.testing.assert_allclose([row[f'log_probability_{name}'] for row in rows], values, rtol=1e-3, atol=1e-3)
    right = (values.argmax(axis=1) == [row['label'] for row in asked(data)]).mean()
    assert found[f'accuracy_{name}'] == pytest.approx(right)
  assert found['accuracy'] == found['accuracy_sum']


@pytest.mark.slow
def test_few_shot_prompts_have_a_mean_and_a_spread_over_draws(released, data, tmp_path):
  folder, _, _ = released
  small = ('--config.eval.validation.data.shots.count=2', '--config.eval.validation.data.shots.draws=3')
  found, rows = run_prompt(folder, data, tmp_path, words='copa,few', flags=small)
  assert len(rows) == 48
  each = np.array([row['label'] == row['record']['label'] for row in rows]).reshape(3, 16).mean(axis=1)
  assert found['draws_accuracy'] == pytest.approx(each.mean())
  assert found['draws_spread'] == pytest.approx(each.std(ddof=1))


@pytest.mark.slow
def test_the_last_word_without_an_update(released, data, tmp_path):
  folder, model, vocab = released
  found, rows = run_prompt(folder, data, tmp_path, words='lambada')
  nats, right = [], []
  for row in asked(data):
    text, word = row['passage'].rsplit(' ', 1)
    total, best = log_probability(model, vocab.encode(text), vocab.encode(f' {word}'))
    nats.append(-total)
    right.append(best)
  np.testing.assert_allclose([row['nats'] for row in rows], nats, rtol=1e-4)
  assert found['answer_accuracy'] == pytest.approx(np.mean(right))
  assert found['nats_per_answer'] == pytest.approx(np.mean(nats), rel=1e-4)
