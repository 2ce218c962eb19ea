"""Differences of a table over the number of parameters."""

import pytest

from plm_jax.commands import tables
from plm_jax.core.errors import ConfigError
from plm_jax.studies.tables import cells

FILE = 'experiments/tables/bert_5.py'
KEPT = 'experiments/results/bert/table_5/cells.json'
PAIR = ('No NSP', 'LTR & No NSP')


@pytest.fixture
def swapped(tmp_path):
  """A folder in which scale 5m has the cells of 1m, with those of two rows exchanged."""
  results = cells.read(cells.files.path(KEPT))
  first, second = (results['cells'][row] for row in PAIR)
  results['cells'] |= {PAIR[0]: second, PAIR[1]: first}
  (tmp_path / 'swapped').mkdir()
  cells.write(tmp_path / 'swapped/cells.json', results | {'scale': '5m'})
  return tmp_path / 'swapped'


def test_each_difference_stands_beside_that_of_another_size(swapped, capsys):
  assert tables.main([FILE, '--rungs', str(swapped), KEPT.removesuffix('/cells.json'), f'--out={swapped}']) == 0
  lines = [line.strip('| ').split(' | ') for line in capsys.readouterr().out.splitlines() if line.startswith('|')]
  assert lines[0] == ['column', 'row', 'less', 'published', '1m', '5m']  # by size, in whatever order they were given
  table = cells.files.read_text(cells.files.path(KEPT).with_name('table.md'))
  compared = {tuple(line[:3]): line[3:] for line in lines[2:]}
  for column in ('SST-2', 'TREC', 'EWT probe', 'BLiMP'):
    _, small, large = compared[column, *PAIR]
    claim = next(line for line in table.splitlines() if line.startswith(f'| {column} | {" | ".join(PAIR)} | '))
    value, interval, _, beyond = claim.strip('| ').split(' | ')[4:8]
    mark = '**' if beyond == 'yes' else ''
    assert small == f'{mark}{value}{mark} ({interval})'
    opposite = float(large.split(' ')[0].strip('*'))
    assert opposite == pytest.approx(-float(value), abs=1e-3) and large.startswith('**') == bool(mark)
  assert len(compared) == len(lines) - 2 == sum(' to ' in line for line in table.splitlines() if line.startswith('|'))
  assert (swapped / 'rungs.png').read_bytes().startswith(b'\x89PNG')


def test_what_is_no_rung_is_named(tmp_path):
  with pytest.raises(ConfigError, match=r"table_6/cells.json: unknown scale 'small'. Choices: 1m, 5m, 30m"):
    tables.main([FILE, '--rungs', 'experiments/results/bert/table_6'])
  with pytest.raises(ConfigError, match=r'there is no .*/cells.json: name folders'):
    tables.main([FILE, '--rungs', str(tmp_path)])
  with pytest.raises(ConfigError, match='no folder has a difference of this table'):
    tables.main(['experiments/tables/gpt_5.py', '--rungs', KEPT.removesuffix('/cells.json'), f'--out={tmp_path}'])
