"""`--config.model.from=FOLDER`: one command for releases, imports and runs; mistakes are found before jax."""

import json
import shutil
import subprocess
import sys

import pytest

from plm_jax import config, convert, evaluate, train
from plm_jax.cli import command
from plm_jax.errors import ConfigError
from plm_jax.files import RunFolder
from plm_jax.training.model_from import expand
from tests import conftest, runs

transformers = pytest.importorskip('transformers')

LENGTH = 32


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  return runs.write_data(tmp_path_factory.mktemp('data'))


@pytest.fixture(scope='module')
def release(data, tmp_path_factory):
  """A release of sizes that no config has, with rows of its table to spare."""
  folder = tmp_path_factory.mktemp('release') / 'bert'
  sizes = dict(hidden_size=24, num_hidden_layers=3, num_attention_heads=3, intermediate_size=40)
  settings = transformers.BertConfig(vocab_size=416, max_position_embeddings=LENGTH, **sizes)
  transformers.BertForPreTraining(settings).save_pretrained(folder)
  for name in ('tokenizer.json', 'vocab.json'):
    shutil.copy(data / 'vocab' / name, folder / name)
  (folder / 'vocab.json').unlink()  # as published: the names of special tokens say what they are
  return folder


@pytest.fixture(scope='module')
def imported(release, tmp_path_factory):
  folder = tmp_path_factory.mktemp('import') / 'ours'
  assert convert.main(['import', str(release), str(folder)]) == 0
  return folder


def write(data, folder, kind='classify', **changes):
  """The config of another model, with an `init_from` of its own, and the vocabulary of no folder."""
  short = {'steps': 2, 'log_every': 1, 'eval_every': 2, 'save_every': 2, 'log': ()}
  values = runs.settings(kind, data, **short)
  values |= {'vocab': {'name': 'wordpiece', 'path': 'runs/vocab/none'}, **changes}
  return f'--config={runs.write_config(folder / "config.json", values)}'


def resolved(data, folder, *flags, kind='classify', workdir=None, **changes):
  file = write(data, folder, kind, **changes).removeprefix('--config=')
  split = [tuple(flag.removeprefix('--config.').split('=', 1)) for flag in flags]
  written, rest = expand(config.load(file), split, RunFolder.at(workdir) if workdir else None)
  from plm_jax.config import overrides

  return config.resolve(overrides.apply(written, rest)[0])


def test_a_folder_says_everything(data, release, imported, tmp_path):
  old = [{'source': 'runs/none', 'from_': 'trunk', 'to': 'trunk'}]
  for folder, tokens in ((release, release), (imported, imported / 'vocab')):
    found = resolved(data, tmp_path, f'--config.model.from={folder}', init_from=old)
    sizes = found['model']['overrides']
    assert (found['model']['name'], sizes['hidden_dim'], sizes['num_layers'], sizes['mlp_dim']) == ('bert', 24, 3, 40)
    assert sizes['vocab_multiple'] == 32  # 400 ids in 416 rows
    assert (found['vocab']['name'], found['vocab']['path']) == ('byte_bpe', str(tokens))
    (entry,) = found['init_from']
    assert (entry['source'], entry['from_'], entry['to'], entry['resize']) == (str(folder), 'trunk', 'trunk', None)
    assert 'from' not in found['model']


def test_flags_go_on_top(data, release, tmp_path):
  found = resolved(
    data,
    tmp_path,
    '--config.model.overrides.dropout=0.3',
    f'--config.model.from={release}',
    '--config.init_from.0.layers=[0, 2]',
    '--config.model.overrides.num_layers=2',
    f'--config.vocab.extra={[f"<new {n}>" for n in range(17)]}',
  )
  sizes = found['model']['overrides']
  assert (sizes['dropout'], sizes['num_layers'], sizes['hidden_dim']) == (0.3, 2, 24)
  assert found['init_from'][0]['layers'] == [0, 2] and found['init_from'][0]['resize'] == 'new_rows'
  assert found['vocab']['extra'][0] == '<new 0>' and 'vocab_multiple' not in sizes
  assert resolved(data, tmp_path, f'--config.model.from={release}', '--config.init_from=[]')['init_from'] == []
  other = resolved(data, tmp_path, f'--config.model.from={release}', f'--config.vocab.path={data / "vocab"}')
  assert other['vocab']['path'] == str(data / 'vocab')
  inside = resolved(data, tmp_path, model={'from': str(release), 'overrides': {'dropout': 0.2}})
  assert (inside['model']['overrides']['dropout'], inside['model']['overrides']['hidden_dim']) == (0.2, 24)


