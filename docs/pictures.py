"""Make the pictures of docs/images/ again: noise of some objectives, and the rooms of the package.

    python docs/pictures.py

The pictures are committed, since the README shows one of them.
"""

import contextlib
import io
import pathlib
import re
import sys
from typing import Any
from unittest import mock

import rich.console
from rich import terminal_theme

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
IMAGES = ROOT / 'docs' / 'images'
COLUMNS = 104
# Picture -> the objectives in it.
NOISE = {
  'noise': ('bert', 'bart_infill', 't5'),
  'noise_encoders': ('bert', 'whole_word', 'spanbert', 'electra', 'nsp'),
  'noise_decoders': ('causal_lm', 'xlnet', 'glm', 'unilm'),
  'noise_bart': ('bart_mask', 'bart_delete', 'bart_infill', 'bart_permute', 'bart_rotate'),
  'noise_words': ('skipgram', 'cbow', 'glove', 'elmo', 'contrastive'),
  'noise_t5': ('t5', 't5_prefix', 'mass', 'deshuffle', 'ul2'),
}
SHORT = ['--text=Thank you for inviting me to your party last week .']  # masks take a line a token
TEXTS = {'noise_decoders': SHORT, 'noise_words': SHORT}
# The rooms of plm_jax/ by floor, from the ground up; a room imports from the floors below it.
FLOORS = (
  ('core',),
  ('io', 'layers', 'noise', 'scores', 'compression'),
  ('config', 'checkpoint', 'models'),
  ('cli', 'text', 'optim'),
  ('data', 'generate', 'weights', 'runs'),
  ('adapters',),
  ('objectives', 'training'),
  ('inference', 'planning'),
  ('studies',),
  ('commands',),
)


def noise() -> None:
  """Draw what some objectives make of one text, as the terminal shows it."""
  from plm_jax.commands import noise as command

  for name, objectives in NOISE.items():
    console = rich.console.Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False)
    for number, objective in enumerate(objectives):
      with mock.patch('rich.console.Console', lambda console=console, **settings: console), _without_text(number > 0):
        command.main([f'--objective={objective}', '--rows=400', *TEXTS.get(name, ())])
    text = console.export_svg(title='plm-jax noise', theme=terminal_theme.DIMMED_MONOKAI, unique_id=name)
    text = re.sub(r'@font-face \{.*?\}\s*', '', text, flags=re.DOTALL)  # fonts of another host
    (IMAGES / f'{name}.svg').write_text(text, encoding='utf-8')


def _without_text(leave_out: bool) -> contextlib.AbstractContextManager[Any]:
  """Leave out the line of the clean text, which the first objective of a picture has shown."""
  from plm_jax.commands import noise as command

  show = command._table

  def of_others(console: Any, lines: list[tuple[str, str]]) -> None:
    if lines[0][0] != 'text' or not leave_out:
      show(console, lines)

  return mock.patch.object(command, '_table', of_others)


def rooms() -> None:
  """Draw the rooms of the package as floors."""
  import matplotlib

  matplotlib.use('svg')
  from matplotlib import pyplot as plt

  plt.rcParams['svg.hashsalt'] = 'plm_jax'
  figure, axes = plt.subplots(figsize=(8, 5.6))
  for floor, names in enumerate(FLOORS):
    width = 10 / len(names)
    for place, name in enumerate(names):
      style: dict[str, Any] = {'facecolor': plt.get_cmap('Blues')(0.12 + 0.05 * floor), 'edgecolor': '#345'}
      axes.add_patch(plt.Rectangle((place * width + 0.05, floor + 0.08), width - 0.1, 0.84, **style))
      axes.text(place * width + width / 2, floor + 0.5, f'{name}/', ha='center', va='center', family='monospace')
  axes.annotate('', (10.4, 0.2), (10.4, len(FLOORS) - 0.2), arrowprops={'arrowstyle': '->'})
  axes.text(10.55, len(FLOORS) / 2, 'imports', rotation=270, va='center')
  axes.set(xlim=(0, 11), ylim=(0, len(FLOORS)))
  axes.axis('off')
  figure.savefig(IMAGES / 'rooms.svg', bbox_inches='tight', metadata={'Date': None})


if __name__ == '__main__':
  noise()
  rooms()
