"""Find the folders of runs, and group runs whose configs differ only in some keys."""

import itertools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from plm_jax import config
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError, RunError
from plm_jax.io import checksums, files
from plm_jax.io.run_paths import RunFolder
from plm_jax.studies.metric_lines import Line

SHORT = 60  # characters of the differences that name a curve
SEED = 'seed'
COPY = 'it has the config, seed, data and values of %s'


class Described(Protocol):
  """A run to be grouped: its name, its folder, and the dotted keys of its config."""

  @property
  def name(self) -> str: ...
  @property
  def folder(self) -> Path: ...
  @property
  def settings(self) -> Mapping[str, Any]: ...


OfRun = TypeVar('OfRun', bound=Described)


def expanded(folder: Path) -> list[Path]:
  """Return a run folder or those of a sweep, else raise ConfigError."""
  trials = [trial for trial in files.listing(folder / 'trials') if files.is_file(RunFolder(trial).config)]
  if files.is_file(RunFolder(folder).config) or trials:
    return trials or [folder]
  problem = 'no run was started in it (no config.json)' if files.is_folder(folder) else 'there is no such folder'
  raise ConfigError(f'{folder}: {problem}; name the folder of a run or a sweep')


def short_names(folders: Sequence[Path]) -> dict[Path, str]:
  """Shorten folders to paths below their common folder, if they have one."""
  if len(folders) == 1:
    return {folders[0]: files.absolute(folders[0]).name}
  try:
    common = os.path.commonpath([files.absolute(folder).parent for folder in folders])
  except ValueError:
    return {folder: str(folder) for folder in folders}
  return {folder: os.path.relpath(files.absolute(folder), common) for folder in folders}


def settings_of(folder: RunFolder) -> dict[str, Any]:
  """Load the config of a run.

  Raises ConfigError: it cannot be read, or a number in it is larger than a float.
  """
  try:
    settings = config.load(str(folder.config))
    files.json_text(settings)
  except (ConfigError, RunError, OSError, ValueError) as error:
    raise ConfigError(str(error)) from error
  return settings


def facts_of(folder: RunFolder) -> dict[str, Any]:
  """Load `data.json` of a run; {} if it is missing or damaged."""
  try:
    return checksums.read_json(folder.data, default={})
  except (RunError, OSError, ValueError):
    return {}


def grouped(runs: Sequence[OfRun], by: Sequence[str]) -> dict[str, list[OfRun]]:
  """Group runs by name, in order; raise ConfigError for unknown `by`."""
  all_keys = list(dict.fromkeys(key for run in runs for key in run.settings))
  for key in by:
    errors.check_choice('--by', 'key', key, all_keys)
  chosen = list(by) or differing(runs)
  groups: dict[str, list[OfRun]] = {}
  for run in runs:
    name = ', '.join(f'{key}={run.settings.get(key, "not there")}' for key in chosen)
    groups.setdefault(name or files.absolute(run.folder).name, []).append(run)
  return groups if chosen else {files.absolute(runs[0].folder).name: list(runs)}


def named(groups: Mapping[str, list[OfRun]], by: Sequence[str]) -> dict[str, list[OfRun]]:
  """Rename groups for a legend.

  A short list of differing keys names a group, else the common prefix of its folders. Requested keys (`by`) name it
  however long they are.
  """
  if by or all(len(name) <= SHORT for name in groups):
    return dict(groups)
  renamed: dict[str, list[OfRun]] = {}
  for group in groups.values():
    first = group[0].name
    name = first if len(group) == 1 else _common_prefix([run.name for run in group])
    candidates = itertools.chain([name or first, first], (f'{name} ({i})' for i in range(2, 10_000)))
    renamed[next(candidate for candidate in candidates if candidate not in renamed)] = group
  return renamed


def _common_prefix(names: Sequence[str]) -> str:
  """Find the common prefix of names, without a seed."""
  common = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
  return re.sub(r'[-_./]+(s|seed)?[-_]*\d*$', '', ''.join(letters[0] for letters in common))


def differing(runs: Sequence[Described]) -> list[str]:
  """List the keys except the seed in which configs differ."""
  all_keys = dict.fromkeys(key for run in runs for key in run.settings)
  return [key for key in all_keys if key != SEED and len({str(run.settings.get(key)) for run in runs}) > 1]


def apart(runs: Sequence[OfRun], line: Callable[[OfRun], Line | None]) -> tuple[list[OfRun], dict[Path, Path]]:
  """Separate runs from copies.

  A copy has the config, seed, data and values of another run. A copy that was made during the run ends earlier. Returns
  the retained runs, and copied folder -> original folder for the others.

  Args:
    runs: runs in order; the longest of several copies is retained, the first of equal ones.
    line: function from a run to the compared curve; None if it has none, so that it is retained.
  """
  curves = {run.folder: curve for run in runs if (curve := line(run)) is not None}
  by_identity: dict[str, list[OfRun]] = {}
  for run in (run for run in runs if run.folder in curves):
    by_identity.setdefault(_identity(run), []).append(run)
  copies: dict[Path, Path] = {}
  for group in by_identity.values():
    originals: list[Path] = []
    for folder in sorted((run.folder for run in group), key=lambda folder: -len(curves[folder][0])):
      original = next((other for other in originals if _begins_with(curves[other], curves[folder])), None)
      if original is None:
        originals.append(folder)
      else:
        copies[folder] = original
  return [run for run in runs if run.folder not in copies], copies


def _identity(run: Described) -> str:
  """Combine a run's config with the checksums of its data."""
  data = RunFolder(run.folder).data
  digests = files.read_bytes(data).hex() if files.is_file(data) else ''  # a damaged file may not be UTF-8
  return files.json_text([dict(sorted(run.settings.items())), digests])


def _begins_with(curve: Line, prefix: Line) -> bool:
  return all(np.array_equal(array[: len(start)], start) for array, start in zip(curve, prefix, strict=True))
