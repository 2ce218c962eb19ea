"""A table is filled run by run: nothing is made twice, a failure is a result, `cells.json` is enough to render it."""

import contextlib
import csv
import dataclasses
import io
import json
import re
import shutil

import matplotlib
import pytest

from plm_jax.cli import signals
from plm_jax.commands.tables import main
from plm_jax.core.errors import STOPPED, ConfigError, Interrupted
from plm_jax.io import checksums, files
from plm_jax.io.run_paths import RunFolder
from plm_jax.studies.tables import cells, costs, counting, file, filling, making, needs, render, run_folders, runs
from plm_jax.training.before import prepare

TABLE = """
def get_table(scale):
  made = dict(config='experiments/quickstart/pretrain.py:quick')
  glue = dict(configs=dict(bert='experiments/bert/glue.py:sst2,quick'), metric='validation/accuracy', times=100)
  return dict(
    title='Table', paper='Paper', mark='B', pretraining_seeds=2, tuning_seeds=2, reference='one',
    rows={
      'one': dict(made, published={'score': 90.0, 'loss': 2.0}),
      'two': dict(made, keys={'optim.rate': 1e-4}, published={'score': 80.0, 'loss': 3.0}),
      'three': dict(made, start='scratch'),
      'four': dict(empty='it is too large', published={'score': 95.0}),
    },
    columns={
      'loss': dict(metric='validation/loss', of='pretraining', better='min'),
      'score': glue,
      'other': dict(empty='there are no data'),
    },
    claims=[dict(column='score', better='one', than='two'), dict(column='loss', better='one', than='two')],
  )
"""
PRETRAININGS, TUNINGS = 4, 12  # row three begins with nothing and takes its sizes from the pre-training of row one


class Machine:
  """In place of `making.make`: writes what a finished run leaves, and remembers what it was asked for."""

  def __init__(self, places, *, fails=(), stops_after=None):
    self.places, self.fails, self.stops_after, self.made = places, fails, stops_after, []

  def __call__(self, run, places, *, metrics):
    if len(self.made) == self.stops_after:
      raise Interrupted('stopped by a signal', STOPPED)
    self.made.append(run.digest)
    if run.digest in self.fails:
      return 'exit 1: it is broken'
    folder = run_folders.folder_of(run, places)
    folder.root.mkdir(parents=True)
    score = 0.25 * (run.settings['seed'] % 4)
    result = dict(finished=True, seconds=10.0, tokens=5, parameters=7, steps=20, versions=dict(jax='1'))
    result['metrics'] = {'validation/loss': 2.5 + run.settings['seed'], 'validation/accuracy': score, 'loss': 1.0}
    folder.result.write_text(json.dumps(result))
    folder.data.write_text(json.dumps(dict(data_digest='abc', vocab_digest='def', class_names=['a'])))
    if metrics:
      rows = [dict(row_id=n, label=int(n < 4 * score), record=dict(label=1)) for n in range(4)]
      (folder.root / run_folders.PREDICTIONS).write_text(''.join(json.dumps(row) + '\n' for row in rows))
    return ''


@pytest.fixture
def set_up(tmp_path):
  path = tmp_path / 'mine.py'
  path.write_text(TABLE)
  table = file.read(str(path), 'tiny')
  places = runs.Places(tmp_path / 'work')
  return table, runs.plan(table, places), places


def fill(set_up, tmp_path, machine, monkeypatch, *, run=True):
  table, plan, places = set_up
  monkeypatch.setattr(making, 'make', machine)
  where = dict(scale='tiny', command='the command', run=run, minutes=float('inf'))
  return filling.fill(table, plan, places, tmp_path / 'out', **where)


def test_every_run_is_made_once_and_its_source_before_it(set_up, tmp_path, monkeypatch):
  machine = Machine(set_up[2])
  kept = fill(set_up, tmp_path, machine, monkeypatch)
  assert len(machine.made) == len(set(machine.made)) == PRETRAININGS + TUNINGS
  place = {digest: number for number, digest in enumerate(machine.made)}
  for run in runs.needed(set_up[1]):
    assert run.source is None or place[run.source.digest] < place[run.digest]
  assert len(kept['runs']) == PRETRAININGS + TUNINGS
  again = Machine(set_up[2])
  fill(set_up, tmp_path, again, monkeypatch)
  assert again.made == []


def test_seeds_of_finetuning_differ_over_all_pretrainings(set_up):
  by_seed = set_up[1][runs.Cell('one', 'score')]
  assert [[run.settings['seed'] for run in group] for group in by_seed] == [[0, 1], [2, 3]]
  assert [group[0].source.settings['seed'] for group in by_seed] == [0, 1]


def test_a_fresh_start_takes_the_sizes_of_a_pretraining_and_none_of_its_parameters(set_up):
  (run, *_), _ = set_up[1][runs.Cell('three', 'score')]
  words = making.words(run, set_up[2])
  assert '--config.init_from=[]' in words
  assert any(word.startswith('--config.model.from=') for word in words)


def test_an_interruption_keeps_what_is_done_and_the_same_call_goes_on(set_up, tmp_path, monkeypatch):
  with pytest.raises(Interrupted, match='stopped by a signal\n11 of 16 runs') as caught:
    fill(set_up, tmp_path, Machine(set_up[2], stops_after=5), monkeypatch)
  assert caught.value.exit_code == STOPPED
  rest = Machine(set_up[2])
  fill(set_up, tmp_path, rest, monkeypatch)
  assert len(rest.made) == PRETRAININGS + TUNINGS - 5


