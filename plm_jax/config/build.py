"""From names to code: the only place where a string of a config becomes a function.

`make` calls the `make` of a plug-in file, and `pick` binds the settings of a noise function. The file name is the
registry. A wrong name or keyword is an error that lists the right ones.
"""

import ast
import functools
import importlib
import pkgutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from plm_jax.config import signatures
from plm_jax.config.signatures import Missing
from plm_jax.config.values import check_keywords
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.io import files

NOTHING: Mapping[str, Any] = {}


def make(folder: str, settings: Mapping[str, Any], *, offered: Mapping[str, Any] = NOTHING, **given: Any) -> Any:
  """Call the `make` of `<folder>/<name>.py`.

  Args:
    folder: 'models', 'objectives', 'adapters', 'data' or 'text'.
    settings: a block of a config: `name`, and keywords of that `make`. Lists arrive as tuples.
    offered: keywords that the caller may have, None where it does not: the `make` gets those that it names.
    **given: keywords that the caller has and a config cannot, such as the trunk.

  Raises:
    ConfigError: an unknown name, or an unknown, missing or wrongly typed keyword.
  """
  label = singular(folder)
  name, values = split(label, settings)
  errors.check_choice(f'{label}.name', label, name, signatures.names(folder))
  known = signatures.signature(folder, name)
  given |= {key: value for key, value in offered.items() if key in known and value is not None}
  values = check(label, known, values, given)
  if folder == 'models' and values.get('overrides'):
    values['overrides'] = _check_overrides(f'models.{name}', values['overrides'])
  return import_file(f'{folder}.{name}').make(**values, **given)


def pick(kind: str, settings: Mapping[str, Any], **given: Any) -> functools.partial[Any]:
  """Bind the settings of a function such as `fixed_count` of 'noise.where'.

  Raises ConfigError: an unknown name, or an unknown, missing or wrongly typed keyword.

  Args:
    kind: a file, as 'noise.edit', or a folder whose files count as one, as 'noise.where'.
    settings: `name`, and keyword-only arguments of that function. Lists arrive as tuples.
    **given: what the caller can offer; the function gets those that it names.
  """
  label = kind.rpartition('.')[2]
  name, values = split(label, settings)
  places = signatures.places(kind)
  errors.check_choice(f'{label}.name', 'function', name, places)
  module = places[name]
  known = signatures.keywords(module, name)
  offered = {key: value for key, value in given.items() if key in known}
  values = check(label, known, values, offered)
  return functools.partial(getattr(import_file(module), name), **values, **offered)


