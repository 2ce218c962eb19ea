"""Commands in processes of their own: one that fails takes nothing with it, and leaves the accelerator to the next."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import TextIO

from plm_jax import files
from plm_jax.cli import signals

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
