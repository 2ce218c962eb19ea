"""Tensors and config fields of OPT in Hugging Face's form."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from plm_jax.models.gpt import Gpt
from plm_jax.weights import fields
from plm_jax.weights.architectures import llama
from plm_jax.weights.class_heads import TaskHead, of_task, one_layer, score
from plm_jax.weights.table import OUTPUTS, Derived, Entry, has_output, linear, norm

MODEL = 'gpt'
MODEL_TYPES = ('opt',)
PREFIX = 'model.'
HEADS: tuple[str, ...] = ()

FIELDS: fields.Fields = {
  **fields.ONE_STACK,
  'hidden_size': fields.size(),
  'num_hidden_layers': fields.layers(),
  'num_attention_heads': fields.layers(),
  'ffn_dim': fields.size(3072),
  'max_position_embeddings': fields.size(2048),
  'do_layer_norm_before': fields.flag(True),
  '_remove_final_layer_norm': fields.fixed(False),
  'word_embed_proj_dim': fields.size(None),
  'dropout': fields.rate(0.1),
  'attention_dropout': fields.rate(0.0),
  'activation_function': fields.activation('relu'),
  'layerdrop': fields.inert(),
  'init_std': fields.std(0.02),
  'enable_bias': fields.fixed(True),
  'layer_norm_elementwise_affine': fields.fixed(True),
}
_NAMES: Mapping[str, str] = {  # their fields, ours
  'hidden_size': 'hidden_dim', 'num_hidden_layers': 'num_layers', 'num_attention_heads': 'num_heads',
  'ffn_dim': 'mlp_dim', 'max_position_embeddings': 'max_length', 'dropout': 'dropout', 'init_std': 'init_std',
  'attention_dropout': 'attention_dropout', 'tie_word_embeddings': 'tied',
}  # fmt: skip
DERIVED: Mapping[str, Derived] = {}


def tasks(trunk: Gpt) -> dict[str, TaskHead]:
  return {'ForSequenceClassification': score(), 'ForQuestionAnswering': one_layer('span', 'qa_outputs')}


def read_config(theirs: Mapping[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
  theirs = fields.complete(FIELDS, theirs)
  fields.check_multiple(theirs, 'hidden_size', 'num_attention_heads')
  width, narrow = theirs['hidden_size'], theirs['word_embed_proj_dim']
  overrides = {ours: theirs[name] for name, ours in _NAMES.items()} | {
    'norm_placement': 'pre' if theirs['do_layer_norm_before'] else 'post',
    'activation': fields.ACTIVATIONS[theirs['activation_function']],
    'embed_dim': None if narrow in (None, width) else narrow,
    'has_output': has_output(names, tied=theirs['tie_word_embeddings']),
  }
  return {'vocab_size': theirs['vocab_size'], 'variant': 'opt-125m', 'overrides': overrides}


def write_config(trunk: Gpt, heads: Sequence[str]) -> dict[str, Any]:
  c = trunk.config
  if (c.position_offset, c.norm_epsilon, c.window, c.local_window, c.head_size * c.num_heads) != (
    2, 1e-5, None, None, c.hidden_dim
  ):  # fmt: skip
    raise ValueError(
      'OPT needs position_offset=2, norm_epsilon=1e-5, no windows and head_dim = hidden_dim / num_heads, not '
      f'{c.position_offset}, {c.norm_epsilon}, {c.window}, {c.local_window} and {c.head_dim}'
    )
  return {
    'model_type': 'opt',
    'architectures': [f'OPT{llama.kind_of(trunk, heads)}'],
    'vocab_size': trunk.vocab_size,
    **fields.named(c, _NAMES),
    'do_layer_norm_before': c.norm_placement == 'pre',
    'word_embed_proj_dim': trunk.hidden_dim,
    'activation_function': fields.their_activation(c.activation),
  }


def entries(trunk: Gpt, heads: Sequence[str]) -> list[Entry]:
  c, ours, body = trunk.config, 'trunk/layers', 'model.decoder'
  block = f'{body}.layers.{{layer}}'
  out = [
    Entry('trunk/token_embed/table', f'{body}.embed_tokens.weight', tied=OUTPUTS[:1] if c.tied else ()),
    Entry('trunk/position_embed/table', f'{body}.embed_positions.weight'),
  ]
  if trunk.gives_logits and not c.tied:
    out.append(Entry('trunk/output/table', OUTPUTS[0]))
  for name in ('project_in', 'project_out') if c.embed_dim else ():
    out += linear(f'trunk/{name}', f'{body}.{name}', bias=False)
  for name in ('query', 'key', 'value'):
    out += linear(f'{ours}/{name}', f'{block}.self_attn.{name[0]}_proj')
  out += linear(f'{ours}/out', f'{block}.self_attn.out_proj', inputs=2)
  out += linear(f'{ours}/mlp/up', f'{block}.fc1') + linear(f'{ours}/mlp/down', f'{block}.fc2')
  out += norm(f'{ours}/attention_norm', f'{block}.self_attn_layer_norm')
  out += norm(f'{ours}/mlp_norm', f'{block}.final_layer_norm')
  out += norm('trunk/final_norm', f'{body}.final_layer_norm') if c.norm_placement == 'pre' else []
  return out + of_task(HEADS, tasks(trunk), heads)
