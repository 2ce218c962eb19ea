"""Word vectors after training: exported, in files, mixed and probed by another task."""

import json

import numpy as np
import pytest

import plm_jax
from plm_jax import config
from plm_jax.commands import convert, probe, vectors
from plm_jax.core import subwords
from plm_jax.core.errors import ConfigError, RunError
from plm_jax.text import words
from plm_jax.training import loop
from plm_jax.weights import word_vectors
from tests import runs

pytestmark = pytest.mark.turns

LETTERS = {'shortest': 3, 'longest': 4, 'buckets': 50}
OBJECTIVES = {
  'word2vec': {'name': 'skipgram', 'subsample': 0.0},
  'glove': {'name': 'glove'},
  'fasttext': {'name': 'fasttext', 'subsample': 0.0, **LETTERS},
  'cw': {'name': 'ranking', 'window': 3, 'hidden': 4},
}
TEXTS = ['In the morning Anna', 'One']


@pytest.fixture(scope='module')
def trained(data):
  """Train a short run of each family."""
  texts = (data / 'corpus' / 'train.txt').read_text().split('\n\n')
  words.train(texts, size=60, min_frequency=2).save(data / 'words')
  read = {'path': str(data / 'corpus'), 'length': 16, 'batch_size': 8, 'cache': str(data / 'cache')}
  for family, objective in OBJECTIVES.items():
    rows = {'name': 'cooccurrence'} if family == 'glove' else {'name': 'stream', 'layout': 'stream'}
    one = runs.settings('mlm', data, steps=4, eval_every=4, save_every=4) | {
      'eval': {'validation': {'data': {'split': 'validation'}}},
      'vocab': {'name': 'words', 'path': str(data / 'words')},
      'model': {'name': 'static', 'variant': 'tiny', 'overrides': {'hidden_dim': 8}},
      'objective': {**objective, 'update': 'rows'},
      'data': rows | read,
      'optim': {'name': 'adagrad', 'rate': 0.1, 'schedule': 'constant', 'warmup': 0},
    }
    assert loop.train(config.resolve(one), data / family).exit_code == loop.DONE
  return data


def own(data, family):
  """Export the trunk next to the run."""
  folder = data / f'{family}_own'
  if not folder.exists():
    assert convert.main(['export', str(data / family), str(folder), '--form=own']) == 0
  return folder


def used(data, family):
  """Compute the final vectors f32[60, 8] by each paper's formula."""
  params = runs.params_of(runs.saved_state(data / family))
  found = params['params/trunk/token_embed/table'].copy()
  if family == 'glove':
    found += params['params/context/table']
  if family == 'fasttext':
    vocab = words.make(path=str(data / 'words'))
    for number in range(5, 60):
      letters = subwords.buckets_of(vocab.token(number), **LETTERS)
      grams = params['params/ngrams/table'][letters]
      found[number] = (found[number] + grams.sum(axis=0)) / (1 + len(letters))
  return found


@pytest.mark.parametrize('family', OBJECTIVES)
def test_what_is_saved_by_itself_says_the_same_as_the_run(family, trained, caplog):
  run, alone = plm_jax.load(trained / family), plm_jax.load(own(trained, family))
  assert ('only the embedding table' in caplog.text) == (family in ('glove', 'fasttext'))
  np.testing.assert_array_equal(run.encode(TEXTS), alone.encode(TEXTS))
  table = runs.saved_state(trained / family)['params/trunk/token_embed/table']
  vocab = words.make(path=str(trained / 'words'))
  (every,) = alone.encode(TEXTS[:1], pool='none')
  assert len(every.tokens) >= 4
  np.testing.assert_array_equal(every.vectors, table[[vocab.id(token) for token in every.tokens]])


@pytest.mark.parametrize('family', OBJECTIVES)
def test_a_file_has_the_vectors_that_are_used(family, trained, tmp_path):
  for form, name in (('word2vec', 'v.txt'), ('binary', 'v.bin'), ('glove', 'glove.txt')):
    assert vectors.main(['save', f'--workdir={trained / family}', f'--out={tmp_path / name}', f'--form={form}']) == 0
    found = word_vectors.read(tmp_path / name)
    assert len(found.words) == 55 and found.words[:2] == ('the', '.')
    np.testing.assert_allclose(found.vectors, used(trained, family)[5:], atol=1e-6)
  if family == 'fasttext':
    vectors.main(['save', f'--workdir={trained / family}', f'--out={tmp_path / "own.bin"}', '--form=fasttext'])
    own = word_vectors.read(tmp_path / 'own.bin')
    np.testing.assert_allclose(own.vectors, found.vectors, atol=1e-6)


