"""Sample efficiency: what is finished is not made again, whatever a killed process left behind it."""

import logging

from plm_jax.studies import transfer
from plm_jax.studies.transfer import Cell


def test_a_torn_line_costs_its_own_run_alone(tmp_path, monkeypatch, caplog):
  """A process died as it wrote its second run; the next one makes that run, and a third one makes none."""
  made = []

  class Trainer:
    def __init__(self, settings, *, metric):
      del settings, metric

    def run(self, cell):
      made.append(cell)
      return {'curve': [], 'validation': 0.5, 'test': 0.5, 'train': 0.5}

  monkeypatch.setattr(transfer, 'Trainer', Trainer)
  monkeypatch.setattr(transfer.preflight, 'check', lambda *_, **__: None)
  cells = [Cell('scratch', 4, seed, 1e-3) for seed in range(3)]
  record = tmp_path / 'study' / 'runs.jsonl'

  def run_missing():
    made.clear()
    found = transfer._run_missing({'data': {}}, cells, record=record, metric='accuracy')
    assert set(found) == set(cells)
    return list(made)

  assert run_missing() == cells
  lines = record.read_text().splitlines()
  record.write_text(f'{lines[0]}\n{lines[1][:40]}')
  caplog.set_level(logging.WARNING)
  assert run_missing() == cells[1:]
  assert f'{record}, line 2 cannot be read' in caplog.text
  assert run_missing() == []
  sound = record.read_bytes().splitlines(keepends=True)
  damaged = [sound[0].replace(b'scratch', b'scr\xe1tch'), sound[1], sound[2].replace(b'"validation": 0.5, ', b'')]
  record.write_bytes(b''.join([*damaged, *sound[3:]]))  # the second line is the torn one
  assert run_missing() == [cells[0], cells[1]]
  assert f'{record}, line 3 cannot be read (it has no validation): its run is repeated' in caplog.text
  assert run_missing() == []


def test_a_metric_with_dollars_is_shown_as_it_is(tmp_path):
  row = {'labels_per_class': 4, 'scratch': [0.5], 'pretrained': [0.5]}
  table = {'metric': '$_{$', 'seeds': 1, 'rows': [row]}
  chosen = {(start, 4, 0): {'curve': [(1, 0.5)]} for start in transfer.STARTS}
  transfer.draw(table, chosen, tmp_path / 'x.png')
  assert (tmp_path / 'x.png').read_bytes().startswith(b'\x89PNG')
