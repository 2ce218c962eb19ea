"""Tensors and config fields of ModernBERT in Hugging Face's form, with the masked language modelling head."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from plm_jax.models.modernbert import ModernBert
from plm_jax.weights import fields
from plm_jax.weights.architectures import bert
from plm_jax.weights.class_heads import TaskHead, is_task, of_task
from plm_jax.weights.table import Derived, Entry, Part, linear

MODEL = 'modernbert'
MODEL_TYPES = ('modernbert',)
PREFIX = 'model.'
HEADS = ('mlm',)

_KINDS = {'full_attention': 'global', 'sliding_attention': 'local'}
_ANGLES = fields.block({'rope_type': fields.fixed('default'), 'rope_theta': fields.number(above=1)})
FIELDS: fields.Fields = {
  **fields.ENCODER,
  'hidden_size': fields.size(768),
  'num_hidden_layers': fields.layers(22),
  'num_attention_heads': fields.layers(12),
  'intermediate_size': fields.size(1152),
  'hidden_activation': fields.activation('gelu'),
  'max_position_embeddings': fields.size(8192),
  'initializer_range': fields.std(0.02),
  'norm_eps': fields.epsilon(1e-5),
  'attention_dropout': fields.rate(0.0),
  'embedding_dropout': fields.rate(0.0),
  'mlp_dropout': fields.rate(0.0),
  'local_attention': fields.whole(128, least=2),
  'layer_types': fields.list_of(tuple(_KINDS)),
  'global_attn_every_n_layers': fields.layers(3),
  'rope_parameters': fields.block(dict.fromkeys(_KINDS, _ANGLES)),
  'rope_scaling': fields.fixed(None),
  'global_rope_theta': fields.number(160_000.0, above=1),
  'local_rope_theta': fields.number(10_000.0, above=1),
  'classifier_pooling': fields.choice('cls', ('cls', 'mean')),
  'classifier_activation': fields.fixed('gelu', 'gelu_python'),
  'decoder_bias': fields.fixed(True),
  **dict.fromkeys(('norm_bias', 'attention_bias', 'mlp_bias', 'classifier_bias'), fields.fixed(False)),
  **dict.fromkeys(
    ('initializer_cutoff_factor', 'cls_token_id', 'sep_token_id', 'classifier_dropout', 'deterministic_flash_attn',
     'sparse_prediction', 'sparse_pred_ignore_index'),
    fields.inert(),
  ),
}  # fmt: skip
DERIVED: Mapping[str, Derived] = {}
_NAMES: Mapping[str, str] = {  # their fields, ours
  'hidden_size': 'hidden_dim', 'num_hidden_layers': 'num_layers', 'num_attention_heads': 'num_heads',
  'intermediate_size': 'mlp_dim', 'max_position_embeddings': 'max_length', 'local_attention': 'window',
  'norm_eps': 'norm_epsilon', 'embedding_dropout': 'embed_dropout', 'mlp_dropout': 'dropout',
  'attention_dropout': 'attention_dropout', 'initializer_range': 'init_std',
}  # fmt: skip


def tasks(trunk: ModernBert) -> dict[str, TaskHead]:
  """Describe their task classes that read one state of a text."""
  pooler = *linear('trunk/pooler', 'head.dense', bias=False), Entry('trunk/pooler_norm/scale', 'head.norm.weight')
  return {
    f'For{kind}': TaskHead(adapter, (*pooler, *linear('head', 'classifier')))
    for kind, adapter in (('SequenceClassification', 'classify'), ('MultipleChoice', 'choose'))
  }


def read_config(theirs: Mapping[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
  theirs = fields.complete(FIELDS, theirs)
  fields.check_multiple(theirs, 'hidden_size', 'num_attention_heads')
  pooler = 'mean' if theirs['classifier_pooling'] == 'mean' else 'first'
  rope = theirs['rope_parameters'] or {}
  bases = {
    f'{ours}_base': (rope.get(kind) or {}).get('rope_theta', theirs[f'{ours}_rope_theta'])
    for kind, ours in _KINDS.items()
  }
  overrides = bases | {ours: theirs[name] for name, ours in _NAMES.items()}
  overrides |= {
    'global_every': _global_every(theirs),
    'activation': fields.ACTIVATIONS[theirs['hidden_activation']],
    'pooler': f'dense_{pooler}' if 'classifier.weight' in names else pooler,
    'tied': bert.is_tied(theirs, names, 'decoder.'),
  }
  return {'vocab_size': theirs['vocab_size'], 'variant': 'modernbert-base', 'overrides': overrides}


def _layer_types(count: int, every: int) -> list[str]:
  return ['sliding_attention' if index % every else 'full_attention' for index in range(count)]


def _global_every(theirs: Mapping[str, Any]) -> int:
  """Return our `global_every`; raise ValueError for layers without a period."""
  kinds, count = theirs['layer_types'], theirs['num_hidden_layers']
  if kinds is None:
    return theirs['global_attn_every_n_layers']
  every = next((index for index, kind in enumerate(kinds) if index and kind == 'full_attention'), count)
  if kinds != _layer_types(count, every):
    raise ValueError(
      f'layer_types must have {count} entries, full_attention first and after every {every - 1} of sliding_attention'
    )
  return every


def write_config(trunk: ModernBert, heads: Sequence[str]) -> dict[str, Any]:
  """Build the config.json; raise ValueError for another head or pooler."""
  c = trunk.config
  if c.pooler.startswith('dense') != any(map(is_task, heads)):
    raise ValueError(f'pooler={c.pooler!r}: a text or option head needs a dense_ one, and nothing else has it')
  bert.check_output(trunk, heads, 'mlm')
  return {
    'model_type': 'modernbert',
    'architectures': [f'ModernBert{bert.kind_of(heads, {"mlm": "ForMaskedLM"})}'],
    'vocab_size': trunk.vocab_size,
    **fields.named(c, _NAMES),
    'hidden_activation': fields.their_activation(c.activation),
    'tie_word_embeddings': c.tied,
    'layer_types': _layer_types(c.num_layers, c.global_every),
    'global_attn_every_n_layers': c.global_every,
    'global_rope_theta': c.global_base,
    'local_rope_theta': c.local_base,
    'classifier_pooling': 'mean' if c.pooler.endswith('mean') else 'cls',
    'pad_token_id': 0,
  }


def entries(trunk: ModernBert, heads: Sequence[str]) -> list[Entry]:
  c = trunk.config
  tied = ('decoder.weight',) if c.tied else ()
  out = [
    Entry('trunk/token_embed/table', 'model.embeddings.tok_embeddings.weight', tied=tied),
    Entry('trunk/embed_norm/scale', 'model.embeddings.norm.weight'),
    Entry('trunk/final_norm/scale', 'model.final_norm.weight'),
    *_block('trunk/first', 'model.layers.0', c.hidden_dim, c.mlp_dim),
  ]
  if c.num_layers > 1:
    block = 'model.layers.{layer}'
    out += _block('trunk/layers', block, c.hidden_dim, c.mlp_dim)
    out.append(Entry('trunk/layers/attention_norm/scale', f'{block}.attn_norm.weight', first=1))
  if 'mlm' in heads:
    out += bert.output(trunk, 'decoder')
  if 'mlm' in heads and not c.pooler.startswith('dense'):
    out += [*linear('mlm/dense', 'head.dense', bias=False), Entry('mlm/norm/scale', 'head.norm.weight')]
  return out + of_task(HEADS, tasks(trunk), heads)


def _block(ours: str, theirs: str, width: int, inner: int) -> list[Entry]:
  out = []
  for name, rows, parts in (('attn.Wqkv', width, ('query', 'key', 'value')), ('mlp.Wi', inner, ('mlp/gate', 'mlp/up'))):
    for i, part in enumerate(parts):
      where = Part(i * rows, (i + 1) * rows, len(parts) * rows)
      out.append(Entry(f'{ours}/{part}/kernel', f'{theirs}.{name}.weight', 'linear', part=where))
  out += linear(f'{ours}/out', f'{theirs}.attn.Wo', inputs=2, bias=False)
  out += linear(f'{ours}/mlp/down', f'{theirs}.mlp.Wo', bias=False)
  out.append(Entry(f'{ours}/mlp_norm/scale', f'{theirs}.mlp_norm.weight'))
  return [entry._replace(first=int(entry.stacked)) for entry in out]
