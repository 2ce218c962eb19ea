"""What is written and read again: a flipped bit is found, or changes nothing."""

import json
import pathlib
import random
from collections.abc import Callable
from typing import Any

import pytest

from plm_jax.core.errors import ConfigError, RunError
from plm_jax.io import checksums, files
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import predicted
from plm_jax.studies import probe, transfer
from plm_jax.studies.report import contents, run_samples
from plm_jax.studies.tables import cells
from plm_jax.training.guards import spikes

ROWS = [{'row_id': number, 'label': number % 3, 'probability': [0.25, 0.75]} for number in range(8)]
RECORDS = [{'label': number % 2} for number in range(8)]
PROBE = {'name': 'a', 'metric': 'accuracy', 'best': 'max', 'rows': [{'layer': 0, 'scores': [0.25, 0.5], 'mean': 0.375}]}
SWEEP = {
  'metric': 'loss',
  'trials': {'FAIL': 3},
  'rows': [{'point': {'rate': 0.125}, 'numbers': [1, 2], 'value': 0.25}],
}
CELL = transfer.Cell('scratch', 8, 0, 0.001)
LINE = {
  'curve': [[1, 0.5], [2, 0.75], [3, 0.875]],
  'validation': 0.875,
  'test': 0.625,
  'train': 0.9375,
  'made_from': {},
}


def spike(number: int) -> spikes.Spike:
  return spikes.Spike(**dict.fromkeys(spikes.Spike._fields, number))


def write_evaluation(folder: pathlib.Path) -> None:
  for step in (8, 9):
    files.append_line(folder / 'evaluations.jsonl', json.dumps({'step': step, 'test/accuracy': step / 16}))
  files.write_json(folder / 'evaluated_by.json', {'code': 'abc', 'versions': {'jax': '0.10'}})
  checksums.seal(folder, ['evaluated_by.json', 'evaluations.jsonl'])


def write_predictions(folder: pathlib.Path) -> None:
  checksums.write(folder, {'config.json': '{}'})  # a run folder
  predicted.write(folder / 'predictions.jsonl', ROWS, RECORDS, form=None)


def write_lines(folder: pathlib.Path) -> None:
  row = json.dumps(checksums.sealed({'cell': CELL, **LINE, 'settings': 'abc'}))
  (folder / 'runs.jsonl').write_text(f'{row}\n')


def rows_of(folder: pathlib.Path) -> Any:
  found = predicted.read(folder / 'predictions.jsonl')
  return [{key: row[key] for key in ('row_id', 'label', 'probability', 'record')} for row in found]


# file -> writes it, reads it; what is read without it or of a damaged part
Kind = tuple[Callable[[pathlib.Path], object], Callable[[pathlib.Path], Any], Any]
KINDS: dict[str, Kind] = {
  'evaluations.jsonl': (write_evaluation, lambda folder: cells._evaluated(RunFolder(folder)), None),
  'evaluated_by.json': (write_evaluation, lambda folder: cells._evaluated(RunFolder(folder)), None),
  'predictions.jsonl': (write_predictions, rows_of, None),
  'table.json': (lambda folder: checksums.write(folder, {'table.json': json.dumps(PROBE)}), probe._read, None),
  'runs.jsonl': (write_lines, lambda folder: transfer._lines(folder / 'runs.jsonl', 'abc', steps=3), {}),
  'samples.json': (
    lambda folder: checksums.write_sealed(folder / 'samples.json', {'of': run_samples._identity(folder), 'a': 'abc'}),
    run_samples.stored,
    {},
  ),
}  # fmt: skip


@pytest.mark.parametrize('name', KINDS)
def test_flipped_bits_are_found_or_harmless(name: str, tmp_path: pathlib.Path) -> None:
  write, read, without = KINDS[name]
  write(tmp_path)
  file, draw, found = tmp_path / name, random.Random(0), 0
  before, expected = file.read_bytes(), read(tmp_path)
  for _ in range(300):
    content = bytearray(before)
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    file.write_bytes(content)
    try:
      now = read(tmp_path)
      assert now in (expected, without) or same_but_for_the_sum(now, expected)
      found += now != expected
    except (ConfigError, RunError) as error:
      assert str(tmp_path) in str(error)
      found += 1
  assert found > 100


def same_but_for_the_sum(now: Any, expected: Any) -> bool:
  """Return whether the only difference is the name of the checksum, which then is no checksum."""
  if isinstance(now, dict) and isinstance(expected, dict):
    return all(same_but_for_the_sum(now.get(key), value) for key, value in expected.items())
  if isinstance(now, list) and isinstance(expected, list):
    return len(now) == len(expected) and all(map(same_but_for_the_sum, now, expected))
  return bool(now == expected)


def test_the_table_of_a_sweep_in_a_report(tmp_path: pathlib.Path) -> None:
  (tmp_path / 'trials').mkdir()
  checksums.write_sealed(tmp_path / 'table.json', SWEEP)
  before, draw = (tmp_path / 'table.json').read_bytes(), random.Random(0)
  assert contents._sweep(tmp_path, []) == SWEEP
  for _ in range(150):
    content = bytearray(before)
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    (tmp_path / 'table.json').write_bytes(content)
    remarks: list[str] = []
    assert same_but_for_the_sum(contents._sweep(tmp_path, remarks), SWEEP) or remarks


def test_spikes_of_a_run(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
  """A damaged line is named and left out: before, it ended the run at its last step with a traceback."""
  monkeypatch.setattr(spikes.rewind, 'rewind', lambda *_, **__: None)
  folder = RunFolder(tmp_path)
  for number in (3, 5):
    spikes.go_back(folder, spike(number))
  expected = [spike(number)._asdict() for number in (3, 5)]
  assert spikes.read(folder) == expected
  before, draw = folder.spikes.read_bytes(), random.Random(0)
  for _ in range(150):
    content = bytearray(before)
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    folder.spikes.write_bytes(content)
    caplog.clear()
    found = spikes.read(folder)
    assert same_but_for_the_sum(found, expected) or 'spikes.jsonl, line' in caplog.text
    assert all(any(same_but_for_the_sum(row, one) for one in expected) for row in found)


@pytest.mark.parametrize('kind', ['samples.json', 'runs.jsonl'])
def test_files_of_earlier_versions_have_no_checksum_and_are_read(kind: str, tmp_path: pathlib.Path) -> None:
  write, read, _ = KINDS[kind]
  write(tmp_path)
  expected, content = read(tmp_path), json.loads((tmp_path / kind).read_text())
  (tmp_path / kind).write_text(json.dumps({key: value for key, value in content.items() if key != 'sha256'}) + '\n')
  assert read(tmp_path) == expected
