"""Sample efficiency: a finished run is made again only where what it was made from changed, or its line is damaged."""

import json
import logging

import numpy as np
import pytest

from plm_jax import checkpoint
from plm_jax.commands import sample_efficiency
from plm_jax.core.errors import ConfigError
from plm_jax.studies import transfer
from plm_jax.studies.transfer import Cell
from plm_jax.text import byte_bpe
from tests import runs

CURVE = [(1, 0.25), (2, 0.5), (3, 0.5)]  # of three steps
CELLS = [Cell(start, 4, seed, 1e-3) for start in transfer.STARTS for seed in range(2)]


@pytest.fixture
def trained(monkeypatch):
  """The cells that are made, by a trainer that trains nothing."""
  made = []

  class Trainer:
    def __init__(self, settings, *, metric):
      del settings, metric

    def run(self, cell):
      made.append(cell)
      return {'curve': CURVE, 'validation': 0.5, 'test': 0.5, 'train': 0.5}

  monkeypatch.setattr(transfer, 'Trainer', Trainer)
  monkeypatch.setattr(transfer.preflight, 'check', lambda *_, **__: None)
  return made


@pytest.fixture
def nothing_changes(monkeypatch):
  monkeypatch.setattr(transfer.Origins, 'of', lambda self, cell: {'data': 'the same'})


def run_missing(settings, cells, record, made):
  made.clear()
  found = transfer._run_missing(settings, cells, record=record, metric='accuracy')
  assert set(found) == set(cells)
  return list(made)


BARE = {'data': {}, 'steps': 3, 'init_from': []}


def test_a_torn_line_costs_its_own_run_alone(tmp_path, trained, nothing_changes, caplog):
  """A process died as it wrote its second run; the next one makes that run, and a third one makes none."""
  cells = [Cell('scratch', 4, seed, 1e-3) for seed in range(3)]
  record = tmp_path / 'study' / 'runs.jsonl'
  assert run_missing(BARE, cells, record, trained) == cells
  lines = record.read_text().splitlines()
  record.write_text(f'{lines[0]}\n{lines[1][:40]}')
  caplog.set_level(logging.WARNING)
  assert run_missing(BARE, cells, record, trained) == cells[1:]
  assert f'{record}, line 2' in caplog.text
  assert run_missing(BARE, cells, record, trained) == []
  sound = record.read_bytes().splitlines(keepends=True)
  damaged = [sound[0].replace(b'scratch', b'scr\xe1tch'), sound[1], sound[2].replace(b'"validation": 0.5, ', b'')]
  record.write_bytes(b''.join([*damaged, *sound[3:]]))  # the second line is the torn one
  assert run_missing(BARE, cells, record, trained) == [cells[0], cells[1]]
  assert f'{record}, line 3' in caplog.text
  assert run_missing(BARE, cells, record, trained) == []


@pytest.mark.parametrize(
  'change',
  [
    *({'curve': curve} for curve in ([], [1], [[1, 0.5]], [[1, 0.5], [2, 0.5], [3]], [[1, 0.5], [2, 'x'], [3, 0.5]])),
    *({'curve': curve} for curve in (None, 'curve', [[1, 0.5], [2, 0.5], [4, 0.5]], [[1, True], [2, 0.5], [3, 0.5]])),
    {'test': True},
    {'cell': ['scratch', [4], 0, 1e-3]},
  ],
)
def test_a_line_that_is_no_run_is_repeated(tmp_path, trained, nothing_changes, caplog, change):
  cells, record = CELLS[:2], tmp_path / 'study' / 'runs.jsonl'
  assert run_missing(BARE, cells, record, trained) == cells
  first, second = record.read_text().splitlines()
  record.write_text(json.dumps({**json.loads(first), **change}) + f'\n{second}\n')
  assert run_missing(BARE, cells, record, trained) == cells[:1]
  assert f'{record}, line 1' in caplog.text


