"""Letters of words: n-grams and their buckets, exactly as fastText's.

Bojanowski et al. 2017, §3.2; facebookresearch/fastText, src/dictionary.cc (computeSubwords, hash).
"""

from typing import NamedTuple

import numpy as np

FIRST, PRIME = 2166136261, 16777619  # of FNV-1a with 32 bits
END = '</s>'  # of a line, the only word without n-grams


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


class Letters(NamedTuple):
  """Tables of words and of n-grams, whose mean is the vector of a word."""

  words: np.ndarray  # f32[n, d], own vectors
  ngrams: np.ndarray  # f32[b, d], one for each bucket
  shortest: int  # letters of the shortest n-grams, including < and >
  longest: int  # letters of the longest ones; 0 for none
  counts: np.ndarray  # int[n], of each word in the training text

  def vector(self, word: str, row: int | None = None) -> np.ndarray:
    """Compute the vector of a word, unseen if it has no row."""
    own = [] if row is None else [self.words[row]]
    if self.longest and len(self.ngrams) and (row is None or word != END):
      letters = {'shortest': max(1, self.shortest), 'longest': self.longest}
      own += list(self.ngrams[buckets_of(word, **letters, buckets=len(self.ngrams))])
    return np.asarray(np.mean(own, axis=0, dtype=np.float32)) if own else np.zeros(self.words.shape[1], np.float32)
