"""The content of a `tokenizer.json` (HF's format) as plain data: kind, tokens, roles, bytes of text."""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from plm_jax.core.errors import shown

Spec = Mapping[str, Any]

KINDS = ('wordpiece', 'byte_bpe', 'sentencepiece', 'word_bpe', 'words')
ROLES = {  # role -> its names in published vocabularies
  'pad': ('[PAD]', '<pad>', '<|pad|>'),
  'unk': ('[UNK]', '<unk>'),
  'cls': ('[CLS]', '<cls>'),
  'sep': ('[SEP]', '<sep>'),
  'mask': ('[MASK]', '<mask>'),
  'bos': ('[BOS]', '<bos>', '<s>', '<|begin_of_text|>'),
  'eos': ('[EOS]', '<eos>', '</s>', '<|end_of_text|>', '<|endoftext|>'),
}
END_OF_TEXT = '<|endoftext|>'  # GPT-2's only special token, before a text and after it
STAND_INS = (('bos', 'cls'), ('cls', 'bos'), ('eos', 'sep'), ('sep', 'eos'), ('pad', 'eos'))
BLANKS = ('[MASK]', '<mask>', '<MASK>')  # accepted for a word to fill in
SENTINEL = r'<extra_id_\d+>'  # pattern of T5's blanks
BLANK = '▁'  # white space in SentencePiece
# SentencePiece joins a letter and its marks if both stand apart, in canonical order and next to each other: not after a
# letter that has a mark, not past Arabic vowels. Positions where nothing is joined:
_ABOVE, _BELOW, _BASE = r'[\x{300}-\x{314}\x{342}\x{345}]', r'\x{323}-\x{331}', r'\x{31b}\x{327}\x{328}\x{338}'
_LETTERS = (
  r'[\x{c2}-\x{c5}\x{c7}-\x{d6}\x{dc}-\x{e5}\x{e7}-\x{f6}\x{fc}-\x{16b}\x{1a0}-\x{1b0}\x{1ea}-\x{22f}\x{3ac}-\x{3ae}'
  r'\x{3ca}-\x{3ce}\x{cca}\x{ddc}\x{1e36}-\x{1fb6}\x{1fc6}-\x{1ff6}]'
)
SEPARATE = (
  rf'(?<={_LETTERS}|[\x{{fb00}}-\x{{fb06}}])(?=\p{{M}})|(?<={_ABOVE})(?=[{_BELOW}{_BASE}])|(?<=[\x{{323}}-\x{{326}}\x{{32d}}-\x{{331}}])(?=[{_BASE}])'
  r'|(?<=[\x{610}-\x{61a}\x{64b}-\x{652}\x{656}-\x{65f}\x{670}\x{6d6}-\x{6ed}])(?=[\x{653}-\x{655}])'
  r'|(?<=[\x{ac00}-\x{d7a3}])(?=[\x{11a8}-\x{11c2}])'
)
MARKS = r'(?<=\r)(?=\n)|(?=[\p{M}\x{200c}\x{200d}\x{ff9e}\x{ff9f}\x{e33}\x{eb3}])|(?<=\p{Cf})'  # positions in graphemes
SPACES = tuple(chr(256 + byte) for byte in b' \t\n\v\f\r')  # as spelt in byte-level tokens


def kind_of(spec: Spec) -> str:
  """Determine the kind of a tokenizer; raise ValueError if not in `KINDS`."""
  model, splitters = spec['model'], spec['pre_tokenizer'] or {}
  if 'max_input_chars_per_word' in model:
    return 'wordpiece'
  if 'unk_token' in model and 'merges' not in model:
    return 'words'
  if model.get('type') == 'Unigram' or model.get('byte_fallback'):
    return 'sentencepiece'
  if 'merges' in model and model.get('end_of_word_suffix'):
    return 'word_bpe'
  if 'merges' in model and 'ByteLevel' in [part.get('type') for part in splitters.get('pretokenizers', [splitters])]:
    return 'byte_bpe'
  if 'merges' in model and BLANK in json.dumps([spec['normalizer'], splitters], ensure_ascii=False):
    return 'sentencepiece'
  raise ValueError(f'has a tokenizer of type {model.get("type")}, which is none of: {", ".join(KINDS)}')


def token_ids(spec: Spec) -> dict[str, int]:
  """Read token -> id, added ones included; raise ValueError if damaged."""
  model, added = spec.get('model'), spec.get('added_tokens', [])
  given = model.get('vocab') if isinstance(model, Mapping) else None
  if isinstance(given, list) and all(isinstance(item, list) and len(item) == 2 for item in given):
    pairs = [(token, token_id) for token_id, (token, _) in enumerate(given)]  # (token, score) by id
  elif isinstance(given, Mapping):
    pairs = list(given.items())
  else:
    raise ValueError(f'is damaged (model.vocab is {shown(given)}, expected a table of tokens)')
  if not isinstance(added, list) or not all(isinstance(item, Mapping) for item in added):
    raise ValueError(f'is damaged (added_tokens is {shown(added)}, expected a list of tokens)')
  ids = {}
  for token, token_id in [*pairs, *((item.get('content'), item.get('id')) for item in added)]:
    if not isinstance(token, str) or type(token_id) is not int:
      raise ValueError(f'is damaged (token {shown(token)} has id {shown(token_id)})')
    ids[token] = token_id
  return ids


