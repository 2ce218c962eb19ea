"""The flags of commands that several processes run together, usually one process per host."""

import argparse
from typing import NamedTuple

from plm_jax.cli import command
from plm_jax.core.errors import ConfigError

TIMEOUT = 300  # seconds


class Flags(NamedTuple):
  """The processes of a run by the command line; None for a flag that is not given."""

  coordinator: str | None = None  # HOST:PORT of process 0
  processes: int | None = None  # their number; 1 without a coordinator means a single process
  process: int | None = None  # index of this process
  timeout: int = TIMEOUT  # seconds in which all processes have to connect

  @property
  def alone(self) -> bool:
    """Return True if the flags request one process, whatever the environment."""
    return self.processes == 1 and self.coordinator is None


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Add the flags that `given` reads."""
  add = parser.add_argument
  help_ = 'address of process 0 in a multi-process run; not needed on Cloud TPU, GKE and SLURM'
  add('--coordinator', metavar='HOST:PORT', help=help_)
  help_ = 'number of processes; 1 runs a single process in any environment'
  add('--processes', type=command.COUNT, metavar='N', help=help_)
  add('--process', type=command.WHOLE, metavar='I', help='index of this process, from 0')
  help_ = f'time for all processes to connect (default {TIMEOUT})'
  add('--join_timeout', type=command.COUNT, default=TIMEOUT, metavar='SECONDS', help=help_)


def given(arguments: argparse.Namespace) -> Flags:
  """Return the flags; raise ConfigError if they contradict each other."""
  flags = Flags(arguments.coordinator, arguments.processes, arguments.process, arguments.join_timeout)
  coordinator, processes, process, _ = flags
  if flags.alone and process in (None, 0):
    return flags
  if coordinator is None and processes is None and process is None:
    return flags
  if coordinator is None or processes is None or process is None:
    raise ConfigError('--coordinator, --processes and --process are given together or not at all')
  if process >= processes:
    raise ConfigError(f'--process={process}: the {processes} processes are numbered 0 to {processes - 1}')
  host, colon, port = coordinator.rpartition(':')
  if not host or not colon or not port.isdigit() or not 0 < int(port) < 65_536:
    raise ConfigError(f'--coordinator={coordinator}: give HOST:PORT of process 0, such as localhost:1234')
  return flags
