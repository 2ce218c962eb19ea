"""Tensors and config fields of GPT-2 in Hugging Face's form: [inputs, outputs] kernels, query, key and value joined."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from plm_jax.models.gpt import CONFIGS, Gpt
from plm_jax.weights import fields
from plm_jax.weights.class_heads import TaskHead, is_task, of_task, one_layer, score
from plm_jax.weights.table import Derived, Entry, Part, has_output, is_causal, is_minus_infinity, norm

MODEL = 'gpt'
MODEL_TYPES = ('gpt2',)
PREFIX = 'transformer.'
HEADS: tuple[str, ...] = ()

_SUMMARY = ('type', 'use_proj', 'activation', 'proj_to_labels', 'first_dropout')  # of a multiple-choice head
# fields of GPT and GPT-2
SHARED: fields.Fields = {
  **fields.ONE_STACK,
  'is_decoder': fields.inert(),
  'n_positions': fields.size(also='max_position_embeddings'),
  'n_embd': fields.size(also='hidden_size'),
  'n_layer': fields.layers(also='num_hidden_layers'),
  'n_head': fields.layers(also='num_attention_heads'),
  'resid_pdrop': fields.rate(0.1),
  'embd_pdrop': fields.rate(0.1),
  'attn_pdrop': fields.rate(0.1),
  'layer_norm_epsilon': fields.epsilon(1e-5),
  'initializer_range': fields.std(0.02),
  **{f'summary_{name}': fields.inert() for name in _SUMMARY},
}
_NAMES: Mapping[str, str] = {  # their fields, ours
  'n_embd': 'hidden_dim', 'n_layer': 'num_layers', 'n_head': 'num_heads', 'n_positions': 'max_length',
  'layer_norm_epsilon': 'norm_epsilon', 'resid_pdrop': 'dropout', 'attn_pdrop': 'attention_dropout',
  'initializer_range': 'init_std',
}  # fmt: skip
FIELDS: fields.Fields = {
  **SHARED,
  'n_inner': fields.size(None),
  'activation_function': fields.activation('gelu_new'),
  'scale_attn_weights': fields.fixed(True),
  'scale_attn_by_inverse_layer_idx': fields.fixed(False),
  'reorder_and_upcast_attn': fields.inert(),  # in float32 only the order of two products
}
DERIVED: Mapping[str, Derived] = {'attn.bias': is_causal, 'attn.masked_bias': is_minus_infinity}


def tasks(trunk: Any) -> dict[str, TaskHead]:
  return {
    'ForSequenceClassification': score(),
    'ForTokenClassification': one_layer('tag', 'classifier'),
    'ForQuestionAnswering': one_layer('span', 'qa_outputs'),
  }


def read_config(theirs: Mapping[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
  theirs = fields.complete(FIELDS, theirs)
  overrides = shared_config(theirs, names, activation=theirs['activation_function'])
  overrides |= {'mlp_dim': theirs['n_inner'] or 4 * theirs['n_embd'], 'norm_placement': 'pre'}
  return {'vocab_size': theirs['vocab_size'], 'variant': 'gpt2', 'overrides': overrides}


def shared_config(theirs: Mapping[str, Any], names: Collection[str], *, activation: str) -> dict[str, Any]:
  """Convert fields shared with GPT; raise ValueError for an indivisible width."""
  fields.check_multiple(theirs, 'n_embd', 'n_head')
  return {
    **{ours: theirs[name] for name, ours in _NAMES.items()},
    'mlp_dim': 4 * theirs['n_embd'],
    'activation': fields.ACTIVATIONS[activation],
    'tied': theirs['tie_word_embeddings'],
    'has_output': has_output(names, tied=theirs['tie_word_embeddings']),
  }


def write_config(trunk: Gpt, heads: Sequence[str]) -> dict[str, Any]:
  c = trunk.config
  if c.norm_placement != 'pre':
    raise ValueError("GPT-2 needs norm_placement='pre'")
  return {
    'model_type': 'gpt2',
    'architectures': [f'GPT2{kind_of(trunk, heads)}'],
    **shared_fields(trunk),
    'n_inner': c.mlp_dim,
    'activation_function': 'gelu_new' if c.activation == 'gelu_tanh' else fields.their_activation(c.activation),
  }


def kind_of(trunk: Gpt, heads: Sequence[str]) -> str:
  """Return the suffix of the name of their class."""
  return next(filter(is_task, heads), None) or ('LMHeadModel' if trunk.gives_logits else 'Model')


def shared_fields(trunk: Gpt) -> dict[str, Any]:
  """Build fields shared with GPT; raise ValueError for windows or other heads."""
  c = trunk.config
  ours, plain = dataclasses.asdict(c), dataclasses.asdict(CONFIGS['gpt2'])
  names = ('window', 'local_window', 'position_offset', 'embed_dim', 'embed_dropout')
  if other := [f'{name}={ours[name]}' for name in names if ours[name] != plain[name]]:
    raise ValueError(f'GPT and GPT-2 have no {", ".join(other)}')
  if c.num_heads * c.head_size != c.hidden_dim:
    raise ValueError(f'GPT and GPT-2 have head_dim = hidden_dim / num_heads, not head_dim={c.head_dim}')
  shared = {'embd_pdrop': c.dropout, 'tie_word_embeddings': c.tied}
  return {'vocab_size': trunk.vocab_size, **fields.named(c, _NAMES), **shared}


def entries(trunk: Gpt, heads: Sequence[str]) -> list[Entry]:
  tied = ('lm_head.weight',) if trunk.config.tied else ()
  out = [
    Entry('trunk/token_embed/table', 'transformer.wte.weight', tied=tied),
    Entry('trunk/position_embed/table', 'transformer.wpe.weight'),
    *blocks(trunk),
    *norm('trunk/final_norm', 'transformer.ln_f'),
    *of_task(HEADS, tasks(trunk), heads),
  ]
  if trunk.gives_logits and not trunk.config.tied:
    out.append(Entry('trunk/output/table', 'lm_head.weight'))
  return out


def blocks(trunk: Gpt) -> list[Entry]:
  """List the entries of the blocks, the same in GPT and GPT-2."""
  width, block, ours = trunk.config.hidden_dim, 'transformer.h.{layer}', 'trunk/layers'
  out = []
  for index, name in enumerate(('query', 'key', 'value')):
    rows = Part(start=index * width, stop=(index + 1) * width, total=3 * width)
    joined = f'{block}.attn.c_attn'
    out.append(Entry(f'{ours}/{name}/kernel', f'{joined}.weight', 'matrix', part=rows._replace(axis=1)))
    out.append(Entry(f'{ours}/{name}/bias', f'{joined}.bias', 'matrix', inputs=2, part=rows))
  for name, theirs, inputs in (('out', 'attn.c_proj', 2), ('mlp/up', 'mlp.c_fc', 1), ('mlp/down', 'mlp.c_proj', 1)):
    out.append(Entry(f'{ours}/{name}/kernel', f'{block}.{theirs}.weight', 'matrix', inputs=inputs))
    out.append(Entry(f'{ours}/{name}/bias', f'{block}.{theirs}.bias', 'matrix', inputs=2))
  return out + norm(f'{ours}/attention_norm', f'{block}.ln_1') + norm(f'{ours}/mlp_norm', f'{block}.ln_2')
