"""The command on a run: what is on disk, on the device and in the table; the run stays as it is; export."""

import gc
import json

import jax
import numpy as np
import pytest

from plm_jax import config, weights
from plm_jax.checkpoint import tensor_files
from plm_jax.commands import compress, convert
from plm_jax.compression import quantise
from plm_jax.core.errors import ConfigError
from plm_jax.io.run_paths import RunFolder
from plm_jax.studies import compression
from plm_jax.training import evaluate_saved, loop
from tests import runs

pytestmark = pytest.mark.turns

METHODS = 'int8,prune:0.5,heads_gradient:0.5,layers:0.5+int8'


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  return runs.write_data(tmp_path_factory.mktemp('data'))


def settings(data, **changes):
  return runs.settings('classify', data, best=('validation/accuracy', 'max'), **{'steps': 6, **changes})


@pytest.fixture(scope='module')
def run(data):
  assert loop.train(settings(data), data / 'run').exit_code == 0
  return data / 'run'


@pytest.fixture(scope='module')
def table(data, run):
  """The rows by method, of the whole command."""
  before = runs.snapshot(run)
  flags = [f'--workdir={run}', f'--methods={METHODS}', f'--out={data / "small"}', '--rounds=3', f'--beside={run}']
  assert compress.main(flags) == 0
  assert runs.snapshot(run) == before
  assert 'ms/example' in (data / 'small' / 'table.txt').read_text()
  return {row['method']: row for row in json.loads((data / 'small' / 'table.json').read_text())['rows']}


def arrays(folder):
  """Name -> array as it is on disk, layers by themselves."""
  found = {}
  for file in sorted(folder.glob('params-*.safetensors')):
    container = tensor_files.Container(file)
    found |= {name: container.read(name) for name in container.tensors}
  return found


def test_every_way_has_a_row_with_what_was_measured(table, run):
  assert list(table) == ['original', *METHODS.split(','), run.name]
  assert table['original']['metrics'] == table[run.name]['metrics']
  for row in table.values():
    assert row['milliseconds'] > 0 and 0 <= row['score'] <= 1 and row['memory_bytes'] > 0
  assert table['original']['ratios']['milliseconds'] == 1


def test_int8_is_what_is_stored_and_computed_with(table, data, run):
  original, row = table['original'], table['int8']
  on_disk = arrays(data / 'small' / 'int8')
  numbers = {name: array for name, array in on_disk.items() if array.dtype == np.int8}
  quantised = sum(array.size for array in numbers.values())
  scales = sum(array.nbytes for name, array in on_disk.items() if '_scale' in name)
  assert quantised > 0.7 * original['parameters']
  expected = original['memory_bytes'] - 3 * quantised + scales
  assert row['memory_bytes'] == expected  # a byte in place of four, and the scales
  assert abs(row['disk_bytes'] - original['disk_bytes'] + 3 * quantised - scales) < 4096  # headers
  assert row['parameters'] == original['parameters']
  assert max(one['largest'] for one in row['errors'].values()) <= 1 + 1e-4
  trunk, params = weights.load(data / 'small' / 'int8')
  kernel = params['layers']['query']['kernel']
  assert kernel.dtype == np.int8
  tokens = np.arange(7, 15)[None]
  given = {'tokens': tokens, 'segment_ids': np.ones_like(tokens)}
  ours = trunk.apply({'params': params}, **given)['hidden']
  float32 = jax.tree.map(np.asarray, weights.open(data / 'small' / 'int8').params.tree('trunk'))
  np.testing.assert_allclose(ours, trunk.apply({'params': float32}, **given)['hidden'], rtol=1e-4, atol=1e-5)
  true = weights.open(run).params.tree('trunk')['layers']['query']['kernel']
  scale = quantise.scales(true, (-3,))
  assert (np.abs(float32['layers']['query']['kernel'] - true) <= scale / 2 * (1 + 1e-5)).all()


