"""What is made of texts once and kept in `data.cache`: who watches is told of it, and may ask that nothing is made.

Sources of rows make token stores and tables where they need them, whoever asks for rows. `plm-jax prepare`
lists what they made, and `plm-jax doctor` asks what they would make.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Made(NamedTuple):
  """One thing that a source opened.

  Attributes:
    what: it is, such as 'tokens'.
    digest: hex, of all that it was made of.
    folder: where it is kept; None in memory.
    size: in words, such as '64 documents, 10,233 tokens'.
    found: it was there already, whole.
  """

  what: str
  digest: str
  folder: Path | None
  size: str
  found: bool


class Unmade(Exception):
  """Something that is not there and that nobody may make now.

  Attributes:
    made: what it would be.
  """

  def __init__(self, made: Made):
    super().__init__(f'{made.what} are not made yet')
    self.made = made


class _Watch(NamedTuple):
  told: list[Made]
  makes: bool


_watch: contextvars.ContextVar[_Watch | None] = contextvars.ContextVar('watch', default=None)


@contextlib.contextmanager
def watching(*, makes: bool = True) -> Iterator[list[Made]]:
  """What sources open while the body runs, in this thread; `makes=False` raises Unmade where one would be made."""
  told: list[Made] = []
  token = _watch.set(_Watch(told, makes))
  try:
    yield told
  finally:
    _watch.reset(token)


def missing(what: str, *, digest: str, folder: Path, size: str = '') -> None:
  """Called before something is made; raises Unmade for those who only look."""
  watch = _watch.get()
  if watch is not None and not watch.makes:
    raise Unmade(Made(what, digest, folder, size, False))


def tell(what: str, *, digest: str, folder: Path | None, size: str, found: bool) -> None:
  """Called with what was opened."""
  watch = _watch.get()
  if watch is not None:
    watch.told.append(Made(what, digest, folder, size, found))
