"""Tensors and config fields of MPNet in Hugging Face's form: RoBERTa's without types, with biases of distances."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from plm_jax.models.bert import Bert
from plm_jax.weights import fields
from plm_jax.weights.architectures import roberta
from plm_jax.weights.architectures.ernie import renamed
from plm_jax.weights.table import Derived, Entry

MODEL = 'bert'
MODEL_TYPES = ('mpnet',)
PREFIX = 'mpnet.'
HEADS = roberta.HEADS
_ABSENT = ('type_vocab_size', 'classifier_dropout', 'position_embedding_type')
FIELDS: fields.Fields = {
  **{name: field for name, field in roberta.FIELDS.items() if name not in _ABSENT},
  'pad_token_id': fields.fixed(1),  # transformers counts positions from 2 for any value
  'relative_attention_num_buckets': fields.fixed(32),  # transformers computes 32 buckets for any value
}
DERIVED: Mapping[str, Derived] = roberta.DERIVED
tasks = roberta.tasks
_NAMES = {
  roberta.PREFIX: PREFIX,
  'attention.self.query': 'attention.attn.q',
  'attention.self.key': 'attention.attn.k',
  'attention.self.value': 'attention.attn.v',
  'attention.output.dense': 'attention.attn.o',
  'attention.output.LayerNorm': 'attention.LayerNorm',
}


def read_config(theirs: Mapping[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
  theirs = fields.complete(FIELDS, theirs)
  made = roberta.read_config({**theirs, 'model_type': 'roberta', 'type_vocab_size': 1}, names)
  return {**made, 'overrides': made['overrides'] | {'num_types': 0, 'relative_buckets': 32}}


def write_config(trunk: Bert, heads: Sequence[str]) -> dict[str, Any]:
  c = trunk.config
  if c.relative_buckets != 32 or c.position_offset != 2 or c.num_types or c.model_type:
    raise ValueError('MPNet needs relative_buckets=32, position_offset=2 and num_types=0')
  config = roberta.write_config(trunk.clone(config=dataclasses.replace(c, relative_buckets=0)), heads)
  del config['type_vocab_size']
  classes = [name.replace('Roberta', 'MPNet') for name in config['architectures']]
  return config | {'model_type': 'mpnet', 'architectures': classes, 'relative_attention_num_buckets': 32}


def entries(trunk: Bert, heads: Sequence[str]) -> list[Entry]:
  own = [entry for entry in roberta.entries(trunk, heads) if entry.ours]  # no row of types
  bias = Entry('trunk/relative_bias/table', 'mpnet.encoder.relative_attention_bias.weight')
  return [*renamed(own, _NAMES), bias]
