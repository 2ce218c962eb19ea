"""The documents of a corpus as token ids: what all row sources of plain text begin with."""

import logging
from collections.abc import Mapping
from typing import Any

from plm_jax.data.corpora import sources
from plm_jax.data.corpora.formats.txt import Boundary
from plm_jax.data.rows import store
from plm_jax.types import Vocab

log = logging.getLogger(__name__)


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
  texts = sources.documents(path, split=split, cache=cache, text=text, documents=documents, quality=quality)
  if quality is not None:
    log.info(f'{path} ({split}): {texts.stats}')
  tokens = store.on_disk(texts, vocab=vocab, cache=cache)
  if not len(tokens.ids):
    raise ValueError(f'{path} ({split}) has no text: {len(texts)} documents, 0 tokens.')
  return tokens
