"""`--extend`: a run takes more steps, and says what becomes of its schedule; nothing that was done changes."""

import contextlib
import dataclasses
import json
import pathlib
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import pytest

from plm_jax import config, optim
from plm_jax.commands import train
from plm_jax.core.errors import ConfigError
from plm_jax.io.run_paths import RunFolder
from plm_jax.optim import schedules
from plm_jax.runs import history, metrics
from plm_jax.training import loop, stopping
from tests import runs

pytestmark = [pytest.mark.turns, pytest.mark.usefixtures('log')]


def settings(**values: Any) -> dict[str, Any]:
  return {'steps': 10, 'extend': [], 'skip': [], **values}


def test_each_step_has_its_horizon() -> None:
  run = settings(extend=[(10, 5), (12, 3), (18, 2)])
  assert [history.horizon(run, step) for step in (0, 9, 10, 11, 12, 17, 18, 99)] == [10, 10, 15, 15, 18, 18, 20, 20]
  assert history.total(run) == 20
  assert history.ends(run) == {10, 18, 20}  # at step 12 the run was not over
  assert history.ends(settings()) == {10}


def test_the_same_command_again_adds_nothing_until_the_run_is_over() -> None:
  once = history.extended(settings(), 5, at=10)
  assert once['extend'] == [(10, 5)]
  assert history.extended(once, 5, at=12) == once
  assert history.extended(once, 5, at=15)['extend'] == [(10, 5), (15, 5)]  # it was over
  assert history.extended(once, 5, at=12, finished=True)['extend'] == [(10, 5), (12, 5)]  # by early stop
  assert history.extended(once, 4, at=12)['extend'] == [(10, 5), (12, 4)]  # another number
  assert history.extended(settings(), 5, at=7)['extend'] == [(7, 5)]  # never over


def rate(horizon: int, step: int, block: dict[str, Any]) -> float:
  """The learning rate of an update, in closed form."""
  return float(
    schedules.make(name=block['schedule'], rate=block['rate'], steps=horizon, warmup=block['warmup'])(
      jnp.int32(step - 1)
    )
  )


