"""Nothing that is not finite is saved, and a run that diverged goes back to a sound step and on from there."""

import json
import pathlib
import re
import shlex
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from plm_jax import checkpoint, config
from plm_jax.checkpoint import saved_steps
from plm_jax.commands import rewind
from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Source
from plm_jax.runs import history, metrics
from plm_jax.training import begin, loop
from tests import runs

# a memory that goes over rows, and a state that watches evaluations and averages parameters; as in test_resume.py
KINDS: dict[str, dict[str, Any]] = {
  'permutation_lm': {'accumulate': 2, 'save_every': 2, 'keep': 5},
  'causal_lm': {
    'optim': {'schedule': 'plateau', 'patience': 1, 'shrink': 0.5, 'ema': 0.9, 'rate': 0.3},
    'eval_every': 2,
    'keep': 5,
    'early_stop': 5,
  },
}


pytestmark = [pytest.mark.turns, pytest.mark.usefixtures('log')]


def logged(workdir: pathlib.Path) -> list[dict[str, Any]]:
  return [row for row in runs.curve(workdir) if row['step'] % 2 == 0]


# The order of data.


def source(rows: int = 2) -> Source:
  def read(start: int) -> Iterator[dict[str, np.ndarray]]:
    for number in range(start, 1000):
      yield {'number': np.array([number] * rows), 'reset': np.zeros(rows, bool)}

  spec = {name: jax.ShapeDtypeStruct((rows,), np.bool_) for name in ('number', 'reset')}
  return Source(spec=spec, rows=9, read=read, once=lambda: read(0), digest='')


@pytest.mark.parametrize(
  ('start', 'skip', 'numbers', 'resets'),
  [
    (0, [], [0, 1, 2, 3, 4, 5], []),
    (3, [], [3, 4, 5, 6, 7, 8], []),
    (3, [(3, 10)], [13, 14, 15, 16, 17, 18], [0]),
    (5, [(3, 10)], [15, 16, 17, 18, 19, 20], []),  # a later resume
    (1, [(3, 10)], [1, 2, 13, 14, 15, 16], [2]),  # a fall-back behind it
    (0, [(1, 2), (3, 4), (4, 1)], [0, 3, 4, 9, 11, 12], [1, 3, 4]),
  ],
)
def test_what_is_left_out_depends_on_the_step_alone(
  start: int, skip: list[tuple[int, int]], numbers: list[int], resets: list[int]
) -> None:
  batches = history.read(source(), start, skip=skip)
  found = [next(batches) for _ in range(6)]
  assert [int(batch['number'][0]) for batch in found] == numbers
  assert [place for place, batch in enumerate(found) if batch['reset'].all()] == resets


def test_going_back_undoes_what_came_later() -> None:
  settings = {'steps': 10, 'extend': [[6, 4], [14, 5]], 'skip': [[3, 2], [8, 1], [9, 1]]}
  assert history.back_at(settings, 8) == {'steps': 10, 'extend': [(6, 4)], 'skip': [(3, 2)]}
  assert history.back_at(settings, 8, skip=7)['skip'] == [(3, 2), (8, 9)]
  assert history.back_at(settings, 14)['extend'] == [(6, 4), (14, 5)]


@pytest.mark.parametrize('skip', [[], [(3, 2)], [(1, 2), (3, 4), (4, 1)], [(2, 5), (6, 1)]])
@pytest.mark.parametrize(('step', 'left_out'), [(0, 3), (2, 1), (3, 4), (4, 2)])
def test_what_steps_read_that_are_gone_back_over_is_not_read_again(
  skip: list[tuple[int, int]], step: int, left_out: int
) -> None:
  def numbers(start: int, skip: history.Pairs) -> list[int]:
    batches = history.read(source(), start, skip=skip)
    return [int(next(batches)['number'][0]) for _ in range(6)]

  end = step + left_out
  later = history.back_at({'extend': [], 'skip': skip}, step, skip=left_out)['skip']
  assert numbers(step, later) == numbers(end, [(at, count) for at, count in skip if at <= end])


# Runs.


