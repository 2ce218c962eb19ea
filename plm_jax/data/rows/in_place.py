"""Token ids that stay in a bucket or on a shared disk: blocks are read when they are needed.

`plm-jax prepare --shared=DIR --in_place` copies everything of a store except `tokens.bin`, and writes its location to
`in_place.json`. A block of the store's manifest, about a million tokens, is read whole and compared with its checksum.
The blocks read last stay in memory, at most `HELD` bytes a store. So the rows of consecutive batches have to be near
each other: `data.shuffle_window` of `data.stream`.
"""

import contextlib
import dataclasses
import functools
import hashlib
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from plm_jax.core.errors import ConfigError, RunError
from plm_jax.io import files

if TYPE_CHECKING:
  from plm_jax.data.rows.store import Block

log = logging.getLogger(__name__)

FILE = 'in_place.json'
HELD = 2**30  # bytes of blocks of a store in memory
LARGEST_WINDOW = HELD // 8  # tokens: two windows of ids of 4 bytes
_AT_ONCE = 8  # blocks that are read at the same time


def location(folder: Path) -> Path | None:
  """Return the location of a store's ids; None if in its folder."""
  named = files.read_json(folder / FILE, default=None)
  return None if named is None else files.path(named['tokens'])


@contextlib.contextmanager
def _there(where: Path) -> Iterator[None]:
  """Raise RunError instead of FileNotFoundError."""
  try:
    yield
  except FileNotFoundError as error:
    raise RunError(f'{where} does not exist: repeat plm-jax prepare with --shared and --in_place') from error


def damage(folder: Path, what: str) -> str:
  """Return the message about a damaged store."""
  return f'{folder} is damaged ({what}): remove it, and repeat plm-jax prepare with --shared and --in_place'


class Blocks:
  """The blocks of a store elsewhere: read in parallel, compared with their checksums, the newest held in memory."""

  def __init__(self, where: Path, blocks: Sequence['Block'], dtype: np.dtype):
    """Take blocks of the manifest that have tokens, and compare sizes.

    Raises RunError: there are no ids at `where`, or too few or too many of them.
    """
    self.where, self.dtype, self._blocks = where, dtype, blocks
    expected = (blocks[-1].first_token + blocks[-1].tokens) * dtype.itemsize
    with _there(where):
      size = files.size(where)
    if size != expected:
      raise RunError(damage(where.parent, f'tokens.bin has {size:,} bytes instead of {expected:,}'))
    self.starts = np.array([block.first_token for block in blocks])
    largest = max(block.tokens for block in blocks) * dtype.itemsize
    self._pool = ThreadPoolExecutor(_AT_ONCE, 'blocks read in place')
    self._begin = functools.lru_cache(max(HELD // largest, 1))(self._submit)

  def read(self, numbers: Sequence[int]) -> list[np.ndarray]:
    """Return the ids of these blocks; raise RunError for a damaged one."""
    begun = [self._begin(number) for number in numbers]
    try:
      return [block.result() for block in begun]
    except Exception:
      self._begin.cache_clear()  # read again, not raised again
      raise

  def _submit(self, number: int) -> Future[np.ndarray]:
    return self._pool.submit(self._read, self._blocks[number])

  def _read(self, block: 'Block') -> np.ndarray:
    offset = block.first_token * self.dtype.itemsize
    for tried in range(2):
      with _there(self.where):
        ids = files.read_array(self.where, self.dtype, count=block.tokens, offset=offset)
      if hashlib.sha256(ids.tobytes()).hexdigest() == block.tokens_sha256:
        return ids
      log.warning('%s: tokens from %d differ from their checksum (%s)', self.where, block.first_token,
                  'reading them again' if not tried else 'twice')  # fmt: skip
    raise RunError(damage(self.where.parent, f'from token {block.first_token:,}'))


@dataclasses.dataclass(frozen=True)
class InPlace:
  """A range of the ids of a store elsewhere, uint16 or uint32 [n]; safe to read from several threads."""

  blocks: Blocks
  range: range

  def __len__(self) -> int:
    return len(self.range)

  def __getitem__(self, positions: slice) -> 'InPlace':
    return dataclasses.replace(self, range=self.range[positions])  # reads nothing

  def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    return self.take(np.arange(len(self))).astype(dtype or self.blocks.dtype)

  def take(self, positions: np.ndarray, *, mode: Literal['raise', 'clip'] = 'raise') -> np.ndarray:
    """Return the ids at these positions, as `np.ndarray.take`."""
    if mode == 'clip':
      positions = np.clip(positions, 0, len(self) - 1)
    elif positions.size and not 0 <= positions.min() <= positions.max() < len(self):
      raise IndexError(f'positions must be 0 to {len(self) - 1}')
    positions = positions + self.range.start
    numbers = np.searchsorted(self.blocks.starts, positions, side='right') - 1
    needed = np.unique(numbers).tolist()
    ids = np.empty(positions.shape, self.blocks.dtype)
    for number, block in zip(needed, self.blocks.read(needed), strict=True):
      inside = numbers == number
      ids[inside] = block[positions[inside] - self.blocks.starts[number]]
    return ids


def check_near(ids: Any, *, near: bool, folder: Path | None, where: str) -> None:
  """Refuse batches from all over a large store elsewhere.

  Raises ConfigError unless `near`, or unless all blocks are held in memory.
  """
  if isinstance(ids, InPlace) and not near and len(ids) * ids.blocks.dtype.itemsize > HELD:
    raise ConfigError(
      f'{where} is read in place, so batches need rows near each other: set data.shuffle_window={2**26} in layouts '
      f'stream, full or rows of data stream. Or copy it: remove {folder}, and prepare without --in_place'
    )
