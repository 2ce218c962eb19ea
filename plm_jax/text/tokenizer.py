"""What all vocabularies share, based on HF `tokenizers`: text to ids and back, its folder, and comparing two of them.

A vocabulary is a folder: `tokenizer.json` in HF's format, which any tool reads, and `vocab.json` with the digest, the
roles of the special tokens, the token counts of the training text and how it was trained. A published `tokenizer.json`
alone is read too. Nothing here trains a vocabulary: the ids of a run are those of one such folder.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers

from plm_jax.io import checksums, files
from plm_jax.text import probe, published, recipe
from plm_jax.text import spec as specs
from plm_jax.text.spec import Spec
from plm_jax.text.vocab import MODEL
from plm_jax.text.vocab import Vocab as Vocab

if TYPE_CHECKING:
  from plm_jax.core import types  # loads jax, which commands do without

_BATCH_CHARACTERS = 2_000_000


def assemble(
  spec: Spec,
  *,
  roles: Mapping[str, str],
  counts: Sequence[int] | np.ndarray | None = None,
  record: Mapping[str, Any] | None = None,
  model: bytes | None = None,
) -> Vocab:
  """A vocabulary from the content of a `tokenizer.json`.

  Args:
    spec: HF's format. Padding, truncation and post-processing are dropped: rows are laid out elsewhere.
    roles: role -> token. These tokens are special whether the spec says so or not.
    counts: of each token, or of all but the last ones, which are new.
    record: how it was trained.
    model: as in `Vocab`.

  Raises:
    ValueError: a kind of tokenizer that is not read here, ids with holes, no such token, or nothing to pad with.
  """
  spec = dict(sorted({**spec, 'truncation': None, 'padding': None, 'post_processor': None}.items()))
  kind = specs.kind_of(spec)
  ids = specs.token_ids(spec)
  tokens = tuple(sorted(ids, key=ids.__getitem__))
  if [ids[token] for token in tokens] != list(range(len(ids))):
    raise ValueError(f'the ids of its {len(ids)} tokens do not run from 0 to {len(ids) - 1} without holes')
  roles = specs.complete_roles(roles, ids)
  unmarked = sorted(set(roles.values()) - specs.special_tokens(spec), key=ids.__getitem__)
  marked = specs.added_tokens({token: ids[token] for token in unmarked}, kind=kind, mask=roles.get('mask'))
  others = [item for item in spec['added_tokens'] if item['content'] not in unmarked]
  spec['added_tokens'] = sorted([*others, *marked], key=lambda item: item['id'])
  specials = tuple(sorted(ids[token] for token in specs.special_tokens(spec)))
  starts_word, num_bytes = specs.extent(spec, tokens, set(specials))
  if counts is not None:
    counts = np.concatenate([np.asarray(counts, np.int64), np.zeros(len(tokens) - len(counts), np.int64)])
  return Vocab(
    kind=kind,
    content=json.dumps(spec, ensure_ascii=False),
    roles=roles,
    tokens=tokens,
    special_ids=specials,
    starts_word=starts_word,
    num_bytes=num_bytes,
    counts=counts,
    record=dict(record or {}),
    digest=specs.digest(spec, roles),
    model=model,
  )


def load(
  path: str | Path,
  *,
  kind: str | None = None,
  extra: Sequence[str] = (),
  roles: Mapping[str, str] | None = None,
) -> Vocab:
  """Reads a vocabulary folder, a folder with a published `tokenizer.json`, or such a file.

  Args:
    path: the folder or file.
    kind: what it has to be; None takes every kind.
    extra: special tokens to append with new ids, in this order; one that is there already keeps its id.
    roles: role -> token, over what the folder says or the well-known names suggest.

  Raises:
    FileNotFoundError: nothing there; the message has the command that makes one.
    ValueError: damaged, of another kind, or of ambiguous roles.
  """
  path = files.path(path)
  file = published.find(path)
  if file is None:
    raise FileNotFoundError(f'vocab.path: there is no vocabulary in {path}. {recipe.cure(path, kind=kind)}')
  try:
    return _load(file, kind=kind, extra=extra, roles=roles or {})
  except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
    what = str(error) if isinstance(error, ValueError) else f'is damaged ({type(error).__name__}: {error})'
    raise ValueError(f'vocab.path: {path} {what}') from error


def around(vocab: Vocab, *, separators: int, typed: bool) -> 'types.Template':
  """The usual form of a row: cls A sep (B sep).

  Args:
    vocab: with both tokens.
    separators: between two texts.
    typed: whether the second text has type 1.
  """
  from plm_jax.core.types import Template  # loads jax

  cls_id, sep_id, second = vocab.cls_id, vocab.sep_id, int(typed)
  assert cls_id is not None and sep_id is not None
  single: list[Any] = [(cls_id, 0), ('A', 0), (sep_id, 0)]
  between = [(sep_id, 0)] * (separators - 1)
  return Template(tuple(single), (*single, *between, ('B', second), (sep_id, second)))


def marked(path: str | Path, *, template: 'types.Template | None' = None) -> tokenizers.Tokenizer:
  """What a folder has published, special tokens around a text included, as the library of HF reads it.

  Args:
    path: the folder.
    template: what stands around a text, in place of what the folder says.

  Raises:
    FileNotFoundError, ValueError: as `load`.
  """
  spec = {**published.read_folder(files.path(path)).spec, 'truncation': None, 'padding': None}
  if template is not None:
    spec = specs.with_template(spec, template.single, template.pair)
  try:
    probe.check(spec)
    return tokenizers.Tokenizer.from_str(json.dumps(spec, ensure_ascii=False))
  except ValueError:
    raise
  except Exception as error:  # the library raises no other, and of its own parts anything may be missing
    raise ValueError(f'{path} holds a tokenizer that cannot be used: {type(error).__name__}: {error}') from error


def exists(path: str | Path) -> bool:
  """True where `load` finds something to read."""
  return published.find(files.path(path)) is not None


def check_compatible(new: 'types.Vocab', old: 'types.Vocab') -> tuple[str, ...]:
  """The tokens that `new` has after those of `old`, with ids from `old.size` on; empty if they are the same.

  Roles may differ: what an id means to the parameters is its token and the rules that choose it.

  Raises:
    ValueError: parameters trained with `old` would have another meaning with `new`; says where the two first differ.
  """
  if reason := _difference(new, old):
    raise ValueError(f'vocabulary {new.digest[:12]} does not continue {old.digest[:12]}: {reason}')
  return tuple(new.token(token_id) for token_id in range(old.size, new.size))


def count(vocab: Vocab, documents: Iterable[str]) -> np.ndarray:
  """How often each token occurs in the documents: int64[size]."""
  total = np.zeros(vocab.size, np.int64)
  for texts in _batches(documents):
    ids = np.concatenate([np.asarray(row, np.int64) for row in vocab.encode_batch(texts)])
    total += np.bincount(ids, minlength=vocab.size)
  return total


def _load(file: Path, *, kind: str | None, extra: Sequence[str], roles: Mapping[str, str]) -> Vocab:
  content, named = published.read(file)
  spec: Spec = content
  found = specs.kind_of(spec)
  if kind not in (None, found):
    raise ValueError(f'holds a {found} vocabulary, not a {kind} one: set vocab.name={found!r}')
  facts = _facts(file)
  known = facts['roles'] if facts else _known_roles(spec, named, decided=roles)
  if facts and assemble(spec, roles=known).digest != facts['digest']:
    raise ValueError('has a vocab.json with another digest than that of its tokenizer.json: one was changed by hand')
  for name, known_sha256 in facts.get('sha256_of_files', {}).items():
    if not files.is_file(file.parent / name) or files.sha256(file.parent / name) not in known_sha256:
      raise ValueError(f'is damaged ({name} was changed since it was saved: its sha256 is another)')
  extra = [token for token in dict.fromkeys(extra) if token not in specs.special_tokens(spec)]
  well_known = [role for role, token in known.items() if token in specs.ROLES[role]]
  known = {**known, **specs.guess_roles(extra, decided={*well_known, *roles}), **roles}
  spec = specs.append(spec, extra, mask=known.get('mask'))
  record, counts = (facts['record'], facts['counts']) if facts else (None, None)
  model = files.read_bytes(file.parent / MODEL) if facts and files.is_file(file.parent / MODEL) else None
  vocab = assemble(spec, roles=known, counts=counts, record=record, model=model)
  probe.check(json.loads(vocab.content))
  try:
    for text in probe.TEXTS:
      vocab.encode(text)
      vocab.encode(text, specials=True)
  except Exception as error:  # the library raises no other
    raise ValueError(f'holds a tokenizer that cannot be used: {error}') from error
  return vocab


def _facts(file: Path) -> Spec:
  """`vocab.json` of a folder of this package; empty for GPT-2, whose file of that name is the table of tokens."""
  beside = file.parent / 'vocab.json'
  facts = published.read_table(beside) if file.name == published.TOKENIZER and files.exists(beside) else {}
  if not isinstance(facts.get('roles'), dict):
    return {}
  if not checksums.holds(facts):
    raise ValueError('is damaged (vocab.json was changed since it was saved: its sha256 is another)')
  return facts


def _known_roles(spec: Spec, named: Mapping[str, str], *, decided: Collection[str]) -> dict[str, str]:
  """Role -> token of a published vocabulary: as its settings name them, and by the well-known names where they do not.

  A token that has another role already is also the one to pad with, the unknown one or the mask only where a
  well-known name would be so in its place.
  """
  ids = specs.token_ids(spec)
  named = {role: token for role, token in named.items() if token in ids and role not in decided}
  ambiguous = {role for role in named if sum(name in ids for name in specs.ROLES[role]) > 1}
  guessed = specs.guess_roles(ids, decided={*decided, *ambiguous})
  known = guessed | {role: token for role, token in named.items() if role in ambiguous or role in guessed}
  for role, token in named.items():
    if role not in known and (role in ('bos', 'eos', 'cls', 'sep') or token not in known.values()):
      known[role] = token
  if not {'pad', 'eos', 'sep'} & known.keys() and 'pad' in named:
    known['pad'] = named['pad']  # a token with another role too, where none can stand in
  return known


def _difference(new: 'types.Vocab', old: 'types.Vocab') -> str | None:
  for token_id in range(min(new.size, old.size)):
    if new.token(token_id) != old.token(token_id):
      return f'id {token_id} is {new.token(token_id)!r} and was {old.token(token_id)!r}'
  if new.size < old.size:
    return f'id {new.size} is gone, it was {old.token(new.size)!r}'
  if new.digest == old.digest:
    return None
  if not (isinstance(new, Vocab) and isinstance(old, Vocab)):
    return 'the ids are the same, the rules that choose them differ'
  now, then = specs.rules(json.loads(new.content)), specs.rules(json.loads(old.content))
  now['added_tokens'] = [item for item in now['added_tokens'] if item['id'] < old.size]
  parts = [part for part in then if now[part] != then[part]]
  return f'the ids are the same, the rules that choose them differ ({", ".join(parts)})' if parts else None


def _batches(documents: Iterable[str]) -> Iterator[list[str]]:
  """Lists of bounded size, so that the ids of only one are in memory."""
  texts: list[str] = []
  characters = 0
  for document in documents:
    texts.append(document)
    characters += len(document)
    if characters >= _BATCH_CHARACTERS:
      yield texts
      texts, characters = [], 0
  if texts:
    yield texts
