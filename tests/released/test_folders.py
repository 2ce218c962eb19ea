"""Folders of real weights are converted bit by bit, in the memory of a tensor; damaged ones are refused."""

import json
import pathlib
import shutil
from collections.abc import Callable

import numpy as np
import pytest

import plm_jax
from benchmarks import convert
from plm_jax.__main__ import main
from plm_jax.cli import command
from plm_jax.core.errors import ConfigError
from plm_jax.weights import release

pytestmark = pytest.mark.released

Find = Callable[[str], pathlib.Path]


def assert_same_tensors(a: pathlib.Path, b: pathlib.Path, *, prefix: str = '') -> None:
  """Check that `b` has the bits of `a` under names with `prefix`."""
  one, other = release.Release(a), release.Release(b)
  names = {name for name in one if not name.endswith('position_ids')}  # a range, which transformers has dropped
  assert {f'{prefix}{name}' for name in names} == set(other)
  for name in names:
    np.testing.assert_array_equal(one.read(name), other.read(f'{prefix}{name}'), err_msg=name)


def test_export_has_the_bits_of_minilm(released: Find, tmp_path: pathlib.Path) -> None:
  source = released('minilm')
  assert main(['convert', 'import', str(source), str(tmp_path / 'ours')]) == 0
  assert main(['convert', 'export', str(tmp_path / 'ours'), str(tmp_path / 'back')]) == 0
  assert_same_tensors(source, tmp_path / 'back', prefix='bert.')
  text = 'A man is playing a flute.'
  np.testing.assert_array_equal(
    plm_jax.load(source).encode(text, pool='mean'), plm_jax.load(tmp_path / 'back').encode(text, pool='mean')
  )


@pytest.mark.skipif(not pathlib.Path('/proc/self/status').exists(), reason='peaks of memory are read from /proc')
def test_smollm2_is_converted_in_the_memory_of_a_tensor(released: Find, tmp_path: pathlib.Path) -> None:
  source = released('smollm2')
  (tmp_path / 'hf').symlink_to(source.resolve())
  file = (source / 'model.safetensors').stat().st_size
  largest = 49_152 * 576 * 4  # of the token table, 113 MB of 538
  assert file > 4 * largest
  for name, measured in convert.measure(tmp_path).items():
    assert measured.memory <= 2 * largest, f'{name}: {measured.memory / largest:.2f} times the largest tensor'
  assert_same_tensors(source, tmp_path / 'back')


def refuses(words: list[str]) -> None:
  assert command.run(lambda: main(words)) == 2


def test_half_a_folder_is_refused(released: Find, tmp_path: pathlib.Path) -> None:
  source = released('minilm')
  for name in ('config.json', 'tokenizer.json', 'tokenizer_config.json'):
    shutil.copy(source / name, tmp_path / name)
  target = tmp_path.parent / f'{tmp_path.name}_out'
  with pytest.raises(ConfigError, match='safetensors') as absent:
    plm_jax.load(tmp_path).encode('a')
  refuses(['convert', 'import', str(tmp_path), str(target)])
  with (source / 'model.safetensors').open('rb') as file:
    (tmp_path / 'model.safetensors').write_bytes(file.read(5_000_000))
  with pytest.raises(ConfigError, match='is cut short') as cut:
    plm_jax.load(tmp_path).encode('a')
  refuses(['convert', 'import', str(tmp_path), str(target)])
  assert not target.exists()
  assert all(len(str(error.value)) <= 240 for error in (absent, cut)), json.dumps([str(absent.value), str(cut.value)])
