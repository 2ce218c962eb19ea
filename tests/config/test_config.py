"""Configs: defaults, overrides, the round trip through JSON, resuming, and the command line, all without jax."""

import json
import os
import pathlib
import shlex
import subprocess
import sys
import time
from typing import Literal

import pytest

from plm_jax import config
from plm_jax.cli import command
from plm_jax.config import consistency, overrides
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from tests import fakes

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILE = """
from experiments import common


def get_config(arg=''):
  if arg not in ('', 'quick'):
    raise ValueError(f'no argument {arg!r}')
  return common.start(3 if arg else 5)
"""
COMMON = """
from ml_collections import ConfigDict


def start(steps):
  c = ConfigDict()
  c.steps = steps
  c.vocab = dict(name='pieces', path='here')
  c.model = dict(name='small', variant='tiny')
  c.objective = dict(name='masked')
  c.data = dict(name='stream', path='there', length=8, batch_size=4, per_class=2, fields=('a', 'b'))
  c.optim = dict(rate=1, decay=(('.*', 0.1),))
  c.eval = dict(validation=dict(data=dict(split='validation')))
  c.best = ('validation/loss', 'min')
  return c
"""
# the driver stands for a command: it says what it got, and whether jax was loaded on the way
DRIVER = """
import json, sys
sys.path.insert(0, {root!r})
import pathlib
from plm_jax.cli import command
from plm_jax.config import signatures
signatures.ROOT = pathlib.Path({package!r})

def main():
  parser = command.command('train', 'Trains.')
  parser.add_argument('--stop_at', type=int)
  arguments, settings = command.parse(parser)
  print(json.dumps(dict(settings=settings, stop_at=arguments.stop_at)))

code = command.run(main)
assert not {{'jax', 'numpy', 'flax'}} & set(sys.modules), 'a heavy library was loaded'
sys.exit(code)
"""


def base():
  return {
    'steps': 5,
    'vocab': {'name': 'pieces', 'path': 'here'},
    'model': {'name': 'small', 'variant': 'tiny'},
    'objective': {'name': 'masked'},
    'data': {'name': 'stream', 'path': 'there', 'length': 8, 'batch_size': 4},
    'optim': {'rate': 0.1},
  }


@pytest.fixture(autouse=True)
def package(monkeypatch, tmp_path):
  return fakes.use(monkeypatch, tmp_path)


@pytest.fixture
def file(tmp_path):
  folder = tmp_path / 'repository' / 'experiments' / 'paper'
  folder.mkdir(parents=True)
  (folder.parent / 'common.py').write_text(COMMON)
  (folder / 'base.py').write_text(FILE)
  return folder / 'base.py'


def changed(*changes, start=None):
  values, remarks = overrides.apply(start or base(), changes)
  return config.resolve(values), remarks


def message(call, *arguments):
  with pytest.raises(ConfigError) as caught:
    call(*arguments)
  return str(caught.value)


# Reading and completing.


def test_a_file_is_run_from_any_folder_and_takes_an_argument(file, monkeypatch, tmp_path):
  assert config.load(str(file))['steps'] == 5
  assert config.load(f'{file}:quick')['steps'] == 3
  monkeypatch.chdir(tmp_path)
  assert config.load('repository/experiments/paper/base.py')['steps'] == 5
  assert str(file.parent.parent.parent) not in sys.path


def test_every_default_is_filled_in():
  values = config.resolve(base())
  assert values['objective'] == {
    'name': 'masked',
    'where': {'name': 'fixed_count', 'rate': 0.15, 'max_count': None},
    'edit': None,
    'masking': 'dynamic',
    'copies': 10,
  }
  assert values['execution'] == {'dtype': 'float32', 'remat': 'none'}
  assert values['sharding'] == {'mesh': {'data': -1}, 'rules': 'data'}
  optim = {'rate': 0.1, 'name': 'adamw', 'schedule': 'linear', 'warmup': 0, 'decay': 0.0, 'clip': None, 'b1': 0.9}
  assert values['optim'] == optim
  assert values['adapter'] is None
  assert values['log'] == ['tensorboard']
  assert 'vocab_size' not in values['model']
  assert not {'seed', 'host', 'hosts', 'vocab'} & set(values['data'])


