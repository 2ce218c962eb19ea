"""`save='trained'`: checkpoints without the frozen parameters, which come from `init_from` whenever a run is opened."""

import json
import pathlib
import shutil

import numpy as np
import pytest

from plm_jax import weights
from plm_jax.checkpoint import CheckpointError, frozen
from plm_jax.core.errors import ConfigError
from plm_jax.io.run_paths import RunFolder
from plm_jax.training import evaluate_saved, loop
from tests import runs

pytestmark = pytest.mark.turns

MODEL = {'name': 'gpt', 'variant': 'gpt2', 'overrides': {**runs.SIZES, 'init_std': 0.2}}


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  return runs.write_data(tmp_path_factory.mktemp('data'))


@pytest.fixture(scope='module')
def base(data):
  assert loop.train(runs.settings('causal_lm', data, steps=2, model=MODEL), data / 'base').exit_code == 0
  return data / 'base'


def settings(data, base, **changes):
  return runs.settings(
    'causal_lm',
    data,
    objective=None,
    adapter={'name': 'lora', 'rank': 4, 'inner': {'name': 'causal_lm'}},
    init_from=({'source': str(base)},),
    model=MODEL,
    **{'steps': 6, 'save_every': 2, 'eval_every': 3, **changes},
  )


@pytest.fixture(scope='module')
def whole(data, base):
  assert loop.train(settings(data, base), data / 'whole').exit_code == 0
  return data / 'whole'


@pytest.fixture(scope='module')
def part(data, base):
  """A run that was stopped on its way, and went on."""
  chosen = settings(data, base, save='trained')
  assert loop.train(chosen, data / 'part', stop_at=4).exit_code == 0
  assert loop.train(chosen, data / 'part').exit_code == 0
  return data / 'part'


def test_only_what_trains_is_saved_and_the_run_is_the_same(whole, part):
  everything, saved = runs.saved_state(whole), runs.saved_state(part)
  assert {name.split('/')[1] for name in runs.params_of(saved)} == {'lora'}
  kept = {name: leaf for name, leaf in everything.items() if not name.startswith('params/trunk/')}
  assert not runs.differing(kept, saved)
  assert runs.curve(whole) == runs.curve(part)


def test_every_door_finds_the_whole_model(whole, part, data, base):
  ours, theirs = (weights.open(run).params.arrays() for run in (part, whole))
  assert not runs.differing(ours, theirs)
  for run, save in ((whole, 'all'), (part, 'trained')):
    evaluate_saved.evaluate_run(settings(data, base, save=save), RunFolder.at(run))
  ours, theirs = (json.loads((run / 'evaluations.jsonl').read_text().splitlines()[-1]) for run in (part, whole))
  assert ours == theirs


def test_another_config_than_that_of_the_run_is_refused_with_the_flag_that_takes_its_parameters(whole, data):
  other = runs.settings('causal_lm', data, steps=2, seed=1, model=MODEL)
  with pytest.raises(
    ConfigError, match=f'saved by another config: .* --weights={whole} instead of --workdir'
  ) as caught:
    evaluate_saved.evaluate_run(other, RunFolder.at(whole))
  assert len(str(caught.value).replace(str(whole), 'runs/x')) < 300


def test_another_source_is_noticed(part, data, base, tmp_path: pathlib.Path):
  copy, source = tmp_path / 'copy', tmp_path / 'base'
  shutil.copytree(part, copy)
  shutil.copytree(base, source)
  settings_file = RunFolder.at(copy).config
  (copy / 'SHA256SUMS').unlink()
  settings_file.write_text(settings_file.read_text().replace(str(base), str(source)))
  assert weights.open(copy).params.arrays('trunk')
  shutil.rmtree(source)
  other = runs.settings('causal_lm', data, steps=2, seed=1, model=MODEL)
  assert loop.train(other, source).exit_code == 0
  with pytest.raises(
    CheckpointError, match=r'holds only what trained, and trunk/\S+ is not in the sources of init_from'
  ):
    weights.open(copy).params.arrays('trunk')
  with pytest.raises(CheckpointError, match='holds only what trained'):
    loop.train(settings(data, source, save='trained', steps=6), copy, extend=2)
  with pytest.raises(CheckpointError, match='holds only what trained'):
    _ = weights.open(part / 'checkpoints').params
  assert set(frozen.read(part / 'checkpoints')) == {
    name.removeprefix('params/') for name in runs.params_of(runs.saved_state(base), 'params/trunk')
  }


def test_a_run_that_saved_nothing_begins_anew_with_another_source(data, base, tmp_path: pathlib.Path):
  first = frozen.write
  saved = {'trunk/a': np.zeros(3)}
  first(tmp_path, saved, main=True)
  with pytest.raises(CheckpointError):
    first(tmp_path, {'trunk/a': np.ones(3)}, main=True)
  first(tmp_path, {'trunk/a': np.ones(3)}, main=True, is_new=True)
  assert frozen.read(tmp_path) != {} and first(tmp_path, {'trunk/a': np.ones(3)}, main=True) is None


def test_what_would_be_lost_is_refused(data, base):
  with pytest.raises(ConfigError, match=r"save='trained': needs init_from"):
    runs.settings('causal_lm', data, save='trained')
  with pytest.raises(ConfigError, match=r'init_from\.0\.resize makes parameters that no source has'):
    runs.settings('causal_lm', data, save='trained', init_from=({'source': str(base), 'resize': 'new_rows'},))
  entry = {'source': str(base), 'from_': 'trunk/layers', 'to': 'trunk/layers'}
  chosen = settings(data, base, save='trained') | {'init_from': [entry]}
  chosen['adapter'] = {**chosen['adapter'], 'trained': ()}  # else new parameters of the trunk train
  with pytest.raises(ConfigError, match=r"save='trained': trunk/\S+ \(\d+ in all\) neither trains nor comes from"):
    loop.train(chosen, data / 'lost')
