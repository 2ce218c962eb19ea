"""How a run of a table is made: by the command `train` or `evaluate`, in a process of its own.

A run that fails takes nothing with it, and one that was stopped goes on from its checkpoint.
"""

import functools
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from plm_jax.cli import signals
from plm_jax.core.errors import KILLED, STOPPED
from plm_jax.io import files
from plm_jax.io.run_paths import RunFolder
from plm_jax.studies import child
from plm_jax.studies.tables import run_folders, runs
from plm_jax.studies.tables.runs import Places, Run

BUSY = 'another process is making it'
STOPS = 120  # seconds that a run may take to save what it has


def words(run: Run, places: Places, *, asked: Sequence[str] = ()) -> list[str]:
  """The words of the command that makes a run; `asked` as of `make`."""
  before = None if run.source is None else str(run_folders.folder_of(run.source, places).root)
  weights = [f'--weights={before}'] if run.evaluates else []
  folder = run_folders.folder_of(run, places)
  named = [f'--config={runs.config_file(run.config)}', f'--workdir={folder.root}']
  predicts = _predicting(folder, asked) if asked else []
  changes = [f'--config.{key}={value}' for key, value in run_folders.changes_behind(run, before).items()]
  return ['evaluate' if run.evaluates else 'train', *named, *weights, *predicts, *changes]


def _predicting(folder: RunFolder, asked: Sequence[str]) -> list[str]:
  """Flags of `train` and `evaluate`: the rows of the evaluation of the first metric are predicted."""
  return [f'--evaluation={asked[0].partition("/")[0]}', f'--predictions={folder.root / run_folders.PREDICTIONS}']


def spelt(run: Run, places: Places, *, asked: Sequence[str] = ()) -> str:
  """The command that makes a run, as a person types it; `asked` as of `make`."""
  name, *rest = words(run, places, asked=asked)
  return f'plm-jax {name} {shlex.join(rest)}'


def make(run: Run, places: Places, *, asked: Sequence[str] = ()) -> str:
  """Makes a run, or goes on with it.

  Args:
    run: which one.
    places: where runs lie.
    asked: metrics; what is predicted for each row of the evaluation of the first is written beside the run. Empty for
      a run that predicts nothing.

  Returns:
    Why it failed; empty where it did not.

  Raises:
    Interrupted: by a signal; the run keeps what it has.
  """
  folder = run_folders.folder_of(run, places)
  if not _is_left(folder):
    return BUSY
  assert places.workdir is not None  # as for `folder_of`
  out = folder.root.with_name(f'{folder.root.name}.out')
  call = functools.partial(_call, out=out, compiled=places.workdir / 'compiled')
  files.make_folder(folder.root.parent)
  predicted = not asked or files.is_file(folder.root / run_folders.PREDICTIONS)
  if not run_folders.is_finished(folder) or (run.evaluates and not predicted):
    failed = call(words(run, places, asked=asked))
    if failed or not run_folders.is_finished(folder):
      return failed or f'it ended before its last {"row" if run.evaluates else "step"}; {out} says more'
  if not predicted and not files.is_file(folder.root / run_folders.PREDICTIONS):  # of a run that another command made
    return call(['evaluate', f'--workdir={folder.root}', '--step=newest', *_predicting(folder, asked)])
  return ''


def _is_left(folder: RunFolder) -> bool:
  """Whether no process trains in a folder; one whose command was killed was asked to stop, and saves what it has."""
  ends = time.monotonic() + STOPS
  while files.exists(folder.lock):
    try:
      with files.locked(folder.lock, doing='making runs of a table', wait=False):
        return True
    except BlockingIOError:
      signals.check()
      if time.monotonic() > ends:
        return False
      time.sleep(1)
  return True


def _call(command: Sequence[str], out: Path, compiled: Path) -> str:
  """Runs a command of the package in a process of its own, which keeps what it compiles in a folder; returns the last
  line of its output where it fails."""
  name, *rest = command
  with files.open(out, 'a') as stream:
    code = child.run([sys.executable, '-m', 'plm_jax', name, *rest], out=stream, compiled=compiled)
  if signals.asked() or code in (STOPPED, KILLED):
    raise signals.Interrupted(f'stopped by a signal: the same command goes on with {out.stem}', STOPPED)
  if code == 0:
    return ''
  return f'exit {code}: {_last_line(files.read_text(out))}'


def _last_line(text: str) -> str:
  said = [line for line in text.splitlines() if line.strip()]
  return said[-1].strip() if said else 'without a word'
