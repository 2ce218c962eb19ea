"""Commands in processes of their own: one that fails takes nothing with it, and leaves the accelerator to the next."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from plm_jax.cli import signals
from plm_jax.io import files

CACHE = 'JAX_COMPILATION_CACHE_DIR'
POLL = 0.2  # seconds between looks at the process


def run(
  command: Sequence[str],
  *,
  out: TextIO | None = None,
  env: Mapping[str, str] | None = None,
  compiled: files.Path | None = None,
) -> int:
  """The exit code of a process, which is asked to stop, once, when this one is.

  It is not in the group of the terminal, so that Ctrl-C reaches it once, through us. Its stdin is a pipe that closes
  when this process is killed, upon which a command that takes signals is asked to stop (`signals.ENDS_WITH_STDIN`).

  Args:
    command: the words.
    out: where its output goes, both streams; None leaves both to ours.
    env: environment variables that it has besides ours.
    compiled: a folder for compiled programs, so that processes which differ in a seed compile once; jax's own
      variable, where it is set, names another.
  """
  error = None if out is None else subprocess.STDOUT
  whole = {**os.environ, **(env or {}), signals.ENDS_WITH_STDIN: '1'}
  if compiled is not None:
    whole.setdefault(CACHE, str(compiled))
  with subprocess.Popen(
    command, stdin=subprocess.PIPE, stdout=out, stderr=error, env=whole, start_new_session=True
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
  """What `python -m MODULE QUESTIONS ANSWERS` answers to each of some questions, without an accelerator.

  Args:
    module: of this package, which calls `answer` when it is run.
    questions: what JSON can hold, as the answers are.

  Raises:
    Interrupted: by a signal.
    RuntimeError: the process failed, which is a mistake of ours.
  """
  with files.temporary_folder() as folder:
    asked, answered, said = (folder / name for name in ('questions', 'answers', 'out'))
    files.write_json(asked, list(questions))
    with files.open(said, 'w') as out:
      code = run([sys.executable, '-m', module, str(asked), str(answered)], out=out, env={'JAX_PLATFORMS': 'cpu'})
    signals.check()
    if code:
      raise RuntimeError(f'{module} ended with exit code {code}: {files.read_text(said)}')
    found: list[Any] = files.read_json(answered)
    return found


def answer(function: Callable[[Any], Any]) -> None:
  """The other side of `answers`: a function of each question."""
  asked, answered = map(files.path, sys.argv[1:])
  files.write_json(answered, [function(question) for question in files.read_json(asked)])
