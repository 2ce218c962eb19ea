"""A vocabulary: text to ids and back, and how it is saved, based on HF `tokenizers`."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers

from plm_jax.core.errors import suggest
from plm_jax.io import checksums, files
from plm_jax.text import probe
from plm_jax.text import spec as specs

if TYPE_CHECKING:
  from plm_jax.core import types  # loads jax, which commands do without

MODEL = 'spiece.model'


class RoleId:
  """The id of the token with a role; None without one."""

  def __init__(self, role: str):
    self.role = role

  def __get__(self, vocab: 'Vocab', owner: type | None = None) -> int | None:
    return vocab._ids[vocab.roles[self.role]] if self.role in vocab.roles else None


@dataclasses.dataclass(frozen=True, eq=False)
class Vocab:
  """Text <-> ids; satisfies `types.Vocab` and can be pickled.

  Built by `tokenizer.assemble` and `tokenizer.load`.

  In raw text the name of a special token is text: '[MASK]' in a document is a bracket, a word and a bracket.

  Attributes:
    kind: the file of this folder that it belongs to, one of `spec.KINDS`.
    content: of its `tokenizer.json`.
    roles: role -> token, for its roles. If only one of bos and cls exists, it has both roles; the same holds for eos
      and sep, and eos pads if there is no pad (GPT-2).
    tokens: in the order of their ids.
    special_ids: every special token, those of `extra` included, ascending.
    starts_word: bool[size], the token begins a word. WordPiece: no '##'. Byte-level BPE: begins with white space, as in
      fairseq; so the first word of a text begins unmarked and joins the special token before it, which is never masked.
      SentencePiece: begins with its mark of white space. Special tokens start a word, and so do all tokens of words.
    num_bytes: int32[size], UTF-8 bytes of the text of a token; 0 for special tokens. Byte-level BPE: exact.
      SentencePiece: bytes of the normalised text, including the white space added before a text. WordPiece: bytes of
      the normalised text; a word start counts one more for the white space before it (also punctuation) and [UNK] none,
      so bits per byte are an estimate. The same holds for words.
    counts: int64[size], frequency of each token in the training text; None if unknown.
    record: how it was trained; empty for a published vocabulary.
    digest: hex SHA-256 of everything that determines the ids of a text and of the roles, not of counts and record.
    model: the model file of a SentencePiece vocabulary that was trained here, saved for other libraries.
    named: the names of special tokens in raw text are read as these tokens.
    processor: writes special tokens around texts in `marked`, if the file of the vocabulary has one.
  """

  kind: str
  content: str = dataclasses.field(repr=False)
  roles: Mapping[str, str]
  tokens: tuple[str, ...] = dataclasses.field(repr=False)
  special_ids: tuple[int, ...]
  starts_word: np.ndarray = dataclasses.field(repr=False)
  num_bytes: np.ndarray = dataclasses.field(repr=False)
  counts: np.ndarray | None = dataclasses.field(repr=False)
  record: Mapping[str, Any] = dataclasses.field(repr=False)
  digest: str
  model: bytes | None = dataclasses.field(default=None, repr=False)
  named: bool = False
  processor: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False)

  @property
  def size(self) -> int:
    return len(self.tokens)

  @property
  def pad_id(self) -> int:
    return self.id(self.roles['pad'])

  unk_id = RoleId('unk')  # of unknown words
  cls_id = RoleId('cls')  # begins and represents a text
  sep_id = RoleId('sep')  # ends each segment of a sequence
  mask_id = RoleId('mask')  # of masked tokens
  bos_id = RoleId('bos')  # begins a text
  eos_id = RoleId('eos')  # ends a text

  def encode(self, text: str, *, specials: bool = False) -> list[int]:
    """Convert a text to ids, with nothing added.

    With `specials` the names of special tokens in it are read as these tokens.
    """
    with probe.using():
      return (self._marked if specials else self._raw).encode(text, add_special_tokens=False).ids

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Convert each text to ids as `encode`, on all cores."""
    with probe.using():
      return [encoding.ids for encoding in self._raw.encode_batch_fast(list(texts), add_special_tokens=False)]

  def encode_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Convert a text to ids and character spans [start, end)."""
    with probe.using():
      encoding = self._raw.encode(text, add_special_tokens=False)
    return encoding.ids, encoding.offsets

  def words(self, texts: Sequence[str]) -> list[list[int | None]]:
    """Return the word index of each token, by the tokenizer."""
    with probe.using():
      return [encoding.word_ids for encoding in self._raw.encode_batch(list(texts), add_special_tokens=False)]

  def unknown(self, text: str) -> list[tuple[int, str]]:
    """Find the positions of unknown tokens, and their normalised words."""
    ids, spans = self.encode_offsets(text)
    words = [
      (position, self.normalise(text[slice(*spans[position])]))
      for position, token_id in enumerate(ids)
      if token_id == self.unk_id
    ]
    return [(position, word) for position, word in words if word]

  def normalise(self, text: str) -> str:
    """Normalise a text as its tokens are (lower case, for example)."""
    normalizer = self._raw.normalizer
    return (text if normalizer is None else normalizer.normalize_str(text)).strip()

  def decode(self, ids: Sequence[int], *, specials: bool = False) -> str:
    """Convert ids to text, without special tokens unless `specials`.

    Byte-level BPE returns the encoded text, with U+FFFD for bytes that are not UTF-8. WordPiece returns the normalised
    text.
    """
    with probe.using():
      return self._marked.decode([int(token_id) for token_id in ids], skip_special_tokens=not specials)

  def with_names(self) -> 'Vocab':
    """Return this vocabulary with `named`, and with another digest."""
    return dataclasses.replace(self, named=True, digest=hashlib.sha256(f'{self.digest} named'.encode()).hexdigest())

  def token(self, token_id: int) -> str:
    if not 0 <= token_id < self.size:
      raise ValueError(
        f'id {token_id} is outside this vocabulary of {self.size} tokens: use ids from 0 to {self.size - 1}'
      )
    return self.tokens[token_id]

  def id(self, token: str) -> int:
    if token not in self._ids:
      raise ValueError(f'no token {token!r} in this vocabulary of {self.size}.{suggest(token, self.tokens)}')
    return self._ids[token]

  def save(self, folder: str | Path, *, template: 'types.Template | None' = None) -> None:
    """Write the folder.

    `tokenizer.json` comes last, so a folder that has it is complete.

    Args:
      folder: created if missing.
      template: special tokens around a text, which `tokenizer.json` then adds in other libraries; it is not read here.

    Raises:
      ValueError: the folder has another vocabulary.
    """
    path = files.path(folder)
    if files.exists(path / 'tokenizer.json'):
      from plm_jax.text import tokenizer  # imports this file

      saved = tokenizer.load(path)
      if saved.digest != self.digest:
        raise ValueError(
          f'{path} has another vocabulary ({saved.size} tokens, digest {saved.digest[:12]}; this one has {self.size}, '
          f'{self.digest[:12]}): name another folder, or remove it'
        )
    files.make_folder(path)
    facts: dict[str, Any] = {
      'digest': self.digest,
      'kind': self.kind,
      'size': self.size,
      'roles': dict(self.roles),
      'record': dict(self.record),
      'counts': None if self.counts is None else self.counts.tolist(),
    }
    content = self.content
    if template is not None:
      facts['spaced'] = template.spaced
      content = json.dumps(specs.with_template(json.loads(content), template.single, template.pair), ensure_ascii=False)
    # The process may be killed between two files: accept the old file until it is replaced.
    old_sha256 = [files.sha256(path / 'tokenizer.json')] if files.exists(path / 'tokenizer.json') else []
    facts['sha256_of_files'] = {'tokenizer.json': [*old_sha256, hashlib.sha256(content.encode()).hexdigest()]}
    if self.model is not None:
      files.write_bytes(path / MODEL, self.model)
      facts['sha256_of_files'][MODEL] = [hashlib.sha256(self.model).hexdigest()]
    files.write_text(path / 'vocab.json', json.dumps(checksums.sealed(facts), ensure_ascii=False))
    files.write_text(path / 'tokenizer.json', content)

  def __getstate__(self) -> dict[str, Any]:
    return {field.name: self.__dict__[field.name] for field in dataclasses.fields(self)}

  @functools.cached_property
  def _raw(self) -> tokenizers.Tokenizer:
    if self.named:
      return self._marked
    raw = tokenizers.Tokenizer.from_str(json.dumps(specs.without_names(json.loads(self.content)), ensure_ascii=False))
    raw.encode_special_tokens = True  # read the names of special tokens as text
    return raw

  @functools.cached_property
  def _marked(self) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(self.content)

  @property
  def marked(self) -> tokenizers.Tokenizer | None:
    """Return the tokenizer with its special tokens around texts, if known."""
    if self.processor is None:
      return None
    return tokenizers.Tokenizer.from_str(json.dumps({**json.loads(self.content), 'post_processor': self.processor}))

  @functools.cached_property
  def _ids(self) -> dict[str, int]:
    return {token: token_id for token_id, token in enumerate(self.tokens)}

  def token_bytes(self, token_id: int) -> bytes:
    """Return the bytes of text of a token.

    For WordPiece, words and special tokens they are those of its name.
    """
    token = self.token(token_id)
    if self.kind in ('wordpiece', 'words') or token_id in self.special_ids:
      return token.encode()
    return specs.piece_bytes(token) if self.kind == 'sentencepiece' else specs.byte_level_bytes(token)
