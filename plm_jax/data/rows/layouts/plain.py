"""[beginning token] A end (B end), for models without tokens of their own for tasks."""

from plm_jax.data.rows import framing
from plm_jax.data.rows.packing import Frame
from plm_jax.types import Vocab

TYPED = False
LAST_TYPE = None


def frames(vocab: Vocab, fields: int) -> tuple[Frame, ...]:
  """The special tokens around each field; the beginning token only where the vocabulary has one."""
  end = framing.needed(vocab.sep_id if vocab.eos_id is None else vocab.eos_id, 'end')
  first = () if vocab.bos_id is None else (vocab.bos_id,)
  return framing.around(fields, first=first, between=(end,), last=(end,))
