"""_start_ A (_delimiter_ B) _classify_ (Radford et al. 2018, §3.3: <s> A $ B <e>)."""

from plm_jax.core.types import Vocab
from plm_jax.data.rows import framing
from plm_jax.data.rows.framing import Layout


def make(*, vocab: Vocab, fields: int) -> Layout:
  """Build the layout of `fields` fields."""
  between = (vocab.id('_delimiter_'),) if fields > 1 else ()
  frames = framing.around(fields, first=(vocab.id('_start_'),), between=between, last=(vocab.id('_classify_'),))
  return Layout(frames, stands_last=True)
