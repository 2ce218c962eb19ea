"""The slices named in pre-training configs: hours in their headers, and stored figures, computed again."""

import json
import re
import types

import pytest

from benchmarks import slices
from plm_jax import config
from plm_jax.core.errors import ConfigError
from plm_jax.planning import compile as compiling
from plm_jax.planning import report, stand_in, topology
from plm_jax.text import recipe

HOURS = {'hours': 1, 'hour': 1, 'days': 24, 'day': 24}
CHEAP = (
  'bert/base.py',
  'electra/base.py',
  'gpt/gpt3.py:gpt3-175b',
  'elmo/pretrain.py',
  'word2vec/skipgram.py',
)  # the others are long tests


def estimate(header: str, row: slices.Row) -> tuple[float, str]:
  """Parse the hours of a header, and what gives them.

  "Slice: v5e:4x4, 27 hours by cycles" or, of several sizes, "`large` v5e:8x8, 2 days at 40 % of peak".
  """
  size = row.config.partition(':')[2]
  text = ' '.join(header.split())
  place = rf'{re.escape(row.topology)}, ([\d.,e-]+) (hours?|days?)( by \w+| at 40 % of peak|)'
  found = re.search(f'`{size}` {place}', text) or re.search(f'(?:Slices?|unknown|peak): {place}', text)
  return float(found[1].replace(',', '')) * HOURS[found[2]], found[3].strip()


def test_every_row_has_figures_and_the_page_is_made_of_them():
  known = slices.read()
  assert list(known['rows']) == [row.name for row in slices.ROWS]
  assert slices.PAGE.read_text() == slices.page(known)


# whose slices appear only in their headers: estimated, not compiled
COUNTED = tuple(
  slices.Row(config, 'v5e:4x4')
  for config in (
    'bert/ltr.py',
    'roberta/formats.py',
    'roberta/formats.py:sentence_pair',
    'cnn/pretrain.py',
    'contrastive/infoword.py',
    *('bart/comparison.py' + word for word in ('', ':masked_seq2seq', ':masked_lm', ':permuted_lm', ':lm')),
    *('t5/architectures.py' + word for word in ('', ':six', ':prefix', ':enc_dec,lm', ':decoder,lm', ':prefix,lm')),
  )
)


@pytest.mark.parametrize(
  'row', [pytest.param(row, marks=pytest.mark.turns if ':' in row.config else (), id=row.name) for row in COUNTED]
)
def test_the_head_of_a_config_without_a_row_names_its_slice_and_the_hours(row):
  settings = config.resolve(config.load(f'experiments/{row.config}'))
  header = recipe.header_of(f'experiments/{row.config}')
  place = topology.parse(row.topology)
  made = compiling.make(settings, stand_in.vocab_of(settings, header=header), place, None)
  assert compiling.state(made)['gib'] < place.chip.memory
  hours = compiling.hours(made, settings, place)['hours']['40 %']
  assert estimate(header, row) == (pytest.approx(hours, rel=0.1), '')


@pytest.mark.parametrize('row', slices.ROWS, ids=lambda row: row.name)
def test_the_head_of_a_config_names_its_slice_and_the_largest_hours(row):
  stored = slices.read()['rows'][row.name]
  header = recipe.header_of(f'experiments/{row.config}')
  most = max(stored['hours'], *stored.get('hours_by', {}).values(), 0)
  hours, by = estimate(header, row)
  assert hours == pytest.approx(most, rel=0.1)
  assert by == slices.largest(stored)[1]
  assert ('cycles' in stored) or re.search('[Cc]ycles unknown', ' '.join(header.split()))


def test_heads_are_written_from_the_figures(monkeypatch, tmp_path):
  (tmp_path / 'experiments' / 'gpt').mkdir(parents=True)
  file = tmp_path / 'experiments' / 'gpt' / 'gpt2.py'
  file.write_text('"""GPT.\n\nHardware: none. Slice: v5e:4x4.\nExpect: nothing.\n"""\n')
  rows = [row for row in slices.ROWS if row.config.startswith('gpt/gpt2.py')]
  monkeypatch.setattr(slices, 'ROOT', tmp_path)
  monkeypatch.setattr(slices, 'ROWS', tuple(rows))
  small = {'hours': 1.0, 'hours_by': {'cycles': 30.04, 'links': 2.0}, 'cycles': 1}
  slices.heads({rows[0].name: small, rows[1].name: {'hours': 9.96, 'hours_by': {'links': 60.0}}})
  written = file.read_text()
  assert '`gpt2` v5e:4x4, 30 hours by cycles; `gpt2-xl` v5e:8x8, 2.5 days by links, cycles unknown. A' in ' '.join(
    written.split()
  )
  slices.heads({rows[0].name: small, rows[1].name: {'hours': 9.96, 'hours_by': {'links': 60.0}}})
  assert file.read_text() == written


