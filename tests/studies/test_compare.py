"""Curves of many runs: means and bands, groups, damaged lines, what is refused."""

import json
import logging
import math
import re
import statistics

import numpy as np
import pytest
from matplotlib.figure import Figure

from plm_jax.commands import compare
from plm_jax.core.errors import ConfigError
from plm_jax.studies import bands, curve_sets, metric_lines
from plm_jax.studies import compare as study


def write(folder, *, rate, seed, values, name='validation/loss', **more):
  """A run with a value at each tenth step."""
  folder.mkdir(parents=True)
  settings = {'optim': {'rate': rate}, 'seed': seed, 'best': ['validation/loss', 'min'], **more}
  (folder / 'config.json').write_text(json.dumps(settings))
  rows = [{'step': 10 * place, name: value} for place, value in enumerate(values, start=1)]
  (folder / 'metrics.jsonl').write_text(''.join(f'{json.dumps(row)}\n' for row in rows))
  return folder


@pytest.fixture
def runs(tmp_path):
  """Two rates with three seeds each."""
  return [
    write(tmp_path / f'{rate}_{seed}', rate=rate, seed=seed, values=[3.0, 1.0 + seed, rate + 2.0 * seed])
    for rate in (0.1, 0.2)
    for seed in (0, 1, 2)
  ]


def test_runs_that_differ_in_their_seed_are_one_curve(runs, tmp_path, capsys):
  assert compare.main([*map(str, runs), f'--out={tmp_path / "new" / "x.png"}']) == 0
  printed = capsys.readouterr().out
  assert (tmp_path / 'new' / 'x.png').read_bytes().startswith(b'\x89PNG')
  table = study.compare(runs, tmp_path / 'x.png')
  assert table['metric'] == 'validation/loss'
  for row, rate in zip(table['rows'], (0.1, 0.2), strict=True):
    last = [rate, rate + 2, rate + 4]
    best = [rate, 2.0, 3.0]  # the smallest of each run
    assert (row['name'], row['n'], row['step']) == (f'optim.rate={rate}', 3, 30)
    assert (row['last'], row['last_deviation']) == (statistics.fmean(last), statistics.stdev(last))
    assert (row['best'], row['best_deviation']) == (statistics.fmean(best), statistics.stdev(best))
    assert row['name'] in printed and f'{row["last"]:.5g}' in printed


@pytest.mark.parametrize('damage', ['{"seed": ', '[1]', '\x00', '{"seed": 1e999}'])
def test_a_run_with_a_damaged_config_is_named_and_the_others_are_drawn(runs, tmp_path, caplog, damage):
  (runs[0] / 'config.json').write_text(damage)
  with caplog.at_level(logging.WARNING, 'plm_jax'):
    rows = study.compare(runs, tmp_path / 'x.png')['rows']
  assert [row['n'] for row in rows] == [2, 3]
  (said,) = [record.getMessage() for record in caplog.records]
  assert str(runs[0]) in said
  for run in runs[1:]:
    (run / 'config.json').write_text(damage)
  with pytest.raises(ConfigError, match=str(runs[0])) as caught:
    study.compare(runs, tmp_path / 'y.png')
  assert all(str(run) in str(caught.value) for run in runs) and not (tmp_path / 'y.png').exists()


def test_values_with_dollars_are_shown_as_they_are(tmp_path):
  """Between two dollars matplotlib reads mathematics, of which regular expressions are none."""
  scales = (r'a_$ \\b{$', r'a_$ \\c{$')
  folders = [write(tmp_path / f'$_{{{n}$', rate=1, seed=0, values=[1.0], scale=one) for n, one in enumerate(scales)]
  rows = study.compare(folders, tmp_path / 'x.png')['rows']
  assert [row['name'] for row in rows] == [f'scale={one}' for one in scales]
  assert (tmp_path / 'x.png').read_bytes().startswith(b'\x89PNG')


