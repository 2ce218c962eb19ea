"""Cross-view training: resume, export, several tasks, scalar mix and probes."""

import json
import random
import signal

import numpy as np
import pytest

import plm_jax
from plm_jax import config
from plm_jax.commands import convert, evaluate, predict, probe
from plm_jax.core.errors import ConfigError
from plm_jax.runs import metrics
from plm_jax.text import words
from plm_jax.training import loop
from tests import conftest, runs

pytestmark = pytest.mark.turns

BIO = ('O', 'B-name')
TEXTS = ['Anna is in the kitchen', 'Boris is in the zog']
SIZES = {'word_dim': 8, 'char_dim': 4, 'filters': (0, 4), 'hidden_dim': 16, 'mlp_dims': (12, 8)}
HEAD = {'hidden': 8, 'layers': (-2, -1)}


@pytest.fixture(scope='module')
def labelled(tmp_path_factory):
  """Write sentences whose first word is a name, and their vocabulary."""
  folder, draw = tmp_path_factory.mktemp('cvt'), random.Random(0)
  texts = [f'{draw.choice(conftest.NAMES)} is in the {draw.choice(conftest.PLACES)}' for _ in range(24)]
  (folder / 'tags').mkdir()
  for split in ('train', 'validation'):
    rows = [{'tokens': text.split(), 'tags': [1, *[0] * (len(text.split()) - 1)]} for text in texts]
    (folder / 'tags' / f'{split}.jsonl').write_text('\n'.join(map(json.dumps, rows)) + '\n')
  words.train(texts, size=60, min_frequency=1).save(folder / 'vocab')
  return folder


def settings(folder, **changes):
  return {
    'steps': 6, 'log_every': 2, 'eval_every': 6, 'save_every': 3,
    'vocab': {'name': 'words', 'path': str(folder / 'vocab')},
    'model': {'name': 'cvt', 'variant': 'tiny', 'overrides': SIZES},
    'optim': {'name': 'adamw', 'rate': 1e-2, 'schedule': 'constant', 'warmup': 0},
    **changes,
  }  # fmt: skip


def rows_of(folder):
  found = {'name': 'labelled', 'kind': 'words', 'fields': ('tokens',), 'label': 'tags', 'layout': 'plain'}
  return found | {'path': str(folder / 'tags'), 'cache': str(folder / 'cache')}


def views(folder, tasks=('names',), **changes):
  """Build a config of cross-view training for name taggers over one encoder."""
  parts = {name: rows_of(folder) for name in (*tasks, 'text')}
  held_out = {name: {**part, 'split': 'validation'} for name, part in parts.items()}
  return config.resolve(
    settings(
      folder,
      objective={'name': 'multiview', 'tags': dict.fromkeys(tasks, BIO), **HEAD},
      data={'name': 'mixture', 'per': 'step', 'alternate': 'text', 'parts': parts, 'length': 16, 'batch_size': 8},
      eval={'validation': {'data': {'parts': held_out}}},
      best=('validation/names/accuracy', 'max'),
      **changes,
    )
  )


@pytest.fixture(scope='module')
def trained(labelled):
  """Train a run that stops and resumes, bit for bit."""
  return runs.gone_on(views(labelled), labelled / 'CVT')


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_bits(labelled, tmp_path):
  long = {'steps': 60, 'log_every': 5, 'save_every': 5, 'eval_every': 30}
  file = runs.write_config(tmp_path / 'config.json', views(labelled, **long))
  asked = {
    name: runs.words('train', f'--config={file}', f'--workdir={tmp_path / name}') for name in ('whole', 'killed')
  }
  output = tmp_path / 'output'
  with runs.started(asked['whole'], log=output) as process:
    assert process.wait(timeout=240) == 0, output.read_text()
  with runs.started(asked['killed'], log=output) as process:
    curve = tmp_path / 'killed' / 'metrics.jsonl'
    runs.wait_until(lambda: curve.exists() and curve.read_bytes().count(b'\n') >= 3, process=process, log=output)
    process.kill()
    assert process.wait() == -signal.SIGKILL
  assert metrics.read(tmp_path / 'killed')[-1]['step'] < 60
  with runs.started(asked['killed'], log=output) as process:
    assert process.wait(timeout=240) == 0, output.read_text()
  assert not runs.differing(*(runs.saved_state(tmp_path / name) for name in asked))
  assert runs.curve(tmp_path / 'killed') == runs.curve(tmp_path / 'whole')


@pytest.mark.slow
def test_several_tasks_learn_over_one_encoder(labelled, tmp_path):
  one = views(labelled, ('names', 'others'), steps=12, log_every=1, eval_every=12)
  assert loop.train(one, tmp_path).exit_code == loop.DONE
  params = runs.params_of(runs.saved_state(tmp_path))
  heads = {path.split('/')[1] for path in params} - {'trunk'}
  assert any('names' in head for head in heads) and any('others' in head for head in heads)
  lines = metrics.read(tmp_path)
  assert {'validation/names/accuracy', 'validation/others/accuracy'} <= lines[-1].keys()


