"""Paths of a run folder, and checks of folders that a command writes to."""

import dataclasses
from pathlib import Path

from plm_jax.core.errors import ConfigError
from plm_jax.io import files
from plm_jax.io.files import Where


def check_place(file: Where, *, name: str, made: Where | None = None) -> None:
  """Raise ConfigError if the output file of flag `name` cannot be created.

  It may not be a folder, and its folder has to be writable or `made`, which will be created. Nothing is left there.
  """
  folder = files.path(file).parent
  if files.is_folder(files.path(file)):
    problem = 'is a folder'
  elif made is not None and folder == files.path(made):
    return
  elif files.is_folder(folder):
    files.check_writable(folder, name=f'the folder of {name}')
    return
  else:
    problem = f'there is no folder {folder}'
  raise ConfigError(f'{name}={file}: {problem}; name a file in an existing folder')


def check_no_run(folder: Where, *, name: str) -> None:
  """Raise ConfigError if the folder of a study is a run folder."""
  if files.is_file(RunFolder.at(folder).config):
    raise ConfigError(f'{name}={folder} is a run folder (it has a config.json): name another folder')


def check_new_folder(folder: Where, *, name: str) -> None:
  """Raise ConfigError, naming flag `name`, if a local folder cannot be created."""
  if files.is_address(folder):
    return
  whole = files.absolute(files.path(folder))
  existing = next(parent for parent in (whole, *whole.parents) if files.exists(parent))
  if not files.is_folder(existing):
    raise ConfigError(f'{name}={folder} cannot be made a folder ({existing.name} is a file): name another path')
  files.check_writable(existing, name=name if existing == whole else f'the folder above {name}')


class Inside:
  """A path in a run folder, by its name there."""

  def __init__(self, name: str):
    self.name = name

  def __get__(self, folder: 'RunFolder', owner: type | None = None) -> Path:
    return folder.root / self.name


@dataclasses.dataclass(frozen=True)
class RunFolder:
  """Paths of the files of a run; all these names are defined only here.

  Attributes:
    root: the folder that `--workdir` names.
  """

  root: Path

  config = Inside('config.json')  # all settings, written when the run begins
  vocab = Inside('vocab')  # folder of the vocabulary
  second_vocab = Inside('second_vocab')  # the same of the second vocabulary, if the run has one
  checkpoints = Inside('checkpoints')  # a subfolder for each saved step
  metrics = Inside('metrics.jsonl')  # a line per logged step
  result = Inside('result.json')  # `finished` marks a complete run
  data = Inside('data.json')  # checksums of what the run reads
  evaluations = Inside('evaluations.jsonl')  # a line per checkpoint
  # commit, machine and versions of the newest evaluation, for folders without a run
  evaluated_by = Inside('evaluated_by.json')
  spikes = Inside('spikes.jsonl')  # loss spikes that were rewound
  by_class = Inside('by_class.json')  # results by class (`evaluate --by_class`)
  curves = Inside('curves.png')  # plot of its metrics
  samples = Inside('samples.json')  # of a report; a missing file is generated
  profile = Inside('profile')  # folder of its traces (`train --profile`)
  log = Inside('log.txt')  # the log as text
  lock = Inside('.lock')  # held by the training process

  @classmethod
  def at(cls, where: Where) -> 'RunFolder':
    return cls(files.path(where))

  def step(self, number: int) -> Path:
    """Return the folder of one checkpoint."""
    return self.checkpoints / str(number)
