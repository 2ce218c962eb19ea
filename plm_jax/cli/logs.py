"""Where the log of a command goes: one line a message on stderr, plain and short; `loop` adds the run's `log.txt`."""

import logging
import os
import sys


def start(level: int = logging.INFO) -> logging.Logger:
  """Sets the package's logger up for a command; called again it changes nothing."""
  # grpc and absl under Grain and Orbax write to stderr before they read their own levels
  os.environ.setdefault('GRPC_VERBOSITY', 'ERROR')
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
  log = logging.getLogger('plm_jax')
  if not log.handlers:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter('%(message)s'))
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    handler.setLevel(level)
    log.propagate = False
  logging.getLogger('absl').setLevel(logging.WARNING)
  return log