def test_counts_of_what_is_pruned_are_exact(table, data):
  float32, half = arrays(data / 'small' / 'original'), arrays(data / 'small' / 'prune-0.5')
  dense = [name for name in half if name.partition('@')[0].endswith('kernel') and name.startswith('trunk/')]
  total = sum(half[name].size for name in dense)
  assert sum(int((half[name] == 0).sum()) for name in dense) == round(total / 2)
  assert all(np.array_equal(half[name], float32[name]) for name in half if name not in dense)
  for layer in range(2):  # one of the two heads of each layer
    out = arrays(data / 'small' / 'heads_gradient-0.5')[f'trunk/layers/out/kernel@{layer}']
    assert sorted(out.any(axis=(1, 2)).tolist()) == [False, True]
  assert table['prune:0.5']['nonzero'] == table['original']['nonzero'] - round(total / 2)
  assert table['prune:0.5']['ratios']['memory_bytes'] == 1


def test_memory_is_that_of_the_network_whatever_else_is_freed(table, data, run, monkeypatch):
  """Arrays that other code left in a circle are freed when Python gets to it, which may be while one is measured."""
  circle: list = [jax.numpy.ones(2**20)]
  circle.append(circle)
  place = compression.placed

  def placed_late(*given, **named):
    gc.collect()
    return place(*given, **named)

  gc.disable()
  try:
    del circle
    monkeypatch.setattr(compression, 'placed', placed_late)
    out = data / 'small-late'
    assert compress.main([f'--workdir={run}', '--methods=int8', f'--out={out}', '--rounds=1']) == 0
  finally:
    gc.enable()
  rows = {row['method']: row for row in json.loads((out / 'table.json').read_text())['rows']}
  assert {name: row['memory_bytes'] for name, row in rows.items()} == {
    name: table[name]['memory_bytes'] for name in ('original', 'int8')
  }


def test_without_layers_the_network_is_smaller(table, data):
  folder = data / 'small' / 'layers-0.5+int8'
  opened = weights.open(folder)
  assert opened.trunk().config.num_layers == 1 and opened.params['trunk/layers/query/kernel'].shape[0] == 1
  assert table['layers:0.5+int8']['parameters'] < table['original']['parameters']


def test_a_result_is_evaluated_like_any_folder(table, data):
  evaluate_saved.evaluate_folder(settings(data), data / 'small' / 'int8', folder=RunFolder.at(data / 'scored'))
  (line,) = [json.loads(line) for line in (data / 'scored' / 'evaluations.jsonl').read_text().splitlines()]
  assert line['validation/accuracy'] == table['int8']['score']


QUANTISED = 'int8,heads:0.5,heads:0.5+int8,layers:0.5,layers:0.5+int8'


@pytest.fixture(scope='module')
def quantised(data):
  """A run that trained with its weights in 8 bits: its folder, and the rows of the command by method."""
  adapter = {'name': 'quantise', 'inner': {'name': 'classify', 'classes': 2}}
  run = data / 'quantised'
  assert loop.train(config.resolve({**settings(data), 'adapter': adapter}), run).exit_code == 0
  out = data / 'small-quantised'
  assert compress.main([f'--workdir={run}', f'--methods={QUANTISED}', f'--out={out}', '--rounds=1']) == 0
  return run, {row['method']: row for row in json.loads((out / 'table.json').read_text())['rows']}


def test_int8_of_a_run_trained_in_8_bits_has_the_scales_of_the_run(quantised, data):
  run, table = quantised
  saved = weights.open(run).as_saved.arrays()
  scales = {path for path in saved if path.startswith('quantise/')}
  on_disk = arrays(data / 'small-quantised' / 'int8')
  assert len(scales) == len({name.partition('@')[0] for name in on_disk if '_scale' in name}) > 6
  for name in [
    name for name in on_disk if f'{name.partition("@")[0]}_scale' in {one.partition('@')[0] for one in on_disk}
  ]:
    path, at, layer = name.partition('@')
    own = saved[f'quantise/{path.rpartition("/")[0]}/scale'], saved[path]
    scale, weight = (one[int(layer)] for one in own) if at else own
    np.testing.assert_array_equal(on_disk[f'{path}_scale{at}{layer}'], scale)
    np.testing.assert_array_equal(on_disk[name], quantise.quantise(weight, scale))
  assert max(one['relative'] for one in table['int8']['errors'].values()) == 0


