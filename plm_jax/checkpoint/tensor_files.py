"""Files of tensors in the safetensors format, read one tensor at a time and written a few rows at a time.

The `safetensors` library maps whole files and writes all tensors at once, which conversions in bounded memory cannot
do; the library itself checks the headers. A file is 8 bytes with the length of a JSON header (little endian), the
header (name -> dtype, shape, begin and end of the bytes) and the bytes.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import safetensors

from plm_jax.core.errors import WeightsError as WeightsError
from plm_jax.io import files

_KINDS = {
  'F64': np.float64, 'F32': np.float32, 'F16': np.float16, 'BF16': jnp.bfloat16, 'U64': np.uint64, 'U32': np.uint32,
  'U16': np.uint16, 'I64': np.int64, 'I32': np.int32, 'I16': np.int16, 'I8': np.int8, 'U8': np.uint8, 'BOOL': np.bool_,
}  # fmt: skip
DTYPES = {name: np.dtype(kind) for name, kind in _KINDS.items()}
_MOST_HEADER = 100_000_000  # limit of the library
_MOST_AXES = 64  # limit of numpy


class Tensor(NamedTuple):
  """Location of a tensor: its dtype, shape and bytes [begin, end) of the file."""

  dtype: np.dtype
  shape: tuple[int, ...]
  begin: int
  end: int


class Container:
  """One file, opened for reading; its header is checked against its size and by the rules of the library.

  By these rules every byte belongs to exactly one tensor.

  Raises:
    WeightsError: not such a file, or a truncated one.
  """

  def __init__(self, file: Path):
    self.file = file
    try:
      size = files.size(file)
      with files.open(file, 'rb') as stream:
        length = int.from_bytes(stream.read(8), 'little')
        if size < 8 or length > min(_MOST_HEADER, size - 8):
          raise WeightsError(
            f'{file} is cut short or no safetensors file: its header does not fit into {size} bytes; fetch it again'
          )
        header = files.parse_json(stream.read(length).decode('utf-8'))
    except (OSError, ValueError) as error:
      raise WeightsError(f'{file} cannot be read as a safetensors file: {error}; fetch it again') from error
    if not isinstance(header, dict):
      raise WeightsError(f'{file} cannot be read as a safetensors file: its header is no JSON object; fetch it again')
    header.pop('__metadata__', None)
    self.tensors: dict[str, Tensor] = {}
    for name, entry in header.items():
      self.tensors[name] = self._check(name, entry, start=8 + length, size=size)
    try:
      with files.with_head(file, 8 + length) as head, safetensors.safe_open(head, 'np'):
        pass
    except (safetensors.SafetensorError, OSError) as error:
      raise WeightsError(f'{file} violates the safetensors format ({error}): fetch it again') from error

  def _check(self, name: str, entry: Any, *, start: int, size: int) -> Tensor:
    try:
      dtype, shape, (begin, end) = DTYPES[entry['dtype']], tuple(entry['shape']), entry['data_offsets']
    except (KeyError, TypeError, ValueError) as error:
      raise WeightsError(f'{self.file}: tensor {name!r} has an invalid header ({error}); fetch it again') from error
    if len(shape) > _MOST_AXES or not all(type(n) is int and 0 <= n < 2**63 for n in (*shape, begin, end)):
      raise WeightsError(f'{self.file}: tensor {name!r} has an invalid shape or offset; fetch it again')
    begin, end = start + begin, start + end
    if end - begin != math.prod(shape) * dtype.itemsize:
      raise WeightsError(
        f'{self.file}: tensor {name!r} of shape {shape} does not fit its {end - begin} bytes; fetch it again'
      )
    if end > size:
      raise WeightsError(f'{self.file} is cut short: tensor {name!r} ends at byte {end} of {size}; fetch it again')
    return Tensor(dtype, shape, begin, end)

  def read(self, name: str) -> np.ndarray:
    """Read one tensor into its own memory."""
    tensor = self.tensors[name]
    count = math.prod(tensor.shape)
    return files.read_array(self.file, tensor.dtype, count=count, offset=tensor.begin).reshape(tensor.shape)


class Plan(NamedTuple):
  """A tensor to write: its dtype, its shape, and a function that yields its elements in order, as arrays."""

  dtype: np.dtype
  shape: tuple[int, ...]
  pieces: Callable[[], Iterable[np.ndarray]]

  @property
  def size(self) -> int:
    return math.prod(self.shape) * self.dtype.itemsize


def shards(plans: Iterable[tuple[str, Plan]], size: int) -> list[dict[str, Plan]]:
  """Group the tensors into files of at most `size` bytes, never empty."""
  groups: list[dict[str, Plan]] = [{}]
  filled = 0
  for name, plan in plans:
    if groups[-1] and filled + plan.size > size:
      groups.append({})
      filled = 0
    groups[-1][name] = plan
    filled += plan.size
  return groups


def write(file: Path, plans: Mapping[str, Plan]) -> None:
  """Write one file, with one piece in memory at a time.

  Raises:
    WeightsError: the pieces of a tensor do not add up to its size.
  """
  names = {dtype: name for name, dtype in DTYPES.items()}
  header: dict[str, Any] = {'__metadata__': {'format': 'pt'}}
  offset = 0
  for name, plan in plans.items():
    header[name] = {'dtype': names[plan.dtype], 'shape': plan.shape, 'data_offsets': (offset, offset + plan.size)}
    offset += plan.size
  text = json.dumps(header, ensure_ascii=False).encode()
  text += b' ' * (-len(text) % 8)
  with files.open(file, 'wb') as stream:
    stream.write(len(text).to_bytes(8, 'little') + text)
    for name, plan in plans.items():
      before = stream.tell()
      for piece in plan.pieces():
        stream.write(np.ascontiguousarray(piece).view(np.uint8).data if piece.ndim else piece.tobytes())
        del piece  # it may be a view of a tensor: free it before the next one is read
      if stream.tell() - before != plan.size:
        raise WeightsError(f'{file}: tensor {name!r} has {stream.tell() - before} bytes instead of {plan.size}')
    files.flush_to_disk(stream)
