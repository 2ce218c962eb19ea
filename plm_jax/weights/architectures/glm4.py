"""Tensors and config fields of GLM-4 and GLM-4-0414 in Hugging Face's form: LLaMA's, with gate and up joined."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from plm_jax.models.llama import Llama
from plm_jax.weights import fields
from plm_jax.weights.architectures import llama
from plm_jax.weights.class_heads import TaskHead, of_task, one_layer, score
from plm_jax.weights.table import Derived, Entry, Part

MODEL = 'llama'
MODEL_TYPES = ('glm', 'glm4')
PREFIX = 'model.'
HEADS: tuple[str, ...] = ()

FIELDS: fields.Fields = {
  **llama.SHARED,
  'rms_norm_eps': fields.epsilon(1.5625e-7),
  'attention_bias': fields.flag(True),
  'max_position_embeddings': fields.size(131_072),
  'num_key_value_heads': fields.layers(2),
  'head_dim': fields.size(128),
}
DERIVED: Mapping[str, Derived] = llama.DERIVED

_VARIANTS: Mapping[str, str] = {'glm': 'glm-4-9b', 'glm4': 'glm-4-9b-0414'}


def tasks(trunk: Llama) -> dict[str, TaskHead]:
  return {'ForSequenceClassification': score(), 'ForTokenClassification': one_layer('tag', 'score')}


def read_config(theirs: Mapping[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
  theirs = fields.complete(FIELDS, theirs)
  overrides = llama.shared_config(theirs, names, share=0.5) | {
    'rotary': 'pairs',
    'norm_epsilon': theirs['rms_norm_eps'],
    'qkv_bias': theirs['attention_bias'],
  }
  return {'vocab_size': theirs['vocab_size'], 'variant': _VARIANTS[theirs['model_type']], 'overrides': overrides}


def write_config(trunk: Llama, heads: Sequence[str]) -> dict[str, Any]:
  c = trunk.config
  family = 'Glm4' if c.norm_placement == 'sandwich' else 'Glm'
  theirs = {
    'model_type': family.lower(),
    'architectures': [f'{family}{llama.kind_of(trunk, heads)}'],
    **llama.shared_fields(trunk),
    'partial_rotary_factor': c.rotary_share,
    'pad_token_id': 0,
  }
  llama.check_form(trunk, 'GLM-4', read_config(theirs))
  return theirs


def entries(trunk: Llama, heads: Sequence[str]) -> list[Entry]:
  ours, block, width = 'trunk/layers', 'model.layers.{layer}', trunk.config.mlp_dim
  out = llama.attention(trunk)
  for index, part in enumerate(('gate', 'up')):
    rows = Part(index * width, (index + 1) * width, 2 * width)
    out.append(Entry(f'{ours}/mlp/{part}/kernel', f'{block}.mlp.gate_up_proj.weight', 'linear', part=rows))
  out.append(Entry(f'{ours}/mlp/down/kernel', f'{block}.mlp.down_proj.weight', 'linear'))
  out.append(Entry(f'{ours}/mlp_norm/scale', f'{block}.post_attention_layernorm.weight'))
  if trunk.config.norm_placement == 'sandwich':
    out.append(Entry(f'{ours}/after_attention_norm/scale', f'{block}.post_self_attn_layernorm.weight'))
    out.append(Entry(f'{ours}/after_mlp_norm/scale', f'{block}.post_mlp_layernorm.weight'))
  return out + of_task(HEADS, tasks(trunk), heads)