def test_what_a_missing_run_begins_with_is_made_again_where_its_folder_is_gone(set_up, tmp_path, monkeypatch):
  kept = fill(set_up, tmp_path, Machine(set_up[2]), monkeypatch)
  lost = set_up[1][runs.Cell('two', 'score')][1][0]
  del kept['runs'][lost.digest]
  cells.write(tmp_path / 'out' / 'cells.json', kept)
  (set_up[2].workdir / 'runs').rename(tmp_path / 'gone')
  machine = Machine(set_up[2])
  assert len(fill(set_up, tmp_path, machine, monkeypatch)['runs']) == PRETRAININGS + TUNINGS
  assert machine.made == [lost.source.digest, lost.digest]


def test_a_failed_run_is_a_result_and_is_tried_again_by_the_next_call(set_up, tmp_path, monkeypatch):
  broken = set_up[1][runs.Cell('two', 'loss')][0][0].digest
  machine = Machine(set_up[2], fails=[broken])
  kept = fill(set_up, tmp_path, machine, monkeypatch)
  assert kept['failed'][broken] == 'exit 1: it is broken'
  assert sum('failed' in reason for reason in kept['failed'].values()) == 2  # the fine-tunings that begin with it
  text = (tmp_path / 'out' / 'table.md').read_text()
  assert f'Run {broken} has no result: exit 1: it is broken.' in text
  rest = Machine(set_up[2])
  assert fill(set_up, tmp_path, rest, monkeypatch)['failed'] == {}
  assert len(rest.made) == 3


def test_a_metric_that_a_run_does_not_have_is_named_with_those_that_it_has(set_up, tmp_path, monkeypatch):
  table, plan, places = set_up
  other = dataclasses.replace(table.columns['loss'], metric='validation/perplexity_of_words')
  table = dataclasses.replace(table, columns={**table.columns, 'loss': other})
  kept = fill((table, plan, places), tmp_path, Machine(places), monkeypatch)
  assert set(kept['failed'].values()) == {
    'it has no validation/perplexity_of_words; there are validation/loss, validation/accuracy'
  }


def test_a_metric_that_is_not_finite_is_named_with_its_value(set_up, tmp_path, monkeypatch):
  """As a correlation of predictions that are all alike."""
  machine = Machine(set_up[2])

  def make(run, places, *, metrics):
    said = machine(run, places, metrics=metrics)
    result = run_folders.folder_of(run, places).result
    result.write_text(result.read_text().replace('"validation/loss": 2.5', '"validation/loss": "nan"'))
    return said

  kept = fill(set_up, tmp_path, make, monkeypatch)
  assert set(kept['failed'].values()) == {'its validation/loss is nan'}


def test_a_grid_that_the_cells_do_not_have_is_told(set_up, tmp_path, monkeypatch):
  table, plan, places = set_up
  fill(set_up, tmp_path, Machine(places), monkeypatch)
  score = dataclasses.replace(table.columns['score'], grid=({}, {'steps': 3}, {'steps': 4}))
  table = dataclasses.replace(table, columns={**table.columns, 'score': score})
  with pytest.raises(ConfigError, match=r"column 'score': .*grid.* 3 .*row 'one'"):
    fill((table, plan, places), tmp_path, Machine(places), monkeypatch, run=False)


def test_a_run_that_failed_elsewhere_meanwhile_is_not_tried_again(set_up, tmp_path, monkeypatch):
  machine, out = Machine(set_up[2]), tmp_path / 'out' / 'cells.json'
  first, *_, last = runs.needed(set_up[1])

  def make(run, places, *, metrics):
    if run == first:  # another process fills the table as well, and comes to the last run before this one
      there = cells.read(out) | {'cells': cells.names(set_up[1])}
      there['failed'][last.digest] = 'exit 1: it diverged'
      cells.write(out, there)
    return machine(run, places, metrics=metrics)

  kept = fill(set_up, tmp_path, make, monkeypatch)
  assert kept['failed'] == {last.digest: 'exit 1: it diverged'} and last.digest not in machine.made
  again = fill(set_up, tmp_path, Machine(set_up[2]), monkeypatch)  # a later command tries it
  assert again['failed'] == {} and 'metrics' in again['runs'][last.digest]


def test_a_run_that_another_process_makes_is_left_to_it(set_up, tmp_path, monkeypatch):
  first = runs.needed(set_up[1])[0]
  lock = run_folders.folder_of(first, set_up[2]).root.with_suffix('.lock')
  lock.parent.mkdir(parents=True)
  from plm_jax.io import files

  with files.locked(lock, doing='testing'):
    machine = Machine(set_up[2])
    kept = fill(set_up, tmp_path, machine, monkeypatch)
  assert kept['failed'][first.digest] == filling.BUSY
  assert first.digest not in machine.made
  begun_with = {kept['failed'][one.digest] for one in runs.needed(set_up[1]) if one.source == first}
  assert begun_with == {f'the run that it begins with, {first.name}: {filling.BUSY}'}


