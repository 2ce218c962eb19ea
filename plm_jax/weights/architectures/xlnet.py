"""Tensors and config fields of XLNet in Hugging Face's form.

The body is followed by 'lm_loss' (our head 'lm' and the table, or an untied matrix), or by a task head: for texts and
options the summary layer (our trunk's pooler) with 'logits_proj'.
"""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from plm_jax.models.xlnet import Xlnet
from plm_jax.weights import fields
from plm_jax.weights.architectures import bert
from plm_jax.weights.class_heads import TaskHead, of_task, one_layer
from plm_jax.weights.table import Derived, Entry, linear, norm

MODEL = 'xlnet'
HEADS = ('lm',)
MODEL_TYPES = ('xlnet',)
TYPED = True
PREFIX = 'transformer.'

FIELDS: fields.Fields = {
  **fields.ENCODER,
  'vocab_size': fields.size(also='n_token'),
  'd_model': fields.size(also='hidden_size'),
  'n_layer': fields.layers(also='num_hidden_layers'),
  'n_head': fields.layers(also='num_attention_heads'),
  'd_inner': fields.size(),
  'd_head': fields.size(None),
  'ff_activation': fields.activation('gelu'),
  'layer_norm_eps': fields.epsilon(1e-12),
  'dropout': fields.rate(0.1),
  'initializer_range': fields.std(0.02),
  'mem_len': fields.whole(None),
  'reuse_len': fields.whole(None),
  'attn_type': fields.fixed('bi'),
  'untie_r': fields.fixed(True),
  'same_length': fields.fixed(False),
  'clamp_len': fields.fixed(-1),
  'bi_data': fields.fixed(False),
  'summary_type': fields.fixed('last'),
  'summary_use_proj': fields.fixed(True),
  'summary_activation': fields.fixed('tanh'),
  **dict.fromkeys(
    ('use_mems_eval', 'use_mems_train', 'summary_last_dropout', 'start_n_top', 'end_n_top'), fields.inert()
  ),
}
_WHOLE_ROW = 2**24  # reuse_length for whole sequences, their default
_NAMES: Mapping[str, str] = {  # their fields, ours
  'd_model': 'hidden_dim', 'n_layer': 'num_layers', 'n_head': 'num_heads', 'd_inner': 'mlp_dim',
  'layer_norm_eps': 'norm_epsilon', 'dropout': 'dropout', 'initializer_range': 'init_std',
}  # fmt: skip
DERIVED: Mapping[str, Derived] = {}


def tasks(trunk: Xlnet) -> dict[str, TaskHead]:
  """Describe their task classes; an answer's end depends on its start."""
  summed = (*linear('trunk/pooler', 'sequence_summary.summary'), *linear('head', 'logits_proj'))
  tasks_by_class = {
    'ForSequenceClassification': TaskHead('classify', summed),
    'ForTokenClassification': one_layer('tag', 'classifier'),
    'ForMultipleChoice': TaskHead('choose', summed),
    'ForQuestionAnsweringSimple': one_layer('span', 'qa_outputs'),
  }
  if trunk.config.norm_epsilon == 1e-12:  # the norm in that head has the same epsilon
    conditional = (  # the head `Conditional` of adapters/span.py
      *linear('head/start', 'start_logits.dense'),
      *linear('head/end_inner', 'end_logits.dense_0'),
      *norm('head/end_norm', 'end_logits.LayerNorm'),
      *linear('head/end', 'end_logits.dense_1'),
      *linear('head/none_inner', 'answer_class.dense_0'),
      *linear('head/none', 'answer_class.dense_1', bias=False),
    )
    tasks_by_class['ForQuestionAnswering'] = TaskHead('span', conditional, MappingProxyType({'end': 'conditional'}))
  return tasks_by_class


