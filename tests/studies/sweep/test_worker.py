"""Sweeps: who makes which trial, kills and restarts, trials that diverge or fail, the table, what is refused."""

import contextlib
import errno
import functools
import json
import math
import random
import re
import signal
import time

import pytest

from plm_jax.commands import sweep
from plm_jax.config import overrides
from plm_jax.core.errors import ConfigError, RunError
from plm_jax.io import checksums, files
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import metrics
from plm_jax.training import loop
from tests import runs

optuna = pytest.importorskip('optuna', reason='needs the extra sweep: bash launch/setup.sh sweep')

from plm_jax.studies import child  # noqa: E402
from plm_jax.studies.sweep import report, space  # noqa: E402
from plm_jax.studies.sweep import trial as sweep_trial  # noqa: E402
from plm_jax.studies.sweep import worker as study  # noqa: E402

pytestmark = pytest.mark.turns

SPACE = {'optim.rate': [1e-2, 1e-3], 'seed': [0, 1, 2]}


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  return runs.write_data(tmp_path_factory.mktemp('data'))


def made(folder, *, literal=SPACE, method='grid', trials=6, settings=None, **changes):
  """A sweep whose trials need not be runs."""
  settings = settings or {'best': ['validation/loss', 'min']}
  files.make_folder(folder)
  one = study.Sweep(
    folder=folder, space=space.parse(literal), method=method, trials=trials, metric='validation/loss',
    direction='minimize', seed=0, first_rung=2, factor=2, settings=settings,
    changed=lambda given: overrides.apply(settings, given)[0],
  )  # fmt: skip
  return study.dataclasses.replace(one, **changes)


def number_of(words):
  return int(words[-1].removeprefix('--trial='))


def value_of(number):
  return [3.0, 1.0, 2.0, 9.0, 0.5, 8.0][number % 6]


def table_of(one):
  return [(trial.number, trial.params, trial.value, trial.state.name) for trial in one.study().trials]


# Who makes which trial. The process of a trial is replaced by a function that tells a value.


def test_a_killed_worker_loses_no_trial_and_makes_none_twice(tmp_path, monkeypatch):
  """A worker dies before or behind the end of a trial, at random, and is started again."""
  draw, ended, deaths = random.Random(3), [], []

  class Killed(BaseException):
    pass

  def run(one, chance, words, **_):
    number = number_of(words)
    if draw.random() < chance:
      raise Killed
    one.study().tell(number, value_of(number))
    ended.append(number)
    if draw.random() < chance:
      raise Killed  # behind the end of the trial
    return 0

  tables = []
  for name, chance in {'alone': 0.0, 'killed': 0.6}.items():
    one = made(tmp_path / name)
    monkeypatch.setattr(child, 'run', functools.partial(run, one, chance))
    ended.clear()
    for _ in range(80):
      with contextlib.suppress(Killed):
        study.work(one, [])
        break
      deaths.append(name)
    assert sorted(ended) == list(range(6))
    tables.append(table_of(one))
  assert tables[0] == tables[1]
  assert deaths.count('killed') > 3 and 'alone' not in deaths


def test_a_trial_whose_worker_lives_is_left_to_it(tmp_path):
  one = made(tmp_path, trials=3)
  first, second, third = (contextlib.ExitStack() for _ in range(3))
  with first, second, third:
    journal = one.study()
    assert study._claim(one, journal, first) == 0
    assert study._claim(one, journal, second) == 1
    first.close()  # as the system does when a process ends
    assert study._claim(one, journal, third) == 0
    assert study._claim(one, journal, first) == 2
    with contextlib.ExitStack() as fourth:
      assert study._claim(one, journal, fourth) is None


@pytest.mark.parametrize('method', ['grid', 'random', 'tpe', 'halving'])
def test_points_depend_on_the_trials_and_not_on_the_worker(tmp_path, method):
  literal = SPACE if method == 'grid' else {'optim.rate': {'low': 1e-5, 'high': 1.0, 'scale': 'log'}, **SPACE}
  literal = {**literal, 'seed': {'low': 0, 'high': 9}} if method != 'grid' else literal
  tables = []
  for name in ('one', 'again'):
    one = made(tmp_path / name, literal=literal, method=method, trials=6 if method == 'grid' else 14)
    journal = one.study()
    for number in range(one.trials):
      with contextlib.ExitStack() as held:
        assert study._claim(one, one.study() if name == 'again' else journal, held) == number
        journal.tell(number, value_of(number))
    tables.append(table_of(one))
  assert tables[0] == tables[1]
  known = study.preview(one)
  assert [space.point_of(params, one.space) for _, params, _, _ in tables[0]][: len(known)] == known
  assert len(known) == {'grid': 6, 'tpe': study.FIRST_TRIALS}.get(method, 14)