def test_a_run_that_is_still_training_is_waited_for(set_up, monkeypatch):
  """Of a command that was killed: its process was asked to stop, and saves what it has."""
  run, places = runs.needed(set_up[1])[0], set_up[2]
  folder, called = run_folders.folder_of(run, places), []
  monkeypatch.setattr(making, '_call', lambda words, **rest: called.append(words) or 'ended')
  with files.locked(folder.lock, doing='training'):
    monkeypatch.setattr(making, 'STOPS', 0)
    assert making.make(run, places) == making.BUSY and not called
  with contextlib.ExitStack() as held:
    held.enter_context(files.locked(folder.lock, doing='training'))
    monkeypatch.setattr(making, 'STOPS', 60)
    monkeypatch.setattr(making.time, 'sleep', lambda seconds: held.close())
    assert making.make(run, places) == 'ended' and len(called) == 1


def test_two_processes_keep_what_the_other_made(set_up, tmp_path, monkeypatch):
  """One is kept from a run while the other makes it, and has it in the end, with the runs that begin with it."""
  alone = fill(set_up, tmp_path / 'alone', Machine(set_up[2]), monkeypatch)
  first, *_, last = runs.needed(set_up[1])
  for one in runs.needed(set_up[1]):
    shutil.rmtree(run_folders.folder_of(one, set_up[2]).root)
  machine = Machine(set_up[2])
  out = tmp_path / 'out' / 'cells.json'

  def make(run, places, *, metrics):
    if run == first:  # the other process takes it
      raise BlockingIOError
    if run == last:  # and is done with it now, and with others
      machine(first, places, metrics=alone['runs'][first.digest]['metrics'])
      there = cells.read(out)
      there['runs'][first.digest] = alone['runs'][first.digest]
      cells.write(out, there)
    return machine(run, places, metrics=metrics)

  kept = fill(set_up, tmp_path, make, monkeypatch)
  assert kept['failed'] == {} and kept['runs'].keys() == alone['runs'].keys()
  assert sorted(machine.made) == sorted(one.digest for one in runs.needed(set_up[1]))


def test_print_makes_nothing(set_up, tmp_path, monkeypatch):
  machine = Machine(set_up[2])
  fill(set_up, tmp_path, machine, monkeypatch, run=False)
  assert machine.made == []
  assert '| three |  |  |  |  |' in (tmp_path / 'out' / 'table.md').read_text()


def test_rows_that_were_missing_when_a_table_was_printed_are_predicted_by_the_next_call(set_up, tmp_path, monkeypatch):
  """Else its intervals would be over seeds alone for good, as of runs that were made without predictions."""
  machine = Machine(set_up[2])
  whole = fill(set_up, tmp_path, machine, monkeypatch)
  one = set_up[1][runs.Cell('one', 'score')][0][0]
  predictions = run_folders.folder_of(one, set_up[2]).root / run_folders.PREDICTIONS
  content = predictions.read_text()
  predictions.unlink()
  (tmp_path / 'out' / 'cells.json').unlink()
  printed = fill(set_up, tmp_path, machine, monkeypatch, run=False)
  assert 'rows' not in printed['runs'][one.digest]
  called = []

  def predict(run, places, *, metrics):
    called.append((run.digest, metrics))
    predictions.write_text(content)
    return ''

  assert fill(set_up, tmp_path, predict, monkeypatch)['runs'] == whole['runs']
  assert called == [(one.digest, ('validation/accuracy',))]
  assert fill(set_up, tmp_path, predict, monkeypatch)['runs'] == whole['runs']
  assert len(called) == 1


def test_print_says_where_the_cells_are_of_another_form_of_the_table(set_up, tmp_path, monkeypatch, caplog):
  places = set_up[2]
  fill(set_up, tmp_path, Machine(places), monkeypatch)
  fill(set_up, tmp_path, Machine(places), monkeypatch, run=False)
  assert 'cells.json' not in caplog.text
  path = tmp_path / 'mine.py'
  path.write_text(TABLE.replace("metric='validation/accuracy'", "metric='validation/accuracy', keys={'steps': 7}"))
  changed = file.read(str(path), 'tiny')
  plan = runs.plan(changed, places)
  assert plan != set_up[1]
  fill((changed, plan, places), tmp_path, Machine(places), monkeypatch, run=False)
  assert 'cells.json' in caplog.text


def test_print_refuses_the_cells_of_another_scale(set_up, tmp_path, monkeypatch):
  table, plan, places = set_up
  fill(set_up, tmp_path, Machine(places), monkeypatch)
  before = (tmp_path / 'out' / 'table.md').read_bytes()
  where = dict(command='', run=False, minutes=float('inf'))
  with pytest.raises(ConfigError, match=r'cells\.json.*--scale=tiny'):
    filling.fill(table, plan, places, tmp_path / 'out', scale='small', **where)
  assert (tmp_path / 'out' / 'table.md').read_bytes() == before


