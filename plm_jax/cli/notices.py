"""Notices of Google Compute Engine that this machine will be taken away ask a command to stop, as SIGTERM does.

The metadata server of a machine says when a spot machine is preempted (`instance/preempted`) and when maintenance will
end it (`instance/maintenance-event`); cloud.google.com/compute/docs/instances/create-use-preemptible and
cloud.google.com/compute/docs/metadata/getting-live-migration-notice. A request for one of them can wait until it
changes, so a thread for each waits, on such machines only; nothing elsewhere asks the network.
"""

import contextlib
import http.client
import logging
import os
import socket
import threading
from collections.abc import Iterator
from typing import NamedTuple

from plm_jax.cli import signals
from plm_jax.io import files

log = logging.getLogger(__name__)

HOST = 'GCE_METADATA_HOST'  # the variable that names another server, HOST or HOST:PORT, to Google's libraries as well
SERVER = 'metadata.google.internal'
PRODUCT = '/sys/class/dmi/id/product_name'  # 'Google' or 'Google Compute Engine' on their machines
WAIT = 300  # seconds after which the server answers though nothing changed
PAUSE, LONGEST = 1.0, 60.0  # seconds before the first and the next attempts after an answer that is none


class Notice(NamedTuple):
  """What the metadata server says before it takes a machine away.

  Attributes:
    key: where it says so.
    value: what it says then.
    meaning: for the log.
    at_first: whether it stops a command that begins later as well. Maintenance is announced up to an hour before, and
      a run that was started again meanwhile would never make a step.
  """

  key: str
  value: str
  meaning: str
  at_first: bool


NOTICES = (
  Notice('preempted', 'TRUE', 'this machine is preempted', at_first=True),
  Notice(
    'maintenance-event', 'TERMINATE_ON_HOST_MAINTENANCE', 'maintenance is about to end this machine', at_first=False
  ),
)


@contextlib.contextmanager
def watched() -> Iterator[None]:
  """While the body runs, a notice asks the command to stop; does nothing on other machines."""
  server = _server()
  if server is None:
    yield
    return
  watches = [_Watch(server, notice) for notice in NOTICES]
  try:
    yield
  finally:
    for watch in watches:
      watch.end()


def _server() -> str | None:
  """The metadata server of this machine; None where it has none."""
  if named := os.environ.get(HOST):
    return named
  with contextlib.suppress(OSError):
    return SERVER if files.read_text(files.path(PRODUCT)).startswith('Google') else None
  return None


class _Watch:
  """A thread that waits for one notice."""

  def __init__(self, server: str, notice: Notice):
    self._server, self._notice = server, notice
    self._over = threading.Event()
    self._connection: http.client.HTTPConnection | None = None
    name = f'{signals.HANGS}: {notice.key}'
    threading.Thread(target=self._wait_for_it, name=name, daemon=True).start()

  def end(self) -> None:
    """Ends the thread, whether or not the server answers."""
    self._over.set()
    sock = self._connection.sock if self._connection else None
    if sock is not None:
      with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)

  def _wait_for_it(self) -> None:
    etag, first, pause = '0', True, PAUSE  # a tag that is not that of the value is answered at once
    while not self._over.is_set():
      try:
        status, value, etag = self._ask(etag)
      except (OSError, http.client.HTTPException) as error:
        status, value = None, str(error)
      if self._over.is_set():
        return
      if status is not None and 400 <= status < 500:  # the server of a GKE pod has not every key
        log.debug(f'{self._server} does not say {self._notice.key}: {status}')
        return
      if status != 200:
        log.debug(f'{self._server}, {self._notice.key}: {status or value}')
        self._over.wait(pause)
        pause = min(2 * pause, LONGEST)
        continue
      pause = PAUSE
      if value == self._notice.value:
        self._tell(first)
        return
      first = False

  def _tell(self, first: bool) -> None:
    if first and not self._notice.at_first:
      log.warning(f'{self._notice.meaning}, as was known before this command began; SIGTERM will stop it')
      return
    log.warning(f'{self._notice.meaning} ({self._notice.key}={self._notice.value}): stopping as after SIGTERM')
    signals.notice()

  def _ask(self, etag: str) -> tuple[int, str, str]:
    """Status, value and tag of the key, once its tag is not `etag` or after `WAIT` seconds."""
    query = f'wait_for_change=true&timeout_sec={WAIT}&last_etag={etag}'
    connection = http.client.HTTPConnection(self._server, timeout=WAIT + 30)
    self._connection = connection
    with contextlib.closing(connection):
      connection.connect()
      if self._over.is_set():  # `end` came before there was a socket to shut down
        raise ConnectionAbortedError
      path = f'/computeMetadata/v1/instance/{self._notice.key}?{query}'
      connection.request('GET', path, headers={'Metadata-Flavor': 'Google'})
      answer = connection.getresponse()
      return answer.status, answer.read().decode(errors='replace').strip(), answer.headers.get('ETag', etag)
