"""The page about runs: what is on it, that nothing of a run breaks out of it, what is damaged, what is refused."""

import csv
import html.parser
import itertools
import json
import logging
import math
import re
import shutil
import statistics
import subprocess
import sys

import numpy as np
import pytest

from plm_jax.commands import report
from plm_jax.core.errors import ConfigError
from plm_jax.studies import bands, metric_lines
from plm_jax.studies.report import figures, papers, run_samples, sections
from plm_jax.training import loop
from tests import conftest
from tests import runs as tiny_runs
from tests.browser import pages

EVIL = '</script><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\'"{{DATA}}'
ADDRESSES = {'src', 'href', 'action', 'data', 'poster', 'srcset'}


def write(folder, *, rate=0.1, seed=0, values=(3.0, 2.0, 2.5), name='validation/loss', result=True, **more):
  """A run with a value at each tenth step."""
  folder.mkdir(parents=True)
  settings = {'model': {'name': 'bert'}, 'optim': {'rate': rate}, 'seed': seed, 'best': [name, 'min'], **more}
  (folder / 'config.json').write_text(json.dumps(settings))
  rows = [{'step': 10 * place, name: value, 'loss': 2.0 * place} for place, value in enumerate(values, start=1)]
  (folder / 'metrics.jsonl').write_text(''.join(f'{json.dumps(row)}\n' for row in rows))
  if result:
    told = {'goodput': {'share': 0.8, 'total': 100.0, 'steps': 80.0, 'wait': 0.01, 'lost': 20.0}}
    told |= {'finished': True, 'seconds': 61.0, 'tokens': 12345, 'versions': {'jax': '0.10.2', 'python': '3.11'}}
    (folder / 'result.json').write_text(json.dumps(told))
  (folder / 'log.txt').write_text('batch 8 rows = 8 per device x 1 x 1 accumulated; 4 x TPU v5 lite; 9 rows\n')
  return folder


class Page(html.parser.HTMLParser):
  """What a browser makes of a page: its tags with attributes, its text, its tables, its scripts."""

  def __init__(self, content):
    super().__init__()
    self.tags, self.text, self.scripts, self.tables = [], '', [], []
    self._inside = []
    self.feed(content)
    self.data = json.loads(self.scripts[0])

  def handle_starttag(self, tag, attributes):
    self.tags.append((tag, dict(attributes)))
    if tag not in ('meta', 'link', 'input', 'br', 'img'):
      self._inside.append(tag)
    if tag == 'script':
      self.scripts.append('')
    elif tag == 'table':
      self.tables.append([])
    elif tag == 'tr':
      self.tables[-1].append([])
    elif tag in ('th', 'td'):
      self.tables[-1][-1].append('')

  def handle_endtag(self, tag):
    assert self._inside.pop() == tag

  def handle_data(self, data):
    if self._inside[-1:] == ['script']:
      self.scripts[-1] += data
      return
    self.text += data
    if {'th', 'td'} & set(self._inside):
      self.tables[-1][-1][-1] += data

  def table(self, first_head):
    """The rows of a table by their first cell: head -> cell."""
    table = next(table for table in self.tables if table[0][0] == first_head)
    return {row[0]: dict(zip(table[0], row, strict=True)) for row in table[1:]}


def made(tmp_path, *words):
  out = tmp_path / 'new' / 'x.html'
  assert report.main([*map(str, words), f'--out={out}', '--samples=0']) == 0
  return Page(out.read_text())


@pytest.fixture
def runs(tmp_path):
  """Two rates with three seeds each."""
  return [
    write(tmp_path / 'runs' / f'{rate}_{seed}', rate=rate, seed=seed, values=[3.0, 1.0 + seed, rate + 2.0 * seed])
    for rate in (0.1, 0.2)
    for seed in (0, 1, 2)
  ]


# What is on it -------------------------------------------------------------------------------------------------------


def test_runs_and_seeds_are_in_tables(runs, tmp_path):
  page = made(tmp_path, tmp_path / 'runs')
  table = page.table('run')
  assert list(table) == [run.name for run in runs]
  row = table['0.2_1']
  assert (row['curve'], row['seed'], row['state'], row['step']) == ('optim.rate=0.2', '1', 'finished', '30')
  assert (row['best validation/loss'], row['at step'], row['last validation/loss']) == ('2', '20', '2.2')
  assert (row['tokens'], row['time']) == ('12,345', '0:01:01')
  together = page.table('curve')['optim.rate=0.2']
  ends = [0.2, 2.2, 4.2]
  assert together['runs'] == '3' and together['last validation/loss'] == f'{statistics.fmean(ends):.5g}'
  assert together['deviation'] == f'{statistics.stdev(ends):.5g}'
  assert '6 of 6 runs are finished' in page.text and '0:06:06 of training on 4 x TPU v5 lite' in page.text
  single = made(tmp_path, runs[0])
  assert 'Of 0:01:40 since it began: steps 80.0 %, lost 20.0 %.' in single.text


