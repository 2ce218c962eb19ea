"""Names and shapes of RoBERTa in Hugging Face folders: BERT's with another head and positions from 2 on.

Their table of sentence types has one row, which every token gets: a trunk that is read has it too, and for one without
it the row is written as zeros.
"""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from plm_jax.models.bert import Bert
from plm_jax.weights import fields
from plm_jax.weights.architectures import bert
from plm_jax.weights.table import POSITIONS, Derived, Entry, check_heads, linear, norm

MODEL = 'bert'
MODEL_TYPES = ('roberta', 'xlm-roberta', 'camembert')
PREFIX = 'roberta.'
HEADS = ('mlm',)
_OFFSET = 2  # positions follow the padding id, 1
FIELDS: fields.Fields = MappingProxyType({**bert.SHARED, 'pad_token_id': fields.fixed(_OFFSET - 1)})
DERIVED: Mapping[str, Derived] = POSITIONS
UNUSED: tuple[str, ...] = ()


def read_config(theirs: Mapping[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
  """Keywords of `models.bert.make` for a config.json.

  Raises:
    ValueError: it describes what the trunk does not have.
  """
  del names
  theirs = fields.complete(FIELDS, theirs)
  overrides = bert.shared_config(theirs)
  overrides |= {
    'max_length': theirs['max_position_embeddings'] - _OFFSET,
    'position_offset': _OFFSET,
    'num_types': theirs['type_vocab_size'],
  }
  return {'vocab_size': theirs['vocab_size'], 'variant': 'roberta-base', 'overrides': overrides}


def write_config(trunk: Bert, heads: Sequence[str]) -> dict[str, Any]:
  """A config.json for the trunk.

  Raises:
    ValueError: the published form has no place for its structure or for a head.
  """
  c = trunk.config
  if c.position_offset != _OFFSET or c.embed_dim or c.pooler != 'tanh' or c.num_types > 1:
    raise ValueError('RoBERTa has positions from 2, at most one sentence type, one width and a pooler')
  check_heads(heads, HEADS)
  return {
    'model_type': 'roberta',
    'architectures': ['RobertaForMaskedLM' if heads else 'RobertaModel'],
    **bert.shared_fields(trunk),
    'max_position_embeddings': c.max_length + _OFFSET,
    'type_vocab_size': 1,
    'pad_token_id': 1,
    'bos_token_id': 0,
    'eos_token_id': 2,
  }


def entries(trunk: Bert, heads: Sequence[str]) -> list[Entry]:
  """Every parameter of the trunk and of the head.

  Raises:
    ValueError: there is no place for a head.
  """
  check_heads(heads, HEADS)
  out = bert.embeddings('roberta.embeddings', types=bool(trunk.config.num_types), tied=('lm_head.decoder.weight',))
  if not trunk.config.num_types:
    out.append(Entry('', 'roberta.embeddings.token_type_embeddings.weight', zeros=(1, trunk.config.hidden_dim)))
  out += bert.layers('roberta.encoder.layer.{layer}')
  out += linear('trunk/pooler', 'roberta.pooler.dense', optional=True)
  if 'mlm' in heads:
    out += linear('mlm/dense', 'lm_head.dense') + norm('mlm/norm', 'lm_head.layer_norm')
    out.append(Entry('mlm/bias', 'lm_head.bias', tied=('lm_head.decoder.bias',)))
  return out
