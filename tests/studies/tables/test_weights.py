"""Rows that start from published weights in place of a pre-training."""

import pytest

from plm_jax.core.errors import ConfigError
from plm_jax.studies.tables import file, filling, making, needs, runs

TABLE = """
def get_table(scale):
  tuned = dict(metric='validation/loss', better='min', configs=dict(bert='experiments/finetune/classify.py:quick'))
  row = dict(weights='{folder}')
  return dict(
    title='A', paper='B', mark='none',
    rows={{'one': row, 'two': dict(row, start='scratch', without={{'asked': 'no'}})}},
    columns={{'tuned': tuned, 'asked': dict(tuned, of='evaluation')}},
  )
"""


def read(tmp_path, folder, **changes):
  text = TABLE.format(folder=folder)
  for old, new in changes.values():
    text = text.replace(old, new)
  (tmp_path / 'mine.py').write_text(text)
  table, places = file.read(str(tmp_path / 'mine.py'), 'tiny'), runs.Places(tmp_path / 'work')
  return table, runs.plan(table, places), places


def test_runs_start_from_the_folder(tmp_path):
  _, plan, places = read(tmp_path, 'released/one')
  tuned, fresh, asked = (
    plan[runs.Cell(*cell)][0][0] for cell in (('one', 'tuned'), ('two', 'tuned'), ('one', 'asked'))
  )
  assert [run.is_tuning for run in (tuned, fresh)] == [True, True]
  assert runs.sources(tuned) == []
  words = {name: making.words(run, places) for name, run in dict(tuned=tuned, fresh=fresh, asked=asked).items()}
  assert {'--config.model.from=released/one'} < set(words['tuned']) & set(words['fresh'])
  assert ['--config.init_from=[]' in words[name] for name in ('tuned', 'fresh')] == [False, True]
  assert words['asked'][0] == 'evaluate'
  assert '--weights=released/one' in words['asked']
  assert not any('model.from' in word for word in words['asked'])
  other = read(tmp_path, 'released/other')[1][runs.Cell('one', 'tuned')][0][0]
  assert other.digest not in {tuned.digest, fresh.digest, asked.digest}


def test_a_missing_folder_is_named_with_its_fix(tmp_path):
  table, plan, places = read(tmp_path, 'released/one')
  metrics = filling.metrics_of(table, plan)
  with pytest.raises(ConfigError, match=r'^released/one: there is no such folder of weights\. Put one there'):
    needs.check(table, plan, metrics, places, head='experiments/tables/bert_5.py')
  with pytest.raises(ConfigError, match=r'minilm\.py has the command') as caught:
    table, plan, places = read(tmp_path, 'runs/released/mini')
    needs.check(table, plan, filling.metrics_of(table, plan), places, head='experiments/tables/minilm.py')
  assert len(str(caught.value)) <= 240


@pytest.mark.parametrize(
  ('old', 'new', 'match'),
  [
    ('row = dict(', "row = dict(config='experiments/quickstart/pretrain.py', ", 'set one of config and weights'),
    ("of='evaluation'", "of='pretraining'", r"no pre-training to measure: add 'asked' to its `without`"),
  ],
)
def test_rows_with_weights_have_no_pretraining(tmp_path, old, new, match):
  with pytest.raises(ConfigError, match=match):
    read(tmp_path, 'released/one', change=(old, new))


def test_sizes_are_those_of_the_folder(tmp_path, monkeypatch):
  """`--cost` counts the network of the folder, not that of the config."""
  from plm_jax.studies.tables import counting

  monkeypatch.setattr(counting.model_from, 'expand', lambda settings, changes, _: ({**settings, 'model': changes}, []))
  (tmp_path / 'released').mkdir()
  _, plan, _ = read(tmp_path, tmp_path / 'released')
  described = counting.described(plan[runs.Cell('one', 'tuned')][0][0])
  assert described['settings']['model'] == [('model.from', str(tmp_path / 'released'))]