def test_continued_pre_training_takes_the_heads_and_others_keep_their_place(data, release, tmp_path):
  found = resolved(data, tmp_path, f'--config.model.from={release}', kind='mlm')
  assert [(entry['from_'], entry['to']) for entry in found['init_from']] == [('', '')]
  teacher = [{'source': 'runs/teacher', 'from_': '', 'to': 'teacher'}, {'source': 'runs/none', 'layers': (0, 1)}]
  found = resolved(data, tmp_path, f'--config.model.from={release}', kind='mlm', init_from=teacher)
  assert [(entry['source'], entry['to']) for entry in found['init_from']] == [
    ('runs/teacher', 'teacher'), (str(release), 'trunk'),
  ]  # fmt: skip


def test_a_run_that_has_begun_does_without_the_folder(data, release, tmp_path):
  began = resolved(data, tmp_path, f'--config.model.from={release}')
  (tmp_path / 'run').mkdir()
  runs.write_config(tmp_path / 'run' / 'config.json', began)
  again = resolved(data, tmp_path, '--config.model.from=runs/gone', workdir=tmp_path / 'run')
  assert again == began
  with pytest.raises(ConfigError, match='there is no such folder'):
    resolved(data, tmp_path, '--config.model.from=runs/gone', workdir=tmp_path / 'other')


@pytest.mark.slow
def test_one_command_trains_scores_and_resumes(data, release, tmp_path, monkeypatch):
  own = tmp_path / 'folder'
  shutil.copytree(release, own)
  words = [write(data, tmp_path), f'--config.model.from={own}', f'--workdir={tmp_path / "run"}']
  assert train.main([*words, '--stop_at=1']) == 0
  kept = json.loads((tmp_path / 'run' / 'config.json').read_text())
  assert 'from' not in kept['model'] and kept['model']['overrides']['hidden_dim'] == 24
  shutil.rmtree(own)  # the run says everything by itself
  assert train.main(words) == 0
  assert json.loads((tmp_path / 'run' / 'result.json').read_text())['finished']
  assert evaluate.main([f'--workdir={tmp_path / "run"}']) == 0
  found = resolved(data, tmp_path, f'--config.model.from={tmp_path / "run"}')  # and a run is a folder as well
  assert found['model']['overrides'] == kept['model']['overrides']
  assert found['vocab']['path'] == str(tmp_path / 'run' / 'vocab')


MISTAKES = {
  'nowhere': ([], 'there is no such folder: name a release, an import or a run'),
  'empty': ([], 'is no release .* no import .* and no run'),
  'strange': ([], "there is no model_type 'brt' in config.json. Did you mean 'bert'"),
  'pickled': ([], r'has no \*.safetensors'),
  'torn': ([], 'config.json cannot be read'),
  'bare': ([], 'the folder has no tokenizer: name one with --config.vocab.path'),
  'fine': (['--config.optim.rat=1'], "no keyword 'rat'"),
  'fine ': (['--config.data.length=0'], 'data.length'),
}


@pytest.fixture(scope='module')
def folders(data, release, tmp_path_factory):
  root = tmp_path_factory.mktemp('folders')
  files = {
    'empty': {},
    'strange': {'config.json': '{"model_type": "brt"}'},
    'pickled': {'config.json': '{"model_type": "bert"}', 'pytorch_model.bin': ''},
    'torn': {'config.json': '{"model_type": "be'},
    'bare': {'config.json': '{"model_type": "bert"}', 'model.safetensors': ''},
  }
  for name, content in files.items():
    (root / name).mkdir()
    for file, text in content.items():
      (root / name / file).write_text(text)
  (root / 'fine').symlink_to(release)
  return root


@pytest.mark.parametrize('name', MISTAKES)
def test_mistakes(data, folders, name, tmp_path):
  flags, said = MISTAKES[name]
  words = [write(data, tmp_path), f'--config.model.from={folders / name.strip()}', f'--workdir={tmp_path / "run"}']
  with pytest.raises(ConfigError, match=said):
    train.main([*words, *flags])
  assert not (tmp_path / 'run').exists()


def test_mistakes_are_found_without_jax(data, folders, tmp_path):
  words = [write(data, tmp_path), f'--workdir={tmp_path / "run"}']
  lists = [[*words, f'--config.model.from={folders / name.strip()}', *flags] for name, (flags, _) in MISTAKES.items()]
  code = f"""
import sys
from plm_jax import train
from plm_jax.cli import command
print([command.run(lambda: train.main(words)) for words in {lists!r}], 'jax' in sys.modules)
"""
  done = subprocess.run([sys.executable, '-c', code], cwd=conftest.ROOT, capture_output=True, text=True, timeout=120)
  assert done.stdout.split('\n')[-2] == f'{[command.WRONG_USAGE] * len(MISTAKES)} False', done.stderr
  assert len(done.stderr.strip().split('\n')) == len(MISTAKES)


def test_another_name_is_refused(data, release, tmp_path):
  with pytest.raises(ConfigError, match=r"is a 'bert', and config.model.name='gpt': leave the name out"):
    resolved(data, tmp_path, model={'from': str(release), 'name': 'gpt'})
