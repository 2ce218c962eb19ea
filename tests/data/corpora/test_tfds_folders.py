"""Prepared sets from elsewhere: nothing in them is run, and no file outside of their folder is read."""

import json
import os
import pathlib
import shutil
import sys

import pytest
import tensorflow_datasets as tfds

from plm_jax.data.corpora import sources, tfds_folders

CORE = 'tensorflow_datasets.core.features'
TEXT, DICT = f'{CORE}.text_feature.Text', f'{CORE}.features_dict.FeaturesDict'
EVIL = 'hostile.module.Evil'


def proto(name, **content):
  return {'pythonClassName': name, **(content or {'text': {}})}


def of_dict(feature):
  return proto(DICT, featuresDict={'features': {'text': feature}})


def of_type(name, **content):
  return {'type': name, 'content': content}


@pytest.fixture(scope='module')
def prepared(tmp_path_factory):
  """Prepare the version folder of a set of two rows with a text and a label."""

  class Sound(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # so that files alone describe it
    VERSION = tfds.core.Version('1.0.0')
    url_infos = None

    def _info(self):
      label = tfds.features.ClassLabel(names=['no', 'yes'])
      features = {'text': tfds.features.Text(), 'label': label}
      return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
      return {'train': ((n, {'text': f'text {n}', 'label': n}) for n in range(2))}

    def _generate_examples(self):
      raise NotImplementedError

  root = tmp_path_factory.mktemp('prepared')
  Sound(data_dir=str(root), file_format='array_record').download_and_prepare()
  return root / 'sound' / '1.0.0'


@pytest.fixture
def folder(prepared, tmp_path, monkeypatch):
  """Copy it, and add a module that reports its import."""
  (tmp_path / 'hostile').mkdir()
  (tmp_path / 'hostile' / '__init__.py').write_text('')
  (tmp_path / 'hostile' / 'module.py').write_text(
    'import pathlib\n'
    'from tensorflow_datasets.core.features import Text\n'
    f'pathlib.Path({str(tmp_path / "ran")!r}).write_text("ran")\n'
    'class Evil(Text):\n  pass\n'
  )
  monkeypatch.syspath_prepend(str(tmp_path))
  shutil.copytree(prepared, tmp_path / 'tfds' / 'sound' / '1.0.0')
  yield tmp_path / 'tfds' / 'sound' / '1.0.0'
  assert not (tmp_path / 'ran').exists(), 'the module was imported'
  sys.modules.pop('hostile', None)
  assert 'hostile.module' not in sys.modules


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
  """Use a relative path as the cache of these tests."""
  monkeypatch.chdir(tmp_path)


def refused(path, *words, cache='none'):
  with pytest.raises(ValueError) as error:
    list(sources.open_source(str(path), cache=str(cache)))
  for word in words:
    assert word in str(error.value)
  assert '\n' not in str(error.value)


def change(folder, **values):
  info = folder / 'dataset_info.json'
  info.write_text(json.dumps({**json.loads(info.read_text()), **values}))


FEATURES = {
  'at the top': proto(EVIL),
  'snake case': {'python_class_name': EVIL, 'text': {}},
  'in a dict': of_dict(proto(EVIL)),
  'in a sequence': of_dict(proto(f'{CORE}.sequence_feature.Sequence', sequence={'feature': proto(EVIL), 'length': -1})),
  'in a dataset': of_dict(proto(f'{CORE}.dataset_feature.Dataset', sequence={'feature': proto(EVIL)})),
  'both spellings': of_dict({'pythonClassName': TEXT, 'python_class_name': EVIL, 'text': {}}),
  'older form': of_type(EVIL),
  'older form, in a dict': of_type(DICT, text=of_type(EVIL)),
  'older form, in a sequence': of_type(f'{CORE}.sequence_feature.Sequence', feature=of_type(EVIL), length=None),
  'text of JSON': of_dict(proto(DICT, jsonFeature={'json': json.dumps({'a': of_type(EVIL)})})),
  'text of JSON in text of JSON': proto(
    DICT, json_feature={'json': json.dumps({'a': proto(DICT, jsonFeature={'json': json.dumps({'b': proto(EVIL)})})})}
  ),
  'content as text': {
    'type': DICT,
    'proto_cls': 'tensorflow_datasets.FeaturesDict',
    'content': json.dumps({'features': {'a': proto(EVIL)}}),
  },
  'proto_cls': {
    'type': DICT, 'proto_cls': 'tensorflow_datasets.FeaturesDict', 'content': {'features': {'a': proto(EVIL)}},
  },
  'a module of TFDS': proto('tensorflow_datasets.testing.test_utils.Evil'),
  'a test of TFDS': of_dict(proto(f'{CORE}.feature_test.AnInputConnector')),
  'not there': of_dict(proto(f'{CORE}.no_such_feature.Text')),
  'another class there': of_dict(proto(f'{CORE}.text_feature.Evil')),
  'up from there': of_dict(proto(f'{CORE}...hostile.module.Evil')),
  'a name that only begins so': of_dict(proto(f'{CORE}_of_mine.Text')),
  'no module': proto('Evil'),
  'empty': of_dict(proto('')),
  'a standard module': of_dict(proto('antigravity.Text')),
}  # fmt: skip


@pytest.mark.parametrize('features', FEATURES.values(), ids=list(FEATURES))
def test_features_that_are_code_are_refused(folder, features):
  (folder / 'features.json').write_text(json.dumps(features))
  refused(folder, 'features.json', 'not run')
  refused('tfds:sound', 'features.json', 'not run', cache=folder.parents[2])


@pytest.mark.parametrize('features', FEATURES.values(), ids=list(FEATURES))
def test_they_are_refused_in_the_info_too(folder, features):
  change(folder, features=features)
  refused(folder, 'dataset_info.json', 'not run')
  refused('tfds:sound:1.0.0', 'dataset_info.json', 'not run', cache=folder.parents[2])


def test_every_feature_of_tfds_passes_under_every_name(folder):
  assert len(tfds_folders.known_features()) >= 14
  for name in tfds_folders.known_features():
    for features in (of_dict(proto(name)), of_type(DICT, a=of_type(name))):
      (folder / 'features.json').write_text(json.dumps(features))
      tfds_folders.check(folder)
  assert tfds.features.FeatureConnector.cls_from_name(name)


def test_the_module_of_a_builder_is_only_a_word(folder):
  change(folder, moduleName='hostile.module', configName='hostile.module')
  assert len(sources.open_source(str(folder), cache='none')) == 2


def test_a_schema_has_types_that_are_no_features(folder):
  change(folder, citation='{json}', description='{"type": "x.Y"}')
  assert sorted(row['text'] for row in sources.open_source(str(folder), cache='none')) == ['text 0', 'text 1']


NAMES = ['huggingface:sound', 'kaggle:sound', 'sound/data_dir=/tmp', 'sound/a=b', '../sound', '/tmp/sound', 'sound/..',
         'sound/../../x', './sound', 'sound:..', 'sound/.:1.0.0', '', 'gs://bucket/sound', 'sound:1.0.0:2.0.0', 'a b',
         'sound\n', 'sound/x=1,data_dir=/tmp']  # fmt: skip


@pytest.mark.parametrize('name', NAMES)
def test_names_that_are_no_names_of_sets(folder, name):
  refused(f'tfds:{name}', 'without a namespace', cache=folder.parents[2])


def test_names_are_spelt_as_tfds_spells_them():
  from tensorflow_datasets.core import naming

  for name in ('glue', 'AgNewsSubset', 'MNIST', 'Wmt19Translate', 'x1Y2z', 'HTTPServer'):
    assert tfds_folders.check_name(f'{name}/a.b+c:1.*.*') == naming.camelcase_to_snakecase(name)


@pytest.mark.parametrize(
  'place', ['../../../etc/{SPLIT}', '/etc/{SPLIT}', 'a/../../{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}']
)
def test_templates_that_leave_the_folder(folder, place):
  splits = json.loads((folder / 'dataset_info.json').read_text())['splits']
  for key in ('filepathTemplate', 'filepath_template', 'name'):
    change(folder, splits=[{**splits[0], key: place}])
    refused(folder, 'dataset_info.json', 'outside')
  change(folder, splits=splits, name=place)
  refused(folder, 'dataset_info.json', 'outside')


@pytest.mark.parametrize(
  'field', ['{SHARD_INDEX:0>9999999999}', '{SPLIT.__class__}', '{SPLIT!r}', '{SPLIT:{DATASET}}', '{']
)
@pytest.mark.parametrize('key', ['filepathTemplate', 'filepath_template'])
def test_templates_that_format_without_end(folder, key, field):
  splits = json.loads((folder / 'dataset_info.json').read_text())['splits']
  change(folder, splits=[{**splits[0], key: f'{{DATASET}}-{field}'}])
  refused(folder, 'dataset_info.json', 'no plain names')


def test_a_split_of_countless_shards(folder):
  splits = json.loads((folder / 'dataset_info.json').read_text())['splits']
  change(folder, splits=[{**splits[0], 'shardLengths': ['1'] * 300_000}])
  refused(folder, 'dataset_info.json', '300000 shards')


def test_a_default_config_that_leaves_the_folder(folder):
  (folder.parent / '.config').mkdir()
  (folder.parent / '.config' / 'metadata.json').write_text('{"default_config_name": "../../hostile"}')
  refused('tfds:sound', 'metadata.json', 'outside', cache=folder.parents[2])


def test_rows_that_lie_elsewhere_or_are_gone(folder, tmp_path):
  (shard,) = folder.glob('*array_record*')
  shard.rename(tmp_path / 'rows')
  refused(folder, shard.name, 'no file')
  shard.symlink_to(tmp_path / 'rows')
  refused(folder, shard.name, 'outside')
  shard.unlink()
  os.mkfifo(shard)
  refused(folder, shard.name, 'neither a file nor a folder')
  shard.unlink()
  (folder / 'inside').write_bytes((tmp_path / 'rows').read_bytes())
  shard.symlink_to('inside')
  assert len(sources.open_source(str(folder), cache='none')) == 2


@pytest.mark.parametrize(
  'feature',
  [
    of_type(f'{CORE}.class_label_feature.ClassLabel', names_file='/etc/hostname'),
    proto(f'{CORE}.class_label_feature.ClassLabel', jsonFeature={'json': '{"names_file": "/etc/hostname"}'}),
    of_type(f'{CORE}.labeled_image.LabeledImage', labels='/etc/hostname', shape=[1, 1, 3]),
  ],
)
def test_names_of_classes_are_read_from_no_other_file(folder, feature):
  (folder / 'features.json').write_text(json.dumps(of_dict(feature)))
  refused(folder, '/etc/hostname')


@pytest.mark.parametrize('name', ['features.json', 'dataset_info.json'])
@pytest.mark.parametrize(
  'content',
  ['', '{', '[]', '3', 'null', '{}', '[' * 100_000, '{"a":' * 2000 + '1' + '}' * 2000, '\xff', '{"splits": 3}',
   '{"features": 3}', '{"pythonClassName": 3}', '{"type": {}}', '{"splits": [3]}', '{"version": "../.."}'],
)  # fmt: skip
def test_damaged_descriptions_are_one_line(folder, name, content):
  (folder / name).write_bytes(content.encode('latin-1'))
  refused(folder, str(folder))
  with pytest.raises(ValueError, match='sound'):
    list(sources.open_source('tfds:sound', cache=str(folder.parents[2])))


@pytest.mark.parametrize('name', ['features.json', 'label.labels.txt', 'other'])
def test_pipes_are_refused(folder, name):
  (folder / name).unlink(missing_ok=True)
  os.mkfifo(folder / name)
  refused(folder, name, 'neither a file nor a folder')


def test_flipped_bits_end_in_one_line_or_in_the_same_rows(prepared, tmp_path):
  import random

  draw = random.Random(0)
  target = tmp_path / 'sound' / '1.0.0'
  shutil.copytree(prepared, target)
  expected = list(sources.open_source(str(prepared), cache='none'))
  names = [file for file in sorted(target.iterdir()) if file.suffix == '.json']
  for _ in range(60):
    file = pathlib.Path(draw.choice(names))
    before = file.read_bytes()
    place = draw.randrange(len(before) * 8)
    damaged = bytearray(before)
    damaged[place // 8] ^= 1 << place % 8
    file.write_bytes(damaged)
    try:
      found = list(sources.open_source(str(target), cache='none'))
      assert len(found) == len(expected)
    except ValueError as error:
      assert str(error)
    file.write_bytes(before)