def test_the_rendered_table(set_up, tmp_path, monkeypatch):
  fill(set_up, tmp_path, Machine(set_up[2]), monkeypatch)
  text = (tmp_path / 'out' / 'table.md').read_text()
  assert '| row | loss, published | loss, measured | score, published | score, measured |' in text
  # losses 2.5 and 3.5; accuracies 0, .25, .5, .75
  assert '| one | 2 | 3.00 ± 0.707 (2) | 90 | 37.50 ± 32.27 (4) |' in text
  assert '| score | one | two | +10 | +0 |' in text
  assert '| none | no |' in text
  assert '| loss | one | two | -1 | +0 |' in text
  assert 'other stays empty: there are no data.' in text
  assert 'four stays empty: it is too large.' in text
  lines = list(csv.DictReader(io.StringIO((tmp_path / 'out' / 'table.csv').read_text())))
  cell = next(line for line in lines if (line['row'], line['column']) == ('one', 'score'))
  assert (cell['measured'], cell['runs'], cell['values']) == ('37.5', '4', '0 25 50 75')
  assert (tmp_path / 'out' / 'table.png').stat().st_size > 5_000


def test_a_bar_in_a_name_ends_no_cell_of_markdown():
  assert render.markdown_row(['fast|a', '1']) == r'| fast\|a | 1 |'


def test_names_with_dollars_are_drawn_as_they_are(tmp_path):
  text = TABLE
  for old, new in (("'one'", "'$_{$'"), ("title='Table'", "title='$_{$'"), ("'loss'", "'$_{$, nats'")):
    text = text.replace(old, new)
  (tmp_path / 'mine.py').write_text(text)
  table = file.read(str(tmp_path / 'mine.py'), 'tiny')
  render.draw(table, cells.EMPTY, tmp_path / 'x.png')
  assert (tmp_path / 'x.png').read_bytes().startswith(b'\x89PNG')


def test_a_claim_of_which_one_run_each_is_left_has_no_interval(set_up, tmp_path, monkeypatch):
  """Runs that failed leave one loss of either row, whose difference may be noise."""
  failing = [set_up[1][runs.Cell(row, 'loss')][1][0].digest for row in ('one', 'two')]
  fill(set_up, tmp_path, Machine(set_up[2], fails=failing), monkeypatch)
  assert (
    '| loss | one | two | -1 | +0 | none: one run | none | not known |  |' in (tmp_path / 'out/table.md').read_text()
  )


def test_what_needs_no_network_stands_below_the_rows_and_in_claims(set_up, tmp_path, monkeypatch):
  table, plan, places = set_up
  score = dataclasses.replace(table.columns['score'], trivial={'bag of words': 30.0})
  claim = file.Claim(column='score', better='one', than='bag of words')
  table = dataclasses.replace(table, columns={**table.columns, 'score': score}, claims=[claim], mark='none')
  fill((table, plan, places), tmp_path, Machine(places), monkeypatch)
  lines = (tmp_path / 'out' / 'table.md').read_text().splitlines()
  assert '| bag of words |  |  |  | 30 |' in lines
  assert '## Comparisons' in lines
  found = next(line for line in lines if line.startswith('| score | one | bag of words |')).split(' | ')
  assert found[4:5] + found[6:8] == ['+7.5', 'agrees', 'no']  # 37.5 in the mean, of 0, 25, 50 and 75
  low, high = map(float, found[5].split(' to '))
  assert low < 0 < high


def test_runs_at_chance_are_counted_and_not_compared_by_their_mean(set_up, tmp_path, monkeypatch):
  table, plan, places = set_up  # scores of 0, 25, 50 and 75, each of four rows: 50 is 0.8 standard errors above 30
  score = dataclasses.replace(table.columns['score'], trivial={'most frequent class': 30.0})
  table = dataclasses.replace(table, columns={**table.columns, 'score': score})
  fill((table, plan, places), tmp_path, Machine(places), monkeypatch)
  text = (tmp_path / 'out' / 'table.md').read_text()
  assert '37.50 ± 32.27 (4), 3 of 4 at chance |' in text
  assert '| score | one | two | +10 |  | none: 3 of 4 and 3 of 4 at chance | not compared |  |  |' in text
  assert '| loss | one | two | -1 | +0 |' in text  # of pre-training, which has no chance


@pytest.mark.parametrize('metric', ['test/accuracy', 'validation/accuracy'])
def test_rows_are_predicted_of_the_evaluation_that_counts(set_up, tmp_path, monkeypatch, caplog, metric):
  _, plan, places = set_up
  one = plan[runs.Cell('one', 'score')][0][0]
  Machine(places)(one, places, metrics=())
  called = []
  monkeypatch.setattr(making, '_call', lambda command, out, compiled: called.append(command) or '')
  assert making.make(one, places, metrics=(metric,)) == ''
  assert f'--evaluation={metric.partition("/")[0]}' in called[0]
  others = [metric] if metric.startswith('test') else []  # of rows with another mean; the run has validation alone
  for right, kept in ((0, [metric]), (1, others)):
    (run_folders.folder_of(one, places).root / run_folders.PREDICTIONS).write_text(
      ''.join(json.dumps(dict(row_id=n, label=0, record=dict(label=int(n >= right)))) + '\n' for n in range(2))
    )
    found = cells.record(one, run_folders.folder_of(one, places), (metric, 'other/accuracy'))
    assert list(found['rows']) == kept
  assert bool(re.search('validation/accuracy=0.5 .* 0', caplog.text)) == (not kept)


def test_rendering_again_from_cells_alone_gives_the_same_bytes(set_up, tmp_path, monkeypatch):
  fill(set_up, tmp_path, Machine(set_up[2]), monkeypatch)
  before = [(tmp_path / 'out' / name).read_bytes() for name in ('table.md', 'table.csv', 'table.png')]
  kept = cells.read(tmp_path / 'out' / 'cells.json')
  monkeypatch.setitem(matplotlib.rcParams, 'font.size', 14.0)  # a user's own settings
  render.write(set_up[0], kept, tmp_path)
  assert [(tmp_path / name).read_bytes() for name in ('table.md', 'table.csv', 'table.png')] == before


