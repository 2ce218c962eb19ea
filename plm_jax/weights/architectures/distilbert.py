"""Tensors and config fields of DistilBERT in Hugging Face's form, with the masked language modelling head."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from plm_jax.models.bert import Bert
from plm_jax.weights import fields
from plm_jax.weights.architectures import bert
from plm_jax.weights.class_heads import TaskHead, encoder_tasks, of_task, two_layers
from plm_jax.weights.table import POSITIONS, Derived, Entry, linear, norm

MODEL = 'bert'
MODEL_TYPES = ('distilbert',)
PREFIX = 'distilbert.'
HEADS = ('mlm',)
FIELDS: fields.Fields = {
  **fields.ENCODER,
  'dim': fields.size(768, also='hidden_size'),
  'n_layers': fields.layers(6, also='num_hidden_layers'),
  'n_heads': fields.layers(12, also='num_attention_heads'),
  'hidden_dim': fields.size(3072),
  'max_position_embeddings': fields.size(512),
  'activation': fields.activation('gelu'),
  'dropout': fields.rate(0.1),
  'attention_dropout': fields.rate(0.1),
  'initializer_range': fields.std(0.02),
  'sinusoidal_pos_embds': fields.inert(),  # the sinusoids are stored in the file
  'qa_dropout': fields.inert(),
  'seq_classif_dropout': fields.inert(),
}
_NAMES: Mapping[str, str] = {  # their fields, ours
  'dim': 'hidden_dim', 'n_layers': 'num_layers', 'n_heads': 'num_heads', 'hidden_dim': 'mlp_dim',
  'max_position_embeddings': 'max_length', 'dropout': 'dropout', 'attention_dropout': 'attention_dropout',
  'initializer_range': 'init_std',
}  # fmt: skip
DERIVED: Mapping[str, Derived] = POSITIONS


def tasks(trunk: Bert) -> dict[str, TaskHead]:
  """Describe their task classes; texts and options have two layers."""
  rows, options = (
    two_layers(name, 'pre_classifier', 'classifier', activation='relu') for name in ('classify', 'choose')
  )
  return encoder_tasks() | {'ForSequenceClassification': rows, 'ForMultipleChoice': options}


def read_config(theirs: Mapping[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
  theirs = fields.complete(FIELDS, theirs)
  fields.check_multiple(theirs, 'dim', 'n_heads')
  overrides = {
    **{ours: theirs[name] for name, ours in _NAMES.items()},
    'tied': bert.is_tied(theirs, names, 'vocab_projector.'),
    'activation': fields.ACTIVATIONS[theirs['activation']],
  }
  return {'vocab_size': theirs['vocab_size'], 'variant': 'distilbert-base', 'overrides': overrides}


def write_config(trunk: Bert, heads: Sequence[str]) -> dict[str, Any]:
  c = trunk.config
  if c.position_offset or c.num_types or c.embed_dim or c.pooler != 'first' or c.norm_epsilon != 1e-12:
    raise ValueError('DistilBERT needs positions from 0, no sentence types, one width, no pooler, norm_epsilon 1e-12')
  shared = bert.shared_fields(trunk, heads)
  return {
    'model_type': 'distilbert',
    'architectures': [f'DistilBert{bert.kind_of(heads, {"mlm": "ForMaskedLM"})}'],
    'vocab_size': trunk.vocab_size,
    **fields.named(c, _NAMES),
    'sinusoidal_pos_embds': False,
    'activation': shared['hidden_act'],
    'pad_token_id': 0,
    'tie_word_embeddings': c.tied,
  }


def entries(trunk: Bert, heads: Sequence[str]) -> list[Entry]:
  layer = 'distilbert.transformer.layer.{layer}'
  decoder = 'vocab_projector'
  out = bert.embeddings(trunk, 'distilbert.embeddings', decoder)
  for ours, theirs in (('query', 'q_lin'), ('key', 'k_lin'), ('value', 'v_lin')):
    out += linear(f'trunk/layers/{ours}', f'{layer}.attention.{theirs}')
  out += linear('trunk/layers/out', f'{layer}.attention.out_lin', inputs=2)
  out += norm('trunk/layers/attention_norm', f'{layer}.sa_layer_norm')
  out += linear('trunk/layers/mlp/up', f'{layer}.ffn.lin1') + linear('trunk/layers/mlp/down', f'{layer}.ffn.lin2')
  out += norm('trunk/layers/mlp_norm', f'{layer}.output_layer_norm')
  if 'mlm' in heads:
    out += linear('mlm/dense', 'vocab_transform') + norm('mlm/norm', 'vocab_layer_norm')
    out += bert.output(trunk, decoder)
  return out + of_task(HEADS, tasks(trunk), heads)
