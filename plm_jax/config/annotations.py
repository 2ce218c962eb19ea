"""Annotations of keywords: the values a keyword takes, their bounds, and the blocks of a config in it.

An annotation is text in which `signatures.py` has replaced every alias. It is parsed and never evaluated. Besides
builtins, containers and `Literal` it may hold

    Annotated[float, '0 <= x < 1']                   a bound: x compared with numbers
    Annotated[float, 'any']                          a number without a bound
    Annotated[str, 'pattern']                        a regular expression
    Annotated[Mapping[str, Any], 'models']           a block that names a file of a folder
    Annotated[Mapping[str, Any], 'adapters | objectives']    the same for a file of either folder
    Annotated[Mapping[str, Any], 'noise.where']      a block that names a function of a file or folder
    Annotated[Mapping[str, Any], 'core.types:Execution']     a block with the fields of a class
    Annotated[str, 'optim.rules']                    the name of a file of a folder, or of a function of a file

and unions and containers of these. The text after the type is its kind.
"""

import ast
import builtins
import functools
import operator
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from plm_jax.core.errors import shown

SCALARS = ('bool', 'float', 'int', 'str')
SEQUENCES = ('tuple', 'list', 'Sequence', 'Collection', 'Iterable')
MAPPINGS = ('dict', 'Mapping', 'MutableMapping')
OTHERS = ('Any', 'Annotated', 'Callable', 'Final', 'Literal', 'Optional', 'Union')
# Types of what a run gives to a `make` or a function; no config can write a value of these.
GIVEN = ('Array', 'Execution', 'Module', 'Sentences', 'Template', 'Trunk', 'Vocab', 'ndarray')
KNOWN = (*SCALARS, *SEQUENCES, *MAPPINGS, *OTHERS, *GIVEN)
ANY, PATTERN = 'any', 'pattern'  # notes that are no kinds: a number without a bound, a regular expression
MOST = 2**31 - 1  # of int32
COMPARISONS = {ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge}


class Part(NamedTuple):
  """The part of a value that a dotted key can enter."""

  # a 'block', a 'name', a 'sequence', a 'mapping', or 'any' plain data
  form: Literal['block', 'name', 'sequence', 'mapping', 'any']
  inner: str  # the kind of a block or name, the annotation of the items of a container


@functools.cache
def parse(annotation: str) -> ast.expr:
  """Parse an annotation, also one in quotation marks."""
  node = ast.parse(annotation, mode='eval').body
  return parse(node.value) if isinstance(node, ast.Constant) and isinstance(node.value, str) else node


def tail(node: ast.expr) -> str:
  """Return the last part of a dotted name: 'Mapping' of `collections.abc.Mapping`."""
  return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ''


def arguments(node: ast.Subscript) -> list[ast.expr]:
  """Return the items in the brackets: A and B of `tuple[A, B]`."""
  return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]


def unknown(annotation: str) -> list[str]:
  """Return names in an annotation that `values.coerce` does not know."""
  return list(_unknown(parse(annotation)))


def _unknown(node: ast.expr) -> list[str]:
  match node:
    case ast.Name() | ast.Attribute():
      return [] if tail(node) in KNOWN else [ast.unparse(node)]
    case ast.BinOp():
      return _unknown(node.left) + _unknown(node.right)
    case ast.Subscript():
      name = tail(node.value)
      inner = {'Literal': [], 'Callable': [], 'Annotated': arguments(node)[:1]}.get(name, arguments(node))
      return _unknown(node.value) + [found for item in inner for found in _unknown(item)]
  return []


def kind(node: ast.Subscript) -> str | None:
  """Return the kind in an `Annotated[...]`, None for a bound."""
  texts = [note.value for note in arguments(node)[1:] if isinstance(note, ast.Constant) and isinstance(note.value, str)]
  return next((text for text in texts if text not in (ANY, PATTERN) and not _comparison(text)), None)


def within(node: ast.Subscript, value: Any) -> bool:
  """Return whether a value meets the bounds of an `Annotated[...]`.

  A regular expression must compile. Integers without an upper bound end at that of int32 arrays.
  """
  notes = [note.value for note in arguments(node)[1:] if isinstance(note, ast.Constant) and isinstance(note.value, str)]
  sound = PATTERN not in notes or not _fault(value)
  bounds = [comparison for comparison in map(_comparison, notes) if comparison]
  if isinstance(value, int) and value > MOST and not any(map(_ends, bounds)):
    return False
  return sound and all(_holds(comparison, value) for comparison in bounds)


def _fault(pattern: str) -> str:
  """Return the mistake in a regular expression, '' if it compiles."""
  try:
    with warnings.catch_warnings(action='ignore', category=FutureWarning):  # of '[[', which may be no pattern at all
      re.compile(pattern)
  except (re.error, OverflowError, RecursionError) as error:
    return str(error)
  return ''


def broken_pattern(annotation: str, value: Any) -> str:
  """Return why a regular expression in a value does not compile.

  It is the end of a message, and empty if that is not the mistake.
  """
  texts = [value] if isinstance(value, str) else []
  if isinstance(value, list | tuple):
    firsts = [item[0] if isinstance(item, list | tuple) and item else item for item in value]
    texts = [text for text in firsts if isinstance(text, str)]
  wrong = next((text for text in texts if _fault(text)), None) if repr(PATTERN) in annotation else None
  return '' if wrong is None else f'; {shown(wrong)} is no regular expression: {_fault(wrong)}'