DISCRETE = {'optim.rate': [1e-3, 1e-2], 'seed': {'low': 0, 'high': 2}}  # six points


@pytest.mark.parametrize('method', ['random', 'tpe', 'halving'])
def test_no_point_is_drawn_twice(tmp_path, method):
  """Two workers in turn, one of which reads the journal anew, draw every point of a small space once."""
  one = made(tmp_path, literal=DISCRETE, method=method)
  journal = one.study()
  for number in range(one.trials):
    with contextlib.ExitStack() as held:
      assert study._claim(one, one.study() if number % 2 else journal, held) == number
      journal.tell(number, value_of(number))
  points = {tuple(params.items()) for _, params, _, _ in table_of(one)}
  assert len(points) == 6
  assert {type(dict(point)['seed']) for point in points} == {int}


def test_a_point_is_taken_from_those_that_are_left_where_draws_repeat(tmp_path, monkeypatch):
  monkeypatch.setattr(study, 'MAX_SAMPLES', 1)
  one = made(tmp_path, literal=DISCRETE, method='random')
  assert len({tuple(point.items()) for point in study.preview(one)}) == 6
  more = study.dataclasses.replace(one, trials=8)  # as in a journal of an earlier version
  assert len(study.preview(more)) == 8


def test_a_point_of_values_beside_a_range_is_drawn_once(tmp_path):
  """'sgd' has no range, so that it is one point, which is half of all draws."""
  literal = {'optim.name': ['sgd', 'adamw'], 'optim.b2': {'low': 0.9, 'high': 0.99, 'when': {'optim.name': ['adamw']}}}
  for method in ('random', 'tpe'):
    one = made(tmp_path, literal=literal, method=method, trials=12)
    points = study.preview(one)
    assert points.count({'optim.name': 'sgd'}) <= 1
    assert len({tuple(point.items()) for point in points}) == len(points)


def test_tpe_goes_on_behind_a_trial_whose_line_is_lost(tmp_path):
  one = made(tmp_path, literal=DISCRETE, method='tpe')
  journal = one.study()
  for number in range(3):
    with contextlib.ExitStack() as held:
      study._claim(one, journal, held)
    journal.tell(number, value_of(number))
  lose_creation(one, 1)
  with contextlib.ExitStack() as held:
    assert study._claim(one, one.study(), held) == 3


def lose_creation(one, *numbers):
  """Damages the lines of the journal that create some trials."""
  file = one.folder / 'journal.jsonl'
  lines = file.read_text().splitlines()
  created = [place for place, line in enumerate(lines) if json.loads(line)['op_code'] == 4]
  for number in numbers:
    lines[created[number]] = lines[created[number]][:20]
  file.write_text('\n'.join(lines) + '\n')


def test_a_point_of_a_grid_whose_line_is_damaged_is_not_lost(tmp_path, monkeypatch):
  """A trial that was over has its value, one that was under way is gone on with, under its number."""
  one = made(tmp_path, trials=4)
  journal = one.study()
  for number in range(3):
    with contextlib.ExitStack() as held:
      study._claim(one, journal, held)
    if number < 2:
      journal.tell(number, value_of(number))
  # the third is under way, with a line of its own behind the one that creates it
  journal._storage.set_trial_user_attr(journal.trials[2]._trial_id, 'step', 1)
  expected = table_of(one)
  lose_creation(one, 1, 2)
  assert table_of(one) == expected
  made_now = []

  def run(words, **_):
    made_now.append(number_of(words))
    one.study().tell(made_now[-1], value_of(made_now[-1]))
    return 0

  monkeypatch.setattr(child, 'run', run)
  trials = study.work(one, [])
  assert made_now == [2, 3]
  assert [trial.value for trial in trials] == [value_of(number) for number in range(4)]
  assert [space.point_of(trial.params, one.space) for trial in trials] == space.grid(one.space)[:4]
  table = report.report(one, trials, command=[])  # which hands all of them to Optuna
  assert table['trials'] == {'COMPLETE': 4, 'PRUNED': 0, 'FAIL': 0}


