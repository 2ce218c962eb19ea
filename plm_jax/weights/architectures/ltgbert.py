"""Tensors and config fields of GPT-BERT as published: its own class `Ltgbert`, for transformers' remote code."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from plm_jax.models.gpt_bert import GptBert
from plm_jax.weights import fields
from plm_jax.weights.class_heads import TaskHead, check_heads
from plm_jax.weights.table import Derived, Entry, Part, linear, norm

MODEL = 'gpt_bert'
MODEL_TYPES = ('ltgbert',)
PREFIX = ''
HEADS: tuple[str, ...] = ()
FIELDS: fields.Fields = {
  **fields.ONE_STACK,
  'is_decoder': fields.flag(False),
  'hidden_size': fields.size(),
  'num_hidden_layers': fields.layers(),
  'num_attention_heads': fields.layers(),
  'intermediate_size': fields.size(),
  'position_bucket_size': fields.whole(32, least=4),
  'max_position_embeddings': fields.size(512),
  'hidden_dropout_prob': fields.rate(0.1),
  'attention_probs_dropout_prob': fields.rate(0.1),
  'layer_norm_eps': fields.epsilon(1e-5),
  'auto_map': fields.inert(),
}
_NAMES: Mapping[str, str] = {  # their fields, ours
  'hidden_size': 'hidden_dim', 'num_hidden_layers': 'num_layers', 'num_attention_heads': 'num_heads',
  'intermediate_size': 'mlp_dim', 'position_bucket_size': 'num_buckets', 'max_position_embeddings': 'max_distance',
  'hidden_dropout_prob': 'dropout', 'attention_probs_dropout_prob': 'attention_dropout',
  'layer_norm_eps': 'norm_epsilon',
}  # fmt: skip


def _holds_rows(trunk: GptBert, tensor: np.ndarray) -> bool:
  """Check for the rows of positions, by query and key."""
  index = np.arange(trunk.config.max_distance)
  rows = trunk.config.rows[index[:, None] - index + len(index) - 1]
  return tensor.shape == rows.shape and bool((tensor == rows).all())


DERIVED: Mapping[str, Derived] = {'.position_indices': _holds_rows}


def tasks(trunk: GptBert) -> dict[str, TaskHead]:
  return {}


def read_config(theirs: Mapping[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
  theirs = fields.complete(FIELDS, theirs)
  fields.check_multiple(theirs, 'hidden_size', 'num_attention_heads')
  if not theirs['tie_word_embeddings']:
    raise ValueError('tie_word_embeddings is false, and must be true, the only supported value')
  causal = theirs['is_decoder'] or any(str(name).endswith('CausalLM') for name in theirs.get('architectures') or ())
  overrides = {ours: theirs[name] for name, ours in _NAMES.items()} | {'causal': causal}
  return {'vocab_size': theirs['vocab_size'], 'variant': 'gpt-bert-base', 'overrides': overrides}


def write_config(trunk: GptBert, heads: Sequence[str]) -> dict[str, Any]:
  c = trunk.config
  return {
    'model_type': 'ltgbert',
    'architectures': [f'LtgbertFor{"Causal" if c.causal else "Masked"}LM'],
    'vocab_size': trunk.vocab_size,
    **fields.named(c, _NAMES),
    'is_decoder': c.causal,
  }


def entries(trunk: GptBert, heads: Sequence[str]) -> list[Entry]:
  check_heads(heads, HEADS, {})
  c = trunk.config
  attention, mlp = 'transformer.attention_layers.{layer}', 'transformer.mlp_layers.{layer}.mlp'
  head = 'classifier.nonlinearity'
  out = [
    Entry('trunk/token_embed/table', 'embedding.word_embedding.weight', tied=(f'{head}.5.weight',)),
    Entry('trunk/relative_embed/table', 'embedding.relative_embedding'),
    *norm('trunk/position_norm', 'embedding.relative_layer_norm'),
    *linear('trunk/layers/out', f'{attention}.out_proj', inputs=2),
    *linear('trunk/layers/mlp/down', f'{mlp}.4', bias=False),
    *linear('trunk/head/dense', f'{head}.1'),
    Entry('trunk/head/bias', f'{head}.5.bias'),
  ]
  for joined, width, parts in (
    (f'{attention}.in_proj_qk', c.hidden_dim, ('query', 'key')),
    (f'{attention}.in_proj_vg', c.hidden_dim, ('value', 'gate')),
    (f'{mlp}.1', c.mlp_dim, ('mlp/up', 'mlp/gate')),
  ):
    for index, part in enumerate(parts):
      own = linear(f'trunk/layers/{part}', joined, bias='/' not in part)
      out += [entry._replace(part=Part(index * width, (index + 1) * width, 2 * width)) for entry in own]
  names = (f'trunk/depth/alphas_{row}' for row in range(2 * c.num_layers))
  return out + [Entry(name, f'transformer.dwa_modules.alphas.{row}') for row, name in enumerate(names)]
