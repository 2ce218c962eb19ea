"""Notices that a machine will be taken away, against a local metadata server.

The server answers as Google's does: a value with its tag at once if the request has another tag, else when the value
changes or the time is over.
"""

import contextlib
import http.client
import http.server
import json
import pathlib
import socket
import subprocess
import sys
import textwrap
import threading
import time
import urllib.parse
from collections.abc import Iterator

import pytest

from plm_jax.checkpoint import saved_steps
from plm_jax.cli import notices, signals
from plm_jax.runs import metrics
from tests import conftest, google_storage, runs

QUIET = {'preempted': 'FALSE', 'maintenance-event': 'NONE'}
NOTICES = list(zip(('preempted', 'maintenance-event'), ('TRUE', 'TERMINATE_ON_HOST_MAINTENANCE'), strict=True))


class Server:
  """A metadata server.

  Attributes:
    address: HOST:PORT.
    asked: the paths of all requests so far.
    failures: number of error responses to come.
  """

  def __init__(self, values: dict[str, str]):
    self.values, self.asked, self.failures = dict(values), [], 0
    self._changed = threading.Condition()
    outer = self

    class Handler(http.server.BaseHTTPRequestHandler):
      def do_GET(self) -> None:
        outer.answer(self)

      def log_message(self, *words: object) -> None:
        """Log nothing."""

    self._http = google_storage.Server(('127.0.0.1', 0), Handler)
    self.address = f'127.0.0.1:{self._http.server_address[1]}'
    threading.Thread(target=self._http.serve_forever, daemon=True).start()

  def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
    path, _, query = request.path.partition('?')
    given = dict(urllib.parse.parse_qsl(query))
    key = path.removeprefix('/computeMetadata/v1/instance/')
    with self._changed:
      self.asked.append(path)
      self._changed.notify_all()
      if self.failures:
        self.failures -= 1
        request.send_error(503)
        return
      if request.headers.get('Metadata-Flavor') != 'Google':
        request.send_error(403)
        return
      if key not in self.values:
        request.send_error(404)
        return
      if given.get('wait_for_change') == 'true':
        tag = given.get('last_etag')
        self._changed.wait_for(lambda: self.tag(key) != tag, timeout=float(given.get('timeout_sec', 1e6)))
      value, tag = self.values[key], self.tag(key)
    request.send_response(200)
    request.send_header('ETag', tag)
    request.end_headers()
    request.wfile.write(value.encode())

  def tag(self, key: str) -> str:
    return f'tag-of-{self.values[key]}'

  def set(self, key: str, value: str) -> None:
    with self._changed:
      self.values[key] = value
      self._changed.notify_all()

  def wait_until_asked(self, times: int) -> None:
    with self._changed:
      assert self._changed.wait_for(lambda: len(self.asked) >= times, timeout=60)

  def close(self) -> None:
    self._http.shutdown()
    self._http.server_close()


@contextlib.contextmanager
def serving(values: dict[str, str]) -> Iterator[Server]:
  server = Server(values)
  try:
    yield server
  finally:
    server.close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
  with serving(QUIET) as server:
    monkeypatch.setenv(notices.HOST, server.address)
    yield server


def asked_within(seconds: float) -> bool:
  deadline = time.monotonic() + seconds
  while not signals.asked() and time.monotonic() < deadline:
    time.sleep(0.01)
  return signals.asked()


def threads() -> list[str]:
  return [thread.name for thread in threading.enumerate() if thread.name.endswith(tuple(QUIET))]


def wait_until_no_thread_stays() -> None:
  deadline = time.monotonic() + 10
  while threads() and time.monotonic() < deadline:
    time.sleep(0.01)
  assert not threads()


