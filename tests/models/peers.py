"""Hugging Face models with our weights and the numbers they compute, live or from a small file beside this one.

`python -m tests.models.peers [NAME ...]` computes files anew; it needs torch and transformers, reading does not. The
peers run in float64, so that what is measured is our own rounding.
"""

import functools
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.types import Batch, Example, PyTree, Task
from plm_jax.models import albert, bert, deberta, gpt, llama, modernbert
from plm_jax.noise import keys
from plm_jax.objectives import causal_lm, mlm, rtd
from plm_jax.training import step
from plm_jax.weights import table
from plm_jax.weights.architectures import albert as albert_weights
from plm_jax.weights.architectures import deberta as deberta_weights
from plm_jax.weights.architectures import distilbert as distilbert_weights
from plm_jax.weights.architectures import electra as electra_weights
from plm_jax.weights.architectures import ernie as ernie_weights
from plm_jax.weights.architectures import glm4 as glm4_weights
from plm_jax.weights.architectures import gpt_neox as neox_weights
from plm_jax.weights.architectures import llama as llama_weights
from plm_jax.weights.architectures import llama_relatives as relatives
from plm_jax.weights.architectures import modernbert as modernbert_weights
from plm_jax.weights.architectures import mpnet as mpnet_weights
from plm_jax.weights.architectures import opt as opt_weights
from tests import tiny

REFERENCES = pathlib.Path(__file__).parent / 'references'
SIZES = {
  'hidden_dim': 16,
  'num_layers': 3,
  'num_heads': 2,
  'mlp_dim': 40,
  'max_length': 13,
  'dropout': 0.0,
  'attention_dropout': 0.0,
}


class Case(NamedTuple):
  """One pair of implementations.

  Attributes:
    trunk: ours.
    objective: 'mlm', 'causal_lm' or 'rtd', of which the discriminator alone.
    peer: makes theirs, without weights.
    names: our parameters, or a gradient, -> their names and shapes.
    prefix: of their body's names.
  """

  trunk: nn.Module
  objective: str
  peer: Callable[[], Any]
  names: Callable[[PyTree], dict[str, np.ndarray]]
  prefix: str


# Our parameters under their names -----------------------------------------------------------------------------------


def _norm(name: str, tree: Mapping[str, Any]) -> dict[str, np.ndarray]:
  return {f'{name}.weight': tree['scale'], f'{name}.bias': tree['bias']}


def _matrix(tree: Mapping[str, Any], inputs: int) -> tuple[np.ndarray, np.ndarray]:
  """Kernel [inputs, outputs] and bias [outputs] of a dense layer of any shape."""
  return np.asarray(tree['kernel']).reshape(inputs, -1), np.asarray(tree['bias']).reshape(-1)


def _linear(name: str, tree: Mapping[str, Any], inputs: int) -> dict[str, np.ndarray]:
  kernel, bias = _matrix(tree, inputs)
  return {f'{name}.weight': kernel.T, f'{name}.bias': bias}


def _layers(trunk: PyTree) -> list[PyTree]:
  leaves, structure = jax.tree.flatten(trunk['layers'])
  return [jax.tree.unflatten(structure, layer) for layer in zip(*map(np.asarray, leaves), strict=True)]


