"""Tags of entities: schemes, and entities given as character offsets.

  IOB1     I-x I-x B-x O      B only between two adjacent entities of one type (CoNLL-2003)
  IOB2     B-x I-x B-x O      B at every beginning (BIO)
  IOE2     I-x E-x E-x O      E at every end
  IOBES    B-x E-x S-x O      single words have S (BIOES; BMES writes M for I)
  BILOU    B-x L-x U-x O      the same with other letters

Every scheme is read by one rule, that of seqeval's default mode: an entity begins at a B, S or U, where its type
changes, and behind an E, L, S or U.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

from plm_jax.core.entities import parts

Scheme = Literal['IOB1', 'IOB2', 'IOE2', 'IOBES', 'BILOU']
SCHEMES = get_args(Scheme)
_LETTERS: Mapping[str, str] = {'IOB1': 'BI', 'IOB2': 'BI', 'IOE2': 'IE', 'IOBES': 'BIES', 'BILOU': 'BILU'}
_KEYS = ('start', 'end', 'label')

Piece = tuple[str, int, int]  # a word with its characters [start, end)
Entity = tuple[str, int, int]  # type, first word, word after the last


def of_tags(tags: Sequence[Any]) -> list[Entity]:
  """Find the entities of a text; words with other tags are outside."""
  found: list[Entity] = []
  before = ('O', '')
  for index, tag in enumerate(tags):
    if not isinstance(tag, str) or not tag:
      continue  # a word without a tag
    prefix, kind = now = parts(tag)
    if kind and kind == before[1] and prefix not in 'BS' and before[0] not in 'ES':
      found[-1] = (kind, found[-1][1], index + 1)
    elif kind:
      found.append((kind, index, index + 1))
    before = now
  return found


def written(entities: Iterable[Entity], tags: Sequence[Any], scheme: Scheme) -> list[Any]:
  """Write entities over the tags of a text; others stay."""
  made, last = list(tags), ('', 0)
  for kind, start, end in entities:
    begins = 'B' if last == (kind, start) else 'I'
    first, inner, end_letter, single = {
      'IOB1': (begins, 'I', 'I', begins),
      'IOB2': ('B', 'I', 'I', 'B'),
      'IOE2': ('I', 'I', 'E', 'E'),
      'IOBES': ('B', 'I', 'E', 'S'),
      'BILOU': ('B', 'I', 'L', 'U'),
    }[scheme]
    letters = [first, *inner * (end - start - 2), end_letter] if end - start > 1 else [single]
    for index, letter in enumerate(letters, start):
      made[index] = f'{letter}-{kind}' if isinstance(made[index], str) and made[index] else made[index]
    last = (kind, end)
  return made


def convert(tags: Sequence[Any], scheme: Scheme) -> list[Any]:
  """Write the tags of a text in a scheme; other tags stay."""
  return written(of_tags(tags), tags, scheme)


def names_of(names: Iterable[str], scheme: Scheme) -> tuple[str, ...]:
  """List a scheme's tags for the types in tags, or raise ValueError."""
  kinds = []
  for name in names:
    prefix, kind = parts(name)
    if prefix == '' or (name != 'O' and not kind):
      raise ValueError(
        f"data.scheme={scheme!r} needs labels 'O' and 'B-...', but there is {name!r}: remove data.scheme"
      )
    kinds += [kind] * bool(kind)
  return ('O', *(f'{letter}-{kind}' for kind in dict.fromkeys(kinds) for letter in _LETTERS[scheme]))


def is_offsets(value: Any) -> bool:
  """Return True for a list of entities with character offsets."""
  return isinstance(value, list) and bool(value) and all(map(_fields, value))


def _fields(entity: Any) -> tuple[Any, ...] | None:
  if isinstance(entity, Mapping):
    return tuple(entity[key] for key in _KEYS) if set(_KEYS) <= set(entity) else None
  whole = isinstance(entity, list | tuple) and len(entity) == len(_KEYS)
  return tuple(entity) if whole and isinstance(entity[0], int) and isinstance(entity[2], str) else None


def types_in(value: Any) -> list[str]:
  """List the tags that a list of entities can make."""
  return ['O', *(f'{letter}-{entity[2]}' for entity in map(_fields, value) if entity for letter in 'BI')]


def of_offsets(value: Any, text: str, pieces: Sequence[Piece]) -> tuple[list[str], bool]:
  """Return the tags of words in IOB2, and whether one was cut.

  An entity that begins or ends inside a word covers that word.

  Raises ValueError for an entity that is not one, or overlaps another.
  """
  entities: list[Entity] = []
  cut = False
  for given in sorted(filter(None, map(_fields, value)), key=lambda entity: entity[:2]):
    start, end, kind = given
    inside = [at for at, (_, first, last) in enumerate(pieces) if first < end and last > start]
    problem = (
      f'is not within the {len(text)} characters of its text'
      if not (isinstance(start, int) and isinstance(end, int) and 0 <= start < end <= len(text))
      else 'has no label' if not isinstance(kind, str) or not kind
      else f'holds no word, only {text[start:end]!r}' if not inside
      else 'overlaps another one' if entities and inside[0] < entities[-1][2] else ''
    )  # fmt: skip
    if problem:
      raise ValueError(f'the entity {dict(zip(_KEYS, given, strict=True))} {problem}')
    cut |= pieces[inside[0]][1] < start or pieces[inside[-1]][2] > end
    entities.append((kind, inside[0], inside[-1] + 1))
  return written(entities, ['O'] * len(pieces), 'IOB2'), cut
