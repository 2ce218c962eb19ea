"""Headers of safetensors files: what the library refuses is refused, what it takes reads the same."""

import json
import os
import pathlib
import random
from typing import Any

import numpy as np
import pytest
import safetensors

from plm_jax.checkpoint.tensor_files import Container, WeightsError


def tensor(shape: Any, begin: Any, end: Any, **more: Any) -> dict[str, Any]:
  return {'dtype': 'F32', 'shape': shape, 'data_offsets': [begin, end], **more}


def entry(**more: str) -> bytes:
  parts = {'dtype': '"F32"', 'shape': '[2]', 'data_offsets': '[0,8]'} | more
  return b'{"a":{' + ','.join(f'"{key}":{value}' for key, value in parts.items()).encode() + b'}}'


SOUND = entry()
# header, bytes behind it
HEADERS: dict[str, tuple[Any, int]] = {
  'sound': (SOUND, 8),
  'bytes behind the last tensor': (SOUND, 9),
  'cut': (SOUND, 7),
  'a hole': ({'a': tensor([1], 0, 4), 'b': tensor([1], 8, 12)}, 12),
  'a hole in front': ({'a': tensor([1], 4, 8)}, 8),
  'overlapping': ({'a': tensor([2], 0, 8), 'b': tensor([1], 4, 8)}, 8),
  'the same bytes twice': ({'a': tensor([1], 0, 4), 'b': tensor([1], 0, 4)}, 4),
  'in another order': ({'b': tensor([1], 4, 8), 'a': tensor([1], 0, 4)}, 8),
  'end before begin': ({'a': tensor([2], 8, 0)}, 8),
  'a shape beside the bytes': ({'a': tensor([3], 0, 8)}, 8),
  'half a number': ({'a': tensor([2.5], 0, 10)}, 10),
  'a float': ({'a': tensor([2.0], 0, 8)}, 8),
  'a float as place': ({'a': tensor([2], 0.0, 8)}, 8),
  'an exponent': (entry(data_offsets='[0,8e0]'), 8),
  'minus nothing': (entry(data_offsets='[-0,8]'), 8),
  'infinite': (entry(shape='[Infinity]'), 8),
  'no number': (entry(shape='[NaN]'), 8),
  'true': ({'a': tensor([True], 0, 4)}, 4),
  'text': ({'a': tensor(['2'], 0, 8)}, 8),
  'negative': ({'a': tensor([-1, -2], 0, 8)}, 8),
  'negative place': ({'a': tensor([2], -8, 0)}, 8),
  'too large a product': ({'a': tensor([2**33, 2**33], 0, 0)}, 0),
  'too large a number': ({'a': tensor([2**64], 0, 0)}, 0),
  'an enormous number': (entry(shape='[' + '9' * 5000 + ']'), 8),
  'enormously many axes': ({'a': tensor([2**62] * 5000 + [0], 0, 0)}, 0),
  'three places': ({'a': {'dtype': 'F32', 'shape': [2], 'data_offsets': [0, 8, 9]}}, 8),
  'one place': ({'a': {'dtype': 'F32', 'shape': [2], 'data_offsets': [0]}}, 8),
  'no shape': ({'a': {'dtype': 'F32', 'data_offsets': [0, 8]}}, 8),
  'something more': ({'a': tensor([2], 0, 8, more=1)}, 8),
  'empty': (b'{}', 0),
  'empty with bytes': (b'{}', 2),
  'nothing at all': (b'', 0),
  'a tensor of nothing': ({'a': tensor([0], 0, 0)}, 0),
  'a tensor of nothing inside another': ({'a': tensor([0], 2, 2), 'b': tensor([1], 0, 4)}, 4),
  'a scalar': ({'a': tensor([], 0, 4)}, 4),
  'no such type': (entry(dtype='"F3"'), 8),
  'a type in small letters': (entry(dtype='"f32"'), 8),
  'no type': (entry(dtype='null'), 8),
  'a list': (b'[]', 0),
  'no tensor': (b'{"a":null}', 0),
  'metadata': ({'__metadata__': {'a': 'b'}, 'a': tensor([2], 0, 8)}, 8),
  'metadata with numbers': ({'__metadata__': {'a': 1}, 'a': tensor([2], 0, 8)}, 8),
  'metadata that is text': ({'__metadata__': 'a', 'a': tensor([2], 0, 8)}, 8),
  'metadata twice': (b'{"__metadata__":{},"__metadata__":{},' + SOUND[1:], 8),
  'a tensor twice': (SOUND[:-1] + b',' + SOUND[1:], 8),
  'a field twice': (b'{"a":{"dtype":"F32",' + SOUND[6:], 8),
  'white space behind': (SOUND + b' \n', 8),
  'a null byte behind': (SOUND + b'\0', 8),
  'not UTF-8': ('{"ä":'.encode('latin-1') + SOUND[5:], 8),
  'UTF-16': (SOUND.decode().encode('utf-16'), 8),
  'a byte order mark': (b'\xef\xbb\xbf' + SOUND, 8),
  'half a character': (b'{"\\ud800":' + SOUND[5:], 8),
  'a control character': (b'{"\n":' + SOUND[5:], 8),
  'too deep': (entry(more='[' * 300 + ']' * 300), 8),
  'far too deep': (b'[' * 1_000_000, 8),
}


