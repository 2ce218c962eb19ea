"""A (B) end: the fields form one text, with an end token only (Raffel et al. 2019, §2.4)."""

from plm_jax.core.types import Vocab
from plm_jax.data.rows import framing
from plm_jax.data.rows.framing import Layout


def make(*, vocab: Vocab, fields: int) -> Layout:
  """Build the layout with an end token after the last field."""
  end = framing.needed(framing.end_of_text(vocab), 'end')
  return Layout(framing.around(fields, last=(end,)))
