"""Which file may import which, and what no file may do, read from the syntax tree of every file.

The folders of the package form layers. Each may import those that its row of `MAY_IMPORT` lists, and nothing imports
`commands` or `__main__`.
"""

import ast
import graphlib
import pathlib
import re
import sys
from collections.abc import Iterator
from importlib import metadata

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ('plm_jax', 'experiments', 'benchmarks', 'launch')
COMMANDS = 'commands'
BUILD = 'plm_jax.config.build'
DOOR = 'inference'  # of `plm_jax.load`

# What of the package each folder may import beside itself.
BASE = {'core', 'io', 'config'}
MAY_IMPORT: dict[str, set[str]] = {
  'core': set(),
  'io': {'core'},
  'config': {'core', 'io'},
  'layers': {'core'},
  'noise': {'core'},
  'scores': {'core'},
  'compression': {'core'},
  'models': {'core', 'layers'},
  'cli': BASE,
  'text': BASE,
  'optim': BASE,
  'checkpoint': {'core', 'io'},
  'data': BASE | {'text'},
  'generate': BASE | {'text'},
  'adapters': {'core', 'layers', 'generate', 'compression', 'scores', 'config'},
  'objectives': {'core', 'adapters', 'layers', 'noise', 'generate', 'config'},
  'weights': BASE | {'models', 'text', 'checkpoint'},
  'runs': BASE | {'checkpoint', 'scores', 'cli'},
}
MAY_IMPORT['training'] = MAY_IMPORT.keys() - {'objectives', 'adapters', 'models'}  # which are found by name
MAY_IMPORT['inference'] = BASE | (MAY_IMPORT.keys() - {'models', 'compression'})
MAY_IMPORT['planning'] = MAY_IMPORT['training'] | {'training'}
MAY_IMPORT['studies'] = MAY_IMPORT['training'] | {'training', 'inference', 'planning', 'adapters'}
MAY_IMPORT[COMMANDS] = set(MAY_IMPORT)
WITHOUT_JAX = ('plm_jax.core.errors', 'plm_jax.io', 'plm_jax.config', 'plm_jax.cli', 'plm_jax.text', 'plm_jax.scores')
DEVICE = {'jax', 'jaxlib', 'flax', 'optax', 'orbax'}
CONFIGURATION = {'absl', 'ml_collections'}
EXECUTES_ITS_INPUT = {'pickle', 'cloudpickle', 'dill', 'joblib', 'marshal', 'shelve', 'runpy'}
PLAIN = {'ml_collections', 'collections', 'dataclasses', 'difflib', 'functools', 'itertools', 'math', 'typing'}
# of the process: below the commands devices come from a mesh, a layout or an argument, since a plan has others
GLOBAL_DEVICES = {'jax.devices', 'jax.device_count', 'jax.local_devices', 'jax.local_device_count'}
# a mesh over all devices, and `device` outside of `use`
MAY_ASK_FOR_DEVICES = {'plm_jax.core.meshes', 'plm_jax.core.layouts'}
PEERS = {'torch', 'transformers', 'tensorflow'}
BUILTINS = {
  'eval': 'executes text',
  'exec': 'executes text',
  'compile': 'executes text',
  '__import__': 'turns a string into code',
  'hasattr': 'asks what a thing is: say it in a type',
}


def module_of(path: pathlib.Path) -> str:
  """plm_jax/data/store.py -> plm_jax.data.store; a package is named by its folder."""
  parts = path.relative_to(ROOT).with_suffix('').parts
  return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


def layer_of(module: str) -> str:
  """The row of `MAY_IMPORT` that a module of the package stands in; '' is the package itself."""
  _, *rest = module.split('.')
  if not rest or rest == ['__version__']:
    return ''
  return COMMANDS if rest[0] == '__main__' else rest[0]


