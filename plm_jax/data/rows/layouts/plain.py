"""[beginning token] A end (B end), for models without special tokens for tasks."""

from plm_jax.core.types import Vocab
from plm_jax.data.rows import framing
from plm_jax.data.rows.framing import Layout


def make(*, vocab: Vocab, fields: int) -> Layout:
  """Build the layout of fields; omit a missing beginning token."""
  end = framing.needed(framing.end_of_text(vocab), 'end')
  first = () if vocab.bos_id is None else (vocab.bos_id,)
  return Layout(framing.around(fields, first=first, between=(end,), last=(end,)), stands_last=True)
