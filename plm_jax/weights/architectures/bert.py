"""Tensors and config fields of BERT in Hugging Face's form, with its pre-training heads."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import flax.linen as nn

from plm_jax.models.albert import Albert
from plm_jax.models.bert import Bert
from plm_jax.weights import fields
from plm_jax.weights.class_heads import TaskHead, encoder_tasks, is_task, of_task
from plm_jax.weights.table import POSITIONS, Derived, Entry, linear, norm

MODEL = 'bert'
MODEL_TYPES = ('bert',)
TYPED = True
PREFIX = 'bert.'
HEADS = ('mlm', 'pair')

# fields of all relatives of BERT
SHARED: fields.Fields = {
  **fields.ENCODER,
  'hidden_size': fields.size(),
  'num_hidden_layers': fields.layers(),
  'num_attention_heads': fields.layers(),
  'intermediate_size': fields.size(),
  'hidden_act': fields.activation('gelu'),
  'hidden_dropout_prob': fields.rate(0.1),
  'attention_probs_dropout_prob': fields.rate(0.1),
  'max_position_embeddings': fields.size(512),
  'type_vocab_size': fields.size(2),
  'layer_norm_eps': fields.epsilon(1e-12),
  'initializer_range': fields.std(0.02),
  'classifier_dropout': fields.inert(),
  'position_embedding_type': fields.fixed('absolute'),
}
FIELDS: fields.Fields = SHARED
_NAMES: Mapping[str, str] = {  # their fields, ours
  'hidden_size': 'hidden_dim', 'num_hidden_layers': 'num_layers', 'num_attention_heads': 'num_heads',
  'intermediate_size': 'mlp_dim', 'layer_norm_eps': 'norm_epsilon', 'hidden_dropout_prob': 'dropout',
  'attention_probs_dropout_prob': 'attention_dropout', 'initializer_range': 'init_std',
}  # fmt: skip
DERIVED: Mapping[str, Derived] = POSITIONS


def tasks(trunk: nn.Module) -> dict[str, TaskHead]:
  return encoder_tasks()


def read_config(theirs: Mapping[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
  theirs = fields.complete(FIELDS, theirs)
  overrides = shared_config(theirs) | {'tied': is_tied(theirs, names, 'cls.predictions.')}
  overrides |= {'max_length': theirs['max_position_embeddings'], 'num_types': theirs['type_vocab_size']}
  return {'vocab_size': theirs['vocab_size'], 'variant': 'bert-base', 'overrides': overrides}


def shared_config(theirs: Mapping[str, Any]) -> dict[str, Any]:
  """Convert fields of all relatives; raise ValueError for an indivisible width."""
  fields.check_multiple(theirs, 'hidden_size', 'num_attention_heads')
  same = {ours: theirs[name] for name, ours in _NAMES.items()}
  return same | {'activation': fields.ACTIVATIONS[theirs['hidden_act']]}


def write_config(trunk: Bert, heads: Sequence[str]) -> dict[str, Any]:
  c = trunk.config
  if c.position_offset or not c.num_types or c.embed_dim or c.pooler != 'tanh' or c.model_type:
    raise ValueError("BERT needs positions from 0, sentence types, one width, a pooler and model_type=''")
  kinds = {'pair': 'ForPreTraining', 'mlm': 'ForMaskedLM'}
  return {
    'model_type': 'bert',
    'architectures': [f'Bert{kind_of(heads, kinds)}'],
    **shared_fields(trunk, heads),
    'max_position_embeddings': c.max_length,
    'type_vocab_size': c.num_types,
    'pad_token_id': 0,
  }


def check_gelu(theirs: Mapping[str, Any], names: Collection[str], head: str) -> None:
  """Raise ValueError if only the masked-token head (names with `head`) has gelu.

  RoBERTa's head and that of ELECTRA's generator have gelu for every hidden_act; here head and body have the same
  activation.
  """
  if fields.ACTIVATIONS[theirs['hidden_act']] != 'gelu_erf' and any(name.startswith(head) for name in names):
    raise ValueError(f'hidden_act is {theirs["hidden_act"]!r}, but the head for masked tokens always has gelu')


def check_own_gelu(trunk: Bert, heads: Sequence[str]) -> None:
  """Raise ValueError if a trunk's head cannot be written for that reason."""
  if 'mlm' in heads and trunk.config.activation != 'gelu_erf':
    raise ValueError(f'the published head for masked tokens has gelu_erf, but this trunk {trunk.config.activation}')


