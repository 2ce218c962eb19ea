"""[CLS] A [SEP] (B [SEP]), type_ids 0 through the first [SEP], then 1 (Devlin et al. 2019, §3.2)."""

from plm_jax.core.types import Vocab
from plm_jax.data.rows import framing
from plm_jax.data.rows.framing import Layout


def make(*, vocab: Vocab, fields: int) -> Layout:
  """Build the layout of `fields` fields."""
  cls, sep = framing.needed(vocab.cls_id, '[CLS]'), framing.needed(vocab.sep_id, '[SEP]')
  return Layout(framing.around(fields, first=(cls,), between=(sep,), last=(sep,)), typed=True)
