"""Tensors and config fields of LLaMA in Hugging Face's form: kernels are permuted for rotary positions by halves."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from plm_jax.models.llama import CONFIGS, Llama
from plm_jax.weights import fields
from plm_jax.weights.class_heads import TaskHead, is_task, of_task, one_layer, score
from plm_jax.weights.table import Derived, Entry, has_output, linear

MODEL = 'llama'
MODEL_TYPES = ('llama',)
PREFIX = 'model.'
OTHER_PREFIXES = ('transformer.',)  # of LlamaForQuestionAnswering
HEADS: tuple[str, ...] = ()


def _holds_frequencies(trunk: Any, tensor: np.ndarray) -> bool:
  """Check for the rotary angles, rounded to the 8 bits of bfloat16."""
  speeds = trunk.config.rotary_speeds
  return tensor.shape == speeds.shape and np.allclose(tensor.astype(np.float32), speeds, rtol=2**-7)


# rope_type -> the keys that it needs, and our names of them
_SCALINGS: Mapping[str, Mapping[str, str]] = {
  'default': {},
  'linear': {'factor': 'rotary_factor'},
  'llama3': {'factor': 'rotary_factor', 'low_freq_factor': 'rotary_low', 'high_freq_factor': 'rotary_high'},
}
_FIRST_LENGTH = 'original_max_position_embeddings'
_ROTATION: fields.Fields = {
  'rope_theta': fields.number(None, above=1),
  'partial_rotary_factor': fields.number(None, above=0, most=1),
  _FIRST_LENGTH: fields.size(None),
}
_SCALED: fields.Fields = {
  **_ROTATION,
  'factor': fields.number(least=1),
  'low_freq_factor': fields.number(above=0),
  'high_freq_factor': fields.number(above=0),
}
# fields of LLaMA and GLM-4; `shared_config` checks the kind of rotation
SHARED: fields.Fields = {
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
  'rope_parameters': fields.block(_SCALED),
  'rope_scaling': fields.block(_SCALED),
  **_ROTATION,
  'tie_word_embeddings': fields.flag(False),
  'attention_dropout': fields.rate(0.0),
  'initializer_range': fields.std(0.02),
  'ignore_keys_at_rope_validation': fields.inert(),
}
FIELDS: fields.Fields = {
  **SHARED,
  'rms_norm_eps': fields.epsilon(1e-6),
  'attention_bias': fields.flag(False),
  'mlp_bias': fields.flag(False),
  'pretraining_tp': fields.inert(),
}
_NAMES: Mapping[str, str] = {  # their fields, ours
  'hidden_size': 'hidden_dim', 'num_hidden_layers': 'num_layers', 'num_attention_heads': 'num_heads',
  'intermediate_size': 'mlp_dim', 'max_position_embeddings': 'max_length', 'tie_word_embeddings': 'tied',
  'attention_dropout': 'attention_dropout', 'initializer_range': 'init_std',
}  # fmt: skip
DERIVED: Mapping[str, Derived] = {'rotary_emb.inv_freq': _holds_frequencies}


def tasks(trunk: Llama) -> dict[str, TaskHead]:
  return {
    'ForSequenceClassification': score(),
    'ForTokenClassification': one_layer('tag', 'score'),
    'ForQuestionAnswering': one_layer('span', 'qa_outputs'),
  }


def read_config(theirs: Mapping[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
  theirs = fields.complete(FIELDS, theirs)
  return {'vocab_size': theirs['vocab_size'], 'variant': 'llama-7b', 'overrides': own_config(theirs, names)}


def own_config(theirs: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
  """Convert the fields that LLaMA and its relatives share."""
  overrides = shared_config(theirs, names) | {
    'rotary': 'halves',
    'norm_epsilon': theirs['rms_norm_eps'],
    'qkv_bias': theirs['attention_bias'],
    'out_bias': theirs['attention_bias'],
    'mlp_bias': theirs['mlp_bias'],
  }
  if overrides['rotary_share'] != 1:
    raise ValueError('partial_rotary_factor is set, but this family rotates whole heads')
  return overrides


def shared_config(theirs: Mapping[str, Any], names: Collection[str], *, share: float = 1.0) -> dict[str, Any]:
  """Convert the fields that LLaMA and GLM-4 share, or raise ValueError.

  `share` is the rotated share of a head, if the file does not specify it.
  """
  fields.check_multiple(theirs, 'hidden_size', 'num_attention_heads')
  width, heads = theirs['hidden_size'], theirs['num_attention_heads']
  size = theirs['head_dim'] or width // heads
  return {
    **{ours: theirs[name] for name, ours in _NAMES.items()},
    'head_dim': None if size * heads == width else size,
    'num_kv_heads': theirs['num_key_value_heads'] or heads,
    **_rotation(theirs, share=share),
    'has_output': has_output(names, tied=theirs['tie_word_embeddings']),
  }


def _rotation(theirs: Mapping[str, Any], *, share: float) -> dict[str, Any]:
  """Convert the fields of rotation; raise ValueError for unsupported or missing values.

  Newer files have them in `rope_parameters`; `rope_scaling` of older ones takes precedence.
  """
  source = 'rope_scaling' if theirs['rope_scaling'] else 'rope_parameters'
  given = theirs[source] or {}
  kind = given.get('rope_type', given.get('type', 'default'))
  if kind not in _SCALINGS:
    sources = source if source == 'rope_scaling' else 'rope_parameters (or rope_scaling)'
    raise ValueError(f'{sources}: rope_type is {kind!r}, and must be one of {", ".join(_SCALINGS)}')
  if missing := [key for key in _SCALINGS[kind] if key not in given]:
    raise ValueError(f'{source}: rope_type {kind!r} needs {", ".join(missing)}')
  out = {
    'rotary_share': given.get('partial_rotary_factor') or theirs['partial_rotary_factor'] or share,
    'rotary_base': given.get('rope_theta') or theirs['rope_theta'] or 10_000.0,
  }
  size = theirs['head_dim'] or theirs['hidden_size'] // theirs['num_attention_heads']
  if int(size * out['rotary_share']) % 2 or size * out['rotary_share'] < 2:
    raise ValueError(
      f'partial_rotary_factor is {out["rotary_share"]}, but must rotate an even number of the {size} components of '
      'head_dim'
    )
  if kind == 'default':
    return out
  out |= {'rotary_scaling': kind} | {ours: given[key] for key, ours in _SCALINGS[kind].items()}
  if kind == 'llama3':
    out['rotary_length'] = theirs[_FIRST_LENGTH] or given.get(_FIRST_LENGTH) or theirs['max_position_embeddings']
  return out


def write_config(trunk: Llama, heads: Sequence[str]) -> dict[str, Any]:
  c = trunk.config
  theirs = {
    'model_type': 'llama',
    'architectures': [f'Llama{kind_of(trunk, heads)}'],
    **shared_fields(trunk),
    'mlp_bias': c.mlp_bias,
  }
  check_form(trunk, 'LLaMA', read_config(theirs))
  return theirs


def check_form(trunk: Llama, name: str, made: Mapping[str, Any]) -> None:
  """Raise ValueError unless `made`, read from what was written, is the trunk."""
  own = dataclasses.asdict(dataclasses.replace(CONFIGS[made['variant']], **made['overrides']))
  ours = dataclasses.asdict(trunk.config) | {'num_kv_heads': trunk.config.key_heads}
  free = ('head_dim', 'dropout', 'vocab_multiple', 'has_output', 'rotary_length')
  other = [key for key in ours if key not in free and ours[key] != own[key]]
  if other := [f'{key}={own[key]!r}, not {ours[key]!r}' for key in other]:
    raise ValueError(f'{name} needs {"; ".join(other[:2])}')


def kind_of(trunk: Any, heads: Sequence[str]) -> str:
  """Return the suffix of the name of their class."""
  return next(filter(is_task, heads), None) or ('ForCausalLM' if trunk.gives_logits else 'Model')


def shared_fields(trunk: Llama) -> dict[str, Any]:
  """Build the fields shared with GLM-4; raise ValueError for an indivisible width.

  They are readable by programs before and after `rope_parameters`.
  """
  c = trunk.config
  if c.hidden_dim % c.num_heads:
    raise ValueError(f'hidden_size {c.hidden_dim} must be a multiple of num_attention_heads {c.num_heads}')
  scaling: dict[str, Any] = {'rope_type': c.rotary_scaling}
  scaling |= {key: dataclasses.asdict(c)[ours] for key, ours in _SCALINGS.get(c.rotary_scaling, {}).items()}
  if c.rotary_scaling == 'llama3':
    scaling[_FIRST_LENGTH] = c.max_length if c.rotary_length is None else c.rotary_length
  return {
    'vocab_size': trunk.vocab_size,
    **fields.named(c, _NAMES),
    'num_key_value_heads': c.key_heads,
    'head_dim': c.head_size,
    'hidden_act': 'silu',
    'rms_norm_eps': c.norm_epsilon,
    'rope_theta': c.rotary_base,
    'rope_scaling': None if c.rotary_scaling == 'none' else scaling,
    'attention_bias': c.qkv_bias,
  }


def entries(trunk: Llama, heads: Sequence[str]) -> list[Entry]:
  block, out = 'model.layers.{layer}', attention(trunk)
  for part in ('gate', 'up', 'down'):
    out += linear(f'trunk/layers/mlp/{part}', f'{block}.mlp.{part}_proj', bias=trunk.config.mlp_bias)
  out.append(Entry('trunk/layers/mlp_norm/scale', f'{block}.post_attention_layernorm.weight'))
  return (for_answers(out) if 'ForQuestionAnswering' in heads else out) + of_task(HEADS, tasks(trunk), heads)


def for_answers(entries: Sequence[Entry]) -> list[Entry]:
  """Rename entries as in their class for question answering."""
  return [entry._replace(theirs=entry.theirs.replace(PREFIX, OTHER_PREFIXES[0], 1)) for entry in entries]


def attention(trunk: Llama) -> list[Entry]:
  """List the entries except head, feed-forward layer and its norms."""
  ours, block, c = 'trunk/layers', 'model.layers.{layer}', trunk.config
  tied = ('lm_head.weight',) if c.tied else ()
  out = [Entry('trunk/token_embed/table', 'model.embed_tokens.weight', tied=tied)]
  if trunk.gives_logits and not c.tied:
    out.append(Entry('trunk/output/table', 'lm_head.weight'))
  for part in ('query', 'key', 'value'):
    out += linear(f'{ours}/{part}', f'{block}.self_attn.{part[0]}_proj', bias=c.qkv_bias)
  out += linear(f'{ours}/out', f'{block}.self_attn.o_proj', inputs=2, bias=c.out_bias)
  out.append(Entry(f'{ours}/attention_norm/scale', f'{block}.input_layernorm.weight'))
  out.append(Entry('trunk/final_norm/scale', 'model.norm.weight'))
  return out
