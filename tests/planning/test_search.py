"""The search for a change that fits, with a fake compiler of known answers."""

from typing import Any

import pytest

from plm_jax.planning import search

SETTINGS = {
  'accumulate': 1,
  'execution': {'remat': 'none', 'attention': 'auto'},
  'sharding': {'rules': 'data', 'mesh': {'data': -1}},
}
TAKEN = ['attention with dropout 0.1 on weights: xla, since of flash it cannot drop out attention weights']


class Compiler:
  """A fake compiler: `temporary` GiB plus the state, less with accumulation and remat; it counts its calls."""

  def __init__(self, *, temporary: float, state: dict[str, float], limit: float, dots: float = 0.5):
    self.temporary, self.states, self.limit, self.calls, self.programs = temporary, state, limit, 0, 1
    self.remat = {'none': 1.0, 'dots': dots, 'full': dots / 2}

  def state(self, change: search.Change) -> float:
    return self.states[search.applied(SETTINGS, change)['sharding']['rules']]

  def size(self, change: search.Change) -> float:
    settings = search.applied(SETTINGS, change)
    chunked = 0.6 if settings['execution']['attention'] == 'chunked' else 1.0
    temporary = self.temporary * self.remat[settings['execution']['remat']] * chunked / settings['accumulate']
    return self.state(change) + temporary

  def needs(self, change: search.Change) -> search.Needs:
    self.calls += self.programs
    return search.Needs(self.size(change), self.size(change) <= self.limit, self.programs)

  def search(self, *, rows: int = 32, devices: int = 16) -> search.Found:
    return search.search(
      SETTINGS,
      limit=self.limit,
      state=self.state,
      needs=self.needs,
      choices=lambda change: search.candidates(SETTINGS, rows=rows, taken=TAKEN),
      first=self.size({}),
      devices=devices,
    )


SMALL = {'data': 1.0, 'fsdp': 0.1, 'fsdp_any': 0.1, 'fsdp_tensor': 0.1}


def test_the_cheapest_change_is_found():
  compiler = Compiler(temporary=25, state=SMALL, limit=16)
  found = compiler.search()
  assert found.change == {'accumulate': 2}  # two percent, and half the memory
  assert compiler.calls == 1
  assert search.flags(found.change) == '--config.accumulate=2'


def test_nothing_cheaper_fits():
  compiler = Compiler(temporary=200, state=SMALL, limit=16)
  change = compiler.search().change
  cheaper = [
    one.change
    for one in search.candidates(SETTINGS, rows=32, taken=TAKEN)
    if one.time
    < next(other.time for other in search.candidates(SETTINGS, rows=32, taken=TAKEN) if other.change == change)
  ]
  assert compiler.size(change) <= 16
  assert cheaper
  assert all(compiler.size(one) > 16 for one in cheaper)


@pytest.mark.parametrize('rows', [1, 3])
def test_few_rows_leave_recomputation(rows):
  compiler = Compiler(temporary=40 * rows, state=SMALL, limit=16)
  change = compiler.search(rows=rows).change
  assert change is not None
  assert change.get('execution.remat') in ('dots', 'full')
  assert change.get('accumulate', 1) in (1, rows)


def test_a_state_that_is_too_large_is_cut_first_without_compiling():
  compiler = Compiler(temporary=1, state={'data': 20, 'fsdp': 18, 'fsdp_any': 3, 'fsdp_tensor': 2}, limit=16)
  found = compiler.search()
  assert found.change == {'sharding.rules': 'fsdp_any'}
  assert compiler.calls == 1


def test_what_fits_nowhere_compiles_nothing():
  compiler = Compiler(temporary=1, state=dict.fromkeys(SMALL, 99.0), limit=16)
  assert compiler.search() == search.Found(None, [])
  assert compiler.calls == 0


def test_at_most_eight_programs_are_compiled():
  compiler = Compiler(temporary=1e9, state=SMALL, limit=16)
  found = compiler.search(rows=2**20)
  assert found.change is None or compiler.size(found.change) <= 16
  assert compiler.calls == len(found.tried) <= search.MOST


def test_programs_are_counted_and_not_changes():
  for programs, tried in ((1, 8), (3, 3)):  # of 3, a training step and two evaluations, the last change is tried whole
    compiler = Compiler(temporary=40, state=SMALL, limit=16)
    compiler.programs = programs
    compiler.size = lambda change: 16.001  # always a little too much
    found = compiler.search(rows=2**20)
    assert found.change is None
    assert len(found.tried) == tried
    assert compiler.calls == tried * programs


def test_a_compiler_that_needs_more_than_expected_is_believed():
  compiler = Compiler(temporary=31, state=SMALL, limit=16, dots=0.98)  # recomputation hardly helps
  found = compiler.search(rows=1)
  assert compiler.size(found.change) <= 16 if found.change else compiler.calls <= search.MOST


def test_tensor_parallelism_cuts_states_first():
  settings = search.applied(SETTINGS, {'sharding.rules': 'fsdp_tensor'})
  first, *others = search.candidates(settings, rows=4, taken=TAKEN)
  assert first.change == {'sharding.rules': 'fsdp_tensor_sequence'}
  assert {'accumulate': 2} in [one.change for one in others]
  assert not any('sharding.rules' in one.change for one in search.candidates(SETTINGS, rows=4, taken=TAKEN))


def test_flags_say_a_mesh():
  change: dict[str, Any] = {'sharding.rules': 'fsdp_tensor', 'sharding.mesh': {'data': -1, 'model': 4}}
  assert search.flags(change) == (
    '--config.sharding.rules=fsdp_tensor --config.sharding.mesh.data=-1 --config.sharding.mesh.model=4'
  )
  assert search.applied(SETTINGS, change)['sharding'] == {'rules': 'fsdp_tensor', 'mesh': {'data': -1, 'model': 4}}
  assert SETTINGS['sharding']['rules'] == 'data'