def check(
  label: str, known: Mapping[str, signatures.Keyword], settings: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
  """Check settings against the keywords not given; lists become tuples."""
  both = sorted(set(settings) & set(given))
  if both:
    raise ConfigError(f'{label}: {both[0]!r} is set by the run, not by the config: leave it out.')
  if strangers := sorted(set(given) - set(known)):
    raise ConfigError(f'{label}: it does not take {strangers[0]!r}, which every one of its kind is given.')
  free = {name: keyword for name, keyword in known.items() if name not in given}
  return {name: frozen(value) for name, value in check_keywords(label, free, settings).items()}


def _check_overrides(module: str, settings: Mapping[str, Any]) -> dict[str, Any]:
  """Check fields of a model's `Config`, whatever their source."""
  fields = {
    name: field._replace(default=Missing.COMPUTED) for name, field in signatures.keywords(module, 'Config').items()
  }
  return check('model.overrides', fields, settings, NOTHING)


def split(label: str, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
  """Split a block into its name and its keywords."""
  if 'name' not in settings:
    raise ConfigError(f'{label}: needs a name, as in dict(name=..., ...); got {dict(settings)}.')
  return settings['name'], {key: value for key, value in settings.items() if key != 'name'}


def frozen(value: Any) -> Any:
  """Convert lists in a plain value to tuples, as read from JSON."""
  if isinstance(value, list | tuple):
    return tuple(frozen(item) for item in value)
  if isinstance(value, Mapping):
    return {key: frozen(item) for key, item in value.items()}
  return value


def singular(folder: str) -> str:
  """Return 'model' of 'models'; 'adapter or objective' of several folders."""
  return ' or '.join({'text': 'vocab'}.get(one, one.removesuffix('s')) for one in folder.split(' | '))


def unwrapped(settings: Mapping[str, Any]) -> Mapping[str, Any]:
  """Replace wrappers in the settings by the task inside them.

  A wrapper is an adapter whose file states `ADDS`, the name of its parameters outside the trunk.
  """
  folder, block = 'adapters', settings.get('adapter')
  while folder == 'adapters' and isinstance(block, Mapping) and isinstance(block.get('inner'), Mapping):
    if not signatures.literal(f'adapters.{block.get("name")}', 'ADDS'):
      break
    block = block['inner']
    folder = signatures.folder_of('adapters | objectives', block.get('name', ''))
  if block is settings.get('adapter'):
    return settings
  return {**settings, 'adapter': None, 'objective': None, singular(folder): block}


def look(settings: Mapping[str, Any]) -> Any:
  """Call `look` of a data source: its labels, before tokenising.

  It reads as little as possible. None if the file has no such function.
  """
  name, values = split('data', settings)
  looks = getattr(import_file(f'data.{name}'), 'look', None)
  return looks(**{key: frozen(value) for key, value in values.items()}) if looks else None


def template(folder: str, settings: Mapping[str, Any], **given: Any) -> Any:
  """Call `template` of a file, if any: special tokens around a text."""
  made = getattr(import_file(f'{folder}.{settings["name"]}'), 'template', None)
  return None if made is None else made(**frozen(settings), **given)


def beside(function: Callable[..., Any], name: str) -> Any:
  """Return a name from the file of a function, such as `CAPACITY`."""
  return getattr(sys.modules[function.__module__], name)


def import_file(name: str) -> Any:
  """Import the file of a dotted name such as 'models.bert'."""
  return importlib.import_module(f'{signatures.ROOT.name}.{name}')


def files_of(package: str) -> dict[str, Any]:
  """Import every file of a folder such as 'data.corpora.formats'."""
  found = sorted(file.name for file in pkgutil.iter_modules(import_file(package).__path__))
  return {name: import_file(f'{package}.{name}') for name in found}


def file_of_yours(name: str, *, key: str, ours: str) -> Path:
  """Return the source file of a user's 'module:function', unread.

  Raises ConfigError if there is none; `key` is that of the config, and `ours` names that it takes as well.
  """
  module, _, function = name.partition(':')
  if all(part.isidentifier() for part in (*module.split('.'), function)):
    inside = module.replace('.', '/')
    for folder in (*sys.path, '.'):  # of the program plm-jax, the path lacks the current folder
      for file in (f'{inside}.py', f'{inside}/__init__.py'):
        if files.is_file(path := files.path(folder or '.') / file):
          return path
  raise ConfigError(
    f'{key}={name!r} is not found: name {ours}, or module:function of a file module.py in this folder or on PYTHONPATH'
  )


def of_yours(name: str, *, key: str, table: str, ours: str) -> Callable[..., Any]:
  """Return a user's 'module:function' that its module lists in `table`.

  So a config, which may come with the run of others, calls no other code. Raises ConfigError for a function that is not
  listed; other arguments as of `file_of_yours`.
  """
  module, _, function = name.partition(':')
  for node in ast.parse(files.read_text(file_of_yours(name, key=key, ours=ours))).body:
    if not isinstance(node, ast.Assign) or [ast.unparse(target) for target in node.targets] != [table]:
      continue
    if function in ast.literal_eval(node.value):
      sys.path.append('.')
      try:
        return getattr(importlib.import_module(module), function)
      finally:
        sys.path.remove('.')
  raise ConfigError(
    f'{key}={name!r}: {module} does not list {function!r} in {table}. In a file of yours, import it and write '
    f'{table} = ({function!r},); then name FILE:{function}'
  )