def test_curves_are_those_of_the_metrics(runs, tmp_path):
  page = made(tmp_path, tmp_path / 'runs')
  assert [group['n'] for group in page.data['groups']] == [3, 3]
  first, second = page.data['figures']
  assert (first['metric'], second['metric']) == ('validation/loss', 'loss')
  line = first['lines'][4]
  assert page.data['runs'][line['run']] == {'name': '0.2_1', 'group': 1, 'tokens': 411.5, 'seconds': 2.03333}
  assert np.cumsum(line['steps']).tolist() == [10, 20, 30] and line['values'] == [3, 2, 2.2]
  band = first['bands'][1]
  assert band['values'] == [3, 2, pytest.approx(2.2)] and band['deviation'] == [0, 1, 2]


def test_differences_between_configs(runs, tmp_path):
  write(tmp_path / 'runs' / 'other', objective={'name': 'mlm'}, text='x' * 500)
  page = made(tmp_path, tmp_path / 'runs')
  keys = page.table('key')
  assert list(keys) == ['optim.rate', 'objective.name', 'text']  # and neither the seed nor what is the same
  assert list(keys['optim.rate'].values())[1:] == ['0.1', '0.2', '0.1']
  assert list(keys['objective.name'].values())[1:] == ['–', '–', 'mlm']
  assert len(max(keys['text'].values(), key=len)) < 200


def test_environment_and_data_have_a_row_for_runs_that_agree(tmp_path):
  for name, path in (('a', 'x'), ('b', 'x'), ('c', 'y')):
    write(tmp_path / 'runs' / name, data={'path': path, 'split': 'train'}, seed=ord(name))
  page = made(tmp_path, tmp_path / 'runs')
  environment, data = (table for table in page.tables if table[0][0] == 'runs')
  assert environment == [['runs', 'devices', 'jax', 'python'], ['all', '4 x TPU v5 lite', '0.10.2', '3.11']]
  assert [row[:2] for row in data[1:]] == [['a, b', 'x'], ['c', 'y']]


def test_sweeps_and_tables_of_papers(tmp_path):
  write(tmp_path / 'w' / 'sweep' / 'trials' / '0000')
  rows = [{'point': {'optim.rate': '0.1'}, 'numbers': [0], 'score': 2.5, 'mean': 2.5, 'deviation': None, 'n': 1}]
  best = {'command': 'plm-jax train --x', 'said': 'best: 2.5, the median over <2> seeds'}
  table = {'metric': 'validation/loss', 'rows': rows, 'best': best}
  (tmp_path / 'w' / 'sweep' / 'table.json').write_text(json.dumps(table))
  (tmp_path / 'w' / 'paper' / 'small').mkdir(parents=True)
  text = '# Table 1\n\nA paper <b>.\n\n| row | acc, measured |\n| --- | --- |\n| a | 78.3 ± 0.4 (3) |\n| b | |\n\n- one'
  (tmp_path / 'w' / 'paper' / 'small' / 'table.md').write_text(text)
  page = made(tmp_path, tmp_path / 'w')
  assert page.table('optim.rate')['0.1']['validation/loss, median'] == '2.5'
  assert page.table('row')['a'] == {'row': 'a', 'acc, measured': '78.3 ± 0.4 (3)'}
  assert 'plm-jax train --x' in page.text and 'A paper <b>.' in page.text
  assert 'best: 2.5, the median over <2> seeds:' in page.text
  assert papers.cell('1,234.5 ± 2').key == 1234.5 and papers.cell('-').key is None
  assert list(page.table('run')) == ['sweep/trials/0000']
  del best['said']  # as an earlier version wrote it
  (tmp_path / 'w' / 'sweep' / 'table.json').write_text(json.dumps(table))
  assert 'The best keys as a command:' in made(tmp_path, tmp_path / 'w').text


