"""Vocabularies of all kinds, based on HF `tokenizers`: load, build and compare them.

A vocabulary is a folder of two files. `tokenizer.json` is in HF's format, which other tools read. `vocab.json` has the
digest, the roles of the special tokens, the token counts of the training text and how it was trained. A published
`tokenizer.json` alone is read too. Nothing here trains a vocabulary: the ids of a run are those of one such folder.
"""

import functools
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
  """Build a vocabulary from the content of a `tokenizer.json`.

  Args:
    spec: HF's format. Padding and truncation are dropped: sequences are laid out elsewhere.
    roles: role -> token. These tokens are special even if the spec does not mark them.
    counts: of each token, or of all except the last ones, which are new.
    record: how it was trained.
    model: as in `Vocab`.

  Raises:
    ValueError: an unsupported kind of tokenizer, ids with gaps, no such token, or no padding token.
  """
  processor = spec.get('post_processor')
  spec = dict(sorted({**spec, 'truncation': None, 'padding': None, 'post_processor': None}.items()))
  kind = specs.kind_of(spec)
  ids = specs.token_ids(spec)
  tokens = tuple(sorted(ids, key=ids.__getitem__))
  if [ids[token] for token in tokens] != list(range(len(ids))):
    raise ValueError(f'the ids of its {len(ids)} tokens are not 0 to {len(ids) - 1} without holes')
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
    processor=processor,
  )


def load(
  path: str | Path, *, kind: str | None = None, extra: Sequence[str] = (), roles: Mapping[str, str] | None = None
) -> Vocab:
  """Load a vocabulary folder, or a published folder or `tokenizer.json`.

  Args:
    kind: the required kind; None accepts every kind.
    extra: special tokens to append with new ids, in this order; an existing one keeps its id.
    roles: role -> token; overrides the folder and the well-known names.

  Raises:
    FileNotFoundError: none found; the message has the command that trains one.
    ValueError: damaged, of another kind, or of ambiguous roles.
  """
  path = files.path(path)
  file = published.find(path)
  if file is None:
    raise FileNotFoundError(f'vocab.path: no vocabulary in {path}. {recipe.fix(path, kind=kind)}')
  try:
    return _load(file, kind=kind, extra=extra, roles=roles or {})
  except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
    problem = str(error) if isinstance(error, ValueError) else f'is damaged ({type(error).__name__}: {error})'
    raise ValueError(f'vocab.path: {path} {problem}') from error


def around(vocab: Vocab, *, separators: int, typed: bool) -> 'types.Template':
  """Build the usual form of inputs: cls A sep (B sep).

  There are `separators` between two texts; with `typed` the second one has type 1.
  """
  from plm_jax.core.types import Template  # loads jax

  cls_id, sep_id, second = vocab.cls_id, vocab.sep_id, int(typed)
  assert cls_id is not None and sep_id is not None
  single: list[Any] = [(cls_id, 0), ('A', 0), (sep_id, 0)]
  between = [(sep_id, 0)] * (separators - 1)
  return Template(tuple(single), (*single, *between, ('B', second), (sep_id, second)))


def marked(path: str | Path, *, template: 'types.Template | None' = None) -> tokenizers.Tokenizer:
  """Load a published tokenizer with its special tokens, as HF's library.

  It raises as `load`. `template` has the special tokens around a text, instead of those of the folder.
  """
  spec = {**published.read_folder(files.path(path)).spec, 'truncation': None, 'padding': None}
  if template is not None:
    spec = specs.with_template(spec, template.single, template.pair)
  try:
    probe.check(spec)
    return tokenizers.Tokenizer.from_str(json.dumps(spec, ensure_ascii=False))
  except ValueError:
    raise
  except Exception as error:  # the library raises Exception itself; parts may be missing
    raise ValueError(f'{path} has a tokenizer that cannot be used: {type(error).__name__}: {error}') from error


def exists(path: str | Path) -> bool:
  """Check whether `load` finds a vocabulary."""
  return published.find(files.path(path)) is not None


def check_compatible(new: 'types.Vocab', old: 'types.Vocab') -> tuple[str, ...]:
  """Return the tokens that `new` has after those of `old`.

  Their ids begin at `old.size`; the same vocabularies give none. Roles may differ: to the parameters, the meaning of an
  id is its token and the rules that choose it.

  Raises:
    ValueError: parameters trained with `old` would have another meaning with `new`; the message has the first
      difference.
  """
  if reason := _difference(new, old):
    raise ValueError(f'vocabulary {new.digest[:12]} does not continue {old.digest[:12]}: {reason}')
  return tuple(new.token(token_id) for token_id in range(old.size, new.size))


def same(asked: Any, kept: Any) -> bool:
  """Check whether a vocabulary is the one of a run, perhaps older."""
  spec = json.loads(asked.content)
  rules = [specs.rules(each) for each in (json.loads(kept.content), spec, specs.without_joined_marks(spec))]
  own, *others = [{part: rule[part] for part in rule if part != 'added_tokens'} for rule in rules]  # flags were guessed
  return asked.digest == kept.digest or (own in others and (asked.tokens, asked.roles) == (kept.tokens, kept.roles))


