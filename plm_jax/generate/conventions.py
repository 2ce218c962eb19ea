"""Generation conventions of a model folder: special tokens, and the settings it was published with.

A folder in Hugging Face's form stores them in generation_config.json or, if there is none, in config.json; transformers
reads the same files. For a run, they come from the config and the vocabulary.
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
_SOURCES = f'{FILE} of the folder (or its config.json)'
# key -> the flag of the command with its value
FLAGS = {
  'num_beams': 'beams', 'early_stopping': 'early_stop', 'length_penalty': 'length_penalty',
  'temperature': 'temperature', 'top_k': 'top_k', 'top_p': 'top_p', 'no_repeat_ngram_size': 'no_repeat',
  'max_new_tokens': 'max_new', 'min_new_tokens': 'min_new', 'num_return_sequences': 'num_samples',
}  # fmt: skip
_OF_METHOD = {
  'beam': ('num_beams', 'early_stopping', 'length_penalty'),
  'sample': ('temperature', 'top_k', 'top_p', 'num_return_sequences'),
}
_TOKENS = (
  'bos_token_id', 'eos_token_id', 'pad_token_id', 'decoder_start_token_id', 'forced_bos_token_id',
  'forced_eos_token_id',
)  # fmt: skip
# written into the text without being predicted
_WRITTEN = ('decoder_start_token_id', 'forced_bos_token_id', 'forced_eos_token_id')
_NEUTRAL = dict.fromkeys(('length_penalty', 'temperature', 'top_p', 'num_return_sequences'), 1)
_THEIR_TOP_K = 50  # default of transformers for a folder that samples
_DEFAULTS = {'beams': 4, 'length_penalty': 1, 'temperature': 1, 'num_samples': 1}  # of flags that belong to a method
_OF_OTHERS = {'sample': ('num_beams',), 'beam': ('num_return_sequences',)}  # transformers would combine them
# keys of transformers that change no generated token
_INERT = (
  'use_cache', 'cache_implementation', 'cache_config', 'max_cache_len', 'output_attentions', 'output_hidden_states',
  'output_scores', 'output_logits', 'return_dict_in_generate', 'is_assistant', 'num_assistant_tokens',
  'num_assistant_tokens_schedule', 'assistant_confidence_threshold', 'prompt_lookup_num_tokens',
  'max_matching_ngram_size', 'assistant_early_exit', 'assistant_lookbehind', 'target_lookbehind',
  'assistant_ensemble_weight', 'speculation_type', 'use_mtp', 'compile_config', 'disable_compile', 'low_memory',
  'continuous_batching_config', 'prefill_chunk_size', 'transformers_version', '_from_model_config', '_commit_hash',
  '_original_object_hash', 'trust_remote_code', 'return_legacy_cache', 'do_sample',
)  # fmt: skip
# keys of transformers that change tokens and have no flag -> the neutral value
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
  """Ids of special tokens by role."""

  start: int | None  # first token that the decoder of an encoder-decoder or a prefix trunk reads; not part of the text
  ends: tuple[int, ...]  # each of them ends a text
  first: int | None  # first token of every text
  last: tuple[int, ...]  # tokens that may end a text of the greatest length
  mask: int | None  # of the blank in a prompt


def read(folder: Path, fields: Mapping[str, Any], *, kind: str, rows: int) -> dict[str, Any]:
  """Read the generation settings of a folder.

  Args:
    folder: of the tokenizer, with generation_config.json if there is one.
    fields: of config.json, ids of special tokens and generation settings, used if there is no such file.
    kind: attention of the trunk.
    rows: of the token table of the model, its number of ids.

  Raises:
    ValueError: a damaged file, an invalid id, or a required id that the model does not have.
  """
  has_file = files.is_file(folder / FILE)
  config = files.read_json(folder / FILE) if has_file else dict(fields)
  if not isinstance(config, dict):
    raise ValueError(f'{folder / FILE} is not a JSON object: download it again')
  source = folder / FILE if has_file else 'config.json'
  without_start = kind == 'encoder-decoder' and config.get('decoder_start_token_id') is None
  written = (*_WRITTEN, 'bos_token_id') if without_start else _WRITTEN
  for name in _TOKENS:
    several = name in ('eos_token_id', 'forced_eos_token_id')
    ids = config.get(name)
    listed = ids if several and isinstance(ids, list) else [] if ids is None else [ids]
    if not all(type(token_id) is int for token_id in listed):
      expected = 'an id or a list of ids' if several else 'an id'
      raise ValueError(f'{source}: {name}={ids!r} must be {expected}, or null')
    if max(listed, default=-1) >= rows:
      if name in written:
        raise ValueError(f'{source}: {name}={ids!r} is above the largest id of the model, {rows - 1}: correct the file')
      log.info(f'{source}: {name}={ids!r} is above the largest id of the model, {rows - 1}: it is never generated')
  for name in FLAGS:
    if isinstance(config.get(name), str | list | dict) and not (name == 'early_stopping' and config[name] == 'never'):
      raise ValueError(f'{source}: {name}={config[name]!r} must be a number, true or false')
  return config


def warn(config: Mapping[str, Any], flags: Mapping[str, Any]) -> None:
  """Log the settings of a folder that the command does not follow."""
  several = (config.get('num_beams') or 1) > 1
  method = 'sample' if config.get('do_sample') else 'beam' if several else 'greedy'
  requested: dict[str, Any] = {} if method == 'greedy' else {'method': method}  # by flag
  if method == 'sample' and config.get('top_k') is None:
    requested['top_k'] = _THEIR_TOP_K
  for name, flag in FLAGS.items():
    owner = next((owner for owner, names in _OF_METHOD.items() if name in names), method)
    if owner == method and config.get(name) not in (None, False, 0) and config[name] != _NEUTRAL.get(name):
      requested[flag] = config[name]
  defaults = _DEFAULTS if flags.get('method') == method else {}
  used = {name: defaults.get(name) if flags.get(name) is None else flags[name] for name in requested}
  if different := {name: value for name, value in requested.items() if used[name] not in (value, _as_flag(value))}:
    words = ' '.join(f'--{name}={_as_flag(value)}' for name, value in different.items())
    log.warning(f'{_SOURCES} has other settings than the flags; to follow it, add {words}')
  known = {*FLAGS, *_TOKENS, *_INERT}
  empty: tuple[Any, ...] = (None, False, 0, [], {}, '')
  ignored = [
    name for name, value in config.items() if name not in known and value not in empty and value != _MISSING.get(name)
  ]
  ignored += [name for name in _OF_OTHERS.get(method, ()) if config.get(name) not in (*empty, _NEUTRAL.get(name, 1))]
  if ignored:
    values = ', '.join(f'{name}={config[name]!r}' for name in ignored)
    log.warning(f'{_SOURCES} has settings that are ignored: {values}')


def _as_flag(value: Any) -> str:
  return str(value).lower() if isinstance(value, bool) else str(value)


def tokens(
  vocab: 'Vocab', config: Mapping[str, Any], flags: Mapping[str, Any], objective: Mapping[str, Any], *, kind: str
) -> Tokens:
  """Find the special tokens of a model.

  Args:
    config: of `read`.
    flags: of the command, which take precedence: `start`, `first` and `last` name a token, or are None.
    objective: block of the config of a run, which names `start`, `end` and `mask` as in training; empty for others.
    kind: attention of the trunk.

  Raises:
    ValueError: an unknown token, or no start token.
  """
  roles = {'pad': vocab.pad_id, 'bos': vocab.bos_id, 'eos': vocab.eos_id}
  named = {name: objective.get(name) for name in ('start', 'end', 'mask')}

  def id_of(name: str) -> int | None:
    return config.get(name) if (config.get(name) or 0) >= 0 else None

  def ids_of(name: str) -> tuple[int, ...]:
    ids = config.get(name)
    return tuple(i for i in (ids if isinstance(ids, list) else [ids]) if i is not None and i >= 0)

  def forced(flag: str) -> int | None:
    return None if flags[flag] is None else vocab.id(flags[flag])

  if flags['start'] is not None:
    start: int | None = vocab.id(flags['start'])
  elif kind == 'encoder-decoder':
    theirs = [id_of(name) for name in ('decoder_start_token_id', 'bos_token_id') if id_of(name) is not None]
    start = roles.get(str(named['start']), theirs[0] if theirs else vocab.pad_id)
  elif (role := roles.get(str(named['start']))) is not None:
    start = role
  else:
    start = vocab.id(named['start']) if named['start'] else vocab.bos_id
  if kind == 'prefix' and start is None:
    raise ValueError('this vocabulary has no token that begins a text: name one with --start=TOKEN')
  own = () if vocab.eos_id is None else (vocab.eos_id,)
  ends = (vocab.id(named['end']),) if named['end'] else ids_of('eos_token_id') if 'eos_token_id' in config else own
  first, last = forced('first'), forced('last')
  return Tokens(
    start=start,
    ends=ends,
    first=id_of('forced_bos_token_id') if first is None else first,
    last=ids_of('forced_eos_token_id') if last is None else (last,),
    mask=vocab.id(named['mask']) if named['mask'] else vocab.mask_id,
  )


class Encoder:
  """Encoder of prompts by the tokenizer of a folder, with special tokens.

  For a decoder, the end token that a tokenizer adds is removed, since the text continues.

  Attributes:
    published: the tokenizer is a published one. The vocabulary of an older run has no template; then a text gets a
      begin and an end token, except for decoders.
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
    """Read the tokenizer of `folder`; `template` replaces its template."""
    self.vocab, self.special, self.kind, self.published = vocab, special, kind, published
    self._marked = tokenizer.marked(folder, template=template)
    self._marked.no_truncation()
    self._marked.no_padding()

  def __call__(self, text: str, *, specials: bool = True) -> list[int]:
    """Encode a text; without `specials` no special token is added."""
    vocab = self.vocab
    with probe.using():
      encoding = self._marked.encode(text, add_special_tokens=specials)
    ids = encoding.ids
    if not specials:
      return ids
    if self._marked.post_processor is None and not self.published:
      return ids if self.kind == 'causal' else [i for i in (vocab.bos_id, *ids, vocab.eos_id) if i is not None]
    if self.kind == 'causal' and ids and encoding.special_tokens_mask[-1]:
      return ids[:-1] if ids[-1] in {*self.special.ends, vocab.eos_id, vocab.sep_id} else ids
    return ids


def prompt(text: str, encoder: Encoder) -> list[int]:
  """Encode one prompt, or the begin token; ValueError without ids."""
  ids, vocab = encoder(text), encoder.vocab
  if not ids and vocab.bos_id is not None:
    ids = [vocab.bos_id]
  if not ids:
    raise ValueError('the prompt is empty, and this vocabulary has no token that begins a text: give a longer prompt')
  return ids


def decode(ids: Sequence[int], vocab: 'Vocab') -> str:
  """Decode ids to text, with sentinels and masks, which mark missing text."""
  special = set(vocab.special_ids)
  shown = [token for token in ids if token not in special or token == vocab.mask_id or is_sentinel(vocab.token(token))]
  return vocab.decode(shown, specials=True)


def is_sentinel(token: str) -> bool:
  """Return True if a token is a sentinel of T5."""
  return re.fullmatch(SENTINEL, token) is not None
