"""Check that a sweep with killed workers equals an undisturbed one, and measure its overhead.

    python benchmarks/sweep.py --config=CONFIG --out=DIR [--kills=20] [--space=SPACE] [-- --config.KEY=VALUE ...]

Runs a grid search twice: once with one worker, once with two, of which one is killed every few seconds (SIGKILL or
SIGTERM, sometimes with the process of its trial) and started again. Prints whether points, curves, values and the best
keys are equal, and the share of a worker's time outside its trials.
"""

import argparse
import json
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

SPACE = "{'optim.rate': [1e-2, 1e-3, 1e-4], 'seed': [0, 1]}"


def command(arguments: argparse.Namespace, folder: pathlib.Path) -> list[str]:
  own = [f'--config={arguments.config}', f'--space={arguments.space}', f'--workdir={folder}', '--method=grid']
  return [sys.executable, '-m', 'plm_jax', 'sweep', *own, *arguments.rest]


def start(words: list[str], log: pathlib.Path) -> subprocess.Popen[bytes]:
  with log.open('ab') as output:
    return subprocess.Popen(words, stdout=output, stderr=output, stdin=subprocess.DEVNULL)


def children(pid: int) -> list[int]:
  found = pathlib.Path(f'/proc/{pid}/task/{pid}/children')
  return [int(word) for word in found.read_text().split()] if found.exists() else []


def disturbed(arguments: argparse.Namespace, folder: pathlib.Path, draw: random.Random) -> list[str]:
  """Run two workers, killed and restarted.

  Returns what was done to them.
  """
  words, log = command(arguments, folder), folder.with_suffix('.log')
  workers = [start(words, log) for _ in range(2)]
  done = []
  while len(done) < arguments.kills and all(worker.poll() is None for worker in workers):
    time.sleep(draw.uniform(1, arguments.pause))
    index, how = draw.randrange(2), draw.choice(('SIGKILL', 'SIGKILL', 'SIGTERM', 'both'))
    victim = workers[index]
    for pid in [*([victim.pid] if victim.poll() is None else []), *(children(victim.pid) if how == 'both' else [])]:
      subprocess.run(
        ['kill', f'-{(signal.SIGTERM if how == "SIGTERM" else signal.SIGKILL).value}', str(pid)], check=False
      )
    victim.wait()
    done.append(how)
    workers[index] = start(words, log)
  codes = [worker.wait() for worker in workers]
  assert codes == [0, 0], f'workers ended with {codes}: see {log}'
  return done


def outcome(folder: pathlib.Path) -> dict[str, object]:
  """Return the result of a sweep, without times."""
  table = json.loads((folder / 'table.json').read_text())
  table['best'] = {key: value for key, value in table['best'].items() if key != 'command'}
  lines = [json.loads(line) for line in (folder / 'journal.jsonl').read_text().splitlines()]
  over = [line['trial_id'] for line in lines if line['op_code'] == 6]
  curves = {}
  for trial in sorted((folder / 'trials').iterdir()):
    rows = [json.loads(line) for line in (trial / 'metrics.jsonl').read_text().splitlines()]
    curves[trial.name] = [{name: row[name] for name in row if not of_machine(name)} for row in rows]
  return {'table': table, 'trials that ended': sorted(over), 'curves': curves}


def of_machine(name: str) -> bool:
  """Return whether a metric depends on the machine or its clock."""
  return 'per_second' in name or name.startswith('host_') or name == 'mfu'


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--config', required=True)
  parser.add_argument('--space', default=SPACE)
  parser.add_argument('--out', type=pathlib.Path, required=True)
  parser.add_argument('--kills', type=int, default=20)
  parser.add_argument('--pause', type=float, default=12, help='most seconds between two kills')
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('rest', nargs='*')
  arguments = parser.parse_args()
  arguments.out.mkdir(parents=True)
  alone, killed = arguments.out / 'alone', arguments.out / 'killed'
  began = time.monotonic()
  assert start(command(arguments, alone), alone.with_suffix('.log')).wait() == 0, alone.with_suffix('.log').read_text()
  whole = time.monotonic() - began
  print(f'one worker, left alone: {whole:.1f} s')
  ways = disturbed(arguments, killed, random.Random(arguments.seed))
  print(f'two workers, {len(ways)} kills: {", ".join(f"{ways.count(way)} {way}" for way in sorted(set(ways)))}')
  once, again = outcome(alone), outcome(killed)
  for name, value in once.items():
    print(f'{name}: {"the same" if again[name] == value else "DIFFERENT"}')
  spent = sum(map(float, re.findall(r'made in ([\d.]+) s', alone.with_suffix('.log').read_text())))
  trials = len(once['trials that ended'])  # type: ignore[arg-type]
  print(f'{trials} trials; {spent:.1f} s in their processes, {whole - spent:.1f} s beside: {whole / spent - 1:.2%}')
  return int(once != again)


if __name__ == '__main__':
  sys.exit(main())
