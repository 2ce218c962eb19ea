"""Files of word vectors: word2vec's text and binary forms, and GloVe's text form; any of them zipped as .gz.

word2vec   a line with the number of words and the width, then a line per word: the word and its numbers
binary     the same first line, then per word: the word, a space, float32 numbers, and a line break that may be missing
glove      word2vec without the first line

`read` takes all words of a file, `for_vocab` those of a vocabulary, so that a file may be larger than the memory.
"""

import gzip
import io
import itertools
import logging
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Literal, NamedTuple

import numpy as np

from plm_jax.core.errors import one_of
from plm_jax.core.types import Vocab
from plm_jax.io import files

log = logging.getLogger(__name__)

Form = Literal['word2vec', 'binary', 'glove']
LONGEST = 2**24  # bytes of a line that is read to tell text from binary
UNZIPPED = 1032  # most bytes that one byte of a .gz file stands for
DIGITS = 18  # most of a number in a first line
ENDINGS = ('.txt', '.vec', '.bin')  # and each with .gz behind it


_SIGNED = re.compile('[-+]?[0-9]+')
_REPLACED = '\ufffd'  # for bytes that are no UTF-8


class WordVectors(NamedTuple):
  """Words and their vectors.

  Attributes:
    words: all different; the most frequent ones first, where the file or the vocabulary keeps that order.
    vectors: f32[n, d], a row for each.
    unseen: another word -> f32[d], where its letters tell (fastText); no file holds it.
    normalise: a word -> as the tokenizer of a run writes it, in small letters for example; None for a file.
  """

  words: tuple[str, ...]
  vectors: np.ndarray
  unseen: Callable[[str], np.ndarray] | None = None
  normalise: Callable[[str], str] | None = None


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


class Entry(NamedTuple):
  """A word of a file with its numbers as they are there: texts, or float32 of a binary file; and where it stands."""

  word: str
  numbers: list[str] | np.ndarray
  where: str


def is_vectors(where: files.Where) -> bool:
  """Whether a path names a file of word vectors, by its ending."""
  return str(where).removesuffix('.gz').endswith(ENDINGS)


def form_of(file: files.Where, form: Form | None = None) -> Form:
  """The form in which a file is written: 'binary' where its name ends in .bin, 'word2vec' elsewhere, or as asked.

  Raises:
    ValueError: a form that does not fit the ending, by which `read` and other libraries tell text from binary.
  """
  ends = str(file).removesuffix('.gz').endswith('.bin')
  if form is None:
    return 'binary' if ends else 'word2vec'
  one_of('form', form, Form)
  if ends and form != 'binary':
    raise ValueError(f'{file}: a name that ends in .bin is read as binary, and form={form} is text: name it .txt')
  if form == 'binary' and not ends:
    raise ValueError(f'{file}: form=binary is read where the name ends in .bin or .bin.gz alone: name it so')
  return form


def read(file: files.Where, *, form: Form | None = None) -> WordVectors:
  """Reads a file of vectors; of a word that is there several times, the first vector.

  Args:
    file: which one.
    form: None finds it: 'binary' where the name ends in .bin, else by the first line.

  Raises:
    FileNotFoundError: there is none.
    ValueError: a line that does not have as many numbers as the first one, or numbers that no spaces separate, with
      file and line; no words at all; a binary file that is text, that is smaller than a vector, that ends early or that
      goes on behind its last word.
  """
  found: dict[str, np.ndarray] = {}
  count = 0
  for count, entry in enumerate(_entries(file, form), start=1):  # noqa: B007
    if entry.word not in found:
      found[entry.word] = _vector(entry)
  if again := count - len(found):
    log.warning(
      f'{file}: {again:,} of {count:,} lines are of a word that is there before; the first vector of each counts'
    )
  return WordVectors(tuple(found), np.stack(list(found.values())))


def for_vocab(file: files.Where, vocab: Vocab) -> Table:
  """The vectors of a file for the words of a vocabulary, matched as they are written, else in small letters.

  GloVe's files have small letters alone; 'The' then has the vector of 'the'.

  Args:
    file: which one; its form is found as by `read`.
    vocab: whose ids the rows are.

  Raises:
    As `read`; ValueError as well where no word of the file is in the vocabulary.
  """
  special = set(vocab.special_ids)
  ids = {vocab.token(number): number for number in range(vocab.size) if number not in special}
  written: dict[str, list[int]] = {}  # small letters -> ids of words with others
  for word, number in ids.items():
    if word.lower() != word:
      written.setdefault(word.lower(), []).append(number)
  found: dict[int, np.ndarray] = {}
  small: dict[int, np.ndarray] = {}
  words, width, again = 0, 0, 0
  for entry in _entries(file, None):
    words, width = words + 1, len(entry.numbers)
    row, rows = ids.get(entry.word), written.get(entry.word, ())
    again += row in found
    if row is not None and row not in found:
      found[row] = _vector(entry)
    if rows and rows[0] not in small:
      small |= dict.fromkeys(rows, _vector(entry))
  found = small | found
  if not found:
    some = ', '.join(map(repr, list(ids)[:3]))
    raise ValueError(
      f'{file}: none of its {words:,} words is a token of the vocabulary, which has {some} and others: name vectors of '
      'its words, or another vocabulary'
    )
  vectors = np.zeros((vocab.size, width), np.float32)
  for row, vector in found.items():
    vectors[row] = vector
  log.info(
    f'{file}: {words:,} words, {width} numbers each. {len(found):,} of {len(ids):,} words of the vocabulary have a '
    'vector there, the others have zeros.'
    + (f' {again:,} further vectors of them are left out: the first one counts.' if again else '')
  )
  return Table(vectors, len(found), words)


