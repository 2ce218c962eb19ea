"""The state of a run folder: claimed or free, the config it was started with, finished or not.

Paths in the folder: `run_paths.RunFolder`.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from plm_jax import config
from plm_jax.checkpoint import saved_steps
from plm_jax.cli import logs
from plm_jax.core.errors import ConfigError, RunError
from plm_jax.core.types import Labels, Source, Vocab
from plm_jax.io import checksums, downloads, files
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import history, metrics

log = logging.getLogger(__name__)


@contextlib.contextmanager
def claim(folder: RunFolder, *, main: bool) -> Iterator[None]:
  """Lock the folder against other runs while the body runs.

  Only the process with `main` does anything. A new folder that holds only a log is removed if the body raises
  ConfigError.
  """
  new = main and not files.is_address(folder.root) and not files.exists(folder.root)
  with contextlib.ExitStack() as stack:
    if main:
      try:
        stack.enter_context(files.locked(folder.lock, doing='training', wait=False))
      except BlockingIOError as error:
        details = f' ({error.strerror})' if files.is_address(folder.root) else ''
        raise ConfigError(
          f'{folder.root}: another process is training here{details}; wait for it or name another --workdir'
        ) from None
      except OSError as error:
        raise ConfigError(f'{folder.root} cannot be written to ({error.strerror}); name another --workdir') from error
    try:
      yield
    except ConfigError:
      if new and not set(files.listing(folder.root)) - {folder.lock, folder.log}:
        files.remove_folder(folder.root)
      raise


@contextlib.contextmanager
def log_file(folder: RunFolder, *, main: bool) -> Iterator[None]:
  """Write the package's log to the folder while the body runs."""
  if not main:
    yield
    return
  mirror = downloads.Mirror(folder.log)
  handler = _Handler(mirror)
  handler.handleError = lambda record: None  # type: ignore[method-assign]  # on a full disk, later writes report the error
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
  """A log handler for a file that is regularly sent to its URL."""

  def __init__(self, mirror: downloads.Mirror):
    super().__init__(files.open(mirror.file, 'a'))
    self._mirror = mirror
    self._sending = False

  def emit(self, record: logging.LogRecord) -> None:
    super().emit(record)
    if not self._sending:  # sending may log as well
      self._sending = True
      try:
        self._mirror.due()
      finally:
        self._sending = False


def read_json(file: Path) -> dict[str, Any]:
  """Read a file's object, {} without one; raise RunError if damaged."""
  try:
    content = checksums.read_json(file, default={})
    if not isinstance(content, dict):
      raise ValueError('not a JSON object')
  except (OSError, ValueError) as error:
    raise RunError(f'{file} is damaged ({error}); restore it, or name another --workdir') from error
  return content


def read_result(folder: RunFolder) -> dict[str, Any]:
  """Read the last result of the run, {} if missing or damaged."""
  try:
    return read_json(folder.result)
  except RunError as error:
    log.warning('%s. Continuing without a result', error)
    return {}


def class_names(folder: RunFolder, part: str | None = None) -> Labels:
  """Read the class names that a run was trained on.

  `data.json` stores them under 'class_names': a list, or a list per part. Without names the key is missing. With
  `part`, only the names of that part are returned. Raises RunError: the file is damaged.
  """
  stored = read_json(folder.data).get('class_names', ())
  if isinstance(stored, Mapping) and part is not None:
    return Labels(tuple(stored.get(part, ())))
  if isinstance(stored, Mapping):
    return Labels(parts={part: Labels(tuple(names)) for part, names in stored.items()})
  return Labels(tuple(stored))


def write_config(folder: RunFolder, settings: Mapping[str, Any]) -> None:
  """Write `config.json`; no other function does."""
  metrics.write_json(folder.config, settings)


def begun(folder: RunFolder) -> dict[str, Any]:
  """Read the config of the run in a folder; {} without checkpoints."""
  saved = saved_steps.numbered(folder.checkpoints) or files.listing(folder.checkpoints / saved_steps.SET_ASIDE)
  return read_json(folder.config) if saved else {}


