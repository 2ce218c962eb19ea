"""Exact quantiles of more numbers than memory should hold: they lie in a file of 8 bytes each.

A number that is not negative is ordered as its bits are, so the number of a rank is found by 16 bits of it per pass
over the file: how many numbers have which next 16 bits, among those that begin with the bits that are known.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from plm_jax.io import files

AT_ONCE = 65_536  # numbers in memory
_DIGIT = 16  # bits that one pass settles
_BITS = np.dtype(np.uint64)


class Spilled:
  """Numbers from 0 on, in a file."""

  def __init__(self, file: files.Path):
    """Begins an empty file."""
    self._file, self._count = file, 0
    files.write_bytes(file, b'')

  def append(self, values: Sequence[float]) -> None:
    """Writes values behind those that are there."""
    with files.open(self._file, 'ab') as stream:
      stream.write(np.asarray(values, np.float64).tobytes())
    self._count += len(values)

  def quantiles(self, shares: Sequence[float]) -> list[float]:
    """What `np.quantile` gives of all values, between two of them on a line; nan where there are none."""
    if not self._count:
      return [float('nan')] * len(shares)
    places = [share * (self._count - 1) for share in shares]
    found = self._ranked(sorted({min(int(place) + more, self._count - 1) for place in places for more in (0, 1)}))
    return [_between(found[int(place)], found[min(int(place) + 1, self._count - 1)], place % 1) for place in places]

  def _ranked(self, ranks: Sequence[int]) -> dict[int, float]:
    """The values of ranks, 0 the smallest."""
    # rank -> the bits that are known of its value, and its rank among the values that begin with them
    known = {rank: (0, rank) for rank in ranks}
    for shift in range(64 - _DIGIT, -1, -_DIGIT):
      counts = {bits: np.zeros(1 << _DIGIT, np.int64) for bits, _ in known.values()}
      for values in self._read():
        begins, digits = values >> np.uint64(shift) >> np.uint64(_DIGIT), values >> np.uint64(shift)
        for bits, count in counts.items():
          among = (digits if shift + _DIGIT == 64 else digits[begins == bits]) & np.uint64((1 << _DIGIT) - 1)
          count += np.bincount(among.astype(np.int64), minlength=1 << _DIGIT)
      for rank, (bits, left) in known.items():
        up_to = np.cumsum(counts[bits])
        digit = int(np.searchsorted(up_to, left, side='right'))
        known[rank] = ((bits << _DIGIT) | digit, left - (int(up_to[digit - 1]) if digit else 0))
    return {rank: float(np.array(bits, _BITS).view(np.float64)) for rank, (bits, _) in known.items()}

  def _read(self) -> Iterator[np.ndarray]:
    for start in range(0, self._count, AT_ONCE):
      count = min(AT_ONCE, self._count - start)
      yield files.read_array(self._file, _BITS, count=count, offset=start * _BITS.itemsize)


def _between(low: float, high: float, share: float) -> float:
  return high - (high - low) * (1 - share) if share >= 0.5 else low + (high - low) * share
