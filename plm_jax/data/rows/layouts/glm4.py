"""[gMASK] <sop> A B: two tokens begin a text, and none ends it (GLM-4's tokenizer)."""

from plm_jax.core.types import Vocab
from plm_jax.data.rows import framing
from plm_jax.data.rows.framing import Layout

FIRST = ('[gMASK]', '<sop>')


def make(*, vocab: Vocab, fields: int) -> Layout:
  """Build the layout with both tokens before the first field."""
  ids = {token: token_id for token_id in vocab.special_ids if (token := vocab.token(token_id)) in FIRST}
  return Layout(framing.around(fields, first=tuple(framing.needed(ids.get(token), token) for token in FIRST)))
