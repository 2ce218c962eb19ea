"""The same probe on each layer of a trunk: what a run of it is, the table, the picture, what is refused."""

import json

import numpy as np
import pytest

from plm_jax.adapters import classify
from plm_jax.commands import probe
from plm_jax.core.errors import ConfigError
from plm_jax.io.run_paths import RunFolder
from plm_jax.models import bert
from plm_jax.studies import probe as study
from plm_jax.training import loop
from tests import runs

pytestmark = pytest.mark.turns


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  return runs.write_data(tmp_path_factory.mktemp('data'))


def settings(data, **changes):
  return runs.settings(
    'classify', data, best=('validation/accuracy', 'max'), **{'steps': 6, 'init_from': (), **changes}
  )


def flags(data, folder, *more):
  config = runs.write_config(folder / 'config.json', settings(data))
  return [f'--config={config}', f'--workdir={folder / "probe"}', *more]


def test_each_layer_has_a_run_of_its_own_in_one_table(data, tmp_path, capsys):
  words = flags(data, tmp_path)
  assert probe.main(words) == 0
  printed = capsys.readouterr().out
  table = json.loads((tmp_path / 'probe' / 'table.json').read_text())
  assert [row['layer'] for row in table['rows']] == [0, 1, 2, 'mix']  # two layers above the embeddings
  assert (table['metric'], table['best']) == ('validation/accuracy', 'max')
  for row in table['rows']:
    for seed, score in enumerate(row['scores']):
      run = RunFolder(tmp_path / 'probe' / f'layer_{row["layer"]}_seed_{seed}')
      made, result = (json.loads(file.read_text()) for file in (run.config, run.result))
      assert (made['seed'], made['adapter']['frozen'], score) == (seed, True, result['metrics']['validation/accuracy'])
      assert made['adapter']['layers'] == {0: [0], 1: [1], 2: [-1], 'mix': [0, 1, -1]}[row['layer']]
    assert f'{row["mean"]:.4f}' in printed
  assert (tmp_path / 'probe' / 'layers.png').read_bytes().startswith(b'\x89PNG')
  before = runs.snapshot(tmp_path / 'probe' / 'layer_0_seed_0')
  beside = f'--beside={tmp_path / "probe"}'
  assert probe.main([*words, '--layers=0', beside]) == 0  # not made again
  assert runs.snapshot(tmp_path / 'probe' / 'layer_0_seed_0') == before


@pytest.mark.parametrize(('metric', 'best', 'marked'), [('loss', 'min', '0.5000'), ('accuracy', 'max', '2.0000')])
def test_the_best_layer_is_marked(metric, best, marked, capsys):
  rows = [{'layer': layer, 'scores': [mean], 'mean': mean} for layer, mean in enumerate((2.0, 0.5, 1.0))]
  study.show({'name': 'probe', 'metric': metric, 'best': best, 'seeds': 1, 'rows': rows})
  (line,) = [line for line in capsys.readouterr().out.splitlines() if '<' in line]
  assert marked in line


@pytest.mark.parametrize('name', study.ADAPTERS)
def test_a_probe_reads_its_layer_whatever_the_config_reads(name):
  of_config = {'layer': 2, 'lm_weight': 0.5} if name == 'classify' else {'layers': (2,), 'layer_weights': (1.0,)}
  adapter = {'name': name, 'frozen': False, **of_config}
  one = study.probe_of({'adapter': adapter, 'init_from': (), 'save': 'all'}, 1, seed=3, last=2)['adapter']
  assert (one['layers'], one['layer_weights'], one['frozen']) == ((1,), (), True)
  if name == 'classify':
    trunk = bert.make(vocab_size=9, variant='tiny')
    classify.make(trunk=trunk, vocab=None, **{key: value for key, value in one.items() if key != 'name'})
  else:
    assert 'layer' not in one and 'lm_weight' not in one


def test_names_with_dollars_are_shown_as_they_are(tmp_path):
  rows = [{'layer': layer, 'scores': [1.0], 'mean': 1.0} for layer in (0, 1, 'mix')]
  study.draw([{'name': '$_{$', 'metric': '$_{$/loss', 'rows': rows}], tmp_path / 'x.png')
  assert (tmp_path / 'x.png').read_bytes().startswith(b'\x89PNG')


def test_a_probe_trains_and_the_trunk_stays(data, tmp_path):
  states = []
  for name, stop in {'begun': 1, 'done': None}.items():
    one = study.probe_of(settings(data), 1, seed=3, last=2)
    assert loop.train(one, tmp_path / name, stop_at=stop).exit_code == loop.DONE
    states.append(runs.params_of(runs.saved_state(tmp_path / name)))
  begun, done = states
  moved = [path for path in done if not np.array_equal(begun[path], done[path])]
  assert moved and all(path.startswith('params/head/') for path in moved)


@pytest.mark.parametrize(
  ('words', 'said'),
  [
    (('--layers=3',), r'--layers=3\b.*\b0\b.*\b2\b'),
    (('--layers=first',), r"--layers=first\b.*'mix'"),
    (('--beside=none',), r'--beside=.*none.*table.json'),
    (('--config.best=None',), r'config\.best'),
  ],
)
def test_what_cannot_be_probed_is_refused(data, tmp_path, words, said):
  with pytest.raises(ConfigError, match=said):
    probe.main(flags(data, tmp_path, *words))
  assert not (tmp_path / 'probe').exists()


@pytest.mark.parametrize(
  'table',
  [
    [],
    {'metric': 'loss', 'rows': [{'point': {}, 'mean': 1.0}]},  # of a sweep
    {'metric': 'accuracy', 'seeds': 1, 'rows': [{'labels_per_class': 4}]},  # of sample_efficiency
    {'name': 'a', 'metric': 'loss', 'rows': [{'layer': 'first', 'scores': [1.0], 'mean': 1.0}]},
    {'name': 'a', 'metric': 'loss', 'rows': [{'layer': 0, 'scores': ['x'], 'mean': 1.0}]},
  ],
)
def test_a_table_of_something_else_is_refused_before_anything_is_trained(data, tmp_path, monkeypatch, table):
  monkeypatch.setattr(study.loop, 'train', lambda *_: 1 / 0)
  (tmp_path / 'table.json').write_text(json.dumps(table))
  with pytest.raises(ConfigError, match=r'--beside=.*table\.json'):
    study.run_study(settings(data), tmp_path / 'probe', layers=None, seeds=1, beside=[tmp_path])