def test_an_evaluation_takes_over_the_training_data_but_not_its_part(file):
  values = config.resolve(config.load(str(file)))
  data = values['eval']['validation']['data']
  assert data == {**values['data'], 'split': 'validation', 'per_class': None}
  values, _ = changed(('data.length', '16'), start=config.load(str(file)))
  assert values['eval']['validation']['data']['length'] == 16


def test_an_evaluation_on_another_source_inherits_nothing():
  values = base() | {'eval': {'other': {'data': {'name': 'else'}}}}
  assert 'else' in message(config.resolve, values)


def test_json_gives_the_same_run(file, tmp_path):
  values = config.resolve(config.load(str(file)))
  (tmp_path / 'config.json').write_text(json.dumps(values))
  again = config.resolve(config.load(str(tmp_path / 'config.json')))
  assert again == values
  assert list(again) == list(values)
  assert config.load(str(tmp_path)) == values
  assert values['data']['fields'] == ['a', 'b']
  assert values['best'] == ['validation/loss', 'min']


@pytest.mark.parametrize(
  ('change', 'words'),
  [
    ({'modell': {}}, ['unknown key modell', 'mean model?']),
    ({'model': {'name': 'smal', 'variant': 'x'}}, ['model.name', "mean 'small'"]),
    ({'model': {'name': 'small', 'variant': 'tinny'}}, ['model.variant', "mean 'tiny'", 'small-base']),
    ({'model': {'name': 'small'}}, ['missing key model.variant']),
    (
      {'model': {'name': 'small', 'variant': 'tiny', 'overrides': {'dropuot': 0}}},
      ['model.overrides.dropuot', 'mean model.overrides.dropout'],
    ),
    ({'model': {'name': 'small', 'variant': 'tiny', 'vocab_size': 9}}, ['model.vocab_size', 'vocab.path']),
    ({'model': 'small'}, ['model: expected block']),
    ({'objective': {'name': 'masked', 'where': {'rate': 0.1}}}, ['missing key objective.where.name', 'iid']),
    (
      {'objective': {'name': 'masked', 'edit': {'name': 'mixed', 'mask_id': 3}}},
      ['objective.edit.mask_id', 'objective.edit.mask?'],
    ),
    ({'objective': {'name': 'masked', 'masking': 'static '}}, ['objective.masking: expected Literal']),
    ({'objective': None}, ['give objective or adapter; neither']),
    ({'adapter': {'name': 'classify'}}, ['give objective or adapter; both']),
    ({'epochs': 2}, ['give steps or epochs; both']),
    ({'steps': None}, ['give steps or epochs; neither']),
    ({'steps': 0}, ['steps: expected int (1 <= x', 'got int 0']),
    ({'steps': 2.5}, ['steps: expected int (1 <= x', 'got float']),
    ({'optim': {'rate': 1, 'name': 'adamm'}}, ['optim.name', "mean 'adamw'"]),
    ({'optim': {'rate': 1, 'schedule': 'lin'}}, ['optim.schedule', "'linear'"]),
    ({'optim': {'rate': 1, 'decay': [['.*']], 'params': 1}}, ['optim.params']),
    ({'optim': {'rate': 1, 'floor': 0.1}}, ['optim.floor', "schedule='cosine'", 'b1']),
    ({'optim': {'rate': 1, 'b1': None}}, ['optim.b1: expected float']),
    ({'sharding': {'rules': 'fsdpp'}}, ['sharding.rules', "mean 'fsdp'"]),
    (
      {'eval': {'validation': {'data': {'splitt': 'x'}}}},
      ['eval.validation.data.splitt', 'mean eval.validation.data.split?'],
    ),
    ({'best': ('valid/loss', 'min')}, ['best']),
    ({'early_stop': 3}, ['early_stop: needs best']),
    ({'init_from': [{'source': 'x', 'form_': 'trunk'}]}, ['init_from.0.form_', 'mean init_from.0.from_?']),
    ({'seed': {1, 2}}, ['seed', 'not {1, 2}']),
    ({'optim': {'rate': float('inf')}}, ['optim.rate', 'finite', 'not inf']),
    ({'eval': {'validation': {'data': {}, 'every': 0}}}, ['eval.validation.every: expected int (1 <= x)']),
  ],
)
def test_a_mistake_in_a_config_is_named(change, words):
  text = message(config.resolve, base() | change)
  for word in words:
    assert word in text


