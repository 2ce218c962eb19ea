"""A (B) with nothing around them: a prompt that a decoder goes on with (Radford et al. 2019, §3.7)."""

from plm_jax.core.types import Vocab
from plm_jax.data.rows import framing
from plm_jax.data.rows.framing import Layout


def make(*, vocab: Vocab, fields: int) -> Layout:
  """No special token around any of so many fields."""
  del vocab
  return Layout(framing.around(fields))
