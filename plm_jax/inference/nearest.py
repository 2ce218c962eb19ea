"""Nearest words, analogies and pair similarities of word vectors, all by cosine."""

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
  """The counts of a section of questions: right answers, questions whose words are all known, all questions."""

  right: int
  known: int
  all: int


class Agreement(NamedTuple):
  """Spearman's correlation of cosines with human judgements of pairs, over the pairs of known words."""

  spearman: float | None  # None for fewer than two known pairs, or if all cosines or all judgements are equal
  known: int  # number of pairs whose words are known
  all: int  # number of pairs


def unit(vectors: np.ndarray) -> np.ndarray:
  """Scale vectors f32[..., d] to length 1; zero vectors stay zero."""
  largest = np.abs(vectors).max(axis=-1, keepdims=True, initial=0)
  scaled = vectors / np.maximum(largest, np.finfo(np.float32).tiny)  # so that no square overflows
  return scaled / np.maximum(np.linalg.norm(scaled, axis=-1, keepdims=True), 1e-30)


class Table:
  """Vectors of length 1, by word.

  Args:
    vectors: of any length; a word with a zero vector is near to no other.
  """

  def __init__(self, vectors: WordVectors):
    self.words = vectors.words
    self.unit = unit(vectors.vectors)
    self._ids = {word: row for row, word in enumerate(vectors.words)}
    self._unseen, self._normalise = vectors.unseen, vectors.normalise

  def __contains__(self, word: str) -> bool:
    return word in self._ids

  def has_vector(self, word: str) -> bool:
    return word in self or self._unseen is not None

  def vector(self, word: str) -> np.ndarray:
    """Return a word's vector f32[d] of length 1, or raise ConfigError."""
    word = self._spelt(word)
    if word not in self._ids:
      if self._unseen is not None:
        return unit(self._unseen(word))
      similar = word.lower() if word.lower() in self._ids else word
      raise ConfigError(f'vectors: no vector of {word!r} among {len(self.words):,}.{suggest(similar, self.words)}')
    return self.unit[self._ids[word]]

  def _spelt(self, word: str) -> str:
    """Normalise a word as the tokenizer did, for vectors from characters."""
    if word in self._ids or self._unseen is None or self._normalise is None:
      return word
    return self._normalise(word)

  def neighbours(self, word: str, *, top: int = 10) -> list[Near]:
    """List the words nearest to a word."""
    return self._nearest(self.vector(word), exclude=(word,), top=top)

  def analogy(self, a: str, b: str, c: str, *, top: int = 10) -> list[Near]:
    """Complete `a` : `b` = `c` : ? (Mikolov et al. 2013).

    Returns:
      The words nearest to b - a + c, none of the three.
    """
    target = self.vector(b) - self.vector(a) + self.vector(c)
    return self._nearest(unit(target), exclude=(a, b, c), top=top)

  def similarity(self, first: str, second: str) -> float:
    """Compute the cosine of two words."""
    return float(self.vector(first) @ self.vector(second))

  def _nearest(self, target: np.ndarray, *, exclude: Sequence[str], top: int) -> list[Near]:
    cosines = self.unit @ target
    excluded = {self._ids[word] for word in map(self._spelt, exclude) if word in self._ids}
    cosines[list(excluded)] = -np.inf
    count = max(min(top, len(self.words) - len(excluded)), 0)
    if not count:
      return []
    # all words at least as near as the last one; among equally near words the first are taken
    last = -np.partition(-cosines, count - 1)[count - 1]
    candidates = np.flatnonzero(~(cosines < last))
    order = candidates[np.argsort(-cosines[candidates], kind='stable')][:count]
    return [Near(self.words[row], float(cosines[row])) for row in order]


def of_run(opened: Opened) -> WordVectors:
  """Return the word vectors of a run whose trunk is a table.

  Special tokens are left out. An objective that combines further parameters into its vectors defines a function
  `word_table`.

  Raises:
    ConfigError: the vectors of its trunk depend on the text.
  """
  if opened.kind != 'none':
    raise ConfigError(
      f'vectors: the {opened.trunk.NAME} in {opened.folder} has no fixed vector per word; name a run of '
      "model.name='static'"
    )
  table = _word_table(opened)
  special = set(opened.vocab.special_ids)
  ids = [token for token in range(opened.vocab.size) if token not in special]
  words = tuple(opened.vocab.token(token) for token in ids)
  letters = table.letters and table.letters._replace(words=table.letters.words[ids], counts=table.letters.counts[ids])
  return WordVectors(words, table.vectors[ids], table.unseen, opened.vocab.normalise, letters)


