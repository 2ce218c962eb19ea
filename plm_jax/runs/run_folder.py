"""What a run finds in its folder: whether the folder is free, what the run was begun with, whether it is finished.

Where things stand in the folder: `files.RunFolder`.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from plm_jax import config
from plm_jax.io import downloads, files, checksums
from plm_jax.checkpoint import saved_steps
from plm_jax.cli import logs
from plm_jax.core.errors import ConfigError, RunError
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import history, metrics
from plm_jax.core.types import Labels, Source, Vocab

log = logging.getLogger(__name__)


@contextlib.contextmanager
def claim(folder: RunFolder, *, main: bool) -> Iterator[None]:
  """Keeps other runs out of the folder while the body runs; only the process with `main` does anything.

  A folder that was not there before, and in which nothing but a log came to be, is removed where the body is refused.
  """
  new = main and not files.is_address(folder.root) and not files.exists(folder.root)
  with contextlib.ExitStack() as stack:
    if main:
      try:
        stack.enter_context(files.locked(folder.lock, doing='training', wait=False))
      except BlockingIOError as error:
        who = f' ({error.strerror})' if files.is_address(folder.root) else ''
        raise ConfigError(
          f'{folder.root}: another process is training here{who}; wait for it or name another --workdir'
        ) from None
      except OSError as error:
        raise ConfigError(f'{folder.root} cannot be written to ({error.strerror}): name another --workdir') from error
    try:
      yield
    except ConfigError:
      if new and not set(files.listing(folder.root)) - {folder.lock, folder.log}:
        files.remove_folder(folder.root)
      raise


@contextlib.contextmanager
def log_file(folder: RunFolder, *, main: bool) -> Iterator[None]:
  """Writes the log of the package to the folder as well while the body runs."""
  if not main:
    yield
    return
  mirror = downloads.Mirror(folder.log)
  handler = _Handler(mirror)
  handler.handleError = lambda record: None  # type: ignore[method-assign]  # a full disk: what follows says so
  handler.setFormatter(logging.Formatter('%(asctime)s %(levelname)s %(message)s'))
  package = logging.getLogger(logs.PACKAGE)
  package.addHandler(handler)
  try:
    yield
  finally:
    package.removeHandler(handler)
    with contextlib.suppress(OSError):
      handler.stream.close()
      mirror.close()


class _Handler(logging.StreamHandler):
  """Writes to a file that is sent to its address from time to time."""

  def __init__(self, mirror: downloads.Mirror):
    super().__init__(files.open(mirror.file, 'a'))
    self._mirror = mirror
    self._sending = False

  def emit(self, record: logging.LogRecord) -> None:
    super().emit(record)
    if not self._sending:  # sending it may log, too
      self._sending = True
      try:
        self._mirror.due()
      finally:
        self._sending = False


def read_json(file: Path) -> dict[str, Any]:
  """The object in a file of the run folder; empty where there is no such file.

  Raises:
    RunError: the file is damaged.
  """
  try:
    found = checksums.read_json(file, default={})
    if not isinstance(found, dict):
      raise ValueError('no JSON object')
  except (OSError, ValueError) as error:
    raise RunError(f'{file} is damaged ({error}): restore it, or name another --workdir') from error
  return found


def read_result(folder: RunFolder) -> dict[str, Any]:
  """What the last end of the run wrote to its result; empty where there is none, or none that can be read.

  A result is written again at the end of a run, so nothing is lost with it.
  """
  try:
    return read_json(folder.result)
  except RunError as error:
    log.warning('%s. The run goes on as if it had no result', error)
    return {}


def class_names(folder: RunFolder, part: str | None = None) -> Labels:
  """The names of the classes that a run, or one part of it, was trained on, as its data had them; else by part.

  They stand in `data.json` under 'class_names': a list, or a list for each part. Without names there is no such key.

  Raises:
    RunError: the file is damaged.
  """
  kept = read_json(folder.data).get('class_names', ())
  if isinstance(kept, Mapping) and part is not None:
    return Labels(tuple(kept.get(part, ())))
  if isinstance(kept, Mapping):
    return Labels(parts={part: Labels(tuple(names)) for part, names in kept.items()})
  return Labels(tuple(kept))


def write_config(folder: RunFolder, settings: Mapping[str, Any]) -> None:
  """Writes `config.json`; nothing else does."""
  metrics.write_json(folder.config, settings)


def begun(folder: RunFolder) -> dict[str, Any]:
  """The config that the run in a folder was begun with; nothing where no checkpoint keeps anything of it."""
  kept = saved_steps.numbered(folder.checkpoints) or files.listing(folder.checkpoints / saved_steps.SET_ASIDE)
  return read_json(folder.config) if kept else {}


def agree_with_folder(settings: Mapping[str, Any], old: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
  """The settings and what they change, once they are known not to contradict those that the folder was begun with."""
  if not old:
    return dict(settings), []
  asked = dict(settings)
  if settings['epochs'] is not None:  # counted in steps when the run began; see `begun_steps`
    asked |= {'steps': old.get('steps'), 'epochs': None}
  told = {key: old.get(key, ()) for key in ('extend', 'skip') if not settings[key]}  # the folder knows, not the command
  return {**settings, **told}, config.check_resume({**asked, **told}, old)


def finished(folder: RunFolder, old: Mapping[str, Any]) -> dict[str, Any]:
  """The result of a run with nothing left to do, whose last step is on disk and sound; else nothing."""
  result = read_result(folder)
  if not (result.get('finished') and isinstance(result.get('step'), int)):
    return {}
  if not old or result.get('steps') != history.total(old):
    return {}
  try:
    saved_steps.check_together(folder.step(result['step']))
  except saved_steps.Damaged as error:
    log.warning(f'{folder.root} was finished, and step {result["step"]} is damaged now ({error}): it is repeated')
    return {}
  digest = result.get('metrics_sha256')
  if digest and not (files.is_file(folder.metrics) and files.sha256(folder.metrics) == digest):
    log.warning(f'{folder.metrics} is not as the run wrote it: it is damaged, or was edited; the result is sound')
  return result


def begun_steps(settings: Mapping[str, Any], steps_per_epoch: int, old: Mapping[str, Any]) -> int:
  """The steps that the run begins with, or was begun with.

  Raises:
    ConfigError: `epochs` are other steps than the run was begun with.
  """
  if settings['steps'] is not None:
    return settings['steps']
  total = max(1, round(settings['epochs'] * steps_per_epoch))
  if old and old['steps'] != total:
    raise ConfigError(
      f'epochs={settings["epochs"]:g} are {total} steps, and this run was begun with {old["steps"]}: '
      'undo the change, or name another --workdir; --extend=N trains for N more steps'
    )
  return total


def check_epochs(settings: Mapping[str, Any], folder: RunFolder, old: Mapping[str, Any]) -> None:
  """Raises ConfigError where a run was begun with other `epochs`, without reading its data.

  The folder knows the steps of an epoch (`data.json`), but for one that an earlier version wrote.
  """
  if steps_per_epoch := read_json(folder.data).get('steps_per_epoch'):
    begun_steps(settings, steps_per_epoch, old)


def spent(folder: RunFolder, start: int) -> tuple[int, float]:
  """Tokens and seconds that the steps up to `start` took, as their checkpoint says."""
  if not start:
    return 0, 0.0
  measured = saved_steps.read(folder.step(start)).metrics
  return int(measured['tokens']), measured['seconds']


def summed(folder: RunFolder, start: int) -> Mapping[str, tuple[float, float]]:
  """The metrics of the steps up to `start` that no line has yet; nothing where an earlier version saved the step."""
  return saved_steps.read(folder.step(start)).sums if start else {}


def check_data(
  folder: RunFolder,
  source: Source,
  vocab: Vocab,
  *,
  first_batches: str,
  second_vocab: Vocab | None = None,
  begun: bool,
) -> dict[str, Any]:
  """Digests of what the run reads, over all hosts, and the names of its classes where it has some.

  Args:
    folder: of the run.
    source: the examples of all hosts.
    vocab: its vocabulary.
    first_batches: digest of the first ten batches of `source` (`training.feed.first_batches_digest`).
    second_vocab: its second vocabulary, if any.
    begun: whether the run is resumed, so that `data.json` of the folder must agree.

  Raises:
    ConfigError: the run is resumed and began with others.
  """
  facts = {
    'data_digest': source.digest,
    'vocab_digest': vocab.digest,
    'first_ten_batches': first_batches,
  }
  if second_vocab is not None:
    facts['second_vocab_digest'] = second_vocab.digest
  old = read_json(folder.data) if begun else {}
  for name, value in facts.items():
    if old and old.get(name) != value:
      raise ConfigError(
        f'data: {name} of {folder.root} was {old.get(name)} when the run began and is {value} now: the text or its '
        'preparation changed. Restore it, or train in another --workdir'
      )
  parts = source.parts or {'': source}
  names = {part: list(one.names) for part, one in parts.items() if one.names}
  return {**facts, 'class_names': names.get('', names)} if names else facts
