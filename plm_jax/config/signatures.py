"""Signatures of the package, read from source without importing it.

A config is checked, completed and listed before jax is loaded: keywords, annotations and defaults come from the syntax
tree of the file. `values.py` compares values with them, and `build.py` makes the calls.
"""

import ast
import enum
import functools
import pathlib
from typing import Any, NamedTuple

from plm_jax.config.annotations import tail
from plm_jax.io import files

ROOT = pathlib.Path(__file__).parent.parent
# What the first argument of a function that a config can name is called: a noise function has a key, an update rule a
# context, a schedule the step.
FIRST_ARGUMENTS = ('rng', 'key', 'context', 'step')
ARITHMETIC = {
  ast.Add: lambda left, right: left + right,
  ast.Sub: lambda left, right: left - right,
  ast.Mult: lambda left, right: left * right,
  ast.Div: lambda left, right: left / right,
  ast.Pow: lambda left, right: left**right,
}


# What makes a file of a folder one that a config can name, where it is not `make`.
ENTRIES = {'scores': 'score'}


class Missing(enum.Enum):
  """Reason why a keyword has no default value to show."""

  REQUIRED = 'required'
  COMPUTED = 'computed'


class Keyword(NamedTuple):
  """One keyword of a function: its annotation as source text (aliases replaced) and its default."""

  annotation: str
  default: Any = Missing.REQUIRED


def names(folder: str) -> list[str]:
  """List a folder's files with `make`, or its function in `ENTRIES`, sorted."""
  inside = files.listing(ROOT.joinpath(*folder.split('.')), '[!_]*.py')
  return [file.stem for file in inside if ENTRIES.get(folder, 'make') in _definitions(file)]


def functions(module: str) -> list[str]:
  """List functions for configs: public ones whose first argument is in `FIRST_ARGUMENTS`."""
  definitions = _definitions(_file(module)).items() if has(module) else ()
  return [name for name, node in definitions if not name.startswith('_') and _first_argument(node) in FIRST_ARGUMENTS]


def files_of(kind: str) -> list[str]:
  """Return the files of a kind: one for 'noise.edit', several for 'noise.where'."""
  folder = ROOT.joinpath(*kind.split('.'))
  inside = [file.stem for file in files.listing(folder, '[!_]*.py')]
  return [f'{kind}.{name}' for name in inside] if files.is_folder(folder) else [kind]


def names_functions(kind: str) -> bool:
  """Return whether the names of a kind are functions, not files."""
  return kind.startswith('noise.') or has(kind)


def places(kind: str) -> dict[str, str]:
  """Map every name of a kind to its file.

  Names are functions, or the files of a folder: in folders with plug-ins those that `names` lists. A kind of several
  folders, 'adapters | objectives', has the names of each.
  """
  if len(several := kind.split(' | ')) > 1:
    return {name: module for one in reversed(several) for name, module in places(one).items()}
  if names_functions(kind):
    return {name: module for module in files_of(kind) for name in functions(module)}
  inside = {module.rpartition('.')[2]: module for module in files_of(kind) if has(module)}
  return {name: inside[name] for name in names(kind)} or inside


def folder_of(kind: str, name: str) -> str:
  """Return the folder of a name.

      'adapters | objectives', 'mlm'    'objectives'

  A kind of functions is returned unchanged. An unknown name belongs to the first folder.
  """
  several = kind.split(' | ')
  if names_functions(kind) or len(several) == 1:
    return kind
  return places(kind).get(name, f'{several[0]}.').rpartition('.')[0]


def keywords(module: str, function: str = 'make') -> dict[str, Keyword]:
  """Return keyword-only arguments of a function, or fields of a dataclass."""
  return dict(_keywords(_file(module), function))


@functools.cache
def _keywords(file: pathlib.Path, function: str) -> dict[str, Keyword]:
  node = _definitions(file)[function]
  if isinstance(node, ast.ClassDef):
    fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
    return {ast.unparse(f.target): Keyword(_spell(f.annotation, file), _default(f.value, file)) for f in fields}
  pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
  return {item.arg: Keyword(_spell(item.annotation, file), _default(value, file)) for item, value in pairs}