def imports(module: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
  """(line, dotted name) of everything imported anywhere in a file; `from a import b` gives a.b."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from ((node.lineno, alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      start = module.split('.')[: -node.level] if node.level else []
      base = '.'.join([*start, *([node.module] if node.module else [])])
      yield from ((node.lineno, f'{base}.{alias.name}') for alias in node.names)


def forbidden_import(module: str, name: str) -> str | None:
  """Why `module` may not import `name`, or None where it may."""
  package, layer = module.split('.')[0], layer_of(module)
  top, *rest = name.split('.')
  if top in EXECUTES_ITS_INPUT:
    return f'{top} executes what it reads'
  if top == 'importlib' and rest[:1] != ['metadata'] and rest[:1] != ['resources']:
    allowed = {'import_module': BUILD, 'util': 'plm_jax.config.load'}
    return None if allowed.get((rest or ['import_module'])[0]) == module else 'only build.py turns a string into code'
  if package == 'experiments':
    return (
      None
      if top in PLAIN or name.startswith(('experiments.common', 'experiments.tables.shared'))
      else 'a config is plain data'
    )
  if package != 'plm_jax':
    return None
  if top in PEERS and (top, module) != ('torch', 'plm_jax.weights.forms.torch'):  # which reads its files
    return f'{top} is for comparisons in tests and benchmarks'
  if top == 'experiments':
    return 'the package knows no experiment'
  if top == 'plm_jax':
    target = layer_of('.'.join([top, *rest]))
    if not layer:
      return None if target in ('', DOOR) else f'the package itself is a door to {DOOR} alone'
    return None if target in ('', layer) or layer == COMMANDS or target in MAY_IMPORT[layer] else f'it is above {layer}'
  if layer == COMMANDS:
    return None
  if top in CONFIGURATION:
    return 'config objects stop at the commands'
  if top in DEVICE and module.startswith(WITHOUT_JAX):
    return f'{layer} does not need an accelerator'
  if top in DEVICE and layer == 'data' and name not in ('jax', 'jax.ShapeDtypeStruct'):
    return 'data is numpy'
  return None


def forbidden_call(module: str, call: ast.Call) -> str | None:
  """Why no file may make this call, or None where it may: executing input, asking what a thing is."""
  for keyword in call.keywords:
    if keyword.arg == 'allow_pickle' and ast.unparse(keyword.value) != 'False':
      return 'allow_pickle: numpy executes what it reads'
  name = ast.unparse(call.func)
  if name in BUILTINS:
    return f'{name}: {BUILTINS[name]}'
  computed = len(call.args) < 2 or not isinstance(call.args[1], ast.Constant)
  return 'getattr: only build.py computes a name' if name == 'getattr' and computed and module != BUILD else None


def complaints(module: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
  """(line, complaint) for everything that a file does and may not."""
  for line, name in imports(module, tree):
    if (reason := forbidden_import(module, name)) is not None:
      yield line, f'imports {name}: {reason}'
  for node in ast.walk(tree):
    if isinstance(node, ast.Call) and (reason := forbidden_call(module, node)) is not None:
      yield node.lineno, reason
    if isinstance(node, ast.Attribute) and ast.unparse(node) in GLOBAL_DEVICES:
      below = module.startswith('plm_jax.') and layer_of(module) != COMMANDS
      if below and module not in MAY_ASK_FOR_DEVICES:
        yield node.lineno, f'{ast.unparse(node)}: take devices from the mesh, the layout or an argument'
    data_attribute = isinstance(node, ast.Attribute) and layer_of(module) == 'data'
    if data_attribute and re.match(r'jax\.(?!ShapeDtypeStruct$)\w+$', ast.unparse(node)):
      yield node.lineno, f'{ast.unparse(node)}: data is numpy'


def violations(module: str, source: str) -> list[str]:
  """What a file does that it may not, a line each."""
  found = sorted(set(complaints(module, ast.parse(source))))
  return [f'{module}:{line} {complaint}' for line, complaint in found]


def files() -> list[pathlib.Path]:
  return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob('*.py'))


@pytest.mark.parametrize('path', files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_file_keeps_to_its_layer(path: pathlib.Path) -> None:
  found = violations(module_of(path), path.read_text())
  assert not found, '\n'.join(found)


def test_every_folder_has_a_row() -> None:
  folders = {path.parent.name for path in (ROOT / 'plm_jax').glob('*/__init__.py')}
  assert folders == MAY_IMPORT.keys()
  assert {path.name for path in (ROOT / 'plm_jax').glob('*.py')} == {'__init__.py', '__main__.py'}


def test_no_circle() -> None:
  """Files whose own imports, not those within functions, lead back to them; `graphlib` names the circle."""
  trees = {module_of(path): ast.parse(path.read_text()) for path in files() if path.is_relative_to(ROOT / 'plm_jax')}

  def target(name: str) -> str:
    return name if name in trees else name.rpartition('.')[0]

  graph = {
    module: {target(name) for statement in tree.body for _, name in imports(module, ast.Module([statement], []))
             if isinstance(statement, ast.Import | ast.ImportFrom) and target(name) in trees} - {module, 'plm_jax'}
    for module, tree in trees.items()
  }  # fmt: skip
  graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.parametrize(
  ('module', 'source', 'complaint'),
  [
    ('plm_jax.models.bert', 'from plm_jax.noise import where', 'imports plm_jax.noise.where: it is above models'),
    ('plm_jax.models.bert', 'from ..objectives import mlm', 'imports plm_jax.objectives.mlm: it is above models'),
    ('plm_jax.models.bert', 'import plm_jax.data.rows.store', 'imports plm_jax.data.rows.store: it is above models'),
    ('plm_jax.models.bert', 'def f():\n  from plm_jax import config', 'imports plm_jax.config: it is above models'),
    ('plm_jax.models.bert', 'import absl.flags', 'config objects stop at the commands'),
    ('plm_jax.objectives.mlm', 'from plm_jax.training import step', 'it is above objectives'),
    ('plm_jax.adapters.tag', 'from plm_jax import noise', 'it is above adapters'),
    ('plm_jax.noise.where.tokens', 'import plm_jax.layers.masks', 'it is above noise'),
    ('plm_jax.training.memory', 'import jax\nn = jax.device_count()', 'jax.device_count: take devices from the mesh'),
    ('plm_jax.checkpoint.checkpoints', 'import jax\nask = jax.devices', 'jax.devices: take devices from the mesh'),
    ('plm_jax', 'from plm_jax import training', 'the package itself is a door to inference alone'),
    ('plm_jax.training.step', 'from plm_jax.commands import train', 'it is above training'),
    ('plm_jax.training.step', 'import plm_jax.commands.noise', 'it is above training'),
    ('plm_jax.optim.rules', 'from ml_collections import ConfigDict', 'config objects stop at the commands'),
    ('plm_jax.data.rows.store', 'from jax import numpy', 'data is numpy'),
    ('plm_jax.data.rows.store', 'import jax.numpy as jnp', 'data is numpy'),
    ('plm_jax.data.rows.store', 'import jax\nx = jax.random.key(0)', 'jax.random: data is numpy'),
    ('plm_jax.data.rows.store', 'from plm_jax.noise.row import Row', 'it is above data'),
    ('plm_jax.text.words', 'import jax', 'text does not need an accelerator'),
    ('plm_jax.config.load', 'import jax', 'config does not need an accelerator'),
    ('plm_jax.commands.train', 'from experiments.bert import base', 'the package knows no experiment'),
    ('plm_jax.commands.train', 'import torch', 'torch is for comparisons'),
    ('plm_jax.commands.train', 'import pickle', 'pickle executes what it reads'),
    ('plm_jax.commands.train', 'from importlib import import_module', 'only build.py turns a string into code'),
    ('plm_jax.commands.train', 'import importlib', 'only build.py turns a string into code'),
    ('plm_jax.data.rows.store', "np.load('x', allow_pickle=True)", 'allow_pickle'),
    ('plm_jax.data.rows.store', "np.load('x', allow_pickle=flag)", 'allow_pickle'),
    ('plm_jax.config.listing', "eval('1')", 'eval: executes text'),
    ('benchmarks.step', "exec('1')", 'exec: executes text'),
    ('plm_jax.models.bert', "hasattr(x, 'pool')", 'hasattr'),
    ('plm_jax.models.bert', 'getattr(x, name)', 'getattr: only build.py computes a name'),
    ('experiments.bert.base', 'import os', 'a config is plain data'),
    ('experiments.bert.base', 'import jax', 'a config is plain data'),
    ('experiments.bert.base', 'from plm_jax.models import bert', 'a config is plain data'),
  ],
)
def test_violation_is_found(module: str, source: str, complaint: str) -> None:
  found = violations(module, source)
  assert len(found) == 1
  assert complaint in found[0]


@pytest.mark.parametrize(
  ('module', 'source'),
  [
    ('plm_jax.models.albert', 'from plm_jax.models import bert\nfrom plm_jax.layers.norm import LayerNorm'),
    ('plm_jax.models.bert', "import jax\nx = jax.numpy.zeros(3)\ngetattr(x, 'shape')"),
    ('plm_jax.objectives.rtd', 'from plm_jax.layers import losses\nfrom plm_jax.objectives import mlm'),
    ('plm_jax.data.stream', 'import jax\nspec = jax.ShapeDtypeStruct((1,), int)'),
    ('plm_jax.data.rows.store', "import importlib.metadata\nnp.load('x', allow_pickle=False)"),
    ('plm_jax', 'def f():\n  from plm_jax.inference import model'),
    ('plm_jax.config.build', 'import importlib\ngetattr(importlib, name)'),
    ('plm_jax.commands.train', 'from plm_jax import config, optim, __version__\nimport absl.app'),
    ('plm_jax.commands.noise', 'from plm_jax import config'),
    ('experiments.bert.base', 'import ml_collections\nfrom experiments.common import optim'),
  ],
)
def test_what_is_allowed_passes(module: str, source: str) -> None:
  assert not violations(module, source)


def plain(name: str) -> str:
  """A distribution's name as package indexes compare it."""
  return re.sub(r'[-_.]+', '-', name).lower()


def listed(path: pathlib.Path) -> set[str]:
  lines = (line.split('#')[0].strip() for line in path.read_text().splitlines())
  return {plain(re.split(r'[\[<>=!~ ;]', line)[0]) for line in lines if line}


def imported_distributions() -> set[str]:
  """Distributions of the third-party modules that the package and its experiments import."""
  providers = {'sklearn': ['scikit-learn'], **metadata.packages_distributions()}  # where it is not installed
  providers['google'] = ['protobuf']  # others put folders of their own there
  found = set()
  for path in files():
    if path.relative_to(ROOT).parts[0] in ('plm_jax', 'experiments'):
      for _, name in imports(module_of(path), ast.parse(path.read_text())):
        top = name.split('.')[0]
        if top not in sys.stdlib_module_names and top not in FOLDERS:
          found |= {plain(provider) for provider in providers.get(top, [top])}
  return found


def test_requirements_name_what_is_imported_and_no_more() -> None:
  required = listed(ROOT / 'requirements.txt')
  optional = set().union(*(listed(path) for path in ROOT.glob('requirements/*.txt')))
  imported = imported_distributions()
  for_others = {'importlib-resources'}  # TensorFlow Datasets imports it and does not ask for it
  unnamed, unused = imported - required - optional, required - imported - for_others
  assert not unnamed, f'imported, but in no requirements file: {sorted(unnamed)}'
  assert not unused, f'in requirements.txt, but imported nowhere: {sorted(unused)}'


PLUGIN_FOLDERS = ('objectives', 'adapters', 'models', 'data')


def names_a_plugin(tree: ast.Module, known: set[str]) -> list[int]:
  """Return the lines that compare a `name` of a config with the name of a plug-in.

  A file states a literal next to `READS` instead, and others read that (`signatures.literal`).
  """
  found = []
  for node in ast.walk(tree):
    if isinstance(node, ast.Compare) and re.search(r"\[['\"]name['\"]\]|get\(['\"]name['\"]\)", ast.unparse(node.left)):
      for other in node.comparators:
        values = other.elts if isinstance(other, ast.Tuple | ast.List | ast.Set) else [other]
        if any(isinstance(value, ast.Constant) and value.value in known for value in values):
          found.append(node.lineno)
  return found


def test_no_code_below_the_commands_asks_for_a_plugin_by_name() -> None:
  """Heads of other libraries are the exception: `weights/` maps their classes to adapters."""
  known = {path.stem for folder in PLUGIN_FOLDERS for path in (ROOT / 'plm_jax' / folder).glob('[!_]*.py')}
  found = [
    f'{path.relative_to(ROOT)}:{line}'
    for path in files()
    if path.is_relative_to(ROOT / 'plm_jax') and layer_of(module_of(path)) not in (COMMANDS, 'weights')
    for line in names_a_plugin(ast.parse(path.read_text()), known)
  ]
  assert not found, '\n'.join(found)
  assert names_a_plugin(ast.parse("if block['name'] == 'labelled': pass"), known) == [1]
  assert names_a_plugin(ast.parse("x = settings.get('name') in ('mlm', 'y')"), known) == [1]
