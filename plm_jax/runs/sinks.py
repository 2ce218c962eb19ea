"""Where metrics go beside `metrics.jsonl`: TensorBoard, Weights & Biases. None of them ever stops a run.

Each is written to by a thread of its own, from a queue that is bounded. What a sink does not take is dropped, with one
warning, whether it blocks, raises or is gone; `metrics.jsonl` has every line.
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

from plm_jax.io import downloads, files
from plm_jax.cli.signals import HANGS

log = logging.getLogger(__name__)

WANDB_MISSING = (
  "log names 'wandb', which is not installed: pip install -r requirements/wandb.txt, or leave it out of log"
)
LINES = 1000  # that wait for a sink
SLOW, CLOSE = 60.0, 15.0  # seconds that a line may take, and that a sink gets to end

Numbers = Mapping[str, float]


class Sink(Protocol):
  """Takes metrics; its methods may block or raise."""

  def write(self, step: int, numbers: Numbers) -> None:
    """Takes the numbers of a step, steps ascending."""

  def close(self) -> None:
    """Writes out what is left."""


class Background:
  """A sink in a thread of its own. No call blocks or raises, but for `close`, which waits for `CLOSE` seconds."""

  def __init__(self, name: str, start: Callable[[], Sink]):
    """`start` opens the sink, in the thread."""
    self._name, self._start = name, start
    self._lines: queue.Queue[tuple[int, Numbers] | None] = queue.Queue(LINES)
    self._busy_since: float | None = None
    self._warned = False
    self._thread = threading.Thread(target=self._work, name=f'{HANGS}: sink {name}', daemon=True)
    self._thread.start()

  def write(self, step: int, numbers: Numbers) -> None:
    """Hands over the numbers of a step."""
    try:
      self._lines.put_nowait((step, numbers))
    except queue.Full:
      self._warn(f'{LINES} lines are waiting for it, and others are dropped')
    since = self._busy_since
    if since is not None and time.monotonic() - since > SLOW:
      self._warn(f'it has been busy with one line for {SLOW:.0f} s or more')

  def close(self) -> None:
    """Lets the sink end; leaves it behind if it does not."""
    deadline = time.monotonic() + CLOSE
    with contextlib.suppress(queue.Full):
      self._lines.put(None, timeout=CLOSE)
    self._thread.join(max(deadline - time.monotonic(), 0.0))
    if self._thread.is_alive():
      self._warn(f'it did not end in {CLOSE:.0f} s, and is left behind')

  def _work(self) -> None:
    self._busy_since = time.monotonic()
    try:
      sink = self._start()
      self._busy_since = None
      while (line := self._lines.get()) is not None:
        self._busy_since = time.monotonic()
        try:
          sink.write(*line)
        except Exception as error:  # noqa: BLE001 - whatever a library raises; the next line may be taken again
          self._warn(f'{type(error).__name__}: {error}')
        self._busy_since = None
      sink.close()
    except BaseException as error:  # noqa: BLE001 - one that exits must not end the run either
      self._warn(f'it ended with {type(error).__name__}: {error}')
      while self._lines.get() is not None:
        pass

  def _warn(self, what: str) -> None:
    if not self._warned:
      self._warned = True
      log.warning(f'metrics may be missing in {self._name}: {what}; the run goes on, metrics.jsonl has every line')


def tensorboard(root: Path, *, resume_step: int | None, settings: Mapping[str, Any]) -> Callable[[], Sink]:
  """Events in the run folder; a name without '/' gets 'train/' before it. `settings` are of no use to it."""
  del settings

  def start() -> Sink:
    from tensorboardX import SummaryWriter

    purge = None if resume_step is None else resume_step + 1
    stack = contextlib.ExitStack()
    folder = stack.enter_context(files.temporary_folder()) if files.is_address(root) else root
    writer = SummaryWriter(str(folder), purge_step=purge, flush_secs=30)
    return _TensorBoard(writer, stack, {folder: root} if files.is_address(root) else {})

  return start


def wandb(root: Path, *, resume_step: int | None, settings: Mapping[str, Any]) -> Callable[[], Sink]:
  """A run named by the folder, continued on resume.

  Raises:
    ImportError: the package is not installed.
  """
  del resume_step
  try:
    import wandb as library
  except ImportError as error:
    raise ImportError(WANDB_MISSING) from error
  root = files.absolute(root)
  identity = hashlib.sha256(str(root).encode()).hexdigest()[:16]
  ours = {'project': 'plm_jax', 'name': root.name, 'id': identity, 'resume': 'allow'}
  if not files.is_address(root):  # else where wandb keeps its own copies
    ours['dir'] = str(root)
  return lambda: _Wandb(library.init(**{**ours, **settings}))


SINKS: dict[str, Callable[..., Callable[[], Sink]]] = {'tensorboard': tensorboard, 'wandb': wandb}


class _TensorBoard:
  """Events in a folder. One of this machine that stands for an address is sent there as `copies.Mirror` sends files."""

  def __init__(self, writer: Any, stack: contextlib.ExitStack, sent: Mapping[Path, Path]):
    self._writer, self._stack, self._sent = writer, stack, sent
    self._last, self._took = time.monotonic(), 0.0

  def write(self, step: int, numbers: Numbers) -> None:
    for name, value in numbers.items():
      if math.isfinite(value):  # TensorBoard draws no others, and warns of each
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