def test_tpe_draws_where_values_were_good(tmp_path):
  """The mean distance of log10 rate from the best one shrinks once results are known."""
  one = made(tmp_path, literal={'optim.rate': {'low': 1e-6, 'high': 1.0, 'scale': 'log'}}, method='tpe', trials=40)
  journal, away = one.study(), []
  for number in range(one.trials):
    with contextlib.ExitStack() as held:
      study._claim(one, journal, held)
    rate = journal.trials[number].params['optim.rate']
    away.append(abs(math.log10(rate) + 2))
    journal.tell(number, away[-1])
  assert sum(away[-15:]) / 15 < sum(away[:10]) / 10 / 2


@pytest.mark.parametrize(
  ('code', 'over', 'said'),
  [
    (-9, False, 'SIGKILL'),
    (7, False, 'exit code 7'),
    (2, False, ConfigError),
    (1, False, RunError),
    (1, True, RunError),
    (2, True, ConfigError),
    (3, True, study.signals.Interrupted),
  ],
)
def test_the_end_of_a_process_that_told_nothing(tmp_path, monkeypatch, code, over, said):
  one = made(tmp_path, trials=2)
  if over:
    with contextlib.ExitStack() as held:
      study._claim(one, one.study(), held)
      one.study().tell(0, 1.0)
  monkeypatch.setattr(child, 'run', lambda words, **_: code)
  if isinstance(said, str):
    trials = study.work(one, [])
    assert all(said in trial.user_attrs['reason'] and trial.state.name == 'FAIL' for trial in trials)
  else:
    with pytest.raises(said):
      study.work(one, [])
    assert table_of(one)[-1][-1] == 'RUNNING'  # the same command goes on with it


def test_a_trial_that_the_system_killed_is_tried_once_more(tmp_path, monkeypatch, caplog):
  """The first trial is well the second time, the second one is not."""
  one, tried = made(tmp_path, trials=2), []

  def run(words, **_):
    tried.append(number_of(words))
    if tried != [0, 0]:
      return -signal.SIGKILL
    one.study().tell(0, 1.0)
    return 0

  monkeypatch.setattr(child, 'run', run)
  first, second = study.work(one, [])
  assert tried == [0, 0, 1, 1]
  assert (first.value, first.state.name, second.state.name) == (1.0, 'COMPLETE', 'FAIL')
  assert re.search('trial 0: .*SIGKILL', caplog.text) and 'checkpoint' in caplog.text


@pytest.mark.parametrize('as_number', [True, False])
def test_a_full_disk_is_no_result_of_a_trial(tmp_path, monkeypatch, as_number):
  one = made(tmp_path, trials=2)
  journal = one.study()
  with contextlib.ExitStack() as held:
    study._claim(one, journal, held)
    journal.tell(0, 1.0)  # one is over, so that another failure would be a result
    study._claim(one, journal, held)
  cause = OSError(errno.ENOSPC, 'x') if as_number else ValueError('write failed: No space left on device [tensorstore]')

  def train(*given, **named):
    raise RunError('the checkpoint of step 4 cannot be written') from cause

  monkeypatch.setattr(sweep_trial.config, 'resolve', dict)
  monkeypatch.setattr(sweep_trial.loop, 'train', train)
  with pytest.raises(RunError, match='trial 1 '):
    sweep_trial.run(one, 1)
  assert table_of(one)[1][-1] == 'RUNNING'
  cause = ValueError('a tensor has another shape')
  assert sweep_trial.run(one, 1) == 0
  assert table_of(one)[1][-1] == 'FAIL'


