"""Prefixes of the tags of entities: B-x, I-x, E-x, S-x, and the letters that other schemes write for them."""

from collections.abc import Iterable
from typing import Any

# BILOU has L and U, BMES has M, BIEOW has W
PREFIXES = {'B': 'B', 'I': 'I', 'E': 'E', 'S': 'S', 'L': 'E', 'U': 'S', 'M': 'I', 'W': 'S'}


def parts(tag: Any) -> tuple[str, str]:
  """Split a tag into B, I, E or S and its type.

  ('O', '') for words outside, ('', '') for anything that is no tag of an entity.
  """
  if not isinstance(tag, str) or tag == 'O':
    return ('O' if tag == 'O' else ''), ''
  prefix, dash, kind = tag.partition('-')
  return (PREFIXES[prefix], kind) if dash and kind and prefix in PREFIXES else ('', '')


def are_tags(names: Iterable[str]) -> bool:
  """Return True if all are tags, one B, I or S."""
  prefixes = {parts(name)[0] for name in names}
  return '' not in prefixes and bool(prefixes & {'B', 'I', 'S'})
