"""Where the runs of a table lie: in its work folder, or where they were made elsewhere.

A folder made elsewhere is adopted where it holds the config of a run of the table, over the same vocabulary and rows by
their digests, and began with a folder that is itself adopted or of the table. Where things lie may differ, and so may
what changes no result (`config.RESUMABLE`).
"""

import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from plm_jax import config
from plm_jax.config import overrides
from plm_jax.config.resume import RESUMABLE, leaves
from plm_jax.core.errors import ConfigError, RunError
from plm_jax.io import files
from plm_jax.io.run_paths import RunFolder
from plm_jax.studies.tables import runs
from plm_jax.studies.tables.file import BEFORE
from plm_jax.studies.tables.runs import DIGITS, Places, Run

log = logging.getLogger(__name__)

PREDICTIONS = 'predictions.jsonl'
_compared: dict[tuple[str, str, bool], str] = {}  # folder to adopt, run, whether stores are made -> why it is not taken
_begun_with: dict[tuple[str, str], dict[str, Any] | None] = {}  # run, the folder that it begins with -> its config


def folder_of(run: Run, places: Places) -> RunFolder:
  """Where a run lies: in the work folder, or in a folder to adopt that holds the same config over the same data."""
  assert places.workdir is not None  # commands that make or read runs ask for it
  own = RunFolder(places.workdir / 'runs' / run.name)
  return own if files.is_folder(own.root) else _adopted(run, places) or own


def finished(run: Run, places: Places) -> RunFolder | None:
  """The folder of a run that has nothing left to do; None where there is none."""
  folder = _adopted(run, places) if places.workdir is None else folder_of(run, places)
  return folder if folder is not None and is_finished(folder) else None


def is_finished(folder: RunFolder) -> bool:
  """Whether a run has nothing left to do. An evaluation has no config of its own, and a whole line once it is done."""
  if not files.is_file(folder.result):
    if files.is_file(folder.config) or not files.is_file(folder.evaluations):
      return False
    return files.read_text(folder.evaluations).endswith('\n')
  from plm_jax.runs import run_folder  # loads jax

  return bool(run_folder.read_result(folder).get('finished'))


def changes_behind(run: Run, before: str | None) -> dict[str, str]:
  """The changes of the config of a run, with those that name the folder of the run that it begins with."""
  changes = dict(run.changes)
  if before is not None and run.names_its_source:
    changes = {key: value.replace(BEFORE, before) for key, value in changes.items()}
  elif before is not None and not run.evaluates:
    changes['model.from'] = before
  return {**changes, 'init_from': '[]'} if run.scratch else changes


def _adopted(run: Run, places: Places) -> RunFolder | None:
  """The first folder to adopt that stands for a run; None where there is none, and for an evaluation, which has no
  config to compare."""
  return None if run.evaluates else next(_standing_for(run, places), None)


def _standing_for(run: Run, places: Places) -> Iterator[RunFolder]:
  """The folders to adopt that hold the config and the data of a run, and began as it begins."""
  for folder in _adoptable(places.adopt):
    kept = _kept(str(folder.root))
    if kept is None or any(kept[key] != run.settings[key] for key in ('seed', 'steps', 'epochs', 'extend')):
      continue
    asked = _asked(run, kept, folder, places)
    if asked is not None and not _other_data(folder, run, asked, places):
      yield folder


def _asked(run: Run, kept: Mapping[str, Any], folder: RunFolder, places: Places) -> dict[str, Any] | None:
  """The config of a run of the table, where that which a folder keeps is the same; None where it is another."""
  from plm_jax.training.before import from_data  # loads jax

  if run.source is None:
    asked = from_data.filled(run.settings, kept)
    return asked if _unplaced(kept) == _unplaced(asked) else None
  for before in _folders(run.source, places):
    typed, written = _typed(kept, before, folder), _begun(run, before)
    if typed is None or written is None:
      continue
    asked = from_data.filled(written, kept)
    if _unplaced(_without(kept, typed)) == _unplaced(_without(asked, str(before.root))):
      return asked
  return None


def _folders(run: Run, places: Places) -> Iterator[RunFolder]:
  """All folders that hold a run: that of the table, and those to adopt."""
  if places.workdir is not None and files.is_folder((own := RunFolder(places.workdir / 'runs' / run.name)).root):
    yield own
  yield from _standing_for(run, places)


@functools.cache
def _kept(root: str) -> dict[str, Any] | None:
  """The config that a folder keeps; None where it cannot be read any more. The log names a damaged one."""
  try:
    return config.resolve(config.load(root))
  except ConfigError:
    return None
  except RunError as error:
    log.warning(f'{root} is not adopted: {error}')
    return None


