"""Special tokens as the file of the tokenizer has them: mBART's with a language, or any others."""

from plm_jax.core.types import Vocab
from plm_jax.data.rows import framing
from plm_jax.data.rows.framing import Layout


def make(*, vocab: Vocab, fields: int) -> Layout:
  """Build the layout that the tokenizer writes around texts."""
  if (marked := getattr(vocab, 'marked', None)) is None:
    raise ValueError('the file of the tokenizer has no special tokens around texts: set data.layout to another.')
  theirs = framing.written(marked)
  parts = theirs.single if fields == 1 else theirs.pair
  # </s> A ro B  ->  [[</s>], [ro], []]
  around: list[list[int]] = [[]]
  for part, _ in parts:
    if isinstance(part, str):
      around.append([])
    else:
      around[-1].append(part)
  first, *between, last = map(tuple, around)
  typed = any(kind for _, kind in parts)
  last_type = parts[-1][1] if typed and parts[-1][1] != 1 else None
  style = Layout(framing.around(len(between) + 1, first=first, between=(*between, ())[0], last=last), typed, last_type)
  if framing.parts(style, 'AB'[: len(between) + 1]) != parts:
    raise ValueError('the tokenizer sets sentence types as no layout does: set data.layout to another.')
  return style._replace(frames=framing.around(fields, first=first, between=(*between, ())[0], last=last))
