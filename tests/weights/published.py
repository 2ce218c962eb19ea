"""Small Hugging Face models of every kind that can be read, with random weights, and what they compute."""

import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from plm_jax.core.types import PyTree
from plm_jax.layers import vocab_head
from plm_jax.layers.mlp import ACTIVATIONS

VOCAB_SIZE, LENGTH = 61, 11


class Case(NamedTuple):
  """A kind of release.

  Attributes:
    family: the name of their classes' beginning, such as 'Bert'.
    kind: the end, such as 'ForMaskedLM'.
    fields: of their config.
    heads: which of our heads it has.
  """

  family: str
  kind: str
  fields: Mapping[str, Any]
  heads: tuple[str, ...] = ()


def _bert(**fields: Any) -> dict[str, Any]:
  return {
    'hidden_size': 16, 'num_hidden_layers': 3, 'num_attention_heads': 2, 'intermediate_size': 40,
    'max_position_embeddings': 13, **fields,
  }  # fmt: skip


_GPT = {'n_embd': 16, 'n_layer': 3, 'n_head': 2, 'n_positions': 13}
_T5 = {'d_model': 16, 'd_kv': 8, 'num_layers': 2, 'num_heads': 2, 'd_ff': 40}
_BART = {
  'd_model': 16, 'encoder_layers': 2, 'decoder_layers': 2, 'encoder_attention_heads': 2, 'decoder_attention_heads': 2,
  'encoder_ffn_dim': 40, 'decoder_ffn_dim': 40, 'max_position_embeddings': 20,
}  # fmt: skip
_DISTIL = {'dim': 16, 'n_layers': 3, 'n_heads': 2, 'hidden_dim': 40, 'max_position_embeddings': 13}
_XLNET = {'d_model': 16, 'n_layer': 3, 'n_head': 2, 'd_inner': 40}
_ALBERT = _bert(embedding_size=8)
_ROBERTA = _bert(max_position_embeddings=15, type_vocab_size=1, pad_token_id=1, layer_norm_eps=1e-5)
_DEBERTA = _bert(
  type_vocab_size=0, relative_attention=True, pos_att_type=['c2p', 'p2c'], position_biased_input=False, legacy=False
)
_DEBERTA2 = {**_DEBERTA, 'position_buckets': 4, 'norm_rel_ebd': 'layer_norm', 'share_att_key': True}
_CONVOLUTION = {'conv_kernel_size': 3, 'conv_act': 'gelu'}
_MPNET = _bert(max_position_embeddings=15, pad_token_id=1)
_MODERN = _bert(num_hidden_layers=5, local_attention=4, pad_token_id=0, initializer_range=0.2)
_LLAMA = _bert(num_key_value_heads=1)
_LLAMA3 = {
  'rope_type': 'llama3', 'rope_theta': 100.0, 'factor': 4.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0,
  'original_max_position_embeddings': 12,
}  # fmt: skip
_SMOL = {'pad_token_id': 0, 'bos_token_id': 1, 'eos_token_id': 2}
_NEOX = _bert()
_OPT = {
  'hidden_size': 16, 'num_hidden_layers': 3, 'num_attention_heads': 2, 'ffn_dim': 40, 'max_position_embeddings': 13,
}  # fmt: skip
_GLM = _bert(num_key_value_heads=1, head_dim=8, pad_token_id=0)
_THREE = {0: 'no', 1: 'perhaps', 2: 'yes'}
_OLD = {'type_vocab_size': 2, 'embedding_size': 8, 'legacy': True, 'pooler_hidden_act': 'tanh', 'hidden_act': 'silu'}
_FREE = {'tie_word_embeddings': False}
UNTIED = {
  'bert': Case('Bert', 'ForPreTraining', _bert(**_FREE), ('mlm', 'pair')),
  'roberta': Case('Roberta', 'ForMaskedLM', {**_ROBERTA, **_FREE}, ('mlm',)),
  'albert': Case('Albert', 'ForMaskedLM', {**_ALBERT, **_FREE}, ('mlm',)),
  'distilbert': Case('DistilBert', 'ForMaskedLM', {**_DISTIL, **_FREE}, ('mlm',)),
  'mpnet': Case('MPNet', 'ForMaskedLM', {**_MPNET, **_FREE}, ('mlm',)),
  'ernie': Case('Ernie', 'ForPreTraining', _bert(**_FREE), ('mlm', 'pair')),
  'modernbert': Case('ModernBert', 'ForMaskedLM', {**_MODERN, **_FREE}, ('mlm',)),
  'electra': Case('Electra', 'ForMaskedLM', _bert(embedding_size=8, **_FREE), ('mlm',)),
  'deberta': Case('Deberta', 'ForMaskedLM', {**_DEBERTA, **_FREE, 'legacy': True}, ('mlm',)),
  'xlnet': Case('XLNet', 'LMHeadModel', {**_XLNET, **_FREE}, ('lm',)),
  'gpt': Case('OpenAIGPT', 'LMHeadModel', {**_GPT, **_FREE}),
}
CASES = {
  'bert-pretraining': Case('Bert', 'ForPreTraining', _bert(), ('mlm', 'pair')),
  'bert-mlm': Case('Bert', 'ForMaskedLM', _bert(), ('mlm',)),
  'bert-body': Case('Bert', 'Model', _bert()),
  'roberta-mlm': Case('Roberta', 'ForMaskedLM', _ROBERTA, ('mlm',)),
  'roberta-body': Case('Roberta', 'Model', _ROBERTA),
  'xlm-roberta': Case('XLMRoberta', 'ForMaskedLM', _ROBERTA, ('mlm',)),
  'camembert': Case('Camembert', 'ForMaskedLM', _ROBERTA, ('mlm',)),
  'albert-pretraining': Case('Albert', 'ForPreTraining', {**_ALBERT, 'num_hidden_groups': 1}, ('mlm', 'pair')),
  'albert-groups': Case('Albert', 'ForMaskedLM', {**_ALBERT, 'num_hidden_groups': 3, 'inner_group_num': 2}, ('mlm',)),
  'distilbert-mlm': Case('DistilBert', 'ForMaskedLM', _DISTIL, ('mlm',)),
  'distilbert-body': Case('DistilBert', 'Model', _DISTIL),
  'electra-discriminator': Case('Electra', 'ForPreTraining', _bert(embedding_size=8), ('rtd',)),
  'electra-generator': Case('Electra', 'ForMaskedLM', _bert(embedding_size=8), ('mlm',)),
  'electra-body': Case('Electra', 'Model', _bert(embedding_size=16)),
  'deberta-mlm': Case('Deberta', 'ForMaskedLM', _DEBERTA, ('mlm',)),
  'deberta-body': Case('Deberta', 'Model', _DEBERTA),
  'deberta-v2-mlm': Case('DebertaV2', 'ForMaskedLM', _DEBERTA2 | _CONVOLUTION, ('mlm',)),
  'deberta-v2-body': Case('DebertaV2', 'Model', _DEBERTA2),
  'mpnet-mlm': Case('MPNet', 'ForMaskedLM', _MPNET, ('mlm',)),
  'mpnet-body': Case('MPNet', 'Model', _MPNET),
  'ernie-pretraining': Case('Ernie', 'ForPreTraining', _bert(use_task_id=True, type_vocab_size=4), ('mlm', 'pair')),
  'ernie-body': Case('Ernie', 'Model', _bert(hidden_act='relu')),
  'modernbert-mlm': Case('ModernBert', 'ForMaskedLM', _MODERN, ('mlm',)),
  'modernbert-body': Case('ModernBert', 'Model', {**_MODERN, 'num_hidden_layers': 1, 'classifier_pooling': 'mean'}),
  'bert-rows': Case('Bert', 'ForSequenceClassification', _bert(id2label=_THREE), ('head',)),
  'bert-tokens': Case('Bert', 'ForTokenClassification', _bert(id2label=_THREE), ('head',)),
  'roberta-rows': Case('Roberta', 'ForSequenceClassification', {**_ROBERTA, 'id2label': _THREE}, ('head',)),
  'xlm-roberta-tokens': Case('XLMRoberta', 'ForTokenClassification', {**_ROBERTA, 'id2label': _THREE}, ('head',)),
  'albert-rows': Case('Albert', 'ForSequenceClassification', {**_ALBERT, 'id2label': {0: 'x'}}, ('head',)),
  'distilbert-rows': Case('DistilBert', 'ForSequenceClassification', {**_DISTIL, 'id2label': _THREE}, ('head',)),
  'electra-rows': Case('Electra', 'ForSequenceClassification', _bert(embedding_size=8), ('head',)),
  'electra-tokens': Case('Electra', 'ForTokenClassification', _bert(embedding_size=8, id2label=_THREE), ('head',)),
  'deberta-v2-rows': Case('DebertaV2', 'ForSequenceClassification', {**_DEBERTA2, 'id2label': _THREE}, ('head',)),
  'xlnet-rows': Case('XLNet', 'ForSequenceClassification', {**_XLNET, 'id2label': _THREE}, ('head',)),
  **{f'{name}-untied': case for name, case in UNTIED.items()},
  'albert-square': Case('Albert', 'ForMaskedLM', _bert(embedding_size=16), ('mlm',)),
  'deberta-types': Case('Deberta', 'ForMaskedLM', {**_DEBERTA, **_OLD}, ('mlm',)),
  'deberta-v2-types': Case('DebertaV2', 'ForMaskedLM', {**_DEBERTA2, **_OLD, 'conv_kernel_size': 3}, ('mlm',)),
  'gpt': Case('OpenAIGPT', 'LMHeadModel', _GPT),
  'gpt-body': Case('OpenAIGPT', 'Model', _GPT),
  'gpt2': Case('GPT2', 'LMHeadModel', _GPT),
  'gpt2-body': Case('GPT2', 'Model', _GPT),
  'xlnet-lm': Case('XLNet', 'LMHeadModel', _XLNET, ('lm',)),
  'xlnet-body': Case('XLNet', 'Model', _XLNET),
  'bart': Case('Bart', 'ForConditionalGeneration', _BART),
  't5': Case('T5', 'ForConditionalGeneration', _T5),
  't5-v1_1': Case(
    'T5', 'ForConditionalGeneration', {**_T5, 'feed_forward_proj': 'gated-gelu', 'tie_word_embeddings': False}
  ),
  'llama': Case('Llama', 'ForCausalLM', _LLAMA),
  'llama-tied': Case('Llama', 'ForCausalLM', {**_LLAMA, 'tie_word_embeddings': True}),
  'glm': Case('Glm', 'ForCausalLM', _GLM),
  'glm4': Case('Glm4', 'ForCausalLM', _GLM),
  # norms before and after the sublayers, a narrower table
  'opt': Case('OPT', 'ForCausalLM', _OPT),
  'opt-body': Case('OPT', 'Model', _OPT),
  'opt-350m': Case('OPT', 'ForCausalLM', {**_OPT, 'word_embed_proj_dim': 8, 'do_layer_norm_before': False}),
  'opt-untied': Case(
    'OPT', 'ForCausalLM',
    {**_OPT, 'word_embed_proj_dim': 8, 'tie_word_embeddings': False, 'activation_function': 'gelu'},
  ),
  # both residuals, whole and quarter heads, with and without biases of attention
  'gpt-neox': Case('GPTNeoX', 'ForCausalLM', _NEOX),
  'gpt-neox-body': Case('GPTNeoX', 'Model', _NEOX),
  'gpt-neox-whole': Case(
    'GPTNeoX', 'ForCausalLM',
    {**_NEOX, 'rope_parameters': {'rope_type': 'default', 'rope_theta': 50.0, 'partial_rotary_factor': 1.0},
     'use_parallel_residual': False, 'attention_bias': False, 'tie_word_embeddings': True},
  ),
  # relatives of LLaMA: windows shorter than a text, norms of heads and of all heads, layers without positions
  'mistral': Case('Mistral', 'ForCausalLM', {**_LLAMA, 'sliding_window': 4}),
  'qwen2': Case('Qwen2', 'ForCausalLM', {**_LLAMA, 'tie_word_embeddings': True}),
  'qwen2-window': Case(
    'Qwen2', 'ForCausalLM', {**_LLAMA, 'use_sliding_window': True, 'sliding_window': 3, 'max_window_layers': 0}
  ),
  'qwen3': Case('Qwen3', 'ForCausalLM', {**_LLAMA, 'head_dim': 12}),
  'qwen3-biased': Case('Qwen3', 'ForCausalLM', {**_LLAMA, 'head_dim': 8, 'attention_bias': True}),
  'gemma': Case('Gemma', 'ForCausalLM', {**_LLAMA, 'head_dim': 12}),
  'gemma-untied': Case('Gemma', 'ForCausalLM', {**_LLAMA, 'head_dim': 8, 'tie_word_embeddings': False}),
  'olmo2': Case('Olmo2', 'ForCausalLM', _LLAMA),
  'olmo2-biased': Case('Olmo2', 'ForCausalLM', {**_bert(), 'attention_bias': True}),
  'smollm3': Case('SmolLM3', 'ForCausalLM', {**_LLAMA, **_SMOL, 'no_rope_layer_interval': 2}),
  'smollm3-listed': Case(
    'SmolLM3', 'ForCausalLM', {**_LLAMA, **_SMOL, 'no_rope_layers': [0, 1, 0], 'attention_bias': True, 'mlp_bias': True}
  ),
  # folders without an output matrix
  'gpt2-untied': Case('GPT2', 'LMHeadModel', {**_GPT, 'tie_word_embeddings': False}),
  'gpt2-untied-body': Case('GPT2', 'Model', {**_GPT, 'tie_word_embeddings': False}),
  'llama-body': Case('Llama', 'Model', _LLAMA),
  'glm-body': Case('Glm', 'Model', _GLM),
  # LLaMA 3.1 and 3.2, and what its config class has beside
  'llama-3.1': Case('Llama', 'ForCausalLM', {**_LLAMA, 'rope_parameters': _LLAMA3}),
  'llama-3.2': Case(
    'Llama', 'ForCausalLM', {**_LLAMA, 'head_dim': 12, 'tie_word_embeddings': True, 'rope_parameters': _LLAMA3}
  ),
  'llama-linear': Case(
    'Llama', 'ForCausalLM', {**_LLAMA, 'rope_parameters': {'rope_type': 'linear', 'factor': 2.5, 'rope_theta': 100.0}}
  ),
  'llama-biased': Case('Llama', 'ForCausalLM', {**_LLAMA, 'attention_bias': True, 'mlp_bias': True}),
  # stacks of different depth
  'distilbart': Case('Bart', 'ForConditionalGeneration', {**_BART, 'decoder_layers': 1}),
  'bart-scaled': Case('Bart', 'Model', {**_BART, 'encoder_layers': 1, 'scale_embedding': True}),
  'mbart': Case('MBart', 'ForConditionalGeneration', {**_BART, 'scale_embedding': True}),
  'mbart-body': Case('MBart', 'Model', {**_BART, 'decoder_layers': 3}),
  't5-efficient': Case('T5', 'ForConditionalGeneration', {**_T5, 'num_layers': 3, 'num_decoder_layers': 1}),
  'byt5': Case(
    'T5', 'ForConditionalGeneration',
    {**_T5, 'num_layers': 3, 'num_decoder_layers': 1, 'feed_forward_proj': 'gated-gelu', 'tie_word_embeddings': False},
  ),
  't5-body': Case('T5', 'Model', _T5),
  't5-encoder': Case('T5', 'EncoderModel', {**_T5, 'num_decoder_layers': 1}),
  't5-v1_1-encoder': Case(
    'T5', 'EncoderModel', {**_T5, 'feed_forward_proj': 'gated-gelu', 'tie_word_embeddings': False}
  ),
  'mt5': Case('MT5', 'ForConditionalGeneration', _T5),
  'mt5-encoder': Case('MT5', 'EncoderModel', _T5),
}  # fmt: skip

