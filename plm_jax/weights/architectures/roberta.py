"""Tensors and config fields of RoBERTa in Hugging Face's form: BERT's, with another head and positions after an id.

Position 0 is the row of the table after the padding id, which is row 2 of published weights.

Their table of sentence types has one row, for every token. A trunk that is read has it too; for a trunk without it the
row is written as zeros.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from plm_jax.models.bert import Bert
from plm_jax.weights import fields
from plm_jax.weights.architectures import bert
from plm_jax.weights.class_heads import TaskHead, encoder_tasks, of_task, two_layers
from plm_jax.weights.table import POSITIONS, Derived, Entry, linear, norm

MODEL = 'bert'
_FAMILIES = {'roberta': 'Roberta', 'xlm-roberta': 'XLMRoberta', 'camembert': 'Camembert'}
MODEL_TYPES = ('roberta', 'xlm-roberta', 'camembert')
PREFIX = 'roberta.'
HEADS = ('mlm',)
AFTER_PADDING = True
FIELDS: fields.Fields = {**bert.SHARED, 'pad_token_id': fields.whole(1)}
DERIVED: Mapping[str, Derived] = POSITIONS
UNUSED = (r'^roberta\.pooler\.',)  # unused next to a head that reads the first token


def tasks(trunk: Bert) -> dict[str, TaskHead]:
  """Describe their task classes; texts have a pooler and a head."""
  dense, out = 'classifier.dense', 'classifier.out_proj'
  pooled = TaskHead('classify', (*linear('trunk/pooler', dense), *linear('head', out)))
  rows = pooled if trunk.config.pooler == 'tanh' else two_layers('classify', dense, out, activation='tanh')
  return encoder_tasks() | {'ForSequenceClassification': rows}


def read_config(theirs: Mapping[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
  theirs = fields.complete(FIELDS, theirs)
  bert.check_gelu(theirs, names, 'lm_head.')
  overrides = bert.shared_config(theirs) | {'tied': bert.is_tied(theirs, names, 'lm_head.')}
  offset = theirs['pad_token_id'] + 1
  overrides |= {
    'max_length': theirs['max_position_embeddings'] - offset,
    'position_offset': offset,
    'num_types': theirs['type_vocab_size'],
    'model_type': '' if theirs['model_type'] == 'roberta' else theirs['model_type'],
  }
  if 'classifier.out_proj.weight' in names:
    overrides['pooler'] = 'first'  # their classification head reads the first token
  return {'vocab_size': theirs['vocab_size'], 'variant': 'roberta-base', 'overrides': overrides}


def write_config(trunk: Bert, heads: Sequence[str]) -> dict[str, Any]:
  c = trunk.config
  if not c.position_offset or c.embed_dim:
    raise ValueError('RoBERTa needs positions after an id of padding and one width')
  bert.check_own_gelu(trunk, heads)
  kind = bert.kind_of(heads, {'mlm': 'ForMaskedLM'})
  model_type = c.model_type or 'roberta'
  return {
    'model_type': model_type,
    'architectures': [f'{_FAMILIES[model_type]}{kind}'],
    **bert.shared_fields(trunk, heads),
    'max_position_embeddings': c.max_length + c.position_offset,
    'type_vocab_size': c.num_types or 1,
    'pad_token_id': c.position_offset - 1,
    'bos_token_id': 0,
    'eos_token_id': 2,
  }


def entries(trunk: Bert, heads: Sequence[str]) -> list[Entry]:
  decoder = 'lm_head.decoder'
  out = bert.embeddings(trunk, 'roberta.embeddings', decoder)
  if not trunk.config.num_types:
    out.append(Entry('', 'roberta.embeddings.token_type_embeddings.weight', zeros=(1, trunk.config.hidden_dim)))
  out += bert.layers('roberta.encoder.layer.{layer}')
  if trunk.config.pooler == 'tanh' and 'ForSequenceClassification' not in heads:
    out += linear('trunk/pooler', 'roberta.pooler.dense', optional=True)
  if 'mlm' in heads:
    out += linear('mlm/dense', 'lm_head.dense') + norm('mlm/norm', 'lm_head.layer_norm')
    out += bert.output(trunk, decoder, bias='lm_head.bias')
  return out + of_task(HEADS, tasks(trunk), heads)
