"""Errors that end in one message, and how the messages are made: what is wrong, the choices, the cure."""

import contextlib
import difflib
from collections.abc import Collection, Iterator
from typing import Any


class RunError(Exception):
  """What went wrong is neither the config nor the code: a damaged file, a full disk. Commands exit with 1."""


class ConfigError(Exception):
  """A mistake of the user's: one message that names the thing, the choices and the cure. Commands exit with 2."""


def suggest(wrong: str, choices: Collection[str]) -> str:
  """' Did you mean 'x'?' with up to three near names; empty where nothing is near."""
  near = difflib.get_close_matches(wrong, list(choices), n=3, cutoff=0.6)
  near = near or [choice for choice in choices if wrong and (wrong in choice or choice in wrong)][:3]
  return f' Did you mean {" or ".join(map(repr, near))}?' if near else ''


def check_choice(label: str, what: str, name: Any, choices: Collection[str], *, place: str = '') -> None:
  """Raises ConfigError unless `name` is one of the choices; `what` is the noun, such as 'model', that `place` holds."""
  if name not in choices:
    listing = ', '.join(choices) or 'none'
    where = f' in {place}' if place else ''
    raise ConfigError(
      f'{label}: there is no {what} {name!r}{where}.{suggest(str(name), choices)} There are: {listing}.'
    )


@contextlib.contextmanager
def stage(block: str) -> Iterator[None]:
  """Turns what a block's `make` refuses into a ConfigError that names the block."""
  try:
    yield
  except (ValueError, TypeError, KeyError, FileNotFoundError) as error:
    message = str(error)
    raise ConfigError(message if message.startswith(block) else f'{block}: {message}') from error
