"""[CLS] A (B) and, behind a text that has no blank, the mask that is to be filled (Du et al. 2021, §2.4)."""

from plm_jax.core.types import Vocab
from plm_jax.data.rows import framing
from plm_jax.data.rows.framing import Layout


def make(*, vocab: Vocab, fields: int) -> Layout:
  """The special tokens around each of so many fields."""
  cls, mask = framing.needed(vocab.cls_id, '[CLS]'), framing.needed(vocab.mask_id, '[MASK]')
  return Layout(framing.around(fields, first=(cls,), last=(mask,)))
