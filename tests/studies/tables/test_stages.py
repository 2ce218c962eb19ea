"""Runs of a table that begin with other runs: a second stage of pre-training, a teacher, copies of the text."""

import ast
import pathlib

import pytest

from plm_jax.core.errors import ConfigError
from plm_jax.studies.tables import cells, file, making, render, run_folders, runs
from tests.studies.tables.test_filling import Machine, fill

STAGES = """
BEFORE = '{before}'


def get_table(scale):
  first = dict(config='experiments/quickstart/pretrain.py:quick', keys={'data.path': 'text'}, family='lm')
  student = dict(config='experiments/distilbert/base.py:quick', after='teacher', family='lm', direct=True)
  tune, between = 'experiments/ulmfit/classify.py:trec,quick', 'experiments/ulmfit/fine_tune.py:trec,quick'
  return dict(
    title='Stages', paper='Paper', mark='none', tuning_seeds=2, reference='teacher',
    rows={
      'teacher': first,
      'student': dict(student, keys={'init_from': (dict(source=BEFORE, from_='', to='teacher'),)}),
      'direct': dict(first, direct=True),
      'fresh': dict(first, between_start='scratch'),
      'clean': dict(first, corpus='_clean'),
    },
    columns={
      'error': dict(
        configs=dict(lm=tune), between=dict(lm=between), metric='validation/accuracy', times=-100, plus=100,
        better='min', folder='trec', between_keys={'optim.rate': 0.01},
      ),
      'read': dict(of='tokens'),
    },
    claims=[dict(column='error', better='teacher', than='direct')],
  )
"""


@pytest.fixture
def stages(tmp_path):
  path = tmp_path / 'stages.py'
  path.write_text(STAGES)
  table = file.read(str(path), 'tiny')
  places = runs.Places(tmp_path / 'work', data=str(tmp_path / 'sets'))
  return table, runs.plan(table, places), places


def test_a_stage_between_goes_on_with_the_text_of_the_column(stages, tmp_path):
  ((tuned, other),) = stages[1][runs.Cell('teacher', 'error')]
  between = tuned.source
  assert between == other.source  # one for all fine-tunings of a pre-training
  assert [run.config.partition(':')[0][-12:] for run in runs.sources(tuned)] == ['fine_tune.py', '/pretrain.py']
  assert between.settings['data']['path'] == tuned.settings['data']['path'] == str(tmp_path / 'sets' / 'trec')
  assert between.settings['optim']['rate'] == 0.01
  assert runs.pretraining_of(tuned) == between.source == stages[1][runs.Cell('direct', 'error')][0][0].source
  asked = making.words(between, stages[2])
  assert f'--config.model.from={run_folders.folder_of(between.source, stages[2]).root}' in asked
  assert f'--config.model.from={run_folders.folder_of(between, stages[2]).root}' in making.words(tuned, stages[2])


def test_a_stage_between_may_have_a_folder_of_data(tmp_path):
  path = tmp_path / 'stages.py'
  path.write_text(STAGES.replace("folder='trec',", "folder='trec', between_folder='other',"))
  places = runs.Places(tmp_path / 'work', data=str(tmp_path / 'sets'))
  ((tuned, _),) = runs.plan(file.read(str(path), 'tiny'), places)[runs.Cell('teacher', 'error')]
  assert tuned.settings['data']['path'] == str(tmp_path / 'sets' / 'trec')
  assert tuned.source.settings['data']['path'] == str(tmp_path / 'sets' / 'other')


def test_a_stage_between_may_begin_with_fresh_parameters(stages):
  tuned = stages[1][runs.Cell('fresh', 'error')][0][0]
  assert '--config.init_from=[]' in making.words(tuned.source, stages[2])
  assert tuned.source.digest != stages[1][runs.Cell('teacher', 'error')][0][0].source.digest


def test_a_row_begins_with_the_folder_of_another_where_its_changes_name_it(stages):
  student = stages[1][runs.Cell('student', 'error')][0][0].source
  teacher = stages[1][runs.Cell('teacher', 'read')][0][0]
  assert student.source == teacher
  folder = str(run_folders.folder_of(teacher, stages[2]).root)
  (said,) = (word for word in making.words(student, stages[2]) if word.startswith('--config.init_from='))
  assert ast.literal_eval(said.partition('=')[2]) == (dict(source=folder, from_='', to='teacher'),)
  assert not any('model.from' in word for word in making.words(student, stages[2]))
  assert runs.pretraining_of(student) == student  # its model is its own