def test_a_folder_holds_one_sweep(tmp_path, monkeypatch):
  settings = runs.settings('classify', tmp_path, best=('validation/loss', 'min'))
  one = made(tmp_path / 'sweep', settings=settings)
  monkeypatch.setattr(child, 'run', lambda words, **_: one.study().tell(number_of(words), 1.0) and 0)
  study.work(one, [])
  study.work(study.dataclasses.replace(one, settings={**settings, 'log_every': 7}), [])  # changes no result
  with pytest.raises(ConfigError, match=r'space.*--workdir'):
    study.work(study.dataclasses.replace(one, space=space.parse({'seed': [0]})), [])
  with pytest.raises(ConfigError, match=r'steps: 12 -> 99') as told:
    study.work(study.dataclasses.replace(one, settings={**settings, 'steps': 99}), [])
  assert 'extend' not in str(told.value)
  by_epochs = made(tmp_path / 'epochs', settings={**settings, 'steps': None, 'epochs': 2})
  monkeypatch.setattr(child, 'run', lambda words, **_: by_epochs.study().tell(number_of(words), 1.0) and 0)
  study.work(by_epochs, [])
  with pytest.raises(ConfigError, match='steps: None -> 12'):
    study.work(study.dataclasses.replace(by_epochs, settings=settings), [])


# The table.


def stored_table(folder):
  return checksums.unsealed(json.loads((folder / 'table.json').read_text()))


def test_seeds_are_one_row_with_their_median_and_those_without_a_value_count_as_worst(tmp_path, capsys):
  one = made(tmp_path)
  journal = one.study()
  for number, value in enumerate([0.1, 0.2, 0.9, 0.3, None, None]):
    with contextlib.ExitStack() as held:
      study._claim(one, journal, held)
    if value is not None:
      journal.tell(number, value)
    elif number == 4:
      sweep_trial._stop(journal, number, 'diverged at step 3')
    else:
      study.fail(journal, number, 'ValueError: broken')
  first, second = report.rows(one, journal.trials)
  assert (first.point, first.numbers, first.score) == ({'optim.rate': '0.01'}, (0, 1, 2), 0.2)
  # the seed that diverged is infinitely bad, the one that failed is left out: the median of 0.3 and infinity
  assert (second.score, second.values) == (float('inf'), (0.3,))
  assert second.reasons == ('diverged at step 3', 'ValueError: broken')
  table = report.report(one, journal.trials, command=['--config=x.py', '--workdir=a b'])
  assert json.loads(json.dumps(table)) == stored_table(tmp_path)
  keys = '--config.optim.rate=0.01 --config.seed=0'  # of trial 0, whose folder is named
  assert table['best']['command'] == f"plm-jax train --config=x.py '--workdir=a b' {keys}"
  assert table['best']['said'] == (  # no path: the table is the same in every folder
    'best: validation/loss 0.2, the median over 3 seeds; the best of its trials, with seed 0, has 0.1'
  )
  assert {key: table['best'][key] for key in ('score', 'seeds', 'seed', 'value', 'trial')} == {
    'score': 0.2, 'seeds': 3, 'seed': '0', 'value': 0.1, 'trial': 0,
  }  # fmt: skip
  for said in (capsys.readouterr().out, (tmp_path / 'table.txt').read_text()):
    assert f'{table["best"]["said"]}, in {tmp_path}/trials/0000' in said
    assert table['best']['command'] in said
  row = table['rows'][0]
  # the closed form of the deviation of a sample of 0.1, 0.2, 0.9
  assert (row['mean'], row['n']) == (pytest.approx(0.4), 3) and row['deviation'] == pytest.approx(0.19**0.5)
  assert table['trials'] == {'COMPLETE': 4, 'PRUNED': 1, 'FAIL': 1} and table['best']['trial'] == 0
  for picture in ('importance.png', 'parallel.png'):
    assert (tmp_path / picture).read_bytes().startswith(b'\x89PNG')
  assert 'diverged at step 3' in (tmp_path / 'table.txt').read_text()


def test_the_best_trial_is_told_where_no_point_has_most_of_its_seeds(tmp_path, capsys):
  one = made(tmp_path, literal={'optim.rate': [1e-2, 1e-3], 'seed': [0, 1]})
  journal = one.study()
  for number, value in enumerate([0.5, None, 0.1, None]):  # one seed of each point diverges
    with contextlib.ExitStack() as held:
      study._claim(one, journal, held)
    if value is None:
      sweep_trial._stop(journal, number, 'diverged at step 3')
    else:
      journal.tell(number, value)
  table = report.report(one, journal.trials, command=[])
  said = table['best']['said']
  assert said.endswith('seed 0: validation/loss 0.1') and said in capsys.readouterr().out
  assert (table['best']['trial'], table['best']['score']) == (2, None)
  assert '--config.optim.rate=0.001 --config.seed=0' in table['best']['command']
  assert [row['point'] for row in table['rows']] == [{'optim.rate': '0.001'}, {'optim.rate': '0.01'}]
  assert (tmp_path / 'parallel.png').exists() and stored_table(tmp_path) == json.loads(json.dumps(table))


