"""Files of word vectors: word2vec's text and binary forms, and GloVe's text form; each also compressed as .gz.

word2vec   a line with the number of words and the width, then a line per word: the word and its numbers
binary     the same first line, then per word: the word, a space, float32 numbers, and an optional line break
glove      word2vec without the first line
fasttext   fastText's own, with n-grams (`fasttext_files.py`)

`read` returns all words of a file, `for_vocab` those of a vocabulary, so that a file may be larger than the memory.
"""

import gzip
import io
import itertools
import logging
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Literal, NamedTuple

import numpy as np

from plm_jax.core.errors import one_of
from plm_jax.core.subwords import Letters
from plm_jax.core.types import Vocab
from plm_jax.io import files, other_forms
from plm_jax.weights import fasttext_files

log = logging.getLogger(__name__)

Form = Literal['word2vec', 'binary', 'glove', 'fasttext']
LONGEST = 2**24  # maximum bytes of a line, and of the numbers of a word
LONGEST_WORD = 2**16  # maximum bytes of a word in a binary file
UNZIPPED = 1032  # maximum bytes that one byte of a .gz file expands to
DIGITS = 18  # maximum of a number in the first line
ENDINGS = ('.txt', '.vec', '.bin')  # also followed by .gz
OTHERS = ('.kv', '.model', '.npy', '.wordvectors', '.magnitude')  # of files of vectors that are not read
# first bytes of files of other programs -> what they are
_OTHER_FORMS: Mapping[bytes, str] = {
  b'\x80': "a pickle (gensim's own format), which can execute code",
  b'\x93NUMPY': 'an array of NumPy, without the words',
  b'PK\x03\x04': 'an archive',
  b'\x89HDF': 'HDF5',
  b'SQLite': 'a database',
}
_SIGNED = re.compile('[-+]?[0-9]+')
_REPLACED = '\ufffd'  # replaces bytes that are not UTF-8


class WordVectors(NamedTuple):
  """Words and their vectors."""

  words: tuple[str, ...]  # all different; most frequent first, if the file or the vocabulary has that order
  vectors: np.ndarray  # f32[n, d], a row per word
  # another word -> f32[d], computed from its letters (fastText); not stored in files
  unseen: Callable[[str], np.ndarray] | None = None
  # a word -> the form of a run's tokenizer, such as lower case; None for a file
  normalise: Callable[[str], str] | None = None
  letters: Letters | None = None  # tables of words and n-grams (fastText), which only form 'fasttext' stores


class Table(NamedTuple):
  """Vectors for the ids of a vocabulary."""

  vectors: np.ndarray  # f32[v, d]; zero for special tokens and for words that the file lacks
  hits: int  # number of ids with a vector
  words: int  # number of words of the file


class Entry(NamedTuple):
  """A word of a file, its numbers (texts, or float32 of a binary file), and its location."""

  word: str
  numbers: list[str] | np.ndarray
  where: str


def is_vectors(where: files.Where) -> bool:
  """Check whether the ending of a path is that of word vectors."""
  return str(where).removesuffix('.gz').endswith(ENDINGS) or (str(where).endswith(OTHERS) and files.is_file(where))


def form_of(file: files.Where, form: Form | None = None) -> Form:
  """Choose a file's form: the given one, 'binary' for .bin, or 'word2vec'.

  Raises:
    ValueError: a form that contradicts the ending, which `read` and other libraries rely on.
  """
  ends = str(file).removesuffix('.gz').endswith('.bin')
  if form is None:
    return 'binary' if ends else 'word2vec'
  one_of('form', form, Form)
  if ends and form not in ('binary', 'fasttext'):
    raise ValueError(f'{file}: .bin files are binary, but form={form} is text: name the file .txt')
  if form in ('binary', 'fasttext') and not (ends and (form == 'binary' or str(file).endswith('.bin'))):
    ending = '.bin or .bin.gz' if form == 'binary' else '.bin'
    raise ValueError(f'{file}: form={form} needs a name that ends in {ending}: rename the file')
  return form


def read(file: files.Where, *, form: Form | None = None) -> WordVectors:
  """Read a file of vectors.

  The first vector of a repeated word is used.

  Args:
    form: None detects it: 'binary' for .bin, else by the first line.

  Raises:
    FileNotFoundError: there is none.
    ValueError: with file and line: a line whose count of numbers differs from the first, or with other separators than
      spaces; no words; a binary file that is text, smaller than a vector, too short, or too long.
  """
  if _is_fasttext(file):
    words, letters = fasttext_files.read(files.local_path(file, what='file'))
    table = np.stack([letters.vector(word, row) for row, word in enumerate(words)])
    unseen = letters.vector if letters.longest and len(letters.ngrams) else None
    return WordVectors(words, table, unseen, letters=letters)
  vectors: dict[str, np.ndarray] = {}
  count = 0
  for count, entry in enumerate(_entries(file, form), start=1):  # noqa: B007
    if entry.word not in vectors:
      vectors[entry.word] = _vector(entry)
  if repeated := count - len(vectors):
    log.warning(f'{file}: {repeated:,} of {count:,} lines repeat a word; the first vector of each word is used')
  return WordVectors(tuple(vectors), np.stack(list(vectors.values())))


