"""A run that is stopped, killed or damaged on the way ends with the same bits as one that is left alone.

Dropout and noise are on, everything is float32, and what is compared is the whole state: parameters, moments, counters.
"""

import json
import pathlib
import random
import signal
import subprocess
from typing import Any

import pytest

from plm_jax import config
from plm_jax.checkpoint import saved_steps
from plm_jax.core.errors import ConfigError
from plm_jax.models import bert, gpt, xlnet
from plm_jax.runs import metrics
from plm_jax.training import loop, stopping
from tests import runs

LONG = {'steps': 100, 'log_every': 5, 'save_every': 5, 'eval_every': 50}
# settings whose state is easily lost: a schedule that watches evaluations, a mean of parameters, several micro-batches
KINDS: dict[str, dict[str, Any]] = {
  'mlm': {'accumulate': 2},
  'causal_lm': {
    'optim': {'schedule': 'plateau', 'patience': 1, 'shrink': 0.5, 'ema': 0.9, 'rate': 0.3},
    'eval_every': 2,
  },
  'classify': {'eval': {'validation': {'data': {'split': 'validation'}, 'every': 5}}},
  'permutation_lm': {'accumulate': 2},  # with a carry
  'bidirectional_lm': {'accumulate': 2},  # likewise
  'awd_lstm': {'accumulate': 2},  # likewise
}
CARRIED = ('permutation_lm', 'bidirectional_lm', 'awd_lstm')


pytestmark = [pytest.mark.turns, pytest.mark.usefixtures('log')]