def agree_with_folder(settings: Mapping[str, Any], old: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
  """Check settings against those that the folder was started with.

  Returns the settings, completed from the folder, and their changes.
  """
  if not old:
    return dict(settings), []
  requested = dict(settings)
  if settings['epochs'] is not None:  # converted to steps at the start, see `begun_steps`
    requested |= {'steps': old.get('steps'), 'epochs': None}
  # stored in the folder, not in the command
  from_folder = {key: old.get(key, ()) for key in ('extend', 'skip') if not settings[key]}
  return {**settings, **from_folder}, config.check_resume({**requested, **from_folder}, old)


def finished(folder: RunFolder, old: Mapping[str, Any]) -> dict[str, Any]:
  """Return the result of a finished run, else {}.

  The result counts only if the last step is saved and sound.
  """
  result = read_result(folder)
  if not (result.get('finished') and isinstance(result.get('step'), int)):
    return {}
  if not old or result.get('steps') != history.total(old):
    return {}
  try:
    saved_steps.check_together(folder.step(result['step']))
  except saved_steps.Damaged as error:
    log.warning(f'{folder.root} was finished, but step {result["step"]} is damaged ({error}); it is repeated')
    return {}
  digest = result.get('metrics_sha256')
  if digest and not (files.is_file(folder.metrics) and files.sha256(folder.metrics) == digest):
    log.warning(f'{folder.metrics} was damaged or edited after the run; the result is valid')
  return result


def begun_steps(settings: Mapping[str, Any], steps_per_epoch: int, old: Mapping[str, Any]) -> int:
  """Return the steps that the run starts or was started with.

  Raises ConfigError: `epochs` differ from the steps that the run was started with.
  """
  if settings['steps'] is not None:
    return settings['steps']
  total = max(1, round(settings['epochs'] * steps_per_epoch))
  if old and old['steps'] != total:
    raise ConfigError(
      f'epochs={settings["epochs"]:g} are {total} steps, and this run was begun with {old["steps"]}: '
      'undo the change, name another --workdir, or use --extend=N for N more steps'
    )
  return total


def check_epochs(settings: Mapping[str, Any], folder: RunFolder, old: Mapping[str, Any]) -> None:
  """Raise ConfigError if `epochs` changed since the start of the run.

  The data is not read: `data.json` stores the steps per epoch. A folder of an earlier version may lack them.
  """
  if steps_per_epoch := read_json(folder.data).get('steps_per_epoch'):
    begun_steps(settings, steps_per_epoch, old)


def spent(folder: RunFolder, start: int) -> dict[str, float]:
  """Read tokens and seconds of the steps up to `start`.

  Also seconds by cause (`Meter.causes`); 'lost_steps' counts those that are made again.
  """
  measured = saved_steps.read(folder.step(start)).metrics if start else {}
  made = max((row['step'] for row in metrics.read(folder.root)), default=0)
  plain = {name: value for name, value in measured.items() if '/' not in name}
  lost = plain.get('lost_steps', 0) + max(made - start, 0)
  return {**plain, 'lost_steps': lost}


def summed(folder: RunFolder, start: int) -> Mapping[str, tuple[float, float]]:
  """Read metric sums since the line before `start`; {} if none."""
  return saved_steps.read(folder.step(start)).sums if start else {}


def check_data(
  folder: RunFolder, source: Source, vocab: Vocab, *, first_batches: str, second_vocab: Vocab | None = None, begun: bool
) -> dict[str, Any]:
  """Compute checksums of the data, and check them on resume.

  Returns the checksums, and the class names if there are any. Raises ConfigError: the run was started with other data.

  Args:
    source: the examples of all hosts.
    first_batches: checksum of the first ten batches of `source` (`training.feed.first_batches_digest`).
    begun: True if the run is resumed and `data.json` of the folder must agree.
  """
  facts = {'data_digest': source.digest, 'vocab_digest': vocab.digest, 'first_ten_batches': first_batches}
  if second_vocab is not None:
    facts['second_vocab_digest'] = second_vocab.digest
  old = read_json(folder.data) if begun else {}
  for name, value in facts.items():
    if old and old.get(name) != value:
      raise ConfigError(
        f'data: {name} of {folder.root} was {old.get(name)} when the run began and is {value} now: '
        'the data changed. Restore it, or name another --workdir'
      )
  parts = source.parts or {'': source}
  names = {part: list(part_source.names) for part, part_source in parts.items() if part_source.names}
  return {**facts, 'class_names': names.get('', names)} if names else facts