def test_answers_that_are_kept_are_shown(runs, tmp_path):
  (runs[0] / 'vocab').mkdir()
  words = [[['I', '']], [['<mask>', 'changed']], [['you', 'predicted']]]
  noise = {'objective': 'mlm', 'lines': [{'label': 'reads', 'gap': ' ', 'items': words}], 'rates': '15.0% of the text'}
  blanks = {'text': 'I <mask> you', 'hidden': ['love'], 'found': [[['see', 0.25], [EVIL, 0.125]]]}
  kept = {'of': run_samples._identity(runs[0]), 'remarks': [], 'noise': noise, 'blanks': blanks}
  (runs[0] / 'samples.json').write_text(json.dumps(kept))
  page = made(tmp_path, tmp_path / 'runs')
  assert ('span', {'class': 'changed'}) in page.tags and '15.0% of the text' in page.text
  row = page.table('blank')['1']
  assert (row['original'], row['1.'], row['2.']) == ('love', 'see  25.0%', f'{EVIL}  12.5%')
  (runs[0] / 'checkpoints' / '7').mkdir(parents=True)  # another checkpoint: the answers are of an older one
  assert 'original' not in made(tmp_path, tmp_path / 'runs').text


# What a run says stays text ------------------------------------------------------------------------------------------


def test_nothing_of_a_run_breaks_out(tmp_path):
  folder = write(
    tmp_path / 'runs' / 'a<b>&', name='</script><b>', note=EVIL, **{EVIL: 1}, data={'path': EVIL, 'split': EVIL}
  )
  write(tmp_path / 'runs' / 'plain', note='x')
  (folder / 'result.json').write_text(json.dumps({'versions': {EVIL: EVIL}, 'seconds': EVIL, 'tokens': [EVIL]}))
  with open(folder / 'metrics.jsonl', 'a') as file:
    file.write(f'{json.dumps({"step": 99, EVIL: 1.0, "</script><b>": 2.0})}\n{json.dumps({"step": 100, EVIL: 2.0})}\n')
  (tmp_path / 'runs' / 'paper').mkdir()
  (tmp_path / 'runs' / 'paper' / 'table.md').write_text(f'# {EVIL}\n\n| {EVIL} | b |\n|---|---|\n| {EVIL} | {EVIL} |\n')
  page = made(tmp_path, tmp_path / 'runs', f'--title={EVIL}')
  tags = [tag for tag, _ in page.tags]
  assert len(page.scripts) == 2 and 'img' not in tags and 'b' not in tags
  assert not [name for _, attributes in page.tags for name in attributes if name.startswith('on')]
  assert EVIL in page.text
  assert EVIL in [figure['metric'] for figure in page.data['figures']]
  assert 'a<b>&' in page.table('run')


def test_the_page_asks_for_nothing(runs, tmp_path):
  page = made(tmp_path, tmp_path / 'runs')
  addresses = [value for _, attributes in page.tags for name, value in attributes.items() if name in ADDRESSES]
  assert addresses and all(address.startswith('#') or address == 'data:,' for address in addresses)
  policy = next(one['content'] for tag, one in page.tags if tag == 'meta' and 'http-equiv' in one)
  assert policy.startswith("default-src 'none'")
  content = (tmp_path / 'new' / 'x.html').read_text()
  assert not re.search(r'@import|url\(|fetch\(|XMLHttpRequest|\bimport\(', content)


# Damage --------------------------------------------------------------------------------------------------------------


def test_a_damaged_line_is_named_and_the_others_are_drawn(runs, tmp_path, caplog):
  file = runs[0] / 'metrics.jsonl'
  lines = file.read_bytes().splitlines(keepends=True)
  lines[1] = lines[1][:9] + b'\xff\n'
  file.write_bytes(b''.join([*lines, b'{"step": 99']))
  (runs[1] / 'config.json').write_text('{')
  (runs[2] / 'result.json').write_text('[]')
  (runs[3] / 'config.json').write_text('{"seed": 1e999}')
  with caplog.at_level(logging.WARNING, 'plm_jax'):
    page = made(tmp_path, tmp_path / 'runs')
  assert f'{file}, line 2' in caplog.text
  assert re.search(rf'{runs[0].name}: metrics.jsonl: .*line 2', page.text)
  assert f'{runs[1].name} is ' in page.text and f'{runs[3].name} is ' in page.text
  assert f'{runs[2].name}: result.json' in page.text
  assert len(page.data['runs']) == 4
  assert np.cumsum(page.data['figures'][0]['lines'][0]['steps']).tolist() == [10, 30]


