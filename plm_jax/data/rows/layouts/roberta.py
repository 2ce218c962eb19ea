"""<s> A </s> (</s> B </s>), no type_ids (Liu et al. 2019; fairseq)."""

from plm_jax.data.rows import framing
from plm_jax.data.rows.packing import Frame
from plm_jax.types import Vocab

TYPED = False
LAST_TYPE = None


def frames(vocab: Vocab, fields: int) -> tuple[Frame, ...]:
  """The special tokens around each field."""
  cls, sep = framing.needed(vocab.cls_id, '<s>'), framing.needed(vocab.sep_id, '</s>')
  return framing.around(fields, first=(cls,), between=(sep, sep), last=(sep,))