def bert_names(params: PyTree, *, prefix: str) -> dict[str, np.ndarray]:
  """Of BertModel or RobertaModel and, where there is one, of the head."""
  trunk = params['trunk']
  width = trunk['token_embed']['table'].shape[1]
  out = {
    f'{prefix}.embeddings.word_embeddings.weight': trunk['token_embed']['table'],
    f'{prefix}.embeddings.position_embeddings.weight': trunk['position_embed']['table'],
    **_norm(f'{prefix}.embeddings.LayerNorm', trunk['embed_norm']),
  }
  if 'type_embed' in trunk:
    out[f'{prefix}.embeddings.token_type_embeddings.weight'] = trunk['type_embed']['table']
  for number, layer in enumerate(_layers(trunk)):
    name = f'{prefix}.encoder.layer.{number}'
    for part in ('query', 'key', 'value'):
      out |= _linear(f'{name}.attention.self.{part}', layer[part], width)
    out |= _linear(f'{name}.attention.output.dense', layer['out'], width)
    out |= _norm(f'{name}.attention.output.LayerNorm', layer['attention_norm'])
    out |= _linear(f'{name}.intermediate.dense', layer['mlp']['up'], width)
    out |= _linear(f'{name}.output.dense', layer['mlp']['down'], layer['mlp']['down']['kernel'].shape[0])
    out |= _norm(f'{name}.output.LayerNorm', layer['mlp_norm'])
  if 'pooler' in trunk:
    out |= _linear(f'{prefix}.pooler.dense', trunk['pooler'], width)
  if 'head' in params:
    out |= _linear('classifier', params['head'], width)
  if 'mlm' in params:
    dense, norm, bias = {
      'bert': ('cls.predictions.transform.dense', 'cls.predictions.transform.LayerNorm', 'cls.predictions.bias'),
      'roberta': ('lm_head.dense', 'lm_head.layer_norm', 'lm_head.bias'),
    }[prefix]
    out |= _linear(dense, params['mlm']['dense'], width) | _norm(norm, params['mlm']['norm'])
    out[bias] = params['mlm']['bias']
  return {name: np.asarray(value) for name, value in out.items()}


def gpt_names(params: PyTree, *, tokens: str, positions: str) -> dict[str, np.ndarray]:
  """Of GPT2Model or OpenAIGPTModel, whose dense layers are stored as ours are and join query, key and value."""
  trunk = params['trunk']
  width = trunk['token_embed']['table'].shape[1]
  out = {
    f'transformer.{tokens}.weight': trunk['token_embed']['table'],
    f'transformer.{positions}.weight': trunk['position_embed']['table'],
  }
  for number, layer in enumerate(_layers(trunk)):
    name = f'transformer.h.{number}'
    joined = [_matrix(layer[part], width) for part in ('query', 'key', 'value')]
    dense = {
      'attn.c_attn': tuple(np.concatenate(parts, axis=-1) for parts in zip(*joined, strict=True)),
      'attn.c_proj': _matrix(layer['out'], width),
      'mlp.c_fc': _matrix(layer['mlp']['up'], width),
      'mlp.c_proj': _matrix(layer['mlp']['down'], layer['mlp']['down']['kernel'].shape[0]),
    }
    for part, (kernel, bias) in dense.items():
      out |= {f'{name}.{part}.weight': kernel, f'{name}.{part}.bias': bias}
    out |= _norm(f'{name}.ln_1', layer['attention_norm']) | _norm(f'{name}.ln_2', layer['mlp_norm'])
  if 'final_norm' in trunk:
    out |= _norm('transformer.ln_f', trunk['final_norm'])
  if 'head' in params:
    out['score.weight'] = np.asarray(params['head']['kernel']).T
  return {name: np.asarray(value) for name, value in out.items()}


def table_names(params: PyTree, *, trunk: nn.Module, weights: Any) -> dict[str, np.ndarray]:
  """By the entries of a file of `weights`, joined tensors whole."""
  flat = {jax.tree_util.keystr(path, simple=True, separator='/'): np.asarray(leaf) for path, leaf in _leaves(params)}
  out: dict[str, np.ndarray] = {}
  for entry in weights.entries(trunk, [name for name in params if name != 'trunk']):
    if entry.optional and entry.ours not in flat:
      continue
    leaf = flat.pop(entry.ours)
    for layer, array in enumerate(leaf if entry.stacked else [leaf]):
      name, theirs = entry.name(layer), table.to_theirs(entry, array)
      if entry.part:
        shape = list(theirs.shape)
        shape[entry.part.axis] = entry.part.groups * entry.part.total
        own = table.section(out.setdefault(name, np.zeros(shape, theirs.dtype)), entry.part)
        own[...] = theirs.reshape(own.shape)
      else:
        out[name] = theirs
  assert not flat, f'in no entry: {list(flat)}'
  return out


def _leaves(params: PyTree) -> list[Any]:
  return jax.tree_util.tree_leaves_with_path(params)


# Their models -------------------------------------------------------------------------------------------------------

