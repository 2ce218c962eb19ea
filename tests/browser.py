"""A headless Chromium for tests of pages, driven by its own `chromedriver` over HTTP; Debian packages both.

`pages()` skips where they are not installed.
"""

import base64
import contextlib
import json
import pathlib
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

FLAGS = (
  '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
  '--disable-component-update', '--disable-sync', '--disable-dev-shm-usage', '--hide-scrollbars',
)  # fmt: skip
TIMEOUT = 60


class Page:
  """An open page.

  Attributes:
    address: of the session at chromedriver.
  """

  def __init__(self, address: str):
    self.address = address

  def show(self, file: pathlib.Path, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
    """Opens a file at a width in CSS pixels and a colour scheme."""
    self._cdp('Emulation.setDeviceMetricsOverride', width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
    scheme = {'name': 'prefers-color-scheme', 'value': 'dark' if dark else 'light'}
    self._cdp('Emulation.setEmulatedMedia', features=[scheme])
    _post(f'{self.address}/url', url=file.absolute().as_uri())

  def run(self, script: str, *arguments: Any) -> Any:
    """What a script returns."""
    return _post(f'{self.address}/execute/sync', script=script, args=list(arguments))

  def complaints(self) -> list[str]:
    """What the console said since the last call: errors and warnings."""
    return [f'{one["level"]}: {one["message"]}' for one in _post(f'{self.address}/se/log', type='browser')]

  def picture(self, file: pathlib.Path) -> None:
    """The whole page as a PNG."""
    taken = self._cdp('Page.captureScreenshot', captureBeyondViewport=True, format='png')
    file.write_bytes(base64.b64decode(taken['data']))

  def _cdp(self, name: str, **parameters: Any) -> Any:
    return _post(f'{self.address}/goog/cdp/execute', cmd=name, params=parameters)


def _post(address: str, **content: Any) -> Any:
  request = urllib.request.Request(address, json.dumps(content).encode(), {'Content-Type': 'application/json'})
  try:
    with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
      return json.load(reply)['value']
  except urllib.error.HTTPError as error:
    raise AssertionError(error.read().decode()) from None


@contextlib.contextmanager
def pages(folder: pathlib.Path) -> Iterator[Page]:
  """A browser that ends with the body; `folder` is for what it keeps."""
  browser, driver = shutil.which('chromium'), shutil.which('chromedriver')
  if browser is None or driver is None:
    pytest.skip('needs chromium and chromedriver: apt-get install chromium chromium-driver')
  with open(folder / 'chromedriver.log', 'w+') as log:
    process = subprocess.Popen([driver, '--port=0'], stdout=log, stderr=subprocess.STDOUT)
    try:
      address = f'http://127.0.0.1:{_port(process, pathlib.Path(log.name))}'
      options = {'binary': browser, 'args': [*FLAGS, f'--user-data-dir={folder / "profile"}']}
      wanted = {'browserName': 'chrome', 'goog:chromeOptions': options, 'goog:loggingPrefs': {'browser': 'ALL'}}
      session = _post(f'{address}/session', capabilities={'alwaysMatch': wanted})['sessionId']
      try:
        yield Page(f'{address}/session/{session}')
      finally:
        with contextlib.suppress(OSError):
          urllib.request.urlopen(
            urllib.request.Request(f'{address}/session/{session}', method='DELETE'), timeout=TIMEOUT
          )
    finally:
      process.terminate()
      process.wait()


def _port(process: subprocess.Popen[bytes], log: pathlib.Path) -> int:
  """The port that chromedriver chose."""
  deadline = time.monotonic() + TIMEOUT
  while time.monotonic() < deadline:
    if found := re.search(r'started successfully on port (\d+)', log.read_text()):
      return int(found[1])
    assert process.poll() is None, log.read_text()
    time.sleep(0.05)
  raise AssertionError(f'chromedriver does not start: {log.read_text()}')
