"""The documents of a corpus as token ids: what all row sources of plain text begin with."""

import logging

from plm_jax.data.corpora.records import Texts
from plm_jax.data.rows import store
from plm_jax.types import Vocab

log = logging.getLogger(__name__)


def tokenised(texts: Texts, *, vocab: Vocab, cache: str) -> store.Tokens:
  """Tokenises the documents that `sources.documents` returns, once.

  Args:
    texts: of the corpus.
    vocab: gives ids.
    cache: folder for token stores.

  Raises:
    ValueError: there is no text.
  """
  where = texts.records.where
  if texts.stats is not None:
    log.info(f'{where}: {texts.stats}')
  tokens = store.on_disk(texts, vocab=vocab, cache=cache)
  if not len(tokens.ids):
    raise ValueError(f'{where} has no text: {len(texts)} documents, 0 tokens.')
  return tokens