def test_a_corpus_beside_the_text_is_held_out_like_the_text(stages):
  settings = stages[1][runs.Cell('clean', 'read')][0][0].settings
  assert settings['data']['path'] == 'text_clean'
  assert settings['eval']['validation']['data']['path'] == 'text'
  places = stages[2]._replace(corpus='other')
  ((run,),) = runs.plan(stages[0], places)[runs.Cell('clean', 'read')]
  assert (run.settings['data']['path'], run.settings['eval']['validation']['data']['path']) == ('other_clean', 'other')


def test_runs_of_stages_are_made_in_order_and_only_tasks_predict(stages, tmp_path, monkeypatch):
  machine = Machine(stages[2])
  kept = fill(stages, tmp_path, machine, monkeypatch)
  assert kept['failed'] == {}
  place = {digest: number for number, digest in enumerate(machine.made)}
  needed = runs.needed(stages[1])
  assert {len(runs.sources(run)) for run in needed} == {0, 1, 2}
  for run in needed:
    assert all(place[source.digest] < place[run.digest] for source in runs.sources(run))
    assert (run_folders.folder_of(run, stages[2]).root / run_folders.PREDICTIONS).exists() == ('classify' in run.config)
  assert set(cells.read(tmp_path / 'out' / 'cells.json')['runs']) == {run.digest for run in needed}


def test_error_rates_and_numbers_of_tokens(stages, tmp_path, monkeypatch):
  kept = fill(stages, tmp_path, Machine(stages[2]), monkeypatch)
  cell = render.measured(stages[0], kept, 'teacher', 'error')
  assert cell.values.tolist() == [[100, 75]]  # accuracies 0 and .25
  assert cell.rows.mean(axis=-1).tolist() == [[100, 75]]
  assert render.measured(stages[0], kept, 'teacher', 'read').values.tolist() == [[5]]
  text = (tmp_path / 'out' / 'table.md').read_text()
  assert 'Published numbers: none.' in text


def test_a_row_comes_after_an_earlier_one(tmp_path):
  path = tmp_path / 'mine.py'
  path.write_text(STAGES.replace("after='teacher'", "after='direct'"))
  with pytest.raises(ConfigError, match=r"row 'student': after: .*'direct'.*teacher"):
    file.read(str(path), 'tiny')
  path.write_text(STAGES.replace('between=dict(lm=between)', 'between=dict(bert=between)'))
  with pytest.raises(ConfigError, match=r"column 'error'.*between.*'lm'"):
    file.read(str(path), 'tiny')


@pytest.mark.parametrize('name', ['ulmfit_3', 'ulmfit_4', 'ulmfit_7'])
def test_a_table_of_validation_errors_says_where_it_measures_those_of_test_sets(name):
  for scale in ('small', 'paper'):
    table = file.read(f'experiments/tables/{name}.py', scale)
    assert 'validation error' in table.paper
    columns = {label: column for label, column in table.columns.items() if not column.empty}
    for label, column in columns.items():
      assert ('the test set' in column.note) is column.metric.startswith('test/'), (scale, label)
    said = render.markdown(table, {**cells.EMPTY, 'scale': scale})
    assert all(f'{label}: {column.note}.' in said for label, column in columns.items() if column.note)


def test_the_second_stage_says_of_itself_what_its_table_says():
  table = file.read('experiments/tables/ulmfit_4.py', 'paper')
  said = ' '.join(
    (ast.get_docstring(ast.parse(pathlib.Path('experiments/ulmfit/fine_tune.py').read_text())) or '').split()
  )
  whole, none, full = (
    table.rows[name].published for name in ('all of it (4, 5, 6)', 'no fine-tuned language model (6)', 'full (6)')
  )
  assert f'from {whole["IMDb"]:.2f} to {none["IMDb"]:.2f} (IMDb)' in said
  assert f'from {whole["TREC-6"]:.2f} to {none["TREC-6"]:.2f} (TREC-6)' in said
  assert f'it is {full["IMDb"]:.2f} and {full["TREC-6"]:.2f}' in said