@pytest.mark.parametrize(('key', 'value'), NOTICES)
def test_a_notice_asks_the_command_to_stop(
  server: Server, key: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
  with runs.logging_on(), signals.caught(), notices.watched():
    server.wait_until_asked(4)  # the value of each key is known, and both threads wait for a change
    assert not signals.asked()
    server.set(key, value)
    assert asked_within(30)
  assert f'({key}={value})' in caplog.text and 'SIGTERM' in caplog.text
  assert not signals.asked()


def test_a_machine_that_only_moves_goes_on(server: Server) -> None:
  with signals.caught(), notices.watched():
    server.wait_until_asked(4)
    server.set('maintenance-event', 'MIGRATE_ON_HOST_MAINTENANCE')
    server.wait_until_asked(5)
    assert not asked_within(0.3)


@pytest.mark.parametrize(('key', 'value', 'stops'), [(*NOTICES[0], True), (*NOTICES[1], False)])
def test_what_was_announced_before(
  server: Server, key: str, value: str, stops: bool, caplog: pytest.LogCaptureFixture
) -> None:
  """Let a run that restarts between notice and maintenance continue."""
  server.set(key, value)
  with runs.logging_on(), signals.caught(), notices.watched():
    assert asked_within(30 if stops else 1) == stops
  assert (f'({key}={value})' in caplog.text) == stops


def test_a_server_that_fails_is_asked_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(notices, 'PAUSE', 0.01)
  server.failures = 3
  server.set('preempted', 'TRUE')
  with signals.caught(), notices.watched():
    assert asked_within(30)


def test_a_server_without_the_keys_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
  with serving({}) as server:
    monkeypatch.setenv(notices.HOST, server.address)
    with signals.caught(), notices.watched():
      server.wait_until_asked(2)
      assert not asked_within(0.3)
      assert len(server.asked) == 2


def test_no_thread_stays(server: Server) -> None:
  for _ in range(3):
    with signals.caught(), notices.watched():
      server.wait_until_asked(2)
      assert len(threads()) == 2
    wait_until_no_thread_stays()


def test_a_thread_that_is_just_connecting_does_not_stay(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
  connecting, over = threading.Barrier(3), threading.Event()
  connect, begun = http.client.HTTPConnection.connect, set()

  def connect_late(self: http.client.HTTPConnection) -> None:
    if threading.get_ident() in begun:  # the first answer comes at once, the second only when something changes
      connecting.wait(timeout=60)
      assert over.wait(timeout=60)
    begun.add(threading.get_ident())
    connect(self)

  monkeypatch.setattr(http.client.HTTPConnection, 'connect', connect_late)
  with signals.caught(), notices.watched():
    connecting.wait(timeout=60)
  over.set()
  wait_until_no_thread_stays()


def test_other_machines_ask_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
  def connect(*words: object, **named: object) -> None:
    raise AssertionError('a connection')

  monkeypatch.delenv(notices.HOST, raising=False)
  monkeypatch.setattr(socket, 'create_connection', connect)
  for product in ('ThinkPad X1', None):
    file = tmp_path / str(product)
    if product:
      file.write_text(f'{product}\n')
    monkeypatch.setattr(notices, 'PRODUCT', str(file))
    with notices.watched():
      assert not threads()


@pytest.mark.parametrize('product', ['Google', 'Google Compute Engine'])
def test_their_machines_are_known_without_the_network(
  monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, product: str
) -> None:
  (tmp_path / 'product').write_text(f'{product}\n')
  monkeypatch.delenv(notices.HOST, raising=False)
  monkeypatch.setattr(notices, 'PRODUCT', str(tmp_path / 'product'))
  assert notices._server() == notices.SERVER


def test_the_signal_that_follows_a_notice_is_the_first_one() -> None:
  """Count the SIGTERM after a preemption as the first signal.

  A preempted machine sends it a moment later; it must not end the process during a save.
  """
  body = """
    import signal, sys, time
    from plm_jax.cli import signals
    signals.begin()
    signals.notice()
    assert signals.asked()
    for _ in range(2):  # as systemd sends it, and a second time
      signal.raise_signal(signal.SIGTERM)
      time.sleep(5 * signals.ONE)
      print('saving', flush=True)
  """
  done = subprocess.run(
    [sys.executable, '-c', textwrap.dedent(body)], cwd=conftest.ROOT, capture_output=True, text=True, check=False
  )
  assert (done.returncode, done.stdout) == (130, 'saving\n')
  assert 'SIGTERM: ' in done.stderr


def test_a_preempted_run_saves_and_goes_on(data: pathlib.Path, tmp_path: pathlib.Path, server: Server) -> None:
  endless = {'steps': 100_000, 'save_every': 100_000, 'eval_every': 100_000, 'best': None}
  file = runs.write_config(tmp_path / 'config.json', runs.settings('mlm', data, **endless))
  workdir, output = tmp_path / 'run', tmp_path / 'output'
  command = runs.words('train', f'--config={file}', f'--workdir={workdir}')
  with runs.started(command, log=output) as process:
    runs.wait_until(lambda: len(metrics.read(workdir)) >= 2, process=process, log=output)
    server.set('preempted', 'TRUE')
    assert process.wait(timeout=120) == 3, output.read_text()[-2000:]
  result = json.loads((workdir / 'result.json').read_text())
  assert saved_steps.numbered(workdir / 'checkpoints') == [result['step']]
  text = (workdir / 'log.txt').read_text()
  assert 'this machine is preempted' in text
  assert f'stopped by a signal at step {result["step"]}' in text


@pytest.mark.slow
def test_a_notice_to_one_host_stops_all_at_one_step(data: pathlib.Path, tmp_path: pathlib.Path, server: Server) -> None:
  endless = {'steps': 100_000, 'save_every': 100_000, 'eval_every': 100_000, 'best': None}
  file = runs.write_config(tmp_path / 'config.json', runs.settings('mlm', data, **endless))
  workdir, output = tmp_path / 'run', tmp_path / 'output'
  with socket.socket() as probe:
    probe.bind(('localhost', 0))
    port = probe.getsockname()[1]
  flags = [f'--config={file}', f'--workdir={workdir}', f'--coordinator=localhost:{port}', '--processes=2']
  with contextlib.ExitStack() as stack, serving(QUIET) as other:
    processes = [
      stack.enter_context(
        runs.started(runs.words('train', *flags, f'--process={i}'), log=output, GCE_METADATA_HOST=one.address)
      )
      for i, one in enumerate((server, other))
    ]
    runs.wait_until(lambda: len(metrics.read(workdir)) >= 2, process=processes[0], log=output)
    other.set('preempted', 'TRUE')
    assert [process.wait(timeout=120) for process in processes] == [3, 3], output.read_text()[-3000:]
  result = json.loads((workdir / 'result.json').read_text())
  assert output.read_text().count(f'stopped by a signal at step {result["step"]}') == 2