def for_vocab(file: files.Where, vocab: Vocab) -> Table:
  """Read the vectors of a vocabulary's words from a file.

  Words match as they are written, else in lower case. GloVe's files are in lower case only; 'The' then has the vector
  of 'the'.

  Args:
    file: its path; its form is detected as by `read`.
    vocab: the vocabulary of the ids.

  Raises:
    As `read`; also ValueError if no word of the file is in the vocabulary.
  """
  special = set(vocab.special_ids)
  ids = {vocab.token(token_id): token_id for token_id in range(vocab.size) if token_id not in special}
  lower_ids: dict[str, list[int]] = {}  # lower case -> ids of words that are not
  for word, token_id in ids.items():
    if word.lower() != word:
      lower_ids.setdefault(word.lower(), []).append(token_id)
  by_id: dict[int, np.ndarray] = {}
  by_lower: dict[int, np.ndarray] = {}
  words, width, repeated = 0, 0, 0
  for entry in _of_vocab(file, ids) if _is_fasttext(file) else _entries(file, None):
    words, width = words + 1, len(entry.numbers)
    row, rows = ids.get(entry.word), lower_ids.get(entry.word, ())
    repeated += row in by_id
    if row is not None and row not in by_id:
      by_id[row] = _vector(entry)
    if rows and rows[0] not in by_lower:
      by_lower |= dict.fromkeys(rows, _vector(entry))
  by_id = by_lower | by_id
  if not by_id:
    examples = ', '.join(map(repr, list(ids)[:3]))
    raise ValueError(
      f'{file}: none of its {words:,} words is in the vocabulary ({examples}, ...): use vectors of these words, or '
      'another vocabulary'
    )
  vectors = np.zeros((vocab.size, width), np.float32)
  for row, vector in by_id.items():
    vectors[row] = vector
  log.info(
    f'{file}: {words:,} words, {width} numbers each. {len(by_id):,} of {len(ids):,} words of the vocabulary have a '
    'vector, the others are zero.'
    + (f' {repeated:,} further vectors of repeated words are ignored.' if repeated else '')
  )
  return Table(vectors, len(by_id), words)


def _is_fasttext(file: files.Where) -> bool:
  with _opened(file) as stream:
    found = stream.read(4) == other_forms.FASTTEXT
  if found and str(file).endswith('.gz'):
    raise ValueError(f"{file} is fastText's own format, compressed: unpack it with `gunzip {file}`")
  return found


def _of_vocab(file: files.Where, ids: Mapping[str, int]) -> Iterator[Entry]:
  """Yield a file's words, then unseen words of a vocabulary."""
  words, letters = fasttext_files.read(files.local_path(file, what='file'))
  lower = {word.lower() for word in ids}
  for row, word in enumerate(words):
    yield Entry(word, letters.vector(word, row) if word in ids or word in lower else letters.words[row], str(file))
  if letters.longest and len(letters.ngrams):
    known = set(words)
    yield from (Entry(word, letters.vector(word), str(file)) for word in ids if not {word, word.lower()} & known)


def write(file: files.Where, vectors: WordVectors, *, form: Form) -> int:
  """Write a file of vectors, compressed if its name ends in .gz.

  Words with white space are omitted. Numbers of the text forms have nine digits, so that reading them gives the same
  bits.

  Returns:
    the number of written words.

  Raises:
    ValueError: all words have white space, which no form can store.
  """
  one_of('form', form, Form)
  if form == 'fasttext':
    if vectors.letters is None:
      raise ValueError(f"{file}: form=fasttext needs a run of objective 'fasttext' or fastText's .bin: use form=binary")
    fasttext_files.write(files.path(file), vectors.words, vectors.letters)
    return len(vectors.words)
  writable = [index for index, word in enumerate(vectors.words) if word.split() == [word]]
  if omitted := sorted(set(range(len(vectors.words))).difference(writable)):
    examples = ', '.join(repr(vectors.words[index]) for index in omitted[:3]) + (', ...' if len(omitted) > 3 else '')
    problem = f'of {len(vectors.words):,} words have white space, which no file of vectors can store'
    if not writable:
      raise ValueError(f'{file}: {len(omitted):,} {problem}: {examples}')
    log.warning(f'{file}: {len(omitted):,} {problem}; they are omitted: {examples}')
  words, rows = [vectors.words[index] for index in writable], np.asarray(vectors.vectors, '<f4')
  with files.replacing(file) as temporary, files.open(temporary, 'wb') as stream:
    if str(file).endswith('.gz'):
      with gzip.GzipFile(filename='', mode='wb', fileobj=stream, mtime=0) as content:
        content.writelines(_lines(words, rows[writable], form))
    else:
      stream.writelines(_lines(words, rows[writable], form))
  return len(writable)


