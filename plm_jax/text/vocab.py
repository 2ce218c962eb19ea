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


@dataclasses.dataclass(frozen=True, eq=False)
class Vocab:
  """Text <-> ids; satisfies `types.Vocab`, and may be pickled. Made by `assemble` and `load`.

  In raw text the name of a special token is text: '[MASK]' in a document is a bracket, a word and a bracket.

  Attributes:
    kind: the file of this folder that it belongs to, one of `spec.KINDS`.
    content: of its `tokenizer.json`.
    roles: role -> token, for the roles it has. bos and cls stand in for each other where only one is there, eos and sep
      likewise, and eos for pad (GPT-2).
    tokens: in the order of their ids.
    special_ids: every special token, those of `extra` included, ascending.
    starts_word: bool[size], the token begins a word. WordPiece: no '##'. Byte-level BPE: begins with white space, as
      fairseq has it; so the first word of a text begins unmarked, and joins the special token before it, which is never
      masked. SentencePiece: begins with its mark of white space. Special tokens start a word,
      and so do all tokens of words.
    num_bytes: int32[size], UTF-8 bytes of text that a token stands for; 0 for special tokens. Byte-level BPE: exact.
      SentencePiece: those of the normalised text, the white space that it sets before a text included.
      WordPiece: those of the normalised text, a word start counting one more for the white space before it (punctuation
      too) and [UNK] none, so its bits per byte are an estimate; words likewise.
    counts: int64[size], how often each token is in the training text; None where that is not known.
    record: how it was trained; empty for a published vocabulary.
    digest: hex SHA-256 of all that decides which ids a text gets and of the roles, not of counts and record.
    model: the model file of a SentencePiece vocabulary that was trained here, which goes along for other libraries.
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

  @property
  def size(self) -> int:
    """Number of ids."""
    return len(self.tokens)

  @property
  def pad_id(self) -> int:
    """Fills rows up."""
    return self.id(self.roles['pad'])

  @property
  def unk_id(self) -> int | None:
    """What an unknown word becomes."""
    return self._role('unk')

  @property
  def cls_id(self) -> int | None:
    """Stands before a text, for the whole of it."""
    return self._role('cls')

  @property
  def sep_id(self) -> int | None:
    """Ends each part of a row."""
    return self._role('sep')

  @property
  def mask_id(self) -> int | None:
    """Hides a token."""
    return self._role('mask')

  @property
  def bos_id(self) -> int | None:
    """Begins a text."""
    return self._role('bos')

  @property
  def eos_id(self) -> int | None:
    """Ends a text."""
    return self._role('eos')

  def encode(self, text: str, *, specials: bool = False) -> list[int]:
    """Ids of a text, with nothing added. `specials` reads the names of special tokens in it as these tokens."""
    with probe.using():
      return (self._marked if specials else self._raw).encode(text, add_special_tokens=False).ids

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """`encode` of each text, on all cores."""
    with probe.using():
      return [found.ids for found in self._raw.encode_batch_fast(list(texts), add_special_tokens=False)]

  def encode_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """`encode`, and the characters [start, end) of `text` that each token covers."""
    with probe.using():
      found = self._raw.encode(text, add_special_tokens=False)
    return found.ids, found.offsets

  def unknown(self, text: str) -> list[tuple[int, str]]:
    """The places of the unknown tokens among those of `encode`, and the words that stand there, normalised."""
    ids, spans = self.encode_offsets(text)
    found = [(place, self.normalise(text[slice(*spans[place])])) for place, one in enumerate(ids) if one == self.unk_id]
    return [(place, word) for place, word in found if word]

  def normalise(self, text: str) -> str:
    """A text as its tokens are written, in lower case for example, without white space around it."""
    normalizer = self._raw.normalizer
    return (text if normalizer is None else normalizer.normalize_str(text)).strip()

  def decode(self, ids: Sequence[int], *, specials: bool = False) -> str:
    """The text of some ids; special tokens are left out unless `specials`.

    Byte-level BPE gives back what was encoded, with U+FFFD for bytes that are no UTF-8; WordPiece the normalised text.
    """
    with probe.using():
      return self._marked.decode([int(token_id) for token_id in ids], skip_special_tokens=not specials)

  def token(self, token_id: int) -> str:
    """The token of an id."""
    if not 0 <= token_id < self.size:
      raise ValueError(f'id {token_id} is outside this vocabulary of {self.size} tokens')
    return self.tokens[token_id]

  def id(self, token: str) -> int:
    """The id of a token."""
    if token not in self._ids:
      raise ValueError(f'there is no token {token!r} in this vocabulary of {self.size}.{suggest(token, self.tokens)}')
    return self._ids[token]

  def save(self, folder: str | Path, *, template: 'types.Template | None' = None) -> None:
    """Writes the folder. `tokenizer.json` comes last, so a folder that has it is complete.

    Args:
      folder: made if it is missing.
      template: what stands around a text in rows, which `tokenizer.json` then adds for others; it is not read here.

    Raises:
      ValueError: the folder holds another vocabulary.
    """
    path = files.path(folder)
    if files.exists(path / 'tokenizer.json'):
      from plm_jax.text import tokenizer  # imports this file

      kept = tokenizer.load(path)
      if kept.digest != self.digest:
        raise ValueError(
          f'{path} holds another vocabulary ({kept.size} tokens, digest {kept.digest[:12]}; this one has {self.size}, '
          f'digest {self.digest[:12]}): name another folder, or remove that one'
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
    # what is there stays good until it is replaced: the process may be killed between the two
    before = [files.sha256(path / 'tokenizer.json')] if files.exists(path / 'tokenizer.json') else []
    facts['sha256_of_files'] = {'tokenizer.json': [*before, hashlib.sha256(content.encode()).hexdigest()]}
    if self.model is not None:
      files.write_bytes(path / MODEL, self.model)
      facts['sha256_of_files'][MODEL] = [hashlib.sha256(self.model).hexdigest()]
    files.write_text(path / 'vocab.json', json.dumps(checksums.sealed(facts), ensure_ascii=False))
    files.write_text(path / 'tokenizer.json', content)

  def __getstate__(self) -> dict[str, Any]:
    return {field.name: self.__dict__[field.name] for field in dataclasses.fields(self)}

  @functools.cached_property
  def _raw(self) -> tokenizers.Tokenizer:
    raw = tokenizers.Tokenizer.from_str(json.dumps(specs.without_names(json.loads(self.content)), ensure_ascii=False))
    raw.encode_special_tokens = True  # encodes the names of special tokens as any other text
    return raw

  @functools.cached_property
  def _marked(self) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(self.content)

  @functools.cached_property
  def _ids(self) -> dict[str, int]:
    return {token: token_id for token_id, token in enumerate(self.tokens)}

  def token_bytes(self, token_id: int) -> bytes:
    """The bytes of text that a token stands for; of WordPiece, words and special tokens, those of its name."""
    token = self.token(token_id)
    if self.kind in ('wordpiece', 'words') or token_id in self.special_ids:
      return token.encode()
    return specs.piece_bytes(token) if self.kind == 'sentencepiece' else specs.byte_level_bytes(token)

  def _role(self, role: str) -> int | None:
    return self._ids[self.roles[role]] if role in self.roles else None