def special_tokens(spec: Spec) -> set[str]:
  """Return the tokens that are marked as special."""
  return {item['content'] for item in spec['added_tokens'] if item['special']}


def without_names(spec: Spec) -> Spec:
  """Remove special tokens' names, which Unigram and words match in raw text."""
  kind, specials, model = kind_of(spec), special_tokens(spec), spec['model']
  if kind == 'words':  # no word is empty, so '' can be the unknown one
    unknown = model['vocab'][model['unk_token']]
    ids = {token: token_id for token, token_id in model['vocab'].items() if token not in specials}
    model = {**model, 'vocab': {**ids, '': unknown}, 'unk_token': ''}
  elif not isinstance(model['vocab'], Mapping):
    pieces = [['', score] if token in specials else [token, score] for token, score in model['vocab']]
    model = {**model, 'vocab': pieces}
  else:
    return spec
  others = [item for item in spec['added_tokens'] if not item['special']]
  return {**spec, 'model': model, 'added_tokens': others, 'post_processor': None}


def added_tokens(ids: Mapping[str, int], *, kind: str, mask: str | None) -> list[dict[str, Any]]:
  """Build the `added_tokens` entries of special tokens with their ids.

  Except in WordPiece and words the `mask` includes the space before it, as the word that it replaces would.
  """
  flags = {'single_word': False, 'rstrip': False, 'normalized': False, 'special': True}
  lstrip = None if kind in ('wordpiece', 'words') else mask
  return [{'id': ids[token], 'content': token, 'lstrip': token == lstrip, **flags} for token in ids]


def append(spec: Spec, extra: Sequence[str], *, mask: str | None) -> Spec:
  """Append special tokens, with ids after all others."""
  ids = token_ids(spec)
  for token in extra:
    if token in ids or not token.strip():
      raise ValueError(
        f'extra token {token!r} is an ordinary token of the vocabulary: choose a name that is in no text'
      )
  new = {token: len(ids) + index for index, token in enumerate(extra)}
  return {**spec, 'added_tokens': [*spec['added_tokens'], *added_tokens(new, kind=kind_of(spec), mask=mask)]}


Row = Sequence[tuple[int | str, int]]  # (special id or field, type), as in `types.Template`


def with_template(spec: Spec, single: Row, pair: Row) -> dict[str, Any]:
  """Add a post-processor that inserts special tokens around one or two texts."""
  tokens = {token_id: token for token, token_id in token_ids(spec).items()}

  def parts(form: Row) -> list[dict[str, Any]]:
    return [
      {'Sequence': {'id': part, 'type_id': type_id}}
      if isinstance(part, str)
      else {'SpecialToken': {'id': tokens[part], 'type_id': type_id}}
      for part, type_id in form
    ]

  ids = sorted({part for part, _ in (*single, *pair) if not isinstance(part, str)})
  named = [(tokens[token_id], token_id) for token_id in ids]
  special = {token: {'id': token, 'ids': [token_id], 'tokens': [token]} for token, token_id in named}
  processor = {'type': 'TemplateProcessing', 'single': parts(single), 'pair': parts(pair)}
  return {**spec, 'post_processor': {**processor, 'special_tokens': special}}


def spaced(spec: Spec) -> Spec:
  """Add a space before texts of byte-level BPE; other kinds need none."""

  def change(part: Any) -> Any:
    if not isinstance(part, Mapping):
      return part
    inner = [change(child) for child in part.get('pretokenizers', ())]
    changed = {'add_prefix_space': True} if part.get('type') == 'ByteLevel' else {}
    return {**part, **changed, **({'pretokenizers': inner} if inner else {})}

  return {**spec, 'pre_tokenizer': change(spec['pre_tokenizer'])}


def typed(spec: Spec) -> bool:
  """Check whether the post-processor sets token types of a pair."""
  parts = (spec.get('post_processor') or {}).get('pair', ())
  return any(entry['type_id'] for part in parts for entry in part.values())


def guess_roles(tokens: Iterable[str], *, decided: Collection[str]) -> dict[str, str]:
  """Map undecided roles to well-known names; raise ValueError if ambiguous."""
  present = set(tokens)
  roles = {}
  for role in [role for role in ROLES if role not in decided]:
    names = [name for name in ROLES[role] if name in present]
    if len(names) > 1:
      choices = ' and '.join(map(repr, names))
      raise ValueError(f'{choices} could be the {role} token: choose one, vocab.roles=dict({role}={names[0]!r})')
    if names:
      roles[role] = names[0]
  if roles.get('eos') == END_OF_TEXT and not {'bos', 'cls'} & {*roles, *decided}:
    roles['bos'] = END_OF_TEXT
  return roles