def test_a_frozen_run_is_mixed_under_a_tagger(trained, labelled, tmp_path):
  """Train the mix and the head while the encoder stays unchanged."""
  inner = {'name': 'tag', 'tags': BIO}
  changes = {
    'adapter': {'name': 'scalar_mix', 'inner': inner, 'vectors': 4, 'side': 'both', 'lstm_layers': 1, 'lstm_dim': 4},
    'data': {**rows_of(labelled), 'length': 16, 'batch_size': 8},
    'eval': {'validation': {'data': {'split': 'validation'}}},
    'init_from': [{'source': str(trained), 'from_': 'trunk', 'to': 'trunk'}],
    'best': ('validation/accuracy', 'max'),
    'steps': 60,
    'eval_every': 60,
  }
  changes['optim'] = {'name': 'adamw', 'rate': 0.02, 'schedule': 'constant', 'warmup': 0}
  outcome = loop.train(config.resolve(settings(labelled, **changes)), tmp_path)
  assert outcome.result['metrics']['validation/accuracy'] > 0.95
  before, after = (runs.params_of(runs.saved_state(folder), 'params/trunk') for folder in (trained, tmp_path))
  assert before and not [name for name, leaf in before.items() if leaf.tobytes() != after[name].tobytes()]
  weights = after['params/trunk/scalar_mix/weights']
  assert weights.shape == (3,) and weights.any()  # words and two levels, from equal shares on


@pytest.mark.slow
def test_a_probe_reads_each_level(trained, labelled, tmp_path):
  changes = {
    'adapter': {'name': 'tag', 'tags': BIO, 'dropout': 0.0, 'frozen': True},
    'data': {**rows_of(labelled), 'length': 16, 'batch_size': 8},
    'eval': {'validation': {'data': {'split': 'validation'}}},
    'init_from': [{'source': str(trained), 'from_': 'trunk', 'to': 'trunk'}],
    'best': ('validation/accuracy', 'max'),
    'steps': 40,
    'eval_every': 40,
  }
  file = runs.write_config(tmp_path / 'config.json', config.resolve(settings(labelled, **changes)))
  assert probe.main([f'--config={file}', f'--workdir={tmp_path / "probe"}', '--seeds=1']) == 0
  rows = json.loads((tmp_path / 'probe' / 'table.json').read_text())['rows']
  assert [row['layer'] for row in rows] == [0, 1, 2, 'mix']
  assert all(row['mean'] > 0.7 for row in rows)  # four words of five are no name
  assert (tmp_path / 'probe' / 'layers.png').read_bytes().startswith(b'\x89PNG')


def test_what_is_saved_by_itself_says_the_same_as_the_run(trained, tmp_path):
  assert convert.main(['export', str(trained), str(tmp_path / 'out'), '--form=own', '--step=newest']) == 0
  run, alone = plm_jax.load(trained, step='newest'), plm_jax.load(tmp_path / 'out')
  np.testing.assert_array_equal(run.encode(TEXTS, pool='mean'), alone.encode(TEXTS, pool='mean'))
  assert np.abs(np.diff(run.encode(TEXTS, pool='mean'), axis=0)).max() > 1e-4


def test_a_task_is_asked_by_its_primary_head(trained, labelled, tmp_path):
  """Compare the predictions of a part with those of the run."""
  known, out, rows = tmp_path / 'known.jsonl', tmp_path / 'out.jsonl', labelled / 'tags' / 'validation.jsonl'
  assert evaluate.main([f'--workdir={trained}', '--step=best', f'--predictions={known}']) == 0
  flags = [f'--workdir={trained}', f'--file={rows}', f'--out={out}', '--step=best']
  assert predict.main([*flags, '--part=names']) == 0
  scored = [row for row in map(json.loads, known.read_text().splitlines()) if row['part'] == 'names']
  found = [json.loads(line) for line in out.read_text().splitlines()]
  assert len(found) == len(scored) == 24
  for row, other in zip(found, scored, strict=True):
    assert row['prediction'] == [BIO[number] for number in other['names/labels'] if number >= 0]
  words = plm_jax.load(trained, step='best', part='names').tag(' '.join(found[0]['tokens']))
  assert [word['tag'] for word in words] == found[0]['prediction']
  np.testing.assert_allclose([word['probability'] for word in words], found[0]['probability'], atol=1e-5)
  assert predict.main([*flags[:2], f'--out={tmp_path / "only.jsonl"}', '--step=best']) == 0  # the only one it has
  assert (tmp_path / 'only.jsonl').read_bytes() == out.read_bytes()
  with pytest.raises(ConfigError, match=r"'text'.*names"):
    predict.main([*flags[:2], f'--out={tmp_path / "none.jsonl"}', '--part=text'])
  with pytest.raises(ConfigError, match=r'tag: .*names.*part=NAME'):
    plm_jax.load(trained).tag(TEXTS)