@pytest.mark.parametrize('seeds', [[0, 1], [0]])
def test_a_point_with_its_seed_counts_once(tmp_path, seeds):
  """A journal of an earlier version has points several times: with the same seed they are the same run again."""
  one = made(tmp_path, literal={'optim.rate': [1e-2, 1e-3], 'seed': seeds}, method='random', trials=7)
  journal = one.study()
  rate, other = ('0.01', '0.001')
  last = str(seeds[-1])
  drawn = [(rate, '0'), (rate, '0'), (rate, last), (other, '0'), (other, '0'), (rate, '0'), (rate, '0')]
  values = [None, 1.0, 2.0, None, 5.0, 1.0, None]
  for number, (point, value) in enumerate(zip(drawn, values, strict=True)):
    journal.add_trial(study._of_grid(one.space, dict(zip(('optim.rate', 'seed'), point, strict=True))))
    if number == 3:
      sweep_trial._stop(journal, number, 'diverged at step 3')
    elif value is None:
      study.fail(journal, number, 'ValueError: broken')
    else:
      journal.tell(number, value)
  first, second = report.rows(one, journal.trials)
  numbers, known = ((1, 2), (1.0, 2.0)) if len(seeds) > 1 else ((1,), (1.0,))
  mean = sum(known) / len(known)  # the median as well, of one or two
  assert (first.numbers, first.values, first.seeds, first.score) == (numbers, known, len(known), mean)
  assert (second.numbers, second.values, second.seeds) == ((4,), (5.0,), 1)
  (reason,) = second.reasons
  assert re.match('trial 3 .*trial 4 ', reason)
  assert any(re.match('trial 5 .*trial 1 ', reason) for reason in first.reasons)
  table = report.report(one, journal.trials, command=[])
  assert (table['rows'][0]['n'], table['rows'][0]['mean']) == (len(known), mean)
  assert ('of one seed' in table['best']['said']) == (len(seeds) == 1)


def test_values_with_dollars_are_shown_as_they_are_and_a_picture_costs_no_table(tmp_path, monkeypatch):
  one = made(tmp_path, literal={'optim.scale': ["(('.*bias$', 0.1), ('.*/x_$', 1.0))", '()']}, trials=2)
  journal = one.study()
  for number in range(2):
    with contextlib.ExitStack() as held:
      study._claim(one, journal, held)
    journal.tell(number, value_of(number))
  one = study.dataclasses.replace(one, metric='$_{$/loss')
  report.report(one, journal.trials, command=[])
  for picture in ('importance.png', 'parallel.png'):
    assert (tmp_path / picture).read_bytes().startswith(b'\x89PNG')
  for name in ('table.txt', 'table.json'):
    (tmp_path / name).unlink()
  monkeypatch.setattr(report, 'draw_parallel', lambda *_: 1 / 0)
  with pytest.raises(ZeroDivisionError):
    report.report(one, journal.trials, command=[])
  assert (tmp_path / 'table.txt').is_file() and (tmp_path / 'table.json').is_file()


def test_a_damaged_line_of_metrics_is_named_and_loses_no_trial(tmp_path, caplog):
  one = made(tmp_path)
  journal = one.study()
  with contextlib.ExitStack() as held:
    study._claim(one, journal, held)
  folder = RunFolder(one.trial_folder(0))
  files.make_folder(folder.root)
  folder.metrics.write_text('{"step": 2, "validation/loss": 0.5}\n{"st\n{"step": 6, "validation/loss": 0.7}\n')
  sweep_trial._complete(one, journal, 0)
  assert table_of(one)[0][2:] == (0.5, 'COMPLETE')
  assert 'metrics.jsonl, line 2' in caplog.text