def test_every_curve_is_in_the_legend_by_a_short_name(tmp_path, monkeypatch):
  """Of configs that differ in much their folders are named, as in a report; matplotlib leaves out labels with '_'."""
  more = {f'key_{n}': 'value' for n in range(9)}
  folders = [write(tmp_path / name, rate=1, seed=n, values=[1.0]) for n, name in enumerate(('bert_s0', 'bert_s1'))]
  folders.append(write(tmp_path / '_gpt', rate=1, seed=0, values=[1.0], **more))
  drawn = []
  save = Figure.savefig
  monkeypatch.setattr(Figure, 'savefig', lambda self, *args, **named: (drawn.append(self), save(self, *args, **named)))
  rows = study.compare(folders, tmp_path / 'x.png')['rows']
  assert [(row['name'], row['n']) for row in rows] == [('bert', 2), ('_gpt', 1)]
  (axes,) = drawn[0].axes
  assert [text.get_text() for text in axes.get_legend().get_texts()] == ['bert (n = 2)', ' _gpt (n = 1)']


def test_by_puts_other_differences_into_one_curve(runs, tmp_path):
  rows = study.compare(runs, tmp_path / 'x.png', by=['seed'])['rows']
  assert [(row['name'], row['n']) for row in rows] == [('seed=0', 2), ('seed=1', 2), ('seed=2', 2)]
  rows = study.compare(runs[:3], tmp_path / 'x.png')['rows']  # nothing but the seed differs
  assert [(row['name'], row['n']) for row in rows] == [(runs[0].name, 3)]


def test_a_copy_of_a_run_counts_once_and_is_told(runs, tmp_path, caplog):
  """The same run under another name is no third seed; another value or another seed is one."""
  copy = write(tmp_path / 'copy', rate=0.1, seed=1, values=[3.0, 2.0, 2.1])
  other = write(tmp_path / 'other', rate=0.1, seed=3, values=[3.0, 2.0, 2.1])
  changed = write(tmp_path / 'changed', rate=0.1, seed=1, values=[3.0, 2.0, 2.2])
  for more, n in (([copy], 3), ([copy, other], 4), ([other, changed], 5)):
    assert [row['n'] for row in study.compare([*runs, *more], tmp_path / 'x.png')['rows']] == [n, 3]
  assert study.compare([copy, *runs], tmp_path / 'x.png')['rows'][0]['n'] == 3
  told = [line for line in caplog.messages if 'left out' in line]
  assert told[0] == f'{copy} is left out: {curve_sets.COPY % runs[1]}'
  assert len(told) == 3


def test_a_copy_that_ends_earlier_counts_once(runs, tmp_path, caplog):
  """A copy that was made on the way: of the three the longest stays, wherever it stands."""
  early = write(tmp_path / 'early', rate=0.1, seed=1, values=[3.0, 2.0])
  longer = write(tmp_path / 'longer', rate=0.1, seed=1, values=[3.0, 2.0, 2.1, 1.5])
  table = study.compare([early, *runs, longer], tmp_path / 'x.png')
  assert [(row['n'], row['step']) for row in table['rows']] == [(3, 40), (3, 30)]
  told = [line.partition(' is left out')[0] for line in caplog.messages if 'left out' in line]
  assert sorted(told) == sorted(map(str, (early, runs[1])))


def test_runs_of_other_configs_or_data_are_no_copies(runs, tmp_path, caplog):
  """The same curve by chance, as two coarse scores have it: what the runs were made of tells them apart."""
  given = dict(rate=0.1, seed=1, values=[3.0, 2.0, 2.1])
  (runs[1] / 'data.json').write_text('{"data_digest": "a"}')
  data = write(tmp_path / 'data', **given)
  (data / 'data.json').write_text('{"data_digest": "b"}')
  assert [row['n'] for row in study.compare([*runs, data], tmp_path / 'x.png')['rows']] == [4, 3]
  other = write(tmp_path / 'other', **given, accumulate=2)
  rows = study.compare([*runs, other], tmp_path / 'x.png', by=['optim.rate'])['rows']
  assert [row['n'] for row in rows] == [4, 3]
  assert not [line for line in caplog.messages if 'left out' in line]