# cases that few other tests use: what they share with the others is tried with those
MORE = {
  name
  for name in CASES
  if name.endswith(('-untied', '-rows', '-tokens', '-square', '-types')) and name not in ('bert-untied', 'bert-rows')
}


@functools.cache
def make_model(name: str) -> Any:
  """Build their model for evaluation, with random parameters, biases and scales included."""
  import torch

  torch.manual_seed(0)
  model = build(name)
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.add_(0.1 * torch.randn_like(parameter))
  return model


def build(name: str, **more: Any) -> Any:
  """Build an untrained model of a case for evaluation, with other fields."""
  import transformers

  case = CASES[name]
  settings = {'vocab_size': VOCAB_SIZE, **case.fields, **more}
  config = getattr(transformers, f'{case.family}Config')(**settings)
  return getattr(transformers, f'{case.family}{case.kind}')(config).eval()


def draw_tokens(rows: int = 2) -> np.ndarray:
  return np.random.default_rng(0).integers(7, VOCAB_SIZE, (rows, LENGTH)).astype(np.int32)


def states_of_theirs(model: Any) -> tuple[np.ndarray, np.ndarray | None]:
  """Compute (last states, logits of the first head or None) on `draw_tokens`."""
  import torch

  ids = torch.tensor(draw_tokens()).long()
  two_stacks = model.config.is_encoder_decoder and not type(model).__name__.endswith('EncoderModel')
  more = {'decoder_input_ids': ids.flip(1)} if two_stacks else {}
  with torch.no_grad():
    out = model(input_ids=ids, output_hidden_states=True, return_dict=True, **more)
  states = out.decoder_hidden_states[-1] if 'decoder_input_ids' in more else out.hidden_states[-1]
  logits = out.to_tuple()[0]
  is_states = model.__class__.__name__.endswith('Model') and not model.__class__.__name__.endswith('LMHeadModel')
  return states.numpy(), None if is_states else logits.numpy()


