"""Columns that ask a pre-trained network as it is: `evaluate` stands in the place of `train`."""

import json

import pytest

from plm_jax.core.errors import ConfigError
from plm_jax.studies.tables import cells, costs, counting, file, filling, making, render, run_folders, runs

TABLE = """
def get_table(scale):
  made = dict(config='experiments/small/pretrain.py:gpt,quick', family='gpt')
  asked = dict(of='evaluation', metric='validation/accuracy', times=100)
  asked |= dict(configs=dict(gpt='experiments/gpt/prompt.py:quick'))
  return dict(
    title='Table', paper='Paper', mark='none', tuning_seeds=3, pretraining_seeds=2,
    rows={'one': made, 'two': dict(made, start='scratch', without={'asked': 'it knows nothing'})},
    columns={'asked': asked, 'tuned': dict(asked, of='tuning')},
  )
"""


@pytest.fixture
def made(tmp_path):
  path = tmp_path / 'mine.py'
  path.write_text(TABLE)
  table, places = file.read(str(path), 'tiny'), runs.Places(tmp_path / 'work')
  return table, runs.plan(table, places), places


def test_an_evaluation_is_one_of_each_pretraining_and_no_fine_tuning(made):
  _, plan, places = made
  by_seed = plan[runs.Cell('one', 'asked')]
  assert [len(group) for group in by_seed] == [1, 1]
  assert runs.Cell('two', 'asked') not in plan
  (one,), (tuned, *_) = by_seed[0], plan[runs.Cell('one', 'tuned')][0]
  assert one.settings == tuned.settings
  assert one.digest != tuned.digest  # the same config, trained and not
  assert one.source.digest == tuned.source.digest
  name, *words = making.words(one, places, metrics=('validation/accuracy',))
  source, folder = (run_folders.folder_of(run, places).root for run in (one.source, one))
  assert name == 'evaluate'
  assert {f'--weights={source}', f'--workdir={folder}', '--evaluation=validation'} < set(words)
  assert not any('model.from' in word for word in words)
  with pytest.raises(ConfigError, match='evaluat'):
    costs.operations(one, counting.Counts(), None)


def test_the_cost_of_a_table_does_not_count_evaluations(made, monkeypatch, capsys):
  table, plan, places = made
  counted = []

  def add(self, all_runs):
    counted.extend(all_runs)
    self._answers |= {counting._question(run)[0]: 'no size' for run in all_runs}

  monkeypatch.setattr(counting.Counts, 'add', add)
  costs.show(table, plan, places, scale='tiny')
  assert counted and not any(run.evaluates for run in counted)
  assert 'only evaluates' in (out := capsys.readouterr().out) and 'no size' in out


def test_what_it_wrote_is_the_result_of_its_cell(made, monkeypatch):
  table, plan, places = made
  one = plan[runs.Cell('one', 'asked')][0][0]
  folder = run_folders.folder_of(one, places)
  called = []

  def evaluate(command, out, compiled):
    called.append(command[0])
    folder.root.mkdir(parents=True, exist_ok=True)
    folder.evaluations.write_text(json.dumps({'weights': 'w', 'validation/accuracy': 0.25}) + '\n')
    rows = [dict(row_id=n, label=0, record=dict(label=int(n > 0))) for n in range(4)]
    (folder.root / run_folders.PREDICTIONS).write_text(''.join(json.dumps(row) + '\n' for row in rows))
    return ''

  monkeypatch.setattr(making, '_call', evaluate)
  asked = ('validation/accuracy',)
  assert not run_folders.is_finished(folder)
  assert making.make(one, places, metrics=asked) == ''
  assert run_folders.is_finished(folder)
  assert making.make(one, places, metrics=asked) == ''
  assert called == ['evaluate']
  (folder.root / run_folders.PREDICTIONS).unlink()  # as after a kill between the two files
  assert making.make(one, places, metrics=asked) == ''
  assert called == ['evaluate', 'evaluate']
  folder.evaluations.write_text('{"weights": "w", "valid')  # as after one in the middle of the first
  assert not run_folders.is_finished(folder)
  assert making.make(one, places, metrics=asked) == ''
  found = cells.record(one, folder, asked)
  assert found['metrics'] == {'validation/accuracy': 0.25}
  assert not {'versions', 'code', 'machine'} & set(found)  # what nobody knows is not said
  by = {'versions': {'jax': '0.9'}, 'code': 'abc', 'machine': 'a laptop'}
  folder.evaluated_by.write_text(json.dumps(by))
  assert cells.record(one, folder, asked) == found | by
  kept = dict(runs={one.digest: found}, cells={'one': {'asked': [[one.digest]]}})
  cell = render.measured(table, kept, 'one', 'asked')
  assert cell.values.tolist() == [[25.0]]
  assert cell.rows.tolist() == [[[100.0, 0.0, 0.0, 0.0]]]
  assert filling.metrics_of(table, plan)[one.digest] == asked


def test_fresh_parameters_are_not_asked(tmp_path):
  path = tmp_path / 'mine.py'
  path.write_text(TABLE.replace(", without={'asked': 'it knows nothing'}", ''))
  with pytest.raises(ConfigError, match=r"column 'asked'.*row 'two'"):
    file.read(str(path), 'tiny')
