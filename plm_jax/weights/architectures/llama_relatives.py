"""Mistral, Qwen2, Qwen3, Gemma, OLMo 2 and SmolLM3 in Hugging Face's form: LLaMA's with a few more fields and norms."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from plm_jax.models.llama import Llama
from plm_jax.weights import fields
from plm_jax.weights.architectures import llama
from plm_jax.weights.class_heads import TaskHead, of_task
from plm_jax.weights.table import Derived, Entry

MODEL = 'llama'
MODEL_TYPES = ('mistral', 'qwen2', 'qwen3', 'gemma', 'olmo2', 'smollm3')
PREFIX = 'model.'
OTHER_PREFIXES = llama.OTHER_PREFIXES
HEADS: tuple[str, ...] = ()
DERIVED: Mapping[str, Derived] = llama.DERIVED

_SLIDING = 'sliding_attention'
FIELDS: fields.Fields = {
  **llama.FIELDS,
  'hidden_act': fields.activation('silu'),
  'sliding_window': fields.size(None),
  'use_sliding_window': fields.flag(False),
  'max_window_layers': fields.whole(28),
  'layer_types': fields.list_of(('full_attention', _SLIDING)),
  'no_rope_layers': fields.list_of((0, 1)),
  'no_rope_layer_interval': fields.layers(4),
  'use_bidirectional_attention': fields.fixed(None, False),
}


_WINDOWS = {'use_sliding_window': False, 'sliding_window': 4096, 'max_window_layers': 28, 'layer_types': None}
_QWEN = {**_WINDOWS, 'max_position_embeddings': 32_768, 'num_key_value_heads': 32}
# model_type -> beginning of the names of their classes, our variant with this structure, and the fields that only this
# class reads or whose default is not LLaMA's
_FAMILIES: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
  'mistral': (
    'Mistral', 'mistral-7b',
    {'max_position_embeddings': 131_072, 'num_key_value_heads': 8, 'sliding_window': 4096, 'layer_types': None},
  ),
  'qwen2': ('Qwen2', 'qwen2-7b', _QWEN),
  'qwen3': ('Qwen3', 'qwen3-8b', {**_QWEN, 'head_dim': 128, 'attention_bias': False}),
  'gemma': (
    'Gemma', 'gemma-7b',
    {
      'max_position_embeddings': 8192, 'num_key_value_heads': 16, 'head_dim': 256, 'hidden_act': 'gelu_pytorch_tanh',
      'tie_word_embeddings': True, 'attention_bias': False,
    },
  ),
  'olmo2': ('Olmo2', 'olmo2-7b', {'rms_norm_eps': 1e-5, 'attention_bias': False}),
  'smollm3': (
    'SmolLM3', 'smollm3-3b',
    {
      'max_position_embeddings': 32_768, 'num_key_value_heads': 4, 'rope_theta': 2e6, 'tie_word_embeddings': True,
      'attention_bias': False, 'mlp_bias': False, 'use_sliding_window': False, 'sliding_window': None,
      'layer_types': None, 'no_rope_layers': None, 'no_rope_layer_interval': 4,
    },
  ),
}  # fmt: skip
# read by some families only
_SPECIAL = ('attention_bias', 'mlp_bias', *_WINDOWS, 'no_rope_layers', 'no_rope_layer_interval')


def tasks(trunk: Llama) -> dict[str, TaskHead]:
  """Describe their task classes: Gemma has two, OLMo 2 one."""
  known = 1 if trunk.config.qk_norm == 'width' else 2 if trunk.config.scaling == 'gemma' else 3
  return dict(list(llama.tasks(trunk).items())[:known])


def read_config(theirs: Mapping[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
  kind, depth = theirs['model_type'], fields.complete(FIELDS, theirs)['num_hidden_layers']
  _, variant, own = _FAMILIES[kind]
  read = {name: value for name, value in theirs.items() if name not in _SPECIAL or name in own}
  theirs = fields.complete(FIELDS, {**own, **read})
  overrides = llama.own_config(theirs, names)
  overrides['qkv_bias'] |= kind == 'qwen2'
  # the first files of Gemma name one form and mean the other
  legacy = kind == 'gemma' and theirs['hidden_act'] == 'gelu'
  overrides['activation'] = 'gelu_tanh' if legacy else fields.ACTIVATIONS[theirs['hidden_act']]
  if kind == 'smollm3':
    interval = theirs['no_rope_layer_interval']
    layers = theirs['no_rope_layers'] or [(layer + 1) % interval for layer in range(depth)]
    overrides['unrotated'] = _layers('no_rope_layers', layers, depth, lambda rotated: not rotated)
  overrides['window'] = _window(kind, theirs, overrides.get('unrotated', ()))
  return {'vocab_size': theirs['vocab_size'], 'variant': variant, 'overrides': overrides}


def _layers(name: str, values: Sequence[Any], depth: int, holds: Any) -> tuple[int, ...]:
  """Return the layers whose value holds; raise ValueError for too few values."""
  if len(values) < depth:
    raise ValueError(f'{name} has {len(values)} values for {depth} layers: give one for each')
  return tuple(layer for layer, value in enumerate(values[:depth]) if holds(value))


def _window(kind: str, theirs: Mapping[str, Any], unrotated: Sequence[int]) -> int | None:
  """Return the window of every layer; raise ValueError if layers differ."""
  depth, window, kinds = theirs['num_hidden_layers'], theirs['sliding_window'], theirs['layer_types']
  if kind != 'mistral' and not theirs['use_sliding_window'] and not (kind == 'smollm3' and kinds):
    window = None
  local: Collection[int] = range(depth)
  if kinds:
    local = _layers('layer_types', kinds, depth, lambda value: value == _SLIDING)
  elif kind in ('qwen2', 'qwen3'):
    local = range(theirs['max_window_layers'], depth)
  elif kind == 'smollm3':
    local = unrotated
  if (window is None and not kinds) or not (local or (kind == 'mistral' and window)):
    return None
  if window is None or len(local) < depth:
    raise ValueError(
      f'sliding_window is {window} for {len(local)} of {depth} layers (layer_types, use_sliding_window, '
      'max_window_layers, no_rope_layers): only one window for all layers is supported'
    )
  return window


def write_config(trunk: Llama, heads: Sequence[str]) -> dict[str, Any]:
  reasons = []
  for kind, (name, _, own) in _FAMILIES.items():
    theirs = _fields(trunk, kind, own) | {'architectures': [f'{name}{llama.kind_of(trunk, heads)}']}
    try:
      llama.check_form(trunk, name, read_config(theirs))
    except ValueError as error:
      reasons.append(str(error))
    else:
      return theirs
  raise ValueError('; or '.join(reasons))


def _fields(trunk: Llama, kind: str, own: Mapping[str, Any]) -> dict[str, Any]:
  """Build the fields of a family, which may not describe the trunk."""
  c = trunk.config
  out = {'model_type': kind, **own, **llama.shared_fields(trunk)}
  out |= {'hidden_act': fields.their_activation(c.activation), 'mlp_bias': c.mlp_bias, 'sliding_window': c.window}
  out |= {'attention_bias': c.out_bias, 'use_sliding_window': c.window is not None, 'max_window_layers': 0}
  out |= {'no_rope_layers': [int(layer not in c.unrotated) for layer in range(c.num_layers)]}
  if kind == 'smollm3':
    out |= {'layer_types': ['full_attention' if c.window is None else _SLIDING] * c.num_layers, 'pad_token_id': None}
  out = {name: value for name, value in out.items() if name not in _SPECIAL or name in own}
  return out if out.get('layer_types') else {name: value for name, value in out.items() if name != 'layer_types'}


def entries(trunk: Llama, heads: Sequence[str]) -> list[Entry]:
  block, c, out = 'model.layers.{layer}', trunk.config, llama.entries(trunk, ())
  if c.norm_placement == 'output':
    norms = {'attention_norm': 'post_attention_layernorm', 'mlp_norm': 'post_feedforward_layernorm'}
    out = [entry for entry in out if not any(entry.ours.endswith(f'/{name}/scale') for name in norms)]
    out += [Entry(f'trunk/layers/after_{ours}/scale', f'{block}.{name}.weight') for ours, name in norms.items()]
  if c.qk_norm != 'none':
    for ours in ('query', 'key'):
      name = f'{block}.self_attn.{ours[0]}_norm.weight'
      out.append(Entry(f'trunk/layers/{ours}_norm/scale', name, 'matrix', inputs=2))
  if 'ForQuestionAnswering' in heads and write_config(trunk, ())['model_type'] != 'mistral':
    out = llama.for_answers(out)
  return out + of_task(HEADS, tasks(trunk), heads)