def test_a_trial_goes_on_behind_a_damaged_line_of_metrics(tmp_path, monkeypatch, caplog):
  """What its run reads then has the other lines; another trial that is over makes it no failure."""
  one = made(tmp_path, trials=2, settings=runs.settings('classify', tmp_path, best=('validation/loss', 'min')))
  journal = one.study()
  for number in range(2):
    with contextlib.ExitStack() as held:
      assert study._claim(one, journal, held) == number
    if not number:
      journal.tell(0, 1.0)
  folder = RunFolder(one.trial_folder(1))
  files.make_folder(folder.root)
  folder.metrics.write_text('{"step": 2, "validation/loss": 0.5}\n{"st\n{"step": 6, "validation/loss": 0.7}\n{"torn')

  def train(settings, workdir, **_):
    assert [row['step'] for row in metrics.read(workdir)] == [2, 6]
    return loop.Outcome(exit_code=0, result={'finished': True, 'step': 6})

  monkeypatch.setattr(loop, 'train', train)
  assert sweep_trial.run(one, 1) == 0
  assert table_of(one)[1][2:] == (0.5, 'COMPLETE')
  assert 'metrics.jsonl, line 2' in caplog.text


def test_a_trial_of_another_sweep_is_not_made(tmp_path, monkeypatch):
  """The files that say what is swept were changed while a worker made its trials."""
  settings = runs.settings('classify', tmp_path, best=('validation/loss', 'min'))
  one = made(tmp_path / 'sweep', settings=settings)
  monkeypatch.setattr(child, 'run', lambda words, **_: one.study().tell(number_of(words), 1.0) and 0)
  study.work(study.dataclasses.replace(one, trials=5), [])
  with contextlib.ExitStack() as held:
    assert study._claim(one, one.study(), held) == 5
  monkeypatch.setattr(loop, 'train', lambda *given, **_: pytest.fail('it began'))
  with pytest.raises(ConfigError, match='steps: 12 -> 99'):
    sweep_trial.run(study.dataclasses.replace(one, settings={**settings, 'steps': 99}), 5)
  with pytest.raises(ConfigError, match='space'):
    sweep_trial.run(study.dataclasses.replace(one, space=space.parse({'seed': list(range(6))})), 5)
  assert table_of(one)[5][3] == 'RUNNING'


def test_texts_in_brackets_and_long_names_stand_in_the_table_as_they_are(tmp_path):
  names = [f'model.overrides.a_rather_long_name_of_a_key_{number}' for number in range(8)]
  one = made(tmp_path, literal={'data.text': ["'[/x]'", "'[a-z] :smile:'"], **{name: [1] for name in names}}, trials=2)
  journal = one.study()
  for number in range(2):
    with contextlib.ExitStack() as held:
      study._claim(one, journal, held)
    journal.tell(number, value_of(number))
  report.report(one, journal.trials, command=[])
  text = (tmp_path / 'table.txt').read_text()
  assert all(word in text for word in ('[/x]', '[a-z] :smile:', *names))


def test_a_trial_whose_metric_never_was_a_number_counts_as_the_worst(tmp_path):
  """As one that diverged, not as one that failed: of three seeds two are infinitely bad, and so is their median."""
  one = made(tmp_path, literal={'seed': [0, 1, 2]}, trials=3)
  journal = one.study()
  for number in range(3):
    with contextlib.ExitStack() as held:
      study._claim(one, journal, held)
    if not number:
      journal.tell(number, 0.5)
      continue
    folder = RunFolder(one.trial_folder(number))
    files.make_folder(folder.root)
    folder.metrics.write_text('{"step": 2, "validation/loss": "nan"}\n')
    assert sweep_trial._complete(one, journal, number) == 0
  assert [state for *_, state in table_of(one)] == ['COMPLETE', 'PRUNED', 'PRUNED']
  (row,) = report.rows(one, journal.trials)
  assert row.score == math.inf and row.reasons == ('no value of validation/loss is a number',) * 2


# Real trials.


def flags(data, folder, literal, *more, **changes):
  settings = runs.settings(
    'classify', data, **{'best': ('validation/loss', 'min'), 'steps': 6, 'eval_every': 2, **changes}
  )
  config = runs.write_config(data / f'{folder.name}.json', settings)
  return [f'--config={config}', f'--workdir={folder}', f'--space={literal!r}', *more]


