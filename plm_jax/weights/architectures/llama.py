"""Names and shapes of LLaMA in Hugging Face folders, whose kernels are permuted for rotary positions by halves."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from plm_jax.models.llama import Llama
from plm_jax.weights import fields
from plm_jax.weights.table import Derived, Entry, check_heads

MODEL = 'llama'
MODEL_TYPES = ('llama',)
PREFIX = 'model.'
HEADS: tuple[str, ...] = ()


def _holds_frequencies(trunk: Llama, tensor: np.ndarray) -> bool:
  """The angle that a position turns each pair by, rounded to the 8 bits of bfloat16."""
  c = trunk.config
  pairs = int(c.head_size * c.rotary_share) // 2
  return tensor.shape == (pairs,) and np.allclose(
    tensor.astype(np.float32), c.rotary_base ** (-np.arange(pairs) / pairs), rtol=2**-7
  )


_ROTATION: fields.Fields = MappingProxyType(
  {'rope_theta': fields.number(None), 'partial_rotary_factor': fields.number(None, most=1)}
)
# what LLaMA and GLM-4 call alike; `shared_config` looks at the kind of rotation
SHARED: fields.Fields = MappingProxyType(
  {
    **fields.ONE_STACK,
    'is_decoder': fields.inert(),
    'hidden_size': fields.size(),
    'num_hidden_layers': fields.layers(),
    'num_attention_heads': fields.layers(),
    'num_key_value_heads': fields.layers(None),
    'head_dim': fields.size(None),
    'intermediate_size': fields.size(),
    'hidden_act': fields.choice('silu', ('silu', 'swish')),
    'max_position_embeddings': fields.size(2048),
    'rope_parameters': fields.block(_ROTATION),
    'rope_scaling': fields.block(_ROTATION),
    **_ROTATION,
    'tie_word_embeddings': fields.flag(False),
    'attention_dropout': fields.rate(0.0),
    'initializer_range': fields.number(0.02),
    'ignore_keys_at_rope_validation': fields.inert(),
  }
)
FIELDS: fields.Fields = MappingProxyType(
  {
    **SHARED,
    'rms_norm_eps': fields.number(1e-6),
    'attention_bias': fields.fixed(False),
    'mlp_bias': fields.fixed(False),
    'pretraining_tp': fields.inert(),
  }
)
DERIVED: Mapping[str, Derived] = MappingProxyType({'rotary_emb.inv_freq': _holds_frequencies})
UNUSED: tuple[str, ...] = ()


def read_config(theirs: Mapping[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
  """Keywords of `models.llama.make` for a config.json.

  Raises:
    ValueError: it describes what the trunk does not have.
  """
  del names
  theirs = fields.complete(FIELDS, theirs)
  overrides = shared_config(theirs) | {'rotary': 'halves', 'norm_epsilon': theirs['rms_norm_eps']}
  if overrides['rotary_share'] != 1:
    raise ValueError('partial_rotary_factor is set, and LLaMA rotates whole heads')
  return {'vocab_size': theirs['vocab_size'], 'variant': 'llama-7b', 'overrides': overrides}


def shared_config(theirs: Mapping[str, Any], *, share: float = 1.0) -> dict[str, Any]:
  """The fields that LLaMA and GLM-4 call alike.

  Args:
    theirs: config.json, complete.
    share: of a head that is rotated where the file does not say.

  Raises:
    ValueError: it describes what the trunk does not have.
  """
  # newer files keep all about rotation in one place
  rotary = theirs['rope_parameters'] or {}
  stretched = theirs['rope_scaling'] or (rotary if rotary.get('rope_type', 'default') != 'default' else None)
  if stretched:
    raise ValueError(f'rotary positions are stretched ({stretched}), which the trunk does not do')
  width, heads = theirs['hidden_size'], theirs['num_attention_heads']
  if (size := theirs['head_dim'] or width // heads) * heads != width:
    raise ValueError(f'head_dim {size} times num_attention_heads {heads} is not hidden_size {width}')
  return {
    'hidden_dim': width,
    'num_layers': theirs['num_hidden_layers'],
    'num_heads': heads,
    'num_kv_heads': theirs['num_key_value_heads'] or heads,
    'mlp_dim': theirs['intermediate_size'],
    'max_length': theirs['max_position_embeddings'],
    'rotary_share': rotary.get('partial_rotary_factor') or theirs['partial_rotary_factor'] or share,
    'rotary_base': rotary.get('rope_theta') or theirs['rope_theta'] or 10_000.0,
    'tied': theirs['tie_word_embeddings'],
    'attention_dropout': theirs['attention_dropout'],
    'init_std': theirs['initializer_range'],
  }


def write_config(trunk: Llama, heads: Sequence[str]) -> dict[str, Any]:
  """A config.json for the trunk.

  Raises:
    ValueError: the published form has no place for its structure or for a head.
  """
  c = trunk.config
  check_heads(heads, HEADS)
  if c.rotary != 'halves' or c.rotary_share != 1 or c.qkv_bias or c.norm_placement != 'pre':
    raise ValueError(
      'LLaMA rotates the halves of whole heads, has no biases and its norms before the sublayers; the trunk has '
      f'rotary={c.rotary!r}, rotary_share={c.rotary_share}, qkv_bias={c.qkv_bias}, '
      f'norm_placement={c.norm_placement!r}'
    )
  return {'model_type': 'llama', 'architectures': ['LlamaForCausalLM'], **shared_fields(trunk)}


def shared_fields(trunk: Llama) -> dict[str, Any]:
  """What LLaMA and GLM-4 write into config.json alike, as programs of before and after `rope_parameters` read it."""
  c = trunk.config
  return {
    'vocab_size': trunk.vocab_size,
    'hidden_size': c.hidden_dim,
    'num_hidden_layers': c.num_layers,
    'num_attention_heads': c.num_heads,
    'num_key_value_heads': c.key_heads,
    'head_dim': c.head_size,
    'intermediate_size': c.mlp_dim,
    'hidden_act': 'silu',
    'max_position_embeddings': c.max_length,
    'rms_norm_eps': c.norm_epsilon,
    'rope_theta': c.rotary_base,
    'tie_word_embeddings': c.tied,
    'attention_bias': c.qkv_bias,
    'attention_dropout': c.attention_dropout,
    'initializer_range': c.init_std,
  }


def entries(trunk: Llama, heads: Sequence[str]) -> list[Entry]:
  """Every parameter of the trunk.

  Raises:
    ValueError: there is no place for a head.
  """
  block = 'model.layers.{layer}'
  return [
    *attention(trunk, heads),
    *(
      Entry(f'trunk/layers/mlp/{part}/kernel', f'{block}.mlp.{part}_proj.weight', 'linear')
      for part in ('gate', 'up', 'down')
    ),
    Entry('trunk/layers/mlp_norm/scale', f'{block}.post_attention_layernorm.weight'),
  ]


def attention(trunk: Llama, heads: Sequence[str]) -> list[Entry]:
  """All but the feed-forward and the norms beside it, alike in LLaMA and GLM-4.

  Raises:
    ValueError: there is no place for a head.
  """
  check_heads(heads, HEADS)
  ours, block = 'trunk/layers', 'model.layers.{layer}'
  tied = ('lm_head.weight',) if trunk.config.tied else ()
  out = [Entry('trunk/token_embed/table', 'model.embed_tokens.weight', tied=tied)]
  if not trunk.config.tied:
    out.append(Entry('trunk/output/table', 'lm_head.weight'))
  for part in ('query', 'key', 'value'):
    theirs = f'{block}.self_attn.{part[0]}_proj'
    out.append(Entry(f'{ours}/{part}/kernel', f'{theirs}.weight', 'linear'))
    if trunk.config.qkv_bias:
      out.append(Entry(f'{ours}/{part}/bias', f'{theirs}.bias', 'matrix', inputs=2))
  out.append(Entry(f'{ours}/out/kernel', f'{block}.self_attn.o_proj.weight', 'linear', inputs=2))
  out.append(Entry(f'{ours}/attention_norm/scale', f'{block}.input_layernorm.weight'))
  out.append(Entry('trunk/final_norm/scale', 'model.norm.weight'))
  return out
