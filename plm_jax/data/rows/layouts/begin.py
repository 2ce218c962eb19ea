"""<s> A (<s> B): each text begins anew and nothing ends it (Touvron et al. 2023; LLaMA's tokenizer)."""

from plm_jax.core.types import Vocab
from plm_jax.data.rows import framing
from plm_jax.data.rows.framing import Layout


def make(*, vocab: Vocab, fields: int) -> Layout:
  """The token that begins a text before each of so many fields."""
  begin = (framing.needed(vocab.bos_id, 'beginning'),)
  return Layout(framing.around(fields, first=begin, between=begin))