@functools.cache
def _comparison(text: str) -> ast.Compare | None:
  """Parse '0 <= x < 1'; None for other texts."""
  try:
    node = ast.parse(text, mode='eval').body
  except SyntaxError:
    return None
  return node if isinstance(node, ast.Compare) else None


def _ends(comparison: ast.Compare) -> bool:
  """Return whether a comparison bounds x from above."""
  return isinstance(comparison.ops[-1], ast.Lt | ast.LtE) and not isinstance(comparison.comparators[-1], ast.Name)


def _holds(comparison: ast.Compare, x: Any) -> bool:
  def read(node: ast.expr) -> Any:
    return x if isinstance(node, ast.Name) and node.id == 'x' else ast.literal_eval(node)

  sides = [read(side) for side in (comparison.left, *comparison.comparators)]
  return all(COMPARISONS[type(op)](a, b) for op, a, b in zip(comparison.ops, sides, sides[1:], strict=False))


def part(annotation: str, value: Any) -> Part | None:
  """Return the part of a value that a dotted key enters."""
  fits = {'block': Mapping, 'mapping': Mapping, 'sequence': list | tuple, 'name': str, 'any': object}
  return next((found for found in _parts(parse(annotation)) if isinstance(value, fits[found.form])), None)


def parts(annotation: str) -> list[Part]:
  """List the blocks, names and containers in an annotation, nested ones included."""
  found = _parts(parse(annotation))
  return [inner for one in found for inner in (one, *(parts(one.inner) if one.form in ('sequence', 'mapping') else ()))]


def rebuild(annotation: str, value: Any, change: Callable[[Part, Any, str], Any], label: str) -> Any:
  """Replace each block and name in a value by `change(part, value, key)`.

  None stays None. `change` is also called inside containers, and not again for its own results. `label` is the dotted
  key of the value.
  """
  found = None if value is None else part(annotation, value)
  if found is None or found.form == 'any':
    return value
  if found.form == 'sequence':
    return type(value)(rebuild(found.inner, item, change, f'{label}.{index}') for index, item in enumerate(value))
  if found.form == 'mapping':
    return {key: rebuild(found.inner, item, change, f'{label}.{key}') for key, item in value.items()}
  return change(found, value, label)


def _parts(node: ast.expr) -> list[Part]:
  match node:
    case ast.BinOp():
      return _parts(node.left) + _parts(node.right)
    case ast.Name() | ast.Attribute():
      return [Part('any', 'Any')] if tail(node) in (*SEQUENCES, *MAPPINGS, 'Any', 'Callable') else []
    case ast.Subscript():
      return _parts_of_generic(node)
  return []


def _parts_of_generic(node: ast.Subscript) -> list[Part]:
  name, inside = tail(node.value), arguments(node)
  if name == 'Annotated' and (named := kind(node)):
    return [Part('block' if _is_mapping(inside[0]) else 'name', named)]
  if name in ('Annotated', 'Optional', 'Final', 'Union'):
    return [found for item in inside for found in _parts(item)]
  if name in MAPPINGS:
    return [Part('mapping', ast.unparse(inside[1]))]
  if name in SEQUENCES:
    alike = name != 'tuple' or ast.unparse(inside[-1]) == '...'
    return [Part('sequence', ast.unparse(inside[0]) if alike else 'Any')]
  return [Part('any', 'Any')] if name == 'Callable' else []


def _is_mapping(node: ast.expr) -> bool:
  return tail(node.value if isinstance(node, ast.Subscript) else node) in MAPPINGS


def with_kind(annotation: str, named: str) -> str:
  """Give a kind to every text or `Mapping[str, Any]` without one."""
  return ast.unparse(_with_kind(parse(annotation), named))


def _with_kind(node: ast.expr, named: str) -> ast.expr:
  match node:
    case ast.Name(id='str'):
      return ast.Subscript(ast.Name('Annotated'), ast.Tuple([node, ast.Constant(named)]))
    case ast.BinOp():
      return ast.BinOp(_with_kind(node.left, named), node.op, _with_kind(node.right, named))
    case ast.Subscript(slice=ast.Tuple([key, value])) if _is_mapping(node):
      if tail(value) != 'Any':
        return ast.Subscript(node.value, ast.Tuple([key, _with_kind(value, named)]))
      return ast.Subscript(ast.Name('Annotated'), ast.Tuple([node, ast.Constant(named)]))
    case ast.Subscript(slice=ast.Tuple([item, ast.Constant(value=builtins.Ellipsis)])):
      return ast.Subscript(node.value, ast.Tuple([_with_kind(item, named), ast.Constant(...)]))
  return node


@functools.cache
def readable(annotation: str) -> str:
  """Format an annotation for messages, 'float (0 <= x < 1)'."""

  class Rewrite(ast.NodeTransformer):
    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
      self.generic_visit(node)
      if tail(node.value) != 'Annotated':
        return node
      first, *notes = arguments(node)
      named = kind(node)
      if named is None:
        words = {ANY: '', PATTERN: 'pattern'}
        bounds = ' and '.join(words.get(text, text) for text in map(ast.literal_eval, notes))
        return ast.Name(f'{ast.unparse(first)} ({bounds})' if bounds else ast.unparse(first))
      return first if isinstance(first, ast.Name) else ast.Name(f'block of {named}')

  return ast.unparse(Rewrite().visit(ast.parse(annotation, mode='eval').body))
