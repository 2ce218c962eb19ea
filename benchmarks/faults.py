"""Count what is lost when runs are killed, stopped or moved.

    python -m benchmarks.faults --out=DIR [--only=saves,signal,killed,meshes] [--kills=50] [--turns=10] [--seed=0]

saves   SIGKILL of a run that saves every step, at steps sampled by --seed and while a step is being written, for five
        objectives (one with a separate noise network, one with a recurrent carry). Each killed run resumes and must end
        with all leaves bit for bit equal to those of an undisturbed run. The row counts kills that left an incomplete
        step.
signal  SIGTERM to one of two processes: both must save one step and end within 30 seconds.
killed  SIGKILL of one of two processes: the other must end within a minute, `launch/local.py --restarts` restarts both,
        and the run must end bit for bit like an undisturbed one.
meshes  A run of two processes with two devices each resumes with 1 and with 4 devices, and with another mesh. Its
        losses must equal those of the undisturbed run up to the order of sums (1e-5).

The runs are the `quick` configs of experiments/, on documents included in the project. Prints a table; the exit code is
1 if a row fails. DIR keeps every run and its log.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from plm_jax import checkpoint

ROOT = pathlib.Path(__file__).resolve().parents[1]
CONFIGS = {
  'masked LM': 'bert/base.py:quick',
  'replaced tokens': 'electra/small.py:quick',
  'left to right': 'gpt/gpt.py:quick',
  'denoising': 'bart/base.py:quick',
  'both directions, with a carry': 'elmo/pretrain.py:quick',
}
STEPS = 30
CACHE = pathlib.Path(tempfile.gettempdir()) / 'plm_jax_faults'  # of compiled programs, which every start needs again
LIMIT_S = 600  # of one start of a run


class Row(NamedTuple):
  """One line of the table.

  Attributes:
    fault: what was done.
    times: how often.
    held: how often nothing was lost.
    seconds: the longest end after the fault; None where it is a kill of all.
  """

  fault: str
  times: int
  held: int
  seconds: float | None = None


def words(config: str, folder: pathlib.Path, *more: str) -> list[str]:
  """Build the Python arguments that train a config and save every step."""
  keys = {
    'vocab.path': folder.parent / 'vocab',
    'steps': STEPS,
    'log_every': 1,
    'save_every': 1,
    'eval_every': STEPS,
    'best': None,
    'log': '()',
  }
  flags = [f'--config.{key}={value}' for key, value in keys.items()]
  return ['-m', 'plm_jax', 'train', f'--config={ROOT / "experiments" / config}', f'--workdir={folder}', *flags, *more]


def start(arguments: list[str], log: pathlib.Path, *, devices: int = 1) -> subprocess.Popen[bytes]:
  """Start Python in a new process, on simulated devices."""
  flags = f'--xla_force_host_platform_device_count={devices}'
  cache = {'JAX_COMPILATION_CACHE_DIR': str(CACHE), 'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0'}
  env = {**os.environ, **cache, 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': flags, 'PYTHONPATH': str(ROOT)}
  with log.open('ab') as output:
    return subprocess.Popen([sys.executable, *arguments], cwd=ROOT, env=env, stdin=subprocess.DEVNULL,
                            stdout=output, stderr=output)  # fmt: skip


def ended(process: subprocess.Popen[bytes], log: pathlib.Path) -> None:
  """Wait for an end without an error."""
  if code := process.wait(timeout=LIMIT_S):
    raise SystemExit(f'a run ended with {code}: see {log}')


def together(*flags: str) -> list[str]:
  """Build the arguments that run two processes of two devices."""
  return [str(ROOT / 'launch' / 'local.py'), '--processes=2', '--devices=2', *flags, '--']


def step_of(folder: pathlib.Path) -> int:
  """Read the last logged step of a run, else 0."""
  file = folder / 'metrics.jsonl'
  lines = file.read_text().splitlines() if file.exists() else []
  steps = [json.loads(line).get('step', 0) for line in lines if line.endswith('}')]
  return max(steps, default=0)


def wait_for(folder: pathlib.Path, step: int, process: subprocess.Popen[bytes]) -> None:
  """Wait until a step is logged."""
  until = time.monotonic() + LIMIT_S
  while step_of(folder) < step:
    if process.poll() is not None or time.monotonic() > until:
      process.kill()
      raise SystemExit(f'{folder} did not come to step {step}: see its .log')
    time.sleep(0.02)


def unfinished(folder: pathlib.Path) -> list[pathlib.Path]:
  """List steps whose writing has not finished."""
  return list((folder / 'checkpoints').glob('*.orbax-checkpoint-tmp*'))


def wait_for_a_save(folder: pathlib.Path, *, seconds: float = 2.0) -> None:
  """Wait until a step is being written, or for a time limit."""
  until = time.monotonic() + seconds
  while not unfinished(folder) and time.monotonic() < until:
    time.sleep(0.001)


def children(process: subprocess.Popen[bytes]) -> list[int]:
  """List the ids of the child processes in order."""
  return [int(word) for word in pathlib.Path(f'/proc/{process.pid}/task/{process.pid}/children').read_text().split()]


def leaves(folder: pathlib.Path, step: int = STEPS) -> dict[str, np.ndarray]:
  """Read the arrays of a checkpoint, by path."""
  return checkpoint.arrays(folder / 'checkpoints', step)


def differing(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> list[str]:
  """List the paths of arrays that differ in any bit."""
  return sorted(
    path
    for path in one.keys() | other.keys()
    if path not in one or path not in other or one[path].tobytes() != other[path].tobytes()
  )


def alone(out: pathlib.Path, name: str, config: str, *, processes: int = 1) -> pathlib.Path:
  """Return the folder of an undisturbed run, trained if missing."""
  folder, log = out / name, out / f'{name}.log'
  if not (folder / 'result.json').exists():
    command = words(config, folder)
    ended(start([*together(), *command] if processes == 2 else command, log), log)
  return folder


def saves(out: pathlib.Path, arguments: argparse.Namespace) -> Iterator[Row]:
  """Test kills during saves; one row for each objective."""
  wanted = -(-arguments.kills // len(CONFIGS))
  for number, (name, config) in enumerate(CONFIGS.items()):
    draw = random.Random(f'{arguments.seed}/{name}')
    whole = alone(out, f'saves_{number}_alone', config)
    folder, log, torn = out / f'saves_{number}', out / f'saves_{number}.log', 0
    for kills in range(wanted):
      process = start(words(config, folder), log)
      # the next of so many equal stretches of the run, so that no kill comes after its end
      wait_for(folder, draw.randint(1, STEPS // wanted - 1) + kills * STEPS // wanted, process)
      wait_for_a_save(folder)
      time.sleep(draw.uniform(0, 0.02))
      process.kill()
      process.wait()
      torn += bool(unfinished(folder))
    ended(start(words(config, folder), log), log)
    same = not differing(leaves(folder), leaves(whole))
    yield Row(f'SIGKILL, {torn} in a save: {name}', wanted, wanted * same)


def signals(out: pathlib.Path, arguments: argparse.Namespace) -> Iterator[Row]:
  """Count how often both processes saved one step and ended in time."""
  endless = [f'--config.{key}=100000' for key in ('steps', 'save_every', 'eval_every')]
  held, slowest = 0, 0.0
  for turn in range(arguments.turns):
    folder, log = out / f'signal_{turn}', out / f'signal_{turn}.log'
    process = start([*together('--grace=120'), *words(CONFIGS['masked LM'], folder, *endless)], log)
    wait_for(folder, 3 + turn, process)
    os.kill(children(process)[turn % 2], signal.SIGTERM)
    began = time.monotonic()
    code = process.wait(timeout=LIMIT_S)
    seconds = time.monotonic() - began
    saved = [int(one.name) for one in (folder / 'checkpoints').iterdir() if one.name.isdigit()]
    held += code == 3 and seconds < 30 and saved == [json.loads((folder / 'result.json').read_text())['step']]
    slowest = max(slowest, seconds)
  yield Row('SIGTERM to one of two processes', arguments.turns, held, slowest)


def killed(out: pathlib.Path, arguments: argparse.Namespace) -> Iterator[Row]:
  """Count how often a run with a killed process ended undisturbed."""
  config = CONFIGS['masked LM']
  whole = leaves(alone(out, 'killed_alone', config, processes=2))
  held, slowest = 0, 0.0
  for turn in range(arguments.turns):
    folder, log = out / f'killed_{turn}', out / f'killed_{turn}.log'
    process = start([*together('--grace=30', '--restarts=1'), *words(config, folder)], log)
    wait_for(folder, 3 + 3 * turn % (STEPS - 6), process)
    first = children(process)
    os.kill(first[turn % 2], signal.SIGKILL)
    began = time.monotonic()
    while any(pathlib.Path(f'/proc/{pid}').exists() for pid in first) and process.poll() is None:
      time.sleep(0.05)
    seconds = time.monotonic() - began
    code = process.wait(timeout=LIMIT_S)
    held += code == 0 and seconds < 60 and not differing(leaves(folder), whole)
    slowest = max(slowest, seconds)
  yield Row('SIGKILL of one of two processes', arguments.turns, held, slowest)


def meshes(out: pathlib.Path, arguments: argparse.Namespace) -> Iterator[Row]:
  """Test each number of devices and another mesh, one row each."""
  config, half = CONFIGS['masked LM'], STEPS // 2
  losses = _losses(alone(out, 'killed_alone', config, processes=2))
  folder, log = out / 'meshes', out / 'meshes.log'
  ended(start([*together(), *words(config, folder, f'--stop_at={half}')], log), log)
  cut = ["--config.sharding.mesh={'data': 2, 'model': 2}", '--config.sharding.rules=fsdp_tensor']
  for name, devices, keys in (('1 device', 1, []), ('4 devices', 4, []), ('a mesh of 2 x 2', 4, cut)):
    other, log = out / f'meshes_{len(keys)}_{devices}', out / f'meshes_{len(keys)}_{devices}.log'
    shutil.copytree(folder, other)
    ended(start(words(config, other, *keys), log, devices=devices), log)
    yield Row(f'2 x 2 devices, then {name}', 1, int(np.allclose(_losses(other), losses, rtol=1e-5, atol=0)))


def _losses(folder: pathlib.Path) -> list[float]:
  rows = [json.loads(line) for line in (folder / 'metrics.jsonl').read_text().splitlines()]
  return [row['loss'] for row in rows]


def make_vocabulary(out: pathlib.Path) -> None:
  """Train a byte-pair vocabulary."""
  command = [
    '-m',
    'plm_jax',
    'vocab',
    'train',
    '--source=pydocs',
    f'--out={out / "vocab"}',
    '--name=byte_bpe',
    '--size=2000',
  ]
  ended(start(command, out / 'vocab.log'), out / 'vocab.log')


CAMPAIGNS = {'saves': saves, 'signal': signals, 'killed': killed, 'meshes': meshes}


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--out', type=pathlib.Path, required=True)
  parser.add_argument('--only', default=','.join(CAMPAIGNS), help='campaigns, by commas')
  parser.add_argument('--kills', type=int, default=50, help='of single runs, over all objectives')
  parser.add_argument('--turns', type=int, default=10, help='of runs of two processes')
  parser.add_argument('--seed', type=int, default=0)
  arguments = parser.parse_args()
  out = arguments.out.resolve()
  out.mkdir(parents=True)
  make_vocabulary(out)
  print(f'{"fault":<56}{"times":>6}{"held":>6}{"slowest end":>14}')
  lost = False
  for name in arguments.only.split(','):
    for row in CAMPAIGNS[name](out, arguments):
      seconds = '' if row.seconds is None else f'{row.seconds:.1f} s'
      print(f'{row.fault:<56}{row.times:>6}{row.held:>6}{seconds:>14}', flush=True)
      lost |= row.held < row.times
  return int(lost)


if __name__ == '__main__':
  sys.exit(main())