BERT_SIZES = {
  'vocab_size': tiny.VOCAB.size,
  'hidden_size': SIZES['hidden_dim'],
  'num_hidden_layers': SIZES['num_layers'],
  'num_attention_heads': SIZES['num_heads'],
  'intermediate_size': SIZES['mlp_dim'],
  'hidden_dropout_prob': 0.0,
  'attention_probs_dropout_prob': 0.0,
  'attn_implementation': 'eager',
}
GPT_SIZES = {
  'vocab_size': tiny.VOCAB.size,
  'n_embd': SIZES['hidden_dim'],
  'n_layer': SIZES['num_layers'],
  'n_head': SIZES['num_heads'],
  'n_positions': SIZES['max_length'],
  'embd_pdrop': 0.0,
  'attn_pdrop': 0.0,
  'resid_pdrop': 0.0,
  'attn_implementation': 'eager',
}


def bert_config(**fields: Any) -> Any:
  from transformers import BertConfig

  return BertConfig(**BERT_SIZES, max_position_embeddings=SIZES['max_length'], hidden_act='gelu_pytorch_tanh', **fields)


def gpt2_config(**fields: Any) -> Any:
  from transformers import GPT2Config

  return GPT2Config(**GPT_SIZES, n_inner=SIZES['mlp_dim'], **fields)


def _bert() -> Any:
  from transformers import BertForMaskedLM

  return BertForMaskedLM(bert_config())


def _roberta() -> Any:
  from transformers import RobertaConfig, RobertaForMaskedLM

  # their positions count the tokens that are not padding, from padding id + 1
  return RobertaForMaskedLM(
    RobertaConfig(
      **BERT_SIZES,
      max_position_embeddings=SIZES['max_length'] + 2,
      type_vocab_size=1,
      pad_token_id=1,
      layer_norm_eps=1e-5,
    )
  )


def _gpt() -> Any:
  from transformers import OpenAIGPTConfig, OpenAIGPTLMHeadModel

  return OpenAIGPTLMHeadModel(OpenAIGPTConfig(**GPT_SIZES))


def _gpt2() -> Any:
  from transformers import GPT2LMHeadModel

  return GPT2LMHeadModel(gpt2_config())


def _deberta(trunk: nn.Module) -> Any:
  import transformers

  theirs = deberta_weights.write_config(trunk, ['mlm'])
  family = {'deberta': 'Deberta', 'deberta-v2': 'DebertaV2'}[theirs['model_type']]
  config = {'Deberta': transformers.DebertaConfig, 'DebertaV2': transformers.DebertaV2Config}[family]
  model = {'Deberta': transformers.DebertaForMaskedLM, 'DebertaV2': transformers.DebertaV2ForMaskedLM}[family]
  return model(config(**{name: value for name, value in theirs.items() if name != 'model_type'}))


def _deberta_case(variant: str, **fields: Any) -> Case:
  trunk = _trunk(deberta, variant, **fields)
  names = functools.partial(table_names, trunk=trunk, weights=deberta_weights)
  return Case(trunk, 'mlm', functools.partial(_deberta, trunk), names, 'deberta')


def _relative(trunk: nn.Module, weights: Any, head: str) -> Any:
  import transformers

  theirs = weights.write_config(trunk, [head])
  model = getattr(transformers, theirs['architectures'][0])
  config = model.config_class
  # eager in float64 makes NaN of padding that sees no key, farther than the window from the text
  attention = 'sdpa' if theirs['model_type'] == 'modernbert' else 'eager'
  fields = {name: value for name, value in theirs.items() if name not in ('model_type', 'architectures')}
  return model(config(**fields, attn_implementation=attention))


def _relative_case(variant: str, weights: Any, head: str, *, module: Any = bert, **fields: Any) -> Case:
  """A relative of BERT whose names stand in a file of `weights`."""
  trunk = _trunk(module, variant, **fields)
  names = functools.partial(table_names, trunk=trunk, weights=weights)
  return Case(trunk, head, functools.partial(_relative, trunk, weights, head), names, weights.PREFIX[:-1])


def _llama(weights: Any, trunk: nn.Module) -> Any:
  import transformers

  config = transformers.AutoConfig.for_model(**weights.write_config(trunk, []))
  return transformers.AutoModelForCausalLM.from_config(config, attn_implementation='eager')


