"""Joining of the processes of a run, found in the environment like jax does, or named by flags.

jax detects the number of processes on Cloud TPU, on GKE, under SLURM and under Open MPI. Nothing is joined unless there
are several: a laptop, a TPU of one host and a single SLURM task do not wait. A process that cannot join ends with a
message; jax alone would abort it after five silent minutes.
"""

import contextlib
import errno
import logging
import os
import socket
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax._src import clusters, distributed  # the list that `jax.distributed.initialize` goes through, and its client

from plm_jax.cli import signals
from plm_jax.cli.hosts import Flags
from plm_jax.core.errors import ConfigError, RunError

log = logging.getLogger(__name__)

NAMES = {
  'slurm': 'SLURM',
  'ompi': 'Open MPI',
  'gketpu': 'TPUs of GKE',
  'gcetpu': 'Cloud TPU',
  '': 'Kubernetes',  # jax gives it no name
}
OF_TPUS = ('gketpu', 'gcetpu')
REPORT_SECONDS = 15
WAIT_S = 86_400  # for process 0, which may compile; if it is gone, jax ends the others sooner
PROBE_SECONDS = 3.0  # for the address of a coordinator or of the metadata server to answer


class Cluster(NamedTuple):
  """Processes of a run, as an environment describes them."""

  name: str  # of the environment, for messages
  processes: int  # their number
  process: int  # index of this one
  coordinator: Callable[[int], str]  # (seconds to wait for its name) -> HOST:PORT of process 0


def join(flags: Flags) -> None:
  """Connect to the other processes of the run, if there are any.

  Raises ConfigError: flags and environment contradict each other, or process 0 cannot take its port; RunError: not all
  processes came in time.
  """
  if flags.alone:
    return
  found = detected()
  if flags.coordinator is not None:
    _check_agree(flags, found)
    named = flags.coordinator
    found = Cluster('the flags', flags.processes or 1, flags.process or 0, lambda timeout: named)
  if found is None:
    return
  if found.processes == 1 and flags.coordinator is None:
    log.info(f'{found.name}: this process is the only one')
    return
  _connect(found, flags)
  if jax.process_count() != found.processes:
    raise ConfigError(
      f'{found.processes} processes were joined ({found.name}), and the devices of this one belong to '
      f'{jax.process_count()}: start one process on every host of the TPU, and no more'
    )


def part() -> None:
  """Wait until all processes are here, then disconnect.

  Call it where all of them end the same way. jax aborts a process whose coordinator, process 0, left first.
  """
  try:
    jax.distributed.shutdown()
  except RuntimeError as error:  # another one died since: what this one has to say is said
    log.warning(f'not all processes came to the end: {str(error).splitlines()[0]}')


def detected() -> Cluster | None:
  """Return the first environment of jax that this process runs in."""
  for kind in clusters.ClusterEnv._cluster_types:
    if kind.opt_in_only_method or not _applies(kind):
      continue
    name = NAMES.get(kind.name, kind.name)
    try:
      with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter('always')
        present = kind.is_env_present()
      for warning in told:
        log.info(' '.join(str(warning.message).split()))
      if present:
        return _asked(kind, name)
    except Exception as error:  # noqa: BLE001 - a service of the environment does not answer, in whatever way
      log.warning(
        f'{name} could not be asked for the other processes ({type(error).__name__}: {error}); if there are some, '
        '--coordinator, --processes and --process name them'
      )
  return None


def _applies(kind: Any) -> bool:
  """Return whether an environment may apply, such as TPUs with metadata."""
  if kind.name in OF_TPUS and 'tpu' not in _platforms():
    return False
  return kind.name != 'gcetpu' or not clusters.cloud_tpu_cluster.running_in_cloud_tpu_vm or _has_metadata()


def _platforms() -> list[str]:
  """Return the platforms of this process; jax prefers a TPU by default."""
  return (jax.config.jax_platforms or 'tpu').split(',')  # type: ignore[attr-defined]


def _has_metadata() -> bool:
  """Return whether Google Cloud's metadata server responds; jax would wait."""
  return not _unreached(f'{os.environ.get("GCE_METADATA_IP", "metadata.google.internal")}:80')


def _asked(kind: Any, name: str) -> Cluster:
  processes = kind.get_process_count()
  if kind.name == 'slurm':  # a step of fewer tasks than its job
    processes = int(os.environ.get('SLURM_STEP_NUM_TASKS', processes))

  def coordinator(timeout: int) -> str:
    return kind.get_coordinator_address(
      timeout_secs=timeout, override_coordinator_port=os.environ.get('JAX_COORDINATOR_PORT')
    )

  return Cluster(name, processes, kind.get_process_id() if processes > 1 else 0, coordinator)


def _check_agree(flags: Flags, found: Cluster | None) -> None:
  """Raise ConfigError if the flags contradict the environment."""
  variable = os.environ.get('JAX_COORDINATOR_ADDRESS')
  if variable is not None and variable != flags.coordinator:
    raise ConfigError(
      f'--coordinator={flags.coordinator}, and the environment has JAX_COORDINATOR_ADDRESS={variable}: leave one out'
    )
  if found is None or found.processes == 1:
    return
  if (found.processes, found.process) != (flags.processes, flags.process):
    raise ConfigError(
      f'--processes={flags.processes} --process={flags.process}, and {found.name} says that this is process '
      f'{found.process} of {found.processes}: leave --coordinator, --processes and --process out, or give its numbers'
    )


