"""SentencePiece, the vocabularies of T5, ALBERT, XLNet, DeBERTa 2 and 3 and LLaMA (Kudo & Richardson 2018).

White space is part of the text, written ▁, and one is added before the first word; so texts of any language are split
without rules for words. Unigram models (Kudo 2018) choose the most probable segmentation. LLaMA merges pairs, and
spells characters without a piece in bytes. A vocabulary is read from a `tokenizer.json` or a model file (`spm.py`),
without another library. It is trained by the reference library, so that its folder has both forms.
"""

import dataclasses
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from plm_jax.core.errors import one_of
from plm_jax.text import spec as specs
from plm_jax.text import spm, tokenizer
from plm_jax.text.tokenizer import Vocab

if TYPE_CHECKING:
  from plm_jax.core.types import Template  # loads jax, which commands do without

Algorithm = Literal['unigram', 'bpe']
Specials = Literal['all', 't5', 'llama', 'albert', 'xlnet']
SPECIALS: dict[Specials, dict[str, str]] = {  # role -> token in the order of their ids; other names have no role
  'all': {'pad': '<pad>', 'unk': '<unk>', 'bos': '<s>', 'eos': '</s>', 'mask': '<mask>'},
  't5': {'pad': '<pad>', 'eos': '</s>', 'unk': '<unk>'},
  'llama': {'unk': '<unk>', 'bos': '<s>', 'eos': '</s>'},
  'albert': {'pad': '<pad>', 'unk': '<unk>', 'cls': '[CLS]', 'sep': '[SEP]', 'mask': '[MASK]'},
  'xlnet': {
    'unk': '<unk>', 'bos': '<s>', 'eos': '</s>', 'cls': '<cls>', 'sep': '<sep>', 'pad': '<pad>', 'mask': '<mask>',
    'end of document': '<eod>', 'end of paragraph': '<eop>',
  },
}  # fmt: skip
OWN = ('pad', 'unk', 'bos', 'eos')  # roles that a model file names
PASSES = 2  # over the documents in training: words, counts
THREADS = 16  # fixed, since sums of floats depend on it


def make(*, path: str, extra: tuple[str, ...] = (), roles: Mapping[str, str] | None = None) -> Vocab:
  """Load a SentencePiece vocabulary.

  Args:
    path: a folder of `plm-jax vocab train --name=sentencepiece`, a published folder or file (`tokenizer.json` or a
      model), or the `vocab/` of a run.
    extra: special tokens to append, with ids after all others.
    roles: role -> token, if the names leave it open, e.g. dict(pad='</s>').

  Raises:
    FileNotFoundError, ValueError: as `tokenizer.load`.
  """
  return tokenizer.load(path, kind='sentencepiece', extra=extra, roles=roles)


def train(
  documents: Iterable[str],
  *,
  size: int,
  algorithm: Algorithm = 'unigram',
  specials: Specials = 'all',
  sentinels: int | None = None,
  byte_fallback: bool = False,
  lowercase: bool = False,
  coverage: Annotated[float, '0 < x <= 1'] = 0.9995,
) -> Vocab:
  """Train a vocabulary on documents, with token counts.

  The same documents give the same vocabulary.

  Args:
    documents: texts; iterated over `PASSES` times.
    size: total ids; fewer if the text has no more.
    algorithm: 'unigram' prunes a large vocabulary by likelihood, 'bpe' merges frequent pairs.
    specials: names and ids of the special tokens: those of the published vocabularies, or 'all', for every objective
      without sentinels.
    sentinels: number of tokens <extra_id_k> at the end, index 0 last (T5); None: 100 with 't5', else none.
    byte_fallback: characters without a piece are spelt in bytes, not unknown (LLaMA).
    lowercase: folds case; characters are always normalised by NFKC.
    coverage: share of the characters of the text that get a piece.

  Raises:
    ModuleNotFoundError: the library that trains is not installed.
    ValueError: settings that cannot be met.
  """
  one_of('specials', specials, Specials)
  one_of('algorithm', algorithm, Algorithm)
  names, count = SPECIALS[specials], (100 if specials == 't5' else 0) if sentinels is None else sentinels
  if count < 0:
    raise ValueError(f'sentinels={count} must be 0 or more')
  if size <= len(names) + count + 256 * byte_fallback:
    tokens = f'{len(names)} special tokens, {count} sentinels' + (' and the 256 bytes' if byte_fallback else '')
    raise ValueError(f'size={size} is too small for {tokens}: use a larger size')
  roles = {role: token for role, token in names.items() if role in specs.ROLES}
  ids = {role: list(names).index(role) if role in names else -1 for role in OWN}
  content = _train(
    documents,
    vocab_size=size - count,
    model_type=algorithm,
    byte_fallback=byte_fallback,
    normalization_rule_name='nmt_nfkc_cf' if lowercase else 'nmt_nfkc',
    character_coverage=coverage,
    control_symbols=[token for role, token in names.items() if role not in OWN],
    **{f'{role}_id': token_id for role, token_id in ids.items()},
    **{f'{role}_piece': names[role] for role in OWN if role in names},
  )
  content = spm.with_controls(content, [f'<extra_id_{token_id}>' for token_id in reversed(range(count))])
  vocab = tokenizer.assemble(spm.spec(spm.read(content)), roles=roles, model=content)
  return dataclasses.replace(vocab, counts=tokenizer.count(vocab, documents))


def template(vocab: Vocab) -> 'Template':
  """Build the form of inputs of the published vocabularies."""
  from plm_jax.core.types import Template  # loads jax

  if vocab.mask_id is None:  # T5 and LLaMA
    before = () if vocab.bos_id is None else ((vocab.bos_id, 0),)
    after = () if before or vocab.eos_id is None else ((vocab.eos_id, 0),)
    return Template((*before, ('A', 0), *after), (*before, ('A', 0), *after, *before, ('B', 0), *after))
  if vocab.bos_id == vocab.cls_id:  # ALBERT's tokens, or RoBERTa's
    albert = vocab.token(vocab.bos_id or 0) == SPECIALS['albert']['cls']
    return tokenizer.around(vocab, separators=1 if albert else 2, typed=albert)
  assert vocab.cls_id is not None and vocab.sep_id is not None
  single: list[tuple[int | str, int]] = [('A', 0), (vocab.sep_id, 0)]
  end = (vocab.cls_id, 2)
  return Template((*single, end), (*single, ('B', 1), (vocab.sep_id, 1), end))


def _train(documents: Iterable[str], **settings: Any) -> bytes:
  try:
    import sentencepiece
  except ModuleNotFoundError:
    raise ModuleNotFoundError(
      'training --name=sentencepiece needs the package sentencepiece, which is not installed: pip install '
      'sentencepiece, or bash launch/setup.sh sentencepiece'
    ) from None
  output = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=_lines(documents),
      model_writer=output,
      hard_vocab_limit=False,
      max_sentence_length=2**30,
      num_threads=THREADS,
      minloglevel=2,
      **settings,
    )
  except (RuntimeError, OSError) as error:
    reason = str(error).rpartition('] ')[2].strip() or str(error)
    raise ValueError(f'the vocabulary cannot be trained on this text: {reason}') from None
  return output.getvalue()


def _lines(documents: Iterable[str]) -> Iterator[str]:
  """Yield the lines of documents, without null characters and empty lines."""
  for document in documents:
    for line in document.splitlines():
      if text := line.replace('\0', ' ').strip():
        yield text
