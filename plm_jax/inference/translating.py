"""A run that reads texts of one vocabulary and writes texts of another, as what writes (`second_vocab` of a config).

Its trunk alone does not: a new encoder stands before it (adapter 'translate_bart'), or a decoder behind it (objective
'translate'). The network that writes is that of the run's task.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import flax.linen as nn

from plm_jax import weights
from plm_jax.adapters import answers
from plm_jax.checkpoint import CheckpointError
from plm_jax.config import build
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.core.types import PyTree
from plm_jax.inference.opened import Opened
from plm_jax.io.run_paths import RunFolder
from plm_jax.text import tokenizer
from plm_jax.text.tokenizer import Vocab
from plm_jax.training import parts


@dataclasses.dataclass(frozen=True)
class Translator(Opened):
  """As `Opened`; the trunk, its parameters and what depends on them are those of all that writes.

  Attributes:
    vocab: of the texts that are written, whose folder is `tokenizer`.
    first: the first vocabulary of the run.
    prompt_vocab: the vocabulary of prompts.
    prompt_folder: where it is.
  """

  first: Vocab
  prompt_vocab: Vocab
  prompt_folder: Path

  @property
  def prompts(self) -> tuple[Vocab, Path]:
    """The vocabulary of prompts, and its folder."""
    return self.prompt_vocab, self.prompt_folder

  @functools.cached_property
  def generation(self) -> dict[str, Any]:
    """Nothing: what a folder says of generation is of its trunk and its first vocabulary."""
    return {}

  @functools.cached_property
  def _model(self) -> nn.Module:
    """The network of the run's task."""
    settings = build.unwrapped(self.resolved)
    execution = {**settings['execution'], 'dtype': self.execution.dtype}
    made = parts.make_parts({**settings, 'execution': execution}, self.first, RunFolder(self.folder))
    return made.task.model

  @functools.cached_property
  def trunk(self) -> nn.Module:
    """What writes, without its parameters."""
    return self._model.trunk if isinstance(self._model, answers.Model) else self._model

  @functools.cached_property
  def loaded(self) -> tuple[nn.Module, PyTree]:
    """The same, and all parameters of the run on the device.

    Raises:
      ConfigError: they are missing or damaged.
    """
    try:
      return self.trunk, weights.placed(self.weights.to_run)
    except CheckpointError as error:
      raise ConfigError(f'{self.folder}: {error}') from error

  @property
  def network(self) -> tuple[nn.Module, PyTree]:
    """What writes and its parameters."""
    trunk, params = self.loaded
    return trunk, params['trunk'] if isinstance(self._model, answers.Model) else params


def writer(opened: Opened) -> Opened:
  """The folder as what writes texts: itself, but for a run that reads another vocabulary than it writes."""
  if not opened.settings.get('second_vocab'):
    return opened
  folder = RunFolder(opened.folder).second_vocab
  with errors.stage('second_vocab'):
    second = tokenizer.load(folder), folder
  first = opened.vocab, opened.tokenizer
  read, written = (second, first) if parts.reads_second(opened.settings) else (first, second)
  of_run = opened.folder, opened.step, opened.settings
  return Translator(*of_run, *written, opened.execution, opened.part, first[0], *read)