def test_a_finished_run_is_extended_twice(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  first = runs.settings('mlm', data)
  workdir = tmp_path / 'run'
  loop.train(first, workdir)
  before = runs.curve(workdir)
  outcome = loop.train(first, workdir, extend=6, stop_at=14)
  assert (outcome.exit_code, outcome.result['finished'], outcome.result['steps']) == (0, False, 18)
  said = (workdir / 'log.txt').read_text()
  assert 'the run is extended from 12 to 18 steps. From step 12 on its schedule (linear) is that of a run of 18' in said
  assert 'the learning rate is 0.00375 there, and was 0' in said
  kept = json.loads((workdir / 'config.json').read_text())
  assert (kept['steps'], kept['extend']) == (12, [[12, 6]])

  outcome = loop.train(first, workdir, extend=6, stop_at=16)  # the same command again
  assert (outcome.result['step'], outcome.result['steps']) == (16, 18)
  outcome = loop.train(first, workdir, extend=2)  # another number, on its way
  assert (outcome.result['finished'], outcome.result['step'], outcome.result['steps']) == (True, 20, 20)
  assert config.load(str(workdir))['extend'] == [[12, 6], [16, 2]]

  rows = runs.curve(workdir)
  assert rows[:6] == before
  assert [row['step'] for row in rows] == list(range(2, 21, 2))
  for row in rows:
    horizon = 12 if row['step'] <= 12 else 18 if row['step'] <= 16 else 20
    assert row['learning_rate'] == pytest.approx(rate(horizon, row['step'], first['optim']), rel=1e-5)  # float32
  assert [row['step'] for row in rows if 'validation/loss' in row] == [6, 12, 18, 20]

  files = runs.snapshot(workdir)
  for again in (first, config.resolve(config.load(str(workdir)))):
    assert loop.train(again, workdir) == outcome  # without the flag: finished
  assert {name for name, value in runs.snapshot(workdir).items() if files.get(name) != value} <= {'.', '.lock'}

  with pytest.raises(ConfigError, match=r'For more steps, leave steps at 12 and add --extend=10\.'):
    loop.train(runs.settings('mlm', data, steps=30), workdir)
  with pytest.raises(ConfigError, match=r'The run has 20 steps, and can be extended by N more with --extend=N'):
    loop.train(runs.settings('mlm', data, steps=20), workdir)

  # its config repeats all of it: order of data, schedule, evaluations
  again = config.resolve(config.load(str(workdir / 'config.json')))
  assert loop.train(again, tmp_path / 'again').result['finished']
  assert not runs.differing(runs.saved_state(tmp_path / 'again'), runs.saved_state(workdir))
  assert runs.curve(tmp_path / 'again') == rows


@pytest.mark.parametrize(('flags', 'said'), [(['--extend=0'], '--extend.*0'), (['--extend=3'], 'no run began in')])
def test_mistakes_are_named(flags: list[str], said: str, data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  file = runs.write_config(tmp_path / 'config.json', runs.settings('mlm', data))
  with pytest.raises(ConfigError, match=said):
    train.main([f'--config={file}', f'--workdir={tmp_path / "run"}', *flags])
  assert not (tmp_path / 'run' / 'config.json').exists()


def test_a_run_that_stopped_early_waits_anew(tmp_path: pathlib.Path) -> None:
  with metrics.Writer(tmp_path, sinks=()) as writer:
    for step, loss in ((2, 1.0), (4, 2.0), (6, 3.0)):
      writer.write(step, {'validation/loss': loss})
  run = settings(best=('validation/loss', 'min'), early_stop=2)
  assert stopping.Patience(run, RunFolder(tmp_path), start=6).lost
  longer = stopping.Patience({**run, 'extend': [[6, 4]]}, RunFolder(tmp_path), start=6)
  assert not longer.lost
  longer.see(1.5)  # not as good as the first
  longer.see(1.5)
  assert longer.lost


@dataclasses.dataclass
class State:
  """What an evaluation reads and changes of the state of a step."""

  params: Any
  opt_state: Any


@pytest.mark.parametrize(('way', 'values'), [('min', (3.0, 2.0, 1.0, 4.0)), ('max', (0.1, 0.2, 0.3, 0.0))])
def test_the_average_starts_where_the_metric_of_best_no_longer_improves(
  way: str, values: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
  params = {'w': jnp.zeros(2)}
  tx = optim.make(params=params, steps=9, name='asgd', rate=1.0, schedule='constant', nonmonotone=1)
  part = SimpleNamespace
  off = part(paused=contextlib.nullcontext, moved=lambda: None)
  run = part(
    settings={'best': ('valid/metric', way), 'eval': {'valid': {'units': None}}},
    options=part(predictions=None, gives_up=lambda *_: False),
    data=part(
      evaluations={'valid': None}, scores={'valid': ()}, parts=part(of=lambda name: part(task=None)), layout=None
    ),
    optimiser=tx,
    key=None,
    last_step=9,
    eval_steps={'valid': None},
    meter=off,
    watchdog=off,
    writer=part(write=lambda *_: None),
    bar=part(keep=lambda *_: None),
    patience=part(see=lambda value: None),
  )
  state, due, started = State(params, tx.init(params)), part(evaluations=['valid'], watched=True), []
  at = part(state=state, scores={}, step=1, given_up=False)
  for metric in values:
    monkeypatch.setattr(loop, 'evaluate', lambda *_, metric=metric, **__: part(metrics={'metric': metric}))
    loop._evaluate(run, at, due)
    started.append(bool(at.state.opt_state['average']['trigger']['started']))
  assert started == [False, False, False, True]


def test_a_warmup_longer_than_the_epochs_is_refused_before_the_run_begins(
  data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  """How many steps epochs are is known once the rows are; the folder would hold a config that nothing opens."""
  settings = runs.settings('classify', data, steps=None, epochs=1, optim={'warmup': 2_000})
  with pytest.raises(ConfigError, match=r'optim\.warmup=2000: give whole steps, at most steps='):
    loop.train(settings, tmp_path / 'run')
  assert not (tmp_path / 'run' / 'config.json').exists()
