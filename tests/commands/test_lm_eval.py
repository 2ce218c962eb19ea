"""`plm-jax lm_eval`: tasks in yaml files beside our adapter `prompt` on the same rows; what it refuses."""

import gzip
import itertools
import json

import numpy as np
import pytest

from plm_jax.commands import evaluate, lm_eval
from plm_jax.core.errors import ConfigError
from plm_jax.data.rows.forms import prompts
from tests import conftest

pytestmark = pytest.mark.turns

CONFIG = conftest.ROOT / 'experiments' / 'gpt' / 'prompt.py'
ROWS = 12
LAMBADA = """
output_type: loglikelihood
doc_to_text: "{{passage.split(' ')[:-1]|join(' ')}}"
doc_to_target: "{{' '+passage.split(' ')[-1]}}"
metric_list: [{metric: perplexity}, {metric: acc}]
"""
HELLASWAG = """
output_type: multiple_choice
doc_to_text: "{{activity_label}}: {{context}}"
doc_to_choice: "{{endings}}"
doc_to_target: "{{label}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
"""


@pytest.fixture(scope='module')
def released(tmp_path_factory):
  """A random GPT-2 in whose texts words are likely, so that some guesses of the last word are right."""
  transformers = pytest.importorskip('transformers')
  pytest.importorskip('lm_eval', reason='needs the extra lm_eval: bash launch/setup.sh lm_eval')
  from tests.inference import test_harness

  folder = test_harness.make_release(tmp_path_factory.mktemp('gpt2'), 'gpt2', positions=512)
  model = transformers.GPT2LMHeadModel.from_pretrained(folder)
  tokens = json.loads((folder / 'tokenizer.json').read_text())['model']['vocab']
  words = [number for token, number in tokens.items() if token[:1] == 'Ġ' and token[1:].isalpha()]
  model.transformer.wte.weight.data[words, 0] += 1
  model.transformer.ln_f.bias.data[0] = 30
  model.save_pretrained(folder)
  return folder, model


def rows_of(folder, split):
  with gzip.open(folder / f'{split}.jsonl.gz', 'rt', encoding='utf-8') as file:
    return list(map(json.loads, itertools.islice(file, 3 * ROWS)))


def harness_scores(folder, tmp_path, task, rows):
  """Scores of the command by name, and of each row what was answered."""
  (tmp_path / 'rows.jsonl').write_text('\n'.join(map(json.dumps, rows)))
  data = json.dumps({'data_files': {'test': str(tmp_path / 'rows.jsonl')}, 'cache_dir': str(tmp_path / 'cache')})
  (tmp_path / 'tasks').mkdir()
  about = f'task: ours\ndataset_path: json\ndataset_kwargs: {data}\ntest_split: test\n'
  (tmp_path / 'tasks' / 'ours.yaml').write_text(f'{about}{task}')
  flags = ('--tasks=ours', f'--include_path={tmp_path / "tasks"}', f'--out={tmp_path / "out.json"}', '--batch_size=6')
  assert lm_eval.main([f'--weights={folder}', *flags]) == 0
  found = json.loads((tmp_path / 'out.json').read_text())
  scores = {name.partition(',')[0]: value for name, value in found['results']['ours'].items()}
  samples = sorted(found['samples']['ours'], key=lambda sample: sample['doc_id'])
  return scores, [[answer[0][0] for answer in sample['resps']] for sample in samples]


def prompt_scores(folder, tmp_path, name, split, rows):
  """The metrics of `prompt`, and its predictions of each row."""
  (tmp_path / 'set').mkdir()
  (tmp_path / 'set' / f'{split}.jsonl').write_text('\n'.join(map(json.dumps, rows)))
  keys = {'path': tmp_path / 'set', 'length': 384, 'target_length': 128, 'batch_size': 8, 'cache': tmp_path / 'cache'}
  changes = [f'--config.data.{key}={value}' for key, value in keys.items()]
  changes += [f'--config.eval.{split}.data.{key}={value}' for key, value in keys.items()]
  files = (f'--workdir={tmp_path}', f'--predictions={tmp_path / "predictions.jsonl"}')
  assert evaluate.main([f'--config={CONFIG}:{name}', f'--weights={folder}', *files, *changes]) == 0
  line = json.loads((tmp_path / 'evaluations.jsonl').read_text())
  metrics = {key.removeprefix(f'{split}/'): value for key, value in line.items()}
  return metrics, [json.loads(line) for line in (tmp_path / 'predictions.jsonl').read_text().splitlines()]


