"""One word in several texts: the cosines of its vectors at each layer, next to those of vectors without context.

Survey of Qiu et al. 2020, §2.1: a table has one vector for all senses of a word, so the cosine of any two of its uses
is 1. A contextual network has a different vector for each use. Its embeddings, layer 0, differ by the position of a
word, and by its tokens if the spelling differs.
"""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from plm_jax.cli import pictures, tables
from plm_jax.core import scripts
from plm_jax.core.errors import ConfigError, counted
from plm_jax.inference import nearest, vectors
from plm_jax.inference.opened import Opened


class Uses(NamedTuple):
  """The uses of a word in n texts."""

  word: str
  # f32[k, n, n], between the uses of the word at each of k layers, from the embeddings to the output
  cosines: np.ndarray
  static: np.ndarray | None  # f32[n, n], the same by a table of vectors; None without a table


def look(opened: Opened, word: str, texts: Sequence[str], *, table: nearest.Table | None = None) -> Uses:
  """Compare the first use of a word, ignoring case, in each text.

  A word of several tokens has the mean of their vectors. `table` has vectors without context.

  Raises:
    ConfigError: fewer than two texts, a text without the word, or a network or table that does not know the word.
  """
  if len(texts) < 2:
    raise ConfigError(f'polysemy: got {counted(len(texts), "text")}; give two or more with the word {word!r}')
  spans = [_span(word, text, index) for index, text in enumerate(texts, start=1)]
  positions = [_tokens(opened, text, span) for text, span in zip(texts, spans, strict=True)]
  encoded = vectors.encode(opened, texts, layers=vectors.layers_of(opened, 'all'), pool='none')
  states = [text.vectors for text in encoded if isinstance(text, vectors.TokenVectors)]  # n of [l, k, d]
  word_vectors = [state[tokens].mean(axis=0) for state, tokens in zip(states, positions, strict=True)]  # n of [k, d]
  cosines = _cosines(np.stack(word_vectors, axis=1))
  if table is None:
    return Uses(word=word, cosines=cosines, static=None)
  written = [text[slice(*span)] for text, span in zip(texts, spans, strict=True)]
  rows = [table.vector(use if use in table else use.lower()) for use in written]
  return Uses(word=word, cosines=cosines, static=_cosines(np.stack(rows)))


def _span(word: str, text: str, index: int) -> tuple[int, int]:
  """Find the characters of a word's first use, not inside others."""
  before, after = r'(?<!\w)', rf'(?![\w{scripts.MARKS}])'
  if re.search(f'[{scripts.ALONE}]', word):
    before, after = '', f'(?![{scripts.MARKS}])'
  match = re.search(f'{before}{re.escape(word)}{after}', text, re.IGNORECASE)
  if match is None or not word:
    raise ConfigError(f'polysemy: text {index} has no word {word!r}: {text!r}')
  return match.span()


def _tokens(opened: Opened, text: str, span: tuple[int, int]) -> list[int]:
  """Find the positions of the tokens of some characters, special tokens counted.

  # text "the bank"   tokens [CLS] the ba ##nk [SEP]   span (4, 8)   positions 2 3
  """
  (encoding,), marked = opened.read([text]), opened.marked.encode(text)
  offsets_of_text = [
    offsets for offsets, special in zip(marked.offsets, marked.special_tokens_mask, strict=True) if not special
  ]
  positions = [
    encoding.before + position
    for position, (start, end) in enumerate(offsets_of_text)
    if start < span[1] and end > span[0]
  ]
  by_letters = 'characters' in opened.trunk.INPUTS
  if not positions or (not by_letters and any(encoding.ids[position] == opened.vocab.unk_id for position in positions)):
    raise ConfigError(
      f'polysemy: {text[slice(*span)]!r} is not in the vocabulary of {opened.folder}; choose another word'
    )
  return positions


def _cosines(rows: np.ndarray) -> np.ndarray:
  """Compute cosines: [..., n, d] -> [..., n, n]."""
  unit = nearest.unit(rows)
  return unit @ np.swapaxes(unit, -1, -2)


def _layers(uses: Uses) -> list[str]:
  return [*(str(index) for index in range(len(uses.cosines) - 1)), 'output']


def _pairs(uses: Uses) -> list[tuple[int, int]]:
  """List the pairs of texts by index from 0."""
  return list(itertools.combinations(range(uses.cosines.shape[1]), 2))


def show(uses: Uses) -> None:
  """Print a table: layers down, pairs of texts across."""
  columns = ('layer', *(f'{first + 1} and {second + 1}' for first, second in _pairs(uses)))
  grid = tables.new(columns, title=f'Cosines of {uses.word!r} in two texts')
  rows = list(zip(_layers(uses), uses.cosines, strict=True))
  for name, cosines in [*rows, *([('static', uses.static)] if uses.static is not None else [])]:
    grid.add_row(name, *(f'{cosines[pair]:.4f}' for pair in _pairs(uses)))
  tables.show(grid)


@pictures.every_script()
def draw(uses: Uses, out: Path) -> None:
  """Draw the cosine of each pair of texts over the layers."""
  figure = pictures.new(7, 4.2)
  axes = figure.subplots()
  for first, second in _pairs(uses):
    axes.plot(
      _layers(uses), uses.cosines[:, first, second], marker='o', markersize=4, label=f'{first + 1} and {second + 1}'
    )
  if uses.static is not None:
    for index, pair in enumerate(_pairs(uses)):
      label = None if index else 'without context'
      axes.axhline(uses.static[pair], color='0.4', linestyle='--', linewidth=1, label=label)
  axes.set_ylim(min(0.0, float(uses.cosines.min()) - 0.05), 1.05)
  axes.set_xlabel('layer')
  axes.set_ylabel(pictures.plain(f'cosine of {uses.word!r} in two texts'))
  axes.legend(frameon=False, fontsize=9)
  axes.grid(alpha=0.25)
  axes.spines[['top', 'right']].set_visible(False)
  pictures.save(figure, out)
