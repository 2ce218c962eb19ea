"""A (B) end: the fields run on as one text, nothing stands before it (Raffel et al. 2019, §2.4)."""

from plm_jax.core.types import Vocab
from plm_jax.data.rows import framing
from plm_jax.data.rows.framing import Layout


def make(*, vocab: Vocab, fields: int) -> Layout:
  """The end token behind the last of so many fields."""
  end = framing.needed(vocab.sep_id if vocab.eos_id is None else vocab.eos_id, 'end')
  return Layout(framing.around(fields, last=(end,)))
