"""Measure how long a user waits for a command: to its first step, its first text, its help.

    python -m benchmarks.start [--only=help,classify] [--released=runs/released] [--lines]

Each case is a separate process, in a home folder that is empty at first, so nothing is cached. It runs twice: the
second time finds what the first one stored (compiled programs, the tokens of texts, the embedded corpus). CPU seconds
are those of the process and its children. They depend less on other load than the clock, and are what a budget limits.
A case of `train` ends after its first step, and its CPU seconds are shown in three parts: imports and flags; checks,
data and parameters; the first step (tracing, compiling or reading programs, one update). "programs" are compiled +
read. A budget has a place for each start. Cases of real weights need launch/released.sh. `--lines` prints each line of
a log with the CPU seconds before it.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
MARK = 'START '
# What a process of a case runs: it reports when something was logged, and ends after the first step.
_CHILD = """
import atexit, json, logging, os, sys, time
began, marks, programs = time.monotonic(), [], [0, 0]

def cpu():
  return sum(os.times()[:4])

def mark(text):
  marks.append((round(cpu(), 2), round(time.monotonic() - began, 2), text))

def report():
  mark('end')
  print('START ' + json.dumps({'marks': marks, 'programs': programs}), flush=True)

class Lines(logging.Handler):
  def emit(self, record):
    mark(record.getMessage())
    if record.name == 'plm_jax.training.loop' and record.getMessage().startswith('step 1 of'):
      report()
      os._exit(0)

def listen():
  import jax
  jax.monitoring.register_event_listener(count)

def count(name, **more):
  programs[1] += name == '/jax/compilation_cache/cache_hits'
  programs[0] += name == '/jax/compilation_cache/cache_misses'

logging.getLogger('plm_jax').addHandler(Lines(logging.DEBUG))
from plm_jax.cli import logs
start = logs.start

def started():
  log = logging.getLogger('plm_jax')
  log.handlers.clear()  # `start` adds its own to a logger without any
  found = start()
  log.addHandler(Lines(logging.DEBUG))
  mark('imported')
  listen()
  return found

