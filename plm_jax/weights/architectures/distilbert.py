"""Names and shapes of DistilBERT in Hugging Face folders, with the head of masked language modelling."""

from collections.abc import Mapping, Sequence
from typing import Any

from plm_jax.models.bert import Bert
from plm_jax.weights.architectures import bert
from plm_jax.weights.table import Entry, check_heads, linear, norm

MODEL = 'bert'
MODEL_TYPES = ('distilbert',)
PREFIX = 'distilbert.'
HEADS = ('mlm',)


def read_config(theirs: Mapping[str, Any]) -> dict[str, Any]:
  """Keywords of `models.bert.make` for a config.json.

  Raises:
    ValueError: its activation is unknown.
  """
  activation = theirs.get('activation', 'gelu')
  if activation not in bert.ACTIVATIONS:
    raise ValueError(f'activation {activation!r} is none of {", ".join(bert.ACTIVATIONS)}')
  overrides = {
    'hidden_dim': theirs.get('dim', 768),
    'num_layers': theirs.get('n_layers', 6),
    'num_heads': theirs.get('n_heads', 12),
    'mlp_dim': theirs.get('hidden_dim', 3072),
    'max_length': theirs.get('max_position_embeddings', 512),
    'activation': bert.ACTIVATIONS[activation],
    'dropout': theirs.get('dropout', 0.1),
    'attention_dropout': theirs.get('attention_dropout', 0.1),
    'init_std': theirs.get('initializer_range', 0.02),
  }
  return {'vocab_size': theirs['vocab_size'], 'variant': 'distilbert-base', 'overrides': overrides}


def write_config(trunk: Bert, heads: Sequence[str]) -> dict[str, Any]:
  """A config.json for the trunk.

  Raises:
    ValueError: the published form has no place for its structure or for a head.
  """
  c = trunk.config
  if c.position_offset or c.num_types or c.embed_dim or c.pooler != 'first' or c.norm_epsilon != 1e-12:
    raise ValueError('DistilBERT has positions from 0, no sentence types, one width, no pooler and norm_epsilon 1e-12')
  check_heads(heads, HEADS)
  shared = bert.shared_fields(trunk)
  return {
    'model_type': 'distilbert',
    'architectures': ['DistilBertForMaskedLM' if heads else 'DistilBertModel'],
    'vocab_size': trunk.vocab_size,
    'dim': c.hidden_dim,
    'n_layers': c.num_layers,
    'n_heads': c.num_heads,
    'hidden_dim': c.mlp_dim,
    'max_position_embeddings': c.max_length,
    'sinusoidal_pos_embds': False,
    'activation': shared['hidden_act'],
    'dropout': c.dropout,
    'attention_dropout': c.attention_dropout,
    'initializer_range': c.init_std,
    'pad_token_id': 0,
    'tie_word_embeddings': True,
  }


def entries(trunk: Bert, heads: Sequence[str]) -> list[Entry]:
  """Every parameter of the trunk and of the head.

  Raises:
    ValueError: there is no place for a head.
  """
  del trunk
  check_heads(heads, HEADS)
  layer = 'distilbert.transformer.layer.{layer}'
  out = bert.embeddings('distilbert.embeddings', types=False, tied=('vocab_projector.weight',))
  for ours, theirs in (('query', 'q_lin'), ('key', 'k_lin'), ('value', 'v_lin')):
    out += linear(f'trunk/layers/{ours}', f'{layer}.attention.{theirs}')
  out += linear('trunk/layers/out', f'{layer}.attention.out_lin', inputs=2)
  out += norm('trunk/layers/attention_norm', f'{layer}.sa_layer_norm')
  out += linear('trunk/layers/mlp/up', f'{layer}.ffn.lin1') + linear('trunk/layers/mlp/down', f'{layer}.ffn.lin2')
  out += norm('trunk/layers/mlp_norm', f'{layer}.output_layer_norm')
  if 'mlm' in heads:
    out += linear('mlm/dense', 'vocab_transform') + norm('mlm/norm', 'vocab_layer_norm')
    out.append(Entry('mlm/bias', 'vocab_projector.bias'))
  return out
