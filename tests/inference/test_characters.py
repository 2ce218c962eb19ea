"""Character-level models, pre-trained and fine-tuned, on unseen words."""

import json

import numpy as np
import pytest

import plm_jax
from plm_jax import config
from plm_jax.commands import convert, predict, probe, vectors
from plm_jax.core.errors import ConfigError
from plm_jax.text import words
from plm_jax.training import loop
from tests import conftest, runs

pytestmark = pytest.mark.turns

BIO = ('O', 'B-name', 'I-name')


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  folder = runs.write_data(tmp_path_factory.mktemp('data'))
  texts = (folder / 'corpus' / 'train.txt').read_text().split('\n\n')
  words.train(texts, size=60, min_frequency=2, specials='elmo').save(folder / 'words')
  return folder


def settings(kind, data, /, **changes):
  common = {'vocab': {'name': 'words', 'path': str(data / 'words')}, 'steps': 4, 'eval_every': 4, 'save_every': 4}
  elmo = runs.settings('bidirectional_lm', data)['model']
  return runs.settings(kind, data, **{**common, 'model': elmo, **changes})


@pytest.fixture(scope='module')
def pretrained(data):
  assert loop.train(settings('bidirectional_lm', data), data / 'ELMO').exit_code == loop.DONE
  return data / 'ELMO'


def start(pretrained):
  return ({'source': str(pretrained), 'from_': 'trunk', 'to': 'trunk'},)


def test_a_text_is_encoded_by_the_characters_of_its_words(pretrained):
  model = plm_jax.load(pretrained)
  zog, dax, other, again = model.encode(['the zog', 'the dax', 'the zogdax', 'the zog'], pool='last')
  np.testing.assert_array_equal(zog, again)
  assert min(np.abs(zog - dax).max(), np.abs(zog - other).max(), np.abs(dax - other).max()) > 1e-4
  every = model.encode(['the zog', 'the dax'], pool='none', layer=0)  # the vectors of words
  assert [one.tokens for one in every] == [['the', '<UNK>']] * 2
  np.testing.assert_allclose(every[0].vectors[0], every[1].vectors[0], atol=1e-6)
  long = ['x' * 48 + end for end in ('', 'y', 'z' * 30)]  # 48 bytes are read
  one, *others = model.encode(long, pool='last')
  for each in others:
    np.testing.assert_allclose(one, each, atol=1e-6)


def test_an_export_gives_the_same_vectors_and_is_asked_for_the_uses_of_a_word(pretrained, tmp_path, capsys):
  texts = ['Anna is in the zog.', 'Boris saw the garden of Anna.', 'the zogdax']
  own = plm_jax.load(pretrained, step='newest')
  assert convert.main(['export', str(pretrained), str(tmp_path / 'out'), '--form=own', '--step=newest']) == 0
  exported = plm_jax.load(tmp_path / 'out')
  for asked in ({'pool': 'mean'}, {'pool': 'last', 'layer': 0}):
    np.testing.assert_array_equal(exported.encode(texts, **asked), own.encode(texts, **asked))
  said = []
  for folder in (pretrained, tmp_path / 'out'):
    capsys.readouterr()
    flags = [f'--workdir={folder}', '--word=Anna', *(f'--text={text}' for text in texts[:2])]
    assert vectors.main(['polysemy', *flags, f'--out={tmp_path / "uses.png"}']) == 0
    said.append(capsys.readouterr().out)
  assert said[0] == said[1] and 'layer' in said[0]
  assert (tmp_path / 'uses.png').stat().st_size > 1_000


def test_classes_of_texts(data, pretrained, tmp_path):
  about = {'name': 'labelled', 'layout': 'elmo', 'path': str(data / 'labelled'), 'buckets': (16,)}
  run = data / 'CLASSES'
  one = settings('classify', data, init_from=start(pretrained), data=about)
  assert loop.train(one, run).exit_code == loop.DONE
  model = plm_jax.load(run)
  rows = [{'text': text} for text in ('Anna is in the zog.', 'Anna is in the dax.')]
  (tmp_path / 'rows.jsonl').write_text('\n'.join(map(json.dumps, rows)))
  assert predict.main([f'--workdir={run}', f'--file={tmp_path / "rows.jsonl"}', f'--out={tmp_path / "out.jsonl"}']) == 0
  written = [json.loads(line) for line in (tmp_path / 'out.jsonl').read_text().splitlines()]
  asked = model.classify([row['text'] for row in rows])
  assert [one['prediction'] for one in written] == [one['label'] for one in asked]
  first, second = ([*one['probabilities'].values()] for one in asked)
  assert np.abs(np.subtract(first, second)).max() > 1e-6


def tagging(data, pretrained, adapter):
  """Build a config of word labels with the trunk of ELMo."""
  rows = [{'tokens': ['Anna', 'is', 'in', place], 'tags': [1, 0, 0, 0]} for place in conftest.PLACES]
  folder = data / 'tags'
  folder.mkdir(exist_ok=True)
  for split in ('train', 'validation'):
    (folder / f'{split}.jsonl').write_text('\n'.join(map(json.dumps, rows)))
  about = {'name': 'labelled', 'layout': 'elmo', 'path': str(folder), 'buckets': ()}
  kind = {'kind': 'words', 'fields': ('tokens',), 'label': 'tags'}
  plain = settings('classify', data, init_from=start(pretrained))
  evaluated = {'validation': {'data': {'split': 'validation'}}}
  changed = {
    **plain,
    'data': {**about, **kind, 'length': 16, 'batch_size': 4, 'cache': str(data / 'cache')},
    'adapter': adapter,
    'eval': evaluated,
  }
  return config.resolve(changed)


def test_tags_of_words_through_a_mix_of_layers(data, pretrained):
  adapter = {'name': 'scalar_mix', 'vectors': 8, 'inner': {'name': 'tag', 'tags': BIO, 'lstm_layers': 1, 'lstm_dim': 8}}
  run = data / 'TAGS'
  assert loop.train(tagging(data, pretrained, adapter), run).exit_code == loop.DONE
  answers = plm_jax.load(run).tag([['Anna', 'saw', 'zog'], ['Anna', 'saw', 'dax']])
  assert [[word['word'] for word in answer] for answer in answers] == [['Anna', 'saw', 'zog'], ['Anna', 'saw', 'dax']]
  assert answers[0][2]['probability'] != answers[1][2]['probability']


def test_each_layer_is_probed(data, pretrained, tmp_path):
  one = tagging(data, pretrained, {'name': 'tag', 'tags': BIO})
  file = runs.write_config(tmp_path / 'config.json', one)
  assert probe.main([f'--config={file}', f'--workdir={tmp_path / "probe"}', '--layers=0,2,mix']) == 0
  rows = json.loads((tmp_path / 'probe' / 'table.json').read_text())['rows']
  assert [row['layer'] for row in rows] == [0, 2, 'mix'] and (tmp_path / 'probe' / 'layers.png').stat().st_size > 1000


def test_data_without_characters_is_refused(data, tmp_path):
  one = settings('bidirectional_lm', data, data={'both_directions': False})
  with pytest.raises(ConfigError, match=r"'bptt'.*next_tokens, characters"):
    loop.train(one, tmp_path / 'run')
