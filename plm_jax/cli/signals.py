"""SIGINT and SIGTERM ask a command to stop: noted at once, asked about between its stages and steps.

A KeyboardInterrupt that Python raises in the middle of an import or of a callback of jax may be lost there. So the
handler raises nothing; the command calls `check` where it can stop. A thread answers the user even while the main
thread compiles, and ends the process on a second signal. Nothing that takes time is imported, so that a command can
call `begin` before its other imports.

While a command only prepares data, which jax has no part in, it need not ask: in the body of `raising` a signal is
raised where it comes. A library that computes for minutes outside the interpreter runs by `waiting`.

A command that another one runs ends with it (`ENDS_WITH_STDIN`), however that one ends.

A command that never asks, since a kill costs it nothing, calls `begin(ends=True)`: there the first signal ends the
process. `command.run` does so for every command that has not begun by itself.
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
ENDS_WITH_STDIN = 'PLM_JAX_ENDS_WITH_STDIN'  # in the environment: this process is asked to stop when its stdin closes
HANGS = 'may hang'  # begins the names of threads that nobody waits for
SIGNALS = (signal.SIGINT, signal.SIGTERM)
ONE = 0.1  # seconds; `timeout` of coreutils sends a signal to the process and to its group, which is one request


class _State:
  """Of the process: there is one set of handlers.

  Attributes:
    asked: whether a signal came.
    raises: whether a signal is raised where it comes.
    ends: whether the first signal ends the process, as nobody asks.
    pass_on: what becomes of a signal in a run of several processes, where all have to stop at the same step.
    told: whether the first signal was answered.
    telling: held while it is, so that nothing is printed into the answer; a second signal may come in its holder.
    undo: gives back what `begin` took; None before.
  """

  asked = False
  raises = False
  ends = False
  pass_on: int | None = None
  told = False
  telling = threading.RLock()
  undo: contextlib.ExitStack | None = None


def begin(*, ends: bool = False) -> None:
  """Takes SIGINT and SIGTERM from now on; does nothing a second time, or in a thread.

  Args:
    ends: the first signal ends the process, until somebody begins without it.
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
  for number in SIGNALS:
    _State.undo.callback(signal.signal, number, signal.signal(number, _note) or signal.SIG_DFL)
  _State.undo.callback(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, _raise_again) or signal.SIG_DFL)
  _State.undo.callback(signal.setitimer, signal.ITIMER_REAL, 0)  # before its handler is taken away
  _State.undo.callback(setattr, sys, 'unraisablehook', sys.unraisablehook)
  sys.unraisablehook = functools.partial(_lost, sys.unraisablehook)
  if os.environ.pop(ENDS_WITH_STDIN, ''):  # taken out: processes that this one starts have a stdin of their own
    _end_with_stdin()


def _end_with_stdin() -> None:
  """Asks this process to stop, as a signal does, when its stdin closes: what started it was stopped or killed."""

  def watch() -> None:
    while os.read(0, 64):
      pass
    if not asked():
      os.kill(os.getpid(), signal.SIGTERM)

  threading.Thread(target=watch, name='stdin', daemon=True).start()


def end() -> None:
  """Gives the signals back."""
  if _State.undo is not None:
    _State.undo.close()
  _State.asked, _State.raises, _State.ends, _State.told = False, False, False, False
  _State.pass_on, _State.undo = None, None
  _State.telling = threading.RLock()


@contextlib.contextmanager
def caught(*, ends: bool = False) -> Iterator[None]:
  """`begin` for the time of the body, or of the function that it decorates; inside another one it changes nothing.

  But where that one ends the process at the first signal, this one has it asked about in its body.
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
  """Asks the command to stop as a first signal does, from any thread, where signals are taken; nothing else changes.

  It counts as no signal: what the system sends next, as it ends its processes, is the first one. In the body of
  `raising` it waits for the end of the body.
  """
  if _State.undo is None:
    return
  _State.asked = True
  if _State.pass_on is not None:
    signal.raise_signal(_State.pass_on)


def asked() -> bool:
  """Whether a signal asked the command to stop."""
  return _State.asked


def check() -> None:
  """Raises Interrupted if a signal asked the command to stop."""
  if _State.asked:
    raise Interrupted


@contextlib.contextmanager
def raising() -> Iterator[None]:
  """A signal raises Interrupted in the main thread as soon as it comes, for the time of the body.

  For work without jax whose files bear that the process is killed at any moment. Several processes stop at the same
  step only: there it changes nothing.
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
  """What `work` returns or raises; it runs in a thread, and a signal ends the waiting for it.

  The thread goes on until the process ends, so a command that waits ends by `command.leave`.

  Args:
    work: what takes long.
    told: is called with the seconds so far, again and again; what it raises ends the waiting.
  """
  found: list[T] = []
  failed: list[BaseException] = []

  def run() -> None:
    try:
      found.append(work())
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
  return found[0]


def pass_on(number: int) -> None:
  """Raises this signal in the process at every signal from now on; its handler is not one of Python's."""
  _State.pass_on = number
  if _State.asked:
    signal.raise_signal(number)


def _note(number: int, frame: Any) -> None:
  del frame
  _State.asked = True
  if _State.ends:  # the thread ends the process
    return
  _tell(signal.Signals(number).name)  # what the command prints next comes after the answer
  if _State.pass_on is not None:
    signal.raise_signal(_State.pass_on)
  elif _State.raises:
    _State.raises = False  # once: what is raised next would interrupt the cleaning up
    raise Interrupted


def _lost(hook: Callable[[Any], Any], unraisable: Any) -> None:
  """Raises a signal once more, a moment later, where it came in a destructor or in a callback of the collector.

  The interpreter drops what is raised there, and the body of `raising` would go on.
  """
  if unraisable.exc_type is not Interrupted:
    hook(unraisable)
    return
  _State.raises = True
  signal.setitimer(signal.ITIMER_REAL, ONE)


def _raise_again(number: int, frame: Any) -> None:
  del number, frame
  if _State.raises:  # else the body has ended, and asked
    _State.raises = False
    raise Interrupted


def _answer(reader: int) -> None:
  """Reads the number of each signal as it comes, which the interpreter writes before it calls a handler."""
  first: float | None = None
  while came := os.read(reader, 64):
    now = time.monotonic()
    names = [signal.Signals(number).name for number in came if number in SIGNALS]
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
  """Ends the process; what it printed is flushed, unless that takes long, as where nobody reads a pipe."""
  flushing = threading.Thread(target=_flush, daemon=True)
  flushing.start()
  flushing.join(10.0)
  os._exit(KILLED)


def _flush() -> None:
  with contextlib.suppress(OSError, ValueError):
    sys.stdout.flush()


def _tell(name: str) -> None:
  """Answers the first signal, once; returns when it is answered, by whichever thread."""
  with _State.telling:
    if not _State.told:
      _State.told = True
      _say(f'{name}: stopping as soon as nothing is lost; a second one ends the process at once')


def _say(text: str) -> None:
  """One line on stderr, whatever the main thread holds; on a terminal, in place of a progress bar, with the cursor."""
  clear = '\r\x1b[2K\x1b[?25h' if os.isatty(2) else ''
  with contextlib.suppress(OSError):
    os.write(2, f'{clear}{text}\n'.encode())


def _forget() -> None:
  """In a forked child, whose signals are not those of the command."""
  if _State.undo is not None:
    end()


os.register_at_fork(after_in_child=_forget)