@pytest.mark.parametrize(
  ('text', 'words'),
  [
    ('def get_config(arg=""):\n  return {\n', ['base.py, line 2']),
    ('import nothing_of_that_name\n', ['line 1', 'ModuleNotFoundError', 'nothing_of_that_name']),
    ('def get_config(arg=""):\n  raise ValueError("no such size")\n', ['line 2: no such size']),
    ('def config():\n  return {}\n', ['get_config']),
  ],
)
def test_a_broken_file_is_one_message_with_its_line(file, text, words):
  file.write_text(text)
  told = message(config.load, str(file))
  for word in words:
    assert word in told


def test_what_is_no_config_is_refused(tmp_path):
  assert 'there is no file' in message(config.load, str(tmp_path / 'nothing.py'))
  (tmp_path / 'itself.py').write_text("def get_config(arg=''):\n  d = {}\n  d['a'] = d\n  return d\n")
  assert 'contains itself' in message(config.load, str(tmp_path / 'itself.py'))
  (tmp_path / 'config.json').write_text('{"steps": ')
  assert 'not JSON' in message(config.load, str(tmp_path))
  (tmp_path / 'config.json').write_text('[]')
  assert 'a config is an object' in message(config.load, str(tmp_path))
  (tmp_path / 'config.yaml').write_text('')
  assert 'a config is a .py file' in message(config.load, str(tmp_path / 'config.yaml'))


# Overrides.


@pytest.mark.parametrize(
  ('key', 'text', 'value'),
  [
    ('optim.rate', '1e-4', 1e-4),
    ('optim.rate', '1', 1.0),
    ('optim.clip', '0.5', 0.5),
    ('optim.decay', "[('.*', 0.1)]", [['.*', 0.1]]),
    ('optim.warmup', '0.1', 0.1),
    ('optim.warmup', '4', 4),
    ('steps', '1_000', 1000),
    ('execution.remat', 'none', 'none'),
    ('accumulate', '4', 4),
    ('sharding.mesh.model', '2', 2),
    ('sharding.rules', 'fsdp', 'fsdp'),
    ('model.overrides.hidden_dim', '64', 64),
    ('model.overrides.window', 'None', None),
    ('model.overrides', '{"hidden_dim": 8, "window": null}', {'hidden_dim': 8, 'window': None}),
    ('model.variant', 'small-base', 'small-base'),
    ('objective.where.rate', '0.3', 0.3),
    ('objective.where.max_count', 'none', None),
    ('objective.where.name', 'iid', 'iid'),
    ('objective.edit.name', 'mixed', 'mixed'),
    ('objective.masking', 'static', 'static'),
    ('data.path', '123', '123'),
    ('data.cache', 'none', 'none'),
    ('data.fields', "('a', 'b')", ['a', 'b']),
    ('vocab.extra', "['[X]']", ['[X]']),
    ('init_from', "[{'source': 'x'}]", None),
    ('init_from', "(dict(source='x'),)", None),  # as in a config
    ('best', 'NONE', None),
    ('log', '()', []),
    ('log', "['wandb']", ['wandb']),
  ],
)
def test_one_key_is_changed(key, text, value):
  values, _ = changed((key, text))
  for part in key.split('.'):
    values = values[part]
  if key == 'init_from':
    assert values[0]['source'] == 'x' and values[0]['to'] == 'trunk'
  else:
    assert values == value
    assert type(values) is type(value)


