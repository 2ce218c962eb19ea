"""<s> A (<s> B): a begin token for each text and no end token (Touvron et al. 2023; LLaMA's tokenizer)."""

from plm_jax.core.types import Vocab
from plm_jax.data.rows import framing
from plm_jax.data.rows.framing import Layout


def make(*, vocab: Vocab, fields: int) -> Layout:
  """Build the layout with a begin token before each field."""
  begin = (framing.needed(vocab.bos_id, 'beginning'),)
  return Layout(framing.around(fields, first=begin, between=begin))