def complete_roles(roles: Mapping[str, str], tokens: Collection[str]) -> dict[str, str]:
  """Complete roles by other tokens; raise ValueError for unknown roles or tokens."""
  for role, token in roles.items():
    if role not in ROLES:
      raise ValueError(f'roles: no role {role!r}; choices are {", ".join(ROLES)}')
    if token not in tokens:
      raise ValueError(f'roles: the {role} token {token!r} is not in the vocabulary; add it by vocab.extra')
  complete = dict(roles)
  for role, other in STAND_INS:
    if role not in complete and other in complete:
      complete[role] = complete[other]
  if 'pad' not in complete:
    raise ValueError("no padding token: name one, vocab.roles=dict(pad='<pad>')")
  return complete


def extent(spec: Spec, tokens: Sequence[str], specials: Collection[int]) -> tuple[np.ndarray, np.ndarray]:
  """Compute `starts_word` and `num_bytes` of `Vocab` for tokens by id."""
  added = {item['content'] for item in spec['added_tokens']}  # spelt as text even if the model spells bytes
  prefix = spec['model'].get('continuing_subword_prefix') or '##'
  rules: dict[str, tuple[Callable[[str], bool], Callable[[str], int]]] = {
    'wordpiece': (
      lambda token: not token.startswith(prefix),
      lambda token: len(token.removeprefix(prefix).encode()) + (not token.startswith(prefix)),
    ),
    'byte_bpe': (lambda token: token.startswith(SPACES), len),
    # words are marked at their end, so word starts are unknown: every token counts as a word
    'word_bpe': (lambda token: True, lambda token: len(token.removesuffix('</w>').encode()) + token.endswith('</w>')),
    'words': (lambda token: True, lambda token: len(token.encode()) + 1),
    'sentencepiece': (lambda token: token.startswith(BLANK), lambda token: len(piece_bytes(token))),
    'added': (lambda token: token[:1].isspace(), lambda token: len(token.encode())),
  }
  kind = kind_of(spec)
  starts_word = np.ones(len(tokens), bool)
  num_bytes = np.zeros(len(tokens), np.int32)
  for token_id, token in enumerate(tokens):
    if token_id not in specials:
      starts, bytes_of = rules['added' if token in added else kind]
      starts_word[token_id], num_bytes[token_id] = starts(token), bytes_of(token)
  return starts_word, num_bytes


def byte_level_bytes(token: str) -> bytes:
  """Return the bytes of a byte-level token.

  It spells each byte as one visible character, or is an added token, spelt as text.
  """
  if all(character in _BYTES for character in token):
    return bytes(_BYTES[character] for character in token)
  return token.encode()


def piece_bytes(token: str) -> bytes:
  """Return the bytes of a SentencePiece token; <0x0A> is one byte."""
  if re.fullmatch('<0x[0-9A-F]{2}>', token):
    return bytes([int(token[3:5], 16)])
  return token.replace(BLANK, ' ').encode()


def without_joined_marks(spec: Spec) -> Spec:
  """Return a SentencePiece specification as older versions of this package wrote it."""
  parts = (spec.get('normalizer') or {}).get('normalizers') or []
  if MARKS not in [part.get('pattern', {}).get('Regex') for part in parts]:
    return spec
  table = next(part for part in parts if part['type'] == 'Precompiled')
  before, after = parts.index(next(part for part in parts if _is_sign(part))), parts.index({'type': 'NFC'}) + 2
  return {**spec, 'normalizer': {**spec['normalizer'], 'normalizers': [*parts[:before], table, *parts[after:]]}}


def _is_sign(part: Spec) -> bool:
  return part['type'] == 'Replace' and any('\ufdd0' <= letter <= '\ufdd3' for letter in part['content'])


def rules(spec: Spec) -> dict[str, Any]:
  """Extract what determines the ids of a text, unifying older spellings."""
  model = {key: value for key, value in spec['model'].items() if key != 'type'}
  if 'merges' in model:
    model['merges'] = [pair.split(' ') if isinstance(pair, str) else pair for pair in model['merges']]
  return {
    'normalizer': spec['normalizer'],
    'pre_tokenizer': spec['pre_tokenizer'],
    'model': model,
    'added_tokens': sorted(spec['added_tokens'], key=lambda item: item['id']),
  }


def digest(spec: Spec, roles: Mapping[str, str]) -> str:
  """Hash the rules and the roles: hex SHA-256.

  It does not depend on the version of the library that reads the file.
  """
  return hashlib.sha256(json.dumps([rules(spec), dict(roles)], sort_keys=True).encode()).hexdigest()


def _alphabet() -> list[str]:
  """List the bytes' characters: Latin-1 itself, others numbered from 256."""
  printable = [*range(ord('!'), ord('~') + 1), *range(ord('¡'), ord('¬') + 1), *range(ord('®'), ord('ÿ') + 1)]
  others = iter(range(256, 512))
  return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


ALPHABET = tuple(_alphabet())
_BYTES = {character: byte for byte, character in enumerate(ALPHABET)}