def settings_of(data, adapter, start):
  one = runs.settings('classify', data) | {'adapter': adapter, 'init_from': (start,), 'steps': 4}
  model = {name: config.load(str(data / 'word2vec'))[name] for name in ('model', 'vocab')}
  one['data'] |= {'layout': 'plain'}
  return config.resolve(one | model)


@pytest.mark.parametrize('family', OBJECTIVES)
def test_its_vectors_are_mixed(family, trained, tmp_path):
  """Mix vectors of the file (GloVe, fastText) or of the exported trunk."""
  start = {'source': str(own(trained, family)), 'from_': 'trunk', 'to': 'trunk'}
  if family in ('glove', 'fasttext'):
    assert vectors.main(['save', f'--workdir={trained / family}', f'--out={tmp_path / "v.txt"}']) == 0
    start = {'source': str(tmp_path / 'v.txt'), 'from_': '', 'to': 'trunk/token_embed'}
  inner = {'name': 'classify', 'classes': len(runs.CLASSES)}
  adapter = {'name': 'scalar_mix', 'inner': inner, 'lstm_layers': 0}
  assert loop.train(settings_of(trained, adapter, start), tmp_path / 'mix').exit_code == loop.DONE
  after = runs.params_of(runs.saved_state(tmp_path / 'mix'))
  np.testing.assert_allclose(after['params/trunk/token_embed/table'][5:], used(trained, family)[5:], atol=1e-6)
  assert after['params/trunk/scalar_mix/gamma'] != 1
  assert {row['label'] for row in plm_jax.load(tmp_path / 'mix').classify(TEXTS)} <= set(runs.CLASSES)


def test_an_export_says_what_writes_a_trunk_without_a_published_form(trained, tmp_path):
  said = r'export RUN FOLDER --form=own`.*`.*vectors save --workdir=RUN --out=FILE`'
  with pytest.raises(ConfigError, match=said):
    convert.main(['export', str(trained / 'word2vec'), str(tmp_path / 'out')])


@pytest.mark.parametrize(
  ('to', 'adapter', 'said'),
  [
    ('trunk/token_embed', {}, r'\b5\b.*--config\.model\.overrides\.hidden_dim=5'),
    ('trunk/vectors', {'vectors': 6}, r'\b6\b.*\b5\b.*--config\.adapter\.vectors=5'),
  ],
)
def test_a_file_of_another_width_is_refused(to, adapter, said, trained, tmp_path):
  (tmp_path / 'v.txt').write_text('the 1 2 3 4 5\n. 6 7 8 9 10\n')
  start = {'source': str(tmp_path / 'v.txt'), 'from_': '', 'to': to, 'resize': 'new_rows'}
  inner = {'name': 'classify', 'classes': len(runs.CLASSES)}
  adapter = {'name': 'scalar_mix', 'inner': inner, 'lstm_layers': 0, **adapter}
  with pytest.raises(ConfigError, match=f'{to}/table.*{said}'):
    loop.train(settings_of(trained, adapter, start), tmp_path / 'run')


def test_a_source_that_is_no_folder_is_told_of_files_of_vectors(trained, tmp_path):
  (tmp_path / 'v').write_text('the 1 2\n')
  adapter = {'name': 'classify', 'classes': len(runs.CLASSES)}
  ends = r'\.txt, \.vec or \.bin.*\.gz'
  for name, said in (('nothere.txt', r'nothere\.txt.*run folder'), ('v', r'v\b.*saved')):
    start = {'source': str(tmp_path / name), 'from_': '', 'to': 'trunk/token_embed'}
    with pytest.raises((ConfigError, RunError), match=f'{said}.*{ends}') as caught:
      loop.train(settings_of(trained, adapter, start), tmp_path / 'run')
    assert 'sha256' not in str(caught.value)


def test_its_layer_is_probed(trained, tmp_path):
  adapter = {'name': 'classify', 'classes': len(runs.CLASSES)}
  start = {'source': str(trained / 'word2vec'), 'from_': 'trunk', 'to': 'trunk'}
  file = runs.write_config(tmp_path / 'config.json', settings_of(trained, adapter, start))
  assert probe.main([f'--config={file}', f'--workdir={tmp_path / "probe"}']) == 0
  rows = json.loads((tmp_path / 'probe' / 'table.json').read_text())['rows']
  assert [row['layer'] for row in rows] == [0, 'mix'] and (tmp_path / 'probe' / 'layers.png').stat().st_size > 1000
