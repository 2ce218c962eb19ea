"""What word vectors are asked: nearest words, analogies, similarities of pairs; all by the cosine."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from plm_jax.config import build
from plm_jax.core.errors import ConfigError, suggest
from plm_jax.core.types import WordTable
from plm_jax.inference.opened import Opened
from plm_jax.io import files
from plm_jax.scores import correlation
from plm_jax.weights.word_vectors import WordVectors


class Near(NamedTuple):
  """A word and its cosine."""

  word: str
  cosine: float


class Share(NamedTuple):
  """How many questions of a section were answered right, of those whose words are all known, of all."""

  right: int
  known: int
  all: int


class Agreement(NamedTuple):
  """Spearman's correlation of cosines with what people said of pairs, over the pairs whose words are known.

  `spearman` is None where there is no correlation: of fewer than two pairs, or where all cosines or all that people
  said are alike.
  """

  spearman: float | None
  known: int
  all: int


def unit(vectors: np.ndarray) -> np.ndarray:
  """Vectors f32[..., d] at length 1; those that are 0 stay so."""
  largest = np.abs(vectors).max(axis=-1, keepdims=True, initial=0)
  scaled = vectors / np.maximum(largest, np.finfo(np.float32).tiny)  # so that no square is beyond a float
  return scaled / np.maximum(np.linalg.norm(scaled, axis=-1, keepdims=True), 1e-30)


class Table:
  """Vectors of length 1, by word.

  Args:
    vectors: of any length; a word whose vector is 0 is near to no other.
  """

  def __init__(self, vectors: WordVectors):
    self.words = vectors.words
    self.unit = unit(vectors.vectors)
    self._ids = {word: number for number, word in enumerate(vectors.words)}
    self._unseen, self._normalise = vectors.unseen, vectors.normalise

  def __contains__(self, word: str) -> bool:
    return word in self._ids

  def has_vector(self, word: str) -> bool:
    """Whether a word has a vector, be it one that its letters make."""
    return word in self or self._unseen is not None

  def vector(self, word: str) -> np.ndarray:
    """f32[d], of length 1; raises a ConfigError for a word without a vector."""
    word = self._spelt(word)
    if word not in self._ids:
      if self._unseen is not None:
        return unit(self._unseen(word))
      like = word.lower() if word.lower() in self._ids else word
      raise ConfigError(
        f'vectors: there is no vector of {word!r} among {len(self.words):,}.{suggest(like, self.words)}'
      )
    return self.unit[self._ids[word]]

  def _spelt(self, word: str) -> str:
    """A word as it is looked up: where its letters make a vector, as the tokenizer of the run writes it."""
    if word in self._ids or self._unseen is None or self._normalise is None:
      return word
    return self._normalise(word)

  def neighbours(self, word: str, *, top: int = 10) -> list[Near]:
    """The words nearest to a word."""
    return self._nearest(self.vector(word), but=(word,), top=top)

  def analogy(self, a: str, b: str, c: str, *, top: int = 10) -> list[Near]:
    """What is to `c` as `b` is to `a`: the words nearest to b - a + c, none of the three (Mikolov et al. 2013)."""
    target = self.vector(b) - self.vector(a) + self.vector(c)
    return self._nearest(unit(target), but=(a, b, c), top=top)

  def similarity(self, one: str, other: str) -> float:
    """The cosine of two words."""
    return float(self.vector(one) @ self.vector(other))

  def _nearest(self, target: np.ndarray, *, but: Sequence[str], top: int) -> list[Near]:
    cosines = self.unit @ target
    own = {self._ids[word] for word in map(self._spelt, but) if word in self._ids}
    cosines[list(own)] = -np.inf
    count = max(min(top, len(self.words) - len(own)), 0)
    if not count:
      return []
    # all words as near as the last one that is asked for, so that of equally near ones the first are taken
    last = -np.partition(-cosines, count - 1)[count - 1]
    found = np.flatnonzero(~(cosines < last))
    order = found[np.argsort(-cosines[found], kind='stable')][:count]
    return [Near(self.words[number], float(cosines[number])) for number in order]


def of_run(opened: Opened) -> WordVectors:
  """The vectors of a run whose trunk is a table, without those of special tokens.

  An objective that makes them of more than the trunk says so by a function `word_table` of its file.

  Raises:
    ConfigError: the vectors of its trunk depend on the text.
  """
  if opened.kind != 'none':
    raise ConfigError(
      f'vectors: the {opened.trunk.NAME} in {opened.folder} gives a word another vector in each text: name a run of '
      "model.name='static'"
    )
  found = _word_table(opened)
  special = set(opened.vocab.special_ids)
  kept = [number for number in range(opened.vocab.size) if number not in special]
  words = tuple(opened.vocab.token(number) for number in kept)
  return WordVectors(words, found.vectors[kept], found.unseen, opened.vocab.normalise)


def _word_table(opened: Opened) -> WordTable:
  """The vectors of all ids: as the objective makes them, else the rows of the trunk."""
  if opened.task and not opened.adapted:
    settings = {key: value for key, value in opened.task.items() if key != 'name'}
    make = getattr(build.import_file(f'objectives.{opened.task["name"]}'), 'word_table', None)
    if make is not None:
      return make(opened.loaded[1], opened.vocab, **settings)
  return WordTable(np.asarray(opened.params['token_embed']['table'], np.float32))


def answer(table: Table, file: files.Where) -> dict[str, Share]:
  """Share of right answers of each section of a file of questions, in the form of questions-words.txt.

  Words are compared in lower case where the table has none in upper case.

  Raises:
    ValueError: a line that has not four words, with file and line; or no question.
  """
  found: dict[str, list[int]] = {}
  section = 'all'
  for number, parts in _lines(file, lower=_is_lower(table)):
    if parts[0] == ':':
      section = ' '.join(parts[1:])
      continue
    if len(parts) != 4:
      raise ValueError(f'{file}, line {number}: {len(parts)} words, and a question has four')
    known = all(map(table.has_vector, parts[:3])) and parts[3] in table  # one that is found is of the table
    near = table.analogy(*parts[:3], top=1) if known else []  # none where the table has no other words
    right = bool(near) and near[0].word == parts[3]
    counts = found.setdefault(section, [0, 0, 0])
    found[section] = [counts[0] + right, counts[1] + known, counts[2] + 1]
  if not found:
    raise ValueError(f'{file}: there is no question in it, a line with four words')
  return {name: Share(*counts) for name, counts in found.items()}


def agree(table: Table, file: files.Where) -> Agreement:
  """How cosines agree with a file of pairs: two words and a number per line; what stands behind them is not read.

  They are separated by commas where a line has two, else by spaces or tabs. The first line may have names of columns.

  Raises:
    ValueError: another line without them, or a number that is not finite, with file and line; or no pair.
  """
  pairs = []
  for place, (number, parts) in enumerate(_lines(file, lower=_is_lower(table))):
    if (by_commas := ' '.join(parts).split(','))[2:]:
      parts = [part.strip() for part in by_commas]
    expected = f'{file}, line {number}: expected two words and a number'
    try:
      one, other, judged = parts[0], parts[1], float(parts[2])
    except (IndexError, ValueError):
      if place or re.match(r'[-+.]?[0-9]', ''.join(parts[2:3])):
        raise ValueError(expected) from None
      continue  # names of columns
    if not np.isfinite(judged):
      raise ValueError(f'{expected}, and {parts[2]!r} is not finite')
    pairs.append((one, other, judged))
  if not pairs:
    raise ValueError(f'{file}: there is no pair in it, a line with two words and a number')
  known = [pair for pair in pairs if table.has_vector(pair[0]) and table.has_vector(pair[1])]
  predictions = [{'value': table.similarity(one, other)} for one, other, _ in known]
  if any(len(set(side)) < 2 for side in ([row['value'] for row in predictions], [label for *_, label in known])):
    return Agreement(None, len(known), len(pairs))
  scores = correlation.score(predictions, [{'label': label} for *_, label in known])
  return Agreement(scores['spearman'], len(known), len(pairs))


def _is_lower(table: Table) -> bool:
  return all(word == word.lower() for word in table.words)


def _lines(file: files.Where, *, lower: bool) -> Iterator[tuple[int, list[str]]]:
  """Number and words of each line that is neither empty nor a remark, which begins with '#' and a space."""
  try:
    text = files.read_utf8(file).removeprefix('\ufeff')  # the mark that some programs put before a text
  except ValueError as error:
    raise ValueError(f'{file}, {error}') from None
  for number, line in enumerate(text.split('\n'), start=1):
    parts = (line.lower() if lower else line).split()
    if parts and parts[0] != '#':
      yield number, parts
