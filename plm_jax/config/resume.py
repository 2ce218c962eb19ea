"""Differences between two configs, and keys that may change when a run resumes."""

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from plm_jax.config import earlier
from plm_jax.config.load import resolve
from plm_jax.core.errors import ConfigError

RESUMABLE = (
  'execution', 'sharding', 'log_every', 'eval_every', 'save_every', 'save_minutes', 'keep', 'log', 'spikes',
  'verify_every',
)  # fmt: skip


def differences(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[str]:
  """List differing keys in order: 'optim.rate: 0.001 -> 0.0001' (old -> new)."""
  after, before = leaves(new), leaves(old)
  keys = list(dict.fromkeys([*before, *after]))
  return [
    f'{key}: {before.get(key, "not there")} -> {after.get(key, "not there")}'
    for key in keys
    if not _same(before.get(key, _ABSENT), after.get(key, _ABSENT))
  ]


def _same(one: Any, other: Any) -> bool:
  """Compare plain values with their number type: 1 and 1.0 differ."""
  return one == other and (one is _ABSENT or json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True))


def check_resume(new: Mapping[str, Any], old: Mapping[str, Any], *, what: str = 'run') -> list[str]:
  """Return the changes of a resumed run; refuse those that change results.

  Raises ConfigError: any other key differs; every such difference is shown.

  Args:
    old: what `config.json` of the run holds; an earlier version may have written it.
    what: is resumed, for messages; only a run can be extended.
  """
  before, after = _read_again(earlier.current(old)), _read_again(new)
  changes = differences(after, before)
  refused = [change for change in changes if change.partition(':')[0].partition('.')[0] not in RESUMABLE]
  if refused:
    other_steps = any(change.startswith('steps:') for change in refused)
    fix = _how_to_extend(new, before) if what == 'run' and other_steps and before['steps'] is not None else ''
    raise ConfigError(
      f'this {what} was begun with another config; name another --workdir, or undo:\n  '
      + '\n  '.join(refused)
      + f'\nOnly {", ".join(RESUMABLE)} may change on the way.{fix}'
    )
  return changes


def _read_again(values: Mapping[str, Any]) -> Mapping[str, Any]:
  """Return a config as if read from a file.

  A default of -1 for a float, as in `data.missing`, becomes -1.0. Null as `nonmonotone` of an asgd that waits is the 5
  that earlier versions wrote. A config that is no longer valid is compared unchanged.
  """
  optim = values.get('optim')
  if isinstance(optim, Mapping) and optim.get('name') == 'asgd' and optim.get('start') is None:
    values = {**values, 'optim': {**optim, 'nonmonotone': optim.get('nonmonotone') or 5}}
  with contextlib.suppress(ConfigError):
    return resolve(values)
  return values


def _how_to_extend(new: Mapping[str, Any], old: Mapping[str, Any]) -> str:
  """Return how to extend a run with other `steps`."""
  has = old['steps'] + sum(more for _, more in old.get('extend', ()))
  more = (new['steps'] or 0) - has
  if more > 0:
    return f' For more steps, leave steps at {old["steps"]} and add --extend={more}.'
  return f' The run has {has} steps, and can be extended by N more with --extend=N.'


_ABSENT = object()


def leaves(value: Any, prefix: str = '') -> dict[str, Any]:
  """Flatten a config by dotted keys; lists without blocks are single values."""
  if isinstance(value, Mapping):
    items: Any = value.items()
  elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
    items = enumerate(value)
  else:
    return {prefix: list(value) if isinstance(value, tuple) else value}
  return {k: v for key, item in items for k, v in leaves(item, f'{prefix}.{key}' if prefix else str(key)).items()}
