"""A map of words: their vectors of length 1, projected on the first two principal components."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from plm_jax.cli import pictures
from plm_jax.core.errors import ConfigError
from plm_jax.inference.nearest import Table
from plm_jax.io import files


class Map(NamedTuple):
  """Words in a plane."""

  words: list[str]  # n different words
  places: np.ndarray  # f32[n, 2], coordinates about the mean of all words
  share: tuple[float, float]  # fraction of the variance along each of the two axes


def project(table: Table, words: Sequence[str]) -> Map:
  """Project words on the first two principal components of their vectors.

  The word farthest out on an axis gets a positive coordinate.

  Raises:
    ConfigError: fewer than three words, or a word without a vector.
  """
  chosen = list(dict.fromkeys(words))
  if len(chosen) < 3:
    raise ConfigError(f'vectors project: --words has {len(chosen)} different words; give three or more')
  vectors = np.stack([table.vector(word) for word in chosen])
  if vectors.shape[1] < 2:
    raise ConfigError(f'vectors project: vectors have {vectors.shape[1]} dimension; a plane needs two')
  left, values, _ = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)
  coordinates = left[:, :2] * values[:2]  # [n, 2]
  farthest = coordinates[np.abs(coordinates).argmax(axis=0), (0, 1)]
  shares = values**2 / max(float((values**2).sum()), 1e-30)
  return Map(
    words=chosen, places=coordinates * np.where(farthest < 0, -1, 1), share=(float(shares[0]), float(shares[1]))
  )


@pictures.every_script()
def draw(word_map: Map, out: Path) -> None:
  """Draw a point and a label per word."""
  from matplotlib.figure import Figure

  figure = Figure(figsize=(7, 6), layout='constrained')
  axes = figure.subplots()
  axes.scatter(word_map.places[:, 0], word_map.places[:, 1], s=14)
  distances = np.linalg.norm(word_map.places[:, None] - word_map.places, axis=-1) + np.diag(
    [np.inf] * len(word_map.words)
  )
  nearest = word_map.places[distances.argmin(axis=1)]
  for word, point, neighbour in zip(word_map.words, word_map.places, nearest, strict=True):
    offset, side = (-4, 'right') if neighbour[0] > point[0] else (4, 'left')  # keeps the labels of two neighbours apart
    text = pictures.plain(word)
    axes.annotate(text, tuple(point), xytext=(offset, 3), textcoords='offset points', fontsize=9, ha=side)
  axes.set_xlabel(f'first component, {word_map.share[0]:.0%} of the variance')
  axes.set_ylabel(f'second component, {word_map.share[1]:.0%}')
  axes.margins(0.12)
  axes.grid(alpha=0.25)
  axes.spines[['top', 'right']].set_visible(False)
  with files.replacing(out) as temporary:
    figure.savefig(temporary, format=pictures.form_of(out), dpi=130)
