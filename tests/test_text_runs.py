"""Whole runs that read and write text: training, scores of texts, predicted texts, prompts."""

import json
import random
import shutil

import numpy as np
import pytest

import plm_jax
from plm_jax import config, weights
from plm_jax.commands import convert, evaluate, predict
from plm_jax.commands import generate as generate_command
from plm_jax.core.errors import ConfigError
from plm_jax.generate import settings as generation
from plm_jax.inference import continued, translating
from plm_jax.io.run_paths import RunFolder
from plm_jax.text import byte_bpe, tokenizer
from plm_jax.training import loop
from tests import conftest, runs

pytestmark = pytest.mark.turns

PLACES = conftest.PLACES


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  """Write the data of `runs.write_data`, and rows that state where a person is."""
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


def settings(data, /, **changes):
  """Return a resolved config of a tiny T5 that reads and writes text."""
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
  """Learn to copy the location from the text.

  After 150 steps most are right, and predictions contain them as text.
  """
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
  """Return (folder, model, vocabulary) of a random GPT-2 of Hugging Face."""
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
  """Score an answer after a text.

  Returns its log probability, and whether each of its tokens is the most likely one.
  """
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
def test_few_shot_prompts_without_options_have_a_mean_and_a_spread_over_draws(released, data, tmp_path):
  folder, _, _ = released
  shots = ('count=2', 'draws=3', 'split=train')
  small = [f'--config.eval.test.data.shots.{change}' for change in shots]
  found, rows = run_prompt(folder, data, tmp_path, words='lambada,few', flags=small)
  each = np.array([row['right'] for row in rows]).reshape(3, 16).mean(axis=1)
  assert found['draws_accuracy'] == pytest.approx(each.mean()) == pytest.approx(found['answer_accuracy'])
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


# Nouns that are written, of which the data say whether they are right -------------------------------------------------


def test_wrong_nouns_are_scored_and_not_trained_on(data, tmp_path):
  """Check WSC in the format of SuperGLUE, with the configs of T5 and GLM."""
  draw, place = random.Random(3), tmp_path / 'wsc'
  place.mkdir()
  for split, rows in {'train': 16, 'val': 12, 'test': 4}.items():
    lines = []
    for number in range(rows):
      one, other = draw.sample(conftest.NAMES, 2)
      spans = {'span1_text': (one, other)[number % 2], 'span1_index': 2 * (number % 2)}
      target = {**spans, 'span2_text': 'they', 'span2_index': 4}
      label = {} if split == 'test' else {'label': draw.random() < 0.5}
      lines.append(json.dumps({'text': f'{one} asked {other} whether they won.', 'target': target, **label}))
    (place / f'{split}.jsonl').write_text('\n'.join(lines) + '\n')
  changes = {
    'steps': 2, 'eval_every': 2, 'save_every': 2, 'best': ('validation/wsc_accuracy', 'max'),
    'optim': {'name': 'adamw', 'rate': 1e-2},
    'eval': {'validation': {'data': {'split': 'val', 'keep_unlabelled': True}, 'scores': ('wsc',)}},
  }  # fmt: skip
  rows = {**settings(data, steps=20)['data'], 'path': f'superglue:{place}', 'form': {'name': 't5', 'task': 'wsc'}}
  outcome = loop.train(settings(data, data=rows, **changes), tmp_path / 'run')
  assert outcome.exit_code == 0 and 0 <= outcome.result['metrics']['validation/wsc_accuracy'] <= 1
  assert evaluate.main([f'--workdir={tmp_path / "run"}']) == 0
  again = json.loads((tmp_path / 'run' / 'evaluations.jsonl').read_text().splitlines()[-1])
  assert again['validation/wsc_accuracy'] == outcome.result['metrics']['validation/wsc_accuracy']
  file = tmp_path / 'WSC.jsonl'
  flags = [f'--workdir={tmp_path / "run"}', '--config.eval.validation.data.split=test', f'--predictions={file}']
  assert evaluate.main([*flags, '--format=superglue']) == 0
  assert {json.loads(line)['label'] for line in file.read_text().splitlines()} <= {'True', 'False'}
  unscored = {**changes, 'best': None, 'eval': {'validation': {'data': changes['eval']['validation']['data']}}}
  with pytest.raises(ConfigError, match=r'keep_unlabelled'):
    loop.train(settings(data, data=rows, **unscored), tmp_path / 'other')