def test_parts_of_lists_and_evaluations_are_changed():
  start = base() | {'init_from': ({'source': 'x'},), 'eval': {'validation': {'data': {'split': 'validation'}}}}
  changes = [('init_from.0.step', 'best'), ('eval.validation.data.length', '99'), ('eval.validation.every', '3')]
  values, _ = changed(*changes, start=start)
  assert values['init_from'][0]['step'] == 'best'
  assert values['eval']['validation']['data']['length'] == 99
  assert values['data']['length'] == 8
  assert values['eval']['validation']['every'] == 3
  assert 'step' not in start['init_from'][0]


def test_none_removes_a_block():
  names = [('objective', 'none'), ('adapter.name', 'classify'), ('data.name', 'labelled')]
  values, _ = changed(*names, ('adapter.classes', '3'))
  assert values['objective'] is None
  assert values['adapter'] == {'name': 'classify', 'classes': 3, 'layers': [], 'frozen': False}


def test_a_name_is_changed_before_its_keywords_and_drops_those_that_are_foreign():
  start = base() | {'objective': {'name': 'masked', 'where': {'name': 'fixed_count', 'max_count': 20, 'rate': 0.2}}}
  values, remarks = changed(('objective.where.rate', '0.5'), ('objective.where.name', 'iid'), start=start)
  assert values['objective']['where'] == {'name': 'iid', 'rate': 0.5}
  assert remarks == ["objective.where: max_count of 'fixed_count' is dropped, 'iid' does not take it"]


@pytest.mark.parametrize(
  ('key', 'text', 'words'),
  [
    ('optim.rat', '1', ['optim.rat', 'mean optim.rate?']),
    ('optim.rate', 'fast', ["optim.rate: expected float, got 'fast'"]),
    ('optim.rate', 'none', ['expected float']),
    ('optm.rate', '1', ['optm', 'mean optim?']),
    ('objective.where.ratio', '1', ['objective.where.ratio', 'mean objective.where.rate?']),
    ('objective.edit.mask', '0.5', ['missing key objective.edit.name', 'mixed']),
    ('objective.where.name', 'idd', ["mean 'iid'"]),
    ('eval.validaton.data.length', '3', ['eval', "'validaton'", "mean 'validation'"]),
    ('init_from.1.step', '3', ['init_from', "'1'"]),
    ('seed.first', '3', ['seed is a single value (int', "no key 'first'"]),
    ('steps', '2.5', ['steps: expected int (1 <= x', "got '2.5'"]),
    ('model.overrides.layers', '3', ['model.overrides', 'hidden_dim']),
    ('execution.remat', 'some', ["expected Literal['none', 'dots', 'full']"]),
    ('data.host', '1', ['data']),
    ('init_from.0.step', 'last', ["expected int | Literal['newest', 'best'] | None, got 'last'"]),
  ],
)
def test_a_mistake_in_an_override_is_named(key, text, words):
  start = base() | {'init_from': [{'source': 'x'}], 'eval': {'validation': {'data': {}}}}
  told = message(overrides.apply, start, [(key, text)])
  for word in words:
    assert word in told


@pytest.mark.parametrize(
  ('key', 'text', 'words'),
  [
    ('spikes', '6', ['deviations, memory', '--config.spikes.deviations=6.']),
    ('spikes', '200', ['--config.spikes.deviations=200.']),
    ('spikes', 'true', ['most', '--config.spikes.deviations=6.0.']),
    ('execution', 'bfloat16', ['--config.execution.dtype=bfloat16.', 'remat']),
    ('sharding', 'fsdp', ['--config.sharding.rules=fsdp.']),
    ('optim', 'cosine', ['--config.optim.schedule=cosine.', 'name, schedule']),
    ('optim', '3', ['--config.optim.rate=3.']),
    ('model', 'tiny', ['--config.model.variant=tiny.']),
    ('model.overrides', '0.5', ['--config.model.overrides.dropout=0.5.', 'hidden_dim']),
    ('objective.where', 'iid', ['--config.objective.where.name=iid.', 'max_count']),
    ('objective.edit', 'mixd', ['--config.objective.edit.name=mixed.', 'to_mask, mixed']),
    ('adapter', '7', ['--config.adapter.name=classify.', 'name (classify, wrap)']),
    ('eval', '9', ['--config.eval.validation.every=9.']),
    ('eval.validation', '9', ['--config.eval.validation.every=9.']),
    ('eval', 'often', ['--config.eval.validation.every=1.', 'every']),
    ('init_from', 'folder', ['--config.init_from=\'[{"source": "folder"}]\'.', 'from_']),
  ],
)
def test_a_value_where_a_block_belongs_gets_the_keys_and_a_flag_that_works(key, text, words):
  start = base() | {'eval': {'validation': {'data': {}}}}
  told = message(overrides.apply, start, [(key, text)])
  for word in [f'{key}: expected', *words]:
    assert word in told


