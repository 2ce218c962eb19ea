"""Run one command as several processes of a distributed run on this machine.

python launch/local.py --processes=2 --devices=2 -- -m plm_jax train --config=... --workdir=runs/two

The words after `--` are arguments of this Python; `--coordinator=localhost:PORT --processes=N --process=I` is added.
Each process sees `--devices` simulated CPU devices unless JAX_PLATFORMS names others. Each line of output starts with
the index of its process.

SIGINT and SIGTERM are forwarded, and a second signal kills. If a process fails, the others get SIGTERM. A process that
still runs `--grace` seconds after the first exit or signal is killed. The exit code is the highest of the processes
that ended by themselves.

--restarts=N starts all processes again, up to N times, if one was killed or ended with a code that Python and `plm-jax
train` do not use. The run resumes from its newest checkpoint. A bug or a reported failure (exit code 1) is not retried.
"""

import argparse
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from types import FrameType

POLL_SECONDS = 0.05
OWN_CODES = (0, 1, 2, 3, 4)  # of plm-jax train: done, failed, wrong usage, stopped by a signal, diverged
DEVICE_COUNT = '--xla_force_host_platform_device_count'


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    prog='launch/local.py', description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--processes', type=int, default=2, help='number of processes (default 2)')
  parser.add_argument('--devices', type=int, default=2, help='simulated CPU devices per process (default 2)')
  parser.add_argument('--grace', type=float, default=30, help='seconds from the first exit to a kill (default 30)')
  parser.add_argument('--restarts', type=int, default=0, help='maximum number of restarts (default 0)')
  parser.add_argument('command', nargs='+', help='arguments of Python: -m module ... or file.py ...')
  arguments = parser.parse_args(argv)
  if arguments.processes < 1 or arguments.devices < 1 or arguments.grace < 0 or arguments.restarts < 0:
    parser.error('--processes and --devices must be at least 1, --grace and --restarts at least 0')
  return arguments


def free_port() -> int:
  """Find a free TCP port of this machine."""
  with socket.socket() as probe:
    probe.bind(('localhost', 0))
    return probe.getsockname()[1]


def environment(devices: int, given: Mapping[str, str]) -> dict[str, str]:
  """Add simulated CPU devices and unbuffered output to an environment."""
  other_flags = re.sub(rf'{DEVICE_COUNT}=\S*', '', given.get('XLA_FLAGS', ''))
  flags = ' '.join([*other_flags.split(), f'{DEVICE_COUNT}={devices}'])
  return {'JAX_PLATFORMS': 'cpu', **given, 'XLA_FLAGS': flags, 'PYTHONUNBUFFERED': '1'}


class Processes:
  """The processes of one run, each with its own process group, so that its children end with it."""

  def __init__(self, *, grace: float):
    self.grace = grace
    self.deadline: float | None = None
    self.signals = 0
    self.told: set[int] = set()
    self.print_lock = threading.Lock()
    self.processes: list[subprocess.Popen[bytes]] = []
    self.printers: list[threading.Thread] = []

  def start(self, command: Sequence[str], *, env: Mapping[str, str]) -> None:
    process = subprocess.Popen(
      command,
      env=env,
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      start_new_session=True,
    )
    printer = threading.Thread(target=self.print_lines, args=(len(self.processes), process), daemon=True)
    printer.start()
    self.processes.append(process)
    self.printers.append(printer)

  def print_lines(self, i: int, process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
      with self.print_lock:
        sys.stdout.buffer.write(f'[{i}] '.encode() + line.rstrip(b'\n') + b'\n')
        sys.stdout.buffer.flush()

  def send(self, number: int) -> None:
    """Send a signal to every running process and its children."""
    for i, process in enumerate(self.processes):
      if process.poll() is None:
        self.told.add(i)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it has just ended
          os.killpg(process.pid, number)

  def on_signal(self, number: int, frame: FrameType | None) -> None:
    self.signals += 1
    self.send(signal.SIGKILL if self.signals > 1 else number)
    self.deadline = self.deadline or time.monotonic() + self.grace

  def wait(self) -> int:
    """Wait for all processes, and kill them after `grace` seconds.

    Returns:
      The exit code.
    """
    terminated = False
    while None in (polled := [process.poll() for process in self.processes]):
      codes = [code for code in polled if code is not None]
      if codes:
        self.deadline = self.deadline or time.monotonic() + self.grace
      if any(codes) and not terminated:
        terminated = True
        self.send(signal.SIGTERM)
      if self.deadline is not None and time.monotonic() > self.deadline:
        self.send(signal.SIGKILL)
      time.sleep(POLL_SECONDS)
    for printer in self.printers:
      printer.join(timeout=5)
    return self.exit_code()

  def exit_code(self) -> int:
    """Return the highest code.

    A process killed by a signal from here counts only if no other process failed.
    """
    codes = [process.returncode for process in self.processes]
    told = [128 - code for i, code in enumerate(codes) if code < 0 and i in self.told]
    own = [128 - code if code < 0 else code for i, code in enumerate(codes) if code >= 0 or i not in self.told]
    return max(own, default=0) or max(told, default=0)


def main(argv: Sequence[str] | None = None) -> int:
  arguments = parse(argv)
  most = arguments.restarts
  for restart in range(1, most + 2):
    code, was_signalled = run(arguments)
    if code in OWN_CODES or was_signalled:
      break
    if restart <= most:
      print(f'[local.py] a process ended with {code}: restarting all (restart {restart} of {most})', flush=True)
    elif most:
      print(f'[local.py] a process ended with {code}; all {most} restarts are used', flush=True)
  return code


def run(arguments: argparse.Namespace) -> tuple[int, bool]:
  """Run all processes once.

  Returns:
    The exit code, and whether this program got a signal.
  """
  env = environment(arguments.devices, os.environ)
  join = [f'--coordinator=localhost:{free_port()}', f'--processes={arguments.processes}']
  processes = Processes(grace=arguments.grace)
  for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, processes.on_signal)
  for i in range(arguments.processes):
    processes.start([sys.executable, *arguments.command, *join, f'--process={i}'], env=env)
  return processes.wait(), processes.signals > 0


if __name__ == '__main__':
  sys.exit(main())
