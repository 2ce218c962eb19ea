"""Tensors and config fields of BART in Hugging Face's form; `final_logits_bias` must be zero."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from plm_jax.models.bart import Bart
from plm_jax.weights import fields
from plm_jax.weights.class_heads import TaskHead, is_task, of_task, one_layer, two_layers
from plm_jax.weights.table import Derived, Entry, is_zero, linear, norm, other_depth

MODEL = 'bart'
HEADS: tuple[str, ...] = ()
MODEL_TYPES = ('bart',)
PREFIX = 'model.'

_ACTIVATIONS: Mapping[str, str] = {'gelu': 'gelu_erf', 'gelu_new': 'gelu_tanh', 'relu': 'relu'}
# fields of BART and mBART
SHARED: fields.Fields = {
  **fields.COMMON,
  'is_encoder_decoder': fields.fixed(True),
  'is_decoder': fields.fixed(False),
  'd_model': fields.size(also='hidden_size'),
  **{f'{side}_layers': fields.layers() for side in ('encoder', 'decoder')},
  **{f'{side}_attention_heads': fields.layers() for side in ('encoder', 'decoder')},
  **{f'{side}_ffn_dim': fields.size() for side in ('encoder', 'decoder')},
  'max_position_embeddings': fields.size(1024),
  'activation_function': fields.choice('gelu', tuple(_ACTIVATIONS)),
  'dropout': fields.rate(0.1),
  'attention_dropout': fields.rate(0.0),
  'activation_dropout': fields.rate(0.0),
  'init_std': fields.std(0.02),
  'forced_eos_token_id': fields.token_id(2),
  'tie_word_embeddings': fields.fixed(True),
  'scale_embedding': fields.flag(False),
  'normalize_embedding': fields.fixed(True),
  **{name: fields.inert() for name in ('encoder_layerdrop', 'decoder_layerdrop', 'classifier_dropout')},
}
FIELDS: fields.Fields = {
  **SHARED,
  'decoder_start_token_id': fields.token_id(2),
  'normalize_before': fields.fixed(False),
  'add_final_layer_norm': fields.fixed(False),
}
_NAMES: Mapping[str, str] = {  # their fields, ours
  'd_model': 'hidden_dim', 'encoder_layers': 'num_layers', 'max_position_embeddings': 'max_length',
  'dropout': 'dropout', 'attention_dropout': 'attention_dropout', 'activation_dropout': 'mlp_dropout',
  'init_std': 'init_std', 'scale_embedding': 'scale_embedding',
  **{f'{side}_attention_heads': 'num_heads' for side in ('encoder', 'decoder')},
  **{f'{side}_ffn_dim': 'mlp_dim' for side in ('encoder', 'decoder')},
}  # fmt: skip
DERIVED: Mapping[str, Derived] = {'final_logits_bias': is_zero}
UNUSED = (r'(encoder|decoder)\.version$',)


def tasks(trunk: Bart) -> dict[str, TaskHead]:
  """Describe their task classes, which read the decoder."""
  dense, out = 'classification_head.dense', 'classification_head.out_proj'
  return {
    'ForSequenceClassification': two_layers('classify', dense, out, activation='tanh'),
    'ForQuestionAnswering': one_layer('span', 'qa_outputs'),
  }


def read_config(theirs: Mapping[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
  theirs = fields.complete(FIELDS, theirs)
  overrides = shared_config(theirs) | fields.label_start(theirs, names, eos=2)
  return {'vocab_size': theirs['vocab_size'], 'variant': 'bart-base', 'overrides': overrides}


def shared_config(theirs: Mapping[str, Any]) -> dict[str, Any]:
  """Convert the fields shared with mBART; raise ValueError for unsupported stacks."""
  fields.check_multiple(theirs, 'd_model', 'encoder_attention_heads')
  for field in ('ffn_dim', 'attention_heads'):
    sizes = theirs[f'encoder_{field}'], theirs[f'decoder_{field}']
    if sizes[0] != sizes[1]:
      raise ValueError(f'encoder_{field} {sizes[0]} and decoder_{field} {sizes[1]} must be equal')
  return {
    **{ours: theirs[name] for name, ours in _NAMES.items()},
    'num_decoder_layers': other_depth(theirs['decoder_layers'], theirs['encoder_layers']),
    'activation': _ACTIVATIONS[theirs['activation_function']],
  }


def write_config(trunk: Bart, heads: Sequence[str]) -> dict[str, Any]:
  if trunk.config.norm_placement != 'post':
    raise ValueError("BART needs norm_placement='post'; 'pre' is mBART's")
  return {
    'model_type': 'bart',
    'architectures': [f'Bart{kind_of(heads)}'],
    **shared_fields(trunk),
    'decoder_start_token_id': 2,
  }


def kind_of(heads: Sequence[str]) -> str:
  """Return the suffix of the name of their class."""
  return next(filter(is_task, heads), 'ForConditionalGeneration')


def shared_fields(trunk: Bart) -> dict[str, Any]:
  """Build the fields shared with mBART; raise ValueError as `write_config`."""
  c = trunk.config
  activations = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}
  if c.activation not in activations or c.position_offset != 2 or c.norm_epsilon != 1e-5:
    raise ValueError(
      f'BART needs activation {" or ".join(activations)}, position_offset 2 and norm_epsilon 1e-5, not {c.activation}, '
      f'{c.position_offset} and {c.norm_epsilon:g}'
    )
  return {
    'vocab_size': trunk.vocab_size,
    **fields.named(c, _NAMES),
    'decoder_layers': c.decoder_layers,
    'activation_function': activations[c.activation],
    'tie_word_embeddings': True,
    'is_encoder_decoder': True,
    'bos_token_id': 0,
    'pad_token_id': 1,
    'eos_token_id': 2,
  }


def entries(trunk: Bart, heads: Sequence[str]) -> list[Entry]:
  tied = (*(f'{PREFIX}{side}.embed_tokens.weight' for side in ('encoder', 'decoder')), 'lm_head.weight')
  out = [Entry('trunk/token_embed/table', f'{PREFIX}shared.weight', tied=tied)]
  own = ('attention', 'self_attn')
  attentions = {'encoder': [own], 'decoder': [own, ('cross', 'encoder_attn')]}
  for side, kinds in attentions.items():
    out.append(Entry(f'trunk/{side}/position_embed/table', f'{PREFIX}{side}.embed_positions.weight'))
    out += norm(f'trunk/{side}/embed_norm', f'{PREFIX}{side}.layernorm_embedding')
    ours, layer = f'trunk/{side}/layers', f'{PREFIX}{side}.layers.{{layer}}'
    for name, kind in kinds:
      for part in ('query', 'key', 'value'):
        out += linear(f'{ours}/{name}/{part}', f'{layer}.{kind}.{part[0]}_proj')
      out += linear(f'{ours}/{name}/out', f'{layer}.{kind}.out_proj', inputs=2)
      out += norm(f'{ours}/{name}_norm', f'{layer}.{kind}_layer_norm')
    out += linear(f'{ours}/mlp/up', f'{layer}.fc1') + linear(f'{ours}/mlp/down', f'{layer}.fc2')
    out += norm(f'{ours}/mlp_norm', f'{layer}.final_layer_norm')
    if trunk.config.norm_placement == 'pre':
      out += norm(f'trunk/{side}/final_norm', f'{PREFIX}{side}.layer_norm')
  return out + of_task(HEADS, tasks(trunk), heads)