def test_the_same_in_a_config_file():
  told = message(config.resolve, base() | {'spikes': 6})
  assert 'deviations, memory' in told and '--config.spikes.deviations=6.' in told
  assert '--config.' not in message(config.resolve, base() | {'seed': 'x'})


@pytest.mark.parametrize(
  ('key', 'text'),
  [
    ('spikes', '6'),
    ('init_from', 'folder'),
    ('init_from', "a 'b'"),
    ('init_from', "dict(source='x', step='best')"),
    ('sharding', 'fsdp'),
    ('eval', '9'),
    ('eval', 'often'),
  ],
)
def test_the_flag_of_that_message_is_taken(key, text):
  evaluation = {'eval': {'held_out': {'data': {}}}}
  told = message(overrides.apply, base() | evaluation, [(key, text)])
  [flag] = shlex.split(told.partition('as in --config.')[2].partition('. Keys')[0])
  values, _ = changed(tuple(flag.split('=', 1)), start=base() | evaluation)
  assert values[key] != config.resolve(base() | evaluation)[key]
  assert key != 'eval' or list(values['eval']) == ['held_out']  # it changes the one that is there


# Resuming.


def test_differences_are_shown_old_to_new():
  old = config.resolve(base())
  new, _ = changed(('optim.rate', '0.2'), ('vocab.extra', "['[X]']"), ('objective.where.name', 'iid'))
  assert config.differences(old, old) == []
  assert config.differences(json.loads(json.dumps(old)), old) == []
  assert config.differences(new, old) == [
    "vocab.extra: [] -> ['[X]']",
    'optim.rate: 0.1 -> 0.2',
    'objective.where.name: fixed_count -> iid',
    'objective.where.max_count: None -> not there',
  ]


def test_only_what_leaves_results_alone_may_change_on_resume():
  old = config.resolve(base())
  new, _ = changed(('execution.dtype', 'bfloat16'), ('sharding.mesh.data', '2'), ('keep', '9'), ('log_every', '1'))
  assert config.check_resume(new, old) == [
    'log_every: 100 -> 1',
    'keep: 2 -> 9',
    'sharding.mesh.data: -1 -> 2',
    'execution.dtype: float32 -> bfloat16',
  ]
  new, _ = changed(('steps', '6'), ('keep', '9'), ('data.length', '4'))
  told = message(config.check_resume, new, old)
  assert 'steps: 5 -> 6' in told
  assert 'data.length: 8 -> 4' in told
  assert 'keep: 2' not in told


def test_a_step_is_no_whole_run_on_resume():
  old, _ = changed(('optim.schedule', 'linear'), ('optim.warmup', '1'))
  new, _ = changed(('optim.schedule', 'linear'), ('optim.warmup', '1.0'))
  assert old['optim']['warmup'] == new['optim']['warmup'] == 1
  assert 'optim.warmup: 1 -> 1.0' in message(config.check_resume, new, old)
  assert config.check_resume(new, new) == []