def passes_on(module: str, function: str) -> bool:
  """Return whether a function takes more keywords as `**rest`."""
  node = _definitions(_file(module))[function]
  return isinstance(node, ast.FunctionDef) and node.args.kwarg is not None


def signature(folder: str, name: str) -> dict[str, Keyword]:
  """Return the keywords of `make` in `<folder>/<name>.py`."""
  return keywords(f'{folder}.{name}')


def has(module: str, name: str | None = None) -> bool:
  """Return whether a file exists, and defines a name if given."""
  file = _file(module)
  return files.is_file(file) and (name is None or name in _definitions(file))


def first_line(module: str, function: str | None = None) -> str:
  """Return the first docstring line of a file or function."""
  tree: Any = _tree(_file(module)) if function is None else _definitions(_file(module))[function]
  return (ast.get_docstring(tree) or '').partition('\n')[0]


def paper(module: str) -> dict[str, Any]:
  """Return the keywords of a file's `PAPER`, if any."""
  file = _file(module)
  node = _bound(file).get('PAPER')
  if not isinstance(node, ast.Call):
    return {}
  values = {item.arg: _default(item.value, file) for item in node.keywords if item.arg}
  if (kind := ast.unparse(node.func)) != 'Paper':  # a subclass, whose defaults are its own
    values = {name: keyword.default for name, keyword in keywords('core.types', kind).items()} | values
  return {name: value for name, value in values.items() if value is not Missing.COMPUTED}


def literal(module: str, name: str) -> Any:
  """Return a module-level literal (`READS`), None if missing, or raise ValueError."""
  node = _bound(_file(module)).get(name) if has(module) else None
  return None if not isinstance(node, ast.expr) else _literal(node, _file(module))


def table(module: str, name: str) -> list[str]:
  """Return the keys of a module-level dict, such as `CONFIGS`."""
  node = _bound(_file(module)).get(name) if has(module) else None
  if isinstance(node, ast.Call) and node.args:
    node = node.args[0]
  if not isinstance(node, ast.Dict):
    return []
  return [key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]


def path(module: str) -> str:
  """Format files or folders, joined by 'or': 'plm_jax/models/bert.py'."""
  if len(several := module.split(' | ')) > 1:
    return ' or '.join(map(path, several))
  file = _file(module)
  return str((file if files.is_file(file) else file.with_suffix('')).relative_to(ROOT.parent))


def _file(module: str) -> pathlib.Path:
  return ROOT.joinpath(*module.split('.')).with_suffix('.py')


@functools.cache
def _tree(file: pathlib.Path) -> ast.Module:
  return ast.parse(files.read_text(file), str(file))


def _definitions(file: pathlib.Path) -> dict[str, ast.FunctionDef | ast.ClassDef]:
  """Return functions and classes; `models.base.maker` has a trunk's `make`."""
  body = _tree(file).body
  own = {node.name: node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
  calls = [node.value.func for node in body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)]
  if 'maker' in map(ast.unparse, calls):
    inside = _definitions(ROOT / 'models' / 'base.py')['maker'].body
    own |= {node.name: node for node in inside if isinstance(node, ast.FunctionDef)}
  return own


class _Import(NamedTuple):
  """A name that `from module import name` binds."""

  module: str
  name: str


class _Place(NamedTuple):
  """The definition of a name: a node of a file, or the file itself if `node` is None."""

  file: pathlib.Path
  node: ast.expr | ast.stmt | None


@functools.cache
def _bound(file: pathlib.Path) -> dict[str, ast.expr | ast.stmt | _Import]:
  """Return module-level names of a file and their definitions."""
  bound: dict[str, ast.expr | ast.stmt | _Import] = dict(_definitions(file))
  for node in _tree(file).body:
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
      bound |= {item.asname or item.name: _Import(node.module, item.name) for item in node.names}
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
      bound[node.targets[0].id] = node.value
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
      bound[node.target.id] = node.value
  return bound


def _find(file: pathlib.Path, node: ast.expr) -> _Place | None:
  """Find the definition of a dotted name in this package, if any."""
  if isinstance(node, ast.Name):
    return _follow(file, node.id, ())
  if isinstance(node, ast.Attribute) and (owner := _find(file, node.value)) and owner.node is None:
    return _follow(owner.file, node.attr, ())
  return None


