"""A (B), each a sentence of its own with nothing around it: the model puts both ends of a sentence there (ELMo)."""

from plm_jax.core.types import Vocab
from plm_jax.data.rows import framing
from plm_jax.data.rows.framing import Layout


def make(*, vocab: Vocab, fields: int) -> Layout:
  """No special token around any of so many fields, each with its own number in `segment_ids`."""
  del vocab
  return Layout(framing.around(fields), typed=True, apart=True)
