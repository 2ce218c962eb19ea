"""What the files of the package take, read from their source without importing any of them.

A config is checked, completed and listed before jax is loaded: keywords, annotations and defaults come from the syntax
tree of the file. `values.py` compares values with them, `build.py` makes the calls.
"""

import ast
import enum
import functools
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).parent.parent
ARITHMETIC = {
  ast.Add: lambda left, right: left + right,
  ast.Sub: lambda left, right: left - right,
  ast.Mult: lambda left, right: left * right,
  ast.Div: lambda left, right: left / right,
  ast.Pow: lambda left, right: left**right,
}


class Missing(enum.Enum):
  """Why a keyword has no default value to show: there is none, or it takes running code to know it."""

  REQUIRED = 'required'
  COMPUTED = 'computed'


class Keyword(NamedTuple):
  """One keyword of a function: its annotation as source text (aliases written out) and its default."""

  annotation: str
  default: Any = Missing.REQUIRED

  def __str__(self) -> str:
    if self.default is Missing.REQUIRED:
      return self.annotation
    return f'{self.annotation} = {"..." if self.default is Missing.COMPUTED else repr(self.default)}'


# Files and their definitions -----------------------------------------------------------------------------------------


def names(folder: str) -> list[str]:
  """The files of a folder that have a `make`, sorted."""
  files = sorted(file for file in (ROOT / folder).glob('*.py') if not file.stem.startswith('_'))
  return [file.stem for file in files if 'make' in _definitions(file)]


def functions(module: str, *, first: tuple[str, ...] = ('rng', 'key')) -> list[str]:
  """The public functions of a file such as 'noise.where' whose first argument has one of these names: those of a noise
  file that corrupt a row start with a key."""
  definitions = _definitions(_file(module)).items() if has(module) else ()
  return [name for name, node in definitions if not name.startswith('_') and _first_argument(node) in first]


def files(kind: str) -> list[str]:
  """The files of a kind: 'noise.edit' is one, 'noise.where' a folder of several."""
  folder = ROOT.joinpath(*kind.split('.'))
  inside = sorted(file.stem for file in folder.glob('*.py') if not file.stem.startswith('_'))
  return [f'{kind}.{name}' for name in inside] if folder.is_dir() else [kind]


def places(kind: str) -> dict[str, str]:
  """Function -> the file that it stands in, for every function of a kind of noise such as 'noise.where'."""
  return {name: module for module in files(kind) for name in functions(module)}


def keywords(module: str, function: str = 'make') -> dict[str, Keyword]:
  """The keyword-only arguments of a function, or the fields of a dataclass, of a file such as 'models.bert'."""
  return dict(_keywords(_file(module), function))


@functools.cache
def _keywords(file: pathlib.Path, function: str) -> dict[str, Keyword]:
  node = _definitions(file)[function]
  aliases = _aliases(file)
  if isinstance(node, ast.ClassDef):
    fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
    return {ast.unparse(f.target): Keyword(_spell(f.annotation, aliases), _default(f.value, aliases)) for f in fields}
  pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
  return {item.arg: Keyword(_spell(item.annotation, aliases), _default(value, aliases)) for item, value in pairs}


def signature(folder: str, name: str) -> dict[str, Keyword]:
  """The keywords of `make` in `<folder>/<name>.py`."""
  return keywords(f'{folder}.{name}')


def has(module: str, name: str | None = None) -> bool:
  """True where a file such as 'models.bert' exists and, where a name is given, defines this function or class."""
  file = _file(module)
  return file.is_file() and (name is None or name in _definitions(file))


def first_line(module: str, function: str | None = None) -> str:
  """The first line of the docstring of a file or of one of its functions; empty where there is none."""
  tree: Any = _tree(_file(module)) if function is None else _definitions(_file(module))[function]
  return (ast.get_docstring(tree) or '').partition('\n')[0]


def paper(module: str) -> dict[str, Any]:
  """The literal keywords of a file's `PAPER = Paper(...)`; empty where it has none."""
  aliases = _aliases(_file(module))
  node = aliases.get('PAPER')
  if not isinstance(node, ast.Call):
    return {}
  values = {item.arg: _default(item.value, aliases) for item in node.keywords if item.arg}
  return {name: value for name, value in values.items() if value is not Missing.COMPUTED}


