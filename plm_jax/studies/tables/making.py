"""Make a run of a table by `train` or `evaluate`, in its own process.

A failing run does not affect other runs, and an interrupted one resumes from its checkpoint.
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
STOPS = 120  # seconds in which a stopped run must save its state


def words(run: Run, places: Places, *, metrics: Sequence[str] = ()) -> list[str]:
  """Build the words of the command that makes a run; see `make`."""
  before = run.weights or (None if run.source is None else str(run_folders.folder_of(run.source, places).root))
  weights = [f'--weights={before}'] if run.evaluates else []
  folder = run_folders.folder_of(run, places)
  paths = [f'--config={runs.config_file(run.config)}', f'--workdir={folder.root}']
  predicts = _prediction_flags(folder, metrics) if metrics else []
  changes = [f'--config.{key}={value}' for key, value in run_folders.changes_after(run, before).items()]
  return ['evaluate' if run.evaluates else 'train', *paths, *weights, *predicts, *changes]


def _prediction_flags(folder: RunFolder, metrics: Sequence[str]) -> list[str]:
  return [f'--evaluation={metrics[0].partition("/")[0]}', f'--predictions={folder.root / run_folders.PREDICTIONS}']


def spelt(run: Run, places: Places, *, metrics: Sequence[str] = ()) -> str:
  """Build the command that makes a run, on one line.

  `metrics` are those of `make`.
  """
  name, *rest = words(run, places, metrics=metrics)
  return f'plm-jax {name} {" ".join(map(_quoted, rest))}'


def _quoted(word: str) -> str:
  r"""Quote a word for bash, with \n for an end of line."""
  if '\n' not in word:
    return shlex.quote(word)
  escaped = word.replace('\\', r'\\').replace("'", r'\'').replace('\n', r'\n')
  return f"$'{escaped}'"


def make(run: Run, places: Places, *, metrics: Sequence[str] = ()) -> str:
  """Make or resume a run.

  Returns why it failed; '' if it did not. Raises Interrupted: stopped by a signal; the run has saved its state.
  `metrics` are those of its columns. The examples of the evaluation of the first one are predicted; empty for a run
  without predictions.
  """
  folder = run_folders.folder_of(run, places)
  if not _wait_until_free(folder):
    return BUSY
  assert places.workdir is not None  # as in `folder_of`
  out = folder.root.with_name(f'{folder.root.name}.out')
  call = functools.partial(_call, out=out, compiled=places.workdir / 'compiled')
  files.make_folder(folder.root.parent)
  predicted = not metrics or files.is_file(folder.root / run_folders.PREDICTIONS)
  if not run_folders.is_finished(folder) or (run.evaluates and not predicted):
    failed = call(words(run, places, metrics=metrics))
    if failed or not run_folders.is_finished(folder):
      return failed or f'it ended before its last {"row" if run.evaluates else "step"}; {out} says more'
  if not predicted and not files.is_file(folder.root / run_folders.PREDICTIONS):  # the run was made by another command
    return call(['evaluate', f'--workdir={folder.root}', '--step=newest', *_prediction_flags(folder, metrics)])
  return ''


def _wait_until_free(folder: RunFolder) -> bool:
  """Wait for a process that saves; return whether the folder is free."""
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
  """Run a command in a child; return its last line on failure."""
  name, *rest = command
  with files.open(out, 'a') as stream:
    code = child.run([sys.executable, '-m', 'plm_jax', name, *rest], out=stream, compiled=compiled)
  if signals.asked() or code in (STOPPED, KILLED):
    raise signals.Interrupted(f'stopped by a signal: the same command resumes {out.stem}', STOPPED)
  if code == 0:
    return ''
  lines = [line for line in files.read_text(out).splitlines() if line.strip()]
  return f'exit {code}: {lines[-1].strip() if lines else "without a word"}'