@pytest.mark.parametrize('kind', ['permutation_lm', pytest.param('causal_lm', marks=pytest.mark.slow)])
def test_a_run_taken_back_is_one_that_was_never_beyond(kind: str, data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  settings = runs.settings(kind, data, **KINDS[kind])
  whole, back = tmp_path / 'whole', tmp_path / 'back'
  result = loop.train(settings, whole).result
  assert result['finished']
  loop.train(settings, back)
  (back / 'evaluations.jsonl').write_text('{"step": 4, "x": 1}\n{"step": 8, "x": 2}\n{"weights": "a"}\n')
  before = metrics.read(back)
  assert rewind.main([f'--workdir={back}', '--to_step=4']) == 0
  assert saved_steps.numbered(back / 'checkpoints')[-1] == 4
  aside = back / 'checkpoints' / 'set_aside'
  assert sorted([*saved_steps.numbered(back / 'checkpoints'), *saved_steps.numbered(aside)]) == saved_steps.numbered(
    whole / 'checkpoints'
  )
  assert [row['step'] for row in metrics.read(back)] == [2, 4]
  kept = [json.loads(line) for line in (aside / 'metrics.jsonl').read_text().splitlines()]
  assert [*(row['step'] for row in metrics.read(back)), *(row['step'] for row in kept)] == [
    row['step'] for row in before
  ]
  assert (back / 'evaluations.jsonl').read_text() == '{"step": 4, "x": 1}\n{"weights": "a"}\n'
  assert json.loads((aside / 'result.json').read_text())['finished']
  assert not (back / 'result.json').exists()
  outcome = loop.train(settings, back)
  assert not runs.differing(runs.saved_state(back), runs.saved_state(whole))
  assert logged(back) == logged(whole)
  assert outcome.result | runs.TIMED == result | runs.TIMED
  rewind.main([f'--workdir={back}', '--to_step=4'])  # once more: nothing set aside is overwritten
  assert saved_steps.numbered(aside) and len(list(aside.glob('12*'))) == 2


def test_batches_left_out_are_recorded_and_repeatable(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  settings = runs.settings('permutation_lm', data, **KINDS['permutation_lm'])
  plain, back = tmp_path / 'plain', tmp_path / 'back'
  loop.train(settings, plain)
  loop.train(settings, back, stop_at=6)
  rewind.main([f'--workdir={back}', '--to_step=4', '--skip=3'])
  assert config.load(str(back))['skip'] == [[4, 3]]
  loop.train(settings, back, stop_at=8)
  assert loop.train(settings, back).result['finished']
  assert runs.curve(back)[:2] == runs.curve(plain)[:2] and runs.curve(back)[2] != runs.curve(plain)[2]
  assert loop.train(config.resolve(config.load(str(back / 'config.json'))), tmp_path / 'again').result['finished']
  assert not runs.differing(runs.saved_state(tmp_path / 'again'), runs.saved_state(back))
  with pytest.raises(ConfigError, match=r'skip: \[\[4, 3\]\] -> \[\[4, 2\]\]'):
    loop.train({**settings, 'skip': [[4, 2]]}, back)


# Divergence.


def steps_of(workdir: pathlib.Path) -> list[int]:
  return saved_steps.numbered(workdir / 'checkpoints')


def test_updates_that_are_not_finite_are_skipped_and_the_way_on_is_named(
  data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  workdir = tmp_path / 'a run'
  settings = runs.settings('mlm', data, optim={'ema': 0.9}, save_every=1, max_skipped=3)
  settings['optim']['rate'] = 1e38  # far beyond what a config may ask for
  outcome = loop.train(settings, workdir)
  assert (outcome.exit_code, outcome.result['step'], outcome.result['skipped']) == (4, 4, 3)  # the first rate is 0
  assert steps_of(workdir)[-1] == 3
  assert not checkpoint.broken_leaves(workdir / 'checkpoints', 3)
  said = (workdir / 'log.txt').read_text()
  command = re.search(r'plm-jax rewind (--workdir=.* --to_step=3 --skip=1)', said)
  assert command, said
  assert rewind.main(shlex.split(command[1])) == 0
  assert config.load(str(workdir))['skip'] == [[3, 1]]
  assert loop.train(settings, workdir).result['step'] == 4  # two were skipped before


def test_a_state_that_is_not_finite_is_not_saved(
  data: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  settings = runs.settings('mlm', data, save_every=2)
  with monkeypatch.context() as patch:
    patch.setattr(begin, 'unsound', lambda state: {'params/trunk/x': state.step > 4, 'params/y': state.step < 0})
    outcome = loop.train(settings, tmp_path)
  assert (outcome.exit_code, outcome.result['step'], steps_of(tmp_path)) == (4, 6, [2, 4])
  said = (tmp_path / 'log.txt').read_text()
  assert 'step 6 is not saved: numbers are not finite in params/trunk/x\n' in said
  assert '--to_step=4 --skip=2' in said


def test_a_broken_step_of_an_earlier_version_is_not_gone_on_with(
  data: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  settings = runs.settings('mlm', data, save_every=2)
  loop.train(settings, tmp_path / 'sound', stop_at=2)
  params = checkpoint.open_params(tmp_path / 'sound').tree()
  params['mlm']['bias'][7] = np.nan
  checkpoint.save_params(tmp_path / 'broken', params)
  entry = {'source': str(tmp_path / 'broken'), 'from_': '', 'to': ''}
  settings = config.resolve({**settings, 'init_from': [entry]})
  with monkeypatch.context() as patch:
    patch.setattr(begin, 'unsound', lambda state: {})
    loop.train(settings, tmp_path / 'run', stop_at=2)
  assert steps_of(tmp_path / 'run') == [2]
  outcome = loop.train(settings, tmp_path / 'run')
  assert (outcome.exit_code, outcome.result['step']) == (4, 2)
  assert 'step 2 holds numbers that are not finite, in params/mlm/bias' in (tmp_path / 'run' / 'log.txt').read_text()
  with pytest.raises(ConfigError, match='--to_step=2: numbers are not finite, in params/mlm/bias'):
    rewind.main([f'--workdir={tmp_path / "run"}', '--to_step=2'])


def test_mistakes_are_named(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  workdir = tmp_path / 'run'
  for flags, said in (([], 'needs --workdir'), ([f'--workdir={workdir}', '--to_step=1'], 'no run began there')):
    with pytest.raises(ConfigError, match=said):
      rewind.main(flags)
  loop.train(runs.settings('mlm', data, save_every=2), workdir, stop_at=4)
  file = max((workdir / 'checkpoints' / '2').rglob('*'), key=lambda path: path.stat().st_size if path.is_file() else 0)
  file.write_bytes(file.read_bytes()[:-1] + b'?')
  before = runs.snapshot(workdir / 'checkpoints')
  for flags, said in (
    ([], 'needs --to_step=S; in .* sound steps are 2, 4'),
    (['--to_step=4', '--skip=99999999999'], 'a run leaves out at most 2,000,000,000 batches'),
    (['--to_step=3'], '--to_step=3: there is no such step in .*; sound steps are 2, 4'),
    (['--to_step=2'], '--to_step=2: it is damaged'),
    (['--to_step=4', '--skip=-1'], '--skip=-1: the number of batches'),
  ):
    with pytest.raises(ConfigError, match=said):
      rewind.main([f'--workdir={workdir}', *flags])
  assert runs.snapshot(workdir / 'checkpoints') == before