def test_a_run_is_repeated_where_what_it_was_made_from_changed(tmp_path, trained, caplog):
  """The log names what changed; what is put back is known again."""
  data = runs.write_data(tmp_path)
  source = tmp_path / 'pretrained'
  checkpoint.save_params(source, {'trunk': {'a': np.zeros(3, np.float32)}})
  settings = runs.settings('classify', tmp_path, steps=3, init_from=[{'source': str(source)}])
  block = settings['eval']['validation']
  settings['eval'] = {**settings['eval'], 'test': {**block, 'data': {**block['data'], 'split': 'test'}}}
  record = tmp_path / 'study' / 'runs.jsonl'
  caplog.set_level(logging.WARNING)

  def again():
    caplog.clear()
    return run_missing(settings, CELLS, record, trained)

  assert again() == CELLS and not caplog.text
  assert again() == [] and not caplog.text

  checkpoint.save_params(source, {'trunk': {'a': np.ones(3, np.float32)}})
  assert again() == CELLS[2:]  # those from scratch do not begin with it
  assert f'{record}: 2 ' in caplog.text and f'init_from.0 ({source}) changed' in caplog.text
  assert again() == [] and not caplog.text
  checkpoint.save_params(source, {'trunk': {'a': np.zeros(3, np.float32)}})
  assert again() == []

  for split, said in {'train': 'data', 'test': 'eval.test.data'}.items():
    file = data / 'labelled' / f'{split}.jsonl'
    before = file.read_text()
    rows = list(map(json.loads, before.splitlines()))  # a label of a text that stays; classes keep their number of rows
    rows[0]['label'], rows[1]['label'] = rows[1]['label'], rows[0]['label']
    file.write_text('\n'.join(map(json.dumps, rows)) + '\n')
    assert again() == CELLS and f': {said} changed' in caplog.text
    file.write_text(before)
    assert again() == []

  byte_bpe.train(['a story'] * 3, size=300).save(tmp_path / 'other')
  settings['vocab'] = {**settings['vocab'], 'path': str(tmp_path / 'vocab_')}
  (tmp_path / 'vocab').rename(tmp_path / 'vocab_')
  assert again() == CELLS  # other settings
  (tmp_path / 'vocab_').rename(tmp_path / 'vocab')
  (tmp_path / 'other').rename(tmp_path / 'vocab_')
  assert again() == CELLS
  assert 'vocab, eval.validation.data, eval.test.data, data changed' in caplog.text

  lines = [json.loads(line) for line in record.read_text().splitlines()]
  record.write_text(
    ''.join(json.dumps({k: v for k, v in line.items() if k not in ('made_from', 'sha256')}) + '\n' for line in lines)
  )
  assert again() == CELLS
  assert f'{record}: 4 ' in caplog.text and 'earlier version' in caplog.text

  for file in source.iterdir():
    file.unlink()
  source.rmdir()
  with pytest.raises(ConfigError, match=f'init_from: .*{source}'):
    again()


@pytest.mark.parametrize(('flag', 'said'), [('--sizes=8,4,8', '8'), ('--rates=1e-3,0.001', '0.001')])
def test_a_size_or_a_rate_that_stands_twice_is_refused(tmp_path, flag, said):
  runs.write_data(tmp_path)
  settings = runs.settings('classify', tmp_path, steps=3, init_from=[{'source': str(tmp_path)}])
  settings['eval'] = {**settings['eval'], 'test': settings['eval']['validation']}
  file = runs.write_config(tmp_path / 'config.json', settings)
  with pytest.raises(ConfigError, match=rf'{flag[:7]}.*\b{said}\b.*twice'):
    sample_efficiency.main([f'--config={file}', f'--workdir={tmp_path / "study"}', flag])
  assert not (tmp_path / 'study').exists()


def test_a_metric_with_dollars_is_shown_as_it_is(tmp_path):
  row = {'labels_per_class': 4, 'scratch': [0.5], 'pretrained': [0.5]}
  table = {'metric': '$_{$', 'seeds': 1, 'rows': [row]}
  chosen = {(start, 4, 0): {'curve': [(1, 0.5)]} for start in transfer.STARTS}
  transfer.draw(table, chosen, tmp_path / 'x.png')
  assert (tmp_path / 'x.png').read_bytes().startswith(b'\x89PNG')
