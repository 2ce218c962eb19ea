"""Changes of single keys of a config: `--config.optim.rate=1e-4`, and the points of a sweep.

A dotted key names any key of the config, or any keyword of a file or function that a block names, whether the config
sets it or not.
"""

import ast
import contextlib
import copy
from collections.abc import Mapping, Sequence
from typing import Any

from plm_jax.config import annotations, values
from plm_jax.config.blocks import NAMES, WHOLE, as_keys, block
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.io import files


def apply(config: Mapping[str, Any], changes: Sequence[tuple[str, str]]) -> tuple[dict[str, Any], list[str]]:
  """Change single keys of a config.

  Names come first, since a name decides which keywords exist. Returns the changed config and remarks for the user.
  Raises ConfigError: no such key, or a value that it does not take.

  Args:
    config: as a config file returns it, or complete; not changed.
    changes: (dotted key, value as text) pairs, such as ('optim.rate', '1e-4').
  """
  changed = copy.deepcopy(dict(config))
  remarks: list[str] = []
  for key, text in sorted(changes, key=_order):
    remarks += _set(changed, key, text)
  return changed, remarks


def _order(change: tuple[str, str]) -> tuple[bool, int]:
  """Sort names first, those of outer blocks before inner ones."""
  *parents, last = change[0].split('.')
  return (False, len(parents)) if last in NAMES else (True, 0)


def _set(config: dict[str, Any], key: str, text: str) -> list[str]:
  *parents, last = key.split('.')
  annotation, label = f'Annotated[Mapping[str, Any], {WHOLE!r}]', 'config'
  here: Any = config
  for place_in_key, part in enumerate(parents, start=1):
    annotation, default = _step(annotation, here, part, label, config, below=key.split('.')[place_in_key:])
    label = f'{label}.{part}'
    place = int(part) if isinstance(here, list) else part
    if isinstance(here, dict) and here.get(part) is None:
      here[part] = copy.deepcopy(default) if isinstance(default, Mapping | tuple) else {}
    if isinstance(here[place], tuple):
      here[place] = list(here[place])
    here = here[place]
  if _unsets(annotation, here, last, text, label):
    here.pop(last, None)
    return []
  inner, default = _step(annotation, here, last, label, config)
  there = here.get(last, default) if isinstance(here, Mapping) else None
  value = _parse(f'{label}.{last}', inner, text, there)
  remarks = _drop_foreign(annotation, here, last, value, label) if last in NAMES else []
  here[int(last) if isinstance(here, list) else last] = value
  return remarks


def _unsets(annotation: str, here: Any, key: str, text: str, label: str) -> bool:
  """Return whether None removes a keyword of a rule or schedule."""
  found = annotations.part(annotation, here)
  if text.lower() not in ('none', 'null') or found is None or found.form != 'block' or ':' not in found.inner:
    return False
  known, elsewhere = block(found.inner, here, label)
  return key in elsewhere and not (key in known and values.fits(known[key].annotation, None))


def _step(
  annotation: str, here: Any, part: str, label: str, config: Mapping[str, Any], *, below: Sequence[str] = ()
) -> tuple[str, Any]:
  """Return annotation and default of a key; `below` are those after it."""
  found = annotations.part(annotation, here)
  if found is None or found.form == 'name' or not isinstance(here, Mapping | list):
    raise ConfigError(
      f'{errors.key_of(label)} is a single value ({values.short(annotation)}) and has no key {errors.shown(part)}.'
    )
  if isinstance(here, list):
    errors.check_choice(label, 'entry', part, [str(index) for index in range(len(here))])
    return found.inner, None
  if found.form != 'block':
    if any(inner.form == 'block' for inner in annotations.parts(found.inner)):  # blocks with names of their own
      errors.check_choice(label, 'entry', part, list(here))
    return found.inner, None
  if part == 'name' and ':' not in found.inner:
    return 'str', None
  if found.inner == 'data' and 'name' not in here:  # an evaluation on the training data
    here = {'name': config['data']['name'], **here}
  known, elsewhere = block(found.inner, here, label)
  if part not in known:
    raise ConfigError(values.unknown_keyword(label, known, part, elsewhere, below=below))
  return known[part].annotation, known[part].default


def _parse(label: str, annotation: str, text: str, there: Any) -> Any:
  """Parse a typed value: Python as in configs, JSON, true/false/none, or text.

  The first reading that fits counts. `there` is the current value, for the message.
  """
  readings: list[Any] = [text]
  words = {'true': True, 'false': False, 'none': None, 'null': None}
  if text.lower() in words:
    readings.insert(0, words[text.lower()])
  for read in (files.parse_json, _python):
    with contextlib.suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
      readings.insert(0, read(text))
  for reading in readings:
    try:
      return values.coerce(annotation, reading)
    except TypeError:
      continue
  end = values.why_not(annotation, readings[0]) or as_keys(annotation, text, label, there=there, readings=readings)
  raise ConfigError(f'{errors.key_of(label)}: expected {values.short(annotation)}, got {errors.shown(text)}{end}.')


class _Dicts(ast.NodeTransformer):
  """Turns dict(key=value) into {'key': value}."""

  def visit_Call(self, node: ast.Call) -> ast.AST:
    self.generic_visit(node)
    if ast.unparse(node.func) != 'dict' or node.args or any(keyword.arg is None for keyword in node.keywords):
      return node
    return ast.Dict([ast.Constant(keyword.arg) for keyword in node.keywords], [word.value for word in node.keywords])


def _python(text: str) -> Any:
  """Evaluate a literal in which blocks may be written as dict(...)."""
  return ast.literal_eval(_Dicts().visit(ast.parse(text.strip(), mode='eval')))


def _drop_foreign(annotation: str, here: Any, key: str, name: Any, label: str) -> list[str]:
  """Remove settings that the newly named file or function does not take."""
  found = annotations.part(annotation, here)
  if found is None or found.form != 'block' or (':' not in found.inner and 'name' not in here):
    return []
  known = block(found.inner, {**here, key: name}, label).known
  strange = [other for other in here if other not in known]
  before = block(found.inner, here, label) if strange else None
  dropped = [other for other in strange if before and other in before.known]
  for other in dropped:
    del here[other]
  where = errors.key_of(label)
  return [f'{where}: {other} of {here[key]!r} is dropped, {name!r} does not take it' for other in dropped]