def _word_table(opened: Opened) -> WordTable:
  """Return all ids' vectors by the objective, else the trunk's table."""
  if opened.task and not opened.adapted:
    settings = {key: value for key, value in opened.task.items() if key != 'name'}
    make = getattr(build.import_file(f'objectives.{opened.task["name"]}'), 'word_table', None)
    if make is not None:
      return make(opened.loaded[1], opened.vocab, **settings)
  return WordTable(np.asarray(opened.params['token_embed']['table'], np.float32))


def answer(table: Table, file: files.Where) -> dict[str, Share]:
  """Count the right answers to analogies per section of a file.

  The file has the format of questions-words.txt. Words are lowercased if the table has no upper-case word.

  Raises:
    ValueError: a line without four words (named with file and line), or no question.
  """
  counts_by_section: dict[str, list[int]] = {}
  section = 'all'
  for line, parts in _lines(file, lower=_is_lower(table)):
    if parts[0] == ':':
      section = ' '.join(parts[1:])
      continue
    if len(parts) != 4:
      raise ValueError(f'{file}, line {line}: {len(parts)} words; a question has four')
    is_known = all(map(table.has_vector, parts[:3])) and parts[3] in table  # only stored words can be an answer
    nearest = table.analogy(*parts[:3], top=1) if is_known else []  # empty if the table has no other words
    right = bool(nearest) and nearest[0].word == parts[3]
    counts = counts_by_section.setdefault(section, [0, 0, 0])
    counts_by_section[section] = [counts[0] + right, counts[1] + is_known, counts[2] + 1]
  if not counts_by_section:
    raise ValueError(f'{file}: no question; expected lines with four words')
  return {name: Share(right=right, known=known, all=total) for name, (right, known, total) in counts_by_section.items()}


def agree(table: Table, file: files.Where) -> Agreement:
  """Correlate cosines with the judgements in a file of pairs.

  A line has two words and a number; further columns are ignored. Columns are separated by commas if a line has two,
  else by spaces or tabs. The first line may have column names.

  Raises:
    ValueError: a line without two words and a finite number (named with file and line), or no pair.
  """
  pairs = []
  for index, (line, parts) in enumerate(_lines(file, lower=_is_lower(table))):
    if (by_commas := ' '.join(parts).split(','))[2:]:
      parts = [part.strip() for part in by_commas]
    expected = f'{file}, line {line}: expected two words and a number'
    try:
      first, second, judgement = parts[0], parts[1], float(parts[2])
    except (IndexError, ValueError):
      if index or re.match(r'[-+.]?[0-9]', ''.join(parts[2:3])):
        raise ValueError(expected) from None
      continue  # column names
    if not np.isfinite(judgement):
      raise ValueError(f'{expected}, got {parts[2]!r}, which is not finite')
    pairs.append((first, second, judgement))
  if not pairs:
    raise ValueError(f'{file}: no pair; expected lines with two words and a number')
  known_pairs = [pair for pair in pairs if table.has_vector(pair[0]) and table.has_vector(pair[1])]
  predictions = [{'value': table.similarity(first, second)} for first, second, _ in known_pairs]
  if any(len(set(side)) < 2 for side in ([row['value'] for row in predictions], [label for *_, label in known_pairs])):
    return Agreement(spearman=None, known=len(known_pairs), all=len(pairs))
  scores = correlation.score(predictions, [{'label': label} for *_, label in known_pairs])
  return Agreement(spearman=scores['spearman'], known=len(known_pairs), all=len(pairs))


def _is_lower(table: Table) -> bool:
  return all(word == word.lower() for word in table.words)


def _lines(file: files.Where, *, lower: bool) -> Iterator[tuple[int, list[str]]]:
  """Yield number and words of lines, except empty ones and comments."""
  try:
    text = files.read_utf8(file).removeprefix('\ufeff')  # byte order mark
  except ValueError as error:
    raise ValueError(f'{file}, {error}') from None
  for line_number, line in enumerate(text.split('\n'), start=1):
    parts = (line.lower() if lower else line).split()
    if parts and parts[0] != '#':
      yield line_number, parts
