"""SentencePiece, the vocabularies of T5, ALBERT, XLNet, DeBERTa 2 and 3 and LLaMA (Kudo & Richardson 2018).

White space is part of the text, written ▁, and one is added before the first word; so texts of any language are split
without rules for words. Unigram models (Kudo 2018) choose the most probable segmentation; LLaMA merges pairs, and
spells characters without a piece in bytes. Such vocabularies come with published weights as `tokenizer.json`, and are
read here, not trained.
"""

from collections.abc import Mapping

from plm_jax.text import tokenizer
from plm_jax.text.tokenizer import Vocab


def make(*, path: str, extra: tuple[str, ...] = (), roles: Mapping[str, str] | None = None) -> Vocab:
  """Reads a SentencePiece vocabulary.

  Args:
    path: a folder with a published `tokenizer.json`, such a file, or the `vocab/` of a run.
    extra: special tokens to append, with ids behind all others.
    roles: role -> token, where the names leave it open, e.g. dict(pad='</s>').

  Raises:
    FileNotFoundError, ValueError: as `tokenizer.load`.
  """
  return tokenizer.load(path, kind='sentencepiece', extra=extra, roles=roles)