def _follow(file: pathlib.Path, name: str, seen: tuple[tuple[pathlib.Path, str], ...]) -> _Place | None:
  """Follow the imports of a name through this package."""
  bound = _bound(file).get(name)
  if not isinstance(bound, _Import):
    return _Place(file, bound) if bound else None
  if (file, name) in seen or bound.module.partition('.')[0] != ROOT.name:
    return None
  base = ROOT.joinpath(*bound.module.split('.')[1:])
  source = base / '__init__.py' if files.is_folder(base) else base.with_suffix('.py')
  if files.is_file(source) and (found := _follow(source, bound.name, (*seen, (file, name)))):
    return found
  inside = (base / bound.name / '__init__.py', base / f'{bound.name}.py')
  return next((_Place(part, None) for part in inside if files.is_file(part)), None)


def _first_argument(node: ast.FunctionDef | ast.ClassDef) -> str | None:
  return node.args.args[0].arg if isinstance(node, ast.FunctionDef) and node.args.args else None


def _spell(annotation: ast.expr | None, file: pathlib.Path) -> str:
  """Format an annotation with the aliases of this package replaced."""
  return 'Any' if annotation is None else ast.unparse(_written_out(annotation, file))


def _written_out(node: ast.expr, file: pathlib.Path) -> ast.expr:
  match node:
    case ast.Name() | ast.Attribute():
      place = _find(file, node)
      if place is not None and isinstance(place.node, ast.Subscript | ast.BinOp | ast.Name | ast.Attribute):
        return _written_out(place.node, place.file)
    case ast.Constant(value=str(text)):
      return _written_out(ast.parse(text, mode='eval').body, file)
    case ast.BinOp():
      return ast.BinOp(_written_out(node.left, file), node.op, _written_out(node.right, file))
    case ast.Subscript(slice=ast.Tuple() as inner) if tail(node.value) == 'Annotated':
      first, *notes = inner.elts
      return ast.Subscript(node.value, ast.Tuple([_written_out(first, file), *notes]))
    case ast.Subscript() if tail(node.value) != 'Literal':
      return ast.Subscript(node.value, _written_out(node.slice, file))
    case ast.Tuple() | ast.List():
      return type(node)([_written_out(item, file) for item in node.elts])
  return node


def _default(node: ast.expr | None, file: pathlib.Path) -> Any:
  if node is None:
    return Missing.REQUIRED
  try:
    return _literal(node, file)
  except ValueError:
    return Missing.COMPUTED


def _literal(node: ast.expr, file: pathlib.Path) -> Any:
  """Evaluate a default; raise ValueError if it needs running code."""
  match node:
    case ast.Name() | ast.Attribute():
      place = _find(file, node)
      if place is None or not isinstance(place.node, ast.expr):
        raise ValueError(f'{ast.unparse(node)} is not a literal')
      return _literal(place.node, place.file)
    case ast.BinOp() if type(node.op) in ARITHMETIC:
      return ARITHMETIC[type(node.op)](_literal(node.left, file), _literal(node.right, file))
    case ast.Tuple() | ast.List():
      return tuple(_literal(item, file) for item in node.elts)
    case ast.Dict() if None not in node.keys:
      return {_literal(k, file): _literal(v, file) for k, v in zip(node.keys, node.values, strict=True) if k}
    case ast.Call(func=ast.Name(id='dict'), args=[]):
      return {item.arg: _literal(item.value, file) for item in node.keywords}
    case ast.Call(args=[inner]) if tail(node.func) == 'MappingProxyType':
      return _literal(inner, file)
    case ast.Call(func=ast.Name(id='field'), keywords=[ast.keyword(arg='default_factory', value=made)]):
      return _literal(made.body, file) if isinstance(made, ast.Lambda) else {'dict': {}}.get(tail(made), ())
  return ast.literal_eval(node)


def experiment_files() -> list[pathlib.Path]:
  """Return the config files of the package, sorted."""
  found = [file for file in files.files_below(ROOT.parent / 'experiments') if file.suffix == '.py']
  return [file for file in found if file.name != 'common.py' and 'tables' not in file.parts]
