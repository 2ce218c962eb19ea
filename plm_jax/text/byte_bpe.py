"""Byte-level BPE, the vocabulary of GPT-2, RoBERTa and BART (Radford et al. 2019 §2.2): merges of bytes, no unknowns.

A text is split into words, numbers and runs of punctuation, each with the space before it. The bytes of each are
merged by the learned pairs, in the order in which they were learned. Every text can be decoded from its ids, in any
script: '我' is the bytes E6 88 91, and merges join whole bytes (E6+8891 or E688+91). HF's training is reproducible
here, since the 256 bytes that it starts from have fixed ids.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from plm_jax.text import tokenizer
from plm_jax.text.spec import END_OF_TEXT, added_tokens
from plm_jax.text.tokenizer import Vocab

if TYPE_CHECKING:
  from plm_jax.core.types import Template  # loads jax, which commands do without

Specials = Literal['all', 'gpt2', 'roberta']
SPECIALS: dict[Specials, tuple[dict[str, str], dict[str, str]]] = {  # role -> token, at the front and at the end
  'all': ({'pad': '<pad>', 'bos': '<s>', 'eos': '</s>', 'mask': '<mask>'}, {}),
  'gpt2': ({}, {'bos': END_OF_TEXT, 'eos': END_OF_TEXT}),
  'roberta': ({'bos': '<s>', 'pad': '<pad>', 'eos': '</s>', 'unk': '<unk>'}, {'mask': '<mask>'}),
}
PASSES = 2  # over the documents in training: words, counts


def make(*, path: str, extra: tuple[str, ...] = (), roles: Mapping[str, str] | None = None) -> Vocab:
  """Load a byte-level BPE vocabulary.

  Args:
    path: a folder of `plm-jax vocab train --name=byte_bpe`, or a published `tokenizer.json`.
    extra: special tokens to append, with ids after all others: GPT's ('_start_', '_delimiter_', '_classify_').
    roles: role -> token, if a published vocabulary leaves it open, e.g. dict(pad='<pad>').

  Raises:
    FileNotFoundError, ValueError: as `tokenizer.load`.
  """
  return tokenizer.load(path, kind='byte_bpe', extra=extra, roles=roles)


def train(documents: Iterable[str], *, size: int, specials: Specials = 'all', min_frequency: int = 2) -> Vocab:
  """Train a vocabulary on documents, with token counts.

  The same documents give the same vocabulary.

  Args:
    documents: texts; iterated over `PASSES` times.
    size: total ids; fewer if the text has fewer pairs of `min_frequency`.
    specials: 'all' is for masked and causal objectives; 'gpt2' and 'roberta' have the names and ids of the published
      vocabularies.
    min_frequency: a rarer pair is not merged.

  Raises:
    ValueError: `size` is too small for the 256 bytes, or no such specials.
  """
  if specials not in SPECIALS:
    raise ValueError(f'specials={specials!r}: choices are {", ".join(SPECIALS)}')
  front, end = SPECIALS[specials]
  at_front, at_end = list(front.values()), list(dict.fromkeys(end.values()))
  least = 256 + len(at_front) + len(at_end)
  if size < least:
    raise ValueError(f'size={size} is too small for the 256 bytes and the special tokens: the minimum is {least}')
  trained = Tokenizer(models.BPE())
  trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  trainer = trainers.BpeTrainer(
    vocab_size=size - least + 256,
    min_frequency=min_frequency,
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  trained.train_from_iterator(documents, trainer)
  ids = trained.get_vocab()
  tokens = [*at_front, *sorted(ids, key=ids.__getitem__), *at_end]
  ids = {token: token_id for token_id, token in enumerate(tokens)}
  trained.decoder = decoders.ByteLevel()
  spec = json.loads(trained.to_str())
  spec['model']['vocab'] = ids
  roles = {**front, **end}
  named = {token: ids[token] for token in (*at_front, *at_end)}
  spec['added_tokens'] = added_tokens(named, kind='byte_bpe', mask=roles.get('mask'))
  vocab = tokenizer.assemble(spec, roles=roles)
  return dataclasses.replace(vocab, counts=tokenizer.count(vocab, documents))


def template(vocab: Vocab) -> 'Template | None':
  """Build <s> A </s> (</s> B </s>); None for GPT-2's single token."""
  return None if vocab.cls_id == vocab.sep_id else tokenizer.around(vocab, separators=2, typed=False)