def check_output(trunk: nn.Module, heads: Sequence[str], output: str) -> None:
  """Raise ValueError for an untied output matrix without the head `output`."""
  if not trunk.config.tied and output not in heads:
    raise ValueError(f'an untied output matrix (tied=False) needs the head {output}')


def is_tied(theirs: Mapping[str, Any], names: Collection[str], head: str) -> bool:
  """Check for a tied output matrix, or no tensor of the head."""
  return theirs['tie_word_embeddings'] or not any(name.startswith(head) for name in names)


def kind_of(heads: Sequence[str], kinds: Mapping[str, str]) -> str:
  """Return their class name's suffix: the first present kind, or 'Model'."""
  of_heads = (kind for head, kind in kinds.items() if head in heads)
  return next(filter(is_task, heads), None) or next(of_heads, 'Model')


def shared_fields(trunk: nn.Module, heads: Sequence[str], *, output: str = 'mlm') -> dict[str, Any]:
  """Build fields shared by BERT's relatives; ValueError if untied without `output`."""
  c = trunk.config
  check_output(trunk, heads, output)
  if getattr(c, 'num_tasks', 0) or getattr(c, 'relative_buckets', 0):
    raise ValueError('this form needs num_tasks=0 and relative_buckets=0')
  return {
    'vocab_size': trunk.vocab_size,
    **fields.named(c, _NAMES),
    'hidden_act': fields.their_activation(c.activation),
    'tie_word_embeddings': c.tied,
  }


def entries(trunk: Bert, heads: Sequence[str]) -> list[Entry]:
  decoder = 'cls.predictions.decoder'
  out = embeddings(trunk, 'bert.embeddings', decoder) + layers('bert.encoder.layer.{layer}')
  out += linear('trunk/pooler', 'bert.pooler.dense', optional=True)
  if 'mlm' in heads:
    out += linear('mlm/dense', 'cls.predictions.transform.dense')
    out += norm('mlm/norm', 'cls.predictions.transform.LayerNorm')
    out += output(trunk, decoder, bias='cls.predictions.bias')
  if 'pair' in heads:
    out += linear('pair', 'cls.seq_relationship')
  return out + of_task(HEADS, tasks(trunk), heads)


def output(trunk: nn.Module, decoder: str, *, bias: str | None = None) -> list[Entry]:
  """List the entries of the output bias and an untied matrix.

  `decoder` is their name of the layer, `bias` their second name of its bias: the main one if the matrix is tied, and
  only then.
  """
  if trunk.config.tied:
    return [Entry('mlm/bias', bias or f'{decoder}.bias', tied=(f'{decoder}.bias',) if bias else ())]
  matrix = Entry('trunk/output/table', f'{decoder}.weight')
  return [matrix, Entry('mlm/bias', f'{decoder}.bias', spare=(bias,) if bias else ())]


def embeddings(trunk: Bert | Albert, theirs: str, decoder: str) -> list[Entry]:
  """List the entries of input tables and norm; `decoder`: the output layer."""
  tied = (f'{decoder}.weight',) if trunk.config.tied else ()
  out = [
    Entry('trunk/token_embed/table', f'{theirs}.word_embeddings.weight', tied=tied),
    Entry('trunk/position_embed/table', f'{theirs}.position_embeddings.weight'),
  ]
  if trunk.config.num_types:
    out.append(Entry('trunk/type_embed/table', f'{theirs}.token_type_embeddings.weight'))
  return out + norm('trunk/embed_norm', f'{theirs}.LayerNorm')


def layers(theirs: str) -> list[Entry]:
  """List the entries of the blocks."""
  out: list[Entry] = []
  for part in ('query', 'key', 'value'):
    out += linear(f'trunk/layers/{part}', f'{theirs}.attention.self.{part}')
  out += linear('trunk/layers/out', f'{theirs}.attention.output.dense', inputs=2)
  out += norm('trunk/layers/attention_norm', f'{theirs}.attention.output.LayerNorm')
  out += linear('trunk/layers/mlp/up', f'{theirs}.intermediate.dense')
  out += linear('trunk/layers/mlp/down', f'{theirs}.output.dense')
  return out + norm('trunk/layers/mlp_norm', f'{theirs}.output.LayerNorm')
