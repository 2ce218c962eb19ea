"""Plain values against annotations, and the messages for those that do not fit.

Values are what JSON can hold; annotations are text, as `signatures.py` reads them. Nothing here imports jax.
"""

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from plm_jax.errors import ConfigError, suggest
from plm_jax.plugins.signatures import Keyword, Missing, tail

SEQUENCES = ('tuple', 'list', 'Sequence', 'Collection', 'Iterable')
MAPPINGS = ('dict', 'Mapping', 'MutableMapping')


def coerce(annotation: str, value: Any) -> Any:
  """A plain value as an annotation wants it: ints become floats where a float is meant, tuples become lists.

  Only builtins, Literal, containers and unions of them are checked; any other name takes every value. A Callable is
  given as the dict that names it.

  Raises:
    TypeError: the value does not fit; the message says what would.
  """
  try:
    return _coerce(ast.parse(annotation, mode='eval').body, value)
  except TypeError:
    raise TypeError(f'expected {annotation}, got {type(value).__name__} {value!r}') from None


def item_annotation(annotation: str) -> str | None:
  """What the items of a container are; None where the annotation is no container."""
  for node in ast.walk(ast.parse(annotation, mode='eval').body):
    if isinstance(node, ast.Subscript) and tail(node.value) in (*SEQUENCES, *MAPPINGS):
      arguments = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
      homogeneous = tail(node.value) != 'tuple' or ast.unparse(arguments[-1]) == '...'
      return ast.unparse(arguments[tail(node.value) in MAPPINGS]) if homogeneous else 'Any'
    if isinstance(node, ast.Name) and node.id in (*SEQUENCES, *MAPPINGS, 'Any'):
      return 'Any'
  return None


def _coerce(node: ast.expr, value: Any) -> Any:
  match node:
    case ast.Constant(value=None):
      return _demand(value is None, None)
    case ast.Constant(value=str(text)):
      return _coerce(ast.parse(text, mode='eval').body, value)
    case ast.BinOp(op=ast.BitOr()):
      return _first_fit([node.left, node.right], value)
    case ast.Subscript():
      arguments = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
      return _coerce_generic(tail(node.value), arguments, value)
    case ast.Name() | ast.Attribute():
      return _coerce_name(tail(node), value)
  return value


def _coerce_name(name: str, value: Any) -> Any:
  number = isinstance(value, int | float) and not isinstance(value, bool)
  match name:
    case 'int':
      return _demand(number and isinstance(value, int), value)
    case 'float':
      _demand(number, value)
      return float(value)
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
  return value


def _coerce_generic(name: str, arguments: list[ast.expr], value: Any) -> Any:
  if name == 'Literal':
    return _demand(any(type(value) is type(c) and value == c for c in map(ast.literal_eval, arguments)), value)
  if name in ('Union', 'Optional'):
    return _first_fit([*arguments, ast.Constant(None)] if name == 'Optional' else arguments, value)
  if name in ('Annotated', 'Final'):
    return _coerce(arguments[0], value)
  value = _coerce_name(name, value)
  if name in MAPPINGS:
    return {_coerce(arguments[0], key): _coerce(arguments[1], item) for key, item in value.items()}
  if name not in SEQUENCES:
    return value
  if name != 'tuple' or (isinstance(arguments[-1], ast.Constant) and arguments[-1].value is Ellipsis):
    return [_coerce(arguments[0], item) for item in value]
  _demand(len(arguments) == len(value), value)
  return [_coerce(argument, item) for argument, item in zip(arguments, value, strict=True)]


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


# Messages ---------------------------------------------------------------------------------------------------------


def describe(known: Mapping[str, Keyword]) -> str:
  """The keywords of a function as one line."""
  return ', '.join(f'{name}: {keyword}' for name, keyword in known.items()) or 'nothing'


def check_keywords(label: str, owner: str, known: Mapping[str, Keyword], settings: Mapping[str, Any]) -> dict[str, Any]:
  """Settings as the annotations want them.

  Args:
    label: what the user wrote, such as 'objective.where'.
    owner: where the keywords stand, such as 'fixed_count in plm_jax/noise/where.py'.
    known: every keyword that may be set.
    settings: the values, plain data.

  Raises:
    ConfigError: an unknown, missing or wrongly typed keyword.
  """
  for name in settings:
    if name not in known:
      raise ConfigError(f'{label}: {owner} has no keyword {name!r}.{suggest(name, known)} It takes: {describe(known)}.')
  for name, keyword in known.items():
    if keyword.default is Missing.REQUIRED and name not in settings:
      raise ConfigError(f'{label}: {owner} needs {name!r} ({keyword.annotation}). It takes: {describe(known)}.')
  return dict(_checked(label, owner, known, settings))


def _checked(
  label: str, owner: str, known: Mapping[str, Keyword], settings: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
  for name, value in settings.items():
    try:
      yield name, coerce(known[name].annotation, value)
    except TypeError as error:
      raise ConfigError(f'{label}.{name}: {error} ({owner}).') from None
