"""A map of words: the two directions in which their vectors, of length 1, differ most (principal components)."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from plm_jax.cli import pictures
from plm_jax.core.errors import ConfigError
from plm_jax.inference.nearest import Table
from plm_jax.io import files


class Map(NamedTuple):
  """Words in a plane.

  Attributes:
    words: n, each once.
    places: f32[n, 2], about the mean of all.
    share: what part of the variance lies along each of the two axes.
  """

  words: list[str]
  places: np.ndarray
  share: tuple[float, float]


def project(table: Table, words: Sequence[str]) -> Map:
  """Lays words into a plane by the singular values of their vectors about their mean.

  The sign of an axis, which is arbitrary, is such that the word that is farthest out on it has a positive number.

  Raises:
    ConfigError: fewer than three words, or one without a vector.
  """
  chosen = list(dict.fromkeys(words))
  if len(chosen) < 3:
    raise ConfigError(f'vectors project: --words has {len(chosen)} different words, and a plane needs three')
  vectors = np.stack([table.vector(word) for word in chosen])
  if vectors.shape[1] < 2:
    raise ConfigError(f'vectors project: vectors of {vectors.shape[1]} number lie on a line')
  left, values, _ = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)
  places = left[:, :2] * values[:2]  # [n, 2]
  farthest = places[np.abs(places).argmax(axis=0), (0, 1)]
  shares = values**2 / max(float((values**2).sum()), 1e-30)
  return Map(chosen, places * np.where(farthest < 0, -1, 1), (float(shares[0]), float(shares[1])))


@pictures.every_script()
def draw(found: Map, out: Path) -> None:
  """Writes a picture with a point and its word for each word."""
  from matplotlib.figure import Figure

  figure = Figure(figsize=(7, 6), layout='constrained')
  axes = figure.subplots()
  axes.scatter(found.places[:, 0], found.places[:, 1], s=14)
  distances = np.linalg.norm(found.places[:, None] - found.places, axis=-1) + np.diag([np.inf] * len(found.words))
  nearest = found.places[distances.argmin(axis=1)]
  for word, place, other in zip(found.words, found.places, nearest, strict=True):
    away, side = (-4, 'right') if other[0] > place[0] else (4, 'left')  # so that the names of two neighbours part
    text = pictures.plain(word)
    axes.annotate(text, tuple(place), xytext=(away, 3), textcoords='offset points', fontsize=9, ha=side)
  axes.set_xlabel(f'first component, {found.share[0]:.0%} of the variance')
  axes.set_ylabel(f'second component, {found.share[1]:.0%}')
  axes.margins(0.12)
  axes.grid(alpha=0.25)
  axes.spines[['top', 'right']].set_visible(False)
  with files.replacing(out) as temporary:
    figure.savefig(temporary, format=pictures.form_of(out), dpi=130)
