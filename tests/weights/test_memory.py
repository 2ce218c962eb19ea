"""A conversion holds about one tensor at a time, whatever the size of the model; benchmarks/convert.py has 2 GB."""

import pathlib

import pytest

from benchmarks import convert


@pytest.mark.skipif(not pathlib.Path('/proc/self/status').exists(), reason='peaks of memory are read from /proc')
def test_conversions_take_the_memory_of_a_tensor(tmp_path: pathlib.Path) -> None:
  largest = convert.write_source(tmp_path / 'hf', width=512, layers=5, dtype='float32', vocab_size=12_000)
  source = sum(file.stat().st_size for file in (tmp_path / 'hf').glob('*.safetensors'))
  assert source > 3 * largest  # or holding everything would pass
  for command, measured in convert.measure(tmp_path).items():
    assert measured.memory <= 2 * largest, f'{command}: {measured.memory / largest:.2f} times the largest tensor'
  assert convert.same_tensors(tmp_path / 'hf', tmp_path / 'back')