@pytest.mark.parametrize(
  'table',
  [
    {'rows': 5},
    {'rows': [5]},
    {'rows': [{'point': {}, 'numbers': None}]},
    {'rows': [{'point': {}, 'reasons': [['x']]}]},
    {'rows': [{'point': {}, 'reasons': 5}]},
  ],
)
def test_a_damaged_table_of_a_sweep_is_named_and_left_out(tmp_path, table):
  write(tmp_path / 'sweep' / 'trials' / '0000')
  (tmp_path / 'sweep' / 'table.json').write_text(json.dumps({'metric': 'loss', **table}))
  page = made(tmp_path, tmp_path / 'sweep')
  assert 'sweep: table.json' in page.text
  assert 'Sweeps' not in page.text and len(page.data['runs']) == 1


def test_one_run_is_not_called_several(tmp_path, caplog):
  write(tmp_path / 'a', values=[3.0, 2.0], result=False)
  with caplog.at_level(logging.INFO):
    page = made(tmp_path, tmp_path / 'a')
  assert 'The run has no result yet.' in page.text
  assert ': 1 run, ' in caplog.text


def test_what_is_not_finite_is_named(tmp_path):
  write(tmp_path / 'a', values=[3.0, 'nan', 2.0, 'inf'], result=False)
  page = made(tmp_path, tmp_path / 'a')
  assert 'a: validation/loss is not finite at step 20' in page.text
  assert page.data['figures'][0]['lines'][0]['values'] == [3, 2]
  assert page.table('run')['a']['state'] == 'no result yet'


@pytest.mark.parametrize(
  ('words', 'said'),
  [
    (['{0}', '--by=optim.rat'], "--by: unknown key 'optim.rat'. Did you mean 'optim.rate'"),
    (['{0}', '--metric=validation/los'], "--metric=validation/los\\b.*Did you mean 'validation/loss'"),
    (['{0}', '--curves=validation/los'], "--curves=validation/los\\b.*Did you mean 'validation/loss'"),
    (['{0}', '--curves=nothing/*'], r'--curves=nothing/\*'),
    (['{0}/no_such_run'], 'no_such_run'),
    (['{0}/0.1_0/empty'], '0.1_0/empty'),
    (['{0}', '--out=x.png'], r'--out=x\.png.*\.html'),
    (['{0}', '--out={0}/d.html'], r'--out=.*d\.html.*folder'),
    ([], '--out=FILE'),
  ],
)
def test_what_cannot_be_reported_is_refused(runs, tmp_path, words, said):
  (runs[0] / 'empty').mkdir()
  (tmp_path / 'runs' / 'd.html').mkdir()
  words = [word.format(tmp_path / 'runs') for word in words]
  with pytest.raises(ConfigError, match=said):
    report.main([*words, *([] if any('--out' in word for word in words) else [f'--out={tmp_path / "x.html"}'])])


