"""Sources of `init_from`: parameters that they lack train and are named; a run that is not finished is reported."""

import json

import pytest

from plm_jax import config
from plm_jax.cli import logs
from plm_jax.commands import convert
from plm_jax.io.run_paths import RunFolder
from plm_jax.studies.tables import run_folders
from plm_jax.training import loop
from tests import runs

pytestmark = pytest.mark.turns

NEW = ['trunk/pooler/bias', 'trunk/pooler/kernel']


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  return runs.write_data(tmp_path_factory.mktemp('data'))


@pytest.fixture(scope='module')
def mlm(data):
  """A masked language model, which has no pooler."""
  settings = runs.settings('mlm', data, steps=2, eval_every=2, model={'overrides': {**runs.SIZES, 'init_std': 0.2}})
  assert loop.train(settings, data / 'mlm').exit_code == 0
  return data / 'mlm'


def tuning(data, source, adapter, **changes):
  settings = runs.settings('classify', data, steps=2, save_every=1, eval_every=2, init_from=({'source': str(source)},))
  return config.resolve({**settings, 'adapter': adapter, 'best': None, 'keep': 2, **changes})


@pytest.mark.parametrize('name', ['lora', 'prefix', 'bottleneck'])
def test_what_the_source_lacks_trains_and_is_named(name, data, mlm, caplog):
  adapter = {'name': name, 'inner': {'name': 'classify', 'classes': 2}}
  settings, run = tuning(data, mlm, adapter), data / name
  with runs.logging_on(), caplog.at_level('WARNING'):
    assert loop.train(settings, run, stop_at=1).exit_code == 0
    assert loop.train(settings, run).exit_code == 0  # a resumed run keeps what it found
  assert json.loads((run / 'config.json').read_text())['adapter']['trained'][-2:] == NEW
  assert f'init_from has no {", ".join(NEW)}' in caplog.text
  first, last = (runs.params_of(runs.saved_state(run, step=step), 'params/trunk') for step in (1, 2))
  changed = {path.removeprefix('params/') for path in runs.differing(first, last)}
  assert {path for path in changed if 'norm' not in path} == set(NEW)


def test_a_source_that_has_everything_adds_nothing(data, mlm):
  whole = data / 'whole'
  assert loop.train(tuning(data, mlm, {'name': 'classify', 'classes': 2}), whole).exit_code == 0
  run = data / 'over_whole'
  adapter = {'name': 'lora', 'inner': {'name': 'classify', 'classes': 2}}
  assert loop.train(tuning(data, whole, adapter), run).exit_code == 0
  assert json.loads((run / 'config.json').read_text())['adapter']['trained'] == ['(?!trunk/).*']


@pytest.mark.parametrize(
  'entry, multiple',
  [
    ({'resize': 'new_rows'}, 1),
    ({'resize': 'mean_rows'}, 1),
    ({'resize': 'same_tokens'}, 1),
    ({}, 64),  # the rows that pad the source's table are those of the new tokens
  ],
)
def test_the_table_of_new_tokens_trains_and_is_named(entry, multiple, data, caplog):
  source, run = data / f'padded_{multiple}', data / f'tokens_{entry.get("resize")}'
  model = {'overrides': {**runs.SIZES, 'vocab_multiple': multiple}}
  if not source.exists():
    assert loop.train(runs.settings('mlm', data, steps=2, eval_every=2, model=model), source).exit_code == 0
  vocab = {'name': 'byte_bpe', 'path': str(data / 'vocab'), 'extra': ('<A>', '<B>')}
  adapter = {'name': 'lora', 'inner': {'name': 'classify', 'classes': 2}}
  changes = {'vocab': vocab, 'model': {'name': 'bert', 'variant': 'tiny', **model}}
  settings = tuning(data, source, adapter, init_from=({'source': str(source), **entry},), **changes)
  with caplog.at_level('WARNING'):
    assert loop.train(settings, run, stop_at=1).exit_code == 0
  assert f'init_from has no {", ".join([*NEW, "trunk/token_embed/table"])}' in caplog.text


