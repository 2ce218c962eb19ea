"""Shared helpers of pictures: colours, fonts, and text of users.

Such text is values of configs, names of folders and metrics, and words of texts.
"""

import contextlib
import logging
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from plm_jax.core.errors import ConfigError
from plm_jax.io import files, run_paths

if TYPE_CHECKING:
  from matplotlib.figure import Figure

log = logging.getLogger(__name__)

# fonts for scripts that matplotlib's default font lacks, by their names on common systems
SCRIPTS = (
  'CJK SC', 'CJK JP', 'CJK KR', 'Arabic', 'Devanagari', 'Bengali', 'Tamil', 'Telugu', 'Kannada', 'Malayalam',
  'Gujarati', 'Gurmukhi', 'Thai', 'Lao', 'Khmer', 'Myanmar', 'Ethiopic', 'Hebrew', 'Georgian', 'Armenian',
)  # fmt: skip
FALLBACKS = (
  *(f'Noto Sans {script}' for script in SCRIPTS),
  'WenQuanYi Zen Hei', 'PingFang SC', 'Hiragino Sans', 'Microsoft YaHei', 'Malgun Gothic', 'Nirmala UI', 'Unifont',
)  # fmt: skip
# those of curves in a report: they differ by 32 or more (CIELAB) for normal, protan and deutan eyes
COLOURS = ('#188ffa', '#cd781b', '#09443c', '#8b108d', '#4d4008', '#948d9b')


def check_place(file: Path, *, name: str) -> None:
  """Raise ConfigError for a missing folder or an unknown file type."""
  from matplotlib.backend_bases import FigureCanvasBase

  run_paths.check_place(file, name=name)
  forms = sorted(FigureCanvasBase.get_supported_filetypes())
  if form_of(file) not in forms:
    endings = ', '.join(f'.{form}' for form in forms)
    raise ConfigError(f'{name}={file}: no picture is written as {file.suffix}; the name must end in one of {endings}')


def form_of(file: Path) -> str:
  """Return the file type of a picture's suffix, or png."""
  return file.suffix.removeprefix('.').lower() or 'png'


def new(width: float, height: float) -> 'Figure':
  """Create an empty figure; sizes are in inches."""
  from matplotlib.figure import Figure

  return Figure(figsize=(width, height), layout='constrained')


def save(figure: 'Figure', file: Path, *, dpi: int = 130) -> None:
  """Write a figure as the suffix of the file says."""
  with files.replacing(file) as temporary:
    figure.savefig(temporary, format=form_of(file), dpi=dpi)


@contextlib.contextmanager
def every_script() -> Iterator[None]:
  """Draw text of any script with an installed font; log letters without."""
  import matplotlib
  from matplotlib import font_manager

  installed = set(font_manager.get_font_names())
  families = ['DejaVu Sans', *(name for name in FALLBACKS if name in installed)]
  missing: dict[str, None] = {}
  with warnings.catch_warnings(record=True) as caught, matplotlib.rc_context({'font.family': families}):
    warnings.filterwarnings('always', message='Glyph [0-9]+ .* missing')
    yield
  for warning in caught:
    if match := re.match(r'Glyph (\d+) ', str(warning.message)):
      missing[chr(int(match[1]))] = None
    else:
      warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
  if missing:
    log.warning(
      f'no installed font has {"".join(missing)}; the picture shows boxes instead. Install Noto Sans for that script'
    )


def plain(text: str) -> str:
  """Escape text for a picture: matplotlib reads mathematics between two dollars."""
  return text.replace('$', r'\$')


def label(text: str) -> str:
  """Escape text for a legend, where matplotlib omits a leading underscore."""
  return plain(f' {text}' if text.startswith('_') else text)
