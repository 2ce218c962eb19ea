"""fastText's own `.bin`: words with counts, the table of words and n-grams, and a table of outputs (src/fasttext.cc).

Read from models of every kind, with a vector for unseen words if letters were trained. Tried with files of fasttext
0.9.2 (skip-gram, CBOW, supervised), which reads what is written here to the same bits, and of gensim 4.4. What is
written is a skip-gram model whose outputs are zero.
"""

import math
import struct
from pathlib import Path

import numpy as np

from plm_jax.core.subwords import Letters
from plm_jax.io import files
from plm_jax.io.other_forms import FASTTEXT

_SUPERVISED, _PIECE = 3, 2**20


def read(file: Path) -> tuple[tuple[str, ...], Letters]:
  """Read words and their tables, which stay on disk.

  Raises:
    ValueError: a quantised, damaged or incomplete file.
  """
  size = files.size(file)
  with files.open(file, 'rb') as stream:

    def take(form: str) -> tuple:
      try:
        return struct.unpack(f'<{form}', stream.read(struct.calcsize(f'<{form}')))
      except struct.error as error:
        raise ValueError(f'{file} is cut short: fetch it again') from error

    _, version, width, *_, model, buckets, shortest, longest, _, _ = take('14id')
    entries, count, _, _, pruned = take('3i2q')
    if version not in (11, 12) or not 0 < width < 2**20 or not 0 < count <= entries < size or buckets < 0:
      raise ValueError(f'{file} is damaged, or of another version of fastText ({version}): fetch it again')
    words: list[str] = []
    counts: list[int] = []
    rest, at = b'', 0
    for _ in range(entries):
      while (end := rest.find(b'\0', at)) < 0 or end + 10 > len(rest):
        piece = stream.read(_PIECE)
        if not piece or len(rest) - at > _PIECE:
          raise ValueError(f'{file} is damaged or cut short after {len(words):,} words: fetch it again')
        rest, at = rest[at:] + piece, 0
      number, kind = struct.unpack_from('<qb', rest, end + 1)
      if kind == 0:
        words.append(rest[at:end].decode('utf-8', errors='replace'))
        counts.append(number)
      at = end + 10
    stream.seek(stream.tell() - len(rest) + at)
    if take('?')[0] or pruned >= 0:
      raise ValueError(f'{file} is quantised (.ftz), which is not supported: take the .bin of the same model')
    rows, columns = take('2q')
    start = stream.tell()
    end = start + 4 * rows * columns
    stream.seek(max(0, min(end, size)))
    outputs = take('?2q')[1:]
  if (rows, columns, len(words)) != (count + buckets, width, count) or end + 17 + 4 * math.prod(outputs) != size:
    raise ValueError(f'{file} is damaged or cut short: its tables do not fit its {size:,} bytes; fetch it again')
  table = files.map_array(file, np.uint8)[start:end].view('<f4').reshape(rows, width)
  longest = 0 if version == 11 and model == _SUPERVISED else longest
  return tuple(words), Letters(table[:count], table[count:], shortest, longest, np.array(counts))


def write(file: Path, words: tuple[str, ...], letters: Letters) -> None:
  """Write a model, through a temporary file."""
  (count, width), buckets = letters.words.shape, len(letters.ngrams)
  with files.replacing(file) as temporary, files.open(temporary, 'wb') as stream:
    # sizes, window, epochs, least count, negatives, word n-grams, loss and model (negatives, skip-gram), letters, rates
    settings = (width, 5, 5, 1, 5, 1, 2, 2, buckets, letters.shortest, letters.longest, 100, 1e-4)
    stream.write(FASTTEXT + struct.pack('<13id', 12, *settings))
    stream.write(struct.pack('<3i2q', count, count, 0, int(letters.counts.sum()), -1))
    for word, number in zip(words, letters.counts, strict=True):
      stream.write(word.encode() + struct.pack('<bqb', 0, number, 0))
    stream.write(struct.pack('<?2q', False, count + buckets, width))
    for table in (letters.words, letters.ngrams):
      for start in range(0, len(table), _PIECE // width + 1):
        stream.write(np.ascontiguousarray(table[start : start + _PIECE // width + 1], '<f4').data)
    stream.write(struct.pack('<?2q', False, count, width))
    for start in range(0, count, _PIECE // width + 1):
      stream.write(bytes(4 * width * min(_PIECE // width + 1, count - start)))
