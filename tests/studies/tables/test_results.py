"""The tables under experiments/results/ are what their `cells.json` say: no number there was typed."""

import importlib.metadata
import pathlib
import re
import shlex

import numpy as np
import pytest
from matplotlib import image

from plm_jax.commands import tables
from plm_jax.studies.tables import cells, file, render, runs

RESULTS = pathlib.Path('experiments/results')
DRAWN_WITH = {'matplotlib': '3.11.2', 'pillow': '13.0.0'}  # what drew the pictures that are there
FOLDERS = sorted(found.parent for found in RESULTS.glob('*/*/cells.json'))


@pytest.mark.parametrize('folder', FOLDERS, ids=lambda folder: '/'.join(folder.parts[-2:]))
def test_a_table_is_rendered_again(folder, tmp_path):
  """Byte for byte; another version of what draws the picture may place a letter elsewhere and packs it otherwise, so
  there the picture has a tolerance."""
  kept = cells.read(folder / 'cells.json')
  words = shlex.split(kept['command'])
  table_file = words[words.index('tables') + 1]
  render.write(file.read(table_file, kept['scale']), kept, tmp_path)
  same = all(importlib.metadata.version(name) == version for name, version in DRAWN_WITH.items())
  for name in ('table.md', 'table.csv', *['table.png'] * same):
    assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name
  again, picture = image.imread(tmp_path / 'table.png'), image.imread(folder / 'table.png')
  assert again.shape == picture.shape
  assert np.abs(again - picture).mean() < 0.01


@pytest.mark.parametrize('text', sorted(RESULTS.glob('*/*/rungs.md')), ids=lambda text: text.parent.name)
def test_a_comparison_of_sizes_is_rendered_again(text, tmp_path):
  name, _, _ = text.parent.name.rpartition('_')
  table = next(word for word in cells.read(text.with_name('cells.json'))['command'].split() if word.endswith('.py'))
  folders = [str(folder) for folder in FOLDERS if folder.parent == text.parents[1] and folder.name.startswith(name)]
  assert tables.main([table, '--rungs', *folders, f'--out={tmp_path}']) == 0
  assert (tmp_path / 'rungs.md').read_bytes() == text.read_bytes()


@pytest.mark.parametrize('folder', FOLDERS, ids=lambda folder: '/'.join(folder.parts[-2:]))
def test_the_command_of_a_table_finds_its_runs(folder, tmp_path):
  """Where a change of a config, or of what makes two runs the same, is one of them, `cells.json` has to follow."""
  kept = cells.read(folder / 'cells.json')
  words = shlex.split(kept['command'])
  given = dict(word.removeprefix('--').split('=', 1) for word in words if word.startswith('--'))
  seeds = {name: int(given[name]) for name in ('seeds', 'first_seed') if name in given}
  table = file.read(words[words.index('tables') + 1], kept['scale'], **seeds)
  plan = runs.plan(table, runs.Places(tmp_path, given.get('data'), given.get('corpus')))
  assert cells.names(plan) == kept['cells']


@pytest.mark.parametrize('folder', FOLDERS, ids=lambda folder: '/'.join(folder.parts[-2:]))
def test_a_table_says_how_it_was_made_and_what_it_shows(folder):
  kept = cells.read(folder / 'cells.json')
  for commit in cells.made_by(kept, 'code'):
    assert re.fullmatch(r'[0-9a-f]{12}', commit), 'made from files that are not committed'
  assert not re.search(r'(^|[= ])/', kept['command']), 'it names a place of one machine'
  assert any(found for row in kept['cells'].values() for found in row.values())
  line = next(
    line for line in (RESULTS / 'README.md').read_text().splitlines() if f']({folder.relative_to(RESULTS)}/' in line
  )
  assert len(line.split('|')[-2].split()) > 8, 'it has no sentence'
