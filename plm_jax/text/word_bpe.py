"""BPE with a mark at the end of words, the vocabulary of the first GPT.

See Radford et al. 2018 §4.1 and Sennrich et al. 2016. Words and punctuation are split and written in lower case; the
last piece of each ends with </w>. Such vocabularies come with published weights, as `vocab.json` and `merges.txt` or as
`tokenizer.json`. They are read here, not trained.
"""

from collections.abc import Mapping

from plm_jax.text import tokenizer
from plm_jax.text.tokenizer import Vocab


def make(*, path: str, extra: tuple[str, ...] = (), roles: Mapping[str, str] | None = None) -> Vocab:
  """Load a published BPE vocabulary.

  Args:
    path: a folder with the published files, or the `vocab/` of a run.
    extra: special tokens to append, with ids after all others: GPT's ('_start_', '_delimiter_', '_classify_').
    roles: role -> token; without a padding token the unknown token pads, since sequences have their lengths.

  Raises:
    FileNotFoundError, ValueError: as `tokenizer.load`.
  """
  return tokenizer.load(path, kind='word_bpe', extra=extra, roles=roles)
