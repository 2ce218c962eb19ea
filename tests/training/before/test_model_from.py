"""`--config.model.from=FOLDER`: one command for releases, imports and runs; mistakes are found before jax."""

import dataclasses
import json
import shutil
import subprocess
import sys
from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import config, weights
from plm_jax.checkpoint import Checkpoints
from plm_jax.cli import command
from plm_jax.commands import convert, evaluate, train
from plm_jax.config import build, signatures
from plm_jax.core.errors import ConfigError
from plm_jax.core.param_paths import flat, nested
from plm_jax.core.types import Task
from plm_jax.io.run_paths import RunFolder
from plm_jax.training.before.model_from import expand
from plm_jax.training.before.preflight import batch_spec
from plm_jax.training.init_sources import init_params_from
from plm_jax.training.parts import make_parts, make_vocab
from plm_jax.training.step import abstract_params
from plm_jax.weights.convert import export as convert_export
from plm_jax.weights.convert import import_release
from tests import conftest, runs, tiny

pytestmark = pytest.mark.turns

transformers = pytest.importorskip('transformers')

LENGTH = 32


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
  own = {'name': 'bert', 'variant': 'tiny', 'overrides': {'attention_dropout': 0.4, 'pooler': 'first', 'num_layers': 7}}
  kept = resolved(data, tmp_path, f'--config.model.from={release}', model=own)['model']['overrides']
  assert (kept['attention_dropout'], kept['pooler'], kept['num_layers']) == (0.4, 'first', 3)  # rates are of the task
  other = {'name': 'albert', 'variant': 'tiny', 'overrides': {'attention_dropout': 0.4}}
  taken = resolved(data, tmp_path, f'--config.model.from={release}', model=other)['model']
  assert (taken['name'], taken['overrides']['attention_dropout']) == ('bert', 0.1)
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


def test_a_folder_is_scored_as_it_is(data, release, tmp_path, monkeypatch):
  from plm_jax.training import evaluate_saved

  seen = []
  monkeypatch.setattr(evaluate_saved, 'evaluate_folder', lambda settings, source, **_: seen.append((settings, source)))
  for words in ([f'--config.model.from={release}'], ['--config.model.from', str(release)]):
    assert evaluate.main([write(data, tmp_path, 'mlm'), *words]) == 0
  assert [source for _, source in seen] == [str(release)] * 2
  assert seen[0][0]['model']['overrides']['hidden_dim'] == 24


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


@pytest.mark.parametrize('role', ['eos', 'bos', 'pad', None])
def test_a_decoder_starts_with_the_token_of_the_folder(role, data, tmp_path):
  sizes = {f'{side}_{name}': size for side in ('encoder', 'decoder') for name, size in
           (('layers', 1), ('attention_heads', 2), ('ffn_dim', 24))}  # fmt: skip
  vocab = make_vocab(runs.settings('mlm', data))
  start = {'eos': vocab.eos_id, 'bos': vocab.bos_id, 'pad': vocab.pad_id, None: 77}[role]
  settings = transformers.BartConfig(
    vocab_size=vocab.size, d_model=16, max_position_embeddings=LENGTH, **sizes, decoder_start_token_id=start,
    eos_token_id=vocab.eos_id, pad_token_id=vocab.pad_id,
  )  # fmt: skip
  transformers.BartForConditionalGeneration(settings).save_pretrained(tmp_path / 'bart')
  shutil.copy(data / 'vocab' / 'tokenizer.json', tmp_path / 'bart')

  def start_of(adapter, workdir=None):
    file = write(data, tmp_path, adapter=adapter, model={'from': str(tmp_path / 'bart')}).removeprefix('--config=')
    found = expand(config.load(file), [], workdir and RunFolder.at(workdir))[0]['adapter']
    return found.get('inner', found).get('start')

  followed = role if role in ('eos', 'bos') else None
  assert start_of({'name': 'sequence'}) == start_of({'name': 'sequence', 'start': None}) == followed
  assert start_of({'name': 'sequence', 'start': 'pad'}) == 'pad'
  assert start_of({'name': 'lora', 'inner': {'name': 'prompt'}}) == followed
  (tmp_path / 'run').mkdir()  # a run that began without it resumes without it
  runs.write_config(tmp_path / 'run' / 'config.json', {'model': {}, 'adapter': {'name': 'sequence', 'start': None}})
  assert start_of({'name': 'sequence'}, tmp_path / 'run') is None


