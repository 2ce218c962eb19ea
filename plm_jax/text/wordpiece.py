"""WordPiece, the vocabulary of BERT and related models (Devlin et al. 2018 §3.2): pieces inside a word begin with '##'.

A word is split from the left into the longest pieces of the vocabulary, and is [UNK] if there is none. Training merges
the most frequent pair repeatedly, as every open implementation does. Google's own, which scores pairs by likelihood,
was never published.

HF's WordPieceTrainer numbers the pieces of one letter in the order of a hash table and breaks ties by these numbers.
So each run gives other ids and sometimes other pieces (tokenizers #1794: 3 runs on the same Chinese text gave 3 sets of
pieces). Here the trainer gets the letters in a fixed order, plain and with '##', before it counts pairs: the
vocabulary of a text is then identical in every process and with any number of threads.
"""

import collections
import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from plm_jax.text import tokenizer
from plm_jax.text.tokenizer import Vocab

if TYPE_CHECKING:
  from plm_jax.core.types import Template  # loads jax, which commands do without

SPECIALS = {'pad': '[PAD]', 'unk': '[UNK]', 'cls': '[CLS]', 'sep': '[SEP]', 'mask': '[MASK]'}
PREFIX = '##'
PASSES = 3  # over the documents in training: letters, words, counts


def make(*, path: str, extra: tuple[str, ...] = (), roles: Mapping[str, str] | None = None) -> Vocab:
  """Load a WordPiece vocabulary.

  Args:
    path: a folder of `plm-jax vocab train --name=wordpiece`, or a published `tokenizer.json`.
    extra: special tokens to append, with ids after all others.
    roles: role -> token, if a published vocabulary leaves it open, e.g. dict(pad='<pad>').

  Raises:
    FileNotFoundError, ValueError: as `tokenizer.load`.
  """
  return tokenizer.load(path, kind='wordpiece', extra=extra, roles=roles)


def train(
  documents: Iterable[str], *, size: int, lowercase: bool = True, min_frequency: int = 2, alphabet: int | None = None
) -> Vocab:
  """Train a vocabulary on documents, with token counts.

  The same documents give the same vocabulary.

  Args:
    documents: texts; iterated over `PASSES` times.
    size: total ids; fewer if the text has fewer pairs of `min_frequency`.
    lowercase: BERT's uncased form, which also strips accents.
    min_frequency: a rarer letter or pair gets no id.
    alphabet: number of letters to retain, the most frequent ones; None: as many as half of `size` can hold. The others
      are [UNK].

  Raises:
    ValueError: `size` is too small for the letters.
  """
  trained = Tokenizer(models.BPE(continuing_subword_prefix=PREFIX))
  trained.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
  trained.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  letters, continuing = _letters(documents, trained, min_frequency=min_frequency)
  room = size - len(SPECIALS)
  letters = letters[:alphabet] if alphabet else _that_fit(letters, continuing, ids=room // 2)
  first = [*SPECIALS.values(), *sorted(letters), *sorted(PREFIX + letter for letter in set(letters) & continuing)]
  if size < len(first):
    raise ValueError(f'size={size} is too small for {len(letters)} letters: the minimum is {len(first)}')
  trainer = trainers.BpeTrainer(
    vocab_size=size,
    min_frequency=min_frequency,
    special_tokens=first,
    initial_alphabet=letters,
    limit_alphabet=len(letters),
    continuing_subword_prefix=PREFIX,
    show_progress=False,
  )
  trained.train_from_iterator(documents, trainer)
  vocab = _assemble(trained)
  return dataclasses.replace(vocab, counts=tokenizer.count(vocab, documents))


def template(vocab: Vocab) -> 'Template':
  """Build [CLS] A [SEP] (B [SEP]), where B has type 1."""
  return tokenizer.around(vocab, separators=1, typed=True)


def _letters(documents: Iterable[str], split: Tokenizer, *, min_frequency: int) -> tuple[list[str], set[str]]:
  """Find the letters, and those inside words, by frequency and code point."""
  words: collections.Counter[str] = collections.Counter()
  for document in documents:
    normal = split.normalizer.normalize_str(document)
    words.update([word for word, _ in split.pre_tokenizer.pre_tokenize_str(normal)])
  counts: collections.Counter[str] = collections.Counter()
  for word, frequency in words.items():
    for letter in word:
      counts[letter] += frequency
  frequent = [letter for letter, frequency in counts.items() if frequency >= min_frequency]
  return sorted(frequent, key=lambda letter: (-counts[letter], letter)), {
    letter for word in words for letter in word[1:]
  }


def _that_fit(letters: list[str], continuing: set[str], *, ids: int) -> list[str]:
  """Take as many of the first letters as fit into `ids`."""
  fitting = []
  for letter in letters:
    ids -= 1 + (letter in continuing)
    if ids < 0:
      break
    fitting.append(letter)
  return fitting


def _assemble(trained: Tokenizer) -> Vocab:
  ids = trained.get_vocab()
  pieces = Tokenizer(models.WordPiece(ids, unk_token=SPECIALS['unk']))
  pieces.normalizer, pieces.pre_tokenizer = trained.normalizer, trained.pre_tokenizer
  pieces.decoder = decoders.WordPiece(prefix=PREFIX)
  return tokenizer.assemble(json.loads(pieces.to_str()), roles=SPECIALS)
