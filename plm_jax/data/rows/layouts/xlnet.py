"""A <sep> (B <sep>) <cls>, type_ids 0 for A <sep>, 1 for B <sep>, 2 for <cls> (Yang et al. 2019, §2.5)."""

from plm_jax.data.rows import framing
from plm_jax.data.rows.packing import Frame
from plm_jax.types import Vocab

TYPED = True
LAST_TYPE = 2


def frames(vocab: Vocab, fields: int) -> tuple[Frame, ...]:
  """The special tokens around each field."""
  cls, sep = framing.needed(vocab.cls_id, '<cls>'), framing.needed(vocab.sep_id, '<sep>')
  return framing.around(fields, between=(sep,), last=(sep, cls))
