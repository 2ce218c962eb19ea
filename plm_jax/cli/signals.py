"""SIGINT and SIGTERM ask a command to stop: noted at once, asked about between its stages and steps.

A KeyboardInterrupt that Python raises in the middle of an import or of a callback of jax may be lost there. So the
handler raises nothing; the command calls `check` where it can stop. A thread answers the user even while the main
thread compiles, and ends the process on a second signal. Nothing but the standard library is imported, so that a
command can call `begin` before its other imports.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

STOPPED, KILLED = 3, 130
SIGNALS = (signal.SIGINT, signal.SIGTERM)
ONE = 0.1  # seconds; `timeout` of coreutils sends a signal to the process and to its group, which is one request


class Interrupted(KeyboardInterrupt):
  """A signal stopped the command where it could stop.

  Attributes:
    exit_code: 3 where something was saved that the same command goes on from, else 130.
  """

  def __init__(self, message: str = 'interrupted before there was anything new to save', exit_code: int = KILLED):
    super().__init__(message)
    self.exit_code = exit_code


class _State:
  """Of the process: there is one set of handlers.

  Attributes:
    asked: whether a signal came.
    pass_on: what becomes of a signal in a run of several processes, where all have to stop at the same step.
    undo: gives back what `begin` took; None before.
  """

  asked = False
  pass_on: int | None = None
  undo: contextlib.ExitStack | None = None


def begin() -> None:
  """Takes SIGINT and SIGTERM from now on; does nothing a second time, or in a thread."""
  if _State.undo is not None or threading.current_thread() is not threading.main_thread():
    return
  _State.undo = contextlib.ExitStack()
  reader, writer = os.pipe()
  os.set_blocking(writer, False)
  threading.Thread(target=_answer, args=(reader,), name='signals', daemon=True).start()
  _State.undo.callback(os.close, writer)  # ends the thread
  _State.undo.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(writer, warn_on_full_buffer=False))
  for number in SIGNALS:
    _State.undo.callback(signal.signal, number, signal.signal(number, _note) or signal.SIG_DFL)


def end() -> None:
  """Gives the signals back."""
  if _State.undo is not None:
    _State.undo.close()
  _State.asked, _State.pass_on, _State.undo = False, None, None


@contextlib.contextmanager
def caught() -> Iterator[None]:
  """`begin` for the time of the body, or of the function that it decorates; inside another one it changes nothing."""
  outermost = _State.undo is None
  begin()
  try:
    yield
  finally:
    if outermost:
      end()


def asked() -> bool:
  """Whether a signal asked the command to stop."""
  return _State.asked


def check() -> None:
  """Raises Interrupted if a signal asked the command to stop."""
  if _State.asked:
    raise Interrupted


def pass_on(number: int) -> None:
  """Raises this signal in the process at every signal from now on; its handler is not one of Python's."""
  _State.pass_on = number
  if _State.asked:
    signal.raise_signal(number)


def _note(number: int, frame: Any) -> None:
  del number, frame
  _State.asked = True
  if _State.pass_on is not None:
    signal.raise_signal(_State.pass_on)


def _answer(reader: int) -> None:
  """Reads the number of each signal as it comes, which the interpreter writes before it calls a handler."""
  first: float | None = None
  while came := os.read(reader, 64):
    now = time.monotonic()
    names = [signal.Signals(number).name for number in came if number in SIGNALS]
    if names and first is None:
      first = now
      _say(f'{names[0]}: stopping as soon as nothing is lost; a second one ends the process at once')
    elif names and first is not None and now - first > ONE:
      _say(f'{names[0]}: ended at once')
      os._exit(KILLED)
  os.close(reader)


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
