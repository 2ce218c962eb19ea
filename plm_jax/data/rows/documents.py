"""The documents of a corpus as token ids: what all row sources of plain text begin with."""

import logging
from typing import Any

import numpy as np

from plm_jax.core.types import Labels, Vocab
from plm_jax.data.corpora import sources, splits
from plm_jax.data.rows import spelling, store

log = logging.getLogger(__name__)
READ = ('cache', 'text', 'documents', 'max_bytes')  # keywords of row sources that `sources.documents` takes too


def look(path: str, *, split: str = 'train', **settings: Any) -> Labels:
  """Raises ValueError where there is no such text or split, before anything is tokenised; as in `tokenised`."""
  if sources.opens_quickly(path, split=splits.without_tokens(split, path=path)):
    sources.documents(path, split=split, by_tokens=True, **{key: settings[key] for key in READ if key in settings})
  return Labels()


def tokenised(path: str, *, vocab: Vocab, cache: str, **settings: Any) -> store.Tokens:
  """Tokenises the documents of a corpus, once, and cuts them where a slice is by tokens.

  Args:
    path: of the text, as `sources.documents` takes it.
    vocab: gives ids.
    cache: folder for token stores, and for what is downloaded.
    settings: further keywords of `sources.documents`.

  Raises:
    ValueError: there is no text; and as `sources.documents`.
  """
  tokens, _, part = _whole(path, vocab=vocab, cache=cache, **settings)
  return tokens if part is None else cut(tokens, part)


def spelt(path: str, *, vocab: Vocab, cache: str, **settings: Any) -> tuple[store.Tokens, spelling.SpeltIds]:
  """`tokenised`, and its ids with the characters of their words; raises what `tokenised` and `chars.table` do."""
  tokens, texts, part = _whole(path, vocab=vocab, cache=cache, **settings)
  ids = spelling.spell(tokens, texts, vocab=vocab)
  return (tokens, ids) if part is None else (cut(tokens, part), ids.part(part))


def _whole(path: str, *, vocab: Vocab, cache: str, **settings: Any) -> tuple[store.Tokens, store.Texts, range | None]:
  """All tokens of a corpus, its documents, and the part of the tokens that a slice leaves; None for all."""
  texts = sources.documents(path, cache=cache, by_tokens=True, **settings)
  where = texts.records.where
  if texts.stats is not None:
    log.info(f'{where}: {texts.stats}')
  tokens = store.on_disk(texts, vocab=vocab, cache=cache)
  if not len(tokens.ids):
    raise ValueError(f'{where} has no text: {len(texts)} documents, 0 tokens.')
  if texts.split is None:
    return tokens, texts, None
  return tokens, texts, splits.tokens_of(texts.split, path=where, tokens=len(tokens.ids))


def cut(tokens: store.Tokens, part: range) -> store.Tokens:
  """Some of the tokens, from one place of the text to another; documents at its ends may be cut in two."""
  offsets = np.clip(tokens.offsets, part.start, part.stop)
  inside = np.diff(offsets) > 0  # a document of which nothing is left is no empty document
  offsets = np.append(offsets[:-1][inside], part.stop) - part.start
  digest = store.digest_of(tokens.digest, 'tokens', part.start, part.stop)
  return tokens._replace(ids=tokens.ids[part.start : part.stop], offsets=offsets, digest=digest)