def write(file: pathlib.Path, header: Any, size: int, *, length: int | None = None) -> pathlib.Path:
  text = header if isinstance(header, bytes) else json.dumps(header).encode()
  file.write_bytes((len(text) if length is None else length).to_bytes(8, 'little') + text + bytes(range(size)))
  return file


def read_by_library(file: pathlib.Path) -> dict[str, np.ndarray] | None:
  try:
    with safetensors.safe_open(file, 'np') as opened:
      return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
  except safetensors.SafetensorError:
    return None


def agree(file: pathlib.Path) -> bool:
  """Compares with the library; returns whether both take the file."""
  expected = read_by_library(file)
  try:
    container = Container(file)
  except WeightsError as error:
    assert str(file) in str(error) and '\n' not in str(error)
    assert expected is None, f'refused, though the library reads it: {error}'
    return False
  assert expected is not None, 'taken, though the library refuses it'
  assert container.tensors.keys() == expected.keys()
  for name, array in expected.items():
    np.testing.assert_array_equal(container.read(name), array, strict=True)
  return True


@pytest.mark.parametrize('name', HEADERS)
def test_the_rules_of_the_library(name: str, tmp_path: pathlib.Path) -> None:
  assert agree(write(tmp_path / 'x.safetensors', *HEADERS[name])) == (name in TAKEN)


TAKEN = {'sound', 'in another order', 'something more', 'empty', 'a tensor of nothing', 'a scalar', 'metadata',
         'a tensor twice', 'white space behind'}  # fmt: skip


@pytest.mark.parametrize('length', [0, 1, 10**8, 10**8 + 1, 2**63, 2**64 - 1])
def test_lengths_of_headers(length: int, tmp_path: pathlib.Path) -> None:
  assert not agree(write(tmp_path / 'x.safetensors', SOUND, 8, length=length))


def test_changed_bytes_of_a_header_are_read_as_the_library_reads_them(tmp_path: pathlib.Path) -> None:
  draw = random.Random(0)
  header = {'a': tensor([2, 3], 0, 24), 'b.c': tensor([], 24, 28), '__metadata__': {'format': 'pt'}}
  whole = write(tmp_path / 'x.safetensors', header, 28).read_bytes()
  taken = 0
  for _ in range(600):
    damaged = bytearray(whole)
    for _ in range(draw.choice((1, 1, 2))):
      damaged[draw.randrange(len(whole) - 28)] = draw.choice(b'0123456789[]{},:"eE.-+ \\nF32aU8\xff')
    (tmp_path / 'x.safetensors').write_bytes(damaged)
    taken += agree(tmp_path / 'x.safetensors')
  assert 20 < taken < 500


@pytest.mark.parametrize('make', [os.mkfifo, os.mkdir, lambda path: os.symlink('/dev/zero', path)])
def test_what_is_no_file_is_refused_at_once(make: Any, tmp_path: pathlib.Path) -> None:
  make(tmp_path / 'x.safetensors')
  with pytest.raises(WeightsError, match=r'x\.safetensors'):
    Container(tmp_path / 'x.safetensors')