def _connect(found: Cluster, flags: Flags) -> None:
  """Wait for all processes and log progress; raises like `join`."""
  address: list[str] = []  # known once the environment has given it, which may take a while
  said = 0.0

  def initialise() -> None:
    address.append(found.coordinator(flags.timeout))
    if found.process == 0:
      _check_port(address[0])
    jax.distributed.initialize(
      address[0],
      num_processes=found.processes,
      process_id=found.process,
      # of jax's own ways to find other processes, this one takes which devices are its own; flags leave it all of them
      cluster_detection_method=None if flags.coordinator is None else 'deactivate',
      initialization_timeout=2 * flags.timeout + 60,  # jax aborts the process then; this function raises before
    )

  def told(seconds: float) -> None:
    nonlocal said
    if seconds >= flags.timeout:
      raise RunError(
        f'process {found.process} of {found.processes} gave up after {flags.timeout} s: {_why(found, address)}. Start '
        'the same command on every host; --join_timeout=SECONDS waits longer'
      )
    if seconds >= said + REPORT_SECONDS:
      said = seconds
      log.info(f'still waiting for the other processes ({seconds:.0f} of {flags.timeout} s): {_why(found, address)}')

  log.info(f'{found.name}: process {found.process} of {found.processes} joins the others')
  try:
    signals.waiting(initialise, told=told)
  except (RuntimeError, OSError, ValueError) as error:
    where = address[0] if address else 'process 0'
    raise RunError(
      f'process {found.process} of {found.processes} could not join at {where} ({found.name}): '
      f'{str(error).splitlines()[0]}. Start the same command once on every host'
    ) from error
  log.info(f'joined {found.processes} processes at {address[0]} (known from: {found.name})')


def _why(found: Cluster, address: list[str]) -> str:
  """Return what is missing, as far as this process knows."""
  if not address:
    return f'the host of process 0 has no address yet ({found.name})'
  if found.process and (reason := _unreached(address[0])):
    return f'process 0 does not answer at {address[0]} ({reason})'
  return f'at {address[0]}, not all of the others have come'


def _check_port(address: str) -> None:
  """Raise ConfigError, not jax's crash, if the port is taken."""
  port = int(address.rpartition(':')[2])
  family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
  try:
    with socket.create_server(('', port), family=family, dualstack_ipv6=family == socket.AF_INET6):
      pass
  except OSError as error:
    raise ConfigError(
      f'process 0 cannot wait for the others at {address} ({os.strerror(error.errno or errno.EIO)}): is another run '
      'there? Name another port: --coordinator, or JAX_COORDINATOR_PORT in the environment'
    ) from error


def _unreached(address: str) -> str:
  """Return why HOST:PORT does not respond; '' if it does."""
  host, _, port = address.rpartition(':')
  try:
    with socket.create_connection((host.strip('[]'), int(port)), timeout=PROBE_SECONDS):
      return ''
  except OSError as error:
    return error.strerror or str(error)


# What processes tell each other, whatever state their devices are in --------------------------------------------------


def tell_all(key: str, text: str, *, timeout: int) -> list[str | None]:
  """Exchange texts under a key; return those of all processes.

  None stands for a process that said nothing within the timeout, in seconds. The coordinator transmits them, without
  devices. All processes call it, with a new key each time.
  """
  client = distributed.global_state.client
  if client is None:
    return [text]
  client.key_value_set(f'plm_jax/{key}/{distributed.global_state.process_id}', text)
  ends = time.monotonic() + timeout
  heard: list[str | None] = []
  for process in range(distributed.global_state.num_processes):
    try:
      left = max(int(1000 * (ends - time.monotonic())), 1)
      heard.append(client.blocking_key_value_get(f'plm_jax/{key}/{process}', left))
    except jax.errors.JaxRuntimeError as error:
      log.warning(f'process {process} did not say its {key}: {str(error).splitlines()[0]}')
      heard.append(None)
  return heard


def from_first(key: str, text: str) -> str:
  """Return the text of process 0; all processes call it."""
  client = distributed.global_state.client
  if client is None:
    return text
  if first():
    client.key_value_set(f'plm_jax/{key}', text)
    return text
  return client.blocking_key_value_get(f'plm_jax/{key}', 1000 * WAIT_S)


def tell_first(key: str, text: str) -> str | None:
  """Publish a text unless another did; return the published one, or None."""
  client = distributed.global_state.client
  if client is not None:
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # another one was first
      client.key_value_set(f'plm_jax/{key}', text)
  return heard(key)


def heard(key: str) -> str | None:
  """Return the text that a process published by `tell_first`, if any."""
  client = distributed.global_state.client
  if client is not None:
    with contextlib.suppress(jax.errors.JaxRuntimeError):
      return client.key_value_try_get(f'plm_jax/{key}')
  return None


def meet(key: str, *, timeout: int) -> bool:
  """Wait for all processes; False if one did not come in time."""
  client = distributed.global_state.client
  try:
    if client is not None:
      client.wait_at_barrier(f'plm_jax/{key}', 1000 * timeout)
  except jax.errors.JaxRuntimeError as error:
    log.warning(f'not all processes came to {key}: {str(error).splitlines()[0]}')
    return False
  return True


def alone() -> bool:
  """Return whether this process joined no other."""
  return distributed.global_state.client is None


def first() -> bool:
  """Return whether this is process 0."""
  return process() == 0


def process() -> int:
  """Return the index of this process."""
  return distributed.global_state.process_id or 0
