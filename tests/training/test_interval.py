"""Lines of metrics are means over their interval, even if the run was stopped in between."""

import json
import math
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from plm_jax.checkpoint import saved_steps
from plm_jax.runs import interval
from plm_jax.training import loop
from tests import runs

MESH = Mesh(np.array(jax.devices()[:2]), ('data',))


pytestmark = pytest.mark.usefixtures('log')


def metrics_of(step: int, draw: np.random.Generator) -> dict[str, tuple[float, float]]:
  skipped = step in (2, 9)
  bad = np.nan if skipped else 1.0
  return {
    'loss': (float(np.float32(draw.uniform(1, 50))) * bad, float(draw.integers(1, 20))),
    'rare': (3.0, 1.0) if step % 3 == 0 else (np.nan, 0.0),  # an objective that only some steps draw
    'gradient_norm': (float(np.float32(draw.uniform(0, 5))) * bad, 1.0),
    'gradient_norm/head': (1.5 * bad, 1.0),
    'learning_rate': (0.1 * step, 1.0),
    'parameter_norm/head': (float(step), 1.0),
    'skipped': (float(step >= 2) + float(step >= 9), 1.0),
    'skipped_in_a_row': (float(skipped), 1.0),
  }


@pytest.mark.parametrize('resumed', [False, True])
def test_means_are_those_of_numpy(resumed: bool) -> None:
  draw, every = np.random.default_rng(0), 5
  steps = [metrics_of(step, draw) for step in range(12)]
  add = jax.jit(interval.add)
  kept = interval.from_sums({}, steps[0], mesh=MESH)
  for number, values in enumerate(steps):
    kept = add(kept, jax.tree.map(jnp.float32, values), first=jnp.bool_(number % every == 0))
    if resumed:  # by way of the record of a checkpoint
      stored = json.loads(json.dumps(interval.to_sums(kept, values)))
      kept = interval.from_sums(stored, values, mesh=MESH)
    part = [one for one in steps[number - number % every : number + 1] if not one['skipped_in_a_row'][0]]
    line = interval.means(kept, values)
    for name in ('loss', 'rare', 'gradient_norm', 'gradient_norm/head'):
      weights = sum(one[name][1] for one in part)
      total = sum(one[name][0] for one in part if one[name][1])
      assert line[name] == pytest.approx(total / weights if weights else math.nan, rel=1e-6, nan_ok=True), name
    largest = max((one['gradient_norm'][0] for one in part), default=math.nan)
    assert line['gradient_norm_max'] == pytest.approx(largest, rel=1e-6, nan_ok=True)
    for name in ('learning_rate', 'parameter_norm/head', 'skipped', 'skipped_in_a_row'):
      assert line[name] == pytest.approx(values[name][0])


def test_a_metric_that_an_earlier_version_had_not_begins_at_0() -> None:
  names = {'loss': (0, 0), 'gradient_norm': (0, 0), 'new': (0, 0)}
  kept = interval.from_sums({'loss': (3.0, 2.0), 'gone': (1.0, 1.0)}, names, mesh=MESH)
  assert interval.to_sums(kept, names) == {
    'loss': (3.0, 2.0), 'new': (0.0, 0.0), 'gradient_norm': (0.0, 0.0), 'gradient_norm_max': (0.0, 0.0),
  }  # fmt: skip


@pytest.mark.turns
def test_lines_of_a_run_in_pieces(tmp_path: pathlib.Path) -> None:
  data = runs.write_data(tmp_path / 'data')
  changes: dict[str, Any] = {'accumulate': 2}
  each = runs.settings('mlm', data, **changes, log_every=1)
  pairs = runs.settings('mlm', data, **changes)
  loop.train(each, tmp_path / 'each')
  loop.train(pairs, tmp_path / 'pairs', stop_at=5)
  record = saved_steps.read(tmp_path / 'pairs' / 'checkpoints' / '5')
  loop.train(pairs, tmp_path / 'pairs')
  single = {row['step']: row for row in runs.curve(tmp_path / 'each')}
  lines = runs.curve(tmp_path / 'pairs')
  assert [row['step'] for row in lines] == [2, 4, 5, 6, 8, 10, 12]
  for row in lines:
    own = [single[row['step']]] if row['step'] == 5 else [single[row['step'] - 1], single[row['step']]]
    norms = [one['gradient_norm'] for one in own]
    assert row['gradient_norm'] == pytest.approx(np.mean(norms), rel=1e-6)
    assert row['gradient_norm_max'] == pytest.approx(max(norms), rel=1e-6)
    assert min(one['loss'] for one in own) <= row['loss'] <= max(one['loss'] for one in own)
    assert row['learning_rate'] == own[-1]['learning_rate']
  assert record.sums['gradient_norm'] == (single[5]['gradient_norm'], 1.0)
  assert not runs.differing(runs.saved_state(tmp_path / 'each'), runs.saved_state(tmp_path / 'pairs'))
