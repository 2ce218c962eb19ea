"""Vocabularies and texts for the tests of this folder: small, exact, without downloads."""

import hashlib
import json
import pathlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from plm_jax.core import types
from plm_jax.text import sentencepiece, tokenizer

SPECIAL = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', '<s>', '</s>', '_start_', '_delimiter_', '_classify_')
PAD, UNK, CLS, SEP, MASK, BOS, EOS, START, DELIMITER, CLASSIFY = range(len(SPECIAL))


def llama_vocab(texts: Sequence[str], *, size: int = 300) -> tokenizer.Vocab:
  """Build a vocabulary as published for LLaMA.

  It puts a space before every text and keeps the spaces of the text.
  """
  made = sentencepiece.train(texts, size=size, specials='llama', byte_fallback=True)
  spec = json.loads(made.content)
  kept = [one for one in spec['normalizer']['normalizers'] if one['type'] == 'Prepend' or one.get('content') == '▁']
  return tokenizer.assemble({**spec, 'normalizer': {'type': 'Sequence', 'normalizers': kept}}, roles=made.roles)


class NumberVocab:
  """Vocabulary of texts of numbers: '3 0 7' -> [13, 10, 17]. Each attribute is as in `types.Vocab`.

  Args:
    size: tokens in addition to the special tokens.
    without: special ids that this vocabulary lacks ('cls', 'sep', 'bos', 'eos').
    each: called with every batch of texts before it is encoded.
  """

  pad_id, unk_id, mask_id = PAD, UNK, MASK
  counts = None

  def __init__(self, size: int = 10_000, without: Sequence[str] = (), each: Callable[[Sequence[str]], None] = len):
    self.size = size + len(SPECIAL)
    self.digest = hashlib.sha256(f'numbers {size}'.encode()).hexdigest()
    self.cls_id = None if 'cls' in without else CLS
    self.sep_id = None if 'sep' in without else SEP
    self.bos_id = None if 'bos' in without else BOS
    self.eos_id = None if 'eos' in without else EOS
    self.special_ids = tuple(range(len(SPECIAL)))
    self.starts_word = np.ones(self.size, bool)
    self.num_bytes = np.ones(self.size, np.int32)
    self.each = each

  def encode(self, text: str) -> list[int]:
    return [len(SPECIAL) + int(word) for word in text.split()]

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    self.each(texts)
    return [self.encode(text) for text in texts]

  def encode_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    return self.encode(text), [match.span() for match in re.finditer(r'\S+', text)]

  def unknown(self, text: str) -> list[tuple[int, str]]:
    return []

  def decode(self, ids: Sequence[int]) -> str:
    return ' '.join(self.token(token_id) for token_id in ids)

  def token(self, token_id: int) -> str:
    return SPECIAL[token_id] if token_id < len(SPECIAL) else str(token_id - len(SPECIAL))

  def id(self, token: str) -> int:
    if token not in SPECIAL:
      raise ValueError(f'the vocabulary has no token {token!r}')
    return SPECIAL.index(token)

  def save(self, folder: str, *, template: types.Template | None = None) -> None:
    raise NotImplementedError


class Texts(list):
  """Documents with a digest of their content."""

  @property
  def digest(self) -> str:
    return hashlib.sha256('\n\n'.join(self).encode()).hexdigest()


def documents(sizes: Sequence[int], vocab_size: int = 10_000) -> Texts:
  """Build texts of these sizes; token j in total is `j % vocab_size`.

  So order and losses are visible.
  """
  ends = np.cumsum(sizes)
  return Texts(
    ' '.join(str(number % vocab_size) for number in range(end - size, end))
    for size, end in zip(sizes, ends, strict=True)
  )


def write_text(path: pathlib.Path, texts: Sequence[str]) -> str:
  """Write documents as a .txt file with blank lines between them."""
  path.write_text('\n\n'.join(texts) + '\n')
  return str(path)


def write_rows(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> str:
  """Write records as a .jsonl file."""
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  return str(path)


def tokenise_slowly(cache: str, sizes: Sequence[int], seconds: float) -> None:
  """Make a token store with a pause before each block, to be killed."""
  from plm_jax.data.rows import store

  vocab = NumberVocab(each=lambda texts: time.sleep(seconds))
  store.on_disk(documents(sizes), vocab=vocab, cache=cache)