def test_the_run_that_is_best_on_dev_counts_and_is_named(set_up, tmp_path, monkeypatch):
  """The machine's dev score falls where its accuracy rises, so the run that is chosen has the least accuracy."""
  table, _, places = set_up
  keys = {'eval': dict(dev=dict(data=dict(split='train[90%:]')), validation=dict(data=dict(split='validation')))}
  more = dict(keys={**keys, 'data.split': 'train[:90%]'}, chosen_by=('dev/loss', 'min'), grid=({}, {'steps': 3}))
  score = dataclasses.replace(table.columns['score'], **more)
  loss = dataclasses.replace(table.columns['loss'], empty='not asked')
  table = dataclasses.replace(table, summary='best on dev', columns={**table.columns, 'score': score, 'loss': loss})
  machine = Machine(places)

  def make(run, places, *, metrics):
    said = machine(run, places, metrics=metrics)
    folder = run_folders.folder_of(run, places)
    result = json.loads(folder.result.read_text())
    result['metrics']['dev/loss'] = 9.0 if run.settings['steps'] == 3 else result['metrics']['validation/accuracy']
    folder.result.write_text(json.dumps(result))
    return said

  kept = fill((table, runs.plan(table, places), places), tmp_path, make, monkeypatch)
  assert kept['failed'] == {}
  assert len(kept['cells']['one']['score'][0]) == 4  # two seeds with two points
  text = (tmp_path / 'out' / 'table.md').read_text()
  assert '| one | 2 | 90 | 0.000 (best of 8 on dev) |' in text
  assert 'of score by least dev/loss among 2 settings and their seeds. Where nothing is chosen' in text
  assert 'no test set was used to choose' in text
  assert 'each draw chooses again' in text
  lines = csv.DictReader(io.StringIO(render.comma_separated(table, kept)))
  score = next(line for line in lines if line['column'] == 'score')
  assert (score['measured'], score['runs']) == ('0', '8')
  before = (tmp_path / 'out' / 'table.md').read_text()
  render.write(table, cells.read(tmp_path / 'out' / 'cells.json'), tmp_path)
  assert (tmp_path / 'table.md').read_text() == before


def test_published_numbers_from_elsewhere_have_footnotes(set_up):
  table, replace = set_up[0], dataclasses.replace
  rows = {
    **table.rows,
    'two': replace(table.rows['two'], mark='D', marks={'loss': 'A'}),
    'four': replace(table.rows['four'], quoted='Others 2020', published={'score': 95.0, 'loss': 4.0}),
  }
  table = replace(table, rows=rows, columns={**table.columns, 'loss': replace(table.columns['loss'], mark='C')})
  kept = {**cells.EMPTY, 'scale': 'tiny'}
  lines = render.markdown(table, kept).splitlines()
  assert '| one | 2 [a] |  | 90 |  |' in lines
  assert '| two | 3 [b] |  | 80 [c] |  |' in lines
  assert '| four | 4 [d] |  | 95 [e] |  |' in lines
  place = lines.index("- [a] another's notes.")
  assert lines[place + 1 : place + 5] == [
    '- [b] official repository.',
    '- [c] remembered, unverified.',
    "- [d] Others 2020: another's notes.",
    '- [e] Others 2020: text of the paper.',
  ]
  found = {
    (line['row'], line['column']): line for line in csv.DictReader(io.StringIO(render.comma_separated(table, kept)))
  }
  assert found['four', 'score']['origin'] == 'Others 2020: text of the paper'
  assert found['one', 'score']['origin'] == 'text of the paper'
  assert found['three', 'score']['origin'] == ''
  assert '[a]' not in render.markdown(set_up[0], kept)
  assert 'origin' not in render.comma_separated(set_up[0], kept)


def test_a_table_names_every_commit_and_machine_that_made_its_runs(set_up, tmp_path, monkeypatch):
  places = set_up[2]

  class Later(Machine):
    def __call__(self, run, places, *, metrics):
      failed = super().__call__(run, places, metrics=metrics)
      if not failed:
        result = run_folders.folder_of(run, places).result
        commit = 'bbbbbbbbbbbb' if len(self.made) > 3 else ''
        result.write_text(json.dumps(json.loads(result.read_text()) | {'code': commit, 'machine': 'a TPU'}))
      return failed

  kept = fill(set_up, tmp_path, Later(places), monkeypatch)
  assert cells.made_by(kept, 'code') == {'bbbbbbbbbbbb': 13, '': 3}
  text = (tmp_path / 'out' / 'table.md').read_text()
  assert 'Code: bbbbbbbbbbbb (13 runs) and no repository (3 runs). Digests' in text
  assert '16 runs, 0.04 hours: a TPU; jax 1.' in text
  fill(set_up, tmp_path, Machine(places), monkeypatch)  # nothing is left to make, so it is made by nobody else
  assert (tmp_path / 'out' / 'table.md').read_text() == text


