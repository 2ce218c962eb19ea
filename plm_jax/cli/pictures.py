"""Pictures: the colours of several things in one, and text that is not ours: values of configs, names of folders and
metrics, words of texts."""

import contextlib
import logging
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

from plm_jax.core.errors import ConfigError
from plm_jax.io import run_paths

log = logging.getLogger(__name__)

# fonts of scripts that matplotlib's own font has not, by the names of systems and distributions
SCRIPTS = (
  'CJK SC', 'CJK JP', 'CJK KR', 'Arabic', 'Devanagari', 'Bengali', 'Tamil', 'Telugu', 'Kannada', 'Malayalam',
  'Gujarati', 'Gurmukhi', 'Thai', 'Lao', 'Khmer', 'Myanmar', 'Ethiopic', 'Hebrew', 'Georgian', 'Armenian',
)  # fmt: skip
FALLBACKS = (
  *(f'Noto Sans {script}' for script in SCRIPTS),
  'WenQuanYi Zen Hei', 'PingFang SC', 'Hiragino Sans', 'Microsoft YaHei', 'Malgun Gothic', 'Nirmala UI', 'Unifont',
)  # fmt: skip
COLOURS = ('#1f5f8b', '#b3541e', '#3c7a3c', '#7a3c7a', '#8a7a1f')


def check_place(file: Path, *, name: str) -> None:
  """Raises ConfigError where a picture has no folder to be written to, or an ending that matplotlib does not write.

  Args:
    file: which one.
    name: of the flag that names the file.
  """
  from matplotlib.backend_bases import FigureCanvasBase

  run_paths.check_place(file, name=name)
  forms = sorted(FigureCanvasBase.get_supported_filetypes())
  if form_of(file) not in forms:
    known = ', '.join(f'.{form}' for form in forms)
    raise ConfigError(f'{name}={file}: no picture is written as {file.suffix}: name a file that ends in one of {known}')


def form_of(file: Path) -> str:
  """What a picture is written as, by the end of its name; png where that has none."""
  return file.suffix.removeprefix('.').lower() or 'png'


@contextlib.contextmanager
def every_script() -> Iterator[None]:
  """Draws words of any script that a font of this machine has; the log names letters that none of them has."""
  import matplotlib
  from matplotlib import font_manager

  there = set(font_manager.get_font_names())
  families = ['DejaVu Sans', *(name for name in FALLBACKS if name in there)]
  missing: dict[str, None] = {}
  with warnings.catch_warnings(record=True) as caught, matplotlib.rc_context({'font.family': families}):
    warnings.filterwarnings('always', message='Glyph [0-9]+ .* missing')
    yield
  for one in caught:
    if found := re.match(r'Glyph (\d+) ', str(one.message)):
      missing[chr(int(found[1]))] = None
    else:
      warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
  if missing:
    log.warning(
      f'no font of this machine has {"".join(missing)}, and boxes stand for them in the picture; Noto Sans of that '
      'script has'
    )


def plain(text: str) -> str:
  """The text for a picture that shows it as it is: matplotlib reads what stands between two dollars as mathematics."""
  return text.replace('$', r'\$')


def label(text: str) -> str:
  """The same for a line of a legend, which leaves out what begins with an underscore: a space stands before that."""
  return plain(f' {text}' if text.startswith('_') else text)
