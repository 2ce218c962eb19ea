"""Vectors of words in files: a line per word, the word and its numbers with a space between (GloVe's form).

Files of word2vec's text form (.vec), whose first line says how many words and numbers there are, are read as well; a
file may be zipped (.gz).
"""

import gzip
import logging
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from plm_jax import files
from plm_jax.types import Vocab

log = logging.getLogger(__name__)

ENDINGS = ('.txt', '.txt.gz', '.vec', '.vec.gz')


class Table(NamedTuple):
  """Vectors for the ids of a vocabulary.

  Attributes:
    vectors: f32[v, d]; zero for an id whose word the file lacks, and for special tokens.
    hits: number of ids with a vector.
    words: number of words of the file.
  """

  vectors: np.ndarray
  hits: int
  words: int


def is_vectors(where: files.Where) -> bool:
  """Whether a path names a file of word vectors, by its ending."""
  return str(where).endswith(ENDINGS)


def read(file: files.Where, vocab: Vocab) -> Table:
  """The vectors of a file for the words of a vocabulary, matched as they are written.

  Args:
    file: see the head of this file.
    vocab: whose ids the rows are.

  Raises:
    ValueError: a line that does not have a word and as many numbers as the others, or no vectors at all. The message
      has file and line.
  """
  special = set(vocab.special_ids)
  ids = {vocab.token(number): number for number in range(vocab.size) if number not in special}
  found: dict[int, np.ndarray] = {}
  width, words = 0, 0
  for number, line in enumerate(_lines(file), start=1):
    where = f'{file}, line {number}'
    word, *numbers = line.decode('utf-8', errors='replace').rstrip().split(' ')
    if number == 1 and len(numbers) == 1 and word.isdecimal():
      continue  # the first line of word2vec: words and width
    width = width or len(numbers)
    if len(numbers) != width or not width:
      raise ValueError(
        f'{where}: {word[:40]!r} has {len(numbers)} numbers, and the words before have {width}: mend or remove the line'
      )
    words += 1
    if (row := ids.get(word)) is not None:
      found[row] = _vector(numbers, where=where)
  if not words:
    raise ValueError(f'{file} holds no word vectors')
  vectors = np.zeros((vocab.size, width), np.float32)
  for row, vector in found.items():
    vectors[row] = vector
  log.info(
    f'{file}: {words:,} words, {width} numbers each. {len(found):,} of {len(ids):,} words of the vocabulary have a '
    'vector there, the others have zeros.'
  )
  return Table(vectors, len(found), words)


def _lines(file: files.Where) -> Iterator[bytes]:
  """The lines of a file, unzipped where its name says so."""
  with files.open(file, 'rb') as stream:
    if not str(file).endswith('.gz'):
      yield from stream
      return
    try:
      with gzip.GzipFile(fileobj=stream) as unzipped:
        yield from unzipped
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
      raise ValueError(f'{file} is not a whole gzip file: {error}') from error


def _vector(numbers: list[str], *, where: str) -> np.ndarray:
  """The numbers of a line as f32[d]; raises ValueError where one is none, or not finite."""
  try:
    vector = np.array(numbers, np.float32)
  except ValueError as error:
    raise ValueError(f'{where}: {error}: mend or remove the line') from error
  if not np.isfinite(vector).all():
    raise ValueError(f'{where}: a number is not finite: mend or remove the line')
  return vector
