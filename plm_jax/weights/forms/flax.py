"""`flax_model.msgpack` of the Flax classes that transformers had until version 4, in one file or several.

Names are those of PyTorch except the last part: `kernel` is the transposed weight, `scale` and `embedding` are the
weight (modeling_flax_pytorch_utils.py). Tried with what transformers 4.57 wrote for BERT, RoBERTa, XLM-R, ALBERT,
DistilBERT, ELECTRA, GPT-2, BART, mBART, T5, mT5 and LLaMA: logits equal those of its Flax classes.
"""

import functools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import numpy as np

from plm_jax.checkpoint import Leaf
from plm_jax.checkpoint.tensor_files import DTYPES, Tensor, WeightsError
from plm_jax.io import files
from plm_jax.weights.release import Release

DEEPEST = 32
_CHUNKED = '__msgpack_chunked_array__'  # an array of more than 2**30 bytes: its shape, and chunks of it
_LIMITS = {'max_array_len': 0, 'max_map_len': 0, 'max_buffer_size': 2**32 - 1}


class Flax(Release):
  """The tensors of a folder."""

  FILE = 'flax_model.msgpack'

  def open_file(self, file: Path) -> dict[str, Leaf]:
    found = dict(arrays(file))
    for path in [path[:-1] for path in found if path[-1] == _CHUNKED]:
      inner = {key[len(path) :]: found.pop(key) for key in list(found) if key[: len(path)] == path}
      shape = tuple(inner['shape', str(axis)] for axis in range(sum(key[0] == 'shape' for key in inner)))
      found[path] = [inner['chunks', str(part)] for part in range(len(inner) - len(shape) - 1)], shape
    leaves = {}
    for path, value in found.items():
      parts, shape = value if isinstance(value, tuple) and not isinstance(value, Tensor) else ([value], value.shape)
      turned = path[-1] == 'kernel' and len(shape) == 2
      read = functools.partial(_read, file, parts, shape, turned)
      leaves[self.renamed('/'.join(path))] = Leaf(shape[::-1] if turned else shape, read)
    return leaves

  def renamed(self, name: str) -> str:
    *parts, last = name.removeprefix('params/').split('/')
    return '.'.join([*parts, 'weight' if last in ('kernel', 'scale', 'embedding') else last])


def read(file: Path, _: Path) -> Flax:
  """Find the tensors of a folder; raise WeightsError for damaged files."""
  return Flax(file.parent)


def _read(file: Path, parts: list[Tensor], shape: tuple[int, ...], turned: bool, layer: None) -> np.ndarray:
  arrays = [files.read_array(file, part.dtype, count=math.prod(part.shape), offset=part.begin) for part in parts]
  array = (arrays[0] if len(arrays) == 1 else np.concatenate(arrays)).reshape(shape)
  return array.T if turned else array


class _Array(NamedTuple):
  dtype: np.dtype
  shape: tuple[int, ...]
  size: int


def arrays(file: Path) -> Iterator[tuple[tuple[str, ...], Any]]:
  """Yield (path, `Tensor` or scalar), with one array in memory.

  Raises:
    WeightsError: the file is damaged, or holds anything else.
  """
  with files.open(file, 'rb') as stream:
    unpacker = msgpack.Unpacker(stream, ext_hook=_array, **_LIMITS)
    try:
      yield from _below(unpacker, (), unpacker.read_map_header())
    except (ValueError, TypeError, msgpack.UnpackException) as error:
      raise WeightsError(f'{file} is damaged or no msgpack of Flax ({error or "cut short"}): fetch it again') from error


def _below(unpacker: msgpack.Unpacker, path: tuple[str, ...], count: int) -> Iterator[tuple[tuple[str, ...], Any]]:
  for _ in range(count):
    key = unpacker.unpack()
    if not isinstance(key, str) or len(path) > DEEPEST:
      raise ValueError(f'no name or too deep below {"/".join(path)[:80]!r}')
    try:
      inner = unpacker.read_map_header()
    except ValueError:  # no map
      value, end = unpacker.unpack(), unpacker.tell()
      yield (*path, key), Tensor(*value[:2], end - value.size, end) if isinstance(value, _Array) else value
    else:
      yield from _below(unpacker, (*path, key), inner)


def _array(code: int, content: bytes) -> _Array:
  """Read shape and dtype of an array, which precede its bytes."""
  head = msgpack.Unpacker(max_array_len=64, max_map_len=0)
  head.feed(content[:1024])
  if code not in (1, 3) or head.read_array_header() != 3:
    raise ValueError('an object that is no array')
  shape, name = tuple(head.unpack()), head.unpack()
  dtype = DTYPES['BF16'] if name == 'bfloat16' else np.dtype(name)
  size = math.prod(shape) * dtype.itemsize
  if dtype not in DTYPES.values() or min(shape, default=0) < 0 or not 2 <= len(content) - head.tell() - size <= 5:
    raise ValueError(f'an array {name} {shape} of {len(content)} bytes')
  return _Array(dtype, shape, size)
