"""A map of words: their vectors of length 1, projected on the first two principal components."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from plm_jax.cli import pictures
from plm_jax.core.errors import ConfigError
from plm_jax.inference.nearest import Table

# directions of a label from its point, and the side of the text that is nearest to it
SIDES = (
  (1, 0.6, 'left'), (-1, 0.6, 'right'), (1, -1, 'left'), (-1, -1, 'right'), (0, 1.6, 'center'), (0, -1.6, 'center'),
)  # fmt: skip


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
  figure = pictures.new(7, 6)
  axes = figure.subplots()
  axes.scatter(word_map.places[:, 0], word_map.places[:, 1], s=14)
  axes.set_xlabel(f'first component, {word_map.share[0]:.0%} of the variance')
  axes.set_ylabel(f'second component, {word_map.share[1]:.0%}')
  axes.margins(0.12)
  axes.grid(alpha=0.25)
  axes.spines[['top', 'right']].set_visible(False)
  _place_labels(figure, axes, word_map)
  pictures.save(figure, out)


def _place_labels(figure: Any, axes: Any, word_map: Map) -> None:
  """Write each word where it covers the fewest others, near its point."""
  from matplotlib.text import Text
  from matplotlib.transforms import Bbox

  figure.draw_without_rendering()  # fixes the scale, so that boxes are known in pixels
  taken = [Bbox.from_extents(*(point - 4), *(point + 4)) for point in axes.transData.transform(word_map.places)]
  for word, point in sorted(zip(word_map.words, word_map.places, strict=True), key=lambda pair: float(pair[1][0])):
    best: tuple[float, Any, Any] = (math.inf, None, None)
    for distance, (x, y, side) in itertools.product((6, 14, 22, 32, 44), SIDES):
      arrow = dict(arrowstyle='-', color='#aaaaaa', linewidth=0.6) if distance > 6 else None
      style = dict(fontsize=9, ha=side, va='center', arrowprops=arrow, textcoords='offset points')
      text = axes.annotate(pictures.plain(word), tuple(point), xytext=(x * distance, y * distance), **style)
      text.get_window_extent()  # places it
      box = Text.get_window_extent(text).padded(1)  # without its line
      overlaps = [both for other in taken if (both := Bbox.intersection(box, other)) is not None]
      covered = sum(both.width * both.height for both in overlaps)
      text.remove()
      if covered < best[0]:
        best = (covered, text, box)
      if not covered:
        break
    axes.add_artist(best[1])
    taken.append(best[2])