def test_a_trial_is_an_ordinary_run_and_one_that_diverges_or_fails_is_a_row(data, tmp_path, capfd):
  literal = {'data.batch_size': [8, 6], 'optim.rate': [1e-2], 'accumulate': [1, 4]}  # 6 rows are no 4 micro-batches
  words = flags(data, tmp_path / 'sweep', literal, '--config.save_every=2')
  with pytest.raises(ConfigError, match=r'data.batch_size=6 optim.rate=0.01 accumulate=4'):
    sweep.main(words)  # known before the first trial
  assert not (tmp_path / 'sweep').exists()
  literal = {
    'optim.name': ['sgd'],
    'optim.rate': [1e-2, 1000.0],
    'optim.clip': [None],
    'data.path': [str(data / 'labelled'), 'no_such_data'],
  }
  words = flags(data, tmp_path / 'sweep', literal, max_skipped=1)
  done = runs.command('sweep', *words)
  assert done.returncode == 0, done.stderr
  table = json.loads((tmp_path / 'sweep' / 'table.json').read_text())
  by_number = {row['numbers'][0]: row for row in table['rows']}
  result = json.loads(RunFolder(tmp_path / 'sweep' / 'trials' / '0000').result.read_text())
  values = [
    row['validation/loss'] for row in runs.curve(tmp_path / 'sweep' / 'trials' / '0000') if 'validation/loss' in row
  ]
  assert result['finished'] and by_number[0]['values'] == [min(values)]
  assert 'no_such_data' in by_number[1]['reasons'][0] and by_number[1]['n'] == 0
  assert 'best: validation/loss' in done.stdout
  before = runs.snapshot(tmp_path / 'sweep' / 'trials' / '0000')
  assert sweep.main(words) == 0  # all are over
  assert runs.snapshot(tmp_path / 'sweep' / 'trials' / '0000') == before


def test_halving_stops_a_trial_at_its_rung(data, tmp_path):
  literal = {'optim.rate': {'low': 1e-9, 'high': 1e-1, 'scale': 'log'}}
  words = flags(data, tmp_path / 'sweep', literal, '--method=halving', '--trials=4', '--first_rung=2', '--factor=2')
  done = runs.command('sweep', *words)
  assert done.returncode == 0, done.stderr
  table = json.loads((tmp_path / 'sweep' / 'table.json').read_text())
  stopped = [row for row in table['rows'] if row['reasons']]
  assert stopped and table['trials']['PRUNED'] == sum(len(row['reasons']) for row in stopped)
  for row in stopped:
    step = int(re.search(r'stopped at step (\d+)', row['reasons'][0]).group(1))
    for number in row['numbers']:
      folder = tmp_path / 'sweep' / 'trials' / f'{number:04}'
      assert json.loads(RunFolder(folder).result.read_text())['step'] == step < 6


@pytest.mark.slow
def test_two_workers_that_are_killed_make_the_same_sweep(data, tmp_path):
  literal = {'seed': [0, 1, 2]}
  outcomes, draw = [], random.Random(0)
  for name, kills in {'alone': 0, 'killed': 4}.items():
    folder, log = tmp_path / name, tmp_path / f'{name}.log'
    words = runs.words('sweep', *flags(data, folder, literal, steps=30, save_every=2))
    with contextlib.ExitStack() as stack:
      workers = [stack.enter_context(runs.started(words, log=log)) for _ in range(2 if kills else 1)]
      for _ in range(kills):
        time.sleep(draw.uniform(4, 12))
        victim = workers.pop(draw.randrange(2))
        victim.send_signal(draw.choice([signal.SIGKILL, signal.SIGTERM]))
        victim.wait()
        workers.append(stack.enter_context(runs.started(words, log=log)))
      assert [worker.wait(600) for worker in workers] == [0] * len(workers), log.read_text()[-3000:]
    table = json.loads((folder / 'table.json').read_text())
    table.pop('sha256'), table['best'].pop('command')  # which hold the path
    curves = {trial.name: runs.curve(trial) for trial in sorted((folder / 'trials').iterdir())}
    outcomes.append((table, curves))
  assert outcomes[0] == outcomes[1]


# What is refused.


