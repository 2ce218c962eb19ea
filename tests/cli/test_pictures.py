"""Pictures with words of any script: letters without a font are logged once, and other warnings stay."""

import contextlib
import itertools
import logging
import re
import warnings

import numpy as np
import pytest

from plm_jax.cli import pictures
from tests import conftest


def test_letters_without_a_font_are_named(tmp_path, caplog, monkeypatch):
  from matplotlib.figure import Figure

  monkeypatch.setattr(pictures, 'FALLBACKS', ())

  @pictures.every_script()
  def draw(text: str) -> None:
    figure = Figure()
    figure.text(0, 0, text)
    figure.savefig(tmp_path / 'x.png')

  with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
    warnings.simplefilter('error')
    draw('queen 国王 国')
    draw('queen')
  (said,) = caplog.messages
  assert 'font' in said and '国王' in said


def test_other_warnings_stay(caplog):
  with pytest.warns(UserWarning, match='something else'), pictures.every_script():
    warnings.warn('something else', stacklevel=1)
  assert not caplog.messages


# Machado et al. 2009, severity 1: how linear RGB looks to eyes without one kind of cones
EYES = {
  'normal': np.eye(3),
  'protan': [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
  'deutan': [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}
TO_XYZ = np.array(
  [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
)


def linear(colour):
  value = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
  return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def cielab(rgb):
  ratio = TO_XYZ @ rgb / [0.95047, 1, 1.08883]
  x, y, z = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
  return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize('eyes', EYES)
def test_colours_differ_for_all_eyes(eyes):
  seen = [cielab(np.clip(np.array(EYES[eyes]) @ linear(colour), 0, 1)) for colour in pictures.COLOURS]
  assert min(np.linalg.norm(one - other) for one, other in itertools.combinations(seen, 2)) > 20
  page = (conftest.ROOT / 'plm_jax/studies/report/page.css').read_text()
  assert tuple(re.findall(r'--c\d: (#\w+)', page)[:6]) == pictures.COLOURS


def test_lab_is_that_of_known_colours():
  """sRGB red is L 53.24, a 80.09, b 67.20; to deutan eyes, red and green are near."""
  assert cielab(linear('#ff0000')) == pytest.approx([53.24, 80.09, 67.20], abs=0.02)
  red, green = linear('#c05000'), linear('#4d8000')

  def apart(eyes):
    return np.linalg.norm(np.subtract(*(cielab(np.array(EYES[eyes]) @ rgb) for rgb in (red, green))))

  assert apart('deutan') < apart('normal') / 3


def test_words_of_a_map_do_not_cover_each_other(tmp_path, monkeypatch):
  from matplotlib.figure import Figure
  from matplotlib.text import Text

  from plm_jax.inference import projection

  drawn = []
  monkeypatch.setattr(Figure, 'savefig', lambda figure, *given, **more: drawn.append(figure))
  places = np.random.default_rng(0).normal(size=(24, 2)) * 0.05
  words = [f'word{place}' for place in range(24)]
  monkeypatch.setattr(projection.pictures.files, 'replacing', contextlib.nullcontext)
  projection.draw(projection.Map(words, np.concatenate([places, [[5.0, 5.0]]])[:24], (0.5, 0.3)), tmp_path / 'x.png')
  (figure,) = drawn
  figure.draw_without_rendering()
  boxes = [Text.get_window_extent(text) for text in figure.axes[0].texts]
  assert len(boxes) == 24
  assert not [1 for one, other in itertools.combinations(boxes, 2) if one.overlaps(other)]