FILES = {row.config.partition(':')[0]: row.topology for row in slices.ROWS}  # the last slice is that of the largest
SHARED_KEYS = ['heads of 1 is not sharded over model=4', 'heads of 1 is not sharded over model=16']


@pytest.mark.parametrize('file', FILES)
def test_tensor_parallelism_cuts_every_axis(file):
  """Check every size for axes computed on each device of 'model'.

  The single key head of PaLM is intended.
  """
  header = recipe.header_of(f'experiments/{file}')
  with pytest.raises(ConfigError, match='takes no argument') as caught:
    config.load(f'experiments/{file}:no_such_word')
  words = str(caught.value).rpartition('It takes: ')[2].removesuffix('.').split(', ')
  for word in words:
    settings = config.resolve(config.load(f'experiments/{file}:{word}'))
    if settings['sharding']['mesh'].get('model', 1) == 1:
      continue
    vocab = stand_in.vocab_of(settings, header=header)
    made = compiling.make(settings, vocab, topology.parse(FILES[file]), None)
    again = [line.partition(', and computed')[0] for line in compiling.whole_axes(made) if 'and computed' in line]
    assert not again or (settings['model']['name'] == 'palm' and set(again) <= set(SHARED_KEYS)), word


@pytest.mark.parametrize(
  'row', [pytest.param(row, marks=() if row.config in CHEAP else pytest.mark.slow, id=row.name) for row in slices.ROWS]
)
def test_the_stored_figures_are_counted_again(row):
  settings = config.resolve(config.load(f'experiments/{row.config}'))
  header = recipe.header_of(f'experiments/{row.config}')
  vocab = stand_in.vocab_of(settings, header=header)
  counted = slices.counted(report.plan(settings, vocab, topology.parse(row.topology), state_only=True, header=header))
  stored = slices.read()['rows'][row.name]
  assert {key: stored[key] for key in counted} == counted


CHEAPEST = 'word2vec/skipgram.py'  # to compile
COMPILED = [row for row in slices.ROWS if slices.whole(slices.read()['rows'].get(row.name, {}))]


@pytest.mark.plan
@pytest.mark.parametrize(
  'row', [pytest.param(row, marks=() if row.config == CHEAPEST else pytest.mark.slow, id=row.name) for row in COMPILED]
)
def test_a_stored_peak_is_compiled_again(row):
  if not topology.installed():
    pytest.skip(f'libtpu is not installed ({topology.PIP})')
  assert slices.read()['rows'][row.name]['fits']
  assert slices.check([row]) == (0, 0)


def said(**changes):
  """Build `plan`'s output for a row, with figures of bert/large.py and changes."""
  found = {'peak': 10.0, 'evaluation': 0.06, 'all-reduce': 1.82, 'all-gather': 0.06} | changes
  sent = {kind: {'gib': gib} for kind, gib in found.items() if kind.startswith('all')}
  train = {'fits': True, 'peak_gib': found['peak'], **({'collectives': sent} if sent else {})}
  train |= {'cycles': found.get('cycles', 1e9), 'without_cycles': {}}
  return {'train': train, 'evaluate': {'validation': {'fits': True, 'peak_gib': found['evaluation']}}}


STORED = slices.compiled(said())


@pytest.mark.parametrize(
  ('changes', 'differing'),
  [
    ({}, []),
    ({'peak': 10.29, 'evaluation': 0.11, 'all-reduce': 1.87, 'all-gather': 0.01}, []),
    ({'peak': 10.31}, ['peak 10.31 GiB, stored 10']),
    ({'peak': 9.69}, ['peak 9.69 GiB, stored 10']),
    ({'evaluation': 0.12}, ['evaluation 0.12 GiB, stored 0.06']),
    ({'all-reduce': 1.88}, ['all-reduce 1.88 GiB, stored 1.82']),
    ({'all-gather': 0.12}, ['all-gather 0.12 GiB, stored 0.06']),
    ({'all-to-all': 0.06}, ['all-to-all 0.06 GiB, stored 0']),
    ({'cycles': 1.02e9}, []),
    ({'cycles': 1.04e9}, ['gigacycles 1.04, stored 1']),
  ],
)
def test_a_check_compares_memory_and_what_is_sent(changes, differing):
  assert slices.differences(STORED, slices.compiled(said(**changes))) == differing


