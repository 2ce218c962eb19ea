"""[CLS] A (B) and, after a text without a blank, the mask to fill (Du et al. 2021, §2.4)."""

from plm_jax.core.types import Vocab
from plm_jax.data.rows import framing
from plm_jax.data.rows.framing import Layout


def make(*, vocab: Vocab, fields: int) -> Layout:
  """Build the layout of `fields` fields."""
  cls, mask = framing.needed(vocab.cls_id, '[CLS]'), framing.needed(vocab.mask_id, '[MASK]')
  return Layout(framing.around(fields, first=(cls,), last=(mask,)))