def test_tables_and_curves_need_no_jax(runs, tmp_path):
  words = [str(tmp_path / 'runs'), f'--out={tmp_path / "x.html"}']
  code = (
    f'import sys\nfrom plm_jax.commands import report\nreport.main({words!r})\n'
    'assert not {"jax", "flax"} & sys.modules.keys()'
  )
  done = subprocess.run([sys.executable, '-c', code], cwd=conftest.ROOT, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr


# Long curves ---------------------------------------------------------------------------------------------------------


def test_no_spike_is_lost():
  steps = np.arange(0, 1_000_000, 10)
  values = np.random.default_rng(0).normal(size=len(steps))
  values[[0, 77_777, 99_999]] = 100.0, -50.0, 60.0
  at, kept = bands.extremes((steps, values), 300)
  assert len(at) <= 600
  assert {100.0, -50.0, 60.0} <= set(kept) and (np.diff(at) > 0).all()
  assert all(values[step // 10] == value for step, value in zip(at, kept, strict=True))
  edges = np.linspace(steps[0], steps[-1], 301)
  for left, right in itertools.pairwise([*edges[:-1], np.inf]):  # of each stretch both extremes
    inside = values[(steps >= left) & (steps < right)]
    mine = kept[(at >= left) & (at < right)]
    assert mine.min() == inside.min() and mine.max() == inside.max()
  short = steps[:600], values[:600]
  assert bands.extremes(short, 300) is short


def test_a_page_of_many_long_curves_stays_small(monkeypatch):
  run = {
    f'metric_{number}/x': (np.arange(5_000), np.random.default_rng(number).normal(size=5_000)) for number in range(9)
  }

  class Run:
    name, metrics = 'run', metric_lines.Metrics(run, list(run), 5_000, (), {}, {}, 5_000)
    result, step = {'tokens': 1e6, 'seconds': 2.5}, 5_000

  assert len(json.dumps(figures.make({'a': [Run()] * 30}, list(run)))) < 1.3 * figures.BUDGET + 30 * 9 * 300
  monkeypatch.setattr(figures, 'BUDGET', 100_000)
  assert len(json.dumps(figures.make({'a': [Run()] * 2}, list(run)))) < 200_000


@pytest.mark.parametrize('size', [64, 1_000, 2**23])
def test_blocks_of_any_size_give_the_same(tmp_path, monkeypatch, size):
  draw = np.random.default_rng(0)
  rows = [{'step': 2 * place, 'loss': float(draw.normal()), 'gradient_norm/a1': 1e-7 * place} for place in range(1, 60)]
  for place, row in enumerate(rows):
    if place % 7 == 0:
      row |= {'wikitext2/loss': place, 'text': 'no number', 'flag': True}
    if place % 7 == 3:
      row |= {'wikitext103/loss': place}
  rows[8]['loss'], rows[30]['loss'] = 'nan', '-inf'
  lines = [json.dumps(row) for row in rows]
  lines[20] = lines[20][:30]
  lines[40] = '{"loss": 1.0}'
  lines[41] = '{"step": 1.5, "loss": 1.0}'
  file = tmp_path / 'metrics.jsonl'
  file.write_text('\n'.join(lines) + '\n{"step": 9')
  monkeypatch.setattr(metric_lines, 'BLOCK', size)
  (read,) = metric_lines.read([file], lambda name: 'loss' in name)
  assert list(read.damaged) == [21, 41, 42] and read.sound == 59 - 3
  assert read.not_finite == {'loss': 18} and not read.diverged
  assert read.last == max(row['step'] for row in rows)
  assert list(read.names) == ['gradient_norm/a1', 'loss', 'wikitext103/loss', 'wikitext2/loss']
  assert set(read.lines) == {'loss', 'wikitext103/loss', 'wikitext2/loss'}
  sound = [row for place, row in enumerate(rows) if place not in (20, 40, 41)]
  for name, (steps, values) in read.lines.items():
    there = [row for row in sound if isinstance(row.get(name), int | float)]
    assert steps.tolist() == [row['step'] for row in there]
    assert values.tolist() == [float(row[name]) for row in there] and all(map(math.isfinite, values))


def test_metrics_whose_names_differ_in_digits_alone(tmp_path):
  file = tmp_path / 'metrics.jsonl'
  rows = [{'step': step, f'wikitext{step}/loss': 0.5 * step, 'note': 'x1', 'none': None} for step in (2, 103)]
  file.write_text(''.join(f'{json.dumps(row)}\n' for row in rows))
  (read,) = metric_lines.read([file], lambda name: True)
  assert list(read.names) == ['wikitext103/loss', 'wikitext2/loss'] and not read.damaged
  assert {name: (steps.tolist(), values.tolist()) for name, (steps, values) in read.lines.items()} == {
    'wikitext2/loss': ([2], [1.0]),
    'wikitext103/loss': ([103], [51.5]),
  }


@pytest.mark.parametrize('names', [('val/loss', 'val2/loss'), ('val2/loss', 'val/loss'), ('a1.5-x', 'a.-x')])
def test_a_name_with_a_digit_beside_one_without(tmp_path, names):
  """By turns in one file, and each in a file of its own; which of the files a thread reads first says nothing."""
  rows = {name: [{'step': step, name: 1.0} for step in (place + 1, place + 3)] for place, name in enumerate(names)}
  both, *apart = [tmp_path / f'{name}.jsonl' for name in ('both', 'first', 'second')]
  for file, own in zip(apart, rows.values(), strict=True):
    file.write_text(''.join(f'{json.dumps(row)}\n' for row in own))
  both.write_text(''.join(f'{json.dumps(row)}\n' for pair in zip(*rows.values(), strict=True) for row in pair))
  for _ in range(10):
    together, first, second = metric_lines.read([both, *apart], lambda name: True)
    assert set(together.lines) == set(names)
    assert (list(first.lines), list(second.lines)) == ([names[0]], [names[1]])


def test_numbers_near_the_largest_float_are_drawn(tmp_path):
  """Of two seeds that diverged: the squares of such perplexities are no floats."""
  for seed in (0, 1):
    write(tmp_path / 'runs' / str(seed), rate=0.1, seed=seed, values=[3.0, 5e173 * (1 + seed), 1e304])
  page = made(tmp_path, tmp_path / 'runs')
  (band,) = next(figure for figure in page.data['figures'] if figure['metric'] == 'validation/loss')['bands']
  assert band['deviation'] == [0, pytest.approx(5e173 / math.sqrt(2), rel=1e-4), 0]


@pytest.mark.skipif(shutil.which('node') is None, reason='needs node')
@pytest.mark.parametrize('values', [[279 / 408] * 3, [2.0] * 3, [1e-300] * 3, [0.0, 1.0, 2.0]])
def test_the_script_ends_where_seeds_have_one_value(values):
  """The mean of equal numbers may be off by its last bit, which is no height that an axis could have."""
  lines = [(np.array([1, 2]), np.array([value, value])) for value in values]
  _, mean, deviation = bands.band(lines)
  assert (deviation == 0).all() == (len(set(values)) == 1)
  script = (conftest.ROOT / 'plm_jax' / 'studies' / 'report' / 'page.js').read_text()
  parts = [
    script[script.index(f'function {name}(') :].split('\n}\n')[0] + '\n}\n' for name in ('short', 'ticks', 'bounds')
  ]
  off = [
    {'steps': [1, 2], 'values': list(mean), 'band': {'deviation': [max(float(one), 1.4e-16) for one in deviation]}}
  ]
  asked = [{'main': {'steps': one['steps'], 'values': one['values']}, 'band': one['band'], 'faint': []} for one in off]
  told = f'const at = bounds({json.dumps(asked)}, false); console.log(ticks(at.low, at.high, 6).length)'
  done = subprocess.run(['node', '-e', ''.join(parts) + told], capture_output=True, text=True, timeout=60, check=True)
  assert 2 <= int(done.stdout) <= 12


def test_curves_along_tokens_and_as_csv():
  script = (conftest.ROOT / 'plm_jax' / 'studies' / 'report' / 'page.js').read_text()
  parts = [f'function {name}{script.partition(f"function {name}")[2].partition(chr(10) + "}")[0]}\n}}\n'
           for name in ('pace(', 'along(', 'numbers(', 'clock(')]  # fmt: skip
  code = """const data = {runs: [{name: 'a "b"', tokens: 4, seconds: 0.5}, {name: 'c'}]};
  const line = {steps: [1, 2, 3], values: [9, 8, 7]};
  const figure = {metric: 'loss', lines: [{run: 0, ...line}, {run: 1, steps: [5], values: [1]}]};
  const told = [pace(data.runs, 'tokens'), pace([data.runs[0]], 'tokens'), pace(data.runs, 'steps')];
  const cut = [along(line, 4, [6, 12]), along(line, 4, [20, 30])];
  console.log(JSON.stringify([told, ...cut, numbers(figure), clock(3725)]))"""
  done = subprocess.run(['node', '-e', ''.join(parts) + code], capture_output=True, text=True, timeout=60, check=True)
  told, cut, nothing, table, time = json.loads(done.stdout)
  assert told == [None, 4, 1] and nothing is None and time == '1:02:05'
  assert (cut['steps'], cut['values']) == ([8, 12], [8, 7])
  first, *rows = csv.reader(table.splitlines())
  assert first == ['run', 'step', 'tokens', 'seconds', 'loss']
  assert rows[0] == ['a "b"', '1', '4', '0.5', '9'] and rows[3] == ['c', '5', '', '', '1']


def test_runs_and_tables_are_named_from_the_folders_of_their_own(tmp_path):
  for seed, name in enumerate(('runs/a', 'runs/b')):
    write(tmp_path / name, seed=seed, values=[3.0, seed])
  (tmp_path / 'tables' / 'one').mkdir(parents=True)
  (tmp_path / 'tables' / 'one' / 'table.md').write_text('# One\n\n| row | figure |\n|---|---|\n| a | 1 |\n')
  page = made(tmp_path, tmp_path / 'runs', tmp_path / 'tables')
  assert set(page.table('run')) == {'a', 'b'}


def test_what_a_model_writes_having_read_a_text_stands_apart_from_it():
  written = {'prompt': 'a text', 'texts': [['greedy', 'short']]}
  assert 'a text</span>short' in sections._written(written)
  assert 'a text → </span>short' in sections._written({**written, 'apart': True})


def test_names_of_curves_are_short_where_configs_differ_much(tmp_path):
  for name, more in (('bert_s0', {}), ('bert_s1', {'seed': 1}), ('gpt_0', {f'key_{n}': 'value' for n in range(9)})):
    write(tmp_path / 'runs' / name, **more)
  page = made(tmp_path, tmp_path / 'runs')
  assert [group['name'] for group in page.data['groups']] == ['bert', 'gpt_0']


# Asking runs ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  return tiny_runs.write_data(tmp_path_factory.mktemp('data'))


@pytest.mark.slow
@pytest.mark.parametrize(('kind', 'found'), [('mlm', 'blanks'), ('causal_lm', 'written')])
def test_a_run_is_asked_once(data, tmp_path, monkeypatch, kind, found):
  folder = tmp_path / 'runs' / kind
  loop.train(tiny_runs.settings(kind, data, steps=2, eval_every=2, save_every=2), folder)
  out = tmp_path / 'x.html'
  assert report.main([str(folder), f'--out={out}']) == 0
  page = Page(out.read_text())
  kept = json.loads((folder / 'samples.json').read_text())
  assert found in kept and kept['noise']['objective'] == kind
  text = kept['text'].split()
  assert (data / 'corpus' / 'validation.txt').read_text().split()[: len(text)] == text  # of that run
  assert 5 < len(text) < run_samples.MOST  # the network has 32 positions
  if kind == 'mlm':
    hidden = text[run_samples.FIRST_BLANK :: run_samples.EVERY]
    assert kept['blanks']['hidden'] == hidden and len(kept['blanks']['found']) == len(hidden)
    assert all(len(blank) == run_samples.TOP for blank in kept['blanks']['found'])
    assert ('span', {'class': 'changed predicted'}) in page.tags or ('span', {'class': 'changed'}) in page.tags
  else:
    prompt = kept['written']['prompt'].split()
    assert len(prompt) > 2 and prompt == text[: len(prompt)] and len(kept['written']['texts']) == 3
  assert kept['text'].split()[0] in page.text and kept['noise']['rates'] in page.text
  monkeypatch.setattr(run_samples, 'compute', None)
  assert report.main([str(folder), f'--out={out}']) == 0  # from what is kept


def test_runs_whose_answers_are_kept_leave_the_others_their_turn(tmp_path, monkeypatch):
  """`--samples` says how many are asked, and answers that are kept cost nothing."""
  for number in range(5):
    (write(tmp_path / 'runs' / f'run_{number}', rate=0.1 * (1 + number)) / 'vocab').mkdir()
  called = []
  monkeypatch.setattr(
    run_samples, 'stored', lambda folder: {'text': 'a'} if folder.name in ('run_0', *called[:2]) else {}
  )
  monkeypatch.setattr(run_samples, 'compute', lambda folder: called.append(folder.name) or {'text': 'a'})
  assert report.main([str(tmp_path / 'runs'), f'--out={tmp_path / "x.html"}', '--samples=2']) == 0
  assert called == ['run_1', 'run_2']
  assert report.main([str(tmp_path / 'runs'), f'--out={tmp_path / "x.html"}', '--samples=2']) == 0
  assert called == ['run_1', 'run_2', 'run_3', 'run_4']


def test_a_run_that_cannot_be_asked_is_named(tmp_path, monkeypatch):
  folder = write(tmp_path / 'a')
  (folder / 'vocab').mkdir()  # and nothing in it
  out = tmp_path / 'x.html'
  assert report.main([str(folder), f'--out={out}']) == 0
  assert 'vocab' in Page(out.read_text()).text.split('Samples')[-1]
  assert not (folder / 'samples.json').exists()


# In a browser --------------------------------------------------------------------------------------------------------

SHOWN = 'return [...document.querySelectorAll("#figures .plot")].map((one) => one.querySelectorAll(".curve").length)'
WIDTHS = 'return [document.documentElement.scrollWidth, document.documentElement.clientWidth]'


@pytest.fixture(scope='module')
def browser(tmp_path_factory):
  with pages(tmp_path_factory.mktemp('browser')) as page:
    yield page


@pytest.mark.parametrize('width', [1200, 360])
@pytest.mark.parametrize('dark', [False, True])
def test_the_page_in_a_browser(browser, runs, tmp_path, width, dark):
  write(tmp_path / 'runs' / 'other', rate=0.3, note=EVIL, values=np.random.default_rng(0).normal(size=1_000).tolist())
  out = tmp_path / 'x.html'
  assert report.main([str(tmp_path / 'runs'), f'--out={out}', '--samples=0', f'--title={EVIL}']) == 0
  browser.show(out, width=width, dark=dark)
  assert browser.complaints() == []
  scroll, client = browser.run(WIDTHS)
  assert scroll <= client == width  # nothing is wider than the screen
  assert browser.run('return document.querySelector("h1").textContent') == EVIL
  paper = browser.run('return getComputedStyle(document.body).backgroundColor')
  assert (sum(map(int, re.findall(r'\d+', paper))) < 200) == dark
  small = 'return [...document.querySelectorAll("body *")].filter((e) => e.textContent.trim() && e.clientWidth)'
  assert min(browser.run(f'{small}.map((e) => parseFloat(getComputedStyle(e).fontSize))')) >= 13
  # the legend: a click, and a key, hide a curve; the mean of seeds is a curve for each config
  assert browser.run(SHOWN) == [3, 3]
  browser.run('document.querySelector("#legend button").click()')
  assert browser.run(SHOWN) == [2, 2]
  assert browser.run('return document.querySelector("#legend button").getAttribute("aria-pressed")') == 'false'
  browser.run('document.querySelector("#every").click(); document.querySelector("#together").click()')
  assert browser.run(SHOWN) == [7, 7]
  browser.run('document.querySelector("#none").click()')
  assert browser.run('return [...document.querySelectorAll(".nothing")].every((one) => !one.hidden)')
  browser.run('document.querySelector("#every").click()')
  # a table sorts by numbers, both ways, empty cells last
  heads = 'const heads = [...document.querySelectorAll("#runs thead button")];'
  click = 'heads.find((one) => one.textContent.startsWith("best")).click();'
  column = 'return [...document.querySelectorAll("#runs .scroll tbody")][0].rows.length && '
  column += '[...document.querySelectorAll("#runs tbody")[0].rows].map((row) => Number(row.cells[5].dataset.key))'
  up = browser.run(f'{heads}{click}{column}')
  assert up == sorted(up) and len(set(up)) > 3
  assert browser.run(f'{heads}{click}{column}') == sorted(up, reverse=True)
  # the values at a place of a plot, by the keyboard
  browser.run(
    'const plot = document.querySelector(".plot"); plot.focus();'
    'plot.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true}))'
  )
  assert 'step' in browser.run('return document.querySelector(".readout").textContent')
  # the x axis, a zoom, and the numbers as csv
  labels = 'return [...document.querySelectorAll(".plot")].map((one) => one.textContent).join(" ")'
  browser.run('const a = document.querySelector("#axis"); a.value = "tokens"; a.dispatchEvent(new Event("change"))')
  assert 'tokens' in browser.run(labels) and 'step' not in browser.run(labels)
  browser.run('cards[0].range = [2000, 9000]; redraw()')
  assert browser.run('return cards[0].curves.every(({main}) => main.steps[0] >= 2000)')
  browser.run('document.querySelector("a.scale").addEventListener("click", (event) => event.preventDefault())')
  browser.run('document.querySelector("a.scale").click()')
  assert 'run%2Cstep%2Ctokens' in browser.run('return document.querySelector("a.scale").href')
  browser.run('document.querySelector("button.scale").click()')
  assert browser.run('return document.querySelector("button.scale").textContent') == 'logarithmic'
  assert browser.complaints() == []


def test_a_copy_of_a_run_is_no_other_seed(runs, tmp_path):
  write(tmp_path / 'runs' / 'copy', rate=0.1, seed=1, values=[3.0, 2.0, 2.1])
  page = made(tmp_path, tmp_path / 'runs')
  assert page.table('curve')['optim.rate=0.1']['runs'] == '3'
  assert re.search(r'copy is .*\b0\.1_1', page.text)
  assert 'copy' not in page.table('run')


def test_the_text_of_samples_is_in_the_fields_that_a_run_found(tmp_path):
  text = 'one two three four five six seven eight nine ten eleven twelve thirteen'
  (tmp_path / 'mine.csv').write_text(f'id,title,body,kind\nx,"{text}",other words,a\n')
  block = {'path': str(tmp_path / 'mine.csv'), 'split': 'train', 'fields': ('title', 'body')}
  assert run_samples._document(block) == text
  assert run_samples._document({**block, 'fields': ()}) is None  # several fields, none named
