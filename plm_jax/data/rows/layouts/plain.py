"""[beginning token] A end (B end), for models without tokens of their own for tasks."""

from plm_jax.core.types import Vocab
from plm_jax.data.rows import framing
from plm_jax.data.rows.framing import Layout


def make(*, vocab: Vocab, fields: int) -> Layout:
  """The special tokens around each of so many fields; the beginning token only where the vocabulary has one."""
  end = framing.needed(vocab.sep_id if vocab.eos_id is None else vocab.eos_id, 'end')
  first = () if vocab.bos_id is None else (vocab.bos_id,)
  return Layout(framing.around(fields, first=first, between=(end,), last=(end,)), stands_last=True)