def test_runs_without_a_commit_of_their_own_have_that_of_an_old_file(set_up, tmp_path, monkeypatch):
  kept = fill(set_up, tmp_path, Machine(set_up[2]), monkeypatch)
  assert 'Code: not known. Digests' in render.markdown(set_up[0], kept)
  kept |= {'code': 'aaaaaaaaaaaa', 'machine': 'a laptop'}
  assert 'Code: aaaaaaaaaaaa. Digests' in render.markdown(set_up[0], kept)
  assert '16 runs, 0.04 hours: a laptop; jax 1.' in render.markdown(set_up[0], kept)
  next(iter(kept['runs'].values()))['code'] = 'bbbbbbbbbbbb+changes'
  said = 'Code: aaaaaaaaaaaa (15 runs) and bbbbbbbbbbbb+changes (1 run). Digests'
  assert said in render.markdown(set_up[0], kept)


def test_the_plateau_is_said(set_up):
  kept = {**cells.EMPTY, 'scale': 'small', 'plateau': dict(loss=6.1, frequencies=6.4)}
  assert 'DID NOT LEAVE THE PLATEAU' in render.markdown(set_up[0], kept)
  kept['plateau'] = dict(loss=5.0, frequencies=6.4)
  assert 'ends at 5.00 nats a token, 1.40 below' in render.markdown(set_up[0], kept)


def test_a_key_that_says_nothing_makes_no_other_run(set_up):
  run = set_up[1][runs.Cell('one', 'loss')][0][0]
  more = {
    **run.settings,
    'new': None,
    'eval': {name: {**one, 'new': None} for name, one in run.settings['eval'].items()},
  }
  assert runs.stated(more) == runs.stated(run.settings)
  assert runs.stated({**more, 'new': 0}) != runs.stated(run.settings)


def test_a_process_that_fails_gives_its_last_line(tmp_path):
  failed = making._call(['train', '--config=no/such.py', '--workdir=x'], tmp_path / 'run.out', tmp_path / 'compiled')
  assert failed.startswith('exit 2: --config=no/such.py: there is no file')


@pytest.mark.parametrize('known', [(), ('quickstart',)])
def test_the_sum_of_costs_counts_every_run_and_only_known_operations(tmp_path, monkeypatch, capsys, known):
  def operations(run, counts, epochs):
    if any(name in run.config for name in known):
      return 1e12
    raise ConfigError(f'{run.config} cannot be counted')

  monkeypatch.setattr(costs, 'operations', operations)
  monkeypatch.setattr(counting.Counts, 'add', lambda counts, asked: None)
  (tmp_path / 'mine.py').write_text(TABLE)
  assert main([str(tmp_path / 'mine.py'), '--cost', '--scale=small', f'--workdir={tmp_path / "work"}']) == 0
  lines = capsys.readouterr().out.splitlines()
  row = next(line for line in lines if line.startswith('│ total')).strip('│').split('│')
  found = [cell.strip() for cell in row[:4]]
  total = str(PRETRAININGS + TUNINGS)
  assert found == (['total of known operations', total, '0', '4e+12'] if known else ['total', total, '0', 'not known'])


def test_a_mistake_in_the_table_ends_the_command(tmp_path):
  (tmp_path / 'mine.py').write_text(TABLE.replace("'optim.rate'", "'optim.rat'"))
  with pytest.raises(ConfigError, match=r"row 'two', pre-training.*rat"):
    main([str(tmp_path / 'mine.py'), '--scale=tiny', f'--workdir={tmp_path / "work"}'])
  assert not (tmp_path / 'work').exists()
  assert not signals.asked()


def test_the_command_fails_where_every_run_failed(tmp_path, monkeypatch):
  (tmp_path / 'mine.py').write_text(TABLE)
  monkeypatch.setattr(making, 'make', lambda run, places, *, metrics: 'exit 2: it is broken')
  monkeypatch.setattr(needs, 'check', lambda *given, head: None)  # nothing is read
  asked = [str(tmp_path / 'mine.py'), '--scale=tiny', f'--workdir={tmp_path / "work"}']
  assert main(asked) == 1
  monkeypatch.setattr(making, 'make', Machine(runs.Places(tmp_path / 'work')))
  assert main(asked) == 0


REAL = """
SIZES = dict(num_layers=1, num_heads=2, hidden_dim=32, mlp_dim=64)


def get_table(scale):
  text = {{'vocab.path': '{data}/vocab', 'data.path': '{data}/corpus', 'model.overrides': SIZES}}
  held_out = dict(validation=dict(data=dict(split='validation')))
  rows = {{'data.path': '{data}/labelled', 'data.fields': ('text',), 'adapter.classes': 2, 'eval': held_out}}
  score = dict(configs=dict(bert='experiments/bert/glue.py:sst2,quick'), metric='validation/accuracy', keys=rows)
  made = dict(config='experiments/bert/base.py:mlm,quick', keys=dict(text, eval=held_out))
  return dict(title='A', paper='B', mark='B', tuning_seeds=1, rows=dict(one=made), columns=dict(score=score))
"""


