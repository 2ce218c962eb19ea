"""Columns that are means of others, cells that are not measured though their row and their column are, and rows whose
pre-training hardly learned."""

import csv
import dataclasses
import io
import math

import numpy as np
import pytest

from plm_jax.core.errors import ConfigError
from plm_jax.studies.tables import cells, file, render, runs

TABLE = """
def get_table(scale):
  made = dict(config='experiments/quickstart/pretrain.py:quick')
  glue = dict(configs=dict(bert='experiments/bert/glue.py:sst2,quick'))
  return dict(
    title='Table', paper='Paper', mark='B', tuning_seeds=2,
    rows={
      'one': dict(made, published={'mean': 90.0}),
      'two': dict(made, keys={'optim.rate': 1e-4}, published={'mean': 80.0}),
      'three': dict(made, keys={'optim.rate': 2e-4}, without={'second': 'it has no such head'}),
    },
    columns={
      'mean': dict(over=('first', 'second')),
      'first': dict(glue, metric='validation/accuracy', times=100),
      'second': dict(glue, metric='validation/loss'),
    },
    claims=[dict(column='mean', better='one', than='two')],
  )
"""


def read(tmp_path, text=TABLE):
  path = tmp_path / 'mine.py'
  path.write_text(text)
  return file.read(str(path), 'tiny')


@pytest.fixture
def rendered(tmp_path):
  """The table and what is kept of it: accuracies .1, .2, ... and losses 10, 20, ... by run."""
  table = read(tmp_path)
  plan = runs.plan(table, runs.Places(tmp_path))
  made = [run for run in runs.needed(plan) if run.source is not None]
  metrics = [{'validation/accuracy': 0.1 * place, 'validation/loss': 10.0 * place} for place in range(1, len(made) + 1)]
  kept = {run.digest: {'metrics': found} for run, found in zip(made, metrics, strict=True)}
  cells = {}
  for cell, by_seed in plan.items():
    cells.setdefault(cell.row, {})[cell.column] = [[run.digest for run in group] for group in by_seed]
  return table, dict(runs=kept, cells=cells, command='c', scale='tiny', machine='m', code='k', failed={}, plateau={})


def test_a_mean_has_no_runs_of_its_own_and_is_taken_seed_by_seed(rendered):
  table, kept = rendered
  assert {name for row in kept['cells'].values() for name in row} == {'first', 'second'}
  found = render.measured(table, kept, 'one', 'mean')
  # accuracies of 10 and 20 per cent, losses of 10 and 20
  np.testing.assert_allclose(found.values, [[10.0, 20.0]])
  np.testing.assert_allclose(render.measured(table, kept, 'two', 'mean').values, [[30.0, 40.0]])
  text = render.markdown(table, kept)
  assert '| one | 90 | 15.00 ± 7.07 (2) |' in text
  assert (
    '- mean is the mean of first, second, seed by seed.' in text and "Over seeds alone, by Student's t: mean," in text
  )
  assert '| mean | one | two | +10 | -20 |' in text


def test_a_mean_without_one_of_its_parts_stays_empty(rendered):
  table, kept = rendered
  assert render.measured(table, kept, 'three', 'first') is not None
  assert render.measured(table, kept, 'three', 'mean') is None
  kept['runs'] = {digest: run for digest, run in kept['runs'].items() if digest not in kept['cells']['one']['first'][0]}
  assert render.measured(table, kept, 'one', 'mean') is None


def test_a_cell_that_is_not_measured_says_why(rendered):
  table, kept = rendered
  assert 'second' not in kept['cells']['three']
  assert '- three (second) stay empty: it has no such head.' in render.markdown(table, kept)
  lines = list(csv.DictReader(io.StringIO(render.comma_separated(table, kept))))
  assert [line['empty'] for line in lines if line['row'] == 'three'] == ['not run', '', 'it has no such head']


