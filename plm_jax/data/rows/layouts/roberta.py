"""<s> A </s> (</s> B </s>), no type_ids (Liu et al. 2019; fairseq)."""

from plm_jax.core.types import Vocab
from plm_jax.data.rows import framing
from plm_jax.data.rows.framing import Layout


def make(*, vocab: Vocab, fields: int) -> Layout:
  """Build the layout of `fields` fields."""
  cls, sep = framing.needed(vocab.cls_id, '<s>'), framing.needed(vocab.sep_id, '</s>')
  return Layout(framing.around(fields, first=(cls,), between=(sep, sep), last=(sep,)))