def states_of_ours(trunk: nn.Module, params: PyTree) -> jax.Array:
  """Compute our last states on the same tokens."""
  return _run(trunk)(params)['hidden']


@functools.cache
def _run(trunk: nn.Module) -> Callable[[PyTree], Any]:
  ids = draw_tokens()
  one = np.ones_like(ids)
  if 'tokens' in trunk.INPUTS:
    inputs = {'tokens': ids, 'segment_ids': one}
  else:
    sides = {'encoder': ids, 'decoder': ids[:, ::-1]}
    inputs = {f'{side}_tokens': tokens for side, tokens in sides.items()}
    inputs |= {f'{side}_segment_ids': one for side in sides}
  return jax.jit(lambda params: trunk.apply({'params': params}, **inputs))


def logits_of_ours(trunk: nn.Module, params: PyTree, head: str | None) -> np.ndarray:
  """Compute a head's logits from our states: [b, l, v], of 'rtd' [b, l]."""
  hidden = states_of_ours(trunk, params)
  activate = ACTIVATIONS[trunk.head_style.activation]
  dense = lambda part, x: x @ part['kernel'] + part['bias']  # noqa: E731

  def attend(x: jax.Array) -> jax.Array:  # without the columns of `vocab_multiple`
    return trunk.apply({'params': params}, x, method='attend')[..., : trunk.vocab_size]

  if head is None:
    return np.asarray(attend(hidden))
  own = params[head]
  if head == 'head':
    return _classes_of_ours(trunk, params, hidden)
  if head == 'lm':
    return np.asarray(attend(hidden) + own['bias'])
  if head == 'rtd':
    return np.asarray(dense(own['out'], activate(dense(own['dense'], hidden)))[..., 0])
  return np.asarray(vocab_head.make_head(trunk).apply({'params': own}, hidden, attend))


