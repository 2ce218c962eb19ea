"""Damaged files of rows of a TFDS folder: an error that names the file, or the same rows.

ArrayRecord stores a hash of each block. `data.on_bad_row` also applies to this format, row by row.
"""

import collections
import logging
import pathlib
import random
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow_datasets as tfds

from plm_jax.core.errors import ConfigError
from plm_jax.data import labelled
from plm_jax.data.corpora import sources
from plm_jax.text import byte_bpe
from plm_jax.training import parts
from tests import runs

TRIALS, SHARDS = 100, 2
COUNTS = {'train': 40, 'validation': 1_200}  # one in a thousand of the latter may be left out


@pytest.fixture(scope='module')
def prepared(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """Prepare the version folder of a set with two files per split."""

  class Sharded(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # so that files alone describe it
    VERSION = tfds.core.Version('1.0.0')
    url_infos = None

    def _info(self) -> tfds.core.DatasetInfo:
      features = {'text': tfds.features.Text(), 'label': tfds.features.ClassLabel(names=['no', 'yes'])}
      return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[Any]]:
      return {
        split: ((n, {'text': f'text {n} of {split}', 'label': n % 2}) for n in range(rows))
        for split, rows in COUNTS.items()
      }

    def _generate_examples(self) -> None:
      raise NotImplementedError

  root = tmp_path_factory.mktemp('prepared')
  how = tfds.download.DownloadConfig(num_shards=SHARDS)
  Sharded(data_dir=str(root), file_format='array_record').download_and_prepare(download_config=how)
  return root / 'sharded' / '1.0.0'


@pytest.fixture
def folder(prepared: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
  return pathlib.Path(shutil.copytree(prepared, tmp_path / 'sharded' / '1.0.0'))


def shards(folder: pathlib.Path, split: str) -> list[pathlib.Path]:
  found = sorted(folder.glob(f'*{split}.array_record*'))
  assert len(found) == SHARDS
  return found


def damaged(sound: bytes, draw: random.Random, kind: str) -> bytes:
  """Change a bit or a byte of the file, or cut it off.

  In two of three trials the damage is in rows.
  """
  filled = [place for place, byte in enumerate(sound) if byte]  # the rest fills a file up to whole blocks
  place = draw.choice(filled) if draw.random() < 2 / 3 else draw.randrange(len(sound))
  if kind == 'cut off':
    return sound[:place]
  other = bytearray(sound)
  other[place] ^= 1 << draw.randrange(8) if kind == 'bit' else draw.randrange(1, 256)
  return bytes(other)


def test_damage_is_named_or_harmless(folder: pathlib.Path) -> None:
  draw, ends = random.Random(0), collections.Counter()
  expected = list(sources.open_source(str(folder), cache='none'))
  assert len(expected) == COUNTS['train']
  for trial in range(TRIALS):
    file = shards(folder, 'train')[trial % SHARDS]
    sound, kind = file.read_bytes(), ('bit', 'byte', 'cut off')[trial % 3]
    file.write_bytes(damaged(sound, draw, kind))
    try:
      found = list(sources.open_source(str(folder), cache='none'))
    except ValueError as error:
      ends[kind, 'named'] += 1
      assert file.name in str(error) and 'damaged' in str(error) and '\n' not in str(error)
    else:
      ends[kind, 'harmless'] += 1
      assert found == expected, (trial, kind)
    file.write_bytes(sound)
  print(dict(ends))
  assert all(ends[kind, 'named'] >= 15 for kind in ('bit', 'byte', 'cut off')), ends
  assert list(sources.open_source(str(folder), cache='none')) == expected


def spoil(file: pathlib.Path, place: int) -> None:
  """Change a bit of a row: rows begin at byte 64 and are short."""
  content = bytearray(file.read_bytes())
  assert any(content[place - 8 : place + 8])
  content[place] ^= 1
  file.write_bytes(content)


def test_training_ends_with_one_message(folder: pathlib.Path, data: pathlib.Path) -> None:
  settings = runs.settings('mlm', data, data={'path': str(folder)})
  file = shards(folder, 'train')[1]
  spoil(file, 500)
  with pytest.raises(ConfigError) as error:
    parts.make_source(settings['data'], parts.make_vocab(settings), seed=0)
  assert str(error.value).startswith('data: row ') and file.name in str(error.value)


def make(folder: pathlib.Path, data: pathlib.Path, **changes: Any) -> Any:
  settings = {'fields': ('text',), 'length': 32, 'batch_size': 8, 'cache': str(data / 'cache'), 'seed': 0}
  return labelled.make(
    vocab=byte_bpe.make(path=str(data / 'vocab')),
    path=str(folder),
    split='validation',
    host=0,
    hosts=1,
    **settings | changes,
  )


def test_rows_are_left_out_up_to_the_cap(
  folder: pathlib.Path, data: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
  caplog.set_level(logging.INFO, logger='plm_jax')
  first, second = shards(folder, 'validation')
  spoil(first, 500)
  with pytest.raises(ValueError, match=rf'row \d+ of .*{first.name}.*damaged'):
    make(folder, data)
  assert make(folder, data, on_bad_row='skip').rows == COUNTS['validation'] - 1
  assert 'on_bad_row' in caplog.text and first.name in caplog.text
  spoil(second, 500)
  with pytest.raises(ValueError, match=r'0\.1 ?%'):
    make(folder, data, on_bad_row='skip')