def _lines(words: Iterable[str], rows: np.ndarray, form: Form) -> Iterator[bytes]:
  """Yield the first line, if the form has one, then each word."""
  if form != 'glove':
    yield b'%d %d\n' % rows.shape
  for word, row in zip(words, rows, strict=True):
    numbers = row.tobytes() if form == 'binary' else ' '.join(f'{value:.9g}' for value in row).encode()
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
      raise ValueError(f'{file} is no complete .gz file ({error}): fetch it again') from error


def _check_readable(file: files.Where) -> None:
  """Raise ValueError for a file of another program, with its fix."""
  with files.open(file, 'rb') as stream:
    first = stream.read(8)
  form = next((form for start, form in _OTHER_FORMS.items() if first.startswith(start)), None)
  if first.startswith(b'\x1f\x8b') and not str(file).endswith('.gz'):
    raise ValueError(f'{file} is compressed: rename it to {file}.gz')
  files.check_narrow(first[:4], files.path(file))  # the mark alone: zeros are usual in binary files
  if form is None:
    return
  own = re.sub(r'(\.wv)?\.(vectors|syn0|vectors_vocab)\.npy$', '', str(file))  # the file that it belongs to
  load = f"v = gensim.utils.SaveLoad.load('{own}'); getattr(v, 'wv', v)"
  fix = f"`import gensim; {load}.save_word2vec_format('{own}.vec')` in Python"
  if (form.startswith('an ar') and own == str(file)) or form in ('HDF5', 'a database'):
    fix = "words and vectors, by gensim's save_word2vec_format"
  raise ValueError(f'{file} is {form}. Write it as text: {fix}')


def _entries(file: files.Where, form: Form | None) -> Iterator[Entry]:
  """Yield the words of a file; raises as `read`."""
  _check_readable(file)
  binary = (form or form_of(file)) == 'binary'
  if binary:
    _check_not_text(file)
  with _opened(file) as stream:
    lines = (line.decode('utf-8', errors='replace') for line in _text_lines(stream, file))
    entries = _binary_entries(stream, file) if binary else _text_entries(lines, file, form)
    count, replaced = 0, 0
    for entry in entries:
      count, replaced = count + 1, replaced + (_REPLACED in entry.word)
      yield entry
  if not count:
    raise ValueError(f'{file} has no word vectors: name another file')
  if replaced:
    log.warning(
      f'{file}: {replaced:,} of {count:,} words have bytes that are not UTF-8 (read as {_REPLACED}). If the file is in '
      'Latin-1, `iconv -f latin1 -t utf-8` converts it'
    )


def _text_lines(stream: IO[bytes], file: files.Where) -> Iterator[bytes]:
  """Yield lines; raise ValueError for one of more than `LONGEST` bytes."""
  for number in itertools.count(1):
    line = stream.readline(LONGEST + 1)
    if len(line) > LONGEST:
      raise ValueError(f'{file}, line {number} has more than {LONGEST:,} bytes: it is no file of word vectors')
    if not line:
      return
    yield line


def _text_entries(lines: Iterator[str], file: files.Where, form: Form | None) -> Iterator[Entry]:
  first, second = next(lines, '').removeprefix('\ufeff'), next(lines, '')
  parts = first.split()
  could_be_head = len(parts) == 2 and all(part.isdecimal() and len(part) <= DIGITS for part in parts)
  headed = could_be_head if form is None else form == 'word2vec'
  if headed and not could_be_head:
    raise ValueError(f'{file}, line 1: expected the number of words and the width (form word2vec)')
  if form is None and not headed and len(parts) == 2 and all(map(_SIGNED.fullmatch, parts)):
    raise ValueError(
      f'{file}, line 1: {parts[0]} and {parts[1]} are no valid number of words and width: correct the line'
    )
  width = int(parts[1]) if headed else _width(first, second)
  if first and width < 1:
    raise ValueError(f'{file}, line 1: expected a word and its numbers{_separated(first)}')
  count = 0
  for line_number, line in enumerate(itertools.chain([first, second] if second else [first], lines), start=1):
    if line_number == 1 and (headed or not parts):
      continue
    where = f'{file}, line {line_number}'
    word, *numbers = _split(line, width)
    extra = _numbers_of(word) if all(map(_is_number, numbers)) else 0
    if extra or len(numbers) != width or not word:
      given = len(numbers) + extra if extra else max(0, len(line.split()) - 1)
      binary = headed and re.search(r'[\x00-\x08\x0e-\x1f\ufffd]', line)
      fix = _separated(line) or ': correct or remove the line'
      fix = ', and bytes that are no text: the name of a binary file must end in .bin' if binary else fix
      raise ValueError(f'{where}: {given} numbers after the word, expected {width}{fix}')
    count += 1
    yield Entry(word, numbers, where)
  if headed and count != int(parts[0]):
    raise ValueError(f'{file} has {count} words, but {parts[0]} by its first line: it is incomplete, fetch it again')