def test_digests_that_are_damaged_tell_runs_apart(runs, tmp_path):
  (runs[1] / 'data.json').write_bytes(b'{"data_digest": "\xff"}')
  given = dict(rate=0.1, seed=1, values=[3.0, 2.0, 2.1])
  for name, content, n in (('same', b'{"data_digest": "\xff"}', 3), ('other', b'{"data_digest": "\xfe"}', 4)):
    run = write(tmp_path / name, **given)
    (run / 'data.json').write_bytes(content)
    assert [row['n'] for row in study.compare([*runs, run], tmp_path / 'x.png')['rows']] == [n, 3]


def test_a_sweep_stands_for_its_trials(runs, tmp_path):
  for number in (0, 1):
    write(tmp_path / 'sweep' / 'trials' / f'{number:04}', rate=0.3, seed=number, values=[1.0])
  rows = study.compare([tmp_path / 'sweep', runs[0]], tmp_path / 'x.png')['rows']
  assert [row['n'] for row in rows] == [2, 1]


def test_the_band_is_that_of_numpy_where_steps_agree_and_straight_between_steps():
  steps = np.arange(1, 9)
  values = np.random.default_rng(0).normal(size=(5, 8))
  at, mean, deviation = bands.band([(steps, one) for one in values])
  np.testing.assert_allclose(at, steps)
  np.testing.assert_allclose(mean, values.mean(axis=0), rtol=1e-12)
  np.testing.assert_allclose(deviation, values.std(axis=0, ddof=1), rtol=1e-12)
  # the second run has no step 2, where a straight line through (1, 4) and (3, 8) has 6, and ends before step 4
  at, mean, deviation = bands.band(
    [(np.array([1, 2, 3, 4]), np.array([0.0, 0, 0, 7])), (np.array([1, 3]), np.array([4.0, 8]))]
  )
  np.testing.assert_allclose(at, [1, 2, 3, 4])
  np.testing.assert_allclose(mean, [2, 3, 4, 7])
  np.testing.assert_allclose(deviation, [2 * math.sqrt(2), 3 * math.sqrt(2), 4 * math.sqrt(2), 0])


def test_long_curves_become_means_of_stretches():
  steps = np.arange(10 * bands.POINTS)
  at, mean, _ = bands.band([(steps, np.where(steps % 2, 1.0, 3.0))])
  assert len(at) == bands.POINTS and set(mean) == {2.0}


@pytest.mark.parametrize('rows', [3, 500])
@pytest.mark.parametrize('step', [b'\xff', b'99999999999999999999', b'2000000001', b'-1', b'true'])
def test_a_damaged_line_is_named_and_the_others_are_read(tmp_path, caplog, rows, step):
  run = write(tmp_path / 'a', rate=1, seed=0, values=[float(n) for n in range(rows)], name='loss')
  file = run / 'metrics.jsonl'
  lines = file.read_bytes().splitlines(keepends=True)
  lines[1] = b'{"step": ' + step + b', "loss": 1}\n'
  lines.append(b'{"step": 99')  # still being written
  file.write_bytes(b''.join(lines))
  with caplog.at_level(logging.WARNING, 'plm_jax'):
    steps, values = metric_lines.series(file, 'loss')
  (warning,) = caplog.messages
  assert f'{file}, line 2' in warning
  assert list(values) == [0.0, *range(2, rows)] and list(steps[:2]) == [10, 30]


def test_a_run_that_diverged_is_named_and_not_counted(tmp_path, capsys, caplog):
  runs = [write(tmp_path / name, rate=1, seed=seed, values=[2.0, 0.5], name='loss') for seed, name in enumerate('ab')]
  lost = write(tmp_path / 'c', rate=1, seed=2, values=[2.0, 0.9], name='loss')
  with open(lost / 'metrics.jsonl', 'a') as stream:
    stream.write('{"step": 30, "loss": "nan"}\n')
  asked = dict(out=tmp_path / 'x.png', metric='loss')
  (row,) = study.compare([*runs, lost], **asked)['rows']
  assert (row['n'], row['last'], row['last_deviation']) == (2, 0.5, 0.0)
  assert re.search(rf'{lost} diverged: loss .*step 30\b', caplog.text)
  (row,) = study.compare([lost], **asked)['rows']
  assert (row['n'], row['last']) == (0, None)
  with open(lost / 'metrics.jsonl', 'a') as stream:
    stream.write('{"step": 40, "loss": 0.8}\n')
  caplog.clear()
  (row,) = study.compare([*runs, lost], **asked)['rows']
  assert row['n'] == 3 and 'diverged' not in caplog.text and 'steps 20, 40' in caplog.text


