"""Failures of one process end all others within seconds, and each logs the cause.

A collective waits for every process. If one has raised, the others would wait until jax notices and aborts them without
a message. So a process that fails reports that through the coordinator. A thread in each other process polls for it,
logs the cause and, if the main thread does not end by itself, ends the process.

They leave together, since the coordinator runs in process 0: without it jax aborts a process in the middle of its
message.
"""

import atexit
import contextlib
import json
import logging
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from plm_jax.cli import command
from plm_jax.core.errors import KILLED, ConfigError, Interrupted, RunError
from plm_jax.io import files
from plm_jax.training.hosts import join

log = logging.getLogger(__name__)

KEY = 'failed'
POLL_S = 1.0  # between two times that a process asks whether another one has failed
GRACE_S = 3.0  # for the main thread to end by itself
UNWIND_S = 10.0  # for a process that failed to close what it holds, which may wait for the others
LEAVE_S = 15  # for all processes to have said what they have to say
_failed = threading.Event()  # this process did, by itself


class Failure(NamedTuple):
  """End of a process: its index, machine and exit code, and the cause in one line."""

  process: int
  host: str
  code: int
  cause: str

  def __str__(self) -> str:
    return f'process {self.process} ({self.host}) ended: {self.cause}'


@contextlib.contextmanager
def watched() -> Iterator[None]:
  """End this process if another fails; report its own failures."""
  if join.alone():
    yield
    return
  over = threading.Event()
  thread = threading.Thread(target=_watch, args=(over,), name='failures of others', daemon=True)
  thread.start()
  try:
    with told():
      yield
  finally:
    over.set()
    thread.join(POLL_S)  # it does not ask the coordinator while jax lets go of it


@contextlib.contextmanager
def told() -> Iterator[None]:
  """Report an exception of the body to others before anything is closed."""
  try:
    yield
  except BaseException as error:
    if not join.alone() and not _failed.is_set():
      _failed.set()
      _tell(error)
    raise


def _tell(error: BaseException) -> None:
  """Tell the others, and end this process once they know."""
  mine = Failure(join.process(), socket.gethostname(), _code(error), _cause(error))
  first = _read(join.tell_first(KEY, json.dumps(mine._asdict())))
  if first is not None and first.cause != mine.cause:  # it failed because of another one
    log.error(first)
  log.error(mine)
  atexit.register(_leave, mine.code)  # before what jax registered, which waits for collectives
  late = threading.Timer(UNWIND_S, _leave, (mine.code, error))
  late.daemon = True
  late.start()


def _code(error: BaseException) -> int:
  """Return the exit code of the command for an error."""
  if isinstance(error, KeyboardInterrupt):
    return error.exit_code if isinstance(error, Interrupted) else KILLED
  return command.WRONG_USAGE if isinstance(error, ConfigError) else command.FAILED


def _cause(error: BaseException) -> str:
  """Return an error's first line, with its type unless for users."""
  text = next(iter(str(error).splitlines()), '')
  return text if isinstance(error, ConfigError | RunError) else f'{type(error).__name__}: {text}'


def _read(text: str | None) -> Failure | None:
  return None if text is None else Failure(**files.parse_json(text))


def _watch(over: threading.Event) -> None:
  """Poll until the body is over or another process has failed."""
  while not over.wait(POLL_S):
    failure = _read(join.heard(KEY))
    if _failed.is_set():
      return
    if failure is not None:
      log.error(failure)
      if not over.wait(GRACE_S):
        _leave(failure.code)
      return


def _leave(code: int, error: BaseException | None = None) -> NoReturn:
  """End the process, whatever its main thread waits for."""
  if error is not None and not isinstance(error, ConfigError | RunError):
    traceback.print_exception(error)
  # a thread that holds the lock of a handler must not keep the process
  flushing = threading.Thread(target=_flush, daemon=True)
  flushing.start()
  flushing.join(GRACE_S)
  join.meet(KEY, timeout=LEAVE_S)
  if join.first():
    time.sleep(POLL_S)  # the last to go, as the others need it until they are gone
  os._exit(code)


def _flush() -> None:
  logging.shutdown()
  for stream in (sys.stdout, sys.stderr):
    stream.flush()
