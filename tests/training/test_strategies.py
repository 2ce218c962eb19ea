"""Ways to adapt a trunk, as whole short runs: what each trains, what it restores, what it says about both."""

import itertools
import json
import pathlib
import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from plm_jax import config
from plm_jax.core.errors import ConfigError
from plm_jax.training import loop
from tests import conftest, runs

pytestmark = pytest.mark.turns

FROZEN = (('trunk/.*', None), ('.*', 1.0))
TAGS = ('O', 'B-name', 'I-name')


@pytest.fixture(scope='module', autouse=True)
def log() -> Iterator[None]:
  with runs.logging_on():
    yield


@pytest.fixture(scope='module')
def data(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """What `runs.write_data` writes, and sentences whose names are labelled, in `words/`."""
  folder, draw = runs.write_data(tmp_path_factory.mktemp('data')), random.Random(2)
  (folder / 'words').mkdir()
  (folder / 'words' / 'labels.json').write_text(json.dumps({'tags': TAGS}))
  for split in ('train', 'validation'):
    sentences = [runs.sentence(draw, label=n % 2)['text'].split() for n in range(24)]
    rows = [{'tokens': words, 'tags': [int(word in conftest.NAMES) for word in words]} for words in sentences]
    (folder / 'words' / f'{split}.jsonl').write_text('\n'.join(map(json.dumps, rows)) + '\n')
  return folder


def settings(data: pathlib.Path, *, adapter: Mapping[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
  """Those of a classification with these changes; `adapter` is a whole block, 'classify' where it names none."""
  plain = runs.settings('classify', data, **changes)
  if adapter is None:
    return plain
  plain['adapter'] = {'name': 'classify', **adapter}
  if 'tags' in json.dumps(adapter):
    words = {'path': str(data / 'words'), 'kind': 'words', 'fields': ('tokens',), 'label': 'tags'}
    plain['data'] |= words
    plain |= {'eval': {'validation': {'data': {'split': 'validation'}}}, 'best': ('validation/f1', 'max')}
  return config.resolve(plain)


def train(data: pathlib.Path, workdir: pathlib.Path, **changes: Any) -> pathlib.Path:
  assert loop.train(settings(data, **changes), workdir).exit_code == 0
  return workdir


@pytest.fixture(scope='module')
def source(data: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """The run that others begin from: three steps of the same task."""
  return train(data, tmp_path_factory.mktemp('source') / 'run', steps=3, eval_every=3, save_every=3)


def entry(source: pathlib.Path, part: str = 'trunk') -> tuple[dict[str, Any], ...]:
  return ({'source': str(source), 'step': 'newest', 'from_': part, 'to': part},)


@pytest.mark.parametrize('optim', [{'scale': FROZEN}, {'decay': 0.1}], ids=['scale', 'decay'])
def test_feature_extraction_keeps_every_bit_of_the_trunk_and_says_so(optim, data, source, tmp_path):
  short = dict(steps=3, eval_every=3, save_every=3, init_from=entry(source))
  run = train(data, tmp_path / 'run', **short, adapter={'frozen': True}, optim=optim)
  before, after = runs.params_of(runs.saved_state(source)), runs.params_of(runs.saved_state(run))
  assert runs.differing(before, after) == ['params/head/bias', 'params/head/kernel']
  said = (run / 'log.txt').read_text()
  total = sum(leaf.size for leaf in after.values())
  assert f'66 of {total:,} parameters train' in said  # 32 x 2 and 2
  assert f'{len(after) - 2} restored, 2 new, 0 skipped' in said


@pytest.mark.slow
def test_an_intermediate_task_gives_its_trunk_and_where_asked_its_head(data, source, tmp_path):
  still = dict(steps=1, eval_every=1, save_every=1, optim={'rate': 0.0, 'warmup': 0, 'decay': 0.0})
  before = runs.params_of(runs.saved_state(source))
  whole = train(data, tmp_path / 'whole', **still, init_from=entry(source, ''))
  assert runs.differing(before, runs.params_of(runs.saved_state(whole))) == []
  assert f'{len(before)} restored, 0 new, 0 skipped' in (whole / 'log.txt').read_text()
  trunk = train(data, tmp_path / 'trunk', **still, init_from=entry(source))
  head = ['params/head/bias', 'params/head/kernel']
  assert runs.differing(before, runs.params_of(runs.saved_state(trunk))) == head
  both = train(data, tmp_path / 'both', **still, init_from=entry(source) + entry(source, 'head'))
  assert runs.differing(before, runs.params_of(runs.saved_state(both))) == []


def test_a_head_of_other_classes_is_refused_by_name(data, source, tmp_path):
  message = r'init_from: head/bias is \[2\] in .*run, but \[3\] here'
  with pytest.raises(ConfigError, match=message):
    train(data, tmp_path / 'run', steps=3, adapter={'classes': 3}, init_from=entry(source, ''))


@pytest.mark.slow
def test_gradual_unfreezing_trains_one_more_layer_after_each_period(data, tmp_path):
  scale = (('trunk/pooler/.*', 1.0), ('trunk/.*', {'gradual': 0.25}), ('.*', 1.0))
  changes = {'optim': {'scale': scale, 'schedule': 'constant', 'warmup': 0}, 'keep': 8}
  run = train(data, tmp_path / 'run', steps=8, save_every=2, eval_every=8, **changes)
  states = [runs.params_of(runs.saved_state(run, step=step)) for step in (2, 4, 6, 8)]
  moved = []
  for before, after in itertools.pairwise(states):
    layers = [
      layer
      for layer in (0, 1)
      if any((before[path][layer] != after[path][layer]).any() for path in before if '/trunk/layers/' in path)
    ]
    moved.append((layers, 'params/trunk/token_embed/table' in runs.differing(before, after)))
  # periods end at steps 2, 4 and 6
  assert moved == [([1], False), ([0, 1], False), ([0, 1], True)]
  assert 'from step 4' in (run / 'log.txt').read_text()


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'folder'), [('wnut17', 'wnut_17'), ('ewt', 'universal_dependencies_en_ewt')])
def test_the_config_of_words_runs_on_the_real_set(name, folder, shared_data, data, tmp_path):
  values = config.load(f'{conftest.ROOT}/experiments/tagging/fine_tune.py:{name},bert,crf')
  values |= {'vocab': {'name': 'byte_bpe', 'path': str(data / 'vocab')}, 'init_from': (), 'steps': 2, 'epochs': None}
  values['model'] |= {'variant': 'tiny', 'overrides': runs.SIZES}
  values['execution'] = {}
  values['data'] |= {'path': str(shared_data(folder)), 'length': 32, 'buckets': (), 'cache': str(tmp_path / 'cache')}
  for split, block in values['eval'].items():
    block['data']['split'] = f'{split}[:32]'
  run = tmp_path / 'run'
  assert loop.train(config.resolve({**values, 'eval_every': 2, 'save_every': 2}), run).exit_code == 0
  known = {'accuracy', 'loss'} | ({'f1', 'strict_f1'} if name == 'wnut17' else set())
  found = {key for line in runs.curve(run) for key in line}
  assert {f'{split}/{metric}' for split in ('validation', 'test') for metric in known} <= found


MIX = {'name': 'scalar_mix', 'vectors': 4, 'penalty': 0.1}
TAG = {'name': 'tag', 'tags': TAGS}
SETTINGS: dict[str, dict[str, Any]] = {
  'two layers side by side': {'adapter': {'layers': (-2, -1)}},
  'their sum': {'adapter': {'layers': (-2, -1), 'join': 'sum'}},
  'their weighted sum': {'adapter': {'layers': (-2, -1), 'join': 'weighted', 'layer_weights': (0.25, 0.75)}},
  'a mix of all': {'adapter': {'layers': (0, 1, -1), 'join': 'mix', 'frozen': True}, 'optim': {'scale': FROZEN}},
  'weights of classes': {'adapter': {'class_weights': (0.2, 3.0)}},
  'rates by layer': {
    'optim': {'scale': (('trunk/layers/.*', {'layerwise': 0.8}), ('trunk/.*embed.*', {'layerwise': 0.8, 'below': 1}),
                        ('.*', 1.0))}
  },
  'a path of labels': {'adapter': {**TAG, 'crf': True}},
  'labels weighed': {'adapter': {**TAG, 'class_weights': (0.1, 1.0, 1.0)}},
  'LSTM over features': {
    'adapter': {**TAG, 'crf': True, 'frozen': True, 'layers': (-2, -1), 'lstm_layers': 2, 'lstm_dim': 8},
    'optim': {'scale': FROZEN},
  },
  'ELMo for names': {
    'adapter': {**MIX, 'inner': {**TAG, 'crf': True, 'lstm_layers': 2, 'lstm_dim': 8}},
    'optim': {'scale': (('trunk/(scalar_mix|vectors)/.*', 1.0), *FROZEN)},
  },
  'ELMo for classes': {
    'adapter': {**MIX, 'norm': True, 'inner': {'name': 'classify', 'classes': 2}},
    'optim': {'scale': (('trunk/(scalar_mix|vectors)/.*', 1.0), *FROZEN)},
  },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize('name', SETTINGS)
def test_every_setting_runs_from_a_config(name, data, source, tmp_path):
  changes = {'adapter': {}, **SETTINGS[name]}
  run = train(data, tmp_path / 'run', steps=4, eval_every=2, save_every=4, init_from=entry(source), **changes)
  after, before = runs.params_of(runs.saved_state(run)), runs.params_of(runs.saved_state(source))
  if FROZEN[0] in changes.get('optim', {}).get('scale', ()):
    kept = [path for path in before if path.startswith('params/trunk/') and path in after]
    assert kept and not runs.differing({p: before[p] for p in kept}, {p: after[p] for p in kept})
  wanted = 'f1' if 'tags' in json.dumps(changes) else 'accuracy'
  assert any(f'validation/{wanted}' in line for line in runs.curve(run))