def with_guesses(model, folder, passages):
  """Passages of which every other one ends with the word that the model would write."""
  import tokenizers
  import torch

  tokenizer = tokenizers.Tokenizer.from_file(str(folder / 'tokenizer.json'))
  for number, passage in enumerate(passages):
    before = passage.rpartition(' ')[0]
    if number % 2:
      with torch.no_grad():
        logits = model(torch.tensor([tokenizer.encode(before).ids])).logits[0, -1]
      likely = (tokenizer.id_to_token(token) for token in logits.argsort(descending=True).tolist())
      passage = before + next(token for token in likely if token[:1] == 'Ġ' and token[1:].isalpha()).replace('Ġ', ' ')
    yield {'passage': passage}


def test_last_words_of_lambada_score_as_in_prompt(released, shared_data, tmp_path):
  folder, model = released
  passages = [' '.join(row['passage'].split()[-40:]) for row in rows_of(shared_data('lambada'), 'test')[:ROWS]]
  rows = list(with_guesses(model, folder, passages))
  theirs, answers = harness_scores(folder, tmp_path, LAMBADA, rows)
  ours, predicted = prompt_scores(folder, tmp_path, 'lambada', 'test', rows)
  np.testing.assert_allclose([-row['nats'] for row in predicted], np.ravel(answers).astype(float), rtol=1e-4)
  assert 0 < theirs['acc'] < 1
  assert ours['answer_accuracy'] == pytest.approx(theirs['acc'])
  assert ours['answer_perplexity'] == pytest.approx(theirs['perplexity'], rel=1e-4)


def test_endings_of_hellaswag_score_as_in_prompt(released, shared_data, tmp_path):
  folder, _ = released
  rows = []
  for row in rows_of(shared_data('hellaswag'), 'validation'):
    texts, found = (f'{row["activity_label"]}: {row["context"]}', *row['endings']), prompts.hellaswag(row)
    if max(map(len, texts)) < 150 and texts == (found.inputs, *found.options):
      rows.append(row)
  assert len(rows) >= 5
  theirs, answers = harness_scores(folder, tmp_path, HELLASWAG, rows)
  ours, predicted = prompt_scores(folder, tmp_path, 'hellaswag', 'validation', rows)
  np.testing.assert_allclose([row['log_probability_sum'] for row in predicted], np.array(answers, float), rtol=1e-4)
  assert ours['accuracy_sum'] == pytest.approx(theirs['acc'])
  assert ours['accuracy_characters'] == pytest.approx(theirs['acc_norm'])
  sizes = np.array([[len(ending) for ending in row['endings']] for row in rows])
  by_characters = [row['log_probability_characters'] for row in predicted]
  np.testing.assert_allclose(by_characters, np.array(answers, float) / sizes, rtol=1e-4)


def test_what_cannot_be_is_said(released, tmp_path):
  folder, _ = released
  with pytest.raises(ConfigError, match=r'--workdir=DIR.*--weights=FOLDER'):
    lm_eval.main(['--tasks=hellaswag'])
  with pytest.raises(ConfigError, match=r'--weights=.*none.*no such folder'):
    lm_eval.main(['--tasks=hellaswag', f'--weights={tmp_path / "none"}'])
  with pytest.raises(ConfigError, match=r"task.* 'helaswag'.*Did you mean 'hellaswag' or "):
    lm_eval.main(['--tasks=helaswag', f'--weights={folder}'])
  with pytest.raises(ConfigError, match=r'--max_length=513\b.*\b512\b'):
    lm_eval.main(['--tasks=hellaswag', f'--weights={folder}', '--max_length=513'])


@pytest.mark.parametrize(
  ('flags', 'said'),
  [
    (['--tasks=,'], '--tasks=,: .*task'),
    (['--tasks=hellaswag', '--out=FOLDER/none/x.json'], '--out.*none|no folder .*none'),
    (['--tasks=hellaswag', '--out=FOLDER'], '--out=.*: is a folder'),
  ],
)
def test_flags_are_found_sound_before_the_model_is_opened(flags, said, monkeypatch, tmp_path):
  monkeypatch.setattr(lm_eval, 'PACKAGE', 'no-such-thing')  # which is looked for behind the flags
  with pytest.raises(ConfigError, match=said):
    lm_eval.main([f'--weights={tmp_path}', *(flag.replace('FOLDER', str(tmp_path)) for flag in flags)])


def test_a_missing_package_is_named(monkeypatch, tmp_path):
  monkeypatch.setattr(lm_eval, 'PACKAGE', 'no-such-thing')
  with pytest.raises(ConfigError, match=r'lm-evaluation-harness.*bash launch/setup\.sh lm_eval'):
    lm_eval.main(['--tasks=hellaswag', f'--weights={tmp_path}'])
