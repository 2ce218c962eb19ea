"""Names and shapes of BERT in Hugging Face folders, masked language modelling and sentence-pair heads included."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from plm_jax.models.albert import Albert
from plm_jax.models.bert import Bert
from plm_jax.weights import fields
from plm_jax.weights.table import POSITIONS, Derived, Entry, check_heads, linear, norm

MODEL = 'bert'
MODEL_TYPES = ('bert',)
TYPED = True
PREFIX = 'bert.'
HEADS = ('mlm', 'pair')

# what all relatives of BERT call alike
SHARED: fields.Fields = MappingProxyType(
  {
    **fields.ENCODER,
    'hidden_size': fields.size(),
    'num_hidden_layers': fields.layers(),
    'num_attention_heads': fields.layers(),
    'intermediate_size': fields.size(),
    'hidden_act': fields.activation('gelu'),
    'hidden_dropout_prob': fields.rate(0.1),
    'attention_probs_dropout_prob': fields.rate(0.1),
    'max_position_embeddings': fields.size(512),
    'type_vocab_size': fields.whole(2),
    'layer_norm_eps': fields.number(1e-12),
    'initializer_range': fields.number(0.02),
    'classifier_dropout': fields.inert(),
    'position_embedding_type': fields.fixed('absolute'),
  }
)
FIELDS: fields.Fields = SHARED
DERIVED: Mapping[str, Derived] = POSITIONS
UNUSED: tuple[str, ...] = ()


def read_config(theirs: Mapping[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
  """Keywords of `models.bert.make` for a config.json.

  Raises:
    ValueError: it describes what the trunk does not have.
  """
  del names
  theirs = fields.complete(FIELDS, theirs)
  overrides = shared_config(theirs)
  overrides |= {'max_length': theirs['max_position_embeddings'], 'num_types': theirs['type_vocab_size']}
  return {'vocab_size': theirs['vocab_size'], 'variant': 'bert-base', 'overrides': overrides}


def shared_config(theirs: Mapping[str, Any]) -> dict[str, Any]:
  """The fields that all relatives of BERT call alike, of a complete config.json.

  Raises:
    ValueError: the number of heads does not divide the width.
  """
  fields.check_multiple(theirs, 'hidden_size', 'num_attention_heads')
  return {
    'hidden_dim': theirs['hidden_size'],
    'num_layers': theirs['num_hidden_layers'],
    'num_heads': theirs['num_attention_heads'],
    'mlp_dim': theirs['intermediate_size'],
    'activation': fields.ACTIVATIONS[theirs['hidden_act']],
    'norm_epsilon': theirs['layer_norm_eps'],
    'dropout': theirs['hidden_dropout_prob'],
    'attention_dropout': theirs['attention_probs_dropout_prob'],
    'init_std': theirs['initializer_range'],
  }


def write_config(trunk: Bert, heads: Sequence[str]) -> dict[str, Any]:
  """A config.json for the trunk.

  Raises:
    ValueError: the published form has no place for its structure or for a head.
  """
  c = trunk.config
  if c.position_offset or not c.num_types or c.embed_dim or c.pooler != 'tanh':
    raise ValueError('BERT has positions from 0, sentence types, one width and a pooler')
  check_heads(heads, HEADS)
  name = 'BertForPreTraining' if 'pair' in heads else 'BertForMaskedLM' if heads else 'BertModel'
  return {
    'model_type': 'bert',
    'architectures': [name],
    **shared_fields(trunk),
    'max_position_embeddings': c.max_length,
    'type_vocab_size': c.num_types,
    'pad_token_id': 0,
  }


def shared_fields(trunk: Bert | Albert) -> dict[str, Any]:
  """What all relatives of BERT write into config.json."""
  c = trunk.config
  names = {'gelu_erf': 'gelu', 'gelu_tanh': 'gelu_pytorch_tanh', 'relu': 'relu'}
  return {
    'vocab_size': trunk.vocab_size,
    'hidden_size': c.hidden_dim,
    'num_hidden_layers': c.num_layers,
    'num_attention_heads': c.num_heads,
    'intermediate_size': c.mlp_dim,
    'hidden_act': names[c.activation],
    'layer_norm_eps': c.norm_epsilon,
    'hidden_dropout_prob': c.dropout,
    'attention_probs_dropout_prob': c.attention_dropout,
    'initializer_range': c.init_std,
    'tie_word_embeddings': True,
  }


def entries(trunk: Bert, heads: Sequence[str]) -> list[Entry]:
  """Every parameter of the trunk and of the heads.

  Raises:
    ValueError: there is no place for a head.
  """
  check_heads(heads, HEADS)
  tied = ('cls.predictions.decoder.weight',)
  out = embeddings('bert.embeddings', types=True, tied=tied) + layers('bert.encoder.layer.{layer}')
  out += linear('trunk/pooler', 'bert.pooler.dense', optional=True)
  if 'mlm' in heads:
    out += linear('mlm/dense', 'cls.predictions.transform.dense')
    out += norm('mlm/norm', 'cls.predictions.transform.LayerNorm')
    out.append(Entry('mlm/bias', 'cls.predictions.bias', tied=('cls.predictions.decoder.bias',)))
  if 'pair' in heads:
    out += linear('pair', 'cls.seq_relationship')
  return out


def embeddings(theirs: str, *, types: bool, tied: tuple[str, ...]) -> list[Entry]:
  """The tables at the input and their norm."""
  out = [
    Entry('trunk/token_embed/table', f'{theirs}.word_embeddings.weight', tied=tied),
    Entry('trunk/position_embed/table', f'{theirs}.position_embeddings.weight'),
  ]
  if types:
    out.append(Entry('trunk/type_embed/table', f'{theirs}.token_type_embeddings.weight'))
  return out + norm('trunk/embed_norm', f'{theirs}.LayerNorm')


def layers(theirs: str) -> list[Entry]:
  """The blocks."""
  out = [
    entry
    for part in ('query', 'key', 'value')
    for entry in linear(f'trunk/layers/{part}', f'{theirs}.attention.self.{part}')
  ]
  out += linear('trunk/layers/out', f'{theirs}.attention.output.dense', inputs=2)
  out += norm('trunk/layers/attention_norm', f'{theirs}.attention.output.LayerNorm')
  out += linear('trunk/layers/mlp/up', f'{theirs}.intermediate.dense')
  out += linear('trunk/layers/mlp/down', f'{theirs}.output.dense')
  return out + norm('trunk/layers/mlp_norm', f'{theirs}.output.LayerNorm')