def read_config(theirs: Mapping[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
  """Build keywords of `models.xlnet.make`; raise ValueError for unsupported fields.

  Without a memory in the file, as in published ones, its length is that of this package.
  """
  theirs = fields.complete(FIELDS, theirs)
  fields.check_multiple(theirs, 'd_model', 'n_head')
  size = theirs['d_model'] // theirs['n_head']
  if theirs['d_head'] not in (None, size):
    raise ValueError(f'd_head is {theirs["d_head"]}, but must be d_model / n_head, {size}')
  overrides = {ours: theirs[name] for name, ours in _NAMES.items()} | dict(
    tied=bert.is_tied(theirs, names, 'lm_loss.'),
    activation=fields.ACTIVATIONS[theirs['ff_activation']],
    attention_dropout=theirs['dropout'],  # one rate for both in theirs
  )
  if theirs['mem_len'] is not None:
    overrides |= {'memory_length': theirs['mem_len'], 'reuse_length': theirs['reuse_len'] or _WHOLE_ROW}
  elif theirs['reuse_len']:
    overrides['reuse_length'] = theirs['reuse_len']
  return {'vocab_size': theirs['vocab_size'], 'variant': 'xlnet-base', 'overrides': overrides}


def write_config(trunk: Xlnet, heads: Sequence[str]) -> dict[str, Any]:
  c = trunk.config
  bert.check_output(trunk, heads, 'lm')
  reused = c.reuse_length if c.memory_length else None
  return dict(
    model_type='xlnet',
    architectures=[f'XLNet{bert.kind_of(heads, {"lm": "LMHeadModel"})}'],
    vocab_size=trunk.vocab_size,
    **fields.named(c, _NAMES),
    d_head=c.hidden_dim // c.num_heads,
    ff_activation=fields.their_activation(c.activation),
    tie_word_embeddings=c.tied,
    untie_r=True,
    attn_type='bi',
    mem_len=c.memory_length or None,
    reuse_len=None if reused == _WHOLE_ROW else reused,
    summary_type='last',
    summary_use_proj=True,
    summary_activation='tanh',
    summary_last_dropout=c.dropout,
    bi_data=False,
  )


def entries(trunk: Xlnet, heads: Sequence[str]) -> list[Entry]:
  """List the entries; raise ValueError for a head that the form lacks.

  A trunk has its pooler only with a head that reads it.
  """
  tied = ('lm_loss.weight',) if trunk.config.tied else ()
  out = [
    Entry('trunk/token_embed/table', f'{PREFIX}word_embedding.weight', tied=tied),
    Entry('trunk/start/vector', f'{PREFIX}mask_emb'),
  ]
  ours, theirs = 'trunk/layers', f'{PREFIX}layer.{{layer}}'
  attention = f'{theirs}.rel_attn'
  for name, their_name in (('query', 'q'), ('key', 'k'), ('value', 'v'), ('position', 'r')):
    out.append(Entry(f'{ours}/{name}/kernel', f'{attention}.{their_name}'))
  out.append(Entry(f'{ours}/out/kernel', f'{attention}.o', 'outputs_first', inputs=2))
  for name, their_name in (('content_bias', 'r_w_bias'), ('position_bias', 'r_r_bias'), ('type_bias', 'r_s_bias')):
    out.append(Entry(f'{ours}/{name}', f'{attention}.{their_name}'))
  out.append(Entry(f'{ours}/types', f'{attention}.seg_embed'))
  out += norm(f'{ours}/attention_norm', f'{attention}.layer_norm')
  out += linear(f'{ours}/mlp/up', f'{theirs}.ff.layer_1')
  out += linear(f'{ours}/mlp/down', f'{theirs}.ff.layer_2')
  out += norm(f'{ours}/mlp_norm', f'{theirs}.ff.layer_norm')
  if 'lm' in heads:
    out.append(Entry('lm/bias', 'lm_loss.bias'))
    if not trunk.config.tied:
      out.append(Entry('trunk/output/table', 'lm_loss.weight'))
  return out + of_task(HEADS, tasks(trunk), heads)