def _llama_case(variant: str, weights: Any, *, prefix: str = 'model', module: Any = llama, **fields: Any) -> Case:
  """A causal trunk whose names stand in a file of `weights`."""
  trunk = _trunk(module, variant, **fields)

  def names(params: PyTree) -> dict[str, np.ndarray]:
    own = table_names(params, trunk=trunk, weights=weights)
    # in memory theirs has another name than in files
    return {name.replace('embed_out.', 'lm_head.'): value for name, value in own.items()}

  return Case(trunk, 'causal_lm', functools.partial(_llama, weights, trunk), names, prefix)


def _trunk(module: Any, variant: str, **fields: Any) -> nn.Module:
  return module.make(vocab_size=tiny.VOCAB.size, variant=variant, overrides=SIZES | fields)


CASES = {
  'bert': Case(_trunk(bert, 'bert-base'), 'mlm', _bert, lambda params: bert_names(params, prefix='bert'), 'bert'),
  'roberta': Case(
    _trunk(bert, 'roberta-base'), 'mlm', _roberta, lambda params: bert_names(params, prefix='roberta'), 'roberta'
  ),
  'gpt': Case(
    # the peer's feed-forward width is fixed
    _trunk(gpt, 'gpt', mlp_dim=4 * SIZES['hidden_dim']),
    'causal_lm',
    _gpt,
    lambda params: gpt_names(params, tokens='tokens_embed', positions='positions_embed'),
    'transformer',
  ),
  'gpt2': Case(
    _trunk(gpt, 'gpt2'),
    'causal_lm',
    _gpt2,
    lambda params: gpt_names(params, tokens='wte', positions='wpe'),
    'transformer',
  ),
  # farther apart than the table tells; the convolution and buckets of one and of several distances; what is left out
  'deberta': _deberta_case('deberta-base', max_distance=5),
  'deberta-v2': _deberta_case('deberta-v2-xlarge', max_distance=13, position_buckets=8),
  'deberta-v3': _deberta_case('deberta-v3-base', max_distance=10, position_buckets=6),
  'distilbert': _relative_case('distilbert-base', distilbert_weights, 'mlm'),
  # tables narrower than the network, as small's, and wider, as those of the generators
  'electra': _relative_case('electra-small', electra_weights, 'rtd', embed_dim=10),
  'electra-generator': _relative_case('electra-base-generator', electra_weights, 'mlm', embed_dim=22),
  'albert': _relative_case('albert-base-v1', albert_weights, 'mlm', module=albert, embed_dim=10),
  'albert-groups': _relative_case(
    'albert-base-v1', albert_weights, 'mlm', module=albert, embed_dim=10, num_groups=2, num_inner=2
  ),
  # distances in several buckets; tasks and types; text longer than the window, and a last layer of each kind
  'mpnet': _relative_case('mpnet-base', mpnet_weights, 'mlm'),
  'ernie': _relative_case('ernie-2.0-base-en', ernie_weights, 'mlm'),
  'modernbert': _relative_case(
    'modernbert-base', modernbert_weights, 'mlm', module=modernbert, num_layers=5, window=5, tied=False
  ),
  'modernbert-global': _relative_case(
    'modernbert-large', modernbert_weights, 'mlm', module=modernbert, num_layers=4, window=2, local_base=50.0
  ),
  # one key to a head; one to two heads, other angles, a tied table; half of each head rotated
  'llama': _llama_case('llama-7b', llama_weights),
  'llama2': _llama_case(
    'llama2-70b', llama_weights, num_heads=4, num_kv_heads=2, rotary_base=50.0, norm_epsilon=0.01, tied=True
  ),
  # heads wider than d / h and turns of every kind; all biases, and turns divided by one number
  'llama3': _llama_case(
    'llama3.2-1b', llama_weights, num_heads=4, num_kv_heads=2, head_dim=6, rotary_base=50.0, rotary_length=20
  ),
  'llama-biased': _llama_case(
    'llama-7b', llama_weights, qkv_bias=True, out_bias=True, mlp_bias=True, rotary_scaling='linear', rotary_factor=2.5
  ),
  'glm-4': _llama_case('glm-4-9b', glm4_weights, num_heads=4, rotary_base=50.0),
  'glm-4-0414': _llama_case('glm-4-9b-0414', glm4_weights, num_kv_heads=1),
  # a window shorter than the rows; biases; norms of queries and keys; scaled embeddings; a layer without positions
  'mistral': _llama_case('mistral-7b', relatives, num_kv_heads=1, window=4),
  'qwen2': _llama_case('qwen2-0.5b', relatives, num_kv_heads=1),
  'qwen3': _llama_case('qwen3-8b', relatives, num_kv_heads=1, head_dim=6, qkv_bias=True, out_bias=True),
  'gemma': _llama_case('gemma-2b', relatives, head_dim=12),
  'olmo2': _llama_case('olmo2-7b', relatives, num_heads=4, num_kv_heads=2),
  'smollm3': _llama_case('smollm3-3b', relatives, num_kv_heads=1, unrotated=(1,)),
  # half of each head rotated, both sublayers at once; one after the other, without biases of attention
  'pythia': _llama_case('pythia-70m', neox_weights, num_kv_heads=2, rotary_share=0.5, prefix='gpt_neox'),
  'neox-serial': _llama_case(
    'pythia-70m',
    neox_weights,
    num_kv_heads=2,
    parallel=False,
    qkv_bias=False,
    out_bias=False,
    tied=True,
    prefix='gpt_neox',
  ),
  # norms before the sublayers; after them, with a narrower token table
  'opt': _llama_case('opt-125m', opt_weights, module=gpt),
  'opt-350m': _llama_case('opt-350m', opt_weights, module=gpt, embed_dim=10),
  'deberta-own': _deberta_case('deberta-base', max_distance=20, terms=('p2c',), absolute='input', key_bias=True),
}