def table(module: str, name: str) -> list[str]:
  """The keys of a module-level dict, such as the published sizes in `CONFIGS`; empty where the file has none."""
  node = _aliases(_file(module)).get(name) if has(module) else None
  if isinstance(node, ast.Call) and node.args:
    node = node.args[0]
  if not isinstance(node, ast.Dict):
    return []
  return [key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]


def path(module: str) -> str:
  """A file or folder as messages show it: 'plm_jax/models/bert.py'."""
  file = _file(module)
  return str((file if file.is_file() else file.with_suffix('')).relative_to(ROOT.parent))


def _file(module: str) -> pathlib.Path:
  return ROOT.joinpath(*module.split('.')).with_suffix('.py')


@functools.cache
def _tree(file: pathlib.Path) -> ast.Module:
  return ast.parse(file.read_text(encoding='utf-8'), str(file))


def _definitions(file: pathlib.Path) -> dict[str, ast.FunctionDef | ast.ClassDef]:
  return {node.name: node for node in _tree(file).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


@functools.cache
def _aliases(file: pathlib.Path) -> dict[str, ast.expr]:
  """Module-level names and the expressions bound to them, those imported from files of this package included."""
  bound: dict[str, ast.expr] = {}
  for node in _tree(file).body:
    if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f'{ROOT.name}.'):
      source = ROOT.joinpath(*node.module.split('.')[1:])
      source = source / '__init__.py' if source.is_dir() else source.with_suffix('.py')
      theirs = _aliases(source) if source.is_file() else {}
      bound |= {item.asname or item.name: theirs[item.name] for item in node.names if item.name in theirs}
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
      bound[node.targets[0].id] = node.value
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
      bound[node.target.id] = node.value
  return bound


def _first_argument(node: ast.FunctionDef | ast.ClassDef) -> str | None:
  return node.args.args[0].arg if isinstance(node, ast.FunctionDef) and node.args.args else None


def _spell(annotation: ast.expr | None, aliases: Mapping[str, ast.expr]) -> str:
  """An annotation as text, with the aliases of its file written out."""
  if annotation is None:
    return 'Any'

  class WriteOut(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:
      return self.visit(aliases[node.id]) if isinstance(aliases.get(node.id), ast.Subscript | ast.BinOp) else node

  return ast.unparse(WriteOut().visit(ast.parse(ast.unparse(annotation), mode='eval').body))


# Values --------------------------------------------------------------------------------------------------------------


def _default(node: ast.expr | None, aliases: Mapping[str, ast.expr]) -> Any:
  if node is None:
    return Missing.REQUIRED
  try:
    return _literal(node, aliases)
  except ValueError:
    return Missing.COMPUTED


def _literal(node: ast.expr, aliases: Mapping[str, ast.expr]) -> Any:
  """The value of a default: a literal, a named literal, arithmetic on numbers, `dict(...)` or a read-only view of one.

  Raises:
    ValueError: for anything that needs running code.
  """
  match node:
    case ast.Name() if node.id in aliases:
      return _literal(aliases[node.id], aliases)
    case ast.BinOp() if type(node.op) in ARITHMETIC:
      return ARITHMETIC[type(node.op)](_literal(node.left, aliases), _literal(node.right, aliases))
    case ast.Tuple() | ast.List():
      return tuple(_literal(item, aliases) for item in node.elts)
    case ast.Dict() if None not in node.keys:
      return {_literal(k, aliases): _literal(v, aliases) for k, v in zip(node.keys, node.values, strict=True) if k}
    case ast.Call(func=ast.Name(id='dict'), args=[]):
      return {item.arg: _literal(item.value, aliases) for item in node.keywords}
    case ast.Call(args=[inner]) if tail(node.func) == 'MappingProxyType':
      return _literal(inner, aliases)
    case ast.Call(func=ast.Name(id='field'), keywords=[ast.keyword(arg='default_factory', value=made)]):
      return _literal(made.body, aliases) if isinstance(made, ast.Lambda) else {'dict': {}}.get(tail(made), ())
  return ast.literal_eval(node)


def tail(node: ast.expr) -> str:
  """The last part of a possibly dotted name: 'Mapping' of `collections.abc.Mapping`."""
  return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ''


def experiment_files() -> list[pathlib.Path]:
  """The config files that come with the package, sorted."""
  files = sorted((ROOT.parent / 'experiments').rglob('*.py'))
  return [file for file in files if file.name != 'common.py' and 'tables' not in file.parts]
