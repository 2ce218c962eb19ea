"""Exact quantiles of more numbers than fit into memory: they are in a file of 8 bytes each.

The order of non-negative numbers is the order of their bits. The number of a rank is found 16 bits per pass over the
file: count the next 16 bits among the numbers that begin with the bits found so far.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from plm_jax.io import files

AT_ONCE = 65_536  # numbers in memory
_DIGIT = 16  # bits per pass
_BITS = np.dtype(np.uint64)


class Spilled:
  """Non-negative numbers in a file."""

  def __init__(self, file: files.Path):
    self._file, self._count = file, 0
    files.write_bytes(file, b'')

  def append(self, values: Sequence[float]) -> None:
    """Append values to the file."""
    with files.open(self._file, 'ab') as stream:
      stream.write(np.asarray(values, np.float64).tobytes())
    self._count += len(values)

  def quantiles(self, shares: Sequence[float]) -> list[float]:
    """Compute `np.quantile` of all values, interpolated; nan without values."""
    if not self._count:
      return [float('nan')] * len(shares)
    ranks = [share * (self._count - 1) for share in shares]
    values = self._ranked(sorted({min(int(rank) + more, self._count - 1) for rank in ranks for more in (0, 1)}))
    return [_between(values[int(rank)], values[min(int(rank) + 1, self._count - 1)], rank % 1) for rank in ranks]

  def _ranked(self, ranks: Sequence[int]) -> dict[int, float]:
    # rank -> first bits of its value, and its rank among the values that begin with them
    prefixes = {rank: (0, rank) for rank in ranks}
    for shift in range(64 - _DIGIT, -1, -_DIGIT):
      counts = {bits: np.zeros(1 << _DIGIT, np.int64) for bits, _ in prefixes.values()}
      for values in self._read():
        begins, digits = values >> np.uint64(shift) >> np.uint64(_DIGIT), values >> np.uint64(shift)
        for bits, count in counts.items():
          among = (digits if shift + _DIGIT == 64 else digits[begins == bits]) & np.uint64((1 << _DIGIT) - 1)
          count += np.bincount(among.astype(np.int64), minlength=1 << _DIGIT)
      for rank, (bits, left) in prefixes.items():
        up_to = np.cumsum(counts[bits])
        digit = int(np.searchsorted(up_to, left, side='right'))
        prefixes[rank] = ((bits << _DIGIT) | digit, left - (int(up_to[digit - 1]) if digit else 0))
    return {rank: float(np.array(bits, _BITS).view(np.float64)) for rank, (bits, _) in prefixes.items()}

  def _read(self) -> Iterator[np.ndarray]:
    for start in range(0, self._count, AT_ONCE):
      count = min(AT_ONCE, self._count - start)
      yield files.read_array(self._file, _BITS, count=count, offset=start * _BITS.itemsize)


def _between(low: float, high: float, share: float) -> float:
  return high - (high - low) * (1 - share) if share >= 0.5 else low + (high - low) * share