def test_a_part_that_does_not_fit_trains(data, mlm):
  model = {'name': 'bert', 'variant': 'tiny', 'overrides': {**runs.SIZES, 'mlp_dim': 96}}
  entry = {'source': str(mlm), 'from_': 'trunk/layers', 'to': 'trunk/layers', 'fitting': True}
  adapter = {'name': 'lora', 'inner': {'name': 'classify', 'classes': 2}}
  settings = tuning(data, mlm, adapter, model=model, init_from=(entry,))
  assert loop.train(settings, data / 'unfitting', stop_at=1).exit_code == 0
  trained = json.loads((data / 'unfitting' / 'config.json').read_text())['adapter']['trained']
  assert 'trunk/layers/1/query/kernel' in trained


def test_a_new_part_that_a_config_freezes_is_named(data, mlm):
  scale = (('trunk/.*', None), ('.*', 1.0))
  settings = tuning(data, mlm, {'name': 'classify', 'classes': 2})
  settings = {**settings, 'optim': {**settings['optim'], 'scale': scale}}
  with runs.logging_on():
    assert loop.train(config.resolve(settings), data / 'frozen').exit_code == 0
  assert f'{", ".join(NEW)}: neither in init_from nor trained' in (data / 'frozen' / 'log.txt').read_text()


@pytest.mark.parametrize('step', [None, 'newest', 1])
def test_an_unfinished_source_is_reported_with_both_numbers(step, data, caplog):
  source = data / 'stopped'
  if not source.exists():
    assert loop.train(runs.settings('mlm', data, steps=3, eval_every=3), source, stop_at=1).exit_code == 0
  entry = {'source': str(source)} if step is None else {'source': str(source), 'step': step}
  settings, run = tuning(data, source, {'name': 'classify', 'classes': 2}, init_from=(entry,)), data / f'early_{step}'
  with caplog.at_level('WARNING'):
    assert loop.train(settings, run, stop_at=1).exit_code == 0
    assert loop.train(settings, run).exit_code == 0
  named = step == 1  # a step that the config names is intended
  assert caplog.text.count(f'{source} stopped at step 1 of 3') == (not named)
  expected = {} if named else {'unfinished': {str(source): [1, 3]}}
  assert {**json.loads((run / 'data.json').read_text()), **expected} == json.loads((run / 'data.json').read_text())
  assert bool(run_folders.begun_too_soon(RunFolder.at(run))) == (not named)


@pytest.mark.parametrize('form', ['release', 'own'])
def test_the_export_of_an_unfinished_run_is_warned_about(form, data, mlm, tmp_path, caplog, monkeypatch):
  monkeypatch.setattr(logs, 'start', lambda: None)  # the log stays one that caplog reads
  source = data / 'stopped'
  if not source.exists():
    assert loop.train(runs.settings('mlm', data, steps=3, eval_every=3), source, stop_at=1).exit_code == 0
  for number, words in enumerate(([str(mlm)], [str(source), '--step=newest'], [str(source), '--step=1'])):
    assert convert.main(['export', words[0], str(tmp_path / str(number)), f'--form={form}', *words[1:]]) == 0
  assert caplog.text.count('stopped at step') == 1 and f'{source} stopped at step 1 of 3' in caplog.text


def test_a_source_that_stopped_early_or_is_finished_is_not_reported(data, mlm, caplog):
  early = data / 'early'
  assert loop.train(
    runs.settings('mlm', data, steps=4, eval_every=1, save_every=1, early_stop=1, optim={'rate': 9.0}), early
  )
  for source in (mlm, early):
    assert (
      loop.train(tuning(data, source, {'name': 'classify', 'classes': 2}), data / f'of_{source.name}').exit_code == 0
    )
  assert 'stopped at step' not in caplog.text
