"""GLM's blanks in plain numpy, one document and one blank at a time, and histograms of their samples.

`python -m tests.noise.blanks_reference` writes the histograms again.
"""

import collections
import itertools
import json
import pathlib

import numpy as np

FILE = pathlib.Path(__file__).parent / 'histograms' / 'blanks.json'
SIZE = 64  # tokens of the document, with one special token at either end
SENTENCES = (3, 7, 1, 5, 12, 2, 9, 4, 6, 8, 5)  # tokens; together SIZE - 2
Blank = tuple[int, int]  # first token and number of tokens, counted without the special tokens


def token(draw: np.random.Generator, *, size: int, eligible: int, rate: float = 0.15) -> list[Blank]:
  """Sample Poisson(3) lengths up to the budget, and place them shuffled."""
  lengths: list[int] = []
  while sum(lengths) < int(rate * size):
    length = draw.poisson(3)
    while not 1 <= length <= 39:
      length = draw.poisson(3)
    lengths.append(int(length))
  while sum(lengths) + len(lengths) - 1 > eligible:
    lengths.pop()
  draw.shuffle(lengths)
  gaps = sorted(draw.integers(0, eligible - sum(lengths) - len(lengths) + 2, len(lengths)))
  blanks, used = [], 0
  for gap, length in zip(gaps, lengths, strict=True):
    blanks.append((int(gap) + used, length))
    used += length + 1
  return blanks


def sentence(draw: np.random.Generator, *, size: int, sentences: tuple[int, ...], rate: float = 0.15) -> list[Blank]:
  """Take sentences in random order up to the budget."""
  first = np.cumsum((0, *sentences))
  blanks: list[Blank] = []
  for index in draw.permutation(len(sentences)):
    blanks.append((int(first[index]), sentences[index]))
    if sum(length for _, length in blanks) >= int(rate * size):  # the released code asks after each sentence
      break
  return sorted(blanks)


def document(draw: np.random.Generator, *, size: int, eligible: int, ratio: float = 0.5) -> list[Blank]:
  """Choose one blank, at the end with probability 1/2."""
  length = min(int(draw.integers(max(1, int(ratio * size)), size - 2, endpoint=True)), eligible)
  place = eligible - length
  return [(place if draw.random() < 0.5 else int(draw.integers(0, place + 1)), length)]


def summarise(rows: list[list[Blank]]) -> dict[str, dict[str, int]]:
  """Compute histograms of one number per row, so rows are independent."""
  of = {
    'blanks': len,
    'tokens': lambda row: sum(length for _, length in row),
    'first place': lambda row: row[0][0],
    'first length': lambda row: row[0][1],
    'last length': lambda row: row[-1][1],
    'last end': lambda row: sum(row[-1]),
    'smallest gap': lambda row: min((b[0] - sum(a) for a, b in itertools.pairwise(row)), default=-1),
  }
  return {
    name: {str(key): count for key, count in sorted(collections.Counter(map(function, rows)).items())}
    for name, function in of.items()
  }


LEVELS = {
  'token': lambda draw: token(draw, size=SIZE, eligible=SIZE - 2),
  'sentence': lambda draw: sentence(draw, size=SIZE, sentences=SENTENCES),
  'document': lambda draw: document(draw, size=SIZE, eligible=SIZE - 2),
}


def write(rows: int = 100_000) -> None:
  found = {}
  for name, function in LEVELS.items():
    draw = np.random.default_rng(list(name.encode()))
    found[name] = summarise([function(draw) for _ in range(rows)])
  FILE.write_text(json.dumps(found) + '\n')


if __name__ == '__main__':
  write()
