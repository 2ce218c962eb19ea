"""A vocabulary of a given size without words: shapes depend on the size alone, and a plan reads no text."""

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
  """Ids of names that stand for words, with every special token; a `types.Vocab`.

  Attributes:
    words: how many ids there are but for those of `extra`.
    extra: names behind them, as sentinels.
  """

  words: int
  extra: tuple[str, ...] = ()
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
    return (*_SPECIAL, *(f'w{number}' for number in range(len(_SPECIAL), self.words)), *self.extra)

  @functools.cached_property
  def _ids(self) -> dict[str, int]:
    return {name: number for number, name in enumerate(self._names)}

  @property
  def size(self) -> int:
    """All ids."""
    return len(self._names)

  @property
  def special_ids(self) -> tuple[int, ...]:
    """Ids of no words."""
    return (*range(len(_SPECIAL) - 1), *range(self.words, self.size))

  @property
  def starts_word(self) -> np.ndarray:
    """bool[v]: two of three pieces begin a word."""
    return np.arange(self.size) % 3 != 0

  @property
  def num_bytes(self) -> np.ndarray:
    """int32[v]: four a piece."""
    return np.where(np.isin(np.arange(self.size), self.special_ids), 0, 4).astype(np.int32)

  @property
  def counts(self) -> np.ndarray:
    """int64[v]: each once."""
    return np.ones(self.size, np.int64)

  def encode(self, text: str, *, specials: bool = False) -> list[int]:
    """An id for each word of a text; all words are alike."""
    return [len(_SPECIAL)] * len(text.split())

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """`encode` of each."""
    return [self.encode(text) for text in texts]

  def encode_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """`encode`, with where each word begins and ends."""
    return self.encode(text), [found.span() for found in re.finditer(r'\S+', text)]

  def unknown(self, text: str) -> list[tuple[int, str]]:
    """No word is unknown."""
    return []

  def decode(self, ids: Sequence[int], *, specials: bool = False) -> str:
    """The names of ids."""
    return ' '.join(self._names[number] for number in ids)

  def token(self, token_id: int) -> str:
    """The name of an id."""
    return self._names[token_id]

  def save(self, folder: str, *, template: Template | None = None) -> None:
    """ValueError: there is nothing to save."""
    raise ValueError('a vocabulary without words cannot be saved')

  def id(self, token: str) -> int:
    """The id of a name; KeyError where there is none."""
    return self._ids[token]


def vocab_of(settings: Mapping[str, Any], *, header: str = '', size: int | None = None) -> Vocab:
  """The vocabulary of a config, or one of its size where it has not been made yet.

  Args:
    settings: of a config.
    header: its docstring, whose command that makes the vocabulary has its size.
    size: of the vocabulary without `vocab.extra`, whatever is there; None takes what is there, else the header's.

  Raises:
    ConfigError: the vocabulary is not there, and nothing says its size.
  """
  block = settings['vocab']
  extra = tuple(block.get('extra') or ())
  if size is not None:
    return Words(size, extra)
  if tokenizer.exists(files.path(str(block['path']))):
    return make_vocab(settings)
  made = recipe.in_header(header, block['path'])
  if made is not None and (number := re.search(r'--size=(\d+)', made)):
    return Words(int(number[1]), extra)
  raise ConfigError(
    f'vocab.path: there is no vocabulary {block["path"]} yet, and the config does not say its size: '
    'make it with `plm-jax vocab train`, or let `plm-jax plan --vocab_size=N` count with N ids'
  )
