"""Files of word vectors: word2vec's text and binary forms, and GloVe's text form; any of them zipped as .gz.

word2vec   a line with the number of words and the width, then a line per word: the word and its numbers
binary     the same first line, then per word: the word, a space, float32 numbers, and a line break that may be missing
glove      word2vec without the first line
"""

import gzip
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Literal, NamedTuple

import numpy as np

from plm_jax import files
from plm_jax.errors import one_of

Form = Literal['word2vec', 'binary', 'glove']


class WordVectors(NamedTuple):
  """Words and their vectors.

  Attributes:
    words: all different; the most frequent ones first, where the file or the vocabulary keeps that order.
    vectors: f32[n, d], a row for each.
  """

  words: tuple[str, ...]
  vectors: np.ndarray


def read(file: files.Where, *, form: Form | None = None) -> WordVectors:
  """Reads a file of vectors; of a word that is there several times, the first vector.

  Args:
    file: which one.
    form: None finds it: 'binary' where the name ends in .bin, else by the first line.

  Raises:
    FileNotFoundError: there is none.
    ValueError: a line that does not have as many numbers as the first one, with file and line.
  """
  name = str(file).removesuffix('.gz')
  with _opened(file) as stream:
    if (form or ('binary' if name.endswith('.bin') else '')) == 'binary':
      words, vectors = _read_binary(stream, file)
    else:
      with io.TextIOWrapper(stream, 'utf-8', errors='replace', newline='\n') as lines:
        words, vectors = _read_text(lines, file, form)
  first = {word: number for number, word in reversed(list(enumerate(words)))}
  if len(first) < len(words):
    kept = sorted(first.values())
    words, vectors = [words[number] for number in kept], vectors[kept]
  return WordVectors(tuple(words), vectors)


def write(file: files.Where, vectors: WordVectors, *, form: Form) -> None:
  """Writes a file of vectors; numbers of the text forms have nine digits, so that reading them gives the same bits.

  Raises:
    ValueError: a word with white space, which no form can hold.
  """
  one_of('form', form, Form)
  if odd := [word for word in vectors.words if not word or word.split() != [word]]:
    raise ValueError(f'{file}: the word {odd[0]!r} has white space, and such a file has none in words')
  header = b'' if form == 'glove' else b'%d %d\n' % vectors.vectors.shape
  with files.replacing(file) as temporary, files.open(temporary, 'wb') as stream:
    stream.write(header)
    for word, row in zip(vectors.words, np.asarray(vectors.vectors, '<f4'), strict=True):
      numbers = row.tobytes() if form == 'binary' else ' '.join(f'{number:.9g}' for number in row).encode()
      stream.write(word.encode() + b' ' + numbers + b'\n')


@contextmanager
def _opened(file: files.Where) -> Iterator[IO[bytes]]:
  with files.open(file, 'rb') as stream:
    if not str(file).endswith('.gz'):
      yield stream
      return
    try:
      with gzip.GzipFile(fileobj=stream) as content:
        yield io.BufferedReader(content)
    except (EOFError, gzip.BadGzipFile) as error:
      raise ValueError(f'{file} is no complete .gz file: {error}') from error


def _read_text(stream: IO[str], file: files.Where, form: Form | None) -> tuple[list[str], np.ndarray]:
  lines = enumerate(stream, start=1)
  first = next(lines, (1, ''))[1].split()
  headed = form == 'word2vec' or (form is None and len(first) == 2 and all(part.isdecimal() for part in first))
  if headed and not (len(first) == 2 and all(part.isdecimal() for part in first)):
    raise ValueError(f'{file}, line 1: expected the number of words and the width, as word2vec writes them')
  width = int(first[1]) if headed else len(first) - 1
  if width < 1:
    raise ValueError(f'{file}, line 1: expected a word and its numbers')
  words, rows = [], []
  if not headed:
    words, rows = [first[0]], [_numbers(first[1:], f'{file}, line 1')]
  for number, line in lines:
    word, *parts = line.rstrip('\n').rstrip(' ').rsplit(' ', width)
    if len(parts) != width or not word:
      raise ValueError(f'{file}, line {number}: {len(line.split()) - 1} numbers behind the word, expected {width}')
    words.append(word)
    rows.append(_numbers(parts, f'{file}, line {number}'))
  if headed and len(words) != int(first[0]):
    raise ValueError(f'{file} has {len(words)} words, and its first line says {first[0]}: it is not complete')
  return words, np.stack(rows) if rows else np.zeros((0, width), np.float32)


def _numbers(parts: list[str], where: str) -> np.ndarray:
  try:
    return np.array(parts, np.float32)
  except ValueError as error:
    raise ValueError(f'{where}: {error}') from None


def _read_binary(stream: IO[bytes], file: files.Where) -> tuple[list[str], np.ndarray]:
  first = stream.readline().split()
  if len(first) != 2 or not all(part.isdigit() for part in first):
    raise ValueError(f'{file} is no binary file of word2vec: its first line is not a number of words and a width')
  count, width = map(int, first)
  words, rows = [], []
  for number in range(1, count + 1):
    letters = bytearray()
    while (letter := stream.read(1)) not in (b' ', b''):
      letters += letter
    row = stream.read(4 * width)
    if len(row) < 4 * width:
      raise ValueError(f'{file} ends in word {number} of {count}: it is not complete')
    words.append(letters.lstrip(b'\n').decode('utf-8', errors='replace'))
    rows.append(np.frombuffer(row, '<f4'))
  return words, np.stack(rows) if rows else np.zeros((0, width), np.float32)
