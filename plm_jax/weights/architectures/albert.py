"""Tensors and config fields of ALBERT in Hugging Face's form: groups of inner blocks with shared parameters."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from plm_jax.models.albert import Albert, units
from plm_jax.weights import fields
from plm_jax.weights.architectures import bert
from plm_jax.weights.class_heads import of_task
from plm_jax.weights.table import POSITIONS, Derived, Entry, linear, norm

MODEL = 'albert'
HEADS = ('mlm', 'pair')
MODEL_TYPES = ('albert',)
TYPED = True
PREFIX = 'albert.'
FIELDS: fields.Fields = {
  **bert.SHARED,
  'embedding_size': fields.size(128),
  'num_hidden_groups': fields.layers(1),
  'inner_group_num': fields.layers(1),
  'hidden_act': fields.activation('gelu_new'),
  'hidden_dropout_prob': fields.rate(0.0),
  'attention_probs_dropout_prob': fields.rate(0.0),
  'classifier_dropout_prob': fields.inert(),
}
DERIVED: Mapping[str, Derived] = POSITIONS
tasks = bert.tasks


def read_config(theirs: Mapping[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
  theirs = fields.complete(FIELDS, theirs)
  layers, groups = theirs['num_hidden_layers'], theirs['num_hidden_groups']
  if groups > layers or any(int(layer / (layers / groups)) != layer * groups // layers for layer in range(layers)):
    # transformers computes groups in floats, sometimes one too low, as in layer 9 of 18 with 14 groups
    raise ValueError(f'num_hidden_groups is {groups}: {layers} layers cannot be divided into as many groups')
  overrides = bert.shared_config(theirs) | {
    'tied': bert.is_tied(theirs, names, 'predictions.'),
    'embed_dim': theirs['embedding_size'],
    'always_project': theirs['embedding_size'] == theirs['hidden_size'],
    'num_groups': theirs['num_hidden_groups'],
    'num_inner': theirs['inner_group_num'],
    'max_length': theirs['max_position_embeddings'],
    'num_types': theirs['type_vocab_size'],
  }
  return {'vocab_size': theirs['vocab_size'], 'variant': 'albert-base-v2', 'overrides': overrides}


def write_config(trunk: Albert, heads: Sequence[str]) -> dict[str, Any]:
  c = trunk.config
  _check_form(trunk)
  kinds = {'pair': 'ForPreTraining', 'mlm': 'ForMaskedLM'}
  return {
    'model_type': 'albert',
    'architectures': [f'Albert{bert.kind_of(heads, kinds)}'],
    **bert.shared_fields(trunk, heads),
    'embedding_size': c.embed_dim,
    'num_hidden_groups': c.num_groups,
    'inner_group_num': c.num_inner,
    'max_position_embeddings': c.max_length,
    'type_vocab_size': c.num_types,
    'classifier_dropout_prob': 0.1,
    'pad_token_id': 0,
  }


def entries(trunk: Albert, heads: Sequence[str]) -> list[Entry]:
  _check_form(trunk)
  decoder = 'predictions.decoder'
  out = bert.embeddings(trunk, 'albert.embeddings', decoder)
  out += linear('trunk/embed_project', 'albert.encoder.embedding_hidden_mapping_in')
  theirs = 'albert.encoder.albert_layer_groups.{layer}.albert_layers.{inner}'
  ours = 'trunk/layers'
  blocks: list[Entry] = []
  for part in ('query', 'key', 'value'):
    blocks += linear(f'{ours}/attention/{part}', f'{theirs}.attention.{part}')
  blocks += linear(f'{ours}/attention/out', f'{theirs}.attention.dense', inputs=2)
  blocks += norm(f'{ours}/attention/norm', f'{theirs}.attention.LayerNorm')
  blocks += linear(f'{ours}/feed_forward/mlp/up', f'{theirs}.ffn')
  blocks += linear(f'{ours}/feed_forward/mlp/down', f'{theirs}.ffn_output')
  blocks += norm(f'{ours}/feed_forward/norm', f'{theirs}.full_layer_layer_norm')
  out += [entry._replace(inner=trunk.config.num_inner) for entry in blocks]
  out += linear('trunk/pooler', 'albert.pooler', optional=True)
  if 'mlm' in heads:
    out += linear('mlm/dense', 'predictions.dense')
    out += norm('mlm/norm', 'predictions.LayerNorm')
    out += bert.output(trunk, decoder, bias='predictions.bias')
  if 'pair' in heads:
    out += linear('pair', 'sop_classifier.classifier')
  return out + of_task(HEADS, tasks(trunk), heads)


def _check_form(trunk: Albert) -> None:
  if trunk.config.embed_dim == trunk.config.hidden_dim and not trunk.config.always_project:
    raise ValueError('ALBERT has a projection after its tables, which embed_dim = hidden_dim omits: set always_project')
  attention, feed_forward = (int(unit.max()) + 1 for unit in units(trunk.config))
  groups = trunk.config.num_groups * trunk.config.num_inner
  if (attention, feed_forward) != (groups, groups):
    raise ValueError(
      f'ALBERT has {groups} sublayers of each kind (num_groups * num_inner), this trunk {attention} and '
      f'{feed_forward}: with sharing={trunk.config.sharing!r} set num_groups to num_layers'
    )