def test_nulls_that_earlier_versions_wrote_are_left_out(tmp_path):
  new = config.resolve(base())
  old = {**new, 'optim': {**new['optim'], 'b1': None, 'adapt': None, 'floor': None, 'clip': None}}
  (tmp_path / 'config.json').write_text(json.dumps(old))
  assert config.resolve(config.load(str(tmp_path))) == new
  assert config.check_resume(new, old) == []
  lamb, _ = changed(('optim.name', 'lamb'))
  assert lamb['optim']['b1'] is None  # lamb of these tests takes None
  assert config.check_resume(lamb, {**lamb, 'optim': {**lamb['optim'], 'adapt': None, 'floor': None}}) == []
  assert 'optim.clip: 1.0 -> None' in message(config.check_resume, new, {**old, 'optim': {**old['optim'], 'clip': 1.0}})
  (tmp_path / 'config.json').write_text(json.dumps({**new, 'optim': {**new['optim'], 'flor': None}}))
  assert 'optim.flor' in message(config.resolve, config.load(str(tmp_path)))


def test_a_key_that_an_earlier_version_did_not_have_has_its_default():
  new = config.resolve(base())
  old = {**new, 'objective': {key: value for key, value in new['objective'].items() if key != 'copies'}}
  assert config.check_resume(new, old) == []
  new['objective']['copies'] = 3
  assert 'objective.copies: 10 -> 3' in message(config.check_resume, new, old)


def test_a_stage_turns_what_a_block_refuses_into_a_config_error():
  with pytest.raises(ConfigError, match=r'^data: no such split$'), errors.stage('data'):
    raise ValueError('no such split')
  with pytest.raises(ConfigError, match=r'^data\.split: no such split$'), errors.stage('data'):
    raise FileNotFoundError('data.split: no such split')
  with pytest.raises(ConfigError, match='as it is'), errors.stage('data'):
    raise ConfigError('as it is')


@pytest.mark.parametrize('kind', [TypeError, KeyError, ZeroDivisionError, AttributeError])
def test_a_stage_leaves_mistakes_in_code_as_they_are(kind):
  with pytest.raises(kind) as caught, errors.stage('data'):
    raise kind('inside')
  assert any("'data'" in note for note in caught.value.__notes__)


def test_a_literal_type_is_the_list_of_its_choices():
  errors.one_of('objective.masking', 'static', Literal['dynamic', 'static'])
  with pytest.raises(ValueError, match=r"^objective\.masking='statc'; choices are dynamic, static.*mean 'static'"):
    errors.one_of('objective.masking', 'statc', Literal['dynamic', 'static'])


# The command line.


