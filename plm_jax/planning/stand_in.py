"""A placeholder vocabulary of a given size: a plan needs shapes, which depend only on the size."""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Template, Vocab
from plm_jax.io import files
from plm_jax.text import recipe, tokenizer
from plm_jax.training.parts import make_vocab

_SPECIAL = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', '<s>', '</s>', '.')


@dataclasses.dataclass(frozen=True)
class Words:
  """A `types.Vocab` of made-up names, with every special token."""

  num_words: int  # number of ids, without those of `extra`
  extra: tuple[str, ...] = ()  # further names after them, as sentinels
  pad_id: int = 0
  unk_id: int | None = 1
  cls_id: int | None = 2
  sep_id: int | None = 3
  mask_id: int | None = 4
  bos_id: int | None = 5
  eos_id: int | None = 6
  digest: str = 'a size without words'

  @functools.cached_property
  def _names(self) -> tuple[str, ...]:
    return (*_SPECIAL, *(f'w{index}' for index in range(len(_SPECIAL), self.num_words)), *self.extra)

  @functools.cached_property
  def _ids(self) -> dict[str, int]:
    return {name: index for index, name in enumerate(self._names)}

  @property
  def size(self) -> int:
    return len(self._names)

  @property
  def special_ids(self) -> tuple[int, ...]:
    """List the ids that are not words."""
    return (*range(len(_SPECIAL) - 1), *range(self.num_words, self.size))

  @property
  def starts_word(self) -> np.ndarray:
    """Mark the ids that begin a word, bool[v]: two of three."""
    return np.arange(self.size) % 3 != 0

  @property
  def num_bytes(self) -> np.ndarray:
    """Return the bytes of each id, int32[v]: four per word."""
    return np.where(np.isin(np.arange(self.size), self.special_ids), 0, 4).astype(np.int32)

  @property
  def counts(self) -> np.ndarray:
    """Return the count of each id, int64[v]: one."""
    return np.ones(self.size, np.int64)

  def encode(self, text: str, *, specials: bool = False) -> list[int]:
    """Encode each word of a text as the same id."""
    return [len(_SPECIAL)] * len(text.split())

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    return [self.encode(text) for text in texts]

  def encode_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Encode a text, with the character offsets of each word."""
    return self.encode(text), [match.span() for match in re.finditer(r'\S+', text)]

  def words(self, texts: Sequence[str]) -> list[list[int | None]]:
    return [[*range(len(text.split()))] for text in texts]

  def unknown(self, text: str) -> list[tuple[int, str]]:
    return []

  def decode(self, ids: Sequence[int], *, specials: bool = False) -> str:
    return ' '.join(self._names[token_id] for token_id in ids)

  def token(self, token_id: int) -> str:
    return self._names[token_id]

  def save(self, folder: str, *, template: Template | None = None) -> None:
    """Raise ValueError: there is nothing to save."""
    raise ValueError('a placeholder vocabulary cannot be saved')

  def id(self, token: str) -> int:
    if token not in self._ids:  # as `Vocab`
      raise ValueError(f'no token {token!r} in a placeholder vocabulary')
    return self._ids[token]


def vocab_of(settings: Mapping[str, Any], *, header: str = '', size: int | None = None) -> Vocab:
  """Load the vocabulary of a config, or build one of its size.

  Args:
    header: its docstring, which contains the command that builds the vocabulary, with its size.
    size: of the vocabulary without `vocab.extra`. None takes the existing vocabulary, else the size of the header.

  Raises:
    ConfigError: there is no vocabulary, and its size is unknown.
  """
  block = settings['vocab']
  extra = tuple(block.get('extra') or ())
  if size is not None:
    return Words(size, extra)
  if tokenizer.exists(files.path(str(block['path']))):
    return make_vocab(settings)
  command = recipe.in_header(header, block['path'])
  if command is not None and (match := re.search(r'--size=(\d+)', command)):
    return Words(int(match[1]), extra)
  raise ConfigError(
    f'vocab.path: no vocabulary {block["path"]} yet, and the config does not specify its size: '
    'build it with `plm-jax vocab train`, or use `plm-jax plan --vocab_size=N`'
  )
