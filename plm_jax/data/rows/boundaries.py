"""Sentences of a stored corpus: each starts where the rule `data.sentences` (`sentences/`) or a document begins."""

import functools
import itertools
import logging
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from plm_jax.config import build, signatures
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Vocab
from plm_jax.data.rows import store
from plm_jax.data.rows.cached import cached
from plm_jax.io import files

log = logging.getLogger(__name__)
RULE = 'punctuation'  # of sources that name none
_FOLDER = 'data.rows.sentences'
_NAMING = dict(key='data.sentences', ours='line, punctuation, both, any_script')
_RULES = ('line', 'punctuation', 'both', 'any_script')  # those that a message proposes
_MANY = 0.25  # share of single sentences that is reported


@functools.cache
def rule_of(name: str) -> Any:
  """Return the file of a rule, also of a user's 'module:function'.

  Raises ConfigError if there is neither, or its module does not list the function in `SENTENCES`.
  """
  if ':' in name:
    return types.SimpleNamespace(starts=build.of_yours(name, table='SENTENCES', **_NAMING))
  errors.check_choice('data.sentences', 'rule', name, signatures.places(_FOLDER))
  return build.import_file(f'{_FOLDER}.{name}')


def key(name: str) -> tuple[str, ...]:
  """Return the parts of a digest for a rule."""
  if name == RULE:
    return ()
  file = build.file_of_yours(name, **_NAMING) if ':' in name else files.path(rule_of(name).__file__)
  return 'sentences', name, files.sha256(file)


def by_text(tokens: store.Tokens, texts: store.Texts, *, vocab: Vocab, name: str) -> np.ndarray | None:
  """Find the tokens, int64, at which a sentence of the text starts.

  None if the rule reads no text. The result is stored next to the tokens.
  """
  starts = getattr(rule_of(name), 'starts', None)
  if starts is None:
    return None

  def make() -> dict[str, np.ndarray]:
    at = [_tokens_at(tokens, texts, index, vocab=vocab, starts=starts) for index in range(len(texts))]
    return {'starts': np.concatenate([np.zeros(0, np.int64), *at])}

  return cached(tokens, f'sentences-{store.digest_of(*key(name))[:16]}', make)['starts']


def _tokens_at(
  tokens: store.Tokens, texts: store.Texts, index: int, *, vocab: Vocab, starts: Callable[[str], list[int]]
) -> np.ndarray:
  text, (low, high) = texts[index], tokens.offsets[index : index + 2]
  found = list(starts(text))
  if not all(isinstance(cut, int) for cut in found):
    raise ConfigError(f'data.sentences returned {str(found)[:40]}: return the indices of characters, as [14, 40]')
  if not (cuts := sorted({cut for cut in found if 0 < cut < len(text)})):
    return np.zeros(0, np.int64)
  # 1. Most vocabularies read sentences one by one as they read the whole text.
  encoded = vocab.encode_batch([text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])])
  if np.array_equal(list(itertools.chain(*encoded)), tokens.ids[low:high]):
    return low + np.cumsum([len(ids) for ids in encoded[:-1]])
  # 2. Others: a token belongs to the sentence with its last character.
  ends = np.maximum.accumulate([end for _, end in vocab.encode_offsets(text)[1]])
  return low + np.searchsorted(ends, cuts, side='right')


def sentences(
  ids: 'store.AnyIds',
  offsets: np.ndarray,
  *,
  vocab: Vocab,
  longest: int,
  rule: str = RULE,
  starts: np.ndarray | None = None,
) -> np.ndarray:
  """Find the starts of sentences and the end, int64[sentences+1], ascending.

  A sentence begins wherever the rule, a file of `sentences/`, finds one, and wherever a document begins. `ids` [n] are
  documents end to end, `offsets` int64[documents+1] the start of each. Sentences of more than `longest` tokens are cut.
  `starts` are those of `by_text` for this rule.
  """
  of_ids = getattr(rule_of(rule), 'of_ids', None)
  begun = [] if starts is None else [starts[starts < len(ids)]]
  begun += [of_ids(ids, vocab=vocab)] if of_ids else []
  return cut(np.unique(np.concatenate([*begun, offsets, np.zeros(1, np.int64)])), longest=longest)


def cut(starts: np.ndarray, *, longest: int) -> np.ndarray:
  """Cut the sentences of more than `longest` tokens."""
  pieces = -(-np.diff(starts) // longest)
  index = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)  # index of a piece in its sentence
  return np.append(np.repeat(starts[:-1], pieces) + longest * index, starts[-1])


def check(rule: str, single: Callable[[str], tuple[int, int]], *, what: str, so: str, where: str, stop: bool) -> None:
  """Check that not everything is a single sentence, and warn of many.

  `single` maps a rule to the number of `what` (examples or documents) of a single sentence, and their total number.
  Messages name the corpus, `where`, and the consequence, `so`. Raises ValueError if all are, and `stop`.
  """
  alone, total = single(rule)
  if alone <= _MANY * total:
    return
  every = {other: int.__truediv__(*single(other)) for other in _RULES if other != rule} if 2 * alone > total else {}
  better = [name for name, share in every.items() if share < alone / total / (1 + (alone < total))]
  fix = f'; set data.sentences={min(better, key=every.__getitem__)!r}' if better else ''
  if alone == total and not fix:
    fix = "; set data.documents='blank_line' and data.sentences='line'"
    if rule == 'line':
      fix = (
        '; write a sentence a line and a blank line after each document, or set data.sentences to a function of yours'
      )
  count = f'all {total:,}' if alone == total else f'{alone:,} of {total:,}'
  message = f'{where}: {count} {what} are a single sentence (data.sentences={rule!r}): {so}{fix}.'
  if stop and alone == total:
    raise ValueError(message)
  log.warning(message)


def documents(starts: np.ndarray, offsets: np.ndarray) -> np.ndarray:
  """Return each non-empty document's first sentence and the total, int64[documents+1]."""
  return np.searchsorted(starts, np.unique(offsets))
