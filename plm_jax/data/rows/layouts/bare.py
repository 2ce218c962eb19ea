"""A (B) without special tokens: a prompt that a decoder continues (Radford et al. 2019, §3.7)."""

from plm_jax.core.types import Vocab
from plm_jax.data.rows import framing
from plm_jax.data.rows.framing import Layout


def make(*, vocab: Vocab, fields: int) -> Layout:
  """Build the layout without special tokens."""
  return Layout(framing.around(fields))
