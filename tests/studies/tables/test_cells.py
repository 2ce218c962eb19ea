"""What a run leaves in `cells.json`."""

import json

import numpy as np
import pytest

from plm_jax.errors import ConfigError
from plm_jax.studies.tables import cells


def rows_file(tmp_path, rows):
  file = tmp_path / 'predictions.jsonl'
  file.write_text(''.join(json.dumps({'row_id': n, **row}) + '\n' for n, row in enumerate(rows)))
  return file


@pytest.mark.parametrize('rows', [[1, 0, 0, 1, 1], [0.25, 1.0, 0.3333]])
def test_scores_of_rows_come_back(rows):
  packed = cells.packed(np.array(rows, float))
  assert ('bits' in packed) == (len(rows) == 5)
  np.testing.assert_allclose(cells.unpacked(json.loads(json.dumps(packed))), rows)


def test_accuracy_is_a_mean_over_rows(tmp_path):
  rows = [dict(label=p, probability=[0.5, 0.5], record=dict(label=g)) for p, g in ((0, 0), (1, 0), (1, 1))]
  np.testing.assert_array_equal(cells.by_row(rows_file(tmp_path, rows), 'validation/accuracy'), [1, 0, 1])


def test_a_correlation_is_no_mean_over_rows(tmp_path):
  rows = [dict(label=p, record=dict(label=g)) for p, g in ((0, 0), (1, 0), (1, 1), (0, 0))]
  assert cells.by_row(rows_file(tmp_path, rows), 'validation/matthews') is None
  alike = [dict(label=1, record=dict(label=g)) for g in (0, 1, 1, 0)]  # 0 as a whole, and of each row
  assert cells.by_row(rows_file(tmp_path, alike), 'validation/matthews') is None


def test_a_metric_that_no_score_has_gives_no_rows(tmp_path):
  rows = [dict(label=0, record=dict(label=0))]
  assert cells.by_row(rows_file(tmp_path, rows), 'validation/perplexity') is None


def test_runs_that_no_cell_names_are_left_out(tmp_path):
  kept = {
    **cells.EMPTY,
    'cells': {'a': {'b': [['x']]}},
    'runs': {'x': {'source': 's'}, 's': {}, 'old': {}},
    'failed': {'old': 'no'},
  }
  cells.write(tmp_path / 'cells.json', kept)
  again = cells.read(tmp_path / 'cells.json')
  assert list(again['runs']) == ['s', 'x']
  assert again['failed'] == {}


@pytest.mark.parametrize('text', ['{', '[]', '{"runs": 3}'])
def test_a_damaged_file_is_named(tmp_path, text):
  (tmp_path / 'cells.json').write_text(text)
  with pytest.raises(ConfigError, match=r'cells\.json is damaged .*restore it or move it away'):
    cells.read(tmp_path / 'cells.json')


def test_no_file_is_an_empty_one(tmp_path):
  assert cells.read(tmp_path / 'cells.json') == cells.EMPTY
