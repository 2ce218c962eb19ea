"""Run commands in child processes, which fail alone and release the accelerator."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from plm_jax.cli import signals
from plm_jax.io import files

CACHE = 'JAX_COMPILATION_CACHE_DIR'
POLL = 0.2  # seconds between checks of the process


def run(
  command: Sequence[str],
  *,
  out: TextIO | None = None,
  env: Mapping[str, str] | None = None,
  compiled: files.Path | None = None,
) -> int:
  """Run a command and return its exit code.

  The first stop signal is forwarded. The process is in a separate process group, so that Ctrl-C reaches it only once,
  through this process. Its stdin is a pipe that closes when this process is killed; a command that handles signals then
  stops (`signals.ENDS_WITH_STDIN`).

  Args:
    out: file for stdout and stderr; None inherits those of this process.
    env: additional environment variables.
    compiled: folder of compiled programs, so that runs that differ in a seed compile once; jax's own environment
      variable takes precedence.
  """
  error = None if out is None else subprocess.STDOUT
  environment = {**os.environ, **(env or {}), signals.ENDS_WITH_STDIN: '1'}
  if compiled is not None:
    environment.setdefault(CACHE, str(compiled))
  with subprocess.Popen(
    command, stdin=subprocess.PIPE, stdout=out, stderr=error, env=environment, start_new_session=True
  ) as process:
    stopping = False
    while True:
      try:
        return process.wait(POLL)
      except subprocess.TimeoutExpired:
        if signals.asked() and not stopping:
          stopping = True
          process.send_signal(signal.SIGTERM)


def answers(module: str, questions: Sequence[Any]) -> list[Any]:
  """Compute answers to questions in a child process, without an accelerator.

  Raises Interrupted: stopped by a signal; RuntimeError: the process failed (a bug).

  Args:
    module: module of this package that calls `answer` when run as `python -m MODULE QUESTIONS ANSWERS`.
    questions: JSON values, as are the answers.
  """
  with files.temporary_folder() as folder:
    question_file, answer_file, output = (folder / name for name in ('questions', 'answers', 'out'))
    files.write_json(question_file, list(questions))
    words = [sys.executable, '-m', module, str(question_file), str(answer_file)]
    with files.open(output, 'w') as out:
      code = run(words, out=out, env={'JAX_PLATFORMS': 'cpu'})
    signals.check()
    if code:
      raise RuntimeError(f'{module} ended with exit code {code}: {files.read_text(output)}')
    results: list[Any] = files.read_json(answer_file)
    return results


def answer(function: Callable[[Any], Any]) -> None:
  """Apply a function to each question; the child's side of `answers`."""
  question_file, answer_file = map(files.path, sys.argv[1:])
  files.write_json(answer_file, [function(question) for question in files.read_json(question_file)])
