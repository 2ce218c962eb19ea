"""Make the pictures of docs/images/ again: noise, inputs and masks of families, rooms of the package.

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


# Inputs and architectures ---------------------------------------------------------------------------------------------

WORDS = 'the cat sat on the mat and the dog lay by it'
# Panel of masks -> an objective of `plm-jax noise`; its model computes the weights, so the masks are those of the code.
MASKS = {
  'BERT, RoBERTa, ALBERT,\nDeBERTa, ELECTRA': 'bert',
  'GPT, LLaMA, PaLM': 'causal_lm',
  'XLNet: a random order': 'xlnet',
  'UniLM: one of four masks': 'unilm',
  'GLM: text, then its spans': 'glm',
  'T5, BART: encoder': ('t5', 'encoder', 'attention'),
  'T5, BART: decoder': ('t5', 'decoder', 'attention'),
  'T5, BART: decoder to encoder': ('t5', 'decoder', 'cross'),
}


def _pyplot() -> Any:
  import matplotlib

  matplotlib.use('svg')
  from matplotlib import pyplot as plt

  plt.rcParams['svg.hashsalt'] = 'plm_jax'
  return plt


def _save(figure: Any, name: str) -> None:
  figure.savefig(IMAGES / f'{name}.svg', bbox_inches='tight', metadata={'Date': None})


def _weights(objective: str, within: tuple[str, ...]) -> Any:
  """The attention weights [queries, keys] of the first layer and head of a tiny model on one example."""
  import jax
  import numpy as np

  from plm_jax.commands.noise import WordVocab
  from plm_jax.config import build
  from plm_jax.inference import noise_examples, noise_page

  vocab: Any = WordVocab(WORDS, 'a bird .')
  show = next(show for show in noise_examples.GALLERY if show.name == objective)
  trunk = build.make('models', {'name': show.model, 'variant': 'tiny'}, vocab_size=vocab.size)
  task = build.make('objectives', show.objective, trunk=trunk, vocab=vocab)
  batch = noise_page.batch(show.rows, vocab.encode(WORDS), vocab, rows=1, other=vocab.encode('a bird .'))
  inputs = noise_page.examples(task.prepare, batch, seed=1, draws=1)[0].inputs
  params = task.model.init(jax.random.key(0), train=False, **inputs)['params']
  _, sown = task.model.apply({'params': params}, train=False, **inputs, mutable=['attention'])
  paths = jax.tree_util.tree_leaves_with_path(sown)
  leaf = next(leaf for path, leaf in paths if all(f"'{part}'" in jax.tree_util.keystr(path[1:]) for part in within))
  return np.asarray(leaf)[0, 0, 0]


def masks() -> None:
  """Draw what each token may look at, in each family."""
  plt = _pyplot()
  figure, grid = plt.subplots(2, 4, figsize=(10, 5.6), layout='constrained')
  for axes, (title, of) in zip(grid.flat, MASKS.items(), strict=True):
    name, *within = (of,) if isinstance(of, str) else of
    axes.imshow(_weights(name, tuple(within)) > 0, cmap='Blues', vmin=0, vmax=1.4, aspect='auto')
    axes.set_title(title, fontsize=9)
    axes.set(xticks=[], yticks=[])
  grid[1, 0].set_xlabel('key: the token that is looked at', fontsize=8)
  grid[1, 0].set_ylabel('query', fontsize=8)
  _save(figure, 'masks')


def inputs() -> None:
  """Draw BERT's sum of embeddings, and GPT's inputs of four tasks, by the layouts of the code."""
  from plm_jax.commands.noise import WordVocab
  from plm_jax.config import build

  vocab: Any = WordVocab('my dog is cute he likes play ##ing')
  styles = build.files_of('data.rows.layouts')
  first, second = vocab.encode('my dog is cute'), vocab.encode('he likes play ##ing')
  frames = styles['bert'].make(vocab=vocab, fields=2).frames
  ids, types = [], []
  for (before, after), text in zip(frames, (first, second), strict=True):
    row = [*before, *text, *after]
    types += [len(set(types))] * len(row)
    ids += row
  plt = _pyplot()
  figure, axes = plt.subplots(figsize=(10, 2.6), layout='constrained')
  tokens = [vocab.token(token) for token in ids]
  lines = {'token': tokens, 'segment': ['AB'[kind] for kind in types], 'position': [str(i) for i in range(len(ids))]}
  for line, (label, texts) in enumerate(lines.items()):
    axes.text(-0.6, -line, f'{"+ " if line else ""}{label}', ha='right', va='center')
    for place, text in enumerate(texts):
      shade = (0.12, 0.28 if text == 'B' else 0.16, 0.08)[line]
      style = {'facecolor': plt.get_cmap('Blues')(shade), 'edgecolor': '#345'}
      axes.add_patch(plt.Rectangle((place + 0.04, -line - 0.36), 0.92, 0.72, **style))
      axes.text(place + 0.5, -line, text, ha='center', va='center', fontsize=9)
  axes.set(xlim=(-2, len(ids)), ylim=(-2.5, 0.5))
  axes.axis('off')
  _save(figure, 'bert_inputs')
  tasks = {
    'classification': [['start', 'text', 'extract']],
    'entailment': [['start', 'premise', '$', 'hypothesis', 'extract']],
    'similarity': [['start', 'first', '$', 'second', 'extract'], ['start', 'second', '$', 'first', 'extract']],
    'multiple choice': [['start', 'context', '$', f'option {i}', 'extract'] for i in (1, 2)],
  }
  figure, axes = plt.subplots(figsize=(10, 3.6), layout='constrained')
  at = 0.0
  for task, rows in tasks.items():
    axes.text(-0.2, at - 0.5 * (len(rows) - 1), task, ha='right', va='center')
    for row in rows:
      left = 0.0
      for part in row:
        width = 1.0 if part in ('start', '$', 'extract') else 2.2
        style = {'facecolor': plt.get_cmap('Blues')(0.3 if width == 1.0 else 0.1), 'edgecolor': '#345'}
        axes.add_patch(plt.Rectangle((left, at - 0.38), width - 0.06, 0.76, **style))
        axes.text(left + width / 2, at, part, ha='center', va='center', fontsize=9)
        left += width
      axes.annotate('Transformer', (left + 1.4, at), (left + 0.1, at), va='center', fontsize=9)
      at -= 1.0
    joined = {'similarity': 'add, then one layer', 'multiple choice': 'one layer each, then softmax'}
    axes.text(10.2, at + 0.5 + 0.5 * len(rows), joined.get(task, 'one layer'), va='center', fontsize=9)
    at -= 0.3
  axes.set(xlim=(-2.4, 13), ylim=(at + 0.6, 0.6))
  axes.axis('off')
  _save(figure, 'gpt_inputs')


def side_by_side() -> None:
  """Draw which states of a layer each state reads, in BERT, GPT and ELMo."""
  plt = _pyplot()
  figure, grid = plt.subplots(1, 3, figsize=(10, 3), layout='constrained')
  size = 5
  for axes, (title, name) in zip(grid, {'BERT': 'bert', 'GPT': 'causal_lm', 'ELMo': ''}.items(), strict=True):
    axes.set_title(title)
    axes.set(xlim=(-0.5, size - 0.5), ylim=(-0.4, 2.4))
    axes.axis('off')
    arrow = {'arrowstyle': '->', 'color': '#345', 'alpha': 0.6, 'shrinkA': 8, 'shrinkB': 8}
    seen = _weights(name, ())[:size, :size] > 0 if name else None
    for layer in range(2):
      for query in range(size):
        for key in range(size):
          if seen is not None and seen[query, key]:
            axes.annotate('', (query, layer + 1), (key, layer), arrowprops=arrow)
        if seen is None:  # two LSTMs with separate states
          for side, step, colour in ((-0.14, 1, '#246'), (0.14, -1, '#a50')):
            own = {**arrow, 'color': colour, 'alpha': 0.9}
            below = side if layer else 0
            axes.annotate('', (query + side, layer + 1), (query + below, layer), arrowprops=own)
            if 0 <= query + step < size:
              axes.annotate('', (query + step + side, layer + 1), (query + side, layer + 1), arrowprops=own)
    for layer in range(3):
      sides = (0,) if seen is not None or layer == 0 else (-0.14, 0.14)
      for side in sides:
        axes.plot([place + side for place in range(size)], [layer] * size, 'o', color='#246', markersize=6)
  _save(figure, 'side_by_side')


def rooms() -> None:
  """Draw the rooms of the package as floors."""
  plt = _pyplot()
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
  _save(figure, 'rooms')


if __name__ == '__main__':
  noise()
  masks()
  inputs()
  side_by_side()
  rooms()