logs.start = started
"""
_COMMAND = """
atexit.register(report)
sys.argv[0] = 'plm-jax'
from plm_jax.__main__ import script
script()
"""
_LOAD = """
atexit.register(report)
import plm_jax
model = plm_jax.load(sys.argv[1])
listen()
mark('loaded')
print(model.generate('The capital of France is', max_new=24))
"""
_IMPORT = """
import atexit
import os, json
import plm_jax
print('START ' + json.dumps({'marks': [(round(sum(os.times()[:4]), 2), 0, 'end')], 'programs': [0, 0]}))
"""
PROMPT = ('--prompt=The capital of France is', '--max_new=24')
TEXT = 'the model returns an array of values which each row of data and a text has when it is read by one'
WORDS = TEXT.split(' ')


class Case(NamedTuple):
  """A thing that a user waits for.

  Attributes:
    name: its title.
    budget: CPU seconds of the first and of the second start.
    words: the words after the program; FOLDER is a new folder, DATA that of `write_data`, RELEASED the real weights.
    program: code of the process.
  """

  name: str
  budget: tuple[float, float]
  words: tuple[str, ...]
  program: str = _CHILD + _COMMAND


_BERT = (
  '--config=experiments/bert/base.py:mlm', '--config.vocab.path=DATA/vocab', '--config.data.path=DATA/text',
  '--config.data.length=128', '--config.data.batch_size=8', '--config.objective.where.max_count=20',
  '--config.eval={}', '--config.best=None',
)  # fmt: skip
_CLASSIFY = ('--config=experiments/finetune/classify.py', '--config.data.path=DATA/rows')
_LLAMA = (
  '--config=experiments/llama/pretrain.py', '--config.model.from=RELEASED/smollm2', '--config.data.path=DATA/text',
  '--config.data.length=128', '--config.data.batch_size=4', '--config.steps=10_000', '--config.sharding={}',
  '--config.eval={}', '--config.best=None',
)  # fmt: skip
CASES = {
  'import': Case('import plm_jax', (0.1, 0.1), (), _IMPORT),
  'help': Case('plm-jax --help', (0.3, 0.3), ('--help',), _CHILD.replace('logs.start = started', '') + _COMMAND),
  'train_help': Case('plm-jax train --help', (0.3, 0.3), ('train', '--help')),
  'quickstart': Case('quickstart, to its first step', (60, 20), ('quickstart', '--workdir=FOLDER')),
  'classify': Case(
    'finetune/classify.py, MiniLM', (20, 10),
    ('train', *_CLASSIFY, '--config.model.from=RELEASED/minilm', '--workdir=FOLDER'),
  ),
  'bert': Case('bert/base.py, BERT-base', (30, 20), ('train', *_BERT, '--workdir=FOLDER')),
  'llama': Case('llama/pretrain.py, 135 M parameters', (40, 25), ('train', *_LLAMA, '--workdir=FOLDER')),
  'generate': Case(
    'plm-jax generate, 24 tokens', (20, 8), ('generate', '--weights=RELEASED/smollm2', *PROMPT)
  ),
  'load': Case('plm_jax.load, generate 24 tokens', (20, 20), ('RELEASED/smollm2',), _CHILD + _LOAD),
}  # fmt: skip


class Measured(NamedTuple):
  """Seconds of one start: CPU and clock, CPU by part, programs compiled and read, and the lines of its log."""

  cpu: float
  clock: float
  parts: tuple[float, ...]
  programs: tuple[int, int]
  lines: Sequence[tuple[float, float, str]]


def write_data(folder: pathlib.Path) -> None:
  """Write labelled rows, a text and a vocabulary of generated words."""
  sentences = [' '.join(WORDS[(n * k + k) % len(WORDS)] for k in range(1, 12 + n % 30)) for n in range(2000)]
  for name in ('rows', 'text', 'vocab'):
    (folder / name).mkdir(parents=True)
  lines = ['text,label', *(f'{sentence},{"yes" if n % 3 else "no"}' for n, sentence in enumerate(sentences))]
  (folder / 'rows' / 'train.csv').write_text('\n'.join(lines) + '\n')
  (folder / 'text' / 'train.txt').write_text('\n\n'.join(sentences) + '\n')
  special = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
  (folder / 'vocab' / 'vocab.txt').write_text('\n'.join([*special, *WORDS]) + '\n')


def measure(case: Case, home: pathlib.Path, places: Mapping[str, str]) -> Measured:
  """Run a case once, with `home` as the folder of the user."""
  with tempfile.TemporaryDirectory() as folder:
    words = list(case.words)
    for name, place in {**places, 'FOLDER': f'{folder}/run'}.items():
      words = [word.replace(name, place) for word in words]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(('XDG_', 'JAX_COMPILATION'))}
    environment = {**kept, 'HOME': str(home), 'PYTHONPATH': str(ROOT), 'COLUMNS': '120'}
    done = subprocess.run(
      [sys.executable, '-c', case.program, *words],
      cwd=ROOT,
      env=environment,
      capture_output=True,
      text=True,
      check=False,
    )
  found = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
  if done.returncode or not found:
    raise SystemExit(f'{case.name}: exit code {done.returncode}\n{done.stdout[-500:]}\n{done.stderr[-2000:]}')
  return read(json.loads(found[-1].removeprefix(MARK)))


def read(report: Mapping[str, Any]) -> Measured:
  """Read the report of a process."""
  marks = [(cpu, clock, text) for cpu, clock, text in report['marks']]
  found = [
    next((cpu for cpu, _, text in marks if text.endswith(end)), None) for end in ('imported', 'outside the trunk')
  ]
  ends = [*(cpu for cpu in found if cpu is not None), marks[-1][0]]
  parts = tuple(end - start for start, end in zip([0.0, *ends], ends, strict=False))
  return Measured(marks[-1][0], marks[-1][1], parts, tuple(report['programs']), marks)


def rows(cases: Mapping[str, Case], places: Mapping[str, str], *, lines: bool) -> Iterator[tuple[str, ...]]:
  """Measure each case, and return the rows of its starts."""
  for case in cases.values():
    with tempfile.TemporaryDirectory() as home:
      for start, budget in zip(('first', 'second'), case.budget, strict=True):
        found = measure(case, pathlib.Path(home), places)
        if lines:
          print(*(f'{cpu:7.2f} {clock:7.2f}  {text}' for cpu, clock, text in found.lines), sep='\n', flush=True)
        parts = ' + '.join(f'{part:.1f}' for part in found.parts) if found.parts[1:] else ''
        programs = ' + '.join(map(str, found.programs)) if any(found.programs) else ''
        within = 'yes' if found.cpu <= budget else 'no'
        yield case.name, start, f'{budget:g}', f'{found.cpu:.2f}', within, parts, programs, f'{found.clock:.1f}'


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--only', help=f'some of {", ".join(CASES)}')
  parser.add_argument('--released', default='runs/released', help='folder of launch/released.sh')
  parser.add_argument('--lines', action='store_true', help='print the lines of each log')
  arguments = parser.parse_args()
  chosen = {name: CASES[name] for name in arguments.only.split(',')} if arguments.only else CASES
  released = pathlib.Path(arguments.released).resolve()
  for name in [name for name, case in chosen.items() if 'RELEASED' in ' '.join(case.words) and not released.is_dir()]:
    print(f'{name}: left out, since {released} is missing; launch/released.sh makes it')
    chosen.pop(name)
  from rich.console import Console
  from rich.table import Table

  table = Table('start of', '', 'budget', 'CPU s', 'within', 'imports + checks + step', 'programs', 'clock s')
  before = os.getloadavg()[0]
  with tempfile.TemporaryDirectory() as data:
    write_data(pathlib.Path(data) / 'data')
    for row in rows(chosen, {'DATA': f'{data}/data', 'RELEASED': str(released)}, lines=arguments.lines):
      print(*row, sep='  ', flush=True)
      table.add_row(*row)
  Console(width=140).print(table)
  print(f'{os.cpu_count()} CPU cores; load {before:.1f} at the beginning, {os.getloadavg()[0]:.1f} at the end')


if __name__ == '__main__':
  main()
