"""Tensors and config fields of T5 1.0, 1.1 and ByT5 in Hugging Face's form, and of their encoders alone.

Their tables of relative biases are in layer 0 of each stack and serve all layers, as ours do. In a folder of 1.1 the
output matrix is `lm_head`. Some programs tie it to the token table and write it once; if it is missing, it is read
from there.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from plm_jax.models.t5 import T5, T5Encoder
from plm_jax.weights import fields
from plm_jax.weights.class_heads import TaskHead, is_task, of_task, one_layer, two_layers
from plm_jax.weights.table import Derived, Entry, other_depth

log = logging.getLogger(__name__)

MODEL = 't5'
HEADS: tuple[str, ...] = ()
MODEL_TYPES = ('t5',)
PREFIX = ''
_INSIDE = 'transformer.'  # prefix of the trunk in their classes for texts and tokens

# feed_forward_proj -> (activation, gated)
FORMS: Mapping[str, tuple[str, bool]] = {
  'relu': ('relu', False),
  'gelu_new': ('gelu_tanh', False),
  'gelu': ('gelu_erf', False),
  'gated-relu': ('relu', True),
  'gated-gelu': ('gelu_tanh', True),
  'gated-silu': ('silu', True),
}

FIELDS: fields.Fields = {
  **fields.COMMON,
  'is_encoder_decoder': fields.flag(True),
  'is_decoder': fields.fixed(False),
  'd_model': fields.size(also='hidden_size'),
  'd_kv': fields.size(also='head_dim'),
  'd_ff': fields.size(),
  'num_layers': fields.layers(also='num_hidden_layers'),
  'num_decoder_layers': fields.layers(None),
  'num_heads': fields.layers(also='num_attention_heads'),
  'relative_attention_num_buckets': fields.size(32),
  'relative_attention_max_distance': fields.size(128),
  'dropout_rate': fields.rate(0.1),
  'layer_norm_epsilon': fields.epsilon(1e-6),
  'feed_forward_proj': fields.choice('relu', tuple(FORMS)),
  'scale_decoder_outputs': fields.choice(None, (True, False, None)),
  'decoder_start_token_id': fields.token_id(0),
  'dense_act_fn': fields.Field('the activation of feed_forward_proj', lambda value: isinstance(value, str), None),
  'is_gated_act': fields.choice(None, (True, False)),
  **{name: fields.inert() for name in ('initializer_factor', 'classifier_dropout')},
}
_NAMES: Mapping[str, str] = {  # their fields, ours
  'd_model': 'hidden_dim', 'd_kv': 'head_dim', 'd_ff': 'mlp_dim', 'num_layers': 'num_layers', 'num_heads': 'num_heads',
  'relative_attention_num_buckets': 'num_buckets', 'relative_attention_max_distance': 'max_distance',
  'dropout_rate': 'dropout', 'layer_norm_epsilon': 'norm_epsilon',
}  # fmt: skip
DERIVED: Mapping[str, Derived] = {}
UNUSED = (r'EncDecAttention\.relative_attention_bias\.weight$',)  # in the first published files


def tasks(trunk: T5 | T5Encoder) -> dict[str, TaskHead]:
  """Describe their task classes; that for tokens has an encoder alone."""
  if trunk.config.structure == 'encoder':
    return {'ForTokenClassification': one_layer('tag', 'classifier')}
  dense, out = 'classification_head.dense', 'classification_head.out_proj'
  return {
    'ForSequenceClassification': two_layers('classify', dense, out, activation='tanh'),
    'ForQuestionAnswering': one_layer('span', 'qa_outputs'),
  }


def read_config(theirs: Mapping[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
  theirs = fields.complete(FIELDS, theirs)
  scaled = theirs['scale_decoder_outputs']
  # newer files specify whether logits are scaled, and have every output tied
  tied = theirs['tie_word_embeddings'] if scaled is None else scaled
  overrides = shared_config(theirs, names, tied=tied)
  return {'vocab_size': theirs['vocab_size'], 'variant': 't5-small', 'overrides': overrides}


def shared_config(theirs: Mapping[str, Any], names: Collection[str], *, tied: bool) -> dict[str, Any]:
  """Convert the fields that T5 and mT5 share.

  Args:
    names: of the tensors; without those of a decoder the trunk is an encoder alone.
    tied: logits are computed by the scaled token table.

  Raises:
    ValueError: two stacks of another wiring.
  """
  start = fields.label_start(theirs, names, eos=1)
  names = {name.removeprefix(_INSIDE) for name in names}
  activation, gated = FORMS[theirs['feed_forward_proj']]
  own = {'gelu_tanh': 'gelu_new', 'gelu_erf': 'gelu'}.get(activation, activation)
  for name, value in (('dense_act_fn', own), ('is_gated_act', gated)):
    if theirs[name] not in (None, value):
      raise ValueError(f'{name} is {theirs[name]!r}, but {value!r} by feed_forward_proj')
  layers = theirs['num_layers']
  alone = bool(names) and not any(name.startswith('decoder.') for name in names)
  buckets, distance = (theirs[f'relative_attention_{name}'] for name in ('num_buckets', 'max_distance'))
  parts = 4 if alone else 2  # an encoder has half of the buckets for each direction
  if buckets // parts >= distance:
    raise ValueError(
      f'relative_attention_max_distance is {distance}, but must be above relative_attention_num_buckets / {parts}, '
      f'{buckets} / {parts}'
    )
  if not alone and not theirs['is_encoder_decoder']:
    raise ValueError('is_encoder_decoder is False, but the file has a decoder')
  return {
    **{ours: theirs[name] for name, ours in _NAMES.items()},
    'num_decoder_layers': None if alone else other_depth(theirs['num_decoder_layers'] or layers, layers),
    'activation': activation,
    'gated': gated,
    'structure': 'encoder' if alone else 'encoder-decoder',
    'tied': tied,
    'has_output': tied or not alone or 'lm_head.weight' in names,
    'attention_dropout': theirs['dropout_rate'],
    **start,
  }


def write_config(trunk: T5 | T5Encoder, heads: Sequence[str]) -> dict[str, Any]:
  shared = shared_fields(trunk)
  task = next(filter(is_task, heads), None)
  if trunk.config.model_type:
    raise ValueError(f'model_type={trunk.config.model_type!r} is exported under that name')
  if trunk.gives_logits and not trunk.config.tied and not task:
    log.warning(
      'The untied output matrix lm_head is written, but transformers from 5.0 on treats every T5 as tied: '
      'tie_weights() replaces it by the token table. To be safe, use decoder states times lm_head'
    )
  return {'model_type': 't5', 'architectures': [f'T5{kind_of(trunk, heads)}'], **shared}


def kind_of(trunk: T5 | T5Encoder, heads: Sequence[str]) -> str:
  """Return the suffix of the name of their class."""
  whole = 'EncoderModel' if trunk.config.structure == 'encoder' else 'ForConditionalGeneration'
  return next(filter(is_task, heads), whole)


def shared_fields(trunk: T5 | T5Encoder) -> dict[str, Any]:
  """Build the fields shared with mT5; raise ValueError as `write_config`."""
  _check(trunk)
  c = trunk.config
  forms = {value: form for form, value in FORMS.items()}
  if (c.activation, c.gated) not in forms:
    raise ValueError(f'no feed_forward_proj has activation {c.activation!r}, gated={c.gated}')
  return {
    'vocab_size': trunk.vocab_size,
    **fields.named(c, _NAMES),
    'num_decoder_layers': c.decoder_layers,
    'feed_forward_proj': forms[c.activation, c.gated],
    'tie_word_embeddings': c.tied,
    'is_encoder_decoder': c.structure != 'encoder',
    'pad_token_id': 0,
    'eos_token_id': 1,
    'decoder_start_token_id': 0,
  }


def entries(trunk: T5 | T5Encoder, heads: Sequence[str]) -> list[Entry]:
  _check(trunk)
  tied: tuple[str, ...] = ('encoder.embed_tokens.weight', 'decoder.embed_tokens.weight')
  out = [
    Entry('trunk/token_embed/table', 'shared.weight', tied=(*tied, 'lm_head.weight') if trunk.config.tied else tied)
  ]
  if trunk.gives_logits and not trunk.config.tied:
    out.append(Entry('trunk/output/table', 'lm_head.weight', tied=('shared.weight',)))
  own = ('attention', 'SelfAttention')
  attentions = {'encoder': [own]}
  if trunk.config.structure != 'encoder':
    attentions['decoder'] = [own, ('cross', 'EncDecAttention')]
  matrices = (('gate', 'wi_0'), ('up', 'wi_1')) if trunk.config.gated else (('up', 'wi'),)
  for side, kinds in attentions.items():
    ours, block = f'trunk/{side}/layers', f'{side}.block.{{layer}}.layer'
    for index, (name, kind) in enumerate(kinds):
      out += [
        Entry(f'{ours}/{name}/{part}/kernel', f'{block}.{index}.{kind}.{part[0]}.weight', 'linear')
        for part in ('query', 'key', 'value')
      ]
      out.append(Entry(f'{ours}/{name}/out/kernel', f'{block}.{index}.{kind}.o.weight', 'linear', inputs=2))
      out.append(Entry(f'{ours}/{name}_norm/scale', f'{block}.{index}.layer_norm.weight'))
    mlp = f'{block}.{len(kinds)}'
    out += [
      Entry(f'{ours}/mlp/{part}/kernel', f'{mlp}.DenseReluDense.{matrix}.weight', 'linear')
      for part, matrix in (*matrices, ('down', 'wo'))
    ]
    out.append(Entry(f'{ours}/mlp_norm/scale', f'{mlp}.layer_norm.weight'))
    bias = f'{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight'
    out.append(Entry(f'trunk/{side}/relative_bias/table', bias))
    out.append(Entry(f'trunk/{side}/final_norm/scale', f'{side}.final_layer_norm.weight'))
  if {'ForSequenceClassification', 'ForTokenClassification'} & set(heads):
    out = [
      entry._replace(theirs=f'{_INSIDE}{entry.theirs}', tied=tuple(f'{_INSIDE}{name}' for name in entry.tied))
      for entry in out
    ]
  return out + of_task(HEADS, tasks(trunk), heads)


def _check(trunk: T5 | T5Encoder) -> None:
  if trunk.config.structure not in ('encoder-decoder', 'encoder'):
    raise ValueError(
      f'the published form of T5 is an encoder-decoder or an encoder; structure is {trunk.config.structure!r}'
    )