# A second vocabulary: translation by BART behind a new encoder -------------------------------------------------------


@pytest.mark.parametrize(
  ('task', 'rows', 'answers', 'scores', 'form', 'handed_in'),
  [
    (
      'squad',
      [
        {
          'id': f'q{n}',
          'question': 'Who?',
          'context': f'{name} left.',
          'answers': {'text': [name], 'answer_start': [0]},
        }
        for n, name in enumerate(conftest.NAMES[:4])
      ],
      ('answers',),
      {'squad': ('exact_match', 'f1')},
      'squad',
      lambda text: sorted(json.loads(text)) == ['q0', 'q1', 'q2', 'q3'],
    ),
    (
      'stsb',
      [{'sentence1': f'{name} left.', 'sentence2': 'He left.', 'label': 3.5, 'idx': 7} for name in conftest.NAMES[:4]],
      ('label',),
      {'correlation': ('pearson', 'spearman')},
      'glue',
      lambda text: all(0 <= float(line.split('\t')[1]) <= 5 for line in text.splitlines()[1:]),
    ),
  ],
)
def test_rows_without_answers_are_predicted_and_handed_in(data, tmp_path, task, rows, answers, scores, form, handed_in):
  """Run a T5 for two steps, score it as the benchmark, and predict.

  Rows without answers are predicted, and written for the server.
  """
  (tmp_path / 'rows').mkdir()
  bare = [{name: value for name, value in row.items() if name not in answers} for row in rows]
  for split, some in {'train': rows, 'validation': rows, 'test': bare}.items():
    (tmp_path / 'rows' / f'{split}.jsonl').write_text(''.join(f'{json.dumps(row)}\n' for row in some))
  block = {'path': str(tmp_path / 'rows'), 'form': {'name': 't5', 'task': task}, 'batch_size': 4}
  changes = {
    'data': settings(data, steps=20)['data'] | block, 'steps': 2, 'eval_every': 2, 'save_every': 2,
    'optim': {'name': 'adamw', 'rate': 1e-2},
    'eval': {'validation': {'data': {'split': 'validation'}, 'scores': tuple(scores)}},
  }  # fmt: skip
  run = tmp_path / 'run'
  outcome = loop.train(settings(data, **changes), run)
  assert outcome.exit_code == 0
  assert {f'validation/{metric}' for each in scores.values() for metric in each} <= outcome.result['metrics'].keys()
  out = tmp_path / 'out.jsonl'
  assert predict.main([f'--workdir={run}', f'--file={tmp_path / "rows" / "test.jsonl"}', f'--out={out}']) == 0
  predicted = [json.loads(line) for line in out.read_text().splitlines()]
  assert [{name: row[name] for name in bare[0]} for row in predicted] == bare
  assert all(isinstance(row['prediction'], str) for row in predicted)
  file = tmp_path / 'submission'
  test = [f'--config.eval.validation.data.{change}' for change in ('split=test', 'keep_unlabelled=True')]
  assert evaluate.main([f'--workdir={run}', *test, f'--predictions={file}', f'--format={form}']) == 0
  assert handed_in(file.read_text())


