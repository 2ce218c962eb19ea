"""Releases with the head of a task: scored without training, trained on with their head, and written again."""

import json
import shutil

import jax
import numpy as np
import pytest

from plm_jax import config, weights
from plm_jax.commands import convert, evaluate, train
from plm_jax.core.errors import ConfigError
from plm_jax.core.param_paths import flat
from plm_jax.training.before.model_from import expand
from plm_jax.training.before.preflight import batch_spec
from plm_jax.training.init_sources import init_params_from
from plm_jax.training.parts import make_parts, make_vocab
from plm_jax.training.step import init_params
from tests import runs, tiny

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

SHORT = {'steps': 2, 'log_every': 1, 'eval_every': 2, 'save_every': 2, 'log': ()}
SIZES = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40)
NAMES = runs.CLASSES


def write_release(data, folder, *, family='Bert', names=NAMES):
  """A release that classifies rows, with every parameter drawn, and its tokenizer."""
  torch.manual_seed(0)
  more = {'id2label': dict(enumerate(names))} if names else {}
  settings = getattr(transformers, f'{family}Config')(
    vocab_size=runs.VOCAB_SIZE, max_position_embeddings=34, pad_token_id=int(family == 'Roberta'), **SIZES, **more
  )
  model = getattr(transformers, f'{family}ForSequenceClassification')(settings).eval()
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.add_(0.2 * torch.randn_like(parameter))
  model.save_pretrained(folder)
  shutil.copy(data / 'vocab' / 'tokenizer.json', folder / 'tokenizer.json')
  return model


def write_config(data, folder, **changes):
  values = runs.settings('classify', data, **SHORT) | {'vocab': {'name': 'wordpiece', 'path': 'none'}, **changes}
  return runs.write_config(folder / 'config.json', values)


def predicted(*flags, file):
  """The probabilities that `evaluate` writes."""
  assert evaluate.main([*map(str, flags), '--evaluation=validation', f'--predictions={file}']) == 0
  return np.array([json.loads(line)['probability'] for line in file.read_text().splitlines()])


def probabilities_of_theirs(model, vocab, data):
  """Theirs of the validation rows, in the layout [CLS] text [SEP]."""
  first = 2 if model.config.model_type == 'roberta' else 0  # given: the vocabulary has another padding id than theirs
  rows = [json.loads(line) for line in (data / 'labelled' / 'validation.jsonl').read_text().splitlines()]
  found = []
  for row in rows:
    ids = [vocab.cls_id, *vocab.encode(row['text'])[:30], vocab.sep_id]
    with torch.no_grad():
      places = first + torch.arange(len(ids))[None]
      found.append(model(torch.tensor([ids]), position_ids=places).logits[0].softmax(-1).numpy())
  return np.stack(found)


@pytest.mark.parametrize('family', ['Bert', pytest.param('Roberta', marks=pytest.mark.slow)])
def test_a_release_is_scored_without_training(data, tmp_path, family):
  """Classes, layers and what the head reads are the folder's: RoBERTa's head has two layers, which no config says."""
  model = write_release(data, tmp_path / 'release', family=family)
  file = write_config(data, tmp_path)
  ours = predicted(f'--config={file}', f'--weights={tmp_path / "release"}', file=tmp_path / 'out.jsonl')
  vocab = make_vocab(config.resolve(runs.settings('classify', data)))
  assert tiny.worst(ours, probabilities_of_theirs(model, vocab, data)) < 1e-5


def test_classes_that_mean_others_are_refused(data, tmp_path):
  write_release(data, tmp_path / 'release', names=NAMES[::-1])
  file = write_config(data, tmp_path)
  words = [f'--config={file}', f'--weights={tmp_path / "release"}']
  with pytest.raises(
    ConfigError, match=r'its classes are outside, inside, and those of .* inside, outside: number the'
  ):
    evaluate.main(words)
  tags = write_config(data, tmp_path, adapter={'name': 'choose'})
  with pytest.raises(ConfigError, match=r"its head is that of adapter 'classify', and adapter\.name='choose'"):
    evaluate.main([f'--config={tags}', words[1]])


