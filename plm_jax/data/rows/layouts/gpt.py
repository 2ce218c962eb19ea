"""_start_ A (_delimiter_ B) _classify_ (Radford et al. 2018, §3.3: <s> A $ B <e>)."""

from plm_jax.data.rows import framing
from plm_jax.data.rows.packing import Frame
from plm_jax.types import Vocab

TYPED = False
LAST_TYPE = None


def frames(vocab: Vocab, fields: int) -> tuple[Frame, ...]:
  """The special tokens around each field."""
  between = (vocab.id('_delimiter_'),) if fields > 1 else ()
  return framing.around(fields, first=(vocab.id('_start_'),), between=between, last=(vocab.id('_classify_'),))