def test_questions_without_an_answer_are_scored_and_not_trained_on(data, tmp_path):
  """Run a T5 for two steps on SQuAD 2; it writes the answers."""
  (tmp_path / 'rows').mkdir()
  answers = [{'text': [name] * (n % 2), 'answer_start': [0] * (n % 2)} for n, name in enumerate(conftest.NAMES[:8])]
  rows = [
    {'id': f'q{n}', 'question': 'Who?', 'context': f'{name} left.', 'answers': answers[n]}
    for n, name in enumerate(conftest.NAMES[:8])
  ]
  for split in ('train', 'validation'):
    (tmp_path / 'rows' / f'{split}.jsonl').write_text(''.join(f'{json.dumps(row)}\n' for row in rows))
  block = {'path': str(tmp_path / 'rows'), 'form': {'name': 't5', 'task': 'squad'}, 'batch_size': 4}
  validation = {'data': {'split': 'validation', 'keep_unlabelled': True}, 'scores': ('squad2',)}
  changes = {
    'data': settings(data, steps=20)['data'] | block, 'steps': 2, 'eval_every': 2, 'save_every': 2,
    'optim': {'name': 'adamw', 'rate': 1e-2}, 'best': ('validation/best_f1', 'max'),
  }  # fmt: skip
  run = tmp_path / 'run'
  outcome = loop.train(settings(data, **changes, eval={'validation': validation}), run)
  assert outcome.exit_code == 0
  found = outcome.result['metrics']
  assert found['validation/best_f1'] == found['validation/f1']
  mean = (found['validation/has_answer_f1'] + found['validation/no_answer_f1']) / 2
  assert found['validation/f1'] == pytest.approx(mean)
  for form in ('squad', 'squad2'):
    file = tmp_path / form
    assert evaluate.main([f'--workdir={run}', f'--predictions={file}', f'--format={form}']) == 0
    assert sorted(json.loads(file.read_text())) == [f'q{n}' for n in range(8)]
  wrong = {**validation, 'scores': ('squad',)}
  with pytest.raises(ConfigError, match=r'keep_unlabelled'):
    loop.train(settings(data, **changes | {'best': None}, eval={'validation': wrong}), tmp_path / 'other')


def translation(data, /, **changes):
  """Return a resolved config of a tiny BART with a second input vocabulary."""
  sizes = {**runs.SIZES, 'max_length': 32}
  source = {'name': 'bert', 'variant': 'tiny', 'overrides': {**sizes, 'num_layers': 1}}
  return settings(data, **{
    'steps': 4, 'log_every': 2, 'eval_every': 4, 'save_every': 2,
    'second_vocab': {'name': 'byte_bpe', 'path': str(data / 'second')},
    'model': {'name': 'bart', 'variant': 'tiny', 'overrides': sizes},
    'optim': {'name': 'adamw', 'rate': 1e-2, 'decay': 0.01, 'clip': 1.0},
    'adapter': {'name': 'translate_bart', 'source': source, 'decoding': {'max_new': 4}},
    'eval': {'validation': {'data': {'split': 'validation'}, 'scores': ('bleu',)}},
    'best': ('validation/bleu', 'max'),
    **changes,
  })  # fmt: skip


@pytest.fixture(scope='module')
def stages(data):
  """Run both stages; the second starts from the first."""
  for name, text in (('second', 'went to the'), ('other', 'zur selben Zeit')):
    byte_bpe.train([f'{text} {place}' for place in PLACES] * 4, size=290).save(data / name)
  first, second = data / 'first_stage', data / 'second_stage'
  with runs.logging_on():
    assert loop.train(translation(data), first).exit_code == 0
    changes = {'init_from': ({'source': str(first), 'from_': '', 'to': ''},), 'steps': 2, 'eval_every': 2}
    adapter = {**translation(data)['adapter'], 'stage': 'second'}
    assert loop.train(translation(data, **changes, adapter=adapter), second).exit_code == 0
  return first, second


def test_a_second_vocabulary_is_kept_with_the_run(stages, data):
  kept, facts = tokenizer.load(stages[0] / 'second_vocab'), json.loads((stages[0] / 'data.json').read_text())
  assert kept.digest == tokenizer.load(data / 'second').digest == facts['second_vocab_digest'] != facts['vocab_digest']
  assert tokenizer.load(stages[0] / 'vocab').digest == facts['vocab_digest']


@pytest.mark.slow
def test_a_run_goes_on_with_the_second_vocabulary_that_it_keeps(stages, data, tmp_path):
  run, own = tmp_path / 'run', tmp_path / 'own'
  again = translation(data, second_vocab={'name': 'byte_bpe', 'path': str(own)})
  shutil.copytree(data / 'second', own)
  assert loop.train(again, run, stop_at=2).exit_code == 0
  shutil.rmtree(own)
  shutil.copytree(data / 'other', own)
  with pytest.raises(ConfigError, match=r'second_vocab'):
    loop.train(again, run)
  shutil.rmtree(own)
  assert loop.train(again, run).exit_code == 0, 'the vocabulary that the run keeps serves'
  assert not runs.differing(runs.saved_state(stages[0]), runs.saved_state(run))


