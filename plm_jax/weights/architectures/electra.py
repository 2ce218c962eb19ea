"""Tensors and config fields of ELECTRA in Hugging Face's form.

Discriminators have head 'rtd', generators head 'mlm'. The two are published separately, each with its own copy of the
embeddings that they shared in training.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from plm_jax.models.bert import Bert
from plm_jax.weights import fields
from plm_jax.weights.architectures import bert
from plm_jax.weights.class_heads import TaskHead, encoder_tasks, of_task, two_layers
from plm_jax.weights.table import POSITIONS, Derived, Entry, linear, norm

MODEL = 'bert'
MODEL_TYPES = ('electra',)
TYPED = True
PREFIX = 'electra.'
HEADS = ('rtd', 'mlm')
# summary of their multiple-choice class
_CHOICE = {'summary_type': 'first', 'summary_use_proj': True, 'summary_activation': 'gelu'}
FIELDS: fields.Fields = {
  **bert.SHARED,
  'embedding_size': fields.size(128),
  **{name: fields.inert() for name in (*_CHOICE, 'summary_last_dropout')},
}
_GENERATOR = 'generator_predictions.'
DERIVED: Mapping[str, Derived] = POSITIONS


def tasks(trunk: Bert) -> dict[str, TaskHead]:
  """Describe their task classes; texts and options have two layers."""
  rows = two_layers('classify', 'classifier.dense', 'classifier.out_proj', activation='gelu_erf')
  options = two_layers('choose', 'sequence_summary.summary', 'classifier', activation='gelu_erf')
  return encoder_tasks() | {'ForSequenceClassification': rows, 'ForMultipleChoice': options}


def read_config(theirs: Mapping[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
  theirs = fields.complete(FIELDS, theirs)
  bert.check_gelu(theirs, names, _GENERATOR)
  choice = any(str(name).endswith('ForMultipleChoice') for name in theirs.get('architectures') or ())
  for name, value in _CHOICE.items() if choice else ():
    if theirs.get(name, value) != value:
      raise ValueError(f'{name} is {theirs[name]!r}, but multiple choice is only supported with {value!r}')
  width = theirs['embedding_size']
  overrides = bert.shared_config(theirs) | {'tied': bert.is_tied(theirs, names, 'generator_lm_head.')}
  overrides |= {
    'max_length': theirs['max_position_embeddings'],
    'num_types': theirs['type_vocab_size'],
    'embed_dim': None if width == overrides['hidden_dim'] else width,
    'pooler': 'first',
  }
  return {'vocab_size': theirs['vocab_size'], 'variant': 'electra-base', 'overrides': overrides}


def write_config(trunk: Bert, heads: Sequence[str]) -> dict[str, Any]:
  c = trunk.config
  if c.position_offset or not c.num_types or c.pooler != 'first':
    raise ValueError('ELECTRA needs positions from 0, sentence types and no pooler')
  bert.check_own_gelu(trunk, heads)
  if len(heads) > 1:
    raise ValueError('ELECTRA is published in two parts: export the discriminator with rtd and the generator with mlm')
  kinds = {'rtd': 'ForPreTraining', 'mlm': 'ForMaskedLM'}
  return {
    'model_type': 'electra',
    'architectures': [f'Electra{bert.kind_of(heads, kinds)}'],
    **bert.shared_fields(trunk, heads),
    'embedding_size': c.embed_dim or c.hidden_dim,
    'max_position_embeddings': c.max_length,
    'type_vocab_size': c.num_types,
    'pad_token_id': 0,
  }


def entries(trunk: Bert, heads: Sequence[str]) -> list[Entry]:
  c = trunk.config
  decoder = 'generator_lm_head'
  out = bert.embeddings(trunk, 'electra.embeddings', decoder)
  if (c.embed_dim or c.hidden_dim) != c.hidden_dim:
    out += linear('trunk/embed_project', 'electra.embeddings_project')
  out += bert.layers('electra.encoder.layer.{layer}')
  if 'rtd' in heads:
    out += linear('rtd/dense', 'discriminator_predictions.dense')
    out += linear('rtd/out', 'discriminator_predictions.dense_prediction')
  if 'mlm' in heads:
    out += linear('mlm/dense', f'{_GENERATOR}dense')
    out += norm('mlm/norm', f'{_GENERATOR}LayerNorm')
    out += bert.output(trunk, decoder)
  return out + of_task(HEADS, tasks(trunk), heads)
