"""Names and shapes of LLaMA in Hugging Face folders, whose kernels are permuted for rotary positions by halves."""

from collections.abc import Mapping, Sequence
from typing import Any

from plm_jax.models.llama import Llama
from plm_jax.weights.table import Entry, check_heads

MODEL = 'llama'
MODEL_TYPES = ('llama',)
PREFIX = 'model.'
HEADS: tuple[str, ...] = ()


def read_config(theirs: Mapping[str, Any]) -> dict[str, Any]:
  """Keywords of `models.llama.make` for a config.json.

  Raises:
    ValueError: it describes what the trunk does not have.
  """
  for field in ('attention_bias', 'mlp_bias'):
    if theirs.get(field):
      raise ValueError(f'{field} is set, and LLaMA has no biases')
  overrides = shared_config(theirs) | {'rotary': 'halves', 'norm_epsilon': theirs.get('rms_norm_eps', 1e-6)}
  if overrides['rotary_share'] != 1:
    raise ValueError('partial_rotary_factor is set, and LLaMA rotates whole heads')
  return {'vocab_size': theirs['vocab_size'], 'variant': 'llama-7b', 'overrides': overrides}


def shared_config(theirs: Mapping[str, Any], *, share: float = 1.0) -> dict[str, Any]:
  """The fields that LLaMA and GLM-4 call alike.

  Args:
    theirs: config.json.
    share: of a head that is rotated where the file does not say.

  Raises:
    ValueError: it describes what the trunk does not have.
  """
  if (activation := theirs.get('hidden_act', 'silu')) != 'silu':
    raise ValueError(f'activation {activation!r} is not silu')
  # newer files keep all about rotation in one place
  rotary = theirs.get('rope_parameters') or {}
  stretched = theirs.get('rope_scaling') or (rotary if rotary.get('rope_type', 'default') != 'default' else None)
  if stretched:
    raise ValueError(f'rotary positions are stretched ({stretched}), which the trunk does not do')
  width, heads = theirs['hidden_size'], theirs['num_attention_heads']
  if (size := theirs.get('head_dim') or width // heads) * heads != width:
    raise ValueError(f'head_dim {size} times num_attention_heads {heads} is not hidden_size {width}')
  return {
    'hidden_dim': width,
    'num_layers': theirs['num_hidden_layers'],
    'num_heads': heads,
    'num_kv_heads': theirs.get('num_key_value_heads') or heads,
    'mlp_dim': theirs['intermediate_size'],
    'max_length': theirs.get('max_position_embeddings', 2048),
    'rotary_share': rotary.get('partial_rotary_factor', theirs.get('partial_rotary_factor', share)),
    'rotary_base': rotary.get('rope_theta', theirs.get('rope_theta', 10_000.0)),
    'tied': theirs.get('tie_word_embeddings', False),
    'attention_dropout': theirs.get('attention_dropout', 0.0),
    'init_std': theirs.get('initializer_range', 0.02),
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
