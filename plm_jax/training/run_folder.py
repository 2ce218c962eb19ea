"""The folder of a run: who may write to it, what it was begun with, and whether it is finished."""

import contextlib
import fcntl
import json
import logging
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from plm_jax import config
from plm_jax.checkpoint import records
from plm_jax.errors import ConfigError
from plm_jax.training import feed
from plm_jax.types import Source, Vocab

log = logging.getLogger('plm_jax')


@contextlib.contextmanager
def claim(workdir: pathlib.Path, *, main: bool) -> Iterator[None]:
  """Keeps other runs out of the folder while the body runs."""
  if not main:
    yield
    return
  with contextlib.ExitStack() as stack:
    try:
      workdir.mkdir(parents=True, exist_ok=True)
      lock = stack.enter_context(open(workdir / '.lock', 'a'))
    except OSError as error:
      raise ConfigError(f'{workdir} cannot be written to ({error.strerror}): name another --workdir') from error
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise ConfigError(f'{workdir}: another process is training here; wait for it or name another --workdir') from None
    yield


@contextlib.contextmanager
def log_file(workdir: pathlib.Path, *, main: bool) -> Iterator[None]:
  """Writes the log to `log.txt` as well while the body runs."""
  if not main:
    yield
    return
  handler = logging.FileHandler(workdir / 'log.txt', encoding='utf-8')
  handler.setFormatter(logging.Formatter('%(asctime)s %(levelname)s %(message)s'))
  log.addHandler(handler)
  try:
    yield
  finally:
    log.removeHandler(handler)
    handler.close()


def read_json(path: pathlib.Path) -> dict[str, Any]:
  return json.loads(path.read_text(encoding='utf-8')) if path.exists() else {}


def agree_with_folder(settings: Mapping[str, Any], old: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
  """The settings, once they are known not to contradict those that the folder was begun with; and what changes."""
  if not old:
    return dict(settings), []
  asked = dict(settings)
  if settings['epochs'] is not None:  # counted in steps when the run began; see `total_steps`
    asked |= {'steps': old['steps'], 'epochs': None}
  return dict(settings), config.check_resume(asked, old)


def finished(workdir: pathlib.Path) -> dict[str, Any]:
  """The result of a run with nothing left to do, whose last step is on disk and sound; else nothing."""
  result = read_json(workdir / 'result.json')
  if not result.get('finished'):
    return {}
  try:
    records.check(workdir / 'checkpoints' / str(result['step']))
  except records.Damaged as error:
    log.warning(f'{workdir} was finished, and step {result["step"]} is damaged since ({error}): it is made again')
    return {}
  return result


def total_steps(settings: Mapping[str, Any], source: Source, old: Mapping[str, Any]) -> int:
  """The horizon of the run, which it keeps for good."""
  if settings['steps'] is not None:
    return settings['steps']
  total = max(1, round(settings['epochs'] * source.steps_per_epoch))
  if old and old['steps'] != total:
    raise ConfigError(
      f'epochs={settings["epochs"]:g} are {total} steps, and this run was begun with {old["steps"]}: '
      'undo the change, or name another --workdir'
    )
  return total


def spent(workdir: pathlib.Path, start: int) -> tuple[int, float]:
  """Tokens and seconds that the steps up to `start` took, as their checkpoint says."""
  if not start:
    return 0, 0.0
  measured = records.read(workdir / 'checkpoints' / str(start)).metrics
  return int(measured['tokens']), measured['seconds']


def check_data(workdir: pathlib.Path, source: Source, vocab: Vocab, *, begun: bool) -> dict[str, Any]:
  """Digests of what the run reads, over all hosts; on resume they must be those it began with."""
  facts = {
    'data_digest': source.digest,
    'vocab_digest': vocab.digest,
    'first_ten_batches': feed.first_batches_digest(source),
  }
  old = read_json(workdir / 'data.json') if begun else {}
  for name, value in facts.items():
    if old and old[name] != value:
      raise ConfigError(
        f'data: {name} of {workdir} was {old[name]} when the run began and is {value} now: the text or its '
        'preparation changed. Restore it, or train in another --workdir'
      )
  return facts
