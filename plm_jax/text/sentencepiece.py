"""SentencePiece, the vocabularies of T5, ALBERT, XLNet, DeBERTa 2 and 3 and LLaMA (Kudo & Richardson 2018).

White space is part of the text, written ▁, and one is added before the first word; so texts of any language are split
without rules for words. Unigram models (Kudo 2018) choose the most probable segmentation; LLaMA merges pairs, and
spells characters without a piece in bytes. A vocabulary is read from a `tokenizer.json` or a model file (`spm.py`),
which needs no other library. It is trained by the reference library, so that its folder has both forms.
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
PASSES = 2  # over the documents while training: words, counts
THREADS = 16  # fixed, since sums of floats depend on it


def make(*, path: str, extra: tuple[str, ...] = (), roles: Mapping[str, str] | None = None) -> Vocab:
  """Reads a SentencePiece vocabulary.

  Args:
    path: a folder of `plm-jax vocab train --name=sentencepiece`, a folder with a published `tokenizer.json`
      or model file, such a file, or the `vocab/` of a run.
    extra: special tokens to append, with ids behind all others.
    roles: role -> token, where the names leave it open, e.g. dict(pad='</s>').

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
  """A vocabulary of the documents, with their token counts; always the same for the same documents.

  Args:
    documents: texts; iterated over `PASSES` times.
    size: ids in all; fewer where the text has no more.
    algorithm: 'unigram' prunes a large vocabulary by likelihood, 'bpe' merges frequent pairs.
    specials: names and ids of the special tokens: those of the published vocabularies, or 'all', which serves every
      objective but those that need sentinels.
    sentinels: number of tokens <extra_id_k> at the end, number 0 last (T5); None: 100 with 't5', else none.
    byte_fallback: characters without a piece are spelt in bytes and not unknown (LLaMA).
    lowercase: folds case; the characters are normalised by NFKC in any case.
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
    what = f'{len(names)} special tokens, {count} sentinels' + (' and the 256 bytes' if byte_fallback else '')
    raise ValueError(f'size={size} has no room for {what}')
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
    **{f'{role}_id': number for role, number in ids.items()},
    **{f'{role}_piece': names[role] for role in OWN if role in names},
  )
  content = spm.with_controls(content, [f'<extra_id_{number}>' for number in reversed(range(count))])
  vocab = tokenizer.assemble(spm.spec(spm.read(content)), roles=roles, model=content)
  return dataclasses.replace(vocab, counts=tokenizer.count(vocab, documents))


def template(vocab: Vocab) -> 'Template':
  """What stands around a text under the names of the published vocabularies."""
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
  """The model file that the reference library makes."""
  try:
    import sentencepiece
  except ModuleNotFoundError:
    raise ModuleNotFoundError(
      '--name=sentencepiece is trained by the package sentencepiece, which is not installed (reading needs nothing): '
      'pip install sentencepiece, or bash launch/setup.sh sentencepiece'
    ) from None
  written = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=_lines(documents),
      model_writer=written,
      hard_vocab_limit=False,
      max_sentence_length=2**30,
      num_threads=THREADS,
      minloglevel=2,
      **settings,
    )
  except (RuntimeError, OSError) as error:
    reason = str(error).rpartition('] ')[2].strip() or str(error)
    raise ValueError(f'no such vocabulary can be trained on this text: {reason}') from None
  return written.getvalue()


def _lines(documents: Iterable[str]) -> Iterator[str]:
  """What the trainer reads: lines without what it does not take."""
  for document in documents:
    for line in document.splitlines():
      if text := line.replace('\0', ' ').strip():
        yield text
