"""The documents of a corpus as token ids: what all row sources of plain text begin with."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from plm_jax.data.corpora import sources, splits
from plm_jax.data.corpora.formats.txt import Boundary
from plm_jax.data.rows import store
from plm_jax.types import Labels, Vocab

log = logging.getLogger(__name__)


def look(
  path: str,
  *,
  split: str = 'train',
  cache: str = sources.CACHE,
  text: str | None = None,
  documents: Boundary = 'blank_line',
  **rest: Any,
) -> Labels:
  """Raises ValueError where there is no such text or split, before anything is tokenised; as in `tokenised`."""
  del rest
  rows = splits.without_tokens(split, path=path)
  if sources.opens_quickly(path, split=rows):
    sources.documents(path, split=rows, cache=cache, text=text, documents=documents)
  return Labels()


def tokenised(
  path: str,
  *,
  split: str,
  vocab: Vocab,
  cache: str,
  text: str | None,
  documents: Boundary,
  quality: Mapping[str, Any] | None,
) -> store.Tokens:
  """Tokenises the text of `path`, once; arguments as in `stream.make`.

  Raises:
    ValueError: there is no text; and as `sources.documents`.
  """
  rows = splits.without_tokens(split, path=path)
  texts = sources.documents(path, split=rows, cache=cache, text=text, documents=documents, quality=quality)
  if quality is not None:
    log.info(f'{path} ({split}): {texts.stats}')
  tokens = store.on_disk(texts, vocab=vocab, cache=cache)
  if not len(tokens.ids):
    raise ValueError(f'{path} ({split}) has no text: {len(texts)} documents, 0 tokens.')
  part = splits.tokens_of(split, path=path, tokens=len(tokens.ids))
  return tokens if part is None else cut(tokens, part)


def cut(tokens: store.Tokens, part: range) -> store.Tokens:
  """Some of the tokens, from one place of the text to another; documents at its ends may be cut in two."""
  offsets = np.clip(tokens.offsets, part.start, part.stop)
  inside = np.diff(offsets) > 0  # a document of which nothing is left is no empty document
  offsets = np.append(offsets[:-1][inside], part.stop) - part.start
  digest = store.digest_of(tokens.digest, 'tokens', part.start, part.stop)
  return tokens._replace(ids=tokens.ids[part.start : part.stop], offsets=offsets, digest=digest)
