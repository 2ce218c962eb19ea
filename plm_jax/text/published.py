"""Published tokenizers of every form, as the content of a `tokenizer.json` and the roles of their special tokens.

Older folders have no `tokenizer.json` but the files of their paper's code: `vocab.txt` (BERT), `vocab.json` and
`merges.txt` (GPT, GPT-2, RoBERTa, BART), a SentencePiece model (T5, ALBERT, XLNet, LLaMA, XLM-R, mBART, DeBERTa-v3), or
none at all (ByT5). Which tokenizer they belong to is said by `tokenizer_config.json` or by `config.json`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from plm_jax.io import checksums, files
from plm_jax.text import spec as specs
from plm_jax.text.published_files import (
  IDS,
  MERGES,
  MODELS,
  NAMES,
  SETTINGS,
  WORDS,
  family_of,
  names_of,
  settings_of,
)
from plm_jax.text.published_files import TOKENIZER as TOKENIZER
from plm_jax.text.published_files import read_table as read_table
from plm_jax.text.published_pieces import sentencepiece
from plm_jax.text.published_rows import with_row
from plm_jax.text.published_settings import as_loaded
from plm_jax.text.published_words import byte_bpe, byte_vocab, wordpiece
from plm_jax.text.spec import Spec


class Published(NamedTuple):
  """A tokenizer: the content of its `tokenizer.json`, and role -> token as its other files name them."""

  spec: dict[str, Any]
  roles: dict[str, str]


def find(path: Path) -> Path | None:
  """The file that decides in a folder, or the path itself where it is a file; None where there is no tokenizer."""
  if not files.is_folder(path):
    return path if files.is_file(path) else None
  for name in (TOKENIZER, *MODELS, MERGES, WORDS):
    if files.is_file(path / name) and (name != MERGES or files.is_file(path / IDS)):
      return path / name
  bare = files.is_file(path / SETTINGS[-1]) and family_of(settings_of(path)) == 'byt5'
  return path / SETTINGS[-1] if bare else None


def read(file: Path) -> Published:
  """The tokenizer of a file that `find` gives.

  Raises:
    ValueError: damaged, or of a kind that is not read here.
    RunError: the copy of an import, and changed since.
  """
  checksums.check_all(file.parent)
  if file.suffix == '.json' and file.name not in (IDS, SETTINGS[-1]):
    settings = settings_of(file.parent)
    return Published(as_loaded(as_saved(file), settings), names_of(settings))
  settings = settings_of(file.parent)
  if file.suffix == '.model':
    spec, row = sentencepiece(file, settings)
  elif file.name in (IDS, MERGES):
    spec, row = byte_bpe(file.parent, settings)
  elif file.name == SETTINGS[-1]:
    spec, row = byte_vocab(settings)
  else:
    spec, row = wordpiece(file, settings)
  spec = _with_added(spec, file.parent, settings)
  roles = _roles(spec, settings)
  return Published(with_row(spec, row, roles), roles)


def as_saved(file: Path) -> dict[str, Any]:
  """The content of a `tokenizer.json`, without what the settings beside it say."""
  return {'normalizer': None, 'pre_tokenizer': None, 'added_tokens': [], **read_table(file)}


def read_folder(path: Path) -> Published:
  """The tokenizer of a folder or file; raises a FileNotFoundError where there is none, and what `read` does."""
  file = find(path)
  if file is None:
    raise FileNotFoundError(f'there is no vocabulary in {path}')
  return read(file)


def _with_added(spec: dict[str, Any], folder: Path, settings: Spec) -> dict[str, Any]:
  """The same with the tokens that other files add: each has the id that it is given there or the next one.

  Raises:
    ValueError: an id belongs to another token, or leaves a hole behind all others.
  """
  found: dict[str, dict[str, Any]] = {}
  numbers: dict[str, Any] = {}
  place, listed = 'added_tokens_decoder', settings.get('added_tokens_decoder')
  if isinstance(listed, Mapping):
    items = [(number, item) for number, item in listed.items() if isinstance(item, Mapping)]
    found = {item['content']: dict(item) for _, item in items if isinstance(item.get('content'), str)}
    numbers = {item['content']: number for number, item in items if item.get('content') in found}
  if not found and files.is_file(folder / 'added_tokens.json'):
    place, numbers = 'added_tokens.json', read_table(folder / 'added_tokens.json')
    found = {token: {} for token in numbers}
  if odd := [number for number in numbers.values() if not str(number).isdecimal()]:
    raise ValueError(f'is damaged ({place} has {odd[0]!r} in place of an id)')
  found = {token: found[token] for token in sorted(found, key=lambda token: int(numbers[token]))}
  names = [settings.get(f'{role}_token') for role in NAMES]
  others = [
    *(settings.get('additional_special_tokens') or ()),
    *(listed if isinstance(listed := settings.get('extra_special_tokens') or (), list) else ()),
  ]
  for item in (*names, *others):
    own = dict(item) if isinstance(item, Mapping) else {'content': item}
    if isinstance(own.get('content'), str) and own['content']:
      found[own['content']] = {**found.get(own['content'], {}), **own, 'special': True}
  whole = _append(spec, found, mask=names_of(settings).get('mask'))
  ids = specs.token_ids(whole)
  for token, number in numbers.items():
    if ids[token] != int(number):
      raise ValueError(
        f'is damaged ({place} says that the id of {token!r} is {number}, and by the other files it is {ids[token]})'
      )
  return whole


def _append(spec: dict[str, Any], found: Mapping[str, Spec], *, mask: str | None) -> dict[str, Any]:
  """A specification with these added tokens, which follow all others where they are new."""
  ids, kind = specs.token_ids(spec), specs.kind_of(spec)
  ids |= {token: len(ids) + number for number, token in enumerate(token for token in found if token not in ids)}
  marked = {item['content']: item for item in spec['added_tokens']}
  for token, own in found.items():
    (usual,) = specs.added_tokens({token: ids[token]}, kind=kind, mask=mask)
    flags = {key: own[key] for key in ('single_word', 'lstrip', 'rstrip', 'normalized', 'special') if key in own}
    special = {'special': False} if not own.get('special', False) else {}
    marked[token] = {**usual, **special, **flags, 'id': ids[token]}
  return {**spec, 'added_tokens': sorted(marked.values(), key=lambda item: item['id'])}


def _roles(spec: Spec, settings: Spec) -> dict[str, str]:
  """Role -> token: as the settings say, and to pad with the unknown token where there is nothing else (GPT)."""
  named = names_of(settings)
  if specs.kind_of(spec) == 'word_bpe' and (unknown := spec['model']['unk_token']):
    padding = {} if set(specs.ROLES['pad']) & specs.token_ids(spec).keys() else {'pad': unknown}
    named = {'unk': unknown, **padding, **named}
  return named
