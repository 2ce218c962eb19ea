"""Letters of words: n-grams and their buckets, exactly as fastText's.

Bojanowski et al. 2017, §3.2; facebookresearch/fastText, src/dictionary.cc (computeSubwords, hash).
"""

import numpy as np

FIRST, PRIME = 2166136261, 16777619  # of FNV-1a with 32 bits


def ngrams(word: str, *, shortest: int, longest: int) -> list[str]:
  """List the n-grams of a word between < and >.

  < or > alone is not an n-gram.

  # where, 3 to 3   <wh whe her ere re>
  """
  marked = f'<{word}>'
  grams = []
  for start in range(len(marked)):
    for end in range(start + shortest, min(start + longest, len(marked)) + 1):
      if end - start > 1 or 0 < start < len(marked) - 1:
        grams.append(marked[start:end])
  return grams


def bucket(ngram: str, *, buckets: int) -> int:
  """Hash an n-gram by FNV-1a of its signed bytes, as released."""
  value = FIRST
  for byte in ngram.encode('utf-8', errors='replace'):
    signed = byte | 0xFFFFFF00 if byte >= 128 else byte
    value = (value ^ signed) * PRIME & 0xFFFFFFFF
  return value % buckets


def buckets_of(word: str, *, shortest: int, longest: int, buckets: int) -> np.ndarray:
  """List the buckets of the n-grams of a word, int32[n]."""
  grams = [bucket(ngram, buckets=buckets) for ngram in ngrams(word, shortest=shortest, longest=longest)]
  return np.array(grams, np.int32)