def _begun(run: Run, before: RunFolder) -> dict[str, Any] | None:
  """The config of a run that begins with a folder, as `train` writes it out; None where it does not resolve."""
  asked = (run.digest, str(before.root))
  if asked not in _begun_with:
    from plm_jax.training.before import model_from  # loads the tokenizers

    try:
      loaded = config.load(runs.config_file(run.config))
      changes = [*changes_behind(run, str(before.root)).items()]
      written, rest = model_from.expand(loaded, changes, None)
      _begun_with[asked] = config.resolve(overrides.apply(written, rest)[0])
    except ConfigError:
      _begun_with[asked] = None
  return _begun_with[asked]


def _typed(kept: Mapping[str, Any], before: RunFolder, folder: RunFolder) -> str | None:
  """How the config that a folder keeps spells the folder that it began with; None where it names it nowhere.

  A folder that is not where the config says may have been moved together with the one that it began with:

    kept in elsewhere/runs/glue-1:  data/runs/pretrain-2/vocab    stands for elsewhere/runs/pretrain-2
  """
  here = files.path(before.root)
  for value in leaves(kept).values():
    if not isinstance(value, str) or here.name not in value:
      continue
    for path in (files.path(value), *files.path(value).parents):
      moved = not files.is_folder(path) and folder.root.parent / path.name == before.root
      if path.name == here.name and (moved or _same_place(path, here)):
        return str(path)
  return None


def _same_place(one: Path, other: Path) -> bool:
  return one == other or (files.is_folder(one) and one.resolve() == other.resolve())


def _without(value: Any, root: str) -> Any:
  """Settings with another spelling of one folder: the same for all runs."""
  if isinstance(value, Mapping):
    return {key: _without(inner, root) for key, inner in value.items()}
  if isinstance(value, list | tuple):
    return [_without(inner, root) for inner in value]
  if isinstance(value, str) and (value == root or value.startswith(f'{root}/')):
    return BEFORE + value.removeprefix(root)
  return value


def _unplaced(settings: Mapping[str, Any]) -> dict[str, Any]:
  """What makes two runs the same, without places that digests vouch for and without what changes no result.

  The rows of an evaluation have no digest: theirs are known where they lie with those that are learned.
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


def _other_data(folder: RunFolder, run: Run, settings: Mapping[str, Any], places: Places) -> str:
  """Why the data of a folder are not known to be those that a run reads; empty where they are. Logged once."""
  asked = (str(folder.root), run.digest, places.makes)
  if asked not in _compared:
    _compared[asked] = _differs(folder, settings, places)
    if _compared[asked]:
      log.warning(f'{folder.root} has the config of {run.name} and is not adopted: {_compared[asked]}')
  return _compared[asked]


def _differs(folder: RunFolder, settings: Mapping[str, Any], places: Places) -> str:
  from plm_jax.data import made
  from plm_jax.runs import run_folder  # load jax
  from plm_jax.training.before import prepare

  if not files.is_file(folder.data):
    return 'it has no data.json, which says over which text and vocabulary it was made'
  if not is_finished(folder):
    return 'it is not finished'
  try:
    kept = run_folder.read_json(folder.data)
    for name, digest in prepare.digests(settings, makes=places.makes):
      if kept.get(name) != digest:
        return f'its {name} is {str(kept.get(name))[:DIGITS]}, and that of the data of this table is {digest[:DIGITS]}'
  except made.Unmade as unmade:
    return (
      f'its data_digest cannot be compared: the {unmade.made.what} of this table are not made yet, which it does when '
      'it makes runs, and `plm-jax prepare` with the config and the changes that --commands prints'
    )
  except (ConfigError, RunError) as error:
    return f'its digests cannot be compared: {error}'
  return ''


def check_adopt(adopt: Sequence[str]) -> None:
  """Raises ConfigError for a folder of `--adopt` that is not there or holds no run."""
  for name in adopt:
    if not files.is_folder(files.path(name)):
      raise ConfigError(f'--adopt={name}: there is no such folder')
    if not any(_adoptable([name])):
      raise ConfigError(f'--adopt={name}: no run is in it, in its folders or in those of its folder runs')


def _adoptable(adopt: Sequence[str]) -> Iterator[RunFolder]:
  """The runs that folders are or hold; those of the WORKDIR of other tables lie in its folder `runs`."""
  for name in adopt:
    root = files.path(name)
    inner = [one for folder in (root, root / 'runs') if files.is_folder(folder) for one in files.listing(folder)]
    yield from (RunFolder(one) for one in (root, *inner) if files.is_file(RunFolder(one).config))
