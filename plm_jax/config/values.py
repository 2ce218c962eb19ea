"""Plain values against annotations, and messages for those that do not fit.

Values are JSON types; annotations are text, as `signatures.py` reads them. Nothing here imports jax.
"""

import ast
import difflib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from plm_jax.config import aliases, annotations
from plm_jax.config.annotations import MAPPINGS, SEQUENCES, arguments, readable, tail
from plm_jax.config.signatures import Keyword, Missing
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError, key_of

MOST_TYPE = 90  # characters of a type in a message
ALL_KEYS = '--print_config=types'
SMALLEST, LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127  # of the normal numbers of float32


def coerce(annotation: str, value: Any) -> Any:
  """Convert a plain value to the type of an annotation.

  Integers become floats if a float is expected, and tuples become lists. A Callable is given as the dict that names it.
  The kind of a block is not checked here. Raises TypeError: the value does not fit; the message lists what does. Raises
  NameError: the annotation holds an unknown name, a mistake in the code.
  """
  try:
    return _known(annotation, value)
  except TypeError:
    got = f'{type(value).__name__} {errors.shown(value)}{why_not(annotation, value)}'
    raise TypeError(f'expected {short(annotation)}, got {got}') from None


def fits(annotation: str, value: Any) -> bool:
  """Return whether an annotation takes a plain value."""
  try:
    _known(annotation, value)
  except TypeError:
    return False
  return True


def _known(annotation: str, value: Any) -> Any:
  """Convert like `coerce`, without a message."""
  if names := annotations.unknown(annotation):
    raise NameError(f'annotation {annotation}: {names[0]} is no type that a config can be checked against')
  return _coerce(annotations.parse(annotation), value)


def in_float32(value: float) -> bool:
  """Return whether float32 holds a number without making it 0 or infinite."""
  return value == 0 or SMALLEST <= abs(value) <= LARGEST or value in (math.inf, -math.inf) or value != value


def _coerce(node: ast.expr, value: Any) -> Any:
  match node:
    case ast.Constant(value=None):
      return _demand(value is None, None)
    case ast.BinOp(op=ast.BitOr()):
      return _first_fit([node.left, node.right], value)
    case ast.Subscript():
      return _coerce_generic(node, value)
    case ast.Name() | ast.Attribute():
      return _coerce_name(tail(node), value)
  return value


def _coerce_name(name: str, value: Any) -> Any:
  number = isinstance(value, int | float) and not isinstance(value, bool)
  match name:
    case 'int':
      return _demand(number and isinstance(value, int) and -(2**31) <= value < 2**32, value)  # what arrays can hold
    case 'float':
      return float(_demand(number and in_float32(value), value))
    case 'bool':
      return _demand(isinstance(value, bool), value)
    case 'str':
      return _demand(isinstance(value, str), value)
    case 'Callable':
      return _demand(isinstance(value, Mapping) and 'name' in value, value)
    case _ if name in SEQUENCES:
      _demand(isinstance(value, list | tuple), value)
      return list(value)
    case _ if name in MAPPINGS:
      return _demand(isinstance(value, Mapping), value)
  return _demand(name == 'Any', value)  # the other names are of what a run gives


def _coerce_generic(node: ast.Subscript, value: Any) -> Any:
  name, inside = tail(node.value), arguments(node)
  if name == 'Literal':
    return _demand(any(type(value) is type(c) and value == c for c in map(ast.literal_eval, inside)), value)
  if name in ('Union', 'Optional'):
    return _first_fit([*inside, ast.Constant(None)] if name == 'Optional' else inside, value)
  if name in ('Annotated', 'Final'):
    value = _coerce(inside[0], value)
    return _demand(name == 'Final' or annotations.within(node, value), value)
  value = _coerce_name(name, value)
  if name in MAPPINGS:
    return {_coerce(inside[0], key): _coerce(inside[1], item) for key, item in value.items()}
  if name not in SEQUENCES:
    return value
  if name != 'tuple' or (isinstance(inside[-1], ast.Constant) and inside[-1].value is Ellipsis):
    return [_coerce(inside[0], item) for item in value]
  _demand(len(inside) == len(value), value)
  return [_coerce(wanted, item) for wanted, item in zip(inside, value, strict=True)]


def _first_fit(nodes: list[ast.expr], value: Any) -> Any:
  for node in nodes:
    try:
      return _coerce(node, value)
    except TypeError:
      continue
  raise TypeError


def _demand(condition: bool, value: Any) -> Any:
  if not condition:
    raise TypeError
  return value


def why_not(annotation: str, value: Any) -> str:
  """Return a reason for a mismatch that the annotation does not show."""
  number = isinstance(value, int | float) and not isinstance(value, bool)
  if number and not in_float32(value) and 'float' in annotation:
    return f'; numbers have 32 bits, and are 0 or from {SMALLEST:.3g} to {LARGEST:.3g} in size'
  if number and value > annotations.MOST and fits(annotation, annotations.MOST) and not fits(annotation, 2**31):
    return f'; whole numbers end at {annotations.MOST:,} (int32)'
  return annotations.broken_pattern(annotation, value)