def test_rows_that_stayed_near_the_plateau_are_named(rendered):
  table, kept = rendered
  table = dataclasses.replace(
    table, reference='one', rows={**table.rows, 'scratch': dataclasses.replace(table.rows['two'], start='scratch')}
  )
  near = {'one': 4.0, 'two': 5.6, 'three': 5.5}  # nats; of the two seeds of fine-tuning the pre-training is the same
  for row, loss in near.items():
    (digests,) = kept['cells'][row]['first']
    for digest in digests:
      kept['runs'][digest] |= {'source': f'of {row}'}
    kept['runs'][f'of {row}'] = {'metrics': {table.plateau: math.exp(loss)}}
  kept |= {'plateau': {'loss': 4.0, 'frequencies': 6.0}}
  kept['cells']['scratch'] = kept['cells']['two']
  text = render.markdown(table, kept)
  assert "The pre-training of 'one' ends at 4.00 nats a token, 2.00 below the best guess without context" in text
  assert '- Less than 0.50 below it, of their pre-trainings the nearest: two (0.40).' in text


@pytest.mark.parametrize(
  ('old', 'new', 'message'),
  [
    ("over=('first', 'second')", "over=('first', 'third')", "column 'mean': over: .*'third'"),
    ("over=('first', 'second')", "over=('first', 'mean')", "column 'mean': over: .*'mean'"),
    ("metric='validation/loss'", "metric='validation/loss', of='pretraining'", 'first, second'),
    ("without={'second'", "without={'third'", "row 'three': without: .*'third'"),
    ('tuning_seeds=2,', "tuning_seeds=1, summary='best on dev',", 'best on dev|the mean'),
  ],
)
def test_a_mistake_is_named(tmp_path, old, new, message):
  assert old in TABLE
  with pytest.raises(ConfigError, match=message):
    read(tmp_path, TABLE.replace(old, new, 1))


def test_the_average_of_a_table_is_that_of_which_it_prints_differences():
  """DistilBERT's Table 4 has differences from the 77.0 of its Table 1, a mean of nine tasks, WNLI among them."""
  first, fourth = (file.read(f'experiments/tables/distilbert_{number}.py', 'paper') for number in (1, 4))
  assert fourth.rows['the whole loss'].published['GLUE'] == first.rows['DistilBERT'].published['GLUE']
  assert first.columns['GLUE'].over == fourth.columns['GLUE'].over
  numbers = [first.rows['DistilBERT'].published[task] for task in first.columns['GLUE'].over]
  assert np.mean(numbers) == pytest.approx(77.0, abs=0.15)


def test_the_point_that_is_best_on_dev_in_the_mean_counts():
  """Two seeds of two points: the second is best on dev in the mean, though one run of the first is the best of all."""
  column = file.Column(metric='test/accuracy', grid=({}, {'steps': 3}), chosen_by=('dev/accuracy', 'max'))
  columns, rows = {'score': column}, {'one': file.Row(config='none')}
  table = file.Table(title='A', paper='B', mark='B', rows=rows, columns=columns, summary='best point on dev')
  runs = {}
  for digest, dev, test in (('a', 0.9, 1.0), ('b', 0.7, 2.0), ('c', 0.1, 3.0), ('d', 0.6, 4.0)):
    runs[digest] = {'metrics': {'dev/accuracy': dev, 'test/accuracy': test}}
  kept = {**cells.EMPTY, 'runs': runs, 'cells': {'one': {'score': [['a', 'b', 'c', 'd']]}}}
  cell = render.measured(table, kept, 'one', 'score')
  assert cell.values.tolist() == [[2, 4]] and cell.dev is None and cell.points == 1
  assert render.cell_text(cell, table) == '3.00 ± 1.41 (2)'
  del runs['b']  # a point without a result does not count
  assert render.measured(table, kept, 'one', 'score').values.tolist() == [[1, 3]]
  kept['cells']['one']['score'].append(['e', 'f', 'g', 'h'])  # of a pre-training that is not made
  runs |= {'b': {'metrics': {'dev/accuracy': 0.7, 'test/accuracy': 2.0}}}
  values = render.measured(table, kept, 'one', 'score').values
  assert values[0].tolist() == [2, 4] and np.isnan(values[1]).all()
  with pytest.raises(ConfigError, match=r'grid needs .*chosen_by'):
    file._check_choice(table, dataclasses.replace(column, chosen_by=None), 'x')
