"""Words of scripts without spaces: a segmenter tells before the noise which tokens begin a word.

As in Chinese-BERT-wwm (Cui et al. 2019), tokens stay those of the vocabulary, and masks cover the segmented words. A
segmenter is 'jieba', or a function of your own, 'module:function', that returns the words of a text in order. Its
module lists it in `SEGMENTERS`, so that the config of a run cannot call any other code.

  # text      使 用 语 言 模 型       words of jieba 使用 语言 模型
  # mark      2  1  2  1  2  1       1 continues a word, 2 begins one, 0 on special tokens, which no segmenter reads
"""

import functools
import itertools
import re
from collections.abc import Callable, Iterable
from importlib import metadata
from typing import Any, Literal, NamedTuple

import numpy as np

from plm_jax.config import build
from plm_jax.core import scripts
from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Vocab
from plm_jax.data.rows import store
from plm_jax.data.rows.cached import cached
from plm_jax.io import files

Segmenter = Callable[[str], Iterable[str]]
_NAMING = dict(key='data.segmenter', ours='jieba')
_SAMPLE = '我们在野生动物园玩。 Play 3.14\n'
_SPACED = re.compile(rf'(?:[^\W{scripts.ALONE}][{scripts.MARKS}]*)+')  # letters of scripts with spaces


class Marked(NamedTuple):
  """The ids of a token store, plus `size` times the mark of each."""

  ids: 'store.AnyIds'  # [n], ids of the store
  marks: np.ndarray  # uint8[n]
  size: int  # of the vocabulary

  def take(self, places: np.ndarray, *, mode: Literal['raise', 'clip'] = 'raise') -> np.ndarray:
    """Return the marked ids at these positions, int32, as `np.ndarray.take`."""
    marks = self.marks.take(places, mode=mode).astype(np.int32)
    return self.ids.take(places, mode=mode).astype(np.int32) + self.size * marks


def check(name: str | None) -> None:
  """Raise ConfigError for a segmenter that cannot be used; None is none."""
  if name is not None:
    words(_SAMPLE, name)


def mark(tokens: store.Tokens, texts: store.Texts, *, vocab: Vocab, name: str) -> Marked:
  """Mark the tokens of texts, stored next to a store on disk."""

  def make() -> dict[str, np.ndarray]:
    every = [np.zeros(0, np.uint8)]
    for index in range(len(texts)):
      text = texts[index]
      spans = np.array(vocab.encode_offsets(text)[1], np.int64).reshape(-1, 2)
      fresh = spans[:, 0] >= np.concatenate([[0], spans[:-1, 1]])  # False for later bytes of one letter
      every.append(1 + (words(text, name)[spans[:, 0]] & fresh).astype(np.uint8))
    return {'marks': np.concatenate(every)}

  marks = cached(tokens, f'words-{store.digest_of(*identity(name))[:16]}', make)['marks']
  return Marked(tokens.ids, marks, vocab.size)


def identity(name: str) -> tuple[str, str]:
  """Return a segmenter's name and the version of its words."""
  if name == 'jieba':
    return name, metadata.version('jieba')
  return name, files.sha256(build.file_of_yours(name, **_NAMING))


def words(text: str, name: str) -> np.ndarray:
  """Mark characters before which a word may begin, bool[len(text) + 1].

  Raises ConfigError if the segmenter does not exist, or its words are not those of the text.
  """
  begins, at = np.ones(len(text) + 1, bool), 0
  for word in segmenter(name)(text):
    start = text.find(word, at) if isinstance(word, str) else -1
    if start < 0 or text[at:start].strip():
      raise ConfigError(
        f'data.segmenter={name!r} returned {str(word)[:40]!r} where the text has {text[at : at + 20]!r}: '
        'it has to return the words of a text in order, unchanged'
      )
    at = start + len(word)
    begins[start + 1 : at] = False
  return begins


@functools.cache
def segmenter(name: str) -> Segmenter:
  """Load a segmenter, or raise ConfigError if uninstalled or not listed."""
  return _jieba() if name == 'jieba' else build.of_yours(name, table='SEGMENTERS', **_NAMING)


def _jieba() -> Segmenter:
  try:
    import jieba
  except ModuleNotFoundError:
    raise ConfigError(
      "data.segmenter='jieba' needs the package jieba: pip install -r requirements/chinese.txt (or pip install jieba)"
    ) from None
  cutter: Any = jieba.Tokenizer()  # read without jieba's cache in a folder that every user may write
  cutter.FREQ, cutter.total = cutter.gen_pfdict(cutter.get_dict_file())
  cutter.initialized = True

  def cut(text: str) -> Iterable[str]:
    # jieba splits words of Cyrillic or Arabic into letters: join those again
    begins = np.zeros(len(text) + 1, bool)
    begins[np.cumsum([0, *map(len, cutter.cut(text))])] = True
    for word in _SPACED.finditer(text):
      begins[word.start() + 1 : word.end()] = False
    ends = np.flatnonzero(begins)
    return [text[start:end] for start, end in itertools.pairwise(ends)]

  return cut
