"""The tables under experiments/results/ are what their `cells.json` say: no number there was typed."""

import pathlib
import re
import shlex

import numpy as np
import pytest
from matplotlib import image

from plm_jax.studies.tables import cells, file, render

RESULTS = pathlib.Path('experiments/results')
FOLDERS = sorted(found.parent for found in RESULTS.glob('*/*/cells.json'))


@pytest.mark.parametrize('folder', FOLDERS, ids=lambda folder: '/'.join(folder.parts[-2:]))
def test_a_table_is_rendered_again(folder, tmp_path):
  kept = cells.read(folder / 'cells.json')
  words = shlex.split(kept['command'])
  table_file = words[words.index('plm_jax.tables') + 1]
  render.write(file.read(table_file, kept['scale']), kept, tmp_path)
  for name in ('table.md', 'table.csv'):
    assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
  again, picture = image.imread(tmp_path / 'table.png'), image.imread(folder / 'table.png')
  assert again.shape == picture.shape
  assert np.abs(again - picture).mean() < 0.01  # another version of matplotlib may place a letter elsewhere


@pytest.mark.parametrize('folder', FOLDERS, ids=lambda folder: '/'.join(folder.parts[-2:]))
def test_a_table_says_how_it_was_made_and_what_it_shows(folder):
  kept = cells.read(folder / 'cells.json')
  assert re.fullmatch(r'[0-9a-f]{12}', kept['code']), 'made from files that are not committed'
  assert not re.search(r'(^|[= ])/', kept['command']), 'it names a place of one machine'
  assert any(found for row in kept['cells'].values() for found in row.values())
  line = next(
    line for line in (RESULTS / 'README.md').read_text().splitlines() if f']({folder.relative_to(RESULTS)}/' in line
  )
  assert len(line.split('|')[-2].split()) > 8, 'it has no sentence'
