"""The flags of commands that several processes, usually one per host, run together."""

import argparse
from typing import NamedTuple

from plm_jax.cli import command
from plm_jax.core.errors import ConfigError

TIMEOUT = 300  # seconds


class Flags(NamedTuple):
  """What the command line says of the other processes; None where it says nothing.

  Attributes:
    coordinator: HOST:PORT of process 0.
    processes: their number; 1 without a coordinator looks for no others.
    process: index of this one.
    timeout: seconds in which all have to come.
  """

  coordinator: str | None = None
  processes: int | None = None
  process: int | None = None
  timeout: int = TIMEOUT

  @property
  def alone(self) -> bool:
    """Whether the user asks for one process, whatever the environment says."""
    return self.processes == 1 and self.coordinator is None


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the flags that `given` reads."""
  parser.add_argument(
    '--coordinator',
    metavar='HOST:PORT',
    help='of process 0, for a run of several processes; Cloud TPU, GKE and SLURM need none of these flags',
  )
  parser.add_argument(
    '--processes', type=command.COUNT, metavar='N', help='number of processes; 1 looks for no others, wherever it runs'
  )
  parser.add_argument('--process', type=command.WHOLE, metavar='I', help='index of this process, from 0')
  parser.add_argument(
    '--join_timeout',
    type=command.COUNT,
    default=TIMEOUT,
    metavar='SECONDS',
    help=f'in which all processes have to come (default {TIMEOUT})',
  )


def given(arguments: argparse.Namespace) -> Flags:
  """What the flags say.

  Raises:
    ConfigError: they do not go together.
  """
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