@pytest.mark.parametrize(
  ('literal', 'more', 'said'),
  [
    ({'optim.rat': [1]}, (), r'optim\.rat: did you mean optim\.rate\?'),
    ({'optim.rate': ['x']}, (), "got 'x'"),
    ({'optim.rate': {'low': 1e-4, 'high': 1e-2}}, (), '--method=tpe.*--trials=N'),
    (SPACE, ('--trials=7',), '--trials=7.* 6 points'),
    (SPACE, ('--config.best=None', '--config.early_stop=None'), r'--config\.best='),
    (SPACE, ('--first_rung=2',), '--first_rung.*--method=halving'),
    (SPACE, ('--factor=7',), '--factor.*--method=halving'),
    (SPACE, ('--method=halving', '--trials=2', '--first_rung=99'), '--first_rung=99'),
    (SPACE, ('--factor=3', '--method=random', '--trials=2'), '--factor.*--method=halving'),
    (SPACE, ('--seed=5',), '--seed.*--method=grid'),
    (SPACE, ('--seed=0', '--method=grid'), '--seed.*--method=grid'),
    (SPACE, ('--method=gird',), 'gird'),
    (SPACE, ('--method=random', '--trials=7'), ' 6 points.*--method=random'),
    (SPACE, ('--method=tpe', '--trials=7'), '--trials=6'),
    ({'model.variant': ['tiny', 'nope']}, ('--method=random', '--trials=2'), "'nope'"),
    ({'model.variant': ['tiny', 'nope']}, ('--method=tpe', '--trials=2'), "'nope'"),
    ({'best': [('validation/loss', 'min')]}, (), 'best'),
    ({**SPACE, 'best.0': ['validation/loss']}, (), 'best'),
    (SPACE, ('--config.best.0=validation/los',), "'los'.*'validation'.*Did you mean 'loss'"),
  ],
)
def test_mistakes_end_before_the_first_trial(data, tmp_path, literal, more, said):
  with pytest.raises(ConfigError, match=said):
    sweep.main(flags(data, tmp_path / 'sweep', literal, *more))
  assert not (tmp_path / 'sweep').exists()


def test_rungs_are_those_of_the_evaluation_that_judges(data, tmp_path):
  words = ['--method=halving', '--first_rung=2', '--trials=2', '--dry_run', '--config.eval_every=6']
  assert sweep.main(flags(data, tmp_path / 'sweep', SPACE, *words, '--config.eval.validation.every=2')) == 0
  words[-1] = '--config.eval_every=2'
  with pytest.raises(ConfigError, match=r'--first_rung=2\b.*\b6\b'):
    sweep.main(flags(data, tmp_path / 'sweep', SPACE, *words, '--config.eval.validation.every=6'))


def test_a_sweep_that_has_begun_goes_on_with_an_unsound_point(data, tmp_path):
  """It is a trial that fails, as it was before such points were refused."""
  words = flags(data, tmp_path / 'sweep', {'model.variant': ['tiny', 'nope']}, '--method=random', '--trials=2')
  with pytest.raises(ConfigError, match="'nope'"):
    sweep.main([*words, '--dry_run'])
  (tmp_path / 'sweep').mkdir()
  (tmp_path / 'sweep' / 'sweep.json').write_text('{}')
  assert sweep.main([*words, '--dry_run']) == 0


def test_a_sweep_needs_a_config():
  """The folder of a run is none for its trials."""
  with pytest.raises(ConfigError, match=r'--config=FILE'):
    sweep.main(['--workdir=tests/fixtures/bert_mlm/run', "--space={'seed': [0]}"])


def test_a_dry_run_prints_the_trials_and_makes_nothing(data, tmp_path, capsys):
  assert sweep.main(flags(data, tmp_path / 'sweep', SPACE, '--dry_run')) == 0
  said = capsys.readouterr().out
  assert said.startswith('6 trials:') and '5  optim.rate=0.001 seed=2' in said
  assert not (tmp_path / 'sweep').exists()
  optuna.logging.set_verbosity(optuna.logging.INFO)  # as in a new process
  flag = ('--dry_run', '--method=tpe', '--trials=4')
  assert sweep.main(flags(data, tmp_path / 'sweep', SPACE, *flag)) == 0
  said = capsys.readouterr()
  lines = said.out.splitlines()
  assert lines[0] == '4 trials:' and len(set(lines[1:])) == 4
  assert 'new study' not in said.err
