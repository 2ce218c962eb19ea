"""Single keys of a config, changed from outside: `--config.optim.rate=1e-4`, and the points of a sweep.

A dotted key names any key of the config, or any keyword of what a block names, whether the config sets it or not.
"""

import ast
import contextlib
import copy
import json
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from plm_jax import errors
from plm_jax.config.schema import COLLECTIONS, block, child, is_named
from plm_jax.errors import ConfigError
from plm_jax.plugins import values


def apply(config: Mapping[str, Any], changes: Sequence[tuple[str, str]]) -> tuple[dict[str, Any], list[str]]:
  """A config with single keys changed, names first, since a name decides which keywords there are.

  Args:
    config: as a config file returns it, or complete; not changed.
    changes: (dotted key, value as text) pairs, such as ('optim.rate', '1e-4').

  Returns:
    The changed config and remarks for the user.

  Raises:
    ConfigError: no such key, or a value that it does not take.
  """
  changed = copy.deepcopy(dict(config))
  remarks: list[str] = []
  for key, text in sorted(changes, key=lambda change: not change[0].endswith('.name')):
    remarks += _set(changed, key, text)
  return changed, remarks


def _set(config: dict[str, Any], key: str, text: str) -> list[str]:
  *parents, last = key.split('.')
  kind: str | None = 'config.schema:Run'
  annotation = 'Mapping[str, Any]'
  here: Any = config
  label = 'config'
  for part in parents:
    kind, annotation, default = _step(kind, annotation, here, part, label, config)
    label = f'{label}.{part}'
    if isinstance(here, list):
      here = here[int(part)]
    else:
      if here.get(part) is None:
        here[part] = copy.deepcopy(default) if isinstance(default, Mapping) else {}
      if isinstance(here[part], tuple):
        here[part] = list(here[part])
      here = here[part]
  _, annotation, _ = _step(kind, annotation, here, last, label, config)
  value = _parse(f'{label}.{last}', annotation, text)
  remarks = _drop_foreign(kind, here, value, label) if last == 'name' and kind is not None and is_named(kind) else []
  here[int(last) if isinstance(here, list) else last] = value
  return remarks


def _step(
  kind: str | None, annotation: str, here: Any, part: str, label: str, config: Mapping[str, Any]
) -> tuple[str | None, str, Any]:
  """Kind, annotation and default of what stands under `part`."""
  if kind is None or isinstance(here, list):
    inner = values.item_annotation(annotation)
    if inner is None or not isinstance(here, Mapping | list):
      raise ConfigError(f'{label} is a single value ({annotation}): it has no part {part!r}.')
    if isinstance(here, list):
      errors.check_choice(label, 'entry', part, [str(index) for index in range(len(here))])
    return COLLECTIONS.get(kind or ''), inner, None
  if part == 'name' and kind is not None and is_named(kind):
    return None, 'str', None
  if kind == 'data' and 'name' not in here:
    here = {'name': config['data']['name'], **here}
  owner, known = block(kind, here, label)
  if part not in known:
    raise ConfigError(
      f'{label}: {owner} has no {part!r}.{errors.suggest(part, known)} It takes: {values.describe(known)}.'
    )
  return child(kind, part, here), known[part].annotation, known[part].default


def _parse(label: str, annotation: str, text: str) -> Any:
  """A value typed by the user: a literal, JSON, true/false/none in any case, or text; the first that fits counts."""
  readings: list[Any] = [text]
  words = {'true': True, 'false': False, 'none': None, 'null': None}
  if text.lower() in words:
    readings.insert(0, words[text.lower()])
  for read in (json.loads, ast.literal_eval):
    with contextlib.suppress(ValueError, SyntaxError):
      readings.insert(0, read(text))
  for reading in readings:
    try:
      return values.coerce(annotation, reading)
    except TypeError:
      continue
  raise ConfigError(f'{label}: expected {annotation}, got {text!r}.')


def _drop_foreign(kind: str, here: MutableMapping[str, Any], name: Any, label: str) -> list[str]:
  """Removes the settings of the file named before that the new one does not take."""
  known = block(kind, {'name': name}, label).known
  strange = [key for key in here if key not in known]
  before = block(kind, here, label).known if strange and 'name' in here else {}
  dropped = [key for key in strange if key in before]
  for key in dropped:
    del here[key]
  return [f'{label}: {key} of {here["name"]!r} is dropped, {name!r} does not take it' for key in dropped]
