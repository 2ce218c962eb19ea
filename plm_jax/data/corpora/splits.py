"""Names of splits with slices, as TensorFlow Datasets spells them: 'train[:90%]', 'train[-5%:]', 'train[:10]+test'."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from plm_jax import errors

_PART = re.compile(r'\s*([\w.\-]+)\s*(?:\[\s*(-?\d+%?)?\s*:\s*(-?\d+%?)?\s*\])?\s*$')


class Part(NamedTuple):
  """One split and the bounds of its slice as they are written: a count or a percentage, None where left out."""

  name: str
  start: str | None
  stop: str | None


def parse(split: str, *, path: str) -> list[Part]:
  """The parts of a split, in order.

  Raises:
    ValueError: not a name with an optional slice, or several joined by '+'.
  """
  parts = []
  for part in split.split('+'):
    match = _PART.match(part)
    if match is None:
      raise ValueError(
        f"there is no split {split!r} in {path!r}: a split is a name with an optional slice such as 'train[:90%]' or "
        "'train[10:20]', or several joined by '+'"
      )
    parts.append(Part(match[1], match[2], match[3]))
  return parts


def check(name: str, known: Sequence[str], *, path: str) -> None:
  """Refuses a split that a data set does not have.

  Raises:
    ValueError: with those that it has, and how a part of one is held out.
  """
  if name not in known:
    raise ValueError(
      f'there is no split {name!r} in {path!r}: there are {", ".join(known)}, each with an optional slice such as '
      f"'{known[0]}[:90%]' or '{known[0]}[10:20]'.{errors.suggest(name, known)} "
      f"To hold a part out: data.split='{known[0]}[:95%]' and eval.NAME.data.split='{known[0]}[95%:]'"
    )


def rows_of(part: Part, *, rows: int, split: str) -> range:
  """The rows that a slice takes from a split of so many.

  Raises:
    ValueError: it asks for rows that there are not.
  """
  return range(_bound(part.start, 0, rows=rows, split=split), _bound(part.stop, rows, rows=rows, split=split))


def _bound(given: str | None, default: int, *, rows: int, split: str) -> int:
  """A bound of a slice as a row: counts or percent, from the end where negative; percent round to the nearest row."""
  if given is None:
    return default
  number = int(given.rstrip('%'))
  count = round(rows * number / 100) if given.endswith('%') else number
  if abs(number) > (100 if given.endswith('%') else rows):
    raise ValueError(f'split {split!r} asks for row {given}, and there are {rows:,}')
  return count + rows if given.startswith('-') else count