@pytest.fixture
def to_adopt(data, tmp_path):
  """A pre-training of a table, and a folder of a run with its config, over the same text, made elsewhere."""
  shutil.copytree(data, tmp_path / 'data')
  (tmp_path / 'mine.py').write_text(
    REAL.format(data=tmp_path / 'data').replace('SIZES}', f"SIZES, 'data.cache': '{tmp_path}/cache'}}")
  )
  run = runs.needed(runs.plan(file.read(str(tmp_path / 'mine.py'), 'tiny'), runs.Places(tmp_path / 'work')))[0]
  mine = RunFolder(tmp_path / 'elsewhere' / 'mine')
  mine.root.mkdir(parents=True)
  mine.config.write_text(json.dumps(dict(run.settings)))
  elsewhere = json.loads(json.dumps(dict(run.settings)).replace(f'{tmp_path}/cache', f'{tmp_path}/another_cache'))
  mine.data.write_text(json.dumps(prepare.prepare(elsewhere).facts))
  mine.result.write_text(json.dumps(dict(finished=True)))
  return run, mine


def adopted(tmp_path, run, *, makes=True):
  return run_folders.folder_of(run, runs.Places(tmp_path / 'work', adopt=(str(tmp_path / 'elsewhere'),), makes=makes))


def test_a_folder_of_the_same_config_and_data_is_adopted(to_adopt, tmp_path, caplog):
  run, mine = to_adopt
  for _ in range(2):
    assert adopted(tmp_path, run, makes=False) != mine
  assert len(caplog.messages) == 1
  assert 'data_digest' in caplog.text
  assert not (tmp_path / 'cache' / 'tokens').exists()
  assert adopted(tmp_path, run) == mine
  assert adopted(tmp_path, run, makes=True) == mine
  facts = json.loads(mine.data.read_text())
  mine.data.write_text(json.dumps({**facts, 'unfinished': {'runs/pretrain': [353, 800]}}))
  run_folders._compared.clear()
  assert adopted(tmp_path, run) != mine
  assert 'step 353 of 800 of runs/pretrain' in caplog.text
  mine.data.write_text(json.dumps(facts))
  run_folders._compared.clear()
  other = run._replace(settings={**run.settings, 'steps': 3}, digest='other')
  assert adopted(tmp_path, other).root == tmp_path / 'work' / 'runs' / other.name
  mine.config.write_text(json.dumps({**run.settings, 'extend': [(2, 1)]}))
  run_folders._stored_config.cache_clear()
  assert adopted(tmp_path, run).root == tmp_path / 'work' / 'runs' / run.name


def test_the_runs_of_another_workdir_are_adopted(to_adopt, tmp_path):
  run, mine = to_adopt
  shutil.move(tmp_path / 'elsewhere', tmp_path / 'other' / 'runs')
  places = runs.Places(tmp_path / 'work', adopt=(str(tmp_path / 'other'),), makes=True)
  assert run_folders.folder_of(run, places).root == tmp_path / 'other' / 'runs' / mine.root.name


def test_nothing_to_adopt_is_said_before_any_run(to_adopt, tmp_path):
  (tmp_path / 'empty').mkdir()
  for name, said in (('nowhere', 'there is no'), ('empty', '.*no run')):
    with pytest.raises(ConfigError, match=f'--adopt={tmp_path / name}: {said}'):
      main([str(tmp_path / 'mine.py'), '--scale=tiny', f'--workdir={tmp_path / "w"}', f'--adopt={tmp_path / name}'])


def test_task_sets_that_are_not_there_are_named_before_anything_is_pretrained(to_adopt, tmp_path):
  shutil.rmtree(tmp_path / 'data' / 'labelled')
  with pytest.raises(ConfigError, match=r'data\.path: .*labelled.*--data=DIR'):
    main([str(tmp_path / 'mine.py'), '--scale=tiny', f'--workdir={tmp_path / "w"}'])
  assert not (tmp_path / 'w' / 'runs').exists()


def test_an_adopted_run_that_cannot_be_written_to_is_recorded_without_rows(set_up, tmp_path, monkeypatch, caplog):
  """As one on a read-only share: the lock beside it fails."""
  _, plan, places = set_up
  one = plan[runs.Cell('one', 'score')][0][0]
  Machine(places)(one, places, metrics=())
  (run_folders.folder_of(one, places).root / run_folders.PREDICTIONS).unlink(missing_ok=True)

  def denied(*given, **named):
    raise PermissionError(13, 'Permission denied')

  monkeypatch.setattr(files, 'locked', denied)
  kept = {'runs': {}, 'failed': {}}
  filling._settle(one, set_up[0], kept, places, ['validation/accuracy'], None, run=True)
  assert 'rows' not in kept['runs'][one.digest] and not kept['failed']
  assert one.name in caplog.text and 'interval' in caplog.text


@pytest.mark.parametrize('name', ['config.json', 'data.json'])
def test_a_damaged_folder_is_named_and_the_others_are_adopted(to_adopt, tmp_path, caplog, name):
  run, mine = to_adopt
  broken = RunFolder(mine.root.with_name('broken'))  # read before the other one
  shutil.copytree(mine.root, broken.root)
  (broken.root / checksums.SUMS).write_text(f'{"0" * 64}  {name}\n')
  assert adopted(tmp_path, run) == mine
  assert str(broken.root / name) in caplog.text


def test_a_run_that_was_extended_is_not_adopted(to_adopt, tmp_path):
  """It has the steps of its config, and more behind them, whose rate and number are not those of the table."""
  run, mine = to_adopt
  assert adopted(tmp_path, run) == mine
  mine.config.write_text(json.dumps({**run.settings, 'extend': [[run.settings['steps'], 40]]}))
  run_folders._stored_config.cache_clear()
  assert adopted(tmp_path, run) != mine