def write(file: files.Where, vectors: WordVectors, *, form: Form) -> int:
  """Writes a file of vectors, zipped where its name ends in .gz; words with white space are left out, and counted.

  Numbers of the text forms have nine digits, so that reading them gives the same bits.

  Returns:
    How many words were written.

  Raises:
    ValueError: all words have white space, which no form holds.
  """
  one_of('form', form, Form)
  kept = [number for number, word in enumerate(vectors.words) if word.split() == [word]]
  if odd := sorted(set(range(len(vectors.words))).difference(kept)):
    some = ', '.join(repr(vectors.words[number]) for number in odd[:3]) + (', ...' if len(odd) > 3 else '')
    said = f'of {len(vectors.words):,} words have white space, which no file of vectors can hold'
    if not kept:
      raise ValueError(f'{file}: {len(odd):,} {said}: {some}')
    log.warning(f'{file}: {len(odd):,} {said}; they are left out: {some}')
  words, rows = [vectors.words[number] for number in kept], np.asarray(vectors.vectors, '<f4')
  with files.replacing(file) as temporary, files.open(temporary, 'wb') as stream:
    if str(file).endswith('.gz'):
      with gzip.GzipFile(filename='', mode='wb', fileobj=stream, mtime=0) as content:
        content.writelines(_lines(words, rows[kept], form))
    else:
      stream.writelines(_lines(words, rows[kept], form))
  return len(kept)


def _lines(words: Iterable[str], rows: np.ndarray, form: Form) -> Iterator[bytes]:
  """What a file of these words holds: its first line, where the form has one, then a piece for each word."""
  if form != 'glove':
    yield b'%d %d\n' % rows.shape
  for word, row in zip(words, rows, strict=True):
    numbers = row.tobytes() if form == 'binary' else ' '.join(f'{number:.9g}' for number in row).encode()
    yield word.encode() + b' ' + numbers + b'\n'


@contextmanager
def _opened(file: files.Where) -> Iterator[IO[bytes]]:
  with files.open(file, 'rb') as stream:
    if not str(file).endswith('.gz'):
      yield stream
      return
    try:
      with gzip.GzipFile(fileobj=stream) as content:
        yield io.BufferedReader(content)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
      raise ValueError(f'{file} is no complete .gz file: {error}') from error


def _entries(file: files.Where, form: Form | None) -> Iterator[Entry]:
  """The words of a file, one after the other.

  Raises:
    ValueError: as `read`.
  """
  binary = (form or form_of(file)) == 'binary'
  if binary:
    _check_not_text(file)
  with _opened(file) as stream:
    lines = (line.decode('utf-8', errors='replace') for line in stream)
    entries = _binary_entries(stream, file) if binary else _text_entries(lines, file, form)
    count, odd = 0, 0
    for entry in entries:
      count, odd = count + 1, odd + (_REPLACED in entry.word)
      yield entry
  if not count:
    raise ValueError(f'{file} holds no word vectors')
  if odd:
    log.warning(
      f'{file}: {odd:,} of {count:,} words have the sign {_REPLACED}, which stands for bytes that are no UTF-8: if the '
      'file is written in Latin-1, `iconv -f latin1 -t utf-8` converts it'
    )


def _text_entries(lines: Iterator[str], file: files.Where, form: Form | None) -> Iterator[Entry]:
  first, second = next(lines, '').removeprefix('\ufeff'), next(lines, '')
  parts = first.split()
  could_be_head = len(parts) == 2 and all(part.isdecimal() and len(part) <= DIGITS for part in parts)
  headed = could_be_head if form is None else form == 'word2vec'
  if headed and not could_be_head:
    raise ValueError(f'{file}, line 1: expected the number of words and the width, as word2vec writes them')
  if form is None and not headed and len(parts) == 2 and all(map(_SIGNED.fullmatch, parts)):
    raise ValueError(f'{file}, line 1: {parts[0]} and {parts[1]} are no number of words and no width: mend the line')
  width = int(parts[1]) if headed else _width(first, second)
  if first and width < 1:
    raise ValueError(f'{file}, line 1: expected a word and its numbers{_separated(first)}')
  count = 0
  for number, line in enumerate(itertools.chain([first, second] if second else [first], lines), start=1):
    if number == 1 and (headed or not parts):
      continue
    where = f'{file}, line {number}'
    word, *numbers = _split(line, width)
    extra = _numbers_of(word) if all(map(_is_number, numbers)) else 0
    if extra or len(numbers) != width or not word:
      found = len(numbers) + extra if extra else max(0, len(line.split()) - 1)
      binary = headed and re.search(r'[\x00-\x08\x0e-\x1f\ufffd]', line)
      cure = _separated(line) or ': mend or remove the line'
      cure = ', and bytes that are no text: let the name of a binary file end in .bin' if binary else cure
      raise ValueError(f'{where}: {found} numbers behind the word, expected {width}{cure}')
    count += 1
    yield Entry(word, numbers, where)
  if headed and count != int(parts[0]):
    raise ValueError(f'{file} has {count} words, and its first line says {parts[0]}: it is not complete')


