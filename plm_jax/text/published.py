"""Published tokenizers of every form, as the content of a `tokenizer.json` and the roles of their special tokens.

Older folders have no `tokenizer.json` but the files of their paper's code: `vocab.txt` (BERT), `vocab.json` and
`merges.txt` (GPT, GPT-2, RoBERTa, BART), a SentencePiece model (T5, ALBERT, XLNet, LLaMA, XLM-R, mBART, DeBERTa-v3), or
none at all (ByT5). `tokenizer_config.json` or `config.json` specify the tokenizer that they belong to.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from plm_jax.io import checksums, files
from plm_jax.text import spec as specs
from plm_jax.text.published_files import IDS, MERGES, MODELS, SETTINGS, WORDS, family_of, names_of, settings_of
from plm_jax.text.published_files import TOKENIZER as TOKENIZER
from plm_jax.text.published_files import read_table as read_table
from plm_jax.text.published_pieces import sentencepiece
from plm_jax.text.published_rows import with_row
from plm_jax.text.published_settings import as_loaded
from plm_jax.text.published_words import byte_bpe, byte_vocab, wordpiece
from plm_jax.text.spec import Spec


class Published(NamedTuple):
  """The content of a `tokenizer.json`, and role -> token as its other files name them."""

  spec: dict[str, Any]
  roles: dict[str, str]


def find(path: Path) -> Path | None:
  """Find a folder's tokenizer file, or return a file itself; else None."""
  if not files.is_folder(path):
    return path if files.is_file(path) else None
  for name in (TOKENIZER, *MODELS, MERGES, WORDS):
    if files.is_file(path / name) and (name != MERGES or files.is_file(path / IDS)):
      return path / name
  bare = files.is_file(path / SETTINGS[-1]) and family_of(settings_of(path)) == 'byt5'
  return path / SETTINGS[-1] if bare else None


def read(file: Path) -> Published:
  """Read the tokenizer of a file that `find` returns.

  Raises:
    ValueError: damaged, or of an unsupported kind.
    RunError: a converted checkpoint whose files have changed since.
  """
  checksums.check_all(file.parent)
  settings = settings_of(file.parent)
  if file.suffix == '.json' and file.name not in (IDS, SETTINGS[-1]):
    spec = as_loaded(as_saved(file), settings)
    spec = _with_added(spec, file.parent, settings, known={item['content'] for item in spec['added_tokens']})
    roles = _roles(spec, settings)
    return Published(_with_special(spec, roles) if family_of(settings) else spec, roles)
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
  return Published(with_row(_with_special(spec, roles), row, roles), roles)


def as_saved(file: Path) -> dict[str, Any]:
  """Read a `tokenizer.json` without the settings next to it."""
  return {'normalizer': None, 'pre_tokenizer': None, 'added_tokens': [], **read_table(file)}


def read_folder(path: Path) -> Published:
  """Read a folder's tokenizer as `read`; raise FileNotFoundError without one."""
  file = find(path)
  if file is None:
    raise FileNotFoundError(f'no vocabulary in {path}')
  return read(file)


def _with_added(
  spec: dict[str, Any], folder: Path, settings: Spec, *, known: Collection[str] | None = None
) -> dict[str, Any]:
  """Add the tokens of other files, new ones with the next id.

  Those in `known`, the added tokens of a `tokenizer.json`, are unchanged, and names of roles add nothing to that file.
  Raises ValueError if an id belongs to another token, or leaves a gap after all others.
  """
  added: dict[str, dict[str, Any]] = {}
  ids_by_token: dict[str, Any] = {}
  source, listed = 'added_tokens_decoder', settings.get('added_tokens_decoder')
  if isinstance(listed, Mapping):
    items = [(token_id, item) for token_id, item in listed.items() if isinstance(item, Mapping)]
    added = {item['content']: dict(item) for _, item in items if isinstance(item.get('content'), str)}
    ids_by_token = {item['content']: token_id for token_id, item in items if item.get('content') in added}
  if not added and files.is_file(folder / 'added_tokens.json'):
    source, ids_by_token = 'added_tokens.json', read_table(folder / 'added_tokens.json')
    added = {token: {} for token in ids_by_token}
  if invalid := [token_id for token_id in ids_by_token.values() if not str(token_id).isdecimal()]:
    raise ValueError(f'is damaged ({source} has {invalid[0]!r} instead of an id)')
  added = {token: added[token] for token in sorted(added, key=lambda token: int(ids_by_token[token]))}
  held = specs.token_ids(spec)
  names = [settings[f'{role}_token'] for role, token in names_of(settings).items() if known is None or token in held]
  others = [
    *(settings.get('additional_special_tokens') or ()),
    *(listed.values() if isinstance(listed := settings.get('extra_special_tokens') or (), Mapping) else listed),
  ]
  for item in (*names, *others):
    fields = dict(item) if isinstance(item, Mapping) else {'content': item}
    if isinstance(fields.get('content'), str) and fields['content']:
      added[fields['content']] = {**added.get(fields['content'], {}), **fields, 'special': True}
  extended = _append(spec, {token: fields for token, fields in added.items() if token not in (known or ())})
  ids = specs.token_ids(extended)
  for token, token_id in ids_by_token.items():
    if token not in (known or ()) and ids[token] != int(token_id):
      raise ValueError(f'is damaged ({source}: {token!r} has id {token_id}, but {ids[token]} by the other files)')
  return extended


def _with_special(spec: dict[str, Any], roles: Mapping[str, str]) -> dict[str, Any]:
  ids, known = specs.token_ids(spec), specs.special_tokens(spec)
  named = {**specs.guess_roles(ids, decided=roles), **roles}
  missing = {token: {'special': True} for token in named.values() if token in ids and token not in known}
  return _append(spec, missing)


def _append(spec: dict[str, Any], added: Mapping[str, Spec]) -> dict[str, Any]:
  """Add tokens to a specification; new ones follow all others."""
  if not added:
    return spec
  ids, kind = specs.token_ids(spec), specs.kind_of(spec)
  ids |= {token: len(ids) + index for index, token in enumerate(token for token in added if token not in ids)}
  by_token = {item['content']: item for item in spec['added_tokens']}
  for token, fields in added.items():
    (default,) = specs.added_tokens({token: ids[token]}, kind=kind, mask=None)
    flags = {key: fields[key] for key in ('single_word', 'lstrip', 'rstrip', 'normalized', 'special') if key in fields}
    plain = {} if fields.get('special', False) else {'special': False, 'normalized': kind == 'wordpiece'}
    by_token[token] = {**default, **plain, **flags, 'id': ids[token]}
  return {**spec, 'added_tokens': sorted(by_token.values(), key=lambda item: item['id'])}


def _roles(spec: Spec, settings: Spec) -> dict[str, str]:
  """Map roles to tokens; without GPT's padding the unknown token pads."""
  named = names_of(settings)
  ended = spec['model'].get('end_of_word_suffix') and 'merges' in spec['model']  # kind 'word_bpe'
  if ended and (unknown := spec['model'].get('unk_token') or named.get('unk')):
    padding = {} if set(specs.ROLES['pad']) & specs.token_ids(spec).keys() else {'pad': unknown}
    named = {'unk': unknown, **padding, **named}
  return named
