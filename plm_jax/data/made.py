"""Notices of token stores and tables in `data.cache`: a watcher learns of each, and can forbid to make new ones.

Data sources make token stores and tables when they need them. `plm-jax prepare` lists them, and `plm-jax doctor` lists
those that would be made.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Made(NamedTuple):
  """One store or table that a source opened."""

  what: str  # its kind, such as 'tokens'
  digest: str  # hex digest of everything that it was made from
  folder: Path | None  # its folder; None in memory
  size: str  # human-readable size, such as '64 documents, 10,233 tokens'
  found: bool  # True if it already existed and was intact


class Unmade(Exception):
  """A missing store or table, `made`, that must not be made now."""

  def __init__(self, made: Made):
    super().__init__(f'{made.what} are not made yet')
    self.made = made


class Partial(Unmade):
  """A missing store of which a part, `made`, is complete."""


class _Watch(NamedTuple):
  told: list[Made]
  makes: bool
  part: tuple[int, int] | None


_watch: contextvars.ContextVar[_Watch | None] = contextvars.ContextVar('watch', default=None)


@contextlib.contextmanager
def watching(*, makes: bool = True, part: tuple[int, int] | None = None) -> Iterator[list[Made]]:
  """Collect the stores and tables that sources open in this thread.

  With `makes=False`, raises Unmade instead of making a new one. With `part`, a worker and the number of workers, raises
  Partial after making its part of a new token store.
  """
  told: list[Made] = []
  token = _watch.set(_Watch(told, makes, part))
  try:
    yield told
  finally:
    _watch.reset(token)


def part() -> tuple[int, int] | None:
  """Return the worker that makes its part of stores, and their number."""
  watch = _watch.get()
  return watch.part if watch else None


def missing(what: str, *, digest: str, folder: Path, size: str = '') -> None:
  """Report that something will be made; raise Unmade if that is forbidden."""
  watch = _watch.get()
  if watch is not None and not watch.makes:
    raise Unmade(Made(what, digest, folder, size, False))


def tell(what: str, *, digest: str, folder: Path | None, size: str, found: bool) -> None:
  """Report an opened store or table."""
  watch = _watch.get()
  if watch is not None:
    watch.told.append(Made(what, digest, folder, size, found))
