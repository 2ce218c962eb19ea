"""SentencePiece, the vocabularies of T5, ALBERT, XLNet, DeBERTa 2 and 3 and LLaMA (Kudo & Richardson 2018).

White space is part of the text, written ▁, and one stands before the first word; so texts of any language are cut
without rules for words. Unigram models (Kudo 2018) choose the likeliest cut; LLaMA merges pairs, and spells what it has
no piece for in bytes. Such vocabularies come with published weights as `tokenizer.json`, and are read here.
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