@pytest.fixture
def call(tmp_path, package, file):
  driver = tmp_path / 'driver.py'
  driver.write_text(DRIVER.format(root=str(ROOT), package=str(package)))

  def run(*words):
    began = time.monotonic()
    # any folder but that of the repository
    done = subprocess.run(
      [sys.executable, str(driver), *words], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    seconds = time.monotonic() - began
    if 'PYTEST_XDIST_WORKER' not in os.environ:
      assert seconds < 2, f'{seconds:.2f} s'
    return done

  return run


def test_a_command_hands_over_the_resolved_config(call, file):
  done = call(f'--config={file}:quick', '--workdir', 'w', '--stop_at=2', '--config.optim.rate', '-1', '--config.seed=7')
  assert done.returncode == 0, done.stderr
  told = json.loads(done.stdout)
  assert told['stop_at'] == 2
  assert told['settings']['optim']['rate'] == -1.0
  assert told['settings']['seed'] == 7
  assert told['settings']['steps'] == 3


def test_a_run_folder_stands_for_its_config(call, file, tmp_path):
  (tmp_path / 'w').mkdir()
  (tmp_path / 'w' / 'config.json').write_text(json.dumps(config.resolve(config.load(str(file)))))
  done = call('--workdir=w')
  assert json.loads(done.stdout)['settings'] == config.resolve(config.load(str(file)))


def test_print_config_and_help_and_list_end_with_0(call, file):
  done = call(f'--config={file}', '--print_config', '--config.seed=7')
  assert done.returncode == 0
  assert json.loads(done.stdout.rpartition('{"settings"')[0])['seed'] == 7
  done = call('--help')
  assert done.returncode == 0
  assert '--stop_at' in done.stdout and '--config' in done.stdout
  done = call('--list')
  assert done.returncode == 0
  for word in (
    'small',
    'Small: an encoder',
    '2018',
    'small-base',
    'fixed_count',
    'So many tokens.',
    'adapters: classify',
  ):
    assert word in done.stdout


@pytest.mark.parametrize(
  ('words', 'told'),
  [
    (['--config=nothing.py', '--workdir=w'], 'there is no file nothing.py'),
    (['--config={file}:quik', '--workdir=w'], "no argument 'quik'"),
    (['--config={file}', '--config.optim.rat=1', '--workdir=w'], 'mean optim.rate'),
    (['--config={file}', '--config.optim.rate=fast', '--workdir=w'], 'expected float'),
    (['--config={file}', '--config.optim.rate', '--workdir=w'], '--config.optim.rate needs a value'),
    (['--config={file}', '--wrkdir=w'], "Did you mean '--workdir'?"),
    (['--config={file}', '--stop_at=soon', '--workdir=w'], 'invalid int value'),
    (['--config={file}'], 'needs --workdir=DIR'),
    (['--workdir=w'], '--workdir=w: there is no such folder; name the folder of a run, or --config=FILE as well'),
  ],
)
def test_a_mistake_ends_with_2_and_one_message(call, file, words, told):
  done = call(*[word.format(file=file) for word in words])
  assert done.returncode == 2
  assert told in done.stderr
  assert 'Traceback' not in done.stderr
  assert done.stdout == ''


def test_an_interruption_is_no_traceback(capsys):
  def main():
    raise KeyboardInterrupt

  assert command.run(main) == 130
  assert capsys.readouterr().err == 'interrupted\n'


@pytest.mark.turns
def test_a_reader_of_a_listing_may_leave_early(tmp_path, package):
  (tmp_path / 'driver.py').write_text(DRIVER.format(root=str(ROOT), package=str(package)))
  lines = '\n'.join(f'def noise_{number}(key): ...' for number in range(5000))
  (package / 'noise' / 'where' / 'long.py').write_text(lines)
  words = f'{shlex.join([sys.executable, str(tmp_path / "driver.py")])} --list | head -n 1; exit ${{PIPESTATUS[0]}}'
  done = subprocess.run(['bash', '-c', words], capture_output=True, text=True, check=False)
  assert done.stderr == ''
  assert done.stdout == 'Models\n'
  assert done.returncode == 0


def test_suggestions_fall_back_on_parts_of_words():
  assert errors.suggest('lin', ['linear', 'cosine']) == " Did you mean 'linear'?"
  assert errors.suggest('xyz', ['linear', 'cosine']) == ''


@pytest.mark.parametrize(
  ('optim', 'said'),
  [
    ({'until': 1}, r'optim\.until=1: the decay ends at step 1 of 100'),
    ({'until': 0.1, 'warmup': 0.2}, r'optim\.until=0\.1: the decay ends at step 10 of 100, and the warmup at 20'),
    ({'until': 20, 'warmup': 20}, r'optim\.until=20'),
  ],
)
def test_a_decay_that_ends_before_the_warmup_is_refused(optim, said):
  with pytest.raises(ConfigError, match=said):
    consistency.check_stretches(optim, 100)
  for sound in (
    {'until': 1.0, 'warmup': 1.0},
    {'until': 0.5, 'warmup': 0.2},
    {'until': 1.0},
    {'until': 90, 'warmup': 9},
    {'until': 0.1, 'warmup': 0.2, 'floor': 0.05},
  ):
    consistency.check_stretches(sound, 100)
  for steps in (1, 2, 3):  # a smoke test of a config
    consistency.check_stretches({'until': 0.8}, steps)
  with pytest.raises(ConfigError, match='the decay ends at step 0 of 5, and the warmup at 1'):
    consistency.check_stretches({'until': 0.1, 'warmup': 1}, 5)
