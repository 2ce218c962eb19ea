"""How the processes of a run find each other: what jax detects, flags, both at once, and a coordinator out of reach."""

import socket
import subprocess
import sys
import time
from typing import Any

import jax
import pytest
from jax._src import clusters

from plm_jax.cli.hosts import Flags
from plm_jax.core.errors import ConfigError
from plm_jax.training.hosts import join as hosts
from tests import conftest, runs

SLURM = {
  'SLURM_JOB_ID': '77',
  'SLURM_STEP_NODELIST': 'localhost',
  'SLURM_NTASKS': '4',
  'SLURM_PROCID': '2',
  'SLURM_LOCALID': '0',
}
TPU = clusters.cloud_tpu_cluster


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
  """None of the variables by which an environment is known."""
  for name in (*SLURM, 'SLURM_STEP_NUM_TASKS', 'OMPI_MCA_orte_hnp_uri', 'KUBERNETES_SERVICE_HOST',
               'TPU_WORKER_HOSTNAMES', 'TPU_PROCESS_ADDRESSES', 'JAX_COORDINATOR_ADDRESS'):  # fmt: skip
    monkeypatch.delenv(name, raising=False)


def set_all(monkeypatch: pytest.MonkeyPatch, values: dict[str, str]) -> None:
  for name, value in values.items():
    monkeypatch.setenv(name, value)


@pytest.fixture
def tpu_vm(monkeypatch: pytest.MonkeyPatch) -> None:
  """As on a TPU VM whose user has not asked for another platform."""
  monkeypatch.setattr(TPU, 'running_in_cloud_tpu_vm', True)
  monkeypatch.setattr(hosts, '_platforms', lambda: ['tpu', 'cpu'])
  monkeypatch.setattr(hosts, '_has_metadata', lambda: True)
  monkeypatch.delenv('TPU_SKIP_MDS_QUERY', raising=False)


@pytest.fixture
def refuses(monkeypatch: pytest.MonkeyPatch) -> None:
  """Nothing is joined."""

  def initialize(*args: Any, **kwargs: Any) -> None:
    raise AssertionError('joins')

  monkeypatch.setattr(jax.distributed, 'initialize', initialize)


@pytest.mark.usefixtures('refuses')
def test_a_laptop_waits_for_nobody() -> None:
  assert hosts.detected() is None
  hosts.join(Flags())


def test_tasks_of_slurm_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
  set_all(monkeypatch, SLURM)
  found = hosts.detected()
  assert found is not None
  assert (found.name, found.processes, found.process) == ('SLURM', 4, 2)
  assert found.coordinator(1).startswith('localhost:')