@pytest.mark.parametrize(
  ('changed', 'named'),
  [('corpus/train.txt', 'data_digest'), ('vocab_digest', 'vocab_digest'), ('', 'data.json'), ('end', 'not finished')],
)
def test_a_folder_of_the_same_config_over_other_data_is_not_adopted(to_adopt, tmp_path, caplog, changed, named):
  run, mine = to_adopt
  before = json.loads(mine.data.read_text())
  if changed == 'corpus/train.txt':
    with (tmp_path / 'data' / changed).open('a') as stream:
      stream.write('\n\nOne more story.\n')
  elif changed == 'end':
    mine.result.unlink()
  elif changed:
    mine.data.write_text(json.dumps({**before, 'vocab_digest': '0' * 64}))
  else:
    mine.data.unlink()
  assert adopted(tmp_path, run).root == tmp_path / 'work' / 'runs' / run.name
  assert re.search(rf'{mine.root} .*{run.name} .*not adopted.*{named}', caplog.text)
  if changed == 'corpus/train.txt':
    assert f'data_digest is {before["data_digest"][:12]}' in caplog.text


@pytest.mark.slow
def test_a_table_from_pretraining_to_rows(data, tmp_path, monkeypatch, capsys):
  """One pre-training and its fine-tuning, by the command as a person types it; the second call makes nothing, and so
  does another table folder that adopts both runs, where they lie and once they are moved."""
  shutil.copytree(data, tmp_path / 'data')
  (tmp_path / 'mine.py').write_text(REAL.format(data=tmp_path / 'data'))
  asked = [str(tmp_path / 'mine.py'), '--scale=tiny']
  first, moved = tmp_path / 'work', tmp_path / 'moved'
  assert main([*asked, f'--workdir={first}']) == 0
  kept = cells.read(first / 'mine' / 'tiny' / 'cells.json')
  assert kept['failed'] == {}
  (tuned,) = (run for run in kept['runs'].values() if run['name'].startswith('glue'))
  rows = cells.unpacked(tuned['rows']['validation/accuracy'])
  assert len(rows) == 24
  assert rows.mean() == pytest.approx(tuned['metrics']['validation/accuracy'])
  monkeypatch.setattr(making, 'make', Machine(None, stops_after=0))
  assert main([*asked, f'--workdir={first}']) == 0
  assert main([*asked, f'--workdir={tmp_path / "second"}', f'--adopt={first / "runs"}']) == 0
  assert cells.read(tmp_path / 'second' / 'mine' / 'tiny' / 'cells.json')['runs'] == kept['runs']
  shutil.move(first, moved)
  assert main([*asked, f'--workdir={tmp_path / "third"}', f'--adopt={moved / "runs"}']) == 0
  assert cells.read(tmp_path / 'third' / 'mine' / 'tiny' / 'cells.json')['runs'] == kept['runs']

  plan = runs.plan(file.read(asked[0], 'tiny'), runs.Places(tmp_path / 'fourth'))
  pretraining, tuning = runs.needed(plan)
  places = runs.Places(tmp_path / 'fourth', adopt=(str(moved / 'runs'),), makes=True)
  assert run_folders.folder_of(tuning, places).root == moved / 'runs' / tuning.name
  alone = places._replace(adopt=(str(moved / 'runs' / tuning.name),))  # and nothing says what it began with
  assert run_folders.folder_of(tuning, alone).root == tmp_path / 'fourth' / 'runs' / tuning.name
  fresh = tuning._replace(scratch=True, digest='fresh')  # did not begin with the parameters
  assert run_folders.folder_of(fresh, places).root == tmp_path / 'fourth' / 'runs' / fresh.name
  train = tmp_path / 'data' / 'labelled' / 'train.jsonl'
  train.write_text(''.join(reversed(train.read_text().splitlines(keepends=True))))
  run_folders._compared.clear()
  assert run_folders.folder_of(tuning, places).root == tmp_path / 'fourth' / 'runs' / tuning.name
  assert run_folders.folder_of(pretraining, places).root == moved / 'runs' / pretraining.name
  refused = rf'{moved / "runs" / tuning.name} .*{tuning.name} .*not adopted.*data_digest'
  assert re.search(refused, capsys.readouterr().err)


def test_measured_runs_of_another_form_are_kept_aside(set_up, tmp_path, monkeypatch, caplog):
  """Where a config changes, its runs are made again; what the old ones gave stays beside the table."""
  old = fill(set_up, tmp_path, Machine(set_up[2]), monkeypatch)
  file, aside = tmp_path / 'out' / 'cells.json', tmp_path / 'out' / 'cells.previous.json'
  assert not aside.exists()
  kept = cells.read(file)
  row, column = next((row, column) for row, columns in kept['cells'].items() for column in columns)
  gone = kept['cells'][row][column][0][0]
  kept['cells'][row][column][0][0] = 'f' * 12
  kept['runs']['f' * 12] = kept['runs'].get(gone) or next(iter(kept['runs'].values()))
  cells.write(file, kept)
  fill(set_up, tmp_path, Machine(set_up[2]), monkeypatch)
  assert 'cells.previous.json' in caplog.text
  assert 'f' * 12 in cells.read(aside)['runs'] and cells.read(file)['runs'] == old['runs']
