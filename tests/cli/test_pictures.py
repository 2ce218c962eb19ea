"""Pictures with words of any script: letters without a font are logged once, and other warnings stay."""

import logging
import warnings

import pytest

from plm_jax.cli import pictures


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