@pytest.fixture(scope='module')
def whole(data: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
  """Runs that nobody stopped, by their kind."""
  made = {}
  for kind, changes in KINDS.items():
    made[kind] = tmp_path_factory.mktemp(kind)
    assert loop.train(runs.settings(kind, data, **changes), made[kind]).result['finished']
  return made


def logged(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """The lines that every run has, wherever it was stopped."""
  return [row for row in runs.curve(workdir) if row['step'] % 2 == 0 or 'validation/loss' in row]


@pytest.mark.parametrize(
  ('kind', 'stop_at', 'signal_at'),
  [
    ('mlm', 5, None),
    ('causal_lm', 3, 6),
    ('classify', 7, None),
    ('permutation_lm', 5, 7),
    ('bidirectional_lm', 5, 7),
    ('awd_lstm', 5, 7),
  ],
)
def test_pieces_make_the_whole(
  kind: str,
  stop_at: int,
  signal_at: int | None,
  whole: dict[str, pathlib.Path],
  data: pathlib.Path,
  tmp_path: pathlib.Path,
  monkeypatch: pytest.MonkeyPatch,
) -> None:
  settings = runs.settings(kind, data, **KINDS[kind])
  assert loop.train(settings, tmp_path, stop_at=stop_at).result['step'] == stop_at
  if signal_at:  # a step with an evaluation
    with monkeypatch.context() as patch:
      patch.setattr(stopping.Stopping, 'agreed', lambda self, done: done == signal_at)
      outcome = loop.train(settings, tmp_path)
      assert (outcome.exit_code, outcome.result['step']) == (3, signal_at)
  outcome = loop.train(settings, tmp_path)
  state = runs.saved_state(tmp_path)
  assert len(state) > 40
  carried = [leaf for name, leaf in state.items() if name.startswith('carry/')]
  assert bool(carried) == (kind in CARRIED) and all(leaf.any() for leaf in carried)
  assert not runs.differing(state, runs.saved_state(whole[kind]))
  assert logged(tmp_path) == logged(whole[kind])
  other = loop.train(settings, whole[kind]).result
  assert other | runs.TIMED == outcome.result | runs.TIMED


def test_what_is_random_was_on(whole: dict[str, pathlib.Path]) -> None:
  for kind, module in (('mlm', bert), ('causal_lm', gpt), ('classify', bert), ('permutation_lm', xlnet)):
    settings = config.load(str(whole[kind]))
    trunk = module.CONFIGS[settings['model']['variant']]
    assert trunk.dropout > 0 and trunk.attention_dropout > 0
    assert not {'dropout', 'attention_dropout'} & settings['model']['overrides'].keys()
    assert settings['execution']['dtype'] == 'float32'
  assert config.load(str(whole['mlm']))['objective']['masking'] == 'dynamic'
  assert runs.saved_state(whole['causal_lm'])['opt_state/plateau/factor'] < 1


def test_a_flipped_bit_costs_steps_and_no_bits(
  whole: dict[str, pathlib.Path], data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  settings = runs.settings('mlm', data, **KINDS['mlm'])
  loop.train(settings, tmp_path, stop_at=8)
  folder = tmp_path / 'checkpoints'
  *_, good, newest = saved_steps.numbered(folder)
  file = max(
    (path for path in (folder / str(newest)).rglob('*') if path.is_file()), key=lambda path: path.stat().st_size
  )
  content = bytearray(file.read_bytes())
  content[len(content) // 2] ^= 4
  file.write_bytes(content)
  assert loop.train(settings, tmp_path).result['finished']
  text = (tmp_path / 'log.txt').read_text()
  assert f'step {newest} in {folder} is damaged ({file.relative_to(folder / str(newest))} has another sha256' in text
  assert f'taking step {good} instead' in text
  assert f'going on from step {good}' in text
  assert not runs.differing(runs.saved_state(tmp_path), runs.saved_state(whole['mlm']))
  assert logged(tmp_path) == logged(whole['mlm'])

  (folder / '12' / saved_steps.RECORD).unlink()  # a finished run is mended, too
  assert loop.train(settings, tmp_path).result['finished']
  assert (tmp_path / 'log.txt').read_text().count('going on from step') == 2
  assert not runs.differing(runs.saved_state(tmp_path), runs.saved_state(whole['mlm']))


# In processes of their own.


@pytest.fixture(scope='module')
def long(data: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """A run of 100 steps that nobody stopped; its config.json starts the others."""
  folder = tmp_path_factory.mktemp('long')
  file = runs.write_config(folder / 'config.json', runs.settings('mlm', data, **LONG))
  done = runs.command('train', f'--config={file}', f'--workdir={folder / "run"}')
  assert done.returncode == 0, done.stderr
  return folder / 'run'


def train(long: pathlib.Path, workdir: pathlib.Path) -> list[str]:
  return runs.words('train', f'--config={long / "config.json"}', f'--workdir={workdir}')


def lines(workdir: pathlib.Path) -> int:
  file = workdir / 'metrics.jsonl'
  return file.read_bytes().count(b'\n') if file.exists() else 0


def wait_for_lines(workdir: pathlib.Path, number: int, *, process: subprocess.Popen[bytes], log: pathlib.Path) -> None:
  runs.wait_until(lambda: lines(workdir) >= number, process=process, log=log)


def check_same(workdir: pathlib.Path, long: pathlib.Path) -> None:
  assert not runs.differing(runs.saved_state(workdir), runs.saved_state(long))
  every_fifth = [row for row in runs.curve(workdir) if row['step'] % 5 == 0]
  assert every_fifth == runs.curve(long)
  numbers = [row['step'] for row in metrics.read(workdir)]
  assert numbers == sorted(set(numbers))
  results = [json.loads((folder / 'result.json').read_text()) for folder in (workdir, long)]
  assert results[0]['tokens'] == results[1]['tokens']


def test_signals_save_and_leave_with_3(long: pathlib.Path, tmp_path: pathlib.Path) -> None:
  workdir, output = tmp_path / 'run', tmp_path / 'output'
  for number in (signal.SIGTERM, signal.SIGINT):
    before = lines(workdir)
    with runs.started(train(long, workdir), log=output) as process:
      wait_for_lines(workdir, before + 2, process=process, log=output)
      if number == signal.SIGINT:
        with pytest.raises(ConfigError, match='another process is training here'):
          loop.train(config.resolve(config.load(str(long))), workdir)
      process.send_signal(number)
      assert process.wait(timeout=60) == 3, output.read_text()
    result = json.loads((workdir / 'result.json').read_text())
    assert (result['finished'], result['exit_code']) == (False, 3)
    assert saved_steps.numbered(workdir / 'checkpoints')[-1] == result['step'] < LONG['steps']
    assert f'stopped by a signal at step {result["step"]}; the state is saved' in (workdir / 'log.txt').read_text()
  with runs.started(train(long, workdir), log=output) as process:
    assert process.wait(timeout=240) == 0, output.read_text()
  check_same(workdir, long)


@pytest.mark.parametrize('kills', [2, pytest.param(12, marks=pytest.mark.slow)])
def test_a_killed_run_ends_with_the_same_bits(long: pathlib.Path, tmp_path: pathlib.Path, kills: int) -> None:
  draw = random.Random(kills)
  workdir, output = tmp_path / 'run', tmp_path / 'output'
  hit = 0
  for number in range(kills):
    before = lines(workdir)
    # the first kill waits for a step, the last ones may come at any moment of the start
    delay = draw.uniform(0, 1) if number < 2 else draw.uniform(0, 12)
    with runs.started(train(long, workdir), log=output) as process:
      if number < 2:
        wait_for_lines(workdir, before + 1, process=process, log=output)
      try:
        process.wait(timeout=delay)
      except subprocess.TimeoutExpired:
        process.kill()
        hit += 1
      assert process.wait() in (0, -signal.SIGKILL), output.read_text()
  assert hit
  with runs.started(train(long, workdir), log=output) as process:
    assert process.wait(timeout=240) == 0, output.read_text()
  check_same(workdir, long)
