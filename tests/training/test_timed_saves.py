"""Checkpoints by time (`save_minutes`): no bit of a run changes, and process 0 decides for all."""

import json
import math
import pathlib
import re
import time
import types
from typing import Any

import pytest

from benchmarks import slices
from plm_jax import config
from plm_jax.checkpoint import checkpoints, saved_steps
from plm_jax.planning import compile as compiling
from plm_jax.text import recipe
from plm_jax.training import loop, stopping
from plm_jax.training.cost import meter
from plm_jax.training.hosts import join
from tests import runs

pytestmark = [pytest.mark.turns, pytest.mark.usefixtures('log')]
OFTEN: dict[str, Any] = {'save_minutes': 1e-9, 'save_every': 6, 'eval_every': 12}


class Lost(Exception):
  """A chip is lost."""


def test_a_run_that_is_lost_resumes_from_a_step_saved_by_time(
  data: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  whole = loop.train(runs.settings('mlm', data, **{**OFTEN, 'save_minutes': None}), tmp_path / 'whole')
  assert whole.result['finished']
  monkeypatch.setattr(stopping, 'SHARE', 1e9)
  saved, save = [], checkpoints.Checkpoints.save

  def watched(self: Any, step: int, *words: Any, timed: bool, **more: Any) -> None:
    save(self, step, *words, timed=timed, **more)
    self.wait()
    saved.append((step, timed, saved_steps.numbered(self.folder)))
    if step == 10:
      raise Lost

  monkeypatch.setattr(checkpoints.Checkpoints, 'save', watched)
  with pytest.raises(Lost):
    loop.train(runs.settings('mlm', data, **OFTEN), tmp_path / 'run')
  # those by time replace each other and none that is saved by number
  assert saved == [(2, True, [2]), (4, True, [4]), (6, False, [6]), (8, True, [6, 8]), (10, True, [6, 10])]
  monkeypatch.setattr(checkpoints.Checkpoints, 'save', save)
  changed = runs.settings('mlm', data, **{**OFTEN, 'save_minutes': 30})
  with (tmp_path / 'run' / 'metrics.jsonl').open('a') as lines:  # of a step that was made, and is lost
    lines.write(json.dumps({'step': 11, 'loss': 1.0}) + '\n')
  spent = loop.train(changed, tmp_path / 'run').result['goodput']
  shares = {name: value for name, value in spent.items() if name not in ('share', 'total')}
  assert sum(shares.values()) == pytest.approx(spent['total'], rel=0.02), spent
  assert min(shares[name] for name in ('steps', 'setup', 'compile', 'wait', 'evaluate', 'save', 'lost')) > 0
  assert spent['lost'] == pytest.approx(spent['steps'] / 12, abs=0.002)
  assert 'going on from step 10' in (tmp_path / 'run' / 'log.txt').read_text()
  assert runs.curve(tmp_path / 'run') == runs.curve(tmp_path / 'whole')
  assert not runs.differing(runs.saved_state(tmp_path / 'run'), runs.saved_state(tmp_path / 'whole'))


def test_the_time_that_saving_takes_bounds_how_often(monkeypatch: pytest.MonkeyPatch) -> None:
  clock = [0.0]
  monkeypatch.setattr(stopping, 'time', types.SimpleNamespace(monotonic=lambda: clock[0]))
  timer = stopping.SaveTimer(15)
  for seconds, at, due in [(0, 899, False), (0, 900, True), (45, 900, True), (46, 900, False), (46, 920, True)]:
    clock[0] = at
    assert timer.agreed(seconds) is due, (seconds, at)
  timer.restart()
  assert not timer.agreed(0)
  assert not stopping.SaveTimer(None).agreed(0)


def test_a_save_that_is_not_done_counts_its_time_so_far(tmp_path: pathlib.Path) -> None:
  with checkpoints.Checkpoints(tmp_path, keep=1) as saved:
    assert saved.seconds == 0
    saved._began, saved._took = time.monotonic() - 100, None
    assert saved.seconds >= 100


def test_process_0_decides(monkeypatch: pytest.MonkeyPatch) -> None:
  """Another process takes its word, whatever its own clock shows."""
  told: dict[str, str] = {}
  client = types.SimpleNamespace(
    key_value_set=told.__setitem__, blocking_key_value_get=lambda key, wait: told[key.replace('again', 'first')]
  )
  state = types.SimpleNamespace(client=client, process_id=0)
  monkeypatch.setattr(join.distributed, 'global_state', state)
  assert join.from_first('first', 'True') == 'True'
  state.process_id = 1
  assert join.from_first('again', 'False') == 'True'


def test_two_processes_save_at_the_same_step(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  settings = runs.settings('mlm', data, save_minutes=1e-9, save_every=100, eval_every=12, steps=4)
  file = runs.write_config(tmp_path / 'config.json', settings)
  runs.two_processes(f'--config={file}', f'--workdir={tmp_path / "run"}')
  assert 'step 2 is saved by time' in (tmp_path / 'run' / 'log.txt').read_text()
  assert json.loads((tmp_path / 'run' / 'result.json').read_text())['finished']


def test_a_plan_counts_what_a_lost_chip_costs(data: pathlib.Path) -> None:
  settings = runs.settings('mlm', data, save_every=10_000, log_every=100, save_minutes=15)
  assert compiling.lost_minutes(settings, 0.5) == pytest.approx(15)  # 18 times 100 steps
  assert compiling.lost_minutes(settings, 18) == 30  # a step of metrics is every 30 minutes
  assert compiling.lost_minutes(settings, 0.06) == pytest.approx(10)  # `save_every` comes first
  assert compiling.lost_minutes({**settings, 'save_minutes': None}, 18) == 3000
  assert config.resolve({**settings, 'save_minutes': 0.5})['save_minutes'] == 0.5


def test_heads_of_configs_name_what_a_lost_chip_costs() -> None:
  stored = slices.read()['rows']
  for row in slices.ROWS:
    settings = config.resolve(config.load(f'experiments/{row.config}'))
    if stored[row.name]['hours'] and settings['steps']:
      hours = slices.largest(stored[row.name])[0]
      lost = math.ceil(compiling.lost_minutes(settings, hours * 3600 / settings['steps']) - 1e-6)
      said = ' '.join(recipe.header_of(f'experiments/{row.config}').split())
      found = re.search('A lost chip costs at most (.*?) minute', said)
      assert found and str(lost) in re.findall(r'\b\d+\b', found[1]), (row.name, lost, found)


def test_goodput_is_the_share_of_steps_that_count(monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(meter.time, 'time', lambda: 2000.0)
  spent = {
    'began': 1000.0,
    'seconds': 600.0,
    'setup': 100.0,
    'compile': 40.0,
    'wait': 10.0,
    'evaluate': 30.0,
    'save': 20.0,
  }
  assert meter.goodput({**spent, 'lost_steps': 50}, step=500) == {
    'share': 0.5, 'total': 1000.0, 'steps': 500.0, 'setup': 100.0, 'compile': 40.0, 'wait': 10.0, 'evaluate': 30.0,
    'save': 20.0, 'lost': 50.0, 'away': 250.0,
  }  # fmt: skip
