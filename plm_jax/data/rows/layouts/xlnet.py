"""A <sep> (B <sep>) <cls>, type_ids 0 for A <sep>, 1 for B <sep>, 2 for <cls> (Yang et al. 2019, §2.5)."""

from plm_jax.core.types import Vocab
from plm_jax.data.rows import framing
from plm_jax.data.rows.framing import Layout


def make(*, vocab: Vocab, fields: int) -> Layout:
  """Build the layout of `fields` fields."""
  cls, sep = framing.needed(vocab.cls_id, '<cls>'), framing.needed(vocab.sep_id, '<sep>')
  return Layout(framing.around(fields, between=(sep,), last=(sep, cls)), typed=True, last_type=2, stands_last=True)
