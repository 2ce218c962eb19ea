"""Pictures of tables: curves where columns lie along a number, dots elsewhere."""

import numpy as np
import pytest
from matplotlib.image import imread

from plm_jax.studies.tables import picture
from plm_jax.studies.tables.file import Column, Row, Table
from plm_jax.studies.tables.intervals import Measured

ALONG = {
  '50 labels': Column(metric='test/accuracy', along=('labels of $A', 50.0), trivial={'one class': 20.0, 'odd': 1.0}),
  '1,000 labels': Column(
    metric='test/accuracy', along=('labels of $A', 1_000.0), trivial={'one class': 20.0, 'odd': 2.0}
  ),
  '10 labels of B': Column(metric='test/accuracy', along=('labels of B', 10.0)),
}
ROWS = {'pre-trained': Row(published={'1,000 labels': 90.0}), '_from scratch': Row()}
CELLS = {
  ('pre-trained', '1,000 labels'): Measured(np.array([[80.0, 84.0, np.nan]])),
  ('pre-trained', '50 labels'): Measured(np.array([[50.0, 54.0]])),
  ('_from scratch', '50 labels'): Measured(np.array([[40.0]])),
  ('pre-trained', '10 labels of B'): Measured(np.array([[7.0]])),
}


def table(columns):
  return Table(title='A table', paper='none', mark='none', rows=ROWS, columns=columns)


def test_columns_along_a_number_are_curves():
  figure = picture._drawn(table(ALONG), CELLS)
  left, right = figure.axes
  assert (left.get_xlabel(), right.get_xlabel()) == (r'labels of \$A', 'labels of B')
  lines = {line.get_label(): line.get_xydata().tolist() for line in left.lines if line.get_linestyle() == '-'}
  assert lines['pre-trained'] == [[50, 52], [1_000, 82]]  # the means, in the order of the axis
  assert [[50, 40]] in lines.values()
  dots = [tuple(point) for line in left.lines if line.get_marker() == 'o' for point in line.get_xydata()]
  assert sorted(dots) == [(50, 40), (50, 50), (50, 54), (1_000, 80), (1_000, 84)]
  printed = [line.get_xydata().tolist() for line in left.lines if line.get_marker() == 'D']
  assert printed == [[[1_000, 90]]]
  levels = [line.get_label() for line in left.lines if line.get_linestyle() == '--']
  assert levels == ['one class']  # 'odd' is another number in each column
  assert left.get_xscale() == 'log' and [text.get_text() for text in left.get_xticklabels()] == ['50', '1,000']
  names = [text.get_text() for text in left.get_legend().get_texts()]
  assert names == ['pre-trained', ' _from scratch', 'one class']


def test_two_columns_may_lie_at_one_number():
  columns = {
    'dev': Column(metric='dev/f1', along=('labels', 50.0)),
    'test': Column(metric='test/f1', along=('labels', 50.0)),
  }
  cells = {('pre-trained', name): Measured(np.array([[value, value]])) for name, value in (('dev', 2.0), ('test', 1.0))}
  (axes,) = picture._drawn(table(columns), cells).axes
  assert axes.lines[0].get_xydata().tolist() == [[50, 2], [50, 1]]


def test_one_column_that_lies_along_nothing_makes_dots_of_all(tmp_path):
  columns = {**ALONG, 'other': Column(metric='test/accuracy')}
  cells = {**CELLS, ('pre-trained', 'other'): Measured(np.array([[1.0]]))}
  figure = picture._drawn(table(columns), cells)
  assert len(figure.axes) == len(columns)
  _, second, *_ = figure.axes  # published and measured have one scale, and baselines are lines
  assert {line.get_label() for line in second.lines} >= {'published', 'one class', 'odd'}
  assert len(picture._drawn(table(columns), CELLS).axes) == 2  # without a result a column is not drawn


def test_a_line_has_six_panels_and_a_legend_below():
  columns = {f'c{place}': Column(metric='test/accuracy', trivial={'one class': 20.0}) for place in range(8)}
  cells = {('pre-trained', name): Measured(np.array([[50.0, 54.0]])) for name in columns}
  figure = picture._drawn(table(columns), cells)
  tops = [axes.get_subplotspec().rowspan.start for axes in figure.axes]
  assert tops == [0] * 6 + [1] * 6 and [axes.axison for axes in figure.axes].count(False) == 4
  assert [text.get_text() for text in figure.legends[0].get_texts()] == ['measured, and its runs', 'one class']
  assert not [axes.get_legend() for axes in figure.axes if axes.get_legend()]


@pytest.mark.parametrize('cells', [CELLS, {}], ids=['some', 'none'])
def test_a_file_is_written(tmp_path, cells):
  picture.draw(table(ALONG), cells, tmp_path / 'table.png', remark='A remark')
  assert imread(tmp_path / 'table.png').std() > 0.05
