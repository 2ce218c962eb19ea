"""Graceful stop of a command by SIGINT or SIGTERM: a signal is recorded, and polled between stages and steps.

A KeyboardInterrupt that Python raises during an import or a callback of jax may be lost there. So the handler does not
raise; the command calls `check` where it can stop. A thread answers the user even while the main thread compiles, and
ends the process on a second signal. Slow imports are avoided, so that a command can call `begin` before its other
imports.

A command that prepares data without jax need not poll: in the body of `raising` a signal raises at once. A library that
computes for minutes outside the interpreter runs in `waiting`.

A command started by another one ends with it (`ENDS_WITH_STDIN`), even if that one is killed.

A command that never polls, since a kill does no harm, calls `begin(ends=True)`: the first signal ends the process.
`command.run` does so for every command that has not called `begin`.
"""

import contextlib
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from plm_jax.core.errors import KILLED as KILLED
from plm_jax.core.errors import STOPPED as STOPPED
from plm_jax.core.errors import Interrupted as Interrupted

T = TypeVar('T')
ENDS_WITH_STDIN = 'PLM_JAX_ENDS_WITH_STDIN'  # environment variable: this process stops when its stdin closes
HANGS = 'may hang'  # prefix of the names of threads that are not waited for
SIGNALS = (signal.SIGINT, signal.SIGTERM)
ONE = 0.1  # seconds within which signals count as one: coreutils `timeout` signals the process and its group


class _State:
  """The state of the process, which has one set of handlers.

  Attributes:
    asked: a signal was received.
    raises: a signal raises at once.
    ends: the first signal ends the process, since the command does not poll.
    pass_on: signal raised for each signal in a multi-process run, where all processes have to stop at the same step.
    told: the first signal was answered.
    telling: lock during the answer, so that no other output mixes in; reentrant, since a second signal may interrupt
      it.
    undo: restores the handlers; None before `begin`.
  """

  asked = False
  raises = False
  ends = False
  pass_on: int | None = None
  told = False
  telling = threading.RLock()
  undo: contextlib.ExitStack | None = None


def begin(*, ends: bool = False) -> None:
  """Install the handlers of SIGINT and SIGTERM.

  A second call does nothing, nor does a call in a thread. With `ends` the first signal ends the process, until a call
  without it.
  """
  if threading.current_thread() is not threading.main_thread():
    return
  if _State.undo is not None:
    _State.ends = _State.ends and ends
    return
  _State.ends = ends
  _State.undo = contextlib.ExitStack()
  reader, writer = os.pipe()
  os.set_blocking(writer, False)
  threading.Thread(target=_answer, args=(reader,), name='signals', daemon=True).start()
  _State.undo.callback(os.close, writer)  # ends the thread
  _State.undo.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(writer, warn_on_full_buffer=False))
  for signum in SIGNALS:
    _State.undo.callback(signal.signal, signum, signal.signal(signum, _note) or signal.SIG_DFL)
  _State.undo.callback(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, _raise_once) or signal.SIG_DFL)
  _State.undo.callback(signal.setitimer, signal.ITIMER_REAL, 0)  # before its handler is removed
  _State.undo.callback(setattr, sys, 'unraisablehook', sys.unraisablehook)
  sys.unraisablehook = functools.partial(_lost, sys.unraisablehook)
  if os.environ.pop(ENDS_WITH_STDIN, ''):  # removed: child processes have their own stdin
    _end_with_stdin()


def _end_with_stdin() -> None:
  """Send this process SIGTERM when the process that started it ends."""

  def watch() -> None:
    while os.read(0, 64):
      pass
    if not asked():
      os.kill(os.getpid(), signal.SIGTERM)

  threading.Thread(target=watch, name='stdin', daemon=True).start()


def end() -> None:
  """Restore the previous handlers."""
  if _State.undo is not None:
    _State.undo.close()
  _State.asked, _State.raises, _State.ends, _State.told = False, False, False, False
  _State.pass_on, _State.undo = None, None
  _State.telling = threading.RLock()


@contextlib.contextmanager
def caught(*, ends: bool = False) -> Iterator[None]:
  """Call `begin` for the body, or for a decorated function.

  A nested call changes nothing, except that it turns off `ends` of the outer one in its body.
  """
  outermost, before = _State.undo is None, _State.ends
  begin(ends=ends)
  try:
    yield
  finally:
    if outermost:
      end()
    else:
      _State.ends = before


