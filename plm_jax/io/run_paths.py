"""Paths of a run folder, and checks of folders that a command writes to."""

import dataclasses
from pathlib import Path

from plm_jax.core.errors import ConfigError
from plm_jax.io import files
from plm_jax.io.files import Where


def check_place(file: Where, *, name: str, made: Where | None = None) -> None:
  """Raises ConfigError where a file has no folder to be written to, or is one itself; nothing is left there.

  Args:
    file: which one.
    name: of the flag that names the file.
    made: a folder that will be there.
  """
  folder = files.path(file).parent
  if files.is_folder(files.path(file)):
    what = 'is a folder'
  elif made is not None and folder == files.path(made):
    return
  elif files.is_folder(folder):
    files.check_writable(folder, name=f'the folder of {name}')
    return
  else:
    what = f'there is no folder {folder}'
  raise ConfigError(f'{name}={file}: {what}; name a file in a folder that is there')


def check_no_run(folder: Where, *, name: str) -> None:
  """Raises ConfigError where the folder of a study is that of a run, whose files would stand beside its own."""
  if files.is_file(RunFolder.at(folder).config):
    raise ConfigError(f'{name}={folder} holds a run (config.json): name a folder of its own')


def check_new_folder(folder: Where, *, name: str) -> None:
  """Raises ConfigError where a folder that may not be there yet could not be made, or not be written to.

  Args:
    folder: of this machine, or an address, of which nothing is asked.
    name: of the setting or flag that names the folder.
  """
  if files.is_address(folder):
    return
  whole = files.absolute(files.path(folder))
  there = next(one for one in (whole, *whole.parents) if files.exists(one))
  if not files.is_folder(there):
    raise ConfigError(f'{name}={folder} cannot be made a folder ({there.name} is a file): name another place')
  files.check_writable(there, name=name if there == whole else f'the folder above {name}')


@dataclasses.dataclass(frozen=True)
class RunFolder:
  """Where a run keeps what; the only place that spells these names.

  Attributes:
    root: the folder that `--workdir` names.
  """

  root: Path

  @classmethod
  def at(cls, where: Where) -> 'RunFolder':
    """The folder as a user writes it."""
    return cls(files.path(where))

  @property
  def config(self) -> Path:
    """All settings, as JSON; written when the run begins."""
    return self.root / 'config.json'

  @property
  def vocab(self) -> Path:
    """The folder of its vocabulary."""
    return self.root / 'vocab'

  @property
  def second_vocab(self) -> Path:
    """The folder of its second vocabulary, where it has one."""
    return self.root / 'second_vocab'

  @property
  def checkpoints(self) -> Path:
    """The folder of its checkpoints, one folder per saved step."""
    return self.root / 'checkpoints'

  def step(self, number: int) -> Path:
    """The folder of one checkpoint."""
    return self.checkpoints / str(number)

  @property
  def metrics(self) -> Path:
    """One JSON object per line and logged step."""
    return self.root / 'metrics.jsonl'

  @property
  def result(self) -> Path:
    """What came out, as JSON; has `finished` once the run is complete."""
    return self.root / 'result.json'

  @property
  def data(self) -> Path:
    """Digests of what the run reads, as JSON."""
    return self.root / 'data.json'

  @property
  def evaluations(self) -> Path:
    """One JSON object per line and evaluated checkpoint."""
    return self.root / 'evaluations.jsonl'

  @property
  def evaluated_by(self) -> Path:
    """What made the newest evaluation of a folder without a run, as JSON: commit, machine, versions."""
    return self.root / 'evaluated_by.json'

  @property
  def spikes(self) -> Path:
    """One JSON object per line and spike of the loss that the run went back for; see `training/guards/spikes.py`."""
    return self.root / 'spikes.jsonl'

  @property
  def by_class(self) -> Path:
    """What became of each class in each evaluation (`evaluate --by_class`), as JSON."""
    return self.root / 'by_class.json'

  @property
  def curves(self) -> Path:
    """The picture of its metrics."""
    return self.root / 'curves.png'

  @property
  def samples(self) -> Path:
    """What a report asked the run, as JSON; it is asked again where this is missing."""
    return self.root / 'samples.json'

  @property
  def profile(self) -> Path:
    """The folder of its traces (`train --profile`)."""
    return self.root / 'profile'

  @property
  def log(self) -> Path:
    """The text of the log."""
    return self.root / 'log.txt'

  @property
  def lock(self) -> Path:
    """Held by the process that trains in the folder."""
    return self.root / '.lock'