def started(data, folder, *, names=NAMES, **adapter):
  """The settings of a run by `model.from`, and where its parameters come from."""
  block = {'name': 'classify', 'classes': 2, **adapter}
  written = runs.settings('classify', data, **SHORT) | {'adapter': block, 'vocab': {}, 'best': None}
  expanded, _ = expand(written, [('model.from', str(folder))], None)
  settings = config.resolve(expanded)
  made = make_parts(settings, make_vocab(settings))
  fresh = init_params(made.task, batch_spec(made, settings['data']), jax.random.key(1))
  _, report = init_params_from(settings, made, fresh, names=names)
  return settings, report


@pytest.mark.turns
def test_training_takes_the_head_where_it_fits(data, tmp_path, caplog):
  write_release(data, tmp_path / 'release', family='Roberta')
  settings, report = started(data, tmp_path / 'release')
  assert (settings['adapter']['hidden'], settings['adapter']['activation']) == (24, 'tanh')
  assert report.new == () and 'head/out/kernel' in report.restored
  assert started(data, tmp_path / 'release', activation='relu')[1].new == (
    'head/hidden/bias', 'head/hidden/kernel', 'head/out/bias', 'head/out/kernel',
  )  # fmt: skip
  _, report = started(data, tmp_path / 'release', classes=3, names=())
  assert all(path.startswith('head/') for path in report.new) and len(report.new) == 4
  for names in (NAMES[::-1], ('no', 'yes'), ()):
    _, report = started(data, tmp_path / 'release', names=names)
    assert all(path.startswith('head/') for path in report.new) and len(report.new) == 4
  assert convert.main(['import', str(tmp_path / 'release'), str(tmp_path / 'import')]) == 0
  _, report = started(data, tmp_path / 'import')
  assert report.new == () and 'head/out/kernel' in report.restored


@pytest.mark.turns
@pytest.mark.parametrize('wrapped', [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_goes_out_with_its_head_and_is_scored_as_before(data, tmp_path, wrapped):
  """Trained from a release, exported, read by transformers and by `evaluate`, and taken up again with its head."""
  write_release(data, tmp_path / 'release')
  inner = {'name': 'classify', 'classes': 2}
  adapter = {'name': 'lora', 'rank': 2, 'inner': inner} if wrapped else inner
  optim = {'name': 'adamw', 'rate': 1e-2, 'schedule': 'linear', 'warmup': 1, 'decay': 0.0, 'clip': 1.0}
  file = write_config(data, tmp_path, adapter=adapter, optim=optim)
  run = tmp_path / 'run'
  assert train.main([f'--config={file}', f'--config.model.from={tmp_path / "release"}', f'--workdir={run}']) == 0
  assert convert.main(['export', str(run), str(tmp_path / 'out'), '--step=newest']) == 0
  model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / 'out').eval()
  assert type(model).__name__ == 'BertForSequenceClassification' and model.config.id2label == dict(enumerate(NAMES))

  ours = predicted(f'--workdir={run}', '--step=newest', file=tmp_path / 'run.jsonl')
  theirs = probabilities_of_theirs(model, make_vocab(config.resolve(config.load(str(run)))), data)
  assert tiny.worst(ours, theirs) < 1e-5
  plain = write_config(data, tmp_path)
  again = predicted(f'--config={plain}', f'--weights={tmp_path / "out"}', file=tmp_path / 'out.jsonl')
  assert tiny.worst(again, ours) < 1e-6
  _, report = started(data, tmp_path / 'out')
  assert report.new == () and {'head/kernel', 'head/bias'} <= report.restored.keys()
  kept = flat(weights.load(run, step='newest')[1])
  read = flat(weights.load(tmp_path / 'out')[1])
  np.testing.assert_array_equal(kept['head/kernel'], read['head/kernel'])