# What both compute --------------------------------------------------------------------------------------------------


def make_task(case: Case) -> Task:
  make = {
    'mlm': mlm.make,
    'causal_lm': causal_lm.make,
    'rtd': functools.partial(rtd.make, sampling='uniform', where={'name': 'iid', 'rate': 0.4}, weight=1.0),
  }[case.objective]
  return make(trunk=case.trunk, vocab=tiny.VOCAB)


def make_batch() -> Batch:
  """Rows of 13, 1, 6 and 9 tokens in two sentences, padded on the right."""
  return tiny.make_batch(((13,), (1,), (6,), (9,)), length=13, seed=5)


def make_example(case: Case, task: Task, batch: Batch) -> Example:
  """What the model reads; an MLM predicts every third token and the last, masked or not, without any drawing."""
  if case.objective == 'causal_lm':
    return task.prepare(jax.random.key(0), batch)
  if case.objective == 'rtd':
    return _replaced(task.prepare(jax.random.key(0), keys.with_step(batch, 0)))
  real = np.asarray(batch['segment_ids']) > 0
  rows, length = real.shape
  chosen = real & ((np.arange(length) % 3 == 1) | (np.arange(length) == real.sum(axis=1, keepdims=True) - 1))
  slots = chosen.sum(axis=1).max()
  predict, weights = np.zeros((rows, slots), np.int32), np.zeros((rows, slots), np.float32)
  for row in range(rows):
    places = np.flatnonzero(chosen[row])
    predict[row, : len(places)], weights[row, : len(places)] = places, 1
  tokens = np.asarray(batch['tokens'])
  masked = np.where(chosen & (np.arange(length) % 2 == 1), tiny.VOCAB.mask_id, tokens)
  inputs = {
    'tokens': jnp.asarray(masked),
    'segment_ids': batch['segment_ids'],
    'type_ids': batch['type_ids'],
    'predict': jnp.asarray(predict),
  }
  targets = {
    'ids': jnp.asarray(np.take_along_axis(tokens, predict, axis=1)),
    'weights': jnp.asarray(weights),
    'scale': jnp.full(rows, 1 / weights.sum()),
    'excess': jnp.zeros(rows),
  }
  return Example(inputs, targets)


