"""Errors that end in one message, and how the messages are made: what is wrong, the choices, the cure."""

import contextlib
import difflib
from collections.abc import Collection, Iterator
from typing import Any, get_args


class RunError(Exception):
  """A failure that neither the config nor the code caused, such as a damaged file or a full disk. Exit code 1."""


class ConfigError(Exception):
  """A mistake of the user. One message names the thing, the choices and the cure. Exit code 2."""


def near(wrong: str, choices: Collection[str], *, cutoff: float = 0.6) -> list[str]:
  """Up to three of the choices that are most like a text, best first; `cutoff` is the least similarity, of 1."""
  found = difflib.get_close_matches(wrong, list(choices), n=3, cutoff=cutoff)
  return found or [choice for choice in choices if wrong and (wrong in choice or choice in wrong)][:3]


def suggest(wrong: str, choices: Collection[str]) -> str:
  """' Did you mean 'x'?' with up to three near names; empty where nothing is near."""
  found = near(wrong, choices)
  return f' Did you mean {" or ".join(map(repr, found))}?' if found else ''


def check_choice(label: str, what: str, name: Any, choices: Collection[str], *, place: str = '') -> None:
  """Raises ConfigError unless `name` is one of the choices; `what` is the noun, such as 'model', that `place` holds."""
  if name not in choices:
    listing = ', '.join(choices) or 'none'
    where = f' in {place}' if place else ''
    raise ConfigError(
      f'{label}: there is no {what} {name!r}{where}.{suggest(str(name), choices)} There are: {listing}.'
    )


def one_of(label: str, value: Any, literal: Any) -> None:
  """Raises unless a value is one of those of a `Literal` type, which is the only list of them.

  Args:
    label: what the value was given for, such as 'objective.masking'.
    value: what is checked.
    literal: the type, such as `Literal['dynamic', 'static']`.

  Raises:
    ValueError: with the choices.
  """
  choices = get_args(literal)
  if value not in choices:
    texts = [str(choice) for choice in choices]
    raise ValueError(f'{label}={value!r}; choices are {", ".join(texts)}.{suggest(str(value), texts)}')


@contextlib.contextmanager
def stage(block: str) -> Iterator[None]:
  """Turns what a user can mend into a ConfigError that names the block: a ValueError, a file that cannot be read.

  Every other exception is a mistake in code. It keeps its traceback and gets the block as a note.
  """
  try:
    yield
  except (ConfigError, RunError):
    raise
  except (ValueError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
    message = str(error)
    raise ConfigError(message if message.startswith(block) else f'{block}: {message}') from error
  except Exception as error:
    error.add_note(f'while making {block!r} of the config')
    raise
