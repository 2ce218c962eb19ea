"""Steps of runs that count epochs: as their data say, before they are made into rows."""

import json

import pytest

from plm_jax.core.errors import ConfigError
from plm_jax.io.run_paths import RunFolder
from plm_jax.studies.tables import runs
from plm_jax.studies.tables.epochs import Epochs
from plm_jax.training import parts

SIZES = {'model.overrides': dict(num_layers=2, hidden_dim=16, mlp_dim=16)}


@pytest.fixture
def pretraining(data):
  keys = {'vocab.path': str(data / 'vocab'), 'data.path': str(data / 'corpus'), 'data.text': None, **SIZES}
  return runs._run('experiments/ulmfit/pretrain.py', {**keys, 'steps': 4, 'epochs': None, 'seed': 0}, label='it')


def of_text(data, pretraining, **more):
  keys = {'data.path': str(data / 'corpus'), 'data.split': 'train', 'data.batch_size': 2, 'data.length': 8}
  keys |= {'data.text': 'text', 'init_from': (), 'eval': {}, 'best': None, 'epochs': 2.5, 'seed': 0} | more
  return runs._run('experiments/ulmfit/fine_tune.py:trec', keys, label='it', source=pretraining)


def of_rows(data, pretraining, **more):
  keys = {'data.path': str(data / 'labelled'), 'data.split': 'train[:90%]', 'data.label': 'label', 'adapter.classes': 2}
  keys |= {'data.batch_size': 3, 'eval': {}, 'best': None, 'epochs': 2, 'seed': 0} | more
  return runs._run('experiments/ulmfit/classify.py:trec', keys, label='it', source=pretraining)


def by_source(run, pretraining):
  """The steps of an epoch of the rows themselves."""
  vocab = parts.make_vocab(pretraining.settings)
  return parts.make_source(run.settings['data'], vocab, seed=0).steps_per_epoch


@pytest.mark.parametrize('kind', [of_text, of_rows])
def test_steps_are_those_of_the_rows(kind, data, pretraining, tmp_path):
  run = kind(data, pretraining, **{'data.cache': str(tmp_path)})
  steps = Epochs([run], {}).steps(run)
  assert not list(tmp_path.glob('*/*.npy')), 'a token store was made'
  assert steps == max(1, round(run.settings['epochs'] * by_source(run, pretraining)))
  assert Epochs([pretraining], {}).steps(pretraining) == 4


def test_tokens_are_estimated_from_some_documents(data, pretraining, monkeypatch):
  run, few = of_text(data, pretraining), Epochs([], {})
  monkeypatch.setattr('plm_jax.studies.tables.epochs.SAMPLE', 20)
  steps = few.steps(run)
  assert steps == pytest.approx(2.5 * by_source(run, pretraining), rel=0.2)
  assert few.estimated == {f'{data / "corpus"} (train)'}


def test_a_finished_run_says_it_of_all_runs_over_the_same_data(data, pretraining, tmp_path):
  run = of_rows(data, pretraining)
  other = of_rows(data, pretraining, seed=1, epochs=3)
  folder = RunFolder(tmp_path)
  folder.data.write_text(json.dumps({'steps_per_epoch': 1000}))
  known = Epochs([run, other], {run.digest: folder, other.digest: None})
  assert (known.steps(run), known.steps(other)) == (2000, 3000)
  assert not known.estimated


@pytest.mark.parametrize(
  ('more', 'why'),
  [
    ({'path': 'tfds:imdb_reviews'}, r'tfds:imdb_reviews.*--data=DIR'),
    ({'path': 'no/such'}, r"'no/such'"),
    ({'path': 'gs://bucket/set'}, r'gs://bucket/set'),
    ({'kind': 'spans'}, r'labelled'),
  ],
)
def test_what_is_not_here_is_not_known(data, pretraining, tmp_path, monkeypatch, more, why):
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
  run = of_rows(data, pretraining)
  block = {**run.settings['data'], 'cache': str(tmp_path), **more}
  run = run._replace(settings={**run.settings, 'data': block})
  with pytest.raises(ConfigError, match=f'epochs.*{why}'):
    Epochs([run], {}).steps(run)