def _replaced(example: Example) -> Example:
  """With the corrupted rows as input, which the loss draws by itself."""
  targets, places = example.targets, example.inputs['predict']
  logits = jnp.zeros((*places.shape, tiny.VOCAB.size))
  drawn = rtd.sample(logits, targets['draws'], temperature=1.0)
  tokens = rtd.put(targets['original'], places, targets['weights'] > 0, drawn)
  used = (targets['token_weights'] > 0).astype(jnp.float32)
  return Example(example.inputs | {'tokens': tokens}, targets | {'used': used})


def draw_params(task: Task, batch: Batch) -> PyTree:
  """Parameters whose numbers depend on path and shape alone."""

  def draw(path, leaf):
    generator = np.random.Generator(np.random.PCG64([*map(ord, jax.tree_util.keystr(path))]))
    values = generator.random(leaf.shape) * 2 - 1
    kind = path[-1].key
    values = {'scale': 1 + 0.3 * values, 'bias': 0.2 * values}.get(kind, 0.4 * values)
    return jnp.asarray(values, jnp.float32)

  return jax.tree_util.tree_map_with_path(draw, step.abstract_params(task, tiny.spec(batch)))


def _summary(values: np.ndarray) -> np.ndarray:
  """A tensor as three numbers: its norm and two products with fixed directions."""
  index = np.arange(values.size)
  directions = np.stack([np.cos(0.7 * index + 0.1), np.sin(1.3 * index * index)])
  return np.concatenate([[np.linalg.norm(values)], directions @ values.reshape(-1).astype(np.float64)])


def summaries(gradient: Mapping[str, np.ndarray]) -> np.ndarray:
  """The gradient of each tensor, by name, as three numbers: [tensors, 3]."""
  return np.stack([_summary(gradient[name]) for name in sorted(gradient)])