def _split(line: str, width: int) -> list[str]:
  """Split a line into a word, maybe with spaces, and numbers."""
  word, *numbers = line.rstrip(' \r\n').rsplit(' ', width)
  return [word.strip(' '), *numbers]


def _numbers_of(word: str) -> int:
  return sum(_is_number(piece.strip(',')) for piece in re.split('[ \t]+', word)[1:])


def _separated(line: str) -> str:
  """Describe separators other than spaces, for a message."""
  for name, separator in (('tabs', r'\t *'), ('commas', ', *')):
    if re.search(rf'{separator}[-+.0-9]', line):
      return f', separated by {name}: use spaces'
  return ''


def _width(first: str, second: str) -> int:
  """Derive the width from the first two lines of a GloVe file.

  It is the parts after the first word. If that has spaces, both lines end in the same count of numbers.
  """
  parts = _split(first, -1)
  width = _numbers_at_end(parts)
  return width if width == _numbers_at_end(_split(second, -1)) else len(parts) - 1


def _numbers_at_end(parts: list[str]) -> int:
  return sum(1 for _ in itertools.takewhile(_is_number, reversed(parts[1:])))


def _is_number(text: str | bytes) -> bool:
  try:
    float(text)
  except ValueError:
    return False
  return '_' not in (text if isinstance(text, str) else text.decode(errors='replace'))  # Python accepts 1_0


def _check_not_text(file: files.Where) -> None:
  with _opened(file) as stream:
    head = stream.readline(LONGEST).split()
    width = int(head[1]) if len(head) == 2 and head[1].isdigit() and len(head[1]) <= DIGITS else 0
    _, *numbers = stream.readline(LONGEST).rstrip().rsplit(b' ', min(width, LONGEST))
  if 0 < width == len(numbers) and all(map(_is_number, numbers)):
    raise ValueError(f'{file} is text, but its form is binary: rename it to .txt, or choose a text form')


def _binary_entries(stream: IO[bytes], file: files.Where) -> Iterator[Entry]:
  first = stream.readline(LONGEST).split()
  if len(first) != 2 or not all(part.isdigit() and len(part) <= DIGITS for part in first):
    raise ValueError(f'{file} is no binary file of word2vec: its first line has no number of words and width')
  count, width = map(int, first)
  if not 0 < 4 * width <= min(files.size(file) * (UNZIPPED if str(file).endswith('.gz') else 1), LONGEST):
    problem = ' is more than the file can hold' if width else ''
    raise ValueError(f'{file}, line 1: a width of {width:,}{problem}: the file is incomplete, or not binary word2vec')
  for index in range(1, count + 1):
    letters = bytearray()
    while (letter := stream.read(1)) not in (b' ', b''):
      letters += letter
      if len(letters) > LONGEST_WORD:
        raise ValueError(f'{file}: word {index} of {count} is longer than {LONGEST_WORD:,} bytes: no binary word2vec')
    row = stream.read(4 * width)
    if len(row) < 4 * width:
      raise ValueError(f'{file} ends in word {index} of {count}: it is incomplete, fetch it again')
    word = letters.lstrip(b'\r\n').decode('utf-8', errors='replace')
    yield Entry(word, np.frombuffer(row, '<f4'), f'{file}, word {index}')
  while rest := stream.read(2**16):
    if rest.strip():
      raise ValueError(f'{file} has bytes after word {count}, its last one: it is damaged, or no binary file')


def _vector(entry: Entry) -> np.ndarray:
  """Convert a word's numbers to f32[d]; raise ValueError if not finite."""
  if isinstance(entry.numbers, list) and (invalid := [text for text in entry.numbers if '_' in text]):
    raise ValueError(f'{entry.where}: {invalid[0]!r} is no number: correct or remove the line')  # numpy reads 1_0 as 10
  try:
    with np.errstate(over='ignore'):  # checked below
      vector = np.array(entry.numbers, np.float32)
  except ValueError as error:
    raise ValueError(f'{entry.where}: {error}: correct or remove the line') from None
  if not np.isfinite(vector).all():
    raise ValueError(f'{entry.where}: a number is not finite: correct or remove the line')
  return vector