MISTAKES = {
  'nowhere': ([], 'there is no such folder: name a run, a converted checkpoint'),
  'empty': ([], 'has no model: name a run, a converted checkpoint'),
  'strange': ([], r"model_type 'brt' in config\.json.*'bert'"),
  'pickled': ([], 'pytorch_model.bin is a pickle of PyTorch: `plm-jax convert import'),
  'torn': ([], 'config.json cannot be read'),
  'bare': ([], 'the folder has no tokenizer: name one with --config.vocab.path'),
  'fine': (['--config.optim.rat=1'], r'optim\.rat: did you mean optim\.rate'),
  'fine ': (['--config.data.length=0'], 'data.length'),
}


@pytest.fixture(scope='module')
def folders(data, release, tmp_path_factory):
  root = tmp_path_factory.mktemp('folders')
  files = {
    'empty': {},
    'strange': {'config.json': '{"model_type": "brt"}', 'model.safetensors': ''},
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
from plm_jax.commands import train
from plm_jax.cli import command
print([command.run(lambda: train.main(words)) for words in {lists!r}], 'jax' in sys.modules)
"""
  done = subprocess.run([sys.executable, '-c', code], cwd=conftest.ROOT, capture_output=True, text=True, timeout=120)
  assert done.stdout.split('\n')[-2] == f'{[command.WRONG_USAGE] * len(MISTAKES)} False', done.stderr
  assert len(done.stderr.strip().split('\n')) == len(MISTAKES)


def test_every_kind_of_release_is_known_without_jax():
  """Its model_type stands in the source of its file; read as a literal."""
  from plm_jax.weights import table

  for architecture in table.architectures():
    found = signatures.literal(f'weights.architectures.{architecture.name}', 'MODEL_TYPES')
    assert found == architecture.module.MODEL_TYPES and found


def test_another_name_is_refused(data, release, tmp_path):
  with pytest.raises(ConfigError, match=r"is a 'bert', and model.name='gpt': leave the name out"):
    resolved(data, tmp_path, model={'from': str(release), 'name': 'gpt'})


# Every family.


class Family(NamedTuple):
  """A run to start from: its model and what trained it.

  Attributes:
    model: a file of `models/`.
    variant: of it.
    objective: block of the config.
    published: whether Hugging Face has a form for the trunk, so that there are imports of it.
    overrides: beside the sizes.
  """

  model: str
  variant: str
  objective: dict[str, Any]
  published: bool = True
  overrides: dict[str, Any] = {}


def rtd(model: str, variant: str, sharing: str, **generator: Any) -> dict[str, Any]:
  second = {'name': model, 'variant': variant, 'overrides': {**tiny.SIZES, **generator}}
  return {'name': 'rtd', 'sharing': sharing, 'generator': second}


MLM, LM = {'name': 'mlm'}, {'name': 'causal_lm'}
SEQ2SEQ = {
  'name': 'denoise_seq2seq', 'where': {'name': 'poisson_spans'}, 'edit': {'name': 'collapse_to_mask'},
  'target': 'text', 'start': 'eos',
}  # fmt: skip
FAMILIES = {
  'bert': Family('bert', 'bert-base', MLM),
  'roberta': Family('bert', 'roberta-base', MLM),
  'distilbert': Family('bert', 'distilbert-base', MLM),
  'electra': Family('bert', 'electra-small', rtd('bert', 'electra-small-generator', 'embeddings')),
  'electra apart': Family('bert', 'electra-small', rtd('bert', 'electra-small-generator', 'none')),
  'electra tokens': Family('bert', 'electra-small', rtd('bert', 'electra-small-generator', 'tokens')),
  'albert': Family('albert', 'albert-base-v2', MLM),
  'deberta': Family('deberta', 'deberta-base', {'name': 'emd_mlm'}),
  'deberta-v2': Family('deberta', 'deberta-v2-xlarge', {'name': 'emd_mlm'}),
  'deberta-v3': Family(
    'deberta', 'deberta-v3-base', rtd('deberta', 'deberta-v3-base', 'gradient_disentangled', num_layers=3)
  ),
  'xlnet': Family('xlnet', 'xlnet-base', {'name': 'permutation_lm'}),
  'cnn': Family('cnn', 'tiny', MLM, published=False),
  'lstm': Family('lstm', 'tiny', MLM, published=False),
  'awd_lstm': Family('awd_lstm', 'tiny', LM, published=False),
  'gpt': Family('gpt', 'gpt', LM, overrides={'mlp_dim': 128}),
  'gpt2': Family('gpt', 'gpt2', LM),
  'llama': Family('llama', 'tiny', LM),
  'mistral': Family('llama', 'tiny', LM, overrides={'window': 8}),
  'palm': Family('palm', 'tiny', LM, published=False),
  'glm': Family('glm', 'tiny', {'name': 'blank_infilling'}, published=False),
  't5': Family('t5', 't5-small', SEQ2SEQ),
  't5-v1_1': Family('t5', 't5-v1_1-small', SEQ2SEQ),
  'bart': Family('bart', 'bart-base', SEQ2SEQ, overrides={'max_length': 40}),  # a row gets an end token
}
QUICK = ('bert', 'electra', 'deberta-v3')
EVERY = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in FAMILIES]


def filled(task: Task, spec: Any, *, seed: int) -> dict[str, Any]:
  """Parameters of a task, every leaf drawn."""
  draw = np.random.default_rng(seed)
  shapes = flat(nn.unbox(abstract_params(task, spec)))
  return nested({path: jnp.asarray(draw.normal(size=leaf.shape).astype(np.float32)) for path, leaf in shapes.items()})


@pytest.fixture(scope='module', params=EVERY)
def family_run(request, data, tmp_path_factory):
  """(family, the folder of a run of it, the config of the run)."""
  family = FAMILIES[request.param]
  known = {
    field.name for field in dataclasses.fields(build.import_file(f'models.{family.model}').CONFIGS[family.variant])
  }
  sizes = {name: size for name, size in {**tiny.SIZES, **family.overrides}.items() if name in known}
  model = {'name': family.model, 'variant': family.variant, 'overrides': sizes}
  plain = runs.settings('mlm', data)
  settings = {**plain, 'model': model, 'objective': family.objective, 'best': None}
  made = make_parts(settings, make_vocab(settings))
  params = filled(made.task, batch_spec(made, settings['data']), seed=1)
  run = RunFolder(tmp_path_factory.mktemp('run'))
  with Checkpoints(run.checkpoints, keep=1) as saved:
    saved.save(1, {'params': params, 'step': np.asarray(1, np.int32)})
  runs.write_config(run.config, settings)
  shutil.copytree(data / 'vocab', run.vocab)
  return family, run.root, settings


def started(settings, folder, *, seed=2):
  """What a run of these settings starts with, from a folder by `model.from`: parameters, report."""
  written, _ = expand({key: value for key, value in settings.items() if key != 'vocab'} | {'vocab': {}},
                      [('model.from', str(folder))], None)  # fmt: skip
  made = make_parts(written, make_vocab(written))
  fresh = filled(made.task, batch_spec(made, written['data']), seed=seed)
  params, report = init_params_from(written, made, fresh)
  return {path: np.asarray(leaf) for path, leaf in flat(params).items()}, report


def trunk_of(folder):
  """The trunk alone, as `weights.load` gives it."""
  return {path: np.asarray(leaf) for path, leaf in flat(weights.load(folder, step='newest')[1]).items()}


def check_trunk(found, expected):
  """The trunk that a run starts with is that of the folder; where it keeps a leaf as a sum, so is the sum."""
  for path, (first, second) in weights.SUMS.items():
    if second in found:
      found = {**found, path: found[first] + found[second]}
  trunk = {path.removeprefix('trunk/'): leaf for path, leaf in found.items() if path.startswith('trunk/')}
  new = {path for path in trunk if path.startswith('pooler/')} - expected.keys()  # pre-training has not made it
  assert trunk.keys() - new <= expected.keys() and len(trunk) > len(new)
  for path in trunk.keys() - new:
    np.testing.assert_allclose(trunk[path], expected[path], rtol=0, atol=1e-6, err_msg=path)


def test_a_run_of_every_family_is_started_from(family_run, data):
  _, run, settings = family_run
  expected = trunk_of(run)
  labelled = runs.settings('classify', data)
  found, report = started({**labelled, 'best': None}, run)
  check_trunk(found, expected)
  assert all(path.startswith(('head/', 'trunk/pooler/')) for path in report.new), report.new
  again, report = started(settings, run)  # the same objective goes on with every parameter
  assert report.new == ()
  check_trunk(again, expected)


def test_an_import_of_every_family_is_started_from(family_run, data, tmp_path):
  family, run, settings = family_run
  if not family.published:
    pytest.skip(f'{family.model} has no published form')
  convert_export(run, tmp_path / 'theirs', step='newest')
  for folder in (tmp_path / 'theirs', tmp_path / 'ours'):
    if folder.name == 'ours':
      import_release(tmp_path / 'theirs', folder)
    expected = trunk_of(folder)
    labelled = runs.settings('classify', data)
    found, report = started({**labelled, 'best': None}, folder)
    check_trunk(found, expected)
    assert all(path.startswith(('head/', 'trunk/pooler/')) for path in report.new), report.new
    found, report = started(settings, folder)
    check_trunk(found, expected)
    assert not any(path.startswith('trunk/') for path in report.new if 'pooler' not in path), report.new
    assert 'trunk/token_embed/table' not in ' '.join(report.skipped)