def test_int8_of_a_run_trained_in_8_bits_scores_as_its_training_did(quantised, data):
  run, table = quantised
  original, row = table['original'], table['int8']
  evaluate_saved.evaluate_run(config.resolve(config.load(str(RunFolder.at(run).config))), RunFolder.at(run))
  line = json.loads((run / 'evaluations.jsonl').read_text().splitlines()[-1])
  for found in (original, row):
    assert found['score'] == line['validation/accuracy']
    assert found['metrics']['loss'] == pytest.approx(line['validation/loss'], rel=1e-5)
  on_disk = arrays(data / 'small-quantised' / 'int8').items()
  numbers, scales = (sum(own(name, array) for name, array in on_disk) for own in (
    lambda name, array: array.size * (array.dtype == np.int8), lambda name, array: array.nbytes * ('_scale' in name)
  ))  # fmt: skip
  assert row['parameters'] == original['parameters']
  assert row['memory_bytes'] == original['memory_bytes'] - 3 * numbers + scales
  assert row['ratios']['disk_bytes'] < 0.5


@pytest.mark.parametrize('way', ['heads:0.5', 'layers:0.5'])
def test_what_is_left_of_a_run_trained_in_8_bits_keeps_its_scales(quantised, way):
  """Its weights stand on the numbers of the scales of training, and other scales would round them a second time."""
  _, table = quantised
  assert max(one['relative'] for one in table[f'{way}+int8']['errors'].values()) == 0
  for name, value in table[way]['metrics'].items():
    assert table[f'{way}+int8']['metrics'][name] == pytest.approx(value, rel=1e-5), name


def test_masks_reach_an_export_that_transformers_reads(data, run):
  torch, transformers = pytest.importorskip('torch'), pytest.importorskip('transformers')
  inner = {'name': 'classify', 'classes': 2}
  adapter = {'name': 'prune', 'sparsity': 0.8, 'end': 2, 'every': 1, 'inner': inner}
  pruned = data / 'pruned'
  changed = {**settings(data, init_from=({'source': str(run)},), steps=3), 'adapter': adapter}
  assert loop.train(config.resolve(changed), pruned).exit_code == 0
  assert convert.main(['export', str(pruned), str(data / 'exported')]) == 0
  peer = transformers.AutoModel.from_pretrained(data / 'exported').eval()
  linear = [
    value.detach().numpy() for name, value in peer.named_parameters() if value.ndim == 2 and 'embed' not in name
  ]
  zeros = sum(int((one == 0).sum()) for one in linear)
  assert zeros == round(0.8 * sum(one.size for one in linear))
  trunk, params = weights.load(pruned)
  tokens = np.arange(7, 19)[None]
  ours = trunk.apply({'params': params}, tokens=tokens, segment_ids=np.ones_like(tokens))['hidden']
  with torch.no_grad():
    theirs = peer(torch.tensor(tokens)).last_hidden_state.numpy()
  np.testing.assert_allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize(
  ('flags', 'said'),
  [
    (['--methods=prune:1.5'], r'prune:1\.5|0 and 1'),
    (['--methods=int9'], "'int9'"),
    ([], '--methods'),
    (['--methods=int8', '--evaluation=dev'], '--evaluation=dev'),
    (['--methods=int8', '--beside=nowhere'], '--beside=.*nowhere|nowhere.*run'),
    (['--methods=layers:0.1'], 'layers:0.1'),
  ],
)
def test_wrong_usage_is_named(data, run, flags, said):
  with pytest.raises(ConfigError, match=said):
    compress.main([f'--workdir={run}', f'--out={data / "wrong"}', *flags])


def test_results_never_stand_in_the_run(data, run):
  with pytest.raises(ConfigError, match=r'--out=.*small'):
    compress.main([f'--workdir={run}', '--methods=int8', f'--out={run / "small"}'])
  with pytest.raises(ConfigError, match='--out'):
    compress.main([f'--workdir={run}', '--methods=int8'])
  with pytest.raises(ConfigError, match='config'):
    compress.main([f'--workdir={data}', '--methods=int8', f'--out={data / "wrong"}'])
  with pytest.raises(ConfigError, match='evaluation'):
    compress.main(
      [f'--workdir={run}', '--methods=int8', f'--out={data / "wrong"}', '--config.eval={}', '--config.best=None']
    )