def _split(line: str, width: int) -> list[str]:
  """A word, which may have spaces, and up to `width` numbers."""
  word, *numbers = line.rstrip(' \r\n').rsplit(' ', width)
  return [word.strip(' '), *numbers]


def _numbers_of(word: str) -> int:
  """How many pieces of a word behind the first one are numbers: of a line that has too many."""
  return sum(_is_number(piece.strip(',')) for piece in re.split('[ \t]+', word)[1:])


def _separated(line: str) -> str:
  """What separates the numbers of a line, for a message, where it is no space."""
  for name, sign in (('tabs', r'\t *'), ('commas', ', *')):
    if re.search(rf'{sign}[-+.0-9]', line):
      return f', which are separated by {name}, and are to be by spaces'
  return ''


def _width(first: str, second: str) -> int:
  """How many numbers stand behind each word, by the first two lines of a file in GloVe's form.

  All parts of the first line but one; or, where the first word has spaces, as many as end it and are numbers, which
  has to be so of the second line too.
  """
  parts = _split(first, -1)
  width = _numbers_at_end(parts)
  return width if width == _numbers_at_end(_split(second, -1)) else len(parts) - 1


def _numbers_at_end(parts: list[str]) -> int:
  """How many of the parts behind the first one are numbers, from the last one on."""
  return sum(1 for _ in itertools.takewhile(_is_number, reversed(parts[1:])))


def _is_number(text: str | bytes) -> bool:
  try:
    float(text)
  except ValueError:
    return False
  return '_' not in (text if isinstance(text, str) else text.decode(errors='replace'))  # as Python takes it


def _check_not_text(file: files.Where) -> None:
  """Raises ValueError where a file that is to be read as binary has numbers as text behind its first word."""
  with _opened(file) as stream:
    head = stream.readline(LONGEST).split()
    width = int(head[1]) if len(head) == 2 and head[1].isdigit() and len(head[1]) <= DIGITS else 0
    _, *numbers = stream.readline(LONGEST).rstrip().rsplit(b' ', min(width, LONGEST))
  if 0 < width == len(numbers) and all(map(_is_number, numbers)):
    raise ValueError(f'{file} is read as binary, and holds text: let its name end in .txt, or name a form of text')


def _binary_entries(stream: IO[bytes], file: files.Where) -> Iterator[Entry]:
  first = stream.readline().split()
  if len(first) != 2 or not all(part.isdigit() and len(part) <= DIGITS for part in first):
    raise ValueError(f'{file} is no binary file of word2vec: its first line is not a number of words and a width')
  count, width = map(int, first)
  if not 0 < 4 * width <= files.size(file) * (UNZIPPED if str(file).endswith('.gz') else 1):
    more = ' is more than the file has numbers' if width else ''
    raise ValueError(f'{file}, line 1: a width of {width:,}{more}: it is not complete, or no binary file of word2vec')
  for number in range(1, count + 1):
    letters = bytearray()
    while (letter := stream.read(1)) not in (b' ', b''):
      letters += letter
    row = stream.read(4 * width)
    if len(row) < 4 * width:
      raise ValueError(f'{file} ends in word {number} of {count}: it is not complete')
    word = letters.lstrip(b'\r\n').decode('utf-8', errors='replace')
    yield Entry(word, np.frombuffer(row, '<f4'), f'{file}, word {number}')
  while rest := stream.read(2**16):
    if rest.strip():
      raise ValueError(f'{file} goes on behind word {count}, its last one: it is no binary file, or not whole')


def _vector(entry: Entry) -> np.ndarray:
  """The numbers of a word as f32[d]; raises ValueError where one is none, or not finite."""
  if isinstance(entry.numbers, list) and (odd := [one for one in entry.numbers if '_' in one]):
    raise ValueError(f'{entry.where}: no number, {odd[0]!r}: mend or remove the line')  # to numpy, 1_0 is 10
  try:
    with np.errstate(over='ignore'):  # said below
      vector = np.array(entry.numbers, np.float32)
  except ValueError as error:
    raise ValueError(f'{entry.where}: {error}: mend or remove the line') from None
  if not np.isfinite(vector).all():
    raise ValueError(f'{entry.where}: a number is not finite: mend or remove the line')
  return vector
