"""Published word lists, merges and bytes: WordPiece, byte-level BPE, BPE with ends of words, ByT5."""

from pathlib import Path
from typing import Any

from plm_jax.io import files
from plm_jax.text import published_files
from plm_jax.text import spec as specs
from plm_jax.text.published_files import IDS, MERGES, bert_normalizer, family_of, names_of
from plm_jax.text.published_rows import BERT, ROBERTA, T5
from plm_jax.text.spec import Spec


def wordpiece(file: Path, settings: Spec) -> tuple[dict[str, Any], tuple[str, str]]:
  """Read BERT's vocab.txt; the last line of a repeated token counts."""
  if files.is_file(file.parent / 'bpe.codes'):
    raise ValueError('has bpe.codes of fastBPE, which is not supported: save it with a tokenizer.json')
  published_files.check_family(settings, published_files.WORD_LISTS, of=published_files.WORDS)
  lines = [line.removesuffix('\r') for line in published_files.text_of(file).removesuffix('\n').split('\n')]
  last_line = {token: line_id for line_id, token in enumerate(lines)}
  names = [token if last_line[token] == index else f'{token} \x00{index}' for index, token in enumerate(lines)]
  vocab = {name: line_id for line_id, name in enumerate(names)}
  unknown = names_of(settings).get('unk', '[UNK]')
  if unknown not in vocab:
    raise ValueError(f'is damaged ({file.name} has no {unknown})')
  unsplit = [token for token in settings.get('never_split') or () if isinstance(token, str) and token in vocab]
  flags = {'single_word': True, 'lstrip': False, 'rstrip': False, 'normalized': False, 'special': False}
  return {
    'version': '1.0',
    'added_tokens': [{'id': vocab[token], 'content': token, **flags} for token in unsplit],
    'normalizer': bert_normalizer(settings),
    'pre_tokenizer': {'type': 'BertPreTokenizer'},
    'decoder': {'type': 'WordPiece', 'prefix': '##', 'cleanup': True},
    'model': {
      'type': 'WordPiece',
      'unk_token': unknown,
      'continuing_subword_prefix': '##',
      'max_input_chars_per_word': 100,
      'vocab': vocab,
    },
  }, BERT


def byte_bpe(folder: Path, settings: Spec) -> tuple[dict[str, Any], tuple[str, str] | None]:
  """Read byte-level BPE, or BPE with word ends </w> (GPT, HerBERT)."""
  published_files.check_family(settings, published_files.MERGED, of=f'{IDS} and {MERGES}')
  family = family_of(settings)
  vocab = published_files.read_table(folder / IDS)
  if not all(isinstance(token_id, int) for token_id in vocab.values()):
    raise ValueError(f'is damaged ({IDS} is no table of ids)')
  lines = [line.removesuffix('\r') for line in published_files.text_of(folder / MERGES).split('\n') if line.strip()]
  merges = [line.split(' ') for line in lines if not line.startswith('#version')]
  for pair in merges:
    if len(pair) != 2 or not {*pair, ''.join(pair)} <= vocab.keys():
      raise ValueError(f'is damaged ({MERGES}: {" ".join(pair)!r} is no merge of two tokens of {IDS})')
  ended = family in ('openaigpt', 'herbert') if family else any(pair[1].endswith('</w>') for pair in merges)
  unknown = names_of(settings).get('unk', '<unk>')
  spec = merged(vocab, merges, prefix=settings.get('add_prefix_space', False))
  if ended:
    cased = {'do_lower_case': False, 'strip_accents': False}
    spec |= {
      'normalizer': bert_normalizer(cased if family == 'herbert' else {}),
      'pre_tokenizer': {'type': 'BertPreTokenizer'},
      'decoder': {'type': 'BPEDecoder', 'suffix': '</w>'},
    }
    spec['model'] |= {'unk_token': unknown if unknown in vocab else None, 'end_of_word_suffix': '</w>'}
  return spec, _row_of_merges(family, vocab, settings)


def merged(vocab: Spec, merges: list[list[str]], *, prefix: bool = False) -> dict[str, Any]:
  """Build a `tokenizer.json` of byte-level BPE."""
  level = {'type': 'ByteLevel', 'add_prefix_space': prefix, 'trim_offsets': True, 'use_regex': True}
  return {
    'version': '1.0',
    'added_tokens': [],
    'normalizer': None,
    'pre_tokenizer': level,
    'decoder': {**level, 'add_prefix_space': True},
    'model': {
      'type': 'BPE',
      'dropout': None,
      'unk_token': None,
      'continuing_subword_prefix': '',
      'end_of_word_suffix': '',
      'fuse_unk': False,
      'byte_fallback': False,
      'ignore_merges': False,
      'vocab': vocab,
      'merges': merges,
    },
  }


def _row_of_merges(family: str, vocab: Spec, settings: Spec) -> tuple[str, str] | None:
  if not family and ('[CLS]' in vocab or settings.get('cls_token') == '[CLS]'):
    family = 'deberta'
  elif not family and {'<s>', '</s>'} <= vocab.keys():
    family = 'roberta'
  if family in ('deberta', 'herbert'):
    return BERT
  if family in published_files.ROBERTAS:
    return ROBERTA
  begin = 'bos' if settings.get('add_bos_token') else ''
  end = 'eos' if settings.get('add_eos_token') else ''
  if family == 'openaigpt' or not begin + end:
    return None
  single, second = f'{begin} A {end}', ' '.join(f'{part}:1' for part in (begin, 'B', end) if part)
  return single, f'{single} {second}'


def byte_vocab(settings: Spec) -> tuple[dict[str, Any], tuple[str, str]]:
  """Build the vocabulary of ByT5: three special tokens, then all bytes."""
  names = ['<pad>', '</s>', '<unk>', *specs.ALPHABET]
  sentinels = [f'<extra_id_{index}>' for index in range(settings.get('extra_ids', 125))]
  vocab = {token: index for index, token in enumerate((*names, *sentinels))}
  special = {token: vocab[token] for token in (*names[:3], *sentinels)}
  level = {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': True, 'use_regex': False}
  added = specs.added_tokens(special, kind='byte_bpe', mask=None)
  return {
    'version': '1.0',
    # as their tokenizer, the first three take the blanks around them
    'added_tokens': [{**entry, 'lstrip': entry['id'] < 3, 'rstrip': entry['id'] < 3} for entry in added],
    'normalizer': None,
    'pre_tokenizer': level,
    'decoder': level,
    'model': {'type': 'BPE', 'vocab': vocab, 'merges': []},
  }, T5
