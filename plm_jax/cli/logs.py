"""Logging of a command to stderr, one plain line per message; a run adds its `log.txt`.

Every file of the package logs to `logging.getLogger(__name__)`, below the logger of the package. A command logs to the
result of `start`, since its `__name__` may be '__main__'.
"""

import logging
import os
import sys
from typing import TextIO

PACKAGE = 'plm_jax'


def start(level: int = logging.INFO) -> logging.Logger:
  """Set up the logger of the package once and return it."""
  # grpc and absl (of Grain and Orbax) write to stderr before they read their own levels
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
  """A handler that writes to the current `sys.stderr`: rich puts messages above a live line."""

  def emit(self, record: logging.LogRecord) -> None:
    self.stream = sys.stderr
    super().emit(record)