def short(annotation: str) -> str:
  """Format an annotation for a message, 'float (0 <= x < 1)'."""
  text = re.sub(r'block of [\w.:]+', 'block', readable(annotation))
  return text if len(text) <= MOST_TYPE else f'{text[:MOST_TYPE]}... ({ALL_KEYS} shows all of it)'


def as_steps(value: int | float, steps: int, what: str) -> int:
  """Convert a duration to steps.

  A float up to 1 is a fraction of the run. Raises ConfigError: negative, or a float above 1 that is not a whole number.
  """
  if isinstance(value, float) and 0.0 <= value <= 1.0:
    return int(round(value * steps, 9))  # .29 * 100 is 28.999999999999996
  if value < 0 or value != int(value):
    raise ConfigError(f'optim.{what}={value}: give whole steps, or a fraction of the run between 0.0 and 1.0.')
  return int(value)


def check_keywords(
  label: str,
  known: Mapping[str, Keyword],
  settings: Mapping[str, Any],
  *,
  elsewhere: Mapping[str, str] | None = None,
  fix: Callable[[str, Any, str], str] = lambda annotation, value, label: '',
) -> dict[str, Any]:
  """Check settings and convert them to the types of the keywords.

  Raises ConfigError: an unknown, missing or wrongly typed keyword.

  Args:
    label: the dotted key of a block of a config, such as 'objective.where', or a place such as "bert_5.py: row 'a'".
    known: every keyword that may be set.
    settings: the values, plain data.
    elsewhere: keyword -> who takes it, for keywords that only others take.
    fix: (annotation, value, dotted key) -> end of the message for a value that does not fit.
  """
  for name in settings:
    if name not in known:
      below = tuple(settings[name])[:1] if isinstance(settings[name], Mapping) else ()
      raise ConfigError(unknown_keyword(label, known, name, elsewhere or {}, below=below))
  for name, keyword in known.items():
    if keyword.default is Missing.REQUIRED and name not in settings:
      where, key = _located(label, name)
      raise ConfigError(f'{where}missing key {key} ({short(keyword.annotation)}). Keys: {_listed(known, label)}')
  return dict(_checked(label, known, settings, fix))


def unknown_keyword(
  label: str, known: Mapping[str, Keyword], name: Any, elsewhere: Mapping[str, str], *, below: Sequence[Any] = ()
) -> str:
  """Return the message for an unknown key, with keys `below` it."""
  where, key = _located(label, name if isinstance(name, str) else errors.shown(name))
  mistyped = difflib.get_close_matches(str(name), list(known), cutoff=0.8)
  if hint := below and not mistyped and aliases.inner_hint(str(name), str(below[-1])):
    return f'{where}unknown key {".".join(map(str, (key, *below)))}: {hint} Keys: {_listed(known, label)}'
  inside = key.rpartition('.')[0]
  if name in elsewhere:
    hint = f'it is a key of {elsewhere[name]}'
  else:
    hint = aliases.key_hint(str(name), known, label=inside) or _elsewhere_hint(str(name), elsewhere, inside)
  return f'{where}unknown key {key}: {hint}. Keys: {_listed(known, label)}'.replace('?.', '?')


def _located(label: str, name: str) -> tuple[str, str]:
  """Split a place into the start of a message and a key.

  'config.optim', 'lr'        '', 'optim.lr'
  "x.py: row 'a'", 'titel'    "x.py: row 'a': ", 'titel'
  """
  if label == 'config':
    return '', name
  return ('', f'{key_of(label)}.{name}') if _is_key(label) else (f'{label}: ', name)


def _is_key(label: str) -> bool:
  """Return whether a label is a dotted key of a config."""
  return re.fullmatch(r'[\w.]+', label) is not None and not label.endswith('.py')


def _elsewhere_hint(name: str, elsewhere: Mapping[str, str], label: str) -> str:
  """Return the nearest key that another rule or schedule takes."""
  similar = errors.near(name, elsewhere)
  return f'did you mean {label}.{similar[0]}, a key of {elsewhere[similar[0]]}?' if similar else 'no key is similar'


def _listed(known: Mapping[str, Keyword], label: str) -> str:
  """List the first keys of a block, and how to see all."""
  if not _is_key(label):
    return errors.listed(known)
  text = errors.listed(known, see=ALL_KEYS)
  return f'{text[:-1]} with types)' if ALL_KEYS in text else f'{text} ({ALL_KEYS} shows their types)'


def _checked(
  label: str, known: Mapping[str, Keyword], settings: Mapping[str, Any], fix: Callable[[str, Any, str], str]
) -> Iterator[tuple[str, Any]]:
  for name, value in settings.items():
    try:
      yield name, coerce(known[name].annotation, value)
    except TypeError as error:
      end = fix(known[name].annotation, value, f'{label}.{name}')
      where, key = _located(label, name)
      raise ConfigError(f'{where}{key}: {error}{end}.') from None
