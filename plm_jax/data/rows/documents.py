"""Token ids of the documents of a corpus: the first step of every source of plain text."""

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from plm_jax.core.types import Labels, Vocab
from plm_jax.data.corpora import sources, splits
from plm_jax.data.corpora.formats.txt import Boundary
from plm_jax.data.corpora.local import MAX_BYTES
from plm_jax.data.rows import boundaries, in_place, segments, spelling, store

log = logging.getLogger(__name__)
READ = ('cache', 'text', 'documents', 'max_bytes')  # keywords of row sources that `sources.documents` takes too


def look(path: str, *, split: str = 'train', **settings: Any) -> Labels:
  """Raise ValueError if the text or the split does not exist.

  Reads names only and tokenises nothing. Keywords as in `Corpus`.
  """
  segments.check(settings.get('segmenter'))
  boundaries.rule_of(settings.get('sentences') or boundaries.RULE)
  if sources.opens_quickly(path, split=splits.without_tokens(split, path=path)):
    sources.documents(path, split=split, by_tokens=True, **{key: settings[key] for key in READ if key in settings})
  return Labels()


class Corpus(NamedTuple):
  """Location and settings of a text. Each field is a keyword of `make`, documented in `plm_jax.data`."""

  path: str
  cache: str
  split: str = 'train'
  text: str | None = None
  documents: Boundary = 'blank_line'
  quality: Mapping[str, Any] | None = None
  max_bytes: int = MAX_BYTES
  near: bool = False  # True if the rows of consecutive batches are near each other, so that ids may be read in place

  def __str__(self) -> str:
    return f'{self.path} ({self.split})'

  def tokenise(self, vocab: Vocab) -> store.Tokens:
    """Tokenise once and apply the slice; raise ValueError for empty text."""
    tokens, _, part = self._whole(vocab)
    return tokens if part is None else cut(tokens, part)

  def tokenise_and_spell(self, vocab: Vocab) -> tuple[store.Tokens, spelling.SpeltIds]:
    """Return tokens and `SpeltIds`; raise ValueError as `tokenise` and `chars.table`."""
    tokens, texts, part = self._whole(vocab)
    ids = spelling.spell(tokens, texts, vocab=vocab)
    return (tokens, ids) if part is None else (cut(tokens, part), ids.part(part))

  def tokenise_and_segment(self, vocab: Vocab, segmenter: str) -> tuple[store.Tokens, segments.Marked]:
    """Return the tokens, and their ids with the marks of words."""
    tokens, texts, part = self._whole(vocab)
    ids = segments.mark(tokens, texts, vocab=vocab, name=segmenter)
    if part is None:
      return tokens, ids
    return cut(tokens, part), ids._replace(ids=ids.ids[part.start : part.stop], marks=ids.marks[part.start : part.stop])

  def tokenise_and_split(self, vocab: Vocab, rule: str) -> tuple[store.Tokens, np.ndarray | None]:
    """Return the tokens, and the positions of `boundaries.by_text`."""
    tokens, texts, part = self._whole(vocab)
    starts = boundaries.by_text(tokens, texts, vocab=vocab, name=rule)
    if part is None:
      return tokens, starts
    inside = None if starts is None else starts[(starts > part.start) & (starts < part.stop)] - part.start
    return cut(tokens, part), inside

  def _whole(self, vocab: Vocab) -> tuple[store.Tokens, store.Texts, range | None]:
    """Return unsliced tokens, documents, and the slice's tokens (None for all)."""
    settings = self._asdict()
    near = settings.pop('near')
    texts = sources.documents(by_tokens=True, **settings)
    where = texts.records.where
    if texts.stats is not None:
      log.info(f'{where}: {texts.stats}')
    tokens = store.on_disk(texts, vocab=vocab, cache=self.cache)
    in_place.check_near(tokens.ids, near=near, folder=tokens.folder, where=str(self))
    if not len(tokens.ids):
      raise ValueError(f'{where} has no text: {len(texts)} documents, 0 tokens.')
    if texts.split is None:
      return tokens, texts, None
    return tokens, texts, splits.tokens_of(texts.split, path=where, tokens=len(tokens.ids))


def cut(tokens: store.Tokens, part: range) -> store.Tokens:
  """Select a range of positions; its end documents may be cut."""
  offsets = np.clip(tokens.offsets, part.start, part.stop)
  inside = np.diff(offsets) > 0  # drop documents outside of the range
  offsets = np.append(offsets[:-1][inside], part.stop) - part.start  # [documents+1], from 0
  digest = store.digest_of(tokens.digest, 'tokens', part.start, part.stop)
  return tokens._replace(ids=tokens.ids[part.start : part.stop], offsets=offsets, digest=digest)