def test_the_stages_train_what_the_paper_says(stages, data):
  results = [json.loads((stage / 'result.json').read_text()) for stage in stages]
  d, rows = 32, 32 + 2  # positions of BART, whose first two rows are unused
  layer = 4 * (d * d + d) + 2 * d * 64 + 64 + d + 4 * d
  source = 290 * d + 32 * d + 2 * d + 2 * d + layer  # tokens, positions, types, norm
  assert results[0]['trained'] == source + 2 * rows * d + 3 * (d * d + d)
  assert results[1]['trained'] == results[1]['parameters'] == results[0]['parameters']
  log = (stages[0] / 'log.txt').read_text()
  assert f'{results[0]["trained"]:,} of {results[0]["parameters"]:,} parameters train' in log
  before, after = (runs.params_of(runs.saved_state(stages[0], step=number)) for number in (2, 4))
  frozen = {name for name in before if before[name].tobytes() == after[name].tobytes()}
  assert 'params/trunk/token_embed/table' in frozen and 'params/trunk/decoder/layers/cross/query/kernel' in frozen
  log = (stages[1] / 'log.txt').read_text()
  assert 'restored  trunk/source/token_embed/table' in log and ' 0 new, 0 skipped' in log


def test_translations_are_scored_and_written(stages, tmp_path):
  file = tmp_path / 'translations.jsonl'
  assert evaluate.main([f'--workdir={stages[1]}', f'--predictions={file}']) == 0
  rows = [json.loads(line) for line in file.read_text().splitlines()]
  assert len(rows) == 16 and all(isinstance(row['text'], str) and row['record']['references'] for row in rows)
  assert 'validation/bleu' in json.loads((stages[1] / 'evaluations.jsonl').read_text().splitlines()[-1])


def test_another_second_vocabulary_is_not_started_from(stages, data, tmp_path):
  changes = {'init_from': ({'source': str(stages[0]), 'from_': '', 'to': ''},)}
  other = {'name': 'byte_bpe', 'path': str(data / 'other')}
  with pytest.raises(ConfigError, match=r'init_from: vocabulary '):
    loop.train(translation(data, **changes, second_vocab=other), tmp_path / 'run')


def test_what_is_generated_is_what_an_evaluation_writes(stages, data, tmp_path, capsys):
  """Encode prompts with the second vocabulary, and decode with the first."""
  file = tmp_path / 'translations.jsonl'
  assert evaluate.main([f'--workdir={stages[1]}', f'--predictions={file}']) == 0
  rows = [json.loads(line) for line in file.read_text().splitlines()]
  asked, wanted = [row['record']['inputs'] for row in rows], [row['text'] for row in rows]
  model = plm_jax.load(stages[1])
  given = {'method': 'greedy', 'max_new': 4}
  assert [text.strip() for text in model.generate(asked, **given)] == wanted
  made = continued.write(translating.writer(model.folder), asked, generation.DEFAULTS | given)
  np.testing.assert_allclose([one.score for (one,) in made], [row['score'] for row in rows], rtol=1e-4)
  assert model.generate(asked[0], method='beam', beams=2, max_new=4) != ''
  flags = [f'--workdir={stages[1]}', f'--prompt={asked[0]}', '--max_new=4', '--trace=2']
  assert generate_command.main(flags) == 0
  said = capsys.readouterr().out
  assert f'{asked[0]} {wanted[0]}' in said.replace('  ', ' ') and 'taken' in said
  with pytest.raises(ConfigError, match='second vocabulary'):
    model.encode('hello')


def test_other_doors_to_a_translating_run_are_refused(stages, tmp_path):
  message = 'second vocabulary.*plm_jax.load.*--workdir'
  with pytest.raises(weights.WeightsError, match=message):
    weights.load(stages[0])
  with pytest.raises((ConfigError, weights.WeightsError), match=message):
    convert.main(['export', str(stages[0]), str(tmp_path / 'out')])
