"""Paths of a run folder, and checks of folders that a command writes to."""

import dataclasses
from pathlib import Path

from plm_jax.core.errors import ConfigError
from plm_jax.io import files
from plm_jax.io.files import Where


def check_place(file: Where, *, name: str, made: Where | None = None) -> None:
  """Raise ConfigError if an output file cannot be created.

  It may not be a folder, and its folder has to exist and be writable. Nothing is left there.

  Args:
    file: the output file.
    name: of the flag that names the file.
    made: a folder that will be created.
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
  """Raise ConfigError if a folder cannot be created or written to.

  Args:
    folder: local, or a URL, which is not checked.
    name: of the setting or flag that names the folder.
  """
  if files.is_address(folder):
    return
  whole = files.absolute(files.path(folder))
  existing = next(parent for parent in (whole, *whole.parents) if files.exists(parent))
  if not files.is_folder(existing):
    raise ConfigError(f'{name}={folder} cannot be made a folder ({existing.name} is a file): name another path')
  files.check_writable(existing, name=name if existing == whole else f'the folder above {name}')


@dataclasses.dataclass(frozen=True)
class RunFolder:
  """Paths of the files of a run; all these names are defined only here.

  Attributes:
    root: the folder that `--workdir` names.
  """

  root: Path

  @classmethod
  def at(cls, where: Where) -> 'RunFolder':
    """Build the paths from a folder given by a user."""
    return cls(files.path(where))

  @property
  def config(self) -> Path:
    """Return the path of all settings (JSON), written when the run begins."""
    return self.root / 'config.json'

  @property
  def vocab(self) -> Path:
    """Return the folder of the vocabulary."""
    return self.root / 'vocab'

  @property
  def second_vocab(self) -> Path:
    """Return the folder of the second vocabulary, if the run has one."""
    return self.root / 'second_vocab'

  @property
  def checkpoints(self) -> Path:
    """Return the folder of the checkpoints, one subfolder for each saved step."""
    return self.root / 'checkpoints'

  def step(self, number: int) -> Path:
    """Return the folder of one checkpoint."""
    return self.checkpoints / str(number)

  @property
  def metrics(self) -> Path:
    """Return the path of the metrics: one JSON line per logged step."""
    return self.root / 'metrics.jsonl'

  @property
  def result(self) -> Path:
    """Return the path of the result (JSON); `finished` marks a complete run."""
    return self.root / 'result.json'

  @property
  def data(self) -> Path:
    """Return the path of the checksums of what the run reads (JSON)."""
    return self.root / 'data.json'

  @property
  def evaluations(self) -> Path:
    """Return the path of the evaluations: one JSON line per checkpoint."""
    return self.root / 'evaluations.jsonl'

  @property
  def evaluated_by(self) -> Path:
    """Return the path of the provenance of the newest evaluation (JSON).

    It is for folders without a run: commit, machine, versions.
    """
    return self.root / 'evaluated_by.json'

  @property
  def spikes(self) -> Path:
    """Return the path of the loss spikes that were rewound (JSON lines)."""
    return self.root / 'spikes.jsonl'

  @property
  def by_class(self) -> Path:
    """Return the path of the results by class (`evaluate --by_class`, JSON)."""
    return self.root / 'by_class.json'

  @property
  def curves(self) -> Path:
    """Return the path of the plot of its metrics."""
    return self.root / 'curves.png'

  @property
  def samples(self) -> Path:
    """Return the path of a report's samples (JSON).

    A missing file is generated.
    """
    return self.root / 'samples.json'

  @property
  def profile(self) -> Path:
    """Return the folder of its traces (`train --profile`)."""
    return self.root / 'profile'

  @property
  def log(self) -> Path:
    """Return the path of the log as text."""
    return self.root / 'log.txt'

  @property
  def lock(self) -> Path:
    """Return the path of the lock that the training process holds."""
    return self.root / '.lock'
