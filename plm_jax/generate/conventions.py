"""What a folder says of the texts that its model reads and makes: special tokens, and how texts are made.

A folder in Hugging Face's form says it in generation_config.json or, where there is none, in config.json; transformers
reads the one or the other as well. Of a run, the config and the vocabulary say it.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from plm_jax.io import files
from plm_jax.text import probe, tokenizer
from plm_jax.text.spec import SENTINEL

if TYPE_CHECKING:
  from plm_jax.core.types import Template  # loads jax
  from plm_jax.text.tokenizer import Vocab

log = logging.getLogger(__name__)

FILE = 'generation_config.json'
_SOURCES = f'{FILE} of the folder (or its config.json, where there is none)'
# key -> the flag of the command that takes its value
FLAGS = {
  'num_beams': 'beams',
  'early_stopping': 'early_stop',
  'length_penalty': 'length_penalty',
  'temperature': 'temperature',
  'top_k': 'top_k',
  'top_p': 'top_p',
  'no_repeat_ngram_size': 'no_repeat',
  'max_new_tokens': 'max_new',
  'min_new_tokens': 'min_new',
  'num_return_sequences': 'draws',
}
_OF_METHOD = {
  'beam': ('num_beams', 'early_stopping', 'length_penalty'),
  'sample': ('temperature', 'top_k', 'top_p', 'num_return_sequences'),
}
_TOKENS = (
  'bos_token_id', 'eos_token_id', 'pad_token_id', 'decoder_start_token_id', 'forced_bos_token_id',
  'forced_eos_token_id',
)  # fmt: skip
_WRITTEN = ('decoder_start_token_id', 'forced_bos_token_id', 'forced_eos_token_id')  # without being chosen
_NEUTRAL = dict.fromkeys(('length_penalty', 'temperature', 'top_p', 'num_return_sequences'), 1)
_THEIR_TOP_K = 50  # of transformers, for a folder that samples and has none
_USUAL = {'beams': 4, 'length_penalty': 1, 'temperature': 1, 'draws': 1}  # of the flags, of their methods
_OF_OTHERS = {'sample': ('num_beams',), 'beam': ('num_return_sequences',)}  # what transformers would combine
# no token that is made depends on them: how transformers computes and what it returns
_INERT = (
  'use_cache', 'cache_implementation', 'cache_config', 'max_cache_len', 'output_attentions', 'output_hidden_states',
  'output_scores', 'output_logits', 'return_dict_in_generate', 'is_assistant', 'num_assistant_tokens',
  'num_assistant_tokens_schedule', 'assistant_confidence_threshold', 'prompt_lookup_num_tokens',
  'max_matching_ngram_size', 'assistant_early_exit', 'assistant_lookbehind', 'target_lookbehind',
  'assistant_ensemble_weight', 'speculation_type', 'use_mtp', 'compile_config', 'disable_compile', 'low_memory',
  'continuous_batching_config', 'prefill_chunk_size', 'transformers_version', '_from_model_config', '_commit_hash',
  '_original_object_hash', 'trust_remote_code', 'return_legacy_cache', 'do_sample',
)  # fmt: skip
# keys of transformers that change tokens and have no flag, with the value that changes nothing
_MISSING: Mapping[str, Any] = {
  **dict.fromkeys(
    ('repetition_penalty', 'encoder_repetition_penalty', 'typical_p', 'guidance_scale', 'num_beam_groups'), 1
  ),
  **dict.fromkeys(
    ('max_length', 'min_length', 'max_time', 'stop_strings', 'min_p', 'top_h', 'epsilon_cutoff', 'eta_cutoff',
     'bad_words_ids', 'renormalize_logits', 'remove_invalid_values', 'exponential_decay_length_penalty',
     'suppress_tokens', 'begin_suppress_tokens', 'sequence_bias', 'token_healing', 'watermarking_config',
     'encoder_no_repeat_ngram_size', 'penalty_alpha', 'dola_layers', 'diversity_penalty', 'constraints',
     'force_words_ids', 'forced_decoder_ids'),
    None,
  ),
}  # fmt: skip


class Tokens(NamedTuple):
  """Ids of special tokens by role.

  Attributes:
    start: what the text of an encoder-decoder or a prefix trunk begins with; not part of the text.
    ends: each of them ends a text.
    first: what every text begins with.
    last: what a text of the greatest length ends with, one of them.
    mask: of the blank in a prompt.
  """

  start: int | None
  ends: tuple[int, ...]
  first: int | None
  last: tuple[int, ...]
  mask: int | None


def read(folder: Path, fields: Mapping[str, Any], *, kind: str, rows: int) -> dict[str, Any]:
  """The settings of generation that a folder has.

  Args:
    folder: of the tokenizer, where a generation_config.json stands beside it.
    fields: of config.json, ids of special tokens and settings of generation, which count where there is no such file.
    kind: attention of the trunk.
    rows: of the token table of the model, its number of ids.

  Raises:
    ValueError: the file is damaged, an id is none, or a text was to hold one that the model does not have.
  """
  there = files.is_file(folder / FILE)
  found = files.read_json(folder / FILE) if there else dict(fields)
  if not isinstance(found, dict):
    raise ValueError(f'{folder / FILE} holds no JSON object')
  without_start = kind == 'encoder-decoder' and found.get('decoder_start_token_id') is None
  written = (*_WRITTEN, 'bos_token_id') if without_start else _WRITTEN
  for name in _TOKENS:
    several = name in ('eos_token_id', 'forced_eos_token_id')
    ids = found.get(name)
    listed = ids if several and isinstance(ids, list) else [] if ids is None else [ids]
    where = f'{folder / FILE if there else "config.json"}: {name} is {ids!r}'
    if not all(type(one) is int for one in listed):
      raise ValueError(f'{where}, and must be {"an id or a list of ids" if several else "an id"}, or null')
    if max(listed, default=-1) >= rows:
      if name in written:
        raise ValueError(f'{where}, and the ids of the model end at {rows - 1}')
      log.info(f'{where}, and the ids of the model end at {rows - 1}: no text has it')
  for name in FLAGS:
    if isinstance(found.get(name), str | list | dict) and not (name == 'early_stopping' and found[name] == 'never'):
      raise ValueError(
        f'{folder / FILE if there else "config.json"}: {name} is {found[name]!r}, and must be a number, true or false'
      )
  return found


def warn(found: Mapping[str, Any], given: Mapping[str, Any]) -> None:
  """Names in the log what the settings of a folder ask for and is not done.

  Args:
    found: of `read`.
    given: the flags of the command.
  """
  several = (found.get('num_beams') or 1) > 1
  method = 'sample' if found.get('do_sample') else 'beam' if several else 'greedy'
  asked: dict[str, Any] = {} if method == 'greedy' else {'method': method}
  if method == 'sample' and found.get('top_k') is None:
    asked['top_k'] = _THEIR_TOP_K
  for name, flag in FLAGS.items():
    owner = next((owner for owner, names in _OF_METHOD.items() if name in names), method)
    if owner == method and found.get(name) not in (None, False, 0) and found[name] != _NEUTRAL.get(name):
      asked[flag] = found[name]
  usual = _USUAL if given.get('method') == method else {}
  done = {name: usual.get(name) if given.get(name) is None else given[name] for name in asked}
  if different := {name: value for name, value in asked.items() if done[name] not in (value, _spelt(value))}:
    flags = ' '.join(f'--{name}={_spelt(value)}' for name, value in different.items())
    log.warning(f'{_SOURCES} asks for other settings than the flags; this follows it: {flags}')
  known = {*FLAGS, *_TOKENS, *_INERT}
  nothing: tuple[Any, ...] = (None, False, 0, [], {}, '')
  odd = [
    name for name, value in found.items() if name not in known and value not in nothing and value != _MISSING.get(name)
  ]
  odd += [name for name in _OF_OTHERS.get(method, ()) if found.get(name) not in (*nothing, _NEUTRAL.get(name, 1))]
  if odd:
    values = ', '.join(f'{name}={found[name]!r}' for name in odd)
    log.warning(f'{_SOURCES} has settings that are not followed here: {values}')


def _spelt(value: Any) -> str:
  return str(value).lower() if isinstance(value, bool) else str(value)


def tokens(
  vocab: 'Vocab', found: Mapping[str, Any], flags: Mapping[str, Any], objective: Mapping[str, Any], *, kind: str
) -> Tokens:
  """Special tokens of a model.

  Args:
    vocab: of the model.
    found: of `read`.
    flags: of the command, which come first: `start`, `first` and `last` name a token, or are None.
    objective: block of the config of a run, which names `start`, `end` and `mask` as in training; empty for others.
    kind: attention of the trunk.

  Raises:
    ValueError: no such token, or none to begin with.
  """
  roles = {'pad': vocab.pad_id, 'bos': vocab.bos_id, 'eos': vocab.eos_id}
  named = {name: objective.get(name) for name in ('start', 'end', 'mask')}

  def one(name: str) -> int | None:
    return found.get(name) if (found.get(name) or 0) >= 0 else None

  def several(name: str) -> tuple[int, ...]:
    ids = found.get(name)
    return tuple(number for number in (ids if isinstance(ids, list) else [ids]) if number is not None and number >= 0)

  def forced(flag: str) -> int | None:
    return None if flags[flag] is None else vocab.id(flags[flag])

  if flags['start'] is not None:
    start: int | None = vocab.id(flags['start'])
  elif kind == 'encoder-decoder':
    theirs = [one(name) for name in ('decoder_start_token_id', 'bos_token_id') if one(name) is not None]
    start = roles.get(str(named['start']), theirs[0] if theirs else vocab.pad_id)
  elif (role := roles.get(str(named['start']))) is not None:
    start = role
  else:
    start = vocab.id(named['start']) if named['start'] else vocab.bos_id
  if kind == 'prefix' and start is None:
    raise ValueError('this vocabulary has no token that begins a text; name one by --start=TOKEN')
  own = () if vocab.eos_id is None else (vocab.eos_id,)
  ends = (vocab.id(named['end']),) if named['end'] else several('eos_token_id') if 'eos_token_id' in found else own
  first, last = forced('first'), forced('last')
  return Tokens(
    start,
    ends,
    one('forced_bos_token_id') if first is None else first,
    several('forced_eos_token_id') if last is None else (last,),
    vocab.id(named['mask']) if named['mask'] else vocab.mask_id,
  )


class Encoder:
  """Ids of texts as the tokenizer of a folder gives them, special tokens included.

  Of a decoder the token that ends a text is left out where the tokenizer adds one, since the text is to go on.

  Attributes:
    vocab: of the model.
    special: tokens of the model.
    kind: attention of the trunk.
    published: whether the tokenizer is a published one; the vocabulary of an older run does not say what stands around
      a text, which then is the begin and the end token but for decoders.
  """

  def __init__(
    self,
    vocab: 'Vocab',
    folder: Path,
    special: Tokens,
    *,
    kind: str,
    published: bool,
    template: 'Template | None' = None,
  ):
    """Reads the tokenizer of `folder`; a `template` stands around a text in place of what is there."""
    self.vocab, self.special, self.kind, self.published = vocab, special, kind, published
    self._marked = tokenizer.marked(folder, template=template)
    self._marked.no_truncation()
    self._marked.no_padding()

  def __call__(self, text: str, *, specials: bool = True) -> list[int]:
    """The ids of a text; without `specials` nothing is added to it."""
    vocab = self.vocab
    with probe.using():
      found = self._marked.encode(text, add_special_tokens=specials)
    ids = found.ids
    if not specials:
      return ids
    if self._marked.post_processor is None and not self.published:
      return ids if self.kind == 'causal' else [one for one in (vocab.bos_id, *ids, vocab.eos_id) if one is not None]
    if self.kind == 'causal' and ids and found.special_tokens_mask[-1]:
      return ids[:-1] if ids[-1] in {*self.special.ends, vocab.eos_id, vocab.sep_id} else ids
    return ids


def encode(text: str, vocab: 'Vocab', folder: Path, special: Tokens, *, kind: str, published: bool) -> list[int]:
  """Ids of one prompt, see `Encoder`; an empty one is the token that begins a text.

  Raises:
    ValueError: no ids at all.
  """
  return prompt(text, Encoder(vocab, folder, special, kind=kind, published=published))


def prompt(text: str, encoder: Encoder) -> list[int]:
  """As `encode`, by an encoder that is there already."""
  ids, vocab = encoder(text), encoder.vocab
  if not ids and vocab.bos_id is not None:
    ids = [vocab.bos_id]
  if not ids:
    raise ValueError('the prompt is empty, and this vocabulary has no token that begins a text')
  return ids


def decode(ids: Sequence[int], vocab: 'Vocab') -> str:
  """The text of some ids with its sentinels and masks, which stand for text that is missing."""
  special = set(vocab.special_ids)
  shown = [token for token in ids if token not in special or token == vocab.mask_id or is_sentinel(vocab.token(token))]
  return vocab.decode(shown, specials=True)


def is_sentinel(token: str) -> bool:
  """Whether a token stands for a blank of T5's."""
  return re.fullmatch(SENTINEL, token) is not None