# behind the first of two layers that classify rows
_BETWEEN = {'roberta': jax.numpy.tanh, 'distilbert': jax.nn.relu, 'electra': ACTIVATIONS['gelu_erf']}


def _classes_of_ours(trunk: nn.Module, params: PyTree, hidden: jax.Array) -> np.ndarray:
  """Compute class scores of texts [b, c] or tokens [b, l, c]."""
  own = params['head']
  if 'kernel' in own and 'pooler' not in params:
    return np.asarray(hidden @ own['kernel'] + own['bias'])
  pooled = trunk.apply({'params': params}, hidden, np.ones(hidden.shape[:2], np.int32), method='pool')
  if 'hidden' in own:
    c = trunk.config
    kind = 'roberta' if c.position_offset else 'electra' if c.num_types else 'distilbert'
    pooled, own = _BETWEEN[kind](pooled @ own['hidden']['kernel'] + own['hidden']['bias']), own['out']
  return np.asarray(pooled @ own['kernel'] + own['bias'])


def equal(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
  """Compare the names and numbers of two state dicts."""
  import torch

  return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def save(name: str, folder: pathlib.Path, **settings: Any) -> pathlib.Path:
  """Save a case as their folder."""
  make_model(name).save_pretrained(folder, **settings)
  return folder
