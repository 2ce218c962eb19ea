"""A folder opened to write texts: the model, its vocabulary, and the special tokens of its texts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn

from plm_jax import errors, files, weights
from plm_jax.checkpoint import CheckpointError, Step
from plm_jax.errors import ConfigError
from plm_jax.generate import conventions
from plm_jax.plugins import build
from plm_jax.text import tokenizer
from plm_jax.text.tokenizer import Vocab
from plm_jax.types import PyTree

UNSAID: Mapping[str, Any] = {'start': None, 'first': None, 'last': None}  # flags that leave tokens to the folder


class Opened(NamedTuple):
  """What a folder holds.

  Attributes:
    trunk: the model.
    params: of the trunk, with heads beside.
    vocab: its vocabulary.
    tokenizer: the folder of the vocabulary.
    published: whether that is one of another library.
    special: ids of special tokens by role.
  """

  trunk: nn.Module
  params: PyTree
  vocab: Vocab
  tokenizer: Path
  published: bool
  special: conventions.Tokens


def open(folder: Path, *, step: Step = None, flags: Mapping[str, Any] = UNSAID, user: str) -> Opened:
  """Reads the model of a folder, its vocabulary and its special tokens, and logs settings that are not followed.

  Args:
    folder: of a run, in Hugging Face's form with its tokenizer, or an import.
    step: of a run, see `weights.open`.
    flags: of a command, see `conventions.tokens` and `conventions.warn`.
    user: the command, for messages.

  Raises:
    ConfigError: something that is not there, or flags that do not go with the model.
  """
  own = files.RunFolder(folder).vocab
  own = own if files.is_folder(own) else folder
  with errors.stage('vocab'):
    vocab = tokenizer.load(own)
  try:
    trunk, params = weights.load(folder, step=step)
  except CheckpointError as error:
    raise ConfigError(f'{user}: {error}') from error
  about = files.read_json(files.RunFolder(folder).config, default={})
  with errors.stage(user):
    found = conventions.read(own, weights.open(folder).token_ids)
    inner = build.unwrapped(about)
    objective = inner.get('objective') or inner.get('adapter') or {}
    special = conventions.tokens(vocab, found, flags, objective, kind=trunk.ATTENTION)
  conventions.warn(found, flags)
  return Opened(trunk, params, vocab, own, 'model' not in about, special)
