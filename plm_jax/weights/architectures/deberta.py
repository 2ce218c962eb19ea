"""Tensors and config fields of DeBERTa in Hugging Face's form: `deberta` (v1) and `deberta-v2` (v2 and v3).

Version 1 joins query, key and value of each head in one matrix. The absolute positions of the enhanced mask decoder are
published as `embeddings.position_embeddings`; models of Hugging Face read it only if it enters at the input.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from plm_jax.models.deberta import Config, Deberta
from plm_jax.weights import fields
from plm_jax.weights.architectures import bert
from plm_jax.weights.class_heads import TaskHead, encoder_tasks, of_task
from plm_jax.weights.table import POSITIONS, Derived, Entry, Part, linear, norm

MODEL = 'deberta'
MODEL_TYPES = ('deberta', 'deberta-v2')
TYPED = True
PREFIX = 'deberta.'
HEADS = ('mlm', 'position_embed')
FIELDS: fields.Fields = {
  **bert.SHARED,
  'num_hidden_layers': fields.whole(least=2, most=2**12),
  'type_vocab_size': fields.whole(0),
  'layer_norm_eps': fields.epsilon(1e-7),
  'relative_attention': fields.flag(False),
  'pos_att_type': fields.Field("a list of 'c2p' and 'p2c'", lambda value: _terms(value) is not None, None),
  'max_relative_positions': fields.whole(-1, least=-1),
  'position_buckets': fields.whole(-1, least=-1),
  'position_biased_input': fields.flag(True),
  'share_att_key': fields.flag(False),
  'norm_rel_ebd': fields.choice('none', ('none', 'layer_norm')),
  'conv_kernel_size': fields.choice(0, (0, *range(1, 1024, 2)))._replace(says='0 or an odd integer below 1024'),
  'conv_act': fields.activation('tanh'),
  'conv_groups': fields.fixed(1),
  'talking_head': fields.fixed(False),
  'attention_head_size': fields.size(None),
  'embedding_size': fields.size(None),
  'pooler_hidden_act': fields.activation('gelu'),
  'pooler_hidden_size': fields.inert(),
  'pooler_dropout': fields.inert(),
  'cls_dropout': fields.inert(),
  'legacy': fields.inert(),  # only changes names of the head of masked tokens
}
DERIVED: Mapping[str, Derived] = POSITIONS
_LEGACY = 'cls.predictions.'
UNUSED = (r'^mask_predictions\.',)  # version 3: replaced token detection


def tasks(trunk: Deberta) -> dict[str, TaskHead]:
  """Describe their task classes; version 1 has none for multiple choice."""
  return {end: task for end, task in encoder_tasks().items() if trunk.config.key_bias or end != 'ForMultipleChoice'}


def read_config(theirs: Mapping[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
  theirs = fields.complete(FIELDS, theirs)
  shared = bert.shared_config(theirs)
  width, activation, size = shared['hidden_dim'], shared['activation'], shared['hidden_dim'] // shared['num_heads']
  terms = _terms(theirs['pos_att_type'])
  if theirs['relative_attention'] != bool(terms):
    problem = f'relative_attention is {theirs["relative_attention"]!r} and pos_att_type {theirs["pos_att_type"]!r}'
    raise ValueError(f'{problem}: set both or neither')
  if theirs['attention_head_size'] not in (None, size):
    raise ValueError(f'attention_head_size is {theirs["attention_head_size"]!r}, but must be {size}')
  length, farthest = theirs['max_position_embeddings'], theirs['max_relative_positions']
  embed_dim = theirs['embedding_size'] or width
  newer = theirs['model_type'] == 'deberta-v2'  # version 1 ignores the fields that version 2 added
  kernel = theirs['conv_kernel_size'] if newer else 0
  activations = {
    'conv_activation': theirs['conv_act'] if kernel else None,
    'pooler_activation': theirs['pooler_hidden_act'],
  }
  activations = {name: fields.ACTIVATIONS[value] for name, value in activations.items() if value}
  overrides = shared | dict(
    embed_dim=None if embed_dim == width else embed_dim,
    num_types=theirs['type_vocab_size'],
    max_length=length,
    max_distance=length if farthest < 1 else farthest,
    position_buckets=max(0, theirs['position_buckets']) if newer else 0,
    terms=terms,
    absolute='input' if theirs['position_biased_input'] else 'decoder',
    share_projections=newer and theirs['share_att_key'],
    key_bias=newer,
    table_norm=newer and theirs['norm_rel_ebd'] == 'layer_norm',
    conv_kernel=kernel,
    **{name: None if value == activation else value for name, value in activations.items()},
    tied=bert.is_tied(theirs, names, _LEGACY),
  )
  return {'vocab_size': theirs['vocab_size'], 'variant': 'deberta-base', 'overrides': overrides}


def _terms(value: Any) -> tuple[str, ...] | None:
  """Parse `pos_att_type`, a list or words separated by |; else None."""
  if value is None:
    return ()
  words = [word.strip() for word in value.lower().split('|') if word.strip()] if isinstance(value, str) else value
  valid = isinstance(words, list) and all(word in ('c2p', 'p2c') for word in words) and len(set(words)) == len(words)
  return tuple(words) if valid else None


def write_config(trunk: Deberta, heads: Sequence[str]) -> dict[str, Any]:
  c = trunk.config
  if c.reading != 'code':
    raise ValueError(f'reading={c.reading!r} cannot be exported: their code reads p2c as reading="code"')
  newer = c.share_projections or c.table_norm or bool(c.conv_kernel) or bool(c.position_buckets)
  if newer and not c.key_bias:
    raise ValueError('key_bias=False is of version 1, which has no features of version 2')
  family = 'DebertaV2' if c.key_bias else 'Deberta'
  kind = bert.kind_of(heads, {'mlm': 'ForMaskedLM'})
  out = dict(
    model_type=MODEL_TYPES[c.key_bias],
    architectures=[family + kind],
    **bert.shared_fields(trunk, heads),
    max_position_embeddings=c.max_length,
    max_relative_positions=c.max_distance,
    relative_attention=bool(c.terms),
    pos_att_type=list(c.terms),
    position_biased_input=c.absolute == 'input',
    type_vocab_size=c.num_types,
    pooler_hidden_act=fields.their_activation(c.pooler_activation or c.activation),
    legacy=_is_legacy(trunk),
  )
  if c.embed_dim:
    out['embedding_size'] = c.embed_dim
  if c.key_bias:
    out |= dict(
      position_buckets=c.position_buckets or -1,
      share_att_key=c.share_projections,
      norm_rel_ebd='layer_norm' if c.table_norm else 'none',
    )
  if c.conv_kernel:
    out |= dict(conv_kernel_size=c.conv_kernel, conv_act=fields.their_activation(c.conv_activation or c.activation))
  return out


def entries(trunk: Deberta, heads: Sequence[str]) -> list[Entry]:
  """List entries; heads are 'mlm' and 'position_embed'; others raise ValueError."""
  c = trunk.config
  body = f'{PREFIX}embeddings'
  tied = (f'{_LEGACY}decoder.weight',) if c.tied else ()
  out = [Entry('trunk/token_embed/table', f'{body}.word_embeddings.weight', tied=tied)]
  out += norm('trunk/embed_norm', f'{body}.LayerNorm')
  if c.absolute == 'input':
    out.append(Entry('trunk/position_embed/table', f'{body}.position_embeddings.weight'))
  if c.num_types:
    out.append(Entry('trunk/type_embed/table', f'{body}.token_type_embeddings.weight'))
  if c.embed_dim:
    out += linear('trunk/embed_project', f'{body}.embed_proj', bias=False)
  if c.terms:
    out.append(Entry('trunk/relative_embed/table', f'{PREFIX}encoder.rel_embeddings.weight'))
    if c.table_norm:
      out += norm('trunk/relative_norm', f'{PREFIX}encoder.LayerNorm')
  blocks = [('last', str(c.num_layers - 1), 0)]
  if c.conv_kernel:
    blocks.append(('first', '0', 0))
    name = f'{PREFIX}encoder.conv'
    out.append(Entry('trunk/convolution/dense/kernel', f'{name}.conv.weight', 'reversed'))
    out.append(Entry('trunk/convolution/dense/bias', f'{name}.conv.bias'))
    out += norm('trunk/convolution/norm', f'{name}.LayerNorm')
  if c.num_layers > len(blocks):
    blocks.append(('layers', '{layer}', int(bool(c.conv_kernel))))
  for ours, layer, first in blocks:
    block = _block(f'trunk/{ours}', f'{PREFIX}encoder.layer.{layer}', c)
    out += [entry._replace(first=first) for entry in block]
  if 'mlm' in heads:
    out += _masked_tokens(trunk)
  if 'position_embed' in heads and c.absolute == 'decoder':
    out.append(Entry('position_embed/table', f'{body}.position_embeddings.weight'))
  return out + of_task(HEADS, tasks(trunk), heads) + linear('trunk/pooler', 'pooler.dense', optional=True)


def _is_legacy(trunk: Deberta) -> bool:
  """Check whether only the legacy head, without table [v, d], fits."""
  return not trunk.config.tied or trunk.token_dim != trunk.hidden_dim


def _masked_tokens(trunk: Deberta) -> Iterator[Entry]:
  """List the entries of the head of masked tokens, in either form."""
  new = 'lm_predictions.lm_head'
  for old, entry in (
    *((f'{_LEGACY}transform.dense', entry) for entry in linear('mlm/dense', f'{new}.dense')),
    *((f'{_LEGACY}transform.LayerNorm', entry) for entry in norm('mlm/norm', f'{new}.LayerNorm')),
  ):
    older = f'{old}.{entry.theirs.rpartition(".")[2]}'
    names = (older, entry.theirs) if _is_legacy(trunk) else (entry.theirs, older)
    yield entry._replace(theirs=names[0], tied=names[1:])
  if _is_legacy(trunk):
    yield from bert.output(trunk, f'{_LEGACY}decoder', bias=f'{_LEGACY}bias')
  else:
    yield Entry('mlm/bias', f'{new}.bias', tied=(f'{_LEGACY}bias', f'{_LEGACY}decoder.bias'))


def _block(ours: str, theirs: str, c: Config) -> Iterator[Entry]:
  attention = f'{theirs}.attention.self'
  names = {'position_key': 'pos_key_proj', 'position_query': 'pos_query_proj'}
  if c.key_bias:
    for part in ('query', 'key', 'value'):
      yield from linear(f'{ours}/{part}', f'{attention}.{part}_proj')
  else:
    names = {'position_key': 'pos_proj', 'position_query': 'pos_q_proj'}
    size = c.hidden_dim // c.num_heads
    for index, part in enumerate(('query', 'key', 'value')):
      rows = Part(index * size, (index + 1) * size, 3 * size, groups=c.num_heads)
      yield Entry(f'{ours}/{part}/kernel', f'{attention}.in_proj.weight', 'linear', part=rows)
    yield Entry(f'{ours}/query/bias', f'{attention}.q_bias', 'matrix', 2)
    yield Entry(f'{ours}/value/bias', f'{attention}.v_bias', 'matrix', 2)
  if not c.share_projections:
    if 'c2p' in c.terms:
      yield from linear(f'{ours}/position_key', f'{attention}.{names["position_key"]}', bias=c.key_bias)
    if 'p2c' in c.terms:
      yield from linear(f'{ours}/position_query', f'{attention}.{names["position_query"]}')
  yield from linear(f'{ours}/out', f'{theirs}.attention.output.dense', inputs=2)
  yield from norm(f'{ours}/attention_norm', f'{theirs}.attention.output.LayerNorm')
  yield from linear(f'{ours}/mlp/up', f'{theirs}.intermediate.dense')
  yield from linear(f'{ours}/mlp/down', f'{theirs}.output.dense')
  yield from norm(f'{ours}/mlp_norm', f'{theirs}.output.LayerNorm')
