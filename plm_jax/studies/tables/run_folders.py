"""Find the folders of the runs of a table: in its work folder, or adopted from elsewhere.

A folder is adopted if it holds the config of a run of the table, over the same vocabulary and data by their checksums.
The folder that it started from must itself be adopted or of the table. Paths may differ, and so may keys that do not
change the result (`config.RESUMABLE`).
"""

import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plm_jax import config
from plm_jax.config import overrides
from plm_jax.config.resume import RESUMABLE, leaves
from plm_jax.core.errors import ConfigError, RunError
from plm_jax.io import checksums, files
from plm_jax.io.run_paths import RunFolder
from plm_jax.studies.tables import runs
from plm_jax.studies.tables.file import BEFORE
from plm_jax.studies.tables.runs import DIGITS, Places, Run

log = logging.getLogger(__name__)

PREDICTIONS = 'predictions.jsonl'
_compared: dict[tuple[str, str, bool], str] = {}  # folder, run, whether stores are built -> why not adopted
_configs: dict[tuple[str, str], dict[str, Any] | None] = {}  # run, folder that it starts from -> its config


def folder_of(run: Run, places: Places) -> RunFolder:
  """Find the folder of a run, its own or an adopted one."""
  assert places.workdir is not None  # required by commands that make or read runs
  own = RunFolder(places.workdir / 'runs' / run.name)
  return own if files.is_folder(own.root) else _adopted(run, places) or own


def finished(run: Run, places: Places) -> RunFolder | None:
  """Return the folder of a finished run, else None."""
  folder = _adopted(run, places) if places.workdir is None else folder_of(run, places)
  return folder if folder is not None and is_finished(folder) else None


def is_finished(folder: RunFolder) -> bool:
  """Return whether a run is finished.

  An evaluation has no config, and a complete line when it is finished.
  """
  if not files.is_file(folder.result):
    if files.is_file(folder.config) or not files.is_file(folder.evaluations):
      return False
    return files.read_text(folder.evaluations).endswith('\n')
  from plm_jax.runs import run_folder  # loads jax

  return bool(run_folder.read_result(folder).get('finished'))


def begun_too_soon(folder: RunFolder) -> str:
  """Explain from which unfinished run a run began; '' if none."""
  try:
    about = checksums.read_json(folder.data, default={})
  except (OSError, ValueError, RunError):
    return ''  # reported where its checksums are compared
  for source, (step, steps) in (about.get('unfinished') or {}).items():
    return f'it began from step {step} of {steps} of {source}, which was not finished: move {folder.root} away'
  return ''


def changes_after(run: Run, before: str | None) -> dict[str, str]:
  """Return the changes of a config, with the folder before it."""
  changes = dict(run.changes)
  if before is not None and run.names_its_source:
    changes = {key: value.replace(BEFORE, before) for key, value in changes.items()}
  elif before is not None and not run.evaluates:
    changes['model.from'] = before
  return {**changes, 'init_from': '[]'} if run.scratch else changes


def _adopted(run: Run, places: Places) -> RunFolder | None:
  """Return the first folder to adopt for a run; none for evaluations."""
  return None if run.evaluates else next(_equivalents(run, places), None)


def _equivalents(run: Run, places: Places) -> Iterator[RunFolder]:
  """Yield the folders to adopt that are equivalent to a run."""
  for folder in _adoptable(places.adopt):
    stored = _stored_config(str(folder.root))
    if stored is None or any(stored[key] != run.settings[key] for key in ('seed', 'steps', 'epochs', 'extend')):
      continue
    matching = _matching_config(run, stored, folder, places)
    if matching is not None and not _data_difference(folder, run, matching, places):
      yield folder


def _matching_config(run: Run, stored: Mapping[str, Any], folder: RunFolder, places: Places) -> dict[str, Any] | None:
  """Return the config of a run if the stored one is equivalent."""
  from plm_jax.training.before import from_data  # loads jax

  if run.source is None:
    own = from_data.filled(run.settings, stored)
    return own if _identifying(stored) == _identifying(own) else None
  for before in _folders(run.source, places):
    spelling, written = _spelling(stored, before, folder), _config_after(run, before)
    if spelling is None or written is None:
      continue
    own = from_data.filled(written, stored)
    if _identifying(_replaced(stored, spelling)) == _identifying(_replaced(own, str(before.root))):
      return own
  return None


def _folders(run: Run, places: Places) -> Iterator[RunFolder]:
  if places.workdir is not None and files.is_folder((own := RunFolder(places.workdir / 'runs' / run.name)).root):
    yield own
  yield from _equivalents(run, places)


@functools.cache
def _stored_config(root: str) -> dict[str, Any] | None:
  """Load the config of a folder; None if outdated or damaged."""
  try:
    return config.resolve(config.load(root))
  except ConfigError:
    return None
  except RunError as error:
    log.warning(f'{root} is not adopted: {error}')
    return None


