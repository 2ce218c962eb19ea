"""Stop requests from Google Compute Engine: a command stops before its machine is taken away, as after SIGTERM.

The metadata server of a machine announces the preemption of a spot machine (`instance/preempted`) and maintenance that
ends the machine (`instance/maintenance-event`); cloud.google.com/compute/docs/instances/create-use-preemptible and
cloud.google.com/compute/docs/metadata/getting-live-migration-notice. A request can wait until a key changes, so one
thread per key waits. Other machines make no network request.
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

HOST = 'GCE_METADATA_HOST'  # environment variable for another server, HOST or HOST:PORT, read by Google's libraries too
SERVER = 'metadata.google.internal'
PRODUCT = '/sys/class/dmi/id/product_name'  # 'Google' or 'Google Compute Engine' on their machines
WAIT = 300  # seconds until the server answers without a change
PAUSE, LONGEST = 1.0, 60.0  # seconds before the first and later retries


class Notice(NamedTuple):
  """An announcement of the metadata server."""

  key: str  # of the server
  value: str  # of the key when the machine will end
  meaning: str  # for the log
  # True if a command that starts after the announcement stops as well. Maintenance is announced up to an hour before; a
  # run restarted in that hour must be able to train.
  at_first: bool


NOTICES = (
  Notice('preempted', 'TRUE', 'this machine is preempted', at_first=True),
  Notice(
    'maintenance-event', 'TERMINATE_ON_HOST_MAINTENANCE', 'maintenance is about to end this machine', at_first=False
  ),
)


@contextlib.contextmanager
def watched() -> Iterator[None]:
  """Let a notice stop the command while the body runs."""
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
  """Return the metadata server of this machine, or None."""
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
    """End the thread, even if the server does not answer."""
    self._over.set()
    sock = self._connection.sock if self._connection else None
    if sock is not None:
      with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)

  def _wait_for_it(self) -> None:
    etag, first, pause = '0', True, PAUSE  # a tag other than the current one is answered at once
    while not self._over.is_set():
      try:
        status, value, etag = self._ask(etag)
      except (OSError, http.client.HTTPException) as error:
        status, value = None, str(error)
      if self._over.is_set():
        return
      if status is not None and 400 <= status < 500:  # a GKE pod's server lacks some keys
        log.debug(f'{self._server} has no key {self._notice.key}: {status}')
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
      log.warning(f'{self._notice.meaning}, as announced before this command started; SIGTERM will stop it')
      return
    log.warning(f'{self._notice.meaning} ({self._notice.key}={self._notice.value}): stopping as after SIGTERM')
    signals.notice()

  def _ask(self, etag: str) -> tuple[int, str, str]:
    """Request the key; answered after a change or `WAIT` seconds."""
    query = f'wait_for_change=true&timeout_sec={WAIT}&last_etag={etag}'
    connection = http.client.HTTPConnection(self._server, timeout=WAIT + 30)
    self._connection = connection
    with contextlib.closing(connection):
      connection.connect()
      if self._over.is_set():  # `end` was called before there was a socket
        raise ConnectionAbortedError
      path = f'/computeMetadata/v1/instance/{self._notice.key}?{query}'
      connection.request('GET', path, headers={'Metadata-Flavor': 'Google'})
      answer = connection.getresponse()
      return answer.status, answer.read().decode(errors='replace').strip(), answer.headers.get('ETag', etag)
