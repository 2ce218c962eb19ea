"""WordPiece, the vocabulary of BERT and related models (Devlin et al. 2018 §3.2): pieces inside a word begin with '##'.

A word is split from the left into the longest pieces that the vocabulary has, and is [UNK] if there is none. Training
merges the most frequent pair repeatedly, as every open implementation does; Google's own, which scores pairs by
likelihood, was never published.

HF's WordPieceTrainer numbers the pieces of one letter in the order of a hash table and breaks ties by these numbers, so
that each run gives other ids and sometimes other pieces (tokenizers #1794: 3 runs on the same Chinese text gave 3 sets
of pieces). Here the trainer gets the letters in a fixed order, plain and with '##', before it counts pairs: the
vocabulary of a text is then the same, bit for bit, in every process and with any number of threads.
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
PASSES = 3  # over the documents while training: letters, words, counts


def make(*, path: str, extra: tuple[str, ...] = (), roles: Mapping[str, str] | None = None) -> Vocab:
  """Reads a WordPiece vocabulary.

  Args:
    path: a folder of `plm-jax vocab train --name=wordpiece`, or a published `tokenizer.json`.
    extra: special tokens to append, with ids behind all others.
    roles: role -> token, where a published vocabulary leaves it open, e.g. dict(pad='<pad>').

  Raises:
    FileNotFoundError, ValueError: as `tokenizer.load`.
  """
  return tokenizer.load(path, kind='wordpiece', extra=extra, roles=roles)


def train(
  documents: Iterable[str], *, size: int, lowercase: bool = True, min_frequency: int = 2, alphabet: int | None = None
) -> Vocab:
  """A vocabulary of the documents, with their token counts; always the same for the same documents.

  Args:
    documents: texts; iterated over `PASSES` times.
    size: ids in all; fewer where the text has fewer pairs of `min_frequency`.
    lowercase: BERT's uncased form, which strips accents too.
    min_frequency: a letter or a pair that is rarer gets no id.
    alphabet: number of letters to keep, the most frequent ones; None: as many as half of `size` holds. The others are
      [UNK].

  Raises:
    ValueError: `size` has no room for the letters.
  """
  trained = Tokenizer(models.BPE(continuing_subword_prefix=PREFIX))
  trained.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
  trained.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  letters, continuing = _letters(documents, trained, min_frequency=min_frequency)
  room = size - len(SPECIALS)
  letters = letters[:alphabet] if alphabet else _that_fit(letters, continuing, ids=room // 2)
  first = [*SPECIALS.values(), *sorted(letters), *sorted(PREFIX + letter for letter in set(letters) & continuing)]
  if size < len(first):
    raise ValueError(f'size={size} has no room for {len(letters)} letters: the least is {len(first)}')
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
  """[CLS] A [SEP] (B [SEP]), the second text of type 1."""
  return tokenizer.around(vocab, separators=1, typed=True)


def _letters(documents: Iterable[str], split: Tokenizer, *, min_frequency: int) -> tuple[list[str], set[str]]:
  """The letters, most frequent first and then by code point, and those of them that stand inside words."""
  words: collections.Counter[str] = collections.Counter()
  for document in documents:
    normal = split.normalizer.normalize_str(document)
    words.update([word for word, _ in split.pre_tokenizer.pre_tokenize_str(normal)])
  seen: collections.Counter[str] = collections.Counter()
  for word, times in words.items():
    for letter in word:
      seen[letter] += times
  kept = [letter for letter, times in seen.items() if times >= min_frequency]
  return sorted(kept, key=lambda letter: (-seen[letter], letter)), {letter for word in words for letter in word[1:]}


def _that_fit(letters: list[str], continuing: set[str], *, ids: int) -> list[str]:
  """As many of the first letters as fit into so many ids."""
  kept = []
  for letter in letters:
    ids -= 1 + (letter in continuing)
    if ids < 0:
      break
    kept.append(letter)
  return kept


def _assemble(trained: Tokenizer) -> Vocab:
  ids = trained.get_vocab()
  pieces = Tokenizer(models.WordPiece(ids, unk_token=SPECIALS['unk']))
  pieces.normalizer, pieces.pre_tokenizer = trained.normalizer, trained.pre_tokenizer
  pieces.decoder = decoders.WordPiece(prefix=PREFIX)
  return tokenizer.assemble(json.loads(pieces.to_str()), roles=SPECIALS)
