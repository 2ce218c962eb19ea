"""[CLS] A [SEP] (B [SEP]), type_ids 0 through the first [SEP], then 1 (Devlin et al. 2019, §3.2)."""

from plm_jax.data.rows import framing
from plm_jax.data.rows.packing import Frame
from plm_jax.types import Vocab

TYPED = True
LAST_TYPE = None


def frames(vocab: Vocab, fields: int) -> tuple[Frame, ...]:
  """The special tokens around each field."""
  cls, sep = framing.needed(vocab.cls_id, '[CLS]'), framing.needed(vocab.sep_id, '[SEP]')
  return framing.around(fields, first=(cls,), between=(sep,), last=(sep,))
