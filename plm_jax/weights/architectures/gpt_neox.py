"""GPT-NeoX and Pythia in Hugging Face's form: query, key and value of a head are joined, head after head."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from plm_jax.models.llama import Llama
from plm_jax.weights import fields
from plm_jax.weights.architectures import gpt, llama
from plm_jax.weights.class_heads import of_task
from plm_jax.weights.table import OUTPUTS, Derived, Entry, Part, is_causal, is_minus_infinity, linear, norm

MODEL = 'llama'
MODEL_TYPES = ('gpt_neox',)
PREFIX = 'gpt_neox.'
HEADS: tuple[str, ...] = ()

# older names of the two that are in rope_parameters
_ROTARY = {'rotary_pct': 'partial_rotary_factor', 'rotary_emb_base': 'rope_theta'}
FIELDS: fields.Fields = {
  **{name: field for name, field in llama.SHARED.items() if name not in ('num_key_value_heads', 'head_dim')},
  'hidden_act': fields.activation('gelu'),
  'hidden_dropout': fields.rate(0.0),
  'classifier_dropout': fields.inert(),
  'layer_norm_eps': fields.epsilon(1e-5),
  'use_parallel_residual': fields.flag(True),
  'attention_bias': fields.flag(True),
  'rotary_pct': fields.number(None, above=0, most=1),
  'rotary_emb_base': fields.number(None, above=1),
}
DERIVED: Mapping[str, Derived] = {
  **llama.DERIVED, 'attention.bias': is_causal, 'attention.masked_bias': is_minus_infinity
}  # fmt: skip
tasks = gpt.tasks


def read_config(theirs: Mapping[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
  theirs = fields.complete(FIELDS, theirs)
  old = {new: theirs[name] for name, new in _ROTARY.items() if theirs[name] is not None}
  overrides = llama.shared_config({**theirs, **old, 'num_key_value_heads': None, 'head_dim': None}, names, share=0.25)
  overrides |= {
    'qkv_bias': theirs['attention_bias'],
    'out_bias': theirs['attention_bias'],
    'parallel': theirs['use_parallel_residual'],
    'activation': fields.ACTIVATIONS[theirs['hidden_act']],
    'norm_epsilon': theirs['layer_norm_eps'],
    'dropout': theirs['hidden_dropout'],
  }
  return {'vocab_size': theirs['vocab_size'], 'variant': 'pythia-70m', 'overrides': overrides}


def write_config(trunk: Llama, heads: Sequence[str]) -> dict[str, Any]:
  c = trunk.config
  theirs = {
    'model_type': 'gpt_neox',
    'architectures': [f'GPTNeoX{llama.kind_of(trunk, heads)}'],
    **{name: value for name, value in llama.shared_fields(trunk).items() if name in FIELDS},
    'hidden_act': fields.their_activation(c.activation),
    'hidden_dropout': c.dropout,
    'layer_norm_eps': c.norm_epsilon,
    'use_parallel_residual': c.parallel,
    'rotary_pct': c.rotary_share,
    'rotary_emb_base': c.rotary_base,
  }
  llama.check_form(trunk, 'GPT-NeoX', read_config(theirs))
  return theirs


def entries(trunk: Llama, heads: Sequence[str]) -> list[Entry]:
  c, ours, block, size = trunk.config, 'trunk/layers', 'gpt_neox.layers.{layer}', trunk.config.head_size
  out = [Entry('trunk/token_embed/table', 'gpt_neox.embed_in.weight', tied=OUTPUTS if c.tied else ())]
  if trunk.gives_logits and not c.tied:
    out.append(Entry('trunk/output/table', OUTPUTS[1], tied=OUTPUTS[:1]))
  for index, name in enumerate(('query', 'key', 'value')):
    rows = Part(index * size, (index + 1) * size, 3 * size, groups=c.num_heads)
    joined = linear(f'{ours}/{name}', f'{block}.attention.query_key_value', bias=c.qkv_bias)
    out += [entry._replace(part=rows) for entry in joined]
  out += linear(f'{ours}/out', f'{block}.attention.dense', inputs=2, bias=c.out_bias)
  for name, theirs in (('up', 'dense_h_to_4h'), ('down', 'dense_4h_to_h')):
    out += linear(f'{ours}/mlp/{name}', f'{block}.mlp.{theirs}')
  out += norm(f'{ours}/attention_norm', f'{block}.input_layernorm')
  out += norm(f'{ours}/mlp_norm', f'{block}.post_attention_layernorm')
  out += norm('trunk/final_norm', 'gpt_neox.final_layer_norm')
  return out + of_task(HEADS, tasks(trunk), heads)
