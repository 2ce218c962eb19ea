"""Keys of a config that must fit each other. Values of single keys are in annotations."""

import re
from collections.abc import Mapping
from typing import Any

from plm_jax.config import batch_keys, blocks, signatures
from plm_jax.config.signatures import Missing
from plm_jax.config.values import as_steps
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.io import files

Settings = Mapping[str, Any]


def check(settings: Settings) -> None:
  """Raise ConfigError if two keys of a complete config contradict each other."""
  _check_exactly_one(settings, 'objective', 'adapter')
  _check_exactly_one(settings, 'steps', 'epochs')
  _check_best(settings)
  _check_cut(settings)
  _check_paths(settings)
  _check_save(settings)
  _check_second_vocab(settings)
  if settings['steps'] is not None:
    check_stretches(settings['optim'], settings['steps'])
    _check_changes(settings, settings['steps'])


def _check_changes(settings: Settings, total: int) -> None:
  """Refuse extensions and skips after the end of the run."""
  for at, more in settings['extend']:
    if at > total:
      raise ConfigError(f'extend: step {at} is after the last step of the run, {total}: name a step up to {total}.')
    total += more
  if late := [at for at, _ in settings['skip'] if at >= total]:
    raise ConfigError(f'skip: step {late[0]} is not before the last step of the run, {total}: leave it out.')


def _check_exactly_one(settings: Settings, first: str, second: str) -> None:
  given = [key for key in (first, second) if settings[key] is not None]
  if len(given) != 1:
    raise ConfigError(f'config: give {first} or {second}; {"both are" if given else "neither is"} there.')


def _check_best(settings: Settings) -> None:
  example = "as in ('validation/loss', 'min')"
  if settings['best'] is not None:
    name, slash, metric = settings['best'][0].partition('/')
    errors.check_choice('best', 'evaluation', name, list(settings['eval']), place='eval')
    if not slash or not metric:
      raise ConfigError(f'best={settings["best"][0]!r}: name an evaluation and one of its metrics, {example}.')
  if settings['early_stop'] is not None and settings['best'] is None:
    raise ConfigError(f'early_stop: needs best, {example}, to know what is better.')


def _check_paths(settings: Settings) -> None:
  """Refuse empty paths, which would be the current folder."""
  named = {'vocab': settings['vocab'], 'second_vocab': settings['second_vocab'] or {}, **blocks.of_data(settings)}
  named |= {f'init_from.{number}': one for number, one in enumerate(settings['init_from'])}
  for where, block in named.items():
    for key in ('path', 'cache', 'source'):
      if block.get(key) == '':
        raise ConfigError(f'{where}.{key}: is empty; name a file or folder.')
      if isinstance(block.get(key), str):
        _check_address(block[key], key=f'{where}.{key}')


def _check_address(value: str, *, key: str) -> None:
  """Refuse remote caches and unknown kinds of remote locations."""
  if key.endswith('.cache'):
    files.local_path(value, what=key)
  files.path(re.sub(r'^[a-z_]+:(?=[a-z0-9]+:/)', '', value))  # what reads it may come before, as in parallel:gs://


def _check_save(settings: Settings) -> None:
  """Refuse `save='trained'` if frozen parameters could not be read again."""
  if settings['save'] == 'all':
    return
  if not settings['init_from']:
    raise ConfigError("save='trained': needs init_from, from which frozen parameters are read again.")
  for number, entry in enumerate(settings['init_from']):
    if odd := [key for key in ('resize', 'fresh_zeros', 'add') if entry.get(key)]:
      raise ConfigError(
        f"save='trained': init_from.{number}.{odd[0]} makes parameters that no source has; leave it out, "
        "or set save='all'."
      )


def _check_second_vocab(settings: Settings) -> None:
  """Require a second vocabulary exactly if the task reads one."""
  takers = {}
  for role, folder in batch_keys.ROLES.items():
    for kind, block in batch_keys.blocks_in(folder, settings[role]) if settings[role] else ():
      tasks = [inner for inner, _ in batch_keys.blocks_in(kind, block) if inner in batch_keys.ROLES.values()]
      if len(tasks) == 1:  # a task, and none that only hands it on to others
        takers[role, block['name']] = signatures.signature(kind, block['name']).get('second_vocab')
  needing = [name for (_, name), keyword in takers.items() if keyword and keyword.default is Missing.REQUIRED]
  if needing and settings['second_vocab'] is None:
    raise ConfigError(
      f'second_vocab: {needing[0]!r} needs one, for the texts that are read, as in '
      "second_vocab=dict(name='pieces', path=...)."
    )
  if settings['second_vocab'] is not None and not any(takers.values()):
    (role, name), *_ = takers
    known = [file for file in signatures.names(f'{role}s') if 'second_vocab' in signatures.signature(f'{role}s', file)]
    raise ConfigError(
      f'second_vocab: {role} {name!r} reads no second vocabulary: leave it out, or name one of '
      f'{", ".join(known) or "(none)"}.'
    )


def _check_cut(settings: Settings) -> None:
  """Require micro-batches of one size, as `feed.rows_per_device` does."""
  rows, parts = settings['data'].get('batch_size'), settings['accumulate']
  if rows is not None and rows % parts:
    raise ConfigError(
      f'accumulate={parts}: does not divide data.batch_size={rows}, which it cuts into micro-batches of '
      f'one size; {-(-rows // parts) * parts} rows would do.'
    )


def check_stretches(optim: Settings, steps: int) -> None:
  """Check that durations are whole steps or a fraction of the run.

  Raises ConfigError: a duration is neither, or the decay ends before the warmup, so that the rate would be 0.
  """
  for key in ('warmup', 'until', 'hold'):
    value = optim.get(key) or 0
    late = key == 'warmup' and value > steps
    if late or (value > 1 and value != int(value)):
      raise ConfigError(
        f'optim.{key}={value}: give whole steps{f", at most steps={steps}" if late else ""}, or a '
        'fraction of the run between 0.0 and 1.0.'
      )
  warmup, until = (as_steps(optim.get(key) or 0, steps, key) for key in ('warmup', 'until'))
  in_warmup = warmup > 0 and until <= warmup  # a fraction of few steps may be none of them
  one_step = isinstance(optim.get('until'), int) and until == 1
  if optim.get('until') and (in_warmup or one_step) and until < steps and not optim.get('floor'):
    raise ConfigError(
      f'optim.until={optim["until"]}: the decay ends at step {until} of {steps}, and the warmup at {warmup}, so '
      'that the rate is 0 from there on; 1.0 is the whole run, and a whole number counts steps.'
    )