def test_a_run_that_diverged_twice_is_not_counted(tmp_path, caplog):
  sound = write(tmp_path / 'a', rate=1, seed=0, values=[3.0, 2.0, 1.5, 1.5, 1.4], name='loss')
  other = write(tmp_path / 'b', rate=1, seed=1, values=[3.0, 'nan', 2.0, 'nan', 'nan'], name='loss')
  never = write(tmp_path / 'c', rate=1, seed=2, values=['nan', 'nan'], name='loss')
  asked = dict(out=tmp_path / 'x.png', metric='loss')
  (row,) = study.compare([sound, other, never], **asked)['rows']
  assert (row['n'], row['last']) == (1, 1.4)
  assert re.search(rf'{other} diverged: loss .*step 40\b', caplog.text)
  assert re.search(rf'{never} diverged: loss', caplog.text) and 'without loss' not in caplog.text
  with pytest.raises(ConfigError, match=r'--metric=loss.*finite'):
    study.compare([never], **asked)


def test_runs_without_a_line_are_named(tmp_path):
  run = write(tmp_path / 'a', rate=1, seed=0, values=[], name='loss')
  with pytest.raises(ConfigError, match=str(run)):
    compare.main([str(run), f'--out={tmp_path / "x.png"}'])


def test_values_that_are_not_finite_are_left_out(tmp_path):
  file = tmp_path / 'metrics.jsonl'
  file.write_text('{"step": 1, "loss": "nan"}\n{"step": 2, "loss": 3.0}\n{"step": 3, "other": 1.0}\n')
  steps, values = metric_lines.series(file, 'loss')
  assert (list(steps), list(values)) == ([2], [3.0])


@pytest.mark.parametrize(
  ('more', 'said'),
  [
    (['--by=optim.rat'], "'optim.rat'.*Did you mean 'optim.rate'"),
    (['--metric=validation/los'], "--metric=validation/los\\b.*Did you mean 'validation/loss'"),
    (['no_such_run'], 'no_such_run'),
    (['--out=x.jpg'], r'--out=x\.jpg.*\.png'),
  ],
)
def test_what_cannot_be_compared_is_refused(runs, tmp_path, more, said):
  with pytest.raises(ConfigError, match=said):
    compare.main([str(runs[0]), *more, *([] if more[0].startswith('--out') else [f'--out={tmp_path / "x.png"}'])])
  with pytest.raises(ConfigError, match='--out=FILE'):
    compare.main([])
  (tmp_path / 'file').write_text('mine')
  with pytest.raises(ConfigError, match='file'):
    compare.main([str(runs[0]), f'--out={tmp_path / "file" / "x.png"}'])


def test_data_vocabularies_and_objectives_that_differ_are_named(tmp_path, caplog):
  about = {'data_digest': 'a', 'vocab_digest': 'v'}
  changes = {'same': ({}, 'mlm'), 'data': ({'data_digest': 'b'}, 'mlm'), 'vocab': ({'vocab_digest': 'w'}, 'rtd')}
  folders = {}
  for name, (facts, objective) in {'first': ({}, 'mlm'), **changes}.items():
    folders[name] = write(tmp_path / name, rate=0.1, seed=0, values=[1.0 + len(folders)], objective={'name': objective})
    (folders[name] / 'data.json').write_text(json.dumps(about | facts))
  for name, kinds in {'same': (), 'data': ('data',), 'vocab': ('vocabularies', 'objectives')}.items():
    caplog.clear()
    study.compare([folders['first'], folders[name]], tmp_path / 'x.png')
    assert [record.getMessage().split()[0] for record in caplog.records] == list(kinds)
