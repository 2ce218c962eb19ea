"""A (B), each a separate sentence without special tokens: the model adds both ends of a sentence (ELMo)."""

from plm_jax.core.types import Vocab
from plm_jax.data.rows import framing
from plm_jax.data.rows.framing import Layout


def make(*, vocab: Vocab, fields: int) -> Layout:
  """Build the layout; each field has its own segment id."""
  return Layout(framing.around(fields), typed=True, apart=True)