def test_of_programs_that_cannot_be_read_memory_is_compared():
  stored = {key: figure for key, figure in STORED.items() if key != 'sent_gib'}
  assert slices.differences(stored, slices.compiled(said(peak=11.0))) == ['peak 11 GiB, stored 10']
  assert slices.differences(stored, STORED) == []


@pytest.fixture
def known(monkeypatch, tmp_path):
  """Store figures for three rows.

  Each compilation is counted and takes 40 minutes.
  """
  rows, clock, calls = list(slices.ROWS[:3]), [0.0], []
  file = tmp_path / 'slices.json'
  file.write_text(json.dumps({'libtpu': '', 'jax': '', 'rows': {row.name: STORED for row in rows}}))

  def planned(row, *, count):
    assert not count
    calls.append(row)
    clock[0] += 40 * 60
    return said(peak=11.0) if row == rows[1] else said()

  monkeypatch.setattr(slices, 'FILE', file)
  monkeypatch.setattr(slices, 'planned', planned)
  monkeypatch.setattr(slices.time, 'monotonic', lambda: clock[0])
  monkeypatch.setattr(slices.importlib.metadata, 'version', lambda name: '1')
  return types.SimpleNamespace(rows=rows, calls=calls, file=file)


def test_a_check_goes_on_where_its_minutes_ended(known, tmp_path, capsys):
  out = tmp_path / 'runs' / 'checked.json'
  assert slices.check(known.rows, minutes=60, out=out) == (1, 1)
  assert known.calls == known.rows[:2]
  assert capsys.readouterr().out.splitlines()[1] == f'{known.rows[1].name}: peak 11 GiB, stored 10'
  assert slices.check(known.rows, minutes=60, out=out) == (1, 0)
  assert known.calls == known.rows
  assert slices.check(known.rows, minutes=60, out=out) == (1, 0)
  assert known.calls == known.rows
  assert slices.check(known.rows) == (1, 0)  # remembers nothing
  assert len(known.calls) == 6


def test_a_check_begins_again_where_something_else_is_checked(known, tmp_path, monkeypatch):
  out = tmp_path / 'checked.json'
  slices.check(known.rows, out=out)
  figures = json.loads(known.file.read_text())
  figures['rows'][known.rows[1].name]['peak_gib'] = 11.0
  known.file.write_text(json.dumps(figures))
  assert slices.check(known.rows, out=out) == (0, 0)
  assert known.calls == [*known.rows, known.rows[1]]
  monkeypatch.setattr(slices.importlib.metadata, 'version', lambda name: '2')
  assert slices.check(known.rows, out=out) == (0, 0)
  assert len(known.calls) == 7


def test_a_row_that_was_not_compiled_is_tried_again(known, tmp_path, monkeypatch):
  out = tmp_path / 'checked.json'
  monkeypatch.setattr(slices, 'planned', lambda row, *, count: 'not within 30 minutes')
  assert slices.check(known.rows[:1], out=out) == (1, 0)
  monkeypatch.setattr(slices, 'planned', lambda row, *, count: said())
  assert slices.check(known.rows[:1], out=out) == (0, 0)


def test_rows_without_cycles_are_of_earlier_programs_and_are_not_checked(known):
  earlier = {key: figure for key, figure in STORED.items() if 'cycles' not in key}
  known.file.write_text(json.dumps({'rows': {row.name: earlier for row in known.rows}}))
  assert slices.check(known.rows) == (0, 0)
  assert known.calls == []


def test_what_is_sent_of_each_kind_is_compared():
  stored = {'peak_gib': 1.0, 'evaluation_gib': 1.0, 'sent_gib': {'all-reduce': 1.0, 'all-gather': 1.0}}
  said = lambda sums, gathers: {**stored, 'sent_gib': {'all-reduce': sums, 'all-gather': gathers}}  # noqa: E731
  assert slices.differences(stored, said(1.02, 1.0)) == []
  assert slices.differences(stored, said(0.5, 1.0)) == ['all-reduce 0.5 GiB, stored 1']
  assert slices.differences(stored, said(2.0, 2.0)) == ['all-gather 2 GiB, stored 1', 'all-reduce 2 GiB, stored 1']
