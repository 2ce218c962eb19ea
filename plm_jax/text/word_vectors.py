"""Vectors of words in files: a line per word, the word and its numbers with a space between (GloVe's form).

Files of word2vec's text form (.vec), whose first line says how many words and numbers there are, are read as well; a
file may be zipped (.gz).
"""

import gzip
import logging
from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np

from plm_jax import files
from plm_jax.types import Vocab

log = logging.getLogger(__name__)

ENDINGS = ('.txt', '.txt.gz', '.vec', '.vec.gz')
Cased = Literal['as they are', 'in lower case']


class Table(NamedTuple):
  """Vectors for the ids of a vocabulary.

  Attributes:
    vectors: f32[v, d]; zero for an id whose word the file lacks, and for special tokens.
    hits: number of ids with a vector.
    lines: number of words of the file.
  """

  vectors: np.ndarray
  hits: int
  lines: int


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
  width, lines = 0, 0
  with files.named(file), files.open(file, 'rb') as plain:
    stream = gzip.GzipFile(fileobj=plain) if str(file).endswith('.gz') else plain
    for number, line in enumerate(stream, start=1):
      word, numbers = _split(line, where=f'{file}, line {number}')
      if number == 1 and len(numbers) == 1 and word.isdecimal():
        continue  # a head of word2vec: words and width
      width = width or len(numbers)
      if len(numbers) != width:
        raise ValueError(
          f'{file}, line {number}: {word!r} has {len(numbers)} numbers, and the words before have {width}: mend or '
          'remove this line'
        )
      lines += 1
      if (row := ids.get(word)) is not None:
        found[row] = _numbers(numbers, where=f'{file}, line {number}')
  if not lines:
    raise ValueError(f'{file} holds no word vectors')
  vectors = np.zeros((vocab.size, width), np.float32)
  for row, vector in found.items():
    vectors[row] = vector
  log.info(
    f'{file}: {lines:,} words of {width} numbers; {len(found):,} of the {len(ids):,} words of the vocabulary have one, '
    'the others have the zero vector.'
  )
  return Table(vectors, len(found), lines)
