"""One word in several texts: how alike its vectors are at each layer of a network, beside vectors without context.

Survey of Qiu et al. 2020, §2.1: a table has one vector for all senses of a word, so that the cosine of any two of its
uses is 1; a network that reads the text around it has another vector for each use. Its embeddings, layer 0, differ by
the position of a word, and by its tokens where it is written in another way.
"""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.table import Table as Grid

from plm_jax.cli import pictures, tables
from plm_jax.core.errors import ConfigError, counted
from plm_jax.inference import nearest, vectors
from plm_jax.inference.opened import Opened
from plm_jax.io import files
from plm_jax.text import scripts


class Uses(NamedTuple):
  """The uses of a word in n texts.

  Attributes:
    word: which one.
    cosines: f32[k, n, n], of the word in each text with that in each other, at each of k layers; the embeddings come
      first, the output last.
    static: f32[n, n], the same by a table of vectors; None where none was asked.
  """

  word: str
  cosines: np.ndarray
  static: np.ndarray | None


def look(opened: Opened, word: str, texts: Sequence[str], *, table: nearest.Table | None = None) -> Uses:
  """Compares the first use of a word in each text. A word of several tokens has the mean of their vectors.

  Args:
    opened: a network.
    word: as it stands in the texts, capital letters aside.
    texts: two or more.
    table: vectors without context.

  Raises:
    ConfigError: fewer than two texts, one without the word, or a network or table that does not know the word.
  """
  if len(texts) < 2:
    raise ConfigError(f'polysemy: {counted(len(texts), "text")}; give two or more with the word {word!r}')
  spans = [_span(word, text, number) for number, text in enumerate(texts, start=1)]
  known = [_tokens(opened, text, span) for text, span in zip(texts, spans, strict=True)]
  found = vectors.encode(opened, texts, layers=vectors.layers_of(opened, 'all'), pool='none')
  states = [one.vectors for one in found if isinstance(one, vectors.TokenVectors)]  # n of [l, k, d]
  every = [one[places].mean(axis=0) for one, places in zip(states, known, strict=True)]  # n of [k, d]
  cosines = _cosines(np.stack(every, axis=1))
  if table is None:
    return Uses(word, cosines, None)
  written = [text[slice(*span)] for text, span in zip(texts, spans, strict=True)]
  rows = [table.vector(use if use in table else use.lower()) for use in written]
  return Uses(word, cosines, _cosines(np.stack(rows)))


def _span(word: str, text: str, number: int) -> tuple[int, int]:
  """The characters of the first use of a word; other words that contain it do not count.

  Where a script is written without spaces, a word may stand anywhere.
  """
  apart, behind = r'(?<!\w)', rf'(?![\w{scripts.MARKS}])'
  if re.search(f'[{scripts.ALONE}]', word):
    apart, behind = '', f'(?![{scripts.MARKS}])'
  found = re.search(f'{apart}{re.escape(word)}{behind}', text, re.IGNORECASE)
  if found is None or not word:
    raise ConfigError(f'polysemy: text {number} has no word {word!r}: {text!r}')
  return found.span()


def _tokens(opened: Opened, text: str, span: tuple[int, int]) -> list[int]:
  """The places of the tokens of some characters, special tokens around the text counted.

  # text "the bank"   tokens [CLS] the ba ##nk [SEP]   span (4, 8)   places 2 3
  """
  (read,), spelt = opened.read([text]), opened.marked.encode(text)
  own = [offsets for offsets, special in zip(spelt.offsets, spelt.special_tokens_mask, strict=True) if not special]
  places = [read.before + place for place, (start, end) in enumerate(own) if start < span[1] and end > span[0]]
  by_letters = 'characters' in opened.trunk.INPUTS
  if not places or (not by_letters and any(read.ids[place] == opened.vocab.unk_id for place in places)):
    raise ConfigError(f'polysemy: {text[slice(*span)]!r} is not in the vocabulary of {opened.folder}: choose another')
  return places


def _cosines(rows: np.ndarray) -> np.ndarray:
  """[..., n, d] -> [..., n, n]."""
  alike = nearest.unit(rows)
  return alike @ np.swapaxes(alike, -1, -2)


def _layers(uses: Uses) -> list[str]:
  """A name for each layer."""
  return [*(str(number) for number in range(len(uses.cosines) - 1)), 'output']


def _pairs(uses: Uses) -> list[tuple[int, int]]:
  """The pairs of texts, by number from 0."""
  return list(itertools.combinations(range(uses.cosines.shape[1]), 2))


def show(uses: Uses) -> None:
  """Prints a table: layers down, pairs of texts across."""
  grid = Grid(title=f'Cosines of {uses.word!r} in two texts')
  for column in ('layer', *(f'{one + 1} and {other + 1}' for one, other in _pairs(uses))):
    grid.add_column(column, justify='right')
  rows = list(zip(_layers(uses), uses.cosines, strict=True))
  for name, cosines in [*rows, *([('static', uses.static)] if uses.static is not None else [])]:
    grid.add_row(name, *(f'{cosines[pair]:.4f}' for pair in _pairs(uses)))
  tables.show(grid)


@pictures.every_script()
def draw(uses: Uses, out: Path) -> None:
  """Writes a picture: the cosine of each pair of texts over the layers."""
  from matplotlib.figure import Figure

  figure = Figure(figsize=(7, 4.2), layout='constrained')
  axes = figure.subplots()
  for one, other in _pairs(uses):
    axes.plot(_layers(uses), uses.cosines[:, one, other], marker='o', markersize=4, label=f'{one + 1} and {other + 1}')
  if uses.static is not None:
    for number, pair in enumerate(_pairs(uses)):
      label = None if number else 'without context'
      axes.axhline(uses.static[pair], color='0.4', linestyle='--', linewidth=1, label=label)
  axes.set_ylim(min(0.0, float(uses.cosines.min()) - 0.05), 1.05)
  axes.set_xlabel('layer')
  axes.set_ylabel(pictures.plain(f'cosine of {uses.word!r} in two texts'))
  axes.legend(frameon=False, fontsize=9)
  axes.grid(alpha=0.25)
  axes.spines[['top', 'right']].set_visible(False)
  with files.replacing(out) as temporary:
    figure.savefig(temporary, format=pictures.form_of(out), dpi=130)