@pytest.mark.usefixtures('refuses', 'log')
@pytest.mark.parametrize('changes', [{'SLURM_NTASKS': '1', 'SLURM_PROCID': '0'}, {'SLURM_STEP_NUM_TASKS': '1'}])
def test_one_task_of_slurm_does_not_wait(
  changes: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
  """Also a step of one task in a job of many."""
  set_all(monkeypatch, SLURM | changes)
  hosts.join(Flags())
  assert 'SLURM: this process is the only one' in caplog.text


@pytest.mark.usefixtures('tpu_vm')
@pytest.mark.parametrize(('workers', 'number'), [('a,b,c', 3), ('localhost', 1)])
def test_workers_of_gke_are_found(workers: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(TPU, 'get_metadata', lambda key: ('not found', 404))
  set_all(monkeypatch, {'TPU_WORKER_HOSTNAMES': workers, 'TPU_WORKER_ID': '0', 'MEGASCALE_NUM_SLICES': '1',
                        'MEGASCALE_SLICE_ID': '0'})  # fmt: skip
  found = hosts.detected()
  assert found is not None
  assert (found.name, found.processes, found.process) == ('TPUs of GKE', number, 0)


@pytest.mark.usefixtures('tpu_vm')
@pytest.mark.parametrize('endpoints', ['w-0,w-1', 'w-0:1:10.0.0.1,w-1:2:10.0.0.2', 'w-0'])
def test_workers_of_a_tpu_vm_are_found(endpoints: str, monkeypatch: pytest.MonkeyPatch) -> None:
  known = {'agent-worker-number': '0', 'worker-network-endpoints': endpoints, 'tpu-env': ''}
  monkeypatch.setattr(TPU, 'get_metadata', lambda key: (known[key], 200))
  found = hosts.detected()
  assert found is not None
  assert (found.name, found.processes) == ('Cloud TPU', endpoints.count(',') + 1)


@pytest.mark.usefixtures('tpu_vm', 'refuses', 'log')
def test_a_metadata_server_that_fails_is_told(
  monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
  def fails(key: str) -> Any:
    raise OSError('no route to host')

  monkeypatch.setattr(TPU, 'get_metadata', fails)
  hosts.join(Flags())
  assert 'Cloud TPU could not be asked for the other processes (OSError: no route to host)' in caplog.text


@pytest.mark.usefixtures('refuses')
def test_a_tpu_vm_without_a_metadata_server_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(TPU, 'running_in_cloud_tpu_vm', True)
  monkeypatch.setattr(hosts, '_platforms', lambda: ['tpu'])
  monkeypatch.setattr(hosts, 'PROBE_SECONDS', 0.2)
  monkeypatch.setenv('GCE_METADATA_IP', '127.0.0.1')
  monkeypatch.delenv('TPU_SKIP_MDS_QUERY', raising=False)
  began = time.monotonic()
  hosts.join(Flags())
  assert time.monotonic() - began < 5


@pytest.mark.usefixtures('refuses')
def test_who_computes_on_a_cpu_does_not_join_a_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(TPU, 'running_in_cloud_tpu_vm', True)
  monkeypatch.setattr(hosts, '_platforms', lambda: ['cpu'])
  set_all(monkeypatch, {'TPU_WORKER_HOSTNAMES': 'a,b', 'TPU_WORKER_ID': '0'})
  hosts.join(Flags())


@pytest.mark.usefixtures('refuses')
def test_one_process_may_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
  set_all(monkeypatch, SLURM)
  hosts.join(Flags(processes=1))


@pytest.mark.parametrize(
  ('environment', 'flags', 'said'),
  [
    (SLURM, Flags('localhost:1', 2, 0), 'SLURM says that this is process 2 of 4'),
    (SLURM, Flags('localhost:1', 4, 3), 'SLURM says that this is process 2 of 4'),
    ({'JAX_COORDINATOR_ADDRESS': 'other:5'}, Flags('localhost:1', 2, 0), 'JAX_COORDINATOR_ADDRESS=other:5'),
  ],
)
@pytest.mark.usefixtures('refuses')
def test_flags_that_contradict_the_environment_are_refused(
  environment: dict[str, str], flags: Flags, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
  set_all(monkeypatch, environment)
  with pytest.raises(ConfigError, match=said):
    hosts.join(flags)


JOIN = """
import os, sys, threading, time
from plm_jax.cli import signals
signals.begin()
from plm_jax.cli import command, hosts, logs
from plm_jax.training.hosts import join as joining

def main():
  parser = command.Parser('join')
  hosts.add_flags(parser)
  flags = hosts.given(parser.parse_args())
  logs.start()
  joining.REPORT_SECONDS = 1
  joining.join(flags)
  import jax
  # one write that begins and ends with a line's end: Gloo prints from a thread of its own at the same time
  sys.stdout.write(f'\\njoined {jax.process_index()} of {jax.process_count()}\\n')
  threading.Thread(target=time.sleep, args=(60,), name=signals.HANGS, daemon=True).start()  # as a run has: a sink
  time.sleep(float(os.environ.get('LINGERS', 0)))
  joining.part()
  return 0

command.leave(command.run(main))
"""


def join(*flags: str, **environment: str) -> subprocess.Popen[str]:
  return subprocess.Popen(
    [sys.executable, '-c', JOIN, *flags],
    cwd=conftest.ROOT, env=runs.environment(devices=1, **environment),
    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
  )  # fmt: skip


def free_port() -> int:
  with socket.socket() as probe:
    probe.bind(('localhost', 0))
    return probe.getsockname()[1]


def test_tasks_of_slurm_meet_without_flags() -> None:
  tasks = {**SLURM, 'SLURM_NTASKS': '2', 'JAX_COORDINATOR_PORT': str(free_port())}
  running = [join(**{**tasks, 'SLURM_PROCID': str(number)}) for number in range(2)]
  for number, process in enumerate(running):
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert f'joined {number} of 2' in out.splitlines()
    assert 'known from: SLURM' in err


def test_who_ends_later_keeps_its_coordinator() -> None:
  both = [f'--coordinator=localhost:{free_port()}', '--processes=2']
  running = [join(*both, '--process=0'), join(*both, '--process=1', LINGERS='4')]
  for process in running:
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err


def test_what_cannot_be_reached_ends_with_a_sentence() -> None:
  """A port where nobody listens, a name that does not exist, others that do not come, and a port that is taken."""
  with socket.create_server(('localhost', 0)) as taken:
    waiting = ['--processes=2', '--join_timeout=2']
    cases = {
      'does not answer at localhost:9 (Connection refused)': ['--coordinator=localhost:9', '--process=1', *waiting],
      'does not answer at no.such.host.invalid:99': ['--coordinator=no.such.host.invalid:99', '--process=1', *waiting],
      'not all of the others have come': [f'--coordinator=localhost:{free_port()}', '--process=0', *waiting],
      'Address already in use': [f'--coordinator=localhost:{taken.getsockname()[1]}', '--process=0', *waiting],
    }
    running = {said: join(*flags) for said, flags in cases.items()}
    for said, process in running.items():
      _, err = process.communicate(timeout=60)
      lines = [line for line in err.splitlines() if line]
      assert said in lines[-1], err
      assert 'Traceback' not in err
      assert process.returncode == (2 if 'in use' in said else 1)
      assert ('still waiting' in err) == ('in use' not in said)