def _config_after(run: Run, before: RunFolder) -> dict[str, Any] | None:
  """Return the config that `train` would write for a run."""
  key = (run.digest, str(before.root))
  if key not in _configs:
    from plm_jax.training.before import model_from  # loads the tokenizers

    try:
      loaded = config.load(runs.config_file(run.config))
      changes = [*changes_after(run, str(before.root)).items()]
      written, rest = model_from.expand(loaded, changes, None)
      _configs[key] = config.resolve(overrides.apply(written, rest)[0])
    except ConfigError:
      _configs[key] = None
  return _configs[key]


def _spelling(stored: Mapping[str, Any], before: RunFolder, folder: RunFolder) -> str | None:
  """Find how a stored config spells the folder it started from.

  Returns None if it is not named. The folder may have been moved together with the one that it started from. For
  example, data/runs/pretrain-2/vocab in the config of elsewhere/runs/glue-1 means elsewhere/runs/pretrain-2.
  """
  here = files.path(before.root)
  for value in leaves(stored).values():
    if not isinstance(value, str) or here.name not in value:
      continue
    for path in (files.path(value), *files.path(value).parents):
      moved = not files.is_folder(path) and folder.root.parent / path.name == before.root
      same = path == here or (files.is_folder(path) and path.resolve() == here.resolve())
      if path.name == here.name and (moved or same):
        return str(path)
  return None


def _replaced(value: Any, root: str) -> Any:
  if isinstance(value, Mapping):
    return {key: _replaced(inner, root) for key, inner in value.items()}
  if isinstance(value, list | tuple):
    return [_replaced(inner, root) for inner in value]
  if isinstance(value, str) and (value == root or value.startswith(f'{root}/')):
    return BEFORE + value.removeprefix(root)
  return value


def _identifying(settings: Mapping[str, Any]) -> dict[str, Any]:
  """Return the settings that identify a run across folders.

  Paths that checksums cover and keys without effect are left out. Evaluation data has no checksum; its path is dropped
  only if the training data has the same path.
  """
  stated = {key: value for key, value in runs.stated(settings).items() if key not in RESUMABLE}
  paths = {value for key, value in leaves(stated.get('data', {})).items() if key.rpartition('.')[2] == 'path'}

  def plain(value: Any) -> Any:
    if isinstance(value, Mapping):
      return {
        key: plain(inner) for key, inner in value.items() if key != 'cache' and not (key == 'path' and inner in paths)
      }
    return [plain(inner) for inner in value] if isinstance(value, list) else value

  for name in ('vocab', 'second_vocab'):
    if isinstance(stated.get(name), dict):
      stated[name] = {key: value for key, value in stated[name].items() if key != 'path'}
  return {key: plain(value) if key in ('data', 'eval') else value for key, value in stated.items()}


def _data_difference(folder: RunFolder, run: Run, settings: Mapping[str, Any], places: Places) -> str:
  """Explain once why a folder's data may differ; '' if equal."""
  key = (str(folder.root), run.digest, places.makes)
  if key not in _compared:
    _compared[key] = _compare_data(folder, settings, places)
    if _compared[key]:
      log.warning(f'{folder.root} has the config of {run.name} but is not adopted: {_compared[key]}')
  return _compared[key]


def _compare_data(folder: RunFolder, settings: Mapping[str, Any], places: Places) -> str:
  from plm_jax.data import made
  from plm_jax.runs import run_folder  # load jax
  from plm_jax.training.before import prepare

  if not files.is_file(folder.data):
    return 'it has no data.json with the checksums of its text and vocabulary'
  if not is_finished(folder):
    return 'it is not finished'
  if reason := begun_too_soon(folder):
    return reason
  try:
    stored = run_folder.read_json(folder.data)
    for name, digest in prepare.digests(settings, makes=places.makes):
      if stored.get(name) != digest:
        return f'its {name} is {str(stored.get(name))[:DIGITS]}, that of this table {digest[:DIGITS]}'
  except made.Unmade as unmade:
    return (
      f'its data_digest cannot be compared: the {unmade.made.what} of this table do not exist yet. Run the table, or '
      '`plm-jax prepare` with the config and changes that --commands prints'
    )
  except (ConfigError, RunError) as error:
    return f'its checksums cannot be compared: {error}'
  return ''


def check_adopt(adopt: Sequence[str]) -> None:
  """Raise ConfigError for a folder of `--adopt` without runs."""
  for name in adopt:
    if not files.is_folder(files.path(name)):
      raise ConfigError(f'--adopt={name}: there is no such folder')
    if not any(_adoptable([name])):
      raise ConfigError(f'--adopt={name}: no run in it, in its folders or in those of its folder runs')


def _adoptable(adopt: Sequence[str]) -> Iterator[RunFolder]:
  for name in adopt:
    root = files.path(name)
    inner = [path for folder in (root, root / 'runs') if files.is_folder(folder) for path in files.listing(folder)]
    yield from (RunFolder(path) for path in (root, *inner) if files.is_file(RunFolder(path).config))
