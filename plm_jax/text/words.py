"""Whole words, the vocabulary of word vectors and of recurrent language models (word2vec, ELMo, ULMFiT).

The ids of words follow those of the special tokens, most frequent word first, as samplers over ranks expect; words of
equal frequency are sorted by their characters. A word that is not in the vocabulary is the unknown token, and so is one
that is spelt as a special token. `tokenizer.json` holds a WordLevel model, which other libraries read.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from plm_jax.core import errors
from plm_jax.text import tokenizer
from plm_jax.text.tokenizer import Vocab

if TYPE_CHECKING:
  from plm_jax.core.types import Template  # loads jax, which commands do without

Specials = Literal['all', 'elmo']
SPECIALS: dict[Specials, dict[str, str]] = {  # role -> token, in the order of their ids
  'all': {'pad': '<pad>', 'unk': '<unk>', 'bos': '<s>', 'eos': '</s>', 'mask': '<mask>'},
  'elmo': {'bos': '<S>', 'eos': '</S>', 'unk': '<UNK>'},  # sequences are padded with '</S>'
}
Boundaries = Literal['punctuation', 'spaces']
SPLITTERS = {'punctuation': pre_tokenizers.Whitespace, 'spaces': pre_tokenizers.WhitespaceSplit}
PASSES = 2  # over the documents in training: words, counts


def make(*, path: str, extra: tuple[str, ...] = (), roles: Mapping[str, str] | None = None) -> Vocab:
  """Load a vocabulary of words.

  Args:
    path: a folder of `plm-jax vocab train --name=words`, or a `tokenizer.json` with a WordLevel model.
    extra: special tokens to append, with ids after all others.
    roles: role -> token, if a published vocabulary leaves it open, e.g. dict(pad='<pad>').

  Raises:
    FileNotFoundError, ValueError: as `tokenizer.load`.
  """
  return tokenizer.load(path, kind='words', extra=extra, roles=roles)


def train(
  documents: Iterable[str],
  *,
  size: int,
  lowercase: bool = False,
  boundaries: Boundaries = 'punctuation',
  specials: Specials = 'all',
  min_frequency: int = 5,
) -> Vocab:
  """Train a vocabulary on documents, with token counts.

  The same documents give the same vocabulary.

  Args:
    documents: texts; iterated over `PASSES` times.
    size: total ids, special tokens included: the most frequent words get one. Fewer if the text has fewer words.
    lowercase: words are written in lower case.
    boundaries: where words end. 'punctuation': at white space, and between letters and other signs, runs of which are
      words too: "don't" is don ' t (the pattern \\w+|[^\\w\\s]+). 'spaces': at white space only, for text that is
      already split into words.
    specials: 'all' is for objectives of every kind; 'elmo' has the names and ids of bilm's vocabulary files.
    min_frequency: a rarer word gets no id.

  Raises:
    ValueError: `size` is too small for a word, no such specials or boundaries, or no word is frequent enough.
  """
  errors.one_of('specials', specials, Specials)
  errors.one_of('boundaries', boundaries, Boundaries)
  roles = SPECIALS[specials]
  if size <= len(roles):
    raise ValueError(f'size={size} is too small for words and {len(roles)} special tokens: {", ".join(roles.values())}')
  trained = Tokenizer(models.WordLevel())
  if lowercase:
    trained.normalizer = normalizers.Lowercase()
  trained.pre_tokenizer = SPLITTERS[boundaries]()
  trainer = trainers.WordLevelTrainer(vocab_size=size, min_frequency=min_frequency, show_progress=False)
  trained.train_from_iterator(documents, trainer)
  ranks = trained.get_vocab()
  words = [word for word in sorted(ranks, key=ranks.__getitem__) if word not in roles.values()]
  if not words:
    raise ValueError(f'no word of the text occurs {min_frequency} times: use more text, or a lower min_frequency')
  tokens = [*roles.values(), *words][:size]
  trained.model = models.WordLevel({token: token_id for token_id, token in enumerate(tokens)}, unk_token=roles['unk'])
  vocab = tokenizer.assemble(json.loads(trained.to_str()), roles=roles)
  return dataclasses.replace(vocab, counts=tokenizer.count(vocab, documents))


def of_list(tokens: Sequence[str], roles: Mapping[str, str] = SPECIALS['elmo']) -> Vocab:
  """Build a vocabulary without counts from tokens by id, roles included.

  Words end at white space only.
  """
  listed = Tokenizer(
    models.WordLevel({token: token_id for token_id, token in enumerate(tokens)}, unk_token=roles['unk'])
  )
  listed.pre_tokenizer = SPLITTERS['spaces']()
  return tokenizer.assemble(json.loads(listed.to_str()), roles=roles)


def template(vocab: Vocab) -> 'Template':
  """Build the form <s> A </s> (B </s>)."""
  return tokenizer.around(vocab, separators=1, typed=False)