def count(vocab: Vocab, documents: Iterable[str]) -> np.ndarray:
  """Count each token in the documents: int64[size]."""
  total = np.zeros(vocab.size, np.int64)
  for texts in _batches(documents):
    ids = np.concatenate([np.asarray(row, np.int64) for row in vocab.encode_batch(texts)])
    total += np.bincount(ids, minlength=vocab.size)
  return total


def _load(file: Path, *, kind: str | None, extra: Sequence[str], roles: Mapping[str, str]) -> Vocab:
  content, named = published.read(file)
  spec: Spec = content
  found_kind = specs.kind_of(spec)
  if kind not in (None, found_kind):
    raise ValueError(f'has a {found_kind} vocabulary, not a {kind} one: set vocab.name={found_kind!r}')
  facts = _facts(file)
  all_roles = facts['roles'] if facts else _known_roles(spec, named, decided=roles)
  if facts and assemble(spec, roles=all_roles).digest != facts['digest']:
    raise ValueError('has a vocab.json whose digest is not that of tokenizer.json: restore the file that was edited')
  for name, expected in facts.get('sha256_of_files', {}).items():
    if not files.is_file(file.parent / name) or files.sha256(file.parent / name) not in expected:
      raise ValueError(f'is damaged ({name} was changed after it was saved: other sha256)')
  extra = [token for token in dict.fromkeys(extra) if token not in specs.special_tokens(spec)]
  well_known = [role for role, token in all_roles.items() if token in specs.ROLES[role]]
  all_roles = {**all_roles, **specs.guess_roles(extra, decided={*well_known, *roles}), **roles}
  spec = specs.append(spec, extra, mask=all_roles.get('mask'))
  record, counts = (facts['record'], facts['counts']) if facts else (None, None)
  model = files.read_bytes(file.parent / MODEL) if facts and files.is_file(file.parent / MODEL) else None
  return _tried(json.dumps(dict(spec=spec, roles=all_roles, counts=counts, record=record)), model)


@functools.lru_cache(maxsize=2)  # a command reads its vocabulary several times, and each time the files
def _tried(content: str, model: bytes | None) -> Vocab:
  """Assemble a vocabulary from keywords as JSON, and encode some texts."""
  vocab = assemble(**json.loads(content), model=model)
  probe.check(json.loads(vocab.content))
  try:
    for text in probe.TEXTS:
      vocab.encode(text)
      vocab.encode(text, specials=True)
  except Exception as error:  # the library raises Exception itself
    raise ValueError(f'has a tokenizer that cannot be used: {error}') from error
  return vocab


def _facts(file: Path) -> Spec:
  """Read `vocab.json` of this package; empty for GPT-2's token table."""
  facts_file = file.parent / 'vocab.json'
  facts = published.read_table(facts_file) if file.name == published.TOKENIZER and files.exists(facts_file) else {}
  if not isinstance(facts.get('roles'), dict):
    return {}
  if not checksums.holds(facts):
    raise ValueError('is damaged (vocab.json was changed after it was saved: other sha256)')
  return facts


def _known_roles(spec: Spec, named: Mapping[str, str], *, decided: Collection[str]) -> dict[str, str]:
  """Map roles to a published vocabulary's tokens; settings precede well-known names.

  A token that has another role is the padding, unknown or mask token only if a well-known name has that role.
  """
  ids = specs.token_ids(spec)
  named = {role: token for role, token in named.items() if token in ids and role not in decided}
  ambiguous = {role for role in named if sum(name in ids for name in specs.ROLES[role]) > 1}
  guessed = specs.guess_roles(ids, decided={*decided, *ambiguous})
  roles = guessed | {role: token for role, token in named.items() if role in ambiguous or role in guessed}
  for role, token in named.items():
    if role not in roles and (role in ('bos', 'eos', 'cls', 'sep') or token not in roles.values()):
      roles[role] = token
  if not {'pad', 'eos', 'sep'} & roles.keys() and 'pad' in named:
    roles['pad'] = named['pad']  # a token with another role, if no other can pad
  return roles


def _difference(new: 'types.Vocab', old: 'types.Vocab') -> str | None:
  for token_id in range(min(new.size, old.size)):
    if new.token(token_id) != old.token(token_id):
      return f'id {token_id} is {new.token(token_id)!r} and was {old.token(token_id)!r}'
  if new.size < old.size:
    return f'id {new.size} is missing, it was {old.token(new.size)!r}'
  if new.digest == old.digest:
    return None
  if not (isinstance(new, Vocab) and isinstance(old, Vocab)):
    return 'the tokens are the same, but their rules differ'
  now, then = (specs.rules(specs.without_joined_marks(json.loads(each.content))) for each in (new, old))
  now['added_tokens'] = [item for item in now['added_tokens'] if item['id'] < old.size]
  parts = [part for part in then if now[part] != then[part]]
  return f'the tokens are the same, but their rules differ ({", ".join(parts)})' if parts else None


def _batches(documents: Iterable[str]) -> Iterator[list[str]]:
  """Yield lists of bounded size, to limit the ids in memory."""
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
