"""Outputs of metrics in addition to `metrics.jsonl`: TensorBoard, Weights & Biases. None of them ever stops a run.

A separate thread writes to each sink from a bounded queue. Lines that a sink does not accept are dropped with one
warning, whether it blocks, raises or exits. `metrics.jsonl` has every line.
"""

import contextlib
import hashlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from plm_jax.cli.signals import HANGS
from plm_jax.io import downloads, files

log = logging.getLogger(__name__)

WANDB_MISSING = (
  "log names 'wandb', which is not installed: pip install -r requirements/wandb.txt, or remove it from log"
)
LINES = 1000  # maximum waiting lines per sink
SLOW, CLOSE = 60.0, 15.0  # seconds for a line, and for closing a sink

Numbers = Mapping[str, float]


class Sink(Protocol):
  """An output of metrics, whose methods may block or raise."""

  def write(self, step: int, numbers: Numbers) -> None:
    """Write the numbers of a step; steps ascend."""

  def close(self) -> None:
    """Write the remaining lines."""


class Background:
  """A sink in a separate thread. No call blocks or raises, except that `close` waits up to `CLOSE` seconds."""

  def __init__(self, name: str, start: Callable[[], Sink]):
    """Start the thread, in which `start` opens the sink."""
    self._name, self._start = name, start
    self._lines: queue.Queue[tuple[int, Numbers] | None] = queue.Queue(LINES)
    self._busy_since: float | None = None
    self._warned = False
    self._thread = threading.Thread(target=self._work, name=f'{HANGS}: sink {name}', daemon=True)
    self._thread.start()

  def write(self, step: int, numbers: Numbers) -> None:
    """Queue the numbers of a step."""
    try:
      self._lines.put_nowait((step, numbers))
    except queue.Full:
      self._warn(f'{LINES} lines are waiting, others are dropped')
    since = self._busy_since
    if since is not None and time.monotonic() - since > SLOW:
      self._warn(f'one line has taken {SLOW:.0f} s or more')

  def close(self) -> None:
    """Close the sink, or abandon it if it does not end."""
    deadline = time.monotonic() + CLOSE
    with contextlib.suppress(queue.Full):
      self._lines.put(None, timeout=CLOSE)
    self._thread.join(max(deadline - time.monotonic(), 0.0))
    if self._thread.is_alive():
      self._warn(f'it did not close within {CLOSE:.0f} s and is abandoned')

  def _work(self) -> None:
    self._busy_since = time.monotonic()
    try:
      sink = self._start()
      self._busy_since = None
      while (line := self._lines.get()) is not None:
        self._busy_since = time.monotonic()
        try:
          sink.write(*line)
        except Exception as error:  # noqa: BLE001 - any error of a library; the next line may succeed
          self._warn(f'{type(error).__name__}: {error}')
        self._busy_since = None
      sink.close()
    except BaseException as error:  # noqa: BLE001 - a library that exits must not end the run
      self._warn(f'it ended with {type(error).__name__}: {error}')
      while self._lines.get() is not None:
        pass

  def _warn(self, reason: str) -> None:
    if not self._warned:
      self._warned = True
      log.warning(f'metrics may be missing in {self._name}: {reason}; the run continues, metrics.jsonl has every line')


def tensorboard(root: Path, *, resume_step: int | None, settings: Mapping[str, Any]) -> Callable[[], Sink]:
  """Write events to the run folder.

  A name without '/' gets 'train/' before it. `settings` are ignored.
  """

  def start() -> Sink:
    from tensorboardX import SummaryWriter

    purge = None if resume_step is None else resume_step + 1
    stack = contextlib.ExitStack()
    folder = stack.enter_context(files.temporary_folder()) if files.is_address(root) else root
    writer = SummaryWriter(str(folder), purge_step=purge, flush_secs=30)
    return _TensorBoard(writer, stack, {folder: root} if files.is_address(root) else {})

  return start


def wandb(root: Path, *, resume_step: int | None, settings: Mapping[str, Any]) -> Callable[[], Sink]:
  """Log to a run named by the folder; raise ImportError without wandb."""
  try:
    import wandb as library
  except ImportError as error:
    raise ImportError(WANDB_MISSING) from error
  root = files.absolute(root)
  identity = hashlib.sha256(str(root).encode()).hexdigest()[:16]
  ours = {'project': 'plm_jax', 'name': root.name, 'id': identity, 'resume': 'allow'}
  if not files.is_address(root):  # else the default folder of wandb
    ours['dir'] = str(root)
  return lambda: _Wandb(library.init(**{**ours, **settings}))


SINKS: dict[str, Callable[..., Callable[[], Sink]]] = {'tensorboard': tensorboard, 'wandb': wandb}


class _TensorBoard:
  """Events in a folder. A local folder for a URL is sent there as `downloads.Mirror` sends files."""

  def __init__(self, writer: Any, stack: contextlib.ExitStack, sent: Mapping[Path, Path]):
    self._writer, self._stack, self._sent = writer, stack, sent
    self._last, self._took = time.monotonic(), 0.0

  def write(self, step: int, numbers: Numbers) -> None:
    for name, value in numbers.items():
      if math.isfinite(value):  # TensorBoard does not draw others and warns about each
        self._writer.add_scalar(name if '/' in name else f'train/{name}', float(value), step)
    if time.monotonic() - self._last > max(downloads.EVERY, self._took / downloads.SHARE):
      self._send()

  def close(self) -> None:
    self._writer.close()
    self._send()
    self._stack.close()

  def _send(self) -> None:
    began = time.monotonic()
    for folder, root in self._sent.items():
      self._writer.flush()
      for file in files.listing(folder, 'events.*'):
        files.copy(file, root / file.name)
    self._last = time.monotonic()
    self._took = self._last - began


class _Wandb:
  def __init__(self, run: Any):
    self._run = run

  def write(self, step: int, numbers: Numbers) -> None:
    self._run.log(dict(numbers), step=step)

  def close(self) -> None:
    self._run.finish()