def run_ours(
  case: Case, task: Task, params: PyTree, batch: Batch
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
  """(states of all layers, logits and loss; the gradient under their names)."""
  example = make_example(case, task, batch)
  read = {name: value for name, value in example.inputs.items() if name != 'predict'}

  @jax.jit
  def compute(params: PyTree) -> Any:
    def loss_of(params: PyTree) -> Any:
      forward = step.bind(task, params, train=False, rng=jax.random.key(0))
      return task.loss(forward, example, (), jax.random.key(0)).value

    states = case.trunk.apply({'params': params['trunk']}, **read)
    logits = task.model.apply({'params': params}, **example.inputs)
    if case.objective == 'causal_lm':
      logits = task.model.apply({'params': params}, logits, method='attend')
    if case.objective == 'rtd':
      logits = logits[..., None]
    return states, logits, *jax.value_and_grad(loss_of)(params)

  states, logits, loss, gradient = compute(params)
  layers = stacked([*states['layers'][:-1], states['hidden']])
  out = {'layers': layers, 'logits': np.asarray(logits), 'loss': np.asarray(loss)}
  return _where_real(out, example), case.names(gradient)


def stacked(states: Sequence[Any]) -> np.ndarray:
  """States of all layers, where the last may be narrower."""
  width = max(layer.shape[-1] for layer in states)
  return np.stack([np.pad(layer, ((0, 0), (0, 0), (0, width - layer.shape[-1]))) for layer in states])


def _where_real(out: dict[str, np.ndarray], example: Example) -> dict[str, np.ndarray]:
  """Zeroes states and logits at padding and unused slots, which nobody reads."""
  real = np.asarray(example.inputs['segment_ids'] > 0)
  used = np.asarray(example.targets.get('used', example.targets['weights']) > 0)
  return {
    'layers': out['layers'] * real[None, :, :, None],
    'logits': out['logits'] * used[:, :, None],
    'loss': out['loss'],
  }


def load(model: Any, weights: Mapping[str, np.ndarray]) -> Any:
  """A model of theirs in float64 with these weights; every weight must have a place and every place a weight."""
  import torch

  state = {name: torch.tensor(np.asarray(value, np.float64)) for name, value in weights.items()}
  model = model.double().eval()
  found = model.load_state_dict(state, strict=False)
  own = {name for name, _ in model.named_parameters()}  # tied ones once
  dummies = {name for name in own if name == 'roberta.embeddings.token_type_embeddings.weight'}
  assert not found.unexpected_keys, found.unexpected_keys
  assert own - set(weights) == dummies, own - set(weights)
  for name, parameter in model.named_parameters():
    if name in dummies:
      torch.nn.init.zeros_(parameter)
  return model


def run_theirs(
  case: Case, task: Task, params: PyTree, batch: Batch
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
  """What `run_ours` returns, by the peer."""
  import torch

  example = make_example(case, task, batch)
  weights = case.names(params)
  model = load(case.peer(), weights)
  real = np.asarray(example.inputs['segment_ids'] > 0)
  tokens = torch.tensor(np.where(real, np.asarray(example.inputs['tokens']), 1)).long()
  used = np.asarray(example.targets['weights'] > 0)
  labels = np.full(real.shape, -100)
  arguments = {'attention_mask': torch.tensor(real).long(), 'output_hidden_states': True}
  if case.objective == 'causal_lm' and getattr(case.trunk.config, 'window', None):
    del arguments['attention_mask']  # padding that sees no real token within its window is NaN; rows end with padding
  if case.prefix in ('bert', 'electra', 'albert', 'ernie'):
    arguments['token_type_ids'] = torch.tensor(np.asarray(example.inputs['type_ids'])).long()
  if case.objective == 'mlm':
    rows, slots = np.nonzero(used)
    places = np.asarray(example.inputs['predict'])
    labels[rows, places[rows, slots]] = np.asarray(example.targets['ids'])[rows, slots]
  elif case.objective == 'rtd':
    labels = np.asarray(example.inputs['tokens'] != example.targets['original'])
  else:
    # theirs shifts by itself: position l is the target of l - 1
    labels[:, 1:] = np.where(used[:, :-1], np.asarray(example.targets['ids'])[:, :-1], -100)
  out = model(tokens, labels=torch.tensor(labels).long(), **arguments)
  out.loss.backward()
  logits = out.logits.detach().numpy()
  if case.objective == 'mlm':
    logits = np.take_along_axis(logits, places[..., None], axis=1)
  if case.objective == 'rtd':
    logits = logits[..., None]
  layers = stacked([states.detach().numpy() for states in out.hidden_states])
  result = {'layers': layers, 'logits': logits, 'loss': out.loss.detach().numpy()}
  gradient = {name: value.grad.numpy() for name, value in model.named_parameters() if name in weights}
  return _where_real(result, example), gradient


def read(name: str) -> dict[str, np.ndarray]:
  """The stored numbers of a case."""
  with np.load(REFERENCES / f'{name}.npz', allow_pickle=False) as file:
    return {key: file[key] for key in file.files}


def compute(name: str) -> dict[str, np.ndarray]:
  """What the file of a case holds, by the peer as installed."""
  case = CASES[name]
  task, batch = make_task(case), make_batch()
  out, gradient = run_theirs(case, task, draw_params(task, batch), batch)
  keep = {'layers': out['layers'][:, :3], 'logits': out['logits'][:, :2], 'loss': out['loss']}
  return {key: value.astype(np.float32) for key, value in keep.items()} | {'gradient': summaries(gradient)}


def main() -> None:
  REFERENCES.mkdir(exist_ok=True)
  for name in sys.argv[1:] or CASES:
    np.savez_compressed(REFERENCES / f'{name}.npz', **compute(name))
    print(f'{name}.npz: {(REFERENCES / f"{name}.npz").stat().st_size:,} bytes')


if __name__ == '__main__':
  main()


def to_ours(
  entries: Sequence[table.Entry], tensors: Mapping[str, np.ndarray], shapes: Mapping[str, Sequence[int]]
) -> dict[str, np.ndarray]:
  """Convert tensors in memory to our parameters, leaf path -> array; `shapes` include the stacked axis."""
  out: dict[str, np.ndarray] = {}
  for entry in entries:
    shape = tuple(shapes[entry.ours])
    if entry.stacked:
      layers = [table.view(entry, tensors[entry.name(layer)], shape[1:]) for layer in range(shape[0])]
      out[entry.ours] = np.stack([layer.reshape(shape[1:]) for layer in layers])
    else:
      name = next((name for name in (entry.theirs, *entry.tied) if name in tensors), entry.theirs)
      out[entry.ours] = table.view(entry, tensors[name], shape).reshape(shape)
  return out
