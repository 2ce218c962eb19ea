"""Names of splits with slices, as in TensorFlow Datasets: 'train[:90%]', 'train[-5%:]', 'train[:10]+test'.

A slice counts rows. With the word `tokens` it counts tokens of a corpus of plain text: 'train[:98%tokens]' and
'train[98%tokens:]'. Documents differ in length, so a share of documents is not the same share of tokens.
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
  """One split and the bounds of its slice as written: a count or a percentage, None if omitted."""

  name: str
  start: str | None
  stop: str | None

  @property
  def by_tokens(self) -> bool:
    """Return True if the slice counts tokens."""
    return self._ends_with(_TOKENS)

  @property
  def shuffled(self) -> bool:
    """Return True if the slice counts rows in a random order."""
    return self._ends_with(_SHUFFLED)

  def _ends_with(self, word: str) -> bool:
    return any(bound is not None and bound.endswith(word) for bound in (self.start, self.stop))


def parse(split: str, *, path: str) -> list[Part]:
  """Parse the parts of a split, in order.

  Raises ValueError for other texts than a name with an optional slice, or several joined by '+'.
  """
  parts = []
  for part in split.split('+'):
    match = _PART.match(part)
    if match is None:
      raise ValueError(
        f"there is no split {split!r} in {path!r}: use a name with an optional slice, as 'train[:90%]' or "
        "'train[10:20]', or several joined by '+'"
      )
    parts.append(Part(match[1], match[2], match[3]))
  mixed = any(bound and not bound.endswith(_TOKENS) for part in parts if part.by_tokens for bound in part[1:])
  if mixed or (len(parts) > 1 and any(part.by_tokens for part in parts)):
    raise ValueError(
      f'split {split!r}: a slice by tokens must be the only part, with both bounds in tokens, as '
      "'train[:98%tokens]' or 'train[98%tokens:100%tokens]'"
    )
  if any(bound and not bound.endswith(_SHUFFLED) for part in parts if part.shuffled for bound in part[1:]):
    raise ValueError(f"split {split!r}: write 'shuffled' in both bounds, as 'train[90%shuffled:100%shuffled]'")
  return parts


def path_and_split(name: str) -> tuple[str, str]:
  """Split 'PATH:SPLIT' at the last colon, or raise ValueError."""
  # 'tfds:glue/cola:train[:10%]+test'   ->   'tfds:glue/cola', 'train[:10%]+test'
  match = _PATH_AND_SPLIT.fullmatch(name)
  if match is None:
    raise ValueError(f'{name!r} is no PATH:SPLIT: write ../data/squad:validation or ../data/squad:validation[:10%]')
  return match[1], match[2]


def without_tokens(split: str, *, path: str) -> str:
  """Return the whole split of a slice by tokens; other splits unchanged."""
  first = parse(split, path=path)[0]
  return first.name if first.by_tokens else split


def tokens_of(split: str, *, path: str, tokens: int) -> range:
  """Return the tokens of a slice by tokens, of `tokens` in total.

  Raises ValueError if the slice exceeds the tokens, or has none.
  """
  first = parse(split, path=path)[0]
  start, stop = (
    _bound(bound and bound.removesuffix(_TOKENS), default, rows=tokens, split=split, unit='token')
    for bound, default in ((first.start, 0), (first.stop, tokens))
  )
  if start >= stop:
    raise ValueError(f'split {split!r} of {path!r} holds no token: there are {tokens:,} tokens')
  return range(start, stop)


def check(name: str, names: Sequence[str], *, path: str) -> None:
  """Raise ValueError, which lists splits, if a data set lacks one."""
  if name not in names:
    fix = ', with an optional slice such as [:90%] or [10:20].' + errors.suggest(name, names)
    if name == 'test' or (name != 'train' and 'train' not in names):
      whole = f"Read all files as one: path='{path}/*' with split='train'"
      fix = f'. {whole if len(names) > 9 else f"Set its split, such as split={names[0]!r}"}'
    elif 'train' in names:
      fix += " To hold a part out: data.split='train[:95%]' and eval.validation.data.split='train[95%:]'"
    else:
      fix += f' None of them is for training: set its split, such as split={"".join(names[:1])!r}, or use other data'
    raise ValueError(f'there is no split {name!r} in {path!r}: there are {errors.listed(names)}{fix}')


def rows_of(part: Part, *, rows: int, split: str) -> Sequence[int]:
  """Return the rows of a slice, ascending; ValueError if it exceeds them."""
  if part.by_tokens:
    raise ValueError(
      f'split {split!r}: a slice by tokens is only for plain text with a vocabulary. For labelled data, or to train a '
      "vocabulary, slice by rows: 'train[:98%]'"
    )
  start, stop = (
    _bound(bound and bound.removesuffix(_SHUFFLED), default, rows=rows, split=split)
    for bound, default in ((part.start, 0), (part.stop, rows))
  )
  # six rows in the random order 3 0 5 1 4 2   ->   [:4] are 0 1 3 5, and [4:] are 2 4
  return sorted(permutation(rows, 0)[start:stop].tolist()) if part.shuffled else range(start, stop)


def overlap(part: Part, other: Part) -> bool:
  """Return True if two parts may have rows in common.

  Only names and bounds are compared, because the number of rows is unknown: 'train[:90%]' and 'train[80%:]' overlap,
  'train[:-100]' and 'train[-100:]' do not, 'train[:90%]' and 'train[500:]' may.
  """
  if part.name != other.name:
    return False
  units = {re.sub(r'^-?\d+', '', bound) for item in (part, other) for bound in item[1:] if bound is not None}
  (start, stop), (first, last) = map(_ends, (part, other))
  return len(units) > 1 or not (_is_before(stop, first) or _is_before(last, start))


def _ends(part: Part) -> tuple[tuple[bool, int], tuple[bool, int]]:
  """Return start and stop, each (from the end, rows or percentage)."""

  def bound_of(bound: str | None, default: tuple[bool, int]) -> tuple[bool, int]:
    if bound is None:
      return default
    number = int(re.findall(r'-?\d+', bound)[0])
    if '%' in bound:
      return False, number % 100 if bound.startswith('-') else number
    return bound.startswith('-'), number

  return bound_of(part.start, (False, 0)), bound_of(part.stop, (True, 0))


def _is_before(one: tuple[bool, int], other: tuple[bool, int]) -> bool:
  """Return True if a bound is never after another, whatever the rows."""
  return one == (False, 0) or other == (True, 0) or (one[0] == other[0] and one[1] <= other[1])


def permutation(count: int, *key: int) -> np.ndarray:
  """Compute a permutation, int64[count], of `key` only, stable across numpy versions."""
  return np.argsort(np.random.Philox(np.random.SeedSequence(key)).random_raw(count), kind='stable')


def _bound(bound: str | None, default: int, *, rows: int, split: str, unit: str = 'row') -> int:
  if bound is None:
    return default
  number = int(bound.rstrip('%'))
  count = round(rows * number / 100) if bound.endswith('%') else number
  if abs(number) > (100 if bound.endswith('%') else rows):
    raise ValueError(f'split {split!r}: {unit} {bound} is out of range, there are {rows:,}')
  return count + rows if bound.startswith('-') else count
