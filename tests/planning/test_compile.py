"""Estimates of a plan against numpy; the TPU compiler on a tiny run; the command."""

import json
import math
import os
import re
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

from plm_jax.commands import plan
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.planning import compile as compiling
from plm_jax.planning import report, stand_in, topology
from tests import conftest, runs
from tests.planning import described

SIZES = {'hidden_dim': 128, 'mlp_dim': 512, 'num_heads': 2, 'num_layers': 2, 'max_length': 32}


def settings(folder, kind: str = 'causal_lm', **changes):
  found = runs.settings(kind, folder, **changes)
  model = {**found['model'], 'overrides': {**found['model']['overrides'], **SIZES, 'vocab_multiple': 8}}
  return {**found, 'model': model}


def made_of(settings, name: str):
  place = topology.parse(name)
  return compiling.make(settings, stand_in.Words(1000), place, None), place


@pytest.mark.parametrize('rules', ['data', 'fsdp', 'fsdp_any', 'fsdp_tensor'])
def test_the_state_is_counted_as_numpy_does(data, rules):
  model = 4 if rules == 'fsdp_tensor' else 1
  block = {'mesh': {'data': -1, 'model': model}, 'rules': rules}
  changed = settings(data, sharding=block, data={'batch_size': 64})
  made, place = made_of(changed, 'v5e:4x4')
  cut = {'data': 16 // model, 'model': model}
  # by hand: d 128, f 512, v 1000, l 32, 2 layers of 2 heads of 64; weights, and two moments
  sizes = {
    (1000, 'vocab', 128, 'embed'): 1,
    (32, '', 128, 'embed'): 1,
    (2, '', 128, 'embed', 2, 'heads', 64, ''): 3,  # query, key, value
    (2, '', 2, 'heads', 64, ''): 3,
    (2, '', 2, 'heads', 64, '', 128, 'embed'): 1,
    (2, '', 128, 'embed', 512, 'mlp'): 1,
    (2, '', 512, 'mlp'): 1,
    (2, '', 512, 'mlp', 128, 'embed'): 1,
    (2, '', 128, 'embed'): 6,  # two biases of sublayers, two norms
    (128, 'embed'): 2,  # the last norm
  }
  along = {
    'data': {},
    'fsdp': {'embed': 'data'},
    'fsdp_tensor': {'embed': 'data', 'vocab': 'model', 'heads': 'model', 'mlp': 'model'},
  }
  held = 0
  for shape, count in sizes.items():
    pairs = list(zip(shape[::2], shape[1::2], strict=True))
    if rules == 'fsdp_any':
      dividing = [(size, axis) for size, axis in pairs if axis and size % 16 == 0]
      own = math.prod(size for size, _ in pairs) / (16 if dividing else 1)
    else:
      of = [(size, cut.get(along[rules].get(axis, ''), 1)) for size, axis in pairs]
      own = math.prod(size // parts if size % parts == 0 else size for size, parts in of)
    held += count * own
  counted = compiling.state(made)
  scalars = sum(one.size * one.dtype.itemsize for one in jax.tree.leaves(made.maker.abstract) if not one.shape)
  assert counted['gib'] * compiling.GIB == pytest.approx(3 * 4 * held + scalars)
  total = sum(one.size * one.dtype.itemsize for one in jax.tree.leaves(made.maker.abstract))
  assert counted['even_gib'] * compiling.GIB == pytest.approx(total / 16)
  heads = ['heads of 2 is not sharded over model=4, and computed 4 times; 4 would be'] if rules == 'fsdp_tensor' else []
  assert counted['axes'] == heads
  assert place.devices == 16


def test_hours_are_operations_by_the_peak(data):
  changed = settings(data, execution={'dtype': 'bfloat16'}, data={'batch_size': 16})
  made, place = made_of(changed, 'v5e:4x4')
  found = compiling.hours(made, changed, place)
  # a row: 2 x 12 d^2 a layer and position, 4 l d of attention, 2 d v of logits; three times
  row = 3 * 32 * (2 * (2 * 12 * 128**2 + 4 * 32 * 128) + 2 * 128 * 1000)
  assert found['tflop_per_step'] * 1e12 == pytest.approx(16 * row, rel=1e-6)
  seconds = 16 * row / (197e12 * 0.4 * 16)
  assert found['hours']['40 %'] == pytest.approx(seconds * changed['steps'] / 3600, rel=1e-6)


def test_hours_are_also_those_of_cycles_and_links(data):
  changed = settings(data, data={'batch_size': 16}, steps=None, epochs=2)
  made, place = made_of(changed, 'v5e:4x4')
  sent = {'all-reduce': {'gib': 2.0}, 'all-gather': {'gib': 1.0}, 'all-reduce between slices': {'gib': 9.0}}
  step = {'cycles': 3_000_000_000, 'collectives': sent}
  found = compiling.hours(made, changed, place, step, 16 * 32 * 1800)
  assert found['seconds_per_step']['cycles'] == 2  # 1.5 GHz
  assert found['seconds_per_step']['links'] == 5 * 2**30 / 200e9  # a sum is sent twice
  assert found['hours']['cycles'] == 2  # 2 epochs of 1,800 steps
  assert found['largest'] == 'cycles'
  assert found['lost_minutes'] == compiling.lost_minutes(changed, 2)
  faster = compiling.hours(made, changed, place, {**step, 'cycles': 3_000})
  assert faster['largest'] == 'links' and 'hours' not in faster
  unread = compiling.hours(made, changed, made_of(changed, 'v6e:4x4')[1], {'cycles': 1})
  assert unread['largest'] == '40 %' and 'links' not in unread['seconds_per_step']  # its clock is unknown


def planned(capsys, *flags: str, config: str = 'bert/base.py', root: str = '') -> str:
  assert plan.main([f'--config={root}experiments/{config}', '--topology=v5e:4x4', '--state_only', *flags]) == 0
  return capsys.readouterr().out


def test_without_a_compiler_cycles_are_the_stored_ones(monkeypatch, capsys, tmp_path):
  for name in ('JAX_PLATFORMS', 'XLA_FLAGS'):  # as the tests have them, put back afterwards
    monkeypatch.setenv(name, os.environ.get(name, ''))
  stored = json.loads((conftest.ROOT / 'experiments' / 'slices.json').read_text())['rows']['bert/base.py on v5e:4x4']
  out = planned(capsys)
  seconds, hours = stored['cycles'] / 1.5e9, stored['hours_by']['cycles']
  assert hours == round(seconds * 1e6 / 3600, 1)  # of a million steps
  cycles = "by the compiler's cycles"
  assert re.search(rf'step, ms +61\.1 at 40 %.*; {1e3 * seconds:.1f} {cycles}, 3\.\d by the bytes over the links', out)
  assert re.search(rf'hours .*; {hours} {cycles}, 1\.0 by', out)
  silent = ', '.join(f'{count} {name}' for name, count in stored['without_cycles'].items())
  assert re.search(rf'the largest is an assumption, 40 % .*; runs without cycles .* \({silent}\)', out)
  assert 'kernels' in silent and 'at least' not in out
  assert re.search(r'cycles stored in experiments/slices\.json, libtpu .*, not measured', out)
  assert f'at most {1e4 * max(seconds, 0.0611) / 60:.1f} minutes' in out  # a lost chip: 10,000 steps by the largest
  for changed in ('--config.execution.remat=full', '--slices=2'):  # another program
    assert 'cycles are unknown' in planned(capsys, changed)
  assert planned(capsys, '--config.seed=7', '--config.log_every=9') == out  # the same
  own = tmp_path / 'experiments' / 'bert' / 'base.py'  # a copy of the user's, with another program
  own.parent.mkdir(parents=True)
  own.write_text((conftest.ROOT / 'experiments/bert/base.py').read_text().replace("layers='auto'", "layers='scan'"))
  assert 'cycles are unknown' in planned(capsys, root=f'{tmp_path}/')
  assert 'cycles stored in' in planned(capsys, root=f'{conftest.ROOT}/')
  with pytest.raises(ConfigError, match='this config has steps: remove it'):
    planned(capsys, '--epoch_tokens=1000')
  elmo = planned(capsys, config='elmo/pretrain.py')
  assert re.search(r'hours .*\(10 epochs of 770,000,000 tokens\)', elmo) and 'the largest is a lower bound, by' in elmo
  assert re.search(r'\(10 epochs of 1,000 tokens\)', planned(capsys, '--epoch_tokens=1000', config='elmo/pretrain.py'))


@pytest.mark.plan
def test_a_tiny_run_is_compiled(data, tmp_path):
  described.tpus('v5e:2x2')
  changed = settings(data, sharding={'mesh': {'data': -1}, 'rules': 'fsdp'}, data={'batch_size': 16})
  config = tmp_path / 'config.json'
  config.write_text(json.dumps(changed))
  # in a separate process: the flags of the tests are for CPUs
  done = subprocess.run(
    [
      sys.executable,
      '-m',
      'plm_jax',
      'plan',
      f'--config={config}',
      '--topology=v5e:2x2',
      '--vocab_size=1000',
      '--json',
    ],
    cwd=conftest.ROOT,
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-4000:]
  found = json.loads(done.stdout)
  step = found['train']
  assert step['fits']
  assert found['state']['gib'] < step['peak_gib'] < 1
  assert step['collectives']
  assert re.search(r'dropout 0\.1 .*: xla\b.*flash', step['attention'][0])
  assert found['evaluate']['validation']['fits']
  assert 0 < found['noise']['share'] < 0.5
  assert found['seconds_per_step']['cycles'] == step['cycles'] / 1.5e9
  assert step['without_cycles'].keys() >= {'transfers', 'gathers'}
  words = report.text(found)
  assert 'cycles compiled now, not measured' in words
  assert 'mesh        data=4 x model=1, rules fsdp; 4 rows' in words
  assert found['redundancy'] == step['tflop'] * 4 / found['tflop_per_step']
  assert 1 <= found['redundancy'] < 1.1  # nothing is computed again, and attention is counted as a whole
  assert re.search(rf'redundancy  .*\b{found["redundancy"]:.2f} times', words)


class Executable:
  """A fake compiled program with a peak of 1 GiB and a text."""

  def __init__(self, text: str):
    self.text = text

  def compile(self):
    return self

  def memory_analysis(self):
    sizes = {'argument': 2**29, 'output': 2**29, 'temp': 2**28, 'alias': 2**28}
    return types.SimpleNamespace(**{f'{name}_size_in_bytes': size for name, size in sizes.items()})

  def as_text(self):
    if not self.text:
      raise jax.errors.JaxRuntimeError('UNIMPLEMENTED: of a later version\nof which more lines tell')
    return self.text


@pytest.mark.parametrize(
  ('text', 'why'),
  [
    ('', 'UNIMPLEMENTED: of a later version'),
    ('HloModule empty', 'no ENTRY'),
    (
      'ENTRY %main (x: f32[8]) -> f32[] {\n  %x = f32[8]{0} parameter(0)\n  ROOT %y = f32[] dot(%x, %w)\n}',
      'operands of y',
    ),
  ],
)
def test_a_program_that_cannot_be_read_has_its_memory_all_the_same(data, text, why):
  made, _ = made_of(settings(data, data={'batch_size': 16}), 'v5e:4x4')
  found = compiling._measured(made, lambda: Executable(text))
  unread = found['unread']
  assert why in unread and '\n' not in unread
  assert found == {'fits': True, 'peak_gib': 1.0, 'temporary_gib': 0.25, 'attention': [], 'unread': unread}
  words = report._step('train', found, 15.75)
  assert 'fits: 1.00 of 15.75 GiB' in words[0]
  assert unread[:80] in words[1]


def test_the_redundancy_says_what_it_lacks():
  step = {'silent_kernels': 0, 'open_loops': 0}
  assert re.match(r'redundancy  .*\b1\.34 times', report.redundancy_line(1.337, step))
  lacks = report.redundancy_line(0.9, {'silent_kernels': 24, 'open_loops': 2})
  assert re.search(r'\b24 runs of kernels .*\b2 loops', lacks)


@pytest.mark.parametrize(
  ('open_loops', 'step_open_loops', 'words'),
  [
    (0, 0, 'noise       1.2 % of the step'),
    (1, 1, 'noise       at least 1.2 % of the step'),
    (0, 1, 'noise       at most 1.2 % of the step'),
    (1, 2, 'noise       about 1.2 % of the step'),
  ],
)
def test_the_share_of_the_noise_says_which_way_it_is_wrong(open_loops, step_open_loops, words):
  line = report.noise_line(0.012, open_loops, step_open_loops)
  assert line.startswith(words)
  assert (f'noise {open_loops}, step {step_open_loops}' in line) == (open_loops + step_open_loops > 0)


def test_what_does_not_fit_says_what_it_needs():
  said = (
    'RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used {} of 15.75G hbm.'
  )
  assert compiling.needed(said.format('70.45G')) == 70.45
  assert compiling.needed(said.format('512.00M')) == 0.5
  assert compiling.needed('RESOURCE_EXHAUSTED: no room') is None


@pytest.mark.parametrize(
  ('name', 'message'),
  [
    ('v5x:4x4', r"'v5x'.*('v5p'.*'v5e'|'v5e'.*'v5p')"),
    ('v5e', r'\bv5e:4x4'),
    ('v5e:4x4x4', r'\b2 axes.*\bv5e:4x4$'),
    ('v5p:4x4', r'\b3 axes.*\bv5p:4x4x4$'),
    ('v5e:3x5', r'1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16$'),
    ('v5p:2x2x3', r'1x1x1, 1x2x2, 2x2x2, 2x2x4, 2x4x4\b.*multiples of 4'),
    ('v5e:32x32', r'\b1,024 chips.*v5e.*\b256\b.*--slices'),
  ],
)
def test_a_topology_that_is_none_is_refused(name, message):
  with pytest.raises(ConfigError, match=message):
    topology.parse(name)


@pytest.mark.parametrize(
  ('name', 'shape'), [('v5litepod-16', 'v5e:4x4'), ('v6e-8', 'v6e:2x4'), ('v4-32', 'v4:2x2x4'), ('v5p-8', 'v5p:1x2x2')]
)
def test_accelerator_types_name_topologies(name, shape):
  assert topology.parse(name) == topology.parse(shape)
  assert topology.accelerator_type(topology.parse(shape, slices=2)) == name
  with pytest.raises(ConfigError, match=r'v5litepod-17.*v5litepod-16'):
    topology.parse('v5litepod-17')


def test_devices_of_slices():
  assert topology.parse('v5p:4x4x8', slices=2).devices == 256
  assert topology.parse('tpu7x:4x4x4').devices == 128  # two a chip


def test_without_a_compiler_the_command_says_how_to_get_one(monkeypatch, capsys):
  monkeypatch.setattr(topology, 'installed', lambda: False)
  for name in ('JAX_PLATFORMS', 'XLA_FLAGS'):  # as the tests have them, put back afterwards
    monkeypatch.setenv(name, os.environ.get(name, ''))
  with pytest.raises(ConfigError, match=r'pip install -r requirements/plan\.txt.*--state_only'):
    plan.main(['--config=experiments/bert/base.py', '--topology=v5e:4x4'])
  assert plan.main(['--config=experiments/bert/base.py', '--topology=v5e:4x4', '--state_only']) == 0
  assert re.search(r'state       1\.23 GiB .*\b0\.08 ', capsys.readouterr().out)


HEADER = """Something.

plm-jax vocab train --source=tfds:a --name=byte_bpe --size=50257 \\
    --specials=gpt2 --out=runs/vocab/gpt2
plm-jax vocab train --source=tfds:b --size=32000 --out=runs/vocab/t5

Hardware: none. Estimate: 9
hours.
Expect: nothing.
"""


def test_a_search_passes_meshes_that_cannot_be_placed(data):
  """Skip meshes that slices cannot place.

  Four slices of four chips have no mesh whose 'model' is 8 or more; such a mesh once ended the search.
  """
  place = topology.parse('v5p:2x2x1', slices=4)
  tight = place._replace(chip=place.chip._replace(memory=1e-9))  # nothing fits, so every layout is tried
  devices = described.made_up((2, 2, 1), slices=4)
  first = {'train': {'fits': False, 'needed_gib': None, 'attention': []}, 'evaluate': {}}
  found = report._searched(settings(data, data={'batch_size': 64}), stand_in.Words(1000), tight, devices, first)
  assert found == {'flags': None, 'tried': []}


@pytest.mark.parametrize(
  ('mesh', 'slices', 'message'),
  [
    ({'data': 1, 'model': 32}, 2, r'\b2 slices.*multiple of 2\b.*data=2, model=16'),
    ({'data': 8, 'model': 4}, 3, r'\b48 devices.*data=12, model=4.*data=24, model=2'),
    ({'data': 7}, 1, r'\b16 devices.*data=16, model=1.*data=8, model=2'),
  ],
)
def test_what_is_only_counted_is_placed_as_well(data, mesh, slices, message):
  """Reject impossible layouts without compiling as well."""
  changed = settings(data, sharding={'mesh': mesh, 'rules': 'fsdp'}, data={'batch_size': 96})
  with pytest.raises(ConfigError, match=message):
    report.plan(changed, stand_in.Words(1000), topology.parse('v5e:4x4', slices=slices), state_only=True)


def test_a_search_is_not_passed_over_where_nothing_is_compiled():
  with pytest.raises(ConfigError, match=r'--state_only.*--search|--search.*--state_only'):
    plan.main(['--config=experiments/bert/base.py', '--topology=v5e:4x4', '--state_only', '--search'])


def test_an_evaluation_that_does_not_fit_is_searched_for(data, monkeypatch):
  """Search for an evaluation that needs 20 GiB at the full batch.

  Training fits. Half a batch fits the evaluation.
  """
  asked = []

  def trained(made, settings):
    asked.append(('train', settings['accumulate']))
    return {'fits': True, 'peak_gib': 1.0, 'attention': []}

  def evaluated(made, settings, name):
    asked.append((name, settings['accumulate']))
    gib = 20.0 / settings['accumulate']
    return {'fits': gib <= 15, 'attention': []} | {'peak_gib' if gib <= 15 else 'needed_gib': gib}

  monkeypatch.setattr(report.topologies, 'describe', lambda place: None)
  monkeypatch.setattr(report.compiling, 'compiled_train', trained)
  monkeypatch.setattr(report.compiling, 'compiled_evaluation', evaluated)
  monkeypatch.setattr(report.compiling, 'noise', lambda made, step: None)
  changed = settings(data, data={'batch_size': 64})
  found = report.plan(changed, stand_in.Words(1000), topology.parse('v5e:4x4'), search=True)
  assert found['search']['flags'] == '--config.accumulate=2'
  assert asked == [('train', 1), ('validation', 1), ('train', 2), ('validation', 2)]


@pytest.mark.parametrize(('path', 'size'), [('runs/vocab/gpt2', 50257), ('runs/vocab/t5', 32000)])
def test_a_vocabulary_that_is_not_there_has_the_size_of_the_header(path, size, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  block = {'vocab': {'name': 'byte_bpe', 'path': path, 'extra': ('<a>', '<b>')}}
  vocab = stand_in.vocab_of(block, header=HEADER)
  assert vocab.size == size + 2
  assert vocab.id('<b>') == size + 1
  with pytest.raises(ValueError, match="no token '<c>'"):  # as a vocabulary, so that tasks choose another one
    vocab.id('<c>')
  assert vocab.special_ids[-2:] == (size, size + 1)
  assert len(vocab.starts_word) == len(vocab.num_bytes) == len(vocab.counts) == vocab.size
  assert not np.asarray(vocab.num_bytes)[list(vocab.special_ids)].any()
  assert stand_in.vocab_of(block, size=7000).size == 7002
  with pytest.raises(errors.ConfigError, match=r'vocabulary.*--vocab_size=N'):
    stand_in.vocab_of(block)


def test_the_estimate_of_a_header_is_one_line():
  assert report._estimate(HEADER) == 'Hardware: none. Estimate: 9 hours.'


SLICED = """
import json, sys
import jax
from plm_jax.planning import compile, stand_in, topology

settings = json.loads(sys.stdin.read())
place = topology.parse('v5e:2x2', slices=2)
made = compile.make(settings, stand_in.Words(1000), place, topology.describe(place))
size = sum(leaf.size * 4 for leaf in jax.tree.leaves(made.maker.abstract.params))
print(json.dumps([size / 2**30, compile.compiled_train(made, settings)['collectives']]))
"""


@pytest.mark.plan
@pytest.mark.parametrize('rules', ['data', 'fsdp'])
def test_slices_send_each_other_the_sums_of_gradients_and_nothing_else(data, rules):
  """Check that slices exchange only gradient sums.

  Each of the four chips of a slice sends a quarter of the slice's sum to the other slice. Under 'fsdp' each slice has a
  copy of the parameters; sharded over both, they would be sent each time.
  """
  described.tpus('v5e:2x2')
  mesh = {'replica': 2, 'data': -1} if rules == 'fsdp' else {'data': -1}
  changed = settings(data, data={'batch_size': 16}, sharding={'mesh': mesh, 'rules': rules})
  wide = {'hidden_dim': 512, 'mlp_dim': 2048, 'num_heads': 4}  # small arrays are sent in whole tiles of 8 x 128
  changed['model'] = {**changed['model'], 'overrides': {**changed['model']['overrides'], **wide}}
  env = {name: value for name, value in os.environ.items() if name != 'XLA_FLAGS'}  # those of the tests are for CPUs
  done = subprocess.run(
    [sys.executable, '-c', SLICED], input=json.dumps(changed), env=env | {'JAX_PLATFORMS': 'cpu'}, cwd=conftest.ROOT,
    capture_output=True, text=True, timeout=300, check=False,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr[-4000:]
  gib, found = json.loads(done.stdout)
  sent = {kind.removesuffix(' between slices'): one['gib'] for kind, one in found.items() if 'slices' in kind}
  table = 1000 * 512 * 4 / 2**30  # its gradients as input and as output matrix may be summed by themselves
  assert gib / 4 <= sent['all-reduce'] <= 1.02 * (gib + table) / 4
  assert sum(sent.values()) - sent['all-reduce'] <= 0.02 * gib / 4