def notice() -> None:
  """Request a stop as a first signal does, from any thread.

  Nothing happens without handlers. It does not count as a signal: the next one of the system is the first. In the body
  of `raising` it takes effect at the end of the body.
  """
  if _State.undo is None:
    return
  _State.asked = True
  if _State.pass_on is not None:
    signal.raise_signal(_State.pass_on)


def asked() -> bool:
  """Return True if a stop was requested."""
  return _State.asked


def check() -> None:
  """Raise Interrupted if a stop was requested."""
  if _State.asked:
    raise Interrupted


@contextlib.contextmanager
def raising() -> Iterator[None]:
  """Let a signal raise Interrupted in the main thread at once.

  For work without jax whose files are safe if the process is killed at any time. In a multi-process run it changes
  nothing, since all processes have to stop at the same step.
  """
  alone = _State.pass_on is None
  if alone:
    check()
  before, _State.raises = _State.raises, alone
  try:
    yield
  finally:
    _State.raises = before and not _State.asked
  if alone:
    check()


def waiting(work: Callable[[], T], *, told: Callable[[float], None] = lambda seconds: None) -> T:
  """Return the result of `work`, run in a thread until a signal.

  The thread continues until the process ends, so a command that waits ends by `command.leave`. `told` is called
  repeatedly with the seconds so far; an exception of it ends the wait.
  """
  results: list[T] = []
  failed: list[BaseException] = []

  def run() -> None:
    try:
      results.append(work())
    except BaseException as error:  # noqa: BLE001 - raised below
      failed.append(error)

  thread = threading.Thread(target=run, name=f'{HANGS}: {work}', daemon=True)
  thread.start()
  began = time.monotonic()
  while thread.is_alive():
    check()
    told(time.monotonic() - began)
    thread.join(ONE)
  if failed:
    raise failed[0]
  return results[0]


def pass_on(signum: int) -> None:
  """Raise this signal, not handled by Python, at every later signal."""
  _State.pass_on = signum
  if _State.asked:
    signal.raise_signal(signum)


def _note(signum: int, frame: Any) -> None:
  _State.asked = True
  if _State.ends:  # the thread ends the process
    return
  _tell(signal.Signals(signum).name)  # the answer precedes further output of the command
  if _State.pass_on is not None:
    signal.raise_signal(_State.pass_on)
  else:
    _raise_once(signum, frame)


def _lost(hook: Callable[[Any], Any], unraisable: Any) -> None:
  """Raise a signal again that the interpreter dropped.

  It drops exceptions in a destructor or a callback of the garbage collector, and the body of `raising` would continue.
  """
  if unraisable.exc_type is not Interrupted:
    hook(unraisable)
    return
  _State.raises = True
  signal.setitimer(signal.ITIMER_REAL, ONE)


def _raise_once(signum: int, frame: Any) -> None:
  if _State.raises:  # otherwise the body has ended with a check
    _State.raises = False  # a second exception would interrupt the cleanup
    raise Interrupted


def _answer(reader: int) -> None:
  """Read each signal's number, which the interpreter writes before calling handlers."""
  first: float | None = None
  while received := os.read(reader, 64):
    now = time.monotonic()
    names = [signal.Signals(signum).name for signum in received if signum in SIGNALS]
    if names and _State.ends:
      _say(f'{names[0]}: interrupted')
      _leave()
    elif names and first is None:
      first = now
      _tell(names[0])
    elif names and first is not None and now - first > ONE:
      _say(f'{names[0]}: ended at once')
      os._exit(KILLED)
  os.close(reader)


def _leave() -> None:
  """End the process after flushing its output, at most 10 seconds."""
  flushing = threading.Thread(target=_flush, daemon=True)
  flushing.start()
  flushing.join(10.0)
  os._exit(KILLED)


def _flush() -> None:
  with contextlib.suppress(OSError, ValueError):
    sys.stdout.flush()


def _tell(name: str) -> None:
  """Answer the first signal once."""
  with _State.telling:
    if not _State.told:
      _State.told = True
      _say(f'{name}: stopping at the next safe point; a second signal ends the process at once')


def _say(text: str) -> None:
  """Write a line to stderr, without any lock of the main thread.

  On a terminal it replaces a progress bar and shows the cursor.
  """
  clear = '\r\x1b[2K\x1b[?25h' if os.isatty(2) else ''
  with contextlib.suppress(OSError):
    os.write(2, f'{clear}{text}\n'.encode())


def _forget() -> None:
  """Restore the handlers in a forked child."""
  if _State.undo is not None:
    end()


os.register_at_fork(after_in_child=_forget)
