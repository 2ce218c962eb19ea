"""Errors that end with one message: the problem, the choices, the fix."""

import contextlib
import difflib
from collections.abc import Collection, Iterator, Sequence
from importlib import metadata
from typing import Any, get_args

MOST_SHOWN = 80  # characters of a value that a message repeats
MOST_LISTED = 80  # characters of a list of choices in a message
STOPPED, KILLED = 3, 130  # exit codes of a command that a signal stopped


class RunError(Exception):
  """A failure outside of config and code, such as a damaged file or a full disk. Exit code 1."""


class Interrupted(KeyboardInterrupt):
  """A stop of the command by a signal.

  Attributes:
    exit_code: 3 if the same command can resume from saved work, else 130.
  """

  def __init__(self, message: str = 'interrupted before there was anything new to save', exit_code: int = KILLED):
    super().__init__(message)
    self.exit_code = exit_code


class ConfigError(Exception):
  """A mistake of the user. One message names the problem, the choices and the fix. Exit code 2."""


class WeightsError(ConfigError):
  """Weights that cannot be read or written; the message names the file and the tensor. Exit code 2."""


def shown(value: Any) -> str:
  """Format a value in one line for a message, shortened if long."""
  try:
    text = ' '.join(repr(value).split())
  except ValueError:
    # Python does not print an integer of many thousand digits
    return f'an integer of {value.bit_length():,} bits'
  return text if len(text) <= MOST_SHOWN else f'{text[: MOST_SHOWN - 3]}...'


def counted(count: int, singular: str) -> str:
  """Format a count with its noun, such as "2 cells"."""
  return f'{count:,} {singular if count == 1 else f"{singular}s"}'


def near(wrong: str, choices: Collection[str], *, cutoff: float = 0.6) -> list[str]:
  """Find up to three similar choices, of similarity `cutoff` or more."""
  # similar spelling, else the same words in another order, else names that contain the text or are part of it
  matches = difflib.get_close_matches(wrong, list(choices), n=3, cutoff=cutoff)
  matches = [choice for choice in matches if _about_the_same(wrong, choice)]
  reordered = [choice for choice in choices if sorted(choice.split('_')) == sorted(wrong.split('_'))]
  return (matches or reordered or [choice for choice in choices if wrong and (wrong in choice or choice in wrong)])[:3]


def _about_the_same(wrong: str, choice: str) -> bool:
  """Check that more than last words agree: 'repetition_penalty' is no 'length_penalty'."""
  parts, others = (name.strip('-').split('_') for name in (wrong, choice))
  if min(len(parts), len(others)) == 1 or set(parts) == set(others):
    return True
  return difflib.SequenceMatcher(None, parts[0], others[0]).ratio() >= 0.6


def suggest(wrong: str, choices: Collection[str]) -> str:
  """Return " Did you mean 'x'?" with similar names, or ''."""
  similar = near(wrong, choices)
  return f' Did you mean {" or ".join(map(repr, similar))}?' if similar else ''


def listed(choices: Collection[str], *, see: str = '') -> str:
  """Return the choices separated by commas, up to `MOST_LISTED` characters.

  listed(['sgd', 'adam'])                                'sgd, adam'
  listed(['encoder_0', 'encoder_1', ...], see='--list')  'encoder_0, encoder_1, ... (--list shows all 40)'
  """
  names = list(choices)
  count = len(names)
  while count > 1 and len(', '.join(names[:count])) > MOST_LISTED:
    count -= 1
  rest = f', ... ({see} shows all {len(names)})' if see else f', ... ({len(names)} in total)'
  return f'{", ".join(names[:count])}{rest if count < len(names) else ""}' if names else 'none'


def is_installed(package: str) -> bool:
  """Return True if a package is installed, for messages that name it."""
  try:
    metadata.distribution(package)
  except metadata.PackageNotFoundError:
    return False
  return True


def key_of(label: str) -> str:
  """Return a dotted label as users write the key: 'config.optim.rate' -> 'optim.rate'."""
  return label.removeprefix('config.')


def check_choice(label: str, what: str, name: Any, choices: Collection[str], *, place: str = '', see: str = '') -> None:
  """Raise ConfigError unless `name` is one of the choices.

  Args:
    label: the key or flag that names it.
    what: the noun of a choice, such as 'model'.
    place: what holds the choices, such as 'this run'.
    see: the flag that prints all choices.
  """
  if name not in list(choices):  # `name` may be of any type, also without a hash
    where = f' in {place}' if place else ''
    raise ConfigError(
      f'{key_of(label)}: unknown {what} {shown(name)}{where}.{suggest(str(name), choices)} '
      f'Choices: {listed(choices, see=see)}.'
    )


def one_of(label: str, value: Any, literal: Any) -> None:
  """Raise ValueError unless a value is a choice of a `Literal` type."""
  choices = get_args(literal)
  if value not in choices:
    texts = [str(choice) for choice in choices]
    raise ValueError(f'{label}={shown(value)}; choices are {", ".join(texts)}.{suggest(str(value), texts)}')


@contextlib.contextmanager
def stage(block: str) -> Iterator[None]:
  """Turn errors that a user can fix into a ConfigError.

  These are a ValueError, or a file that cannot be read. The message names the block. Every other exception is a mistake
  in code: it keeps its traceback and gets the block as a note.
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


@contextlib.contextmanager
def part(name: str) -> Iterator[None]:
  """Name the adapter of a part, if any, in a ValueError."""
  try:
    yield
  except ValueError as error:
    if not name:
      raise
    raise type(error)(str(error).replace('adapter.', f'adapter.parts.{name}.')) from error


def require(
  trunk: Any,
  *,
  user: str,
  attention: Sequence[str] | None = None,
  inputs: Sequence[str] = (),
  offers: Sequence[type] = (),
) -> None:
  """Raise ValueError if `trunk` does not fit its user.

  Args:
    user: for the message, such as "objective 'mlm'".
    attention: kinds of attention that the user supports; None for every kind.
    inputs: names of the inputs that the user passes.
    offers: protocols besides `Trunk` that the user needs, such as `Attends`.
  """
  name = type(trunk).__name__
  lacks = []
  # 1. the kind of attention
  if attention is not None and trunk.ATTENTION not in attention:
    lacks.append(f'needs a trunk with {" or ".join(attention)} attention, and {name} is {trunk.ATTENTION}')
  # 2. inputs
  if missing := [key for key in inputs if key not in trunk.INPUTS]:
    lacks.append(f'hands over {", ".join(missing)}, and {name} takes {", ".join(trunk.INPUTS)}')
  # 3. methods of optional protocols
  for protocol in offers:
    if missing := lacking(trunk, protocol):
      lacks.append(f'needs a trunk that {protocol.__name__}, and {name} has no {", ".join(missing)}')
  if lacks:
    kind, named, _ = user.partition(' ')
    other = f'model.name or {kind}.name' if named else 'model.name'
    raise ValueError(f'{user} {"; ".join(lacks)}: choose another {other} (see --list)')


def lacking(trunk: Any, protocol: type) -> list[str]:
  """List the members of a protocol that a trunk lacks."""
  # bind first: submodules of `setup`, such as `token_embed`, do not exist before
  members = dir(trunk.bind({}) if 'bind' in dir(trunk) else trunk)
  wanted = {*protocol.__annotations__, *(name for name in vars(protocol) if not name.startswith('_'))}
  return sorted(wanted.difference(members))
