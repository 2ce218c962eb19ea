"""Where the log of a command goes: stderr, one plain line per message; a run adds its `log.txt`.

Every file of the package logs to `logging.getLogger(__name__)`, below the logger of the package. A command that logs
itself uses what `start` returns, since its `__name__` may be '__main__'.
"""

import logging
import os
import sys
from typing import TextIO

PACKAGE = 'plm_jax'


def start(level: int = logging.INFO) -> logging.Logger:
  """Sets up the logger of the package for a command and returns it; a second call changes nothing."""
  # grpc and absl, which Grain and Orbax use, write to stderr before they read their own levels
  os.environ.setdefault('GRPC_VERBOSITY', 'ERROR')
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
  log = logging.getLogger(PACKAGE)
  if not log.handlers:
    handler = _Stderr()
    handler.setFormatter(logging.Formatter('%(message)s'))
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    handler.setLevel(level)
    log.propagate = False
  logging.getLogger('absl').setLevel(logging.WARNING)
  return log


class _Stderr(logging.StreamHandler[TextIO]):
  """Writes to what `sys.stderr` is at the time: while a live line is drawn, rich puts messages above it."""

  def emit(self, record: logging.LogRecord) -> None:
    self.stream = sys.stderr
    super().emit(record)
