"""Pictures: the colours of several things in one, and text that is not ours: values of configs, names of folders and
metrics, words of texts."""

from pathlib import Path

from plm_jax import files
from plm_jax.errors import ConfigError

COLOURS = ('#1f5f8b', '#b3541e', '#3c7a3c', '#7a3c7a', '#8a7a1f')


def check_place(file: Path, *, name: str) -> None:
  """Raises ConfigError where a picture has no folder to be written to, or an ending that matplotlib does not write.

  Args:
    file: which one.
    name: of the flag that names the file.
  """
  from matplotlib.backend_bases import FigureCanvasBase

  files.check_place(file, name=name)
  forms = sorted(FigureCanvasBase.get_supported_filetypes())
  if form_of(file) not in forms:
    known = ', '.join(f'.{form}' for form in forms)
    raise ConfigError(f'{name}={file}: no picture is written as {file.suffix}: name a file that ends in one of {known}')


def form_of(file: Path) -> str:
  """What a picture is written as, by the end of its name; png where that has none."""
  return file.suffix.removeprefix('.').lower() or 'png'


def plain(text: str) -> str:
  """The text for a picture that shows it as it is: matplotlib reads what stands between two dollars as mathematics."""
  return text.replace('$', r'\$')


def label(text: str) -> str:
  """The same for a line of a legend, which leaves out what begins with an underscore: a space stands before that."""
  return plain(f' {text}' if text.startswith('_') else text)
