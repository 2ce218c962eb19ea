"""Names of splits with slices, as TensorFlow Datasets spells them: 'train[:90%]', 'train[-5%:]', 'train[:10]+test'.

A slice counts rows. With the word `tokens` it counts tokens of a corpus of plain text, 'train[:98%tokens]' and
'train[98%tokens:]': documents differ in length, and a share of them may be quite another share of the text.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from plm_jax.core import errors

_PART = re.compile(
  r'\s*([\w.\-]+)\s*(?:\[\s*(-?\d+%?(?:tokens|shuffled)?)?\s*:\s*(-?\d+%?(?:tokens|shuffled)?)?\s*\])?\s*$'
)
_PATH_AND_SPLIT = re.compile(r'(.+?):([^:/\[\]]+(?:\[[^\[\]/]*\]?[^:/\[\]]*)*)')
_TOKENS, _SHUFFLED = 'tokens', 'shuffled'


class Part(NamedTuple):
  """One split and the bounds of its slice as they are written: a count or a percentage, None where left out."""

  name: str
  start: str | None
  stop: str | None

  @property
  def by_tokens(self) -> bool:
    """Whether the slice counts tokens."""
    return self._ends_with(_TOKENS)

  @property
  def shuffled(self) -> bool:
    """Whether the slice counts rows in an order that is drawn."""
    return self._ends_with(_SHUFFLED)

  def _ends_with(self, word: str) -> bool:
    return any(bound is not None and bound.endswith(word) for bound in (self.start, self.stop))


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
  mixed = any(bound and not bound.endswith(_TOKENS) for part in parts if part.by_tokens for bound in part[1:])
  if mixed or (len(parts) > 1 and any(part.by_tokens for part in parts)):
    raise ValueError(
      f"split {split!r}: a slice by tokens stands alone and has both bounds in tokens, as in 'train[:98%tokens]' or "
      "'train[98%tokens:100%tokens]'"
    )
  if any(bound and not bound.endswith(_SHUFFLED) for part in parts if part.shuffled for bound in part[1:]):
    raise ValueError(
      f"split {split!r}: both bounds of a slice are of one kind, as in 'train[90%shuffled:100%shuffled]'"
    )
  return parts


def path_and_split(name: str) -> tuple[str, str]:
  """The two parts of 'PATH:SPLIT'; the colon between them is the last one that stands outside a slice.

  Raises:
    ValueError: there is no such colon.
  """
  # 'tfds:glue/cola:train[:10%]+test'   ->   'tfds:glue/cola', 'train[:10%]+test'
  match = _PATH_AND_SPLIT.fullmatch(name)
  if match is None:
    raise ValueError(f'{name!r} is no PATH:SPLIT, such as ../data/squad:validation or ../data/squad:validation[:10%]')
  return match[1], match[2]


def without_tokens(split: str, *, path: str) -> str:
  """The split of whose rows a slice by tokens is a part; another split as it is."""
  first = parse(split, path=path)[0]
  return first.name if first.by_tokens else split


def tokens_of(split: str, *, path: str, tokens: int) -> range:
  """The tokens that a slice by tokens takes of so many.

  Raises:
    ValueError: it asks for tokens that there are not, or for none.
  """
  first = parse(split, path=path)[0]
  ends = ((first.start, 0), (first.stop, tokens))
  start, stop = (
    _bound(bound and bound.removesuffix(_TOKENS), default, rows=tokens, split=split, unit='token')
    for bound, default in ends
  )
  if start >= stop:
    raise ValueError(f'split {split!r} of {path!r} holds no token: there are {tokens:,}')
  return range(start, stop)


def check(name: str, known: Sequence[str], *, path: str) -> None:
  """Refuses a split that a data set does not have.

  Raises:
    ValueError: with those that it has, and how a part of one is held out.
  """
  if name not in known:
    cure = (
      " To hold a part out: data.split='train[:95%]' and eval.validation.data.split='train[95%:]'"
      if 'train' in known
      else ' None of them is for training: name other data, or say data.split on purpose'
    )
    raise ValueError(
      f'there is no split {name!r} in {path!r}: there are {", ".join(known)}, each with an optional slice, such as '
      f'[:90%] or [10:20] behind its name.{errors.suggest(name, known)}{cure if name != "test" else ""}'
    )


def rows_of(part: Part, *, rows: int, split: str) -> Sequence[int]:
  """The rows that a slice takes from a split of so many, rising.

  Raises:
    ValueError: it asks for rows that there are not.
  """
  if part.by_tokens:
    raise ValueError(
      f'split {split!r}: rows are cut by tokens only where a vocabulary makes rows of plain text; elsewhere, as for '
      "labelled rows or to train a vocabulary, cut by rows: 'train[:98%]'"
    )
  start, stop = (
    _bound(bound and bound.removesuffix(_SHUFFLED), default, rows=rows, split=split)
    for bound, default in ((part.start, 0), (part.stop, rows))
  )
  # six rows in the drawn order 3 0 5 1 4 2   ->   [:4] are 0 1 3 5, and [4:] are 2 4
  return sorted(permutation(rows, 0)[start:stop].tolist()) if part.shuffled else range(start, stop)


def overlap(one: Part, other: Part) -> bool:
  """Whether two parts may have rows in common, as far as their names and bounds say: the number of rows is not known.

  'train[:90%]' and 'train[80%:]' have, 'train[:-100]' and 'train[-100:]' have not, 'train[:90%]' and 'train[500:]' may.
  """
  if one.name != other.name:
    return False
  units = {re.sub(r'^-?\d+', '', bound) for part in (one, other) for bound in part[1:] if bound is not None}
  (start, stop), (first, last) = map(_ends, (one, other))
  return len(units) > 1 or not (_is_before(stop, first) or _is_before(last, start))


def _ends(part: Part) -> tuple[tuple[bool, int], tuple[bool, int]]:
  """Where a part starts and stops: whether this is counted from the end, and the rows or the percentage."""

  def place(bound: str | None, default: tuple[bool, int]) -> tuple[bool, int]:
    if bound is None:
      return default
    number = int(re.findall(r'-?\d+', bound)[0])
    if '%' in bound:
      return False, number % 100 if bound.startswith('-') else number
    return bound.startswith('-'), number

  return place(part.start, (False, 0)), place(part.stop, (True, 0))


def _is_before(one: tuple[bool, int], other: tuple[bool, int]) -> bool:
  """Whether a place is sure to be another one or to lie before it, however many rows there are."""
  return one == (False, 0) or other == (True, 0) or (one[0] == other[0] and one[1] <= other[1])


def permutation(count: int, *key: int) -> np.ndarray:
  """int64[count]: a permutation that depends on `key` alone; numpy promises the bits of its generators for good."""
  return np.argsort(np.random.Philox(np.random.SeedSequence(key)).random_raw(count), kind='stable')


def _bound(given: str | None, default: int, *, rows: int, split: str, unit: str = 'row') -> int:
  """A bound of a slice as a row: counts or percent, from the end where negative; percent round to the nearest row."""
  if given is None:
    return default
  number = int(given.rstrip('%'))
  count = round(rows * number / 100) if given.endswith('%') else number
  if abs(number) > (100 if given.endswith('%') else rows):
    raise ValueError(f'split {split!r} asks for {unit} {given}, and there are {rows:,}')
  return count + rows if given.startswith('-') else count
