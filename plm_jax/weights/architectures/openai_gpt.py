"""Tensors and config fields of GPT (2018) in Hugging Face's form."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from plm_jax.models.gpt import Gpt
from plm_jax.weights import fields
from plm_jax.weights.architectures import gpt
from plm_jax.weights.class_heads import TaskHead, of_task, score
from plm_jax.weights.table import Derived, Entry, counts_up

MODEL = 'gpt'
MODEL_TYPES = ('openai-gpt',)
PREFIX = 'transformer.'
HEADS: tuple[str, ...] = ()
# their gelu is the tanh form
_ACTIVATIONS: Mapping[str, str] = {'gelu': 'gelu_new', 'relu': 'relu', 'silu': 'silu', 'swish': 'silu'}
FIELDS: fields.Fields = {**gpt.SHARED, 'afn': fields.choice('gelu', tuple(_ACTIVATIONS))}
DERIVED: Mapping[str, Derived] = {**gpt.DERIVED, 'position_ids': counts_up}


def tasks(trunk: Gpt) -> dict[str, TaskHead]:
  return {'ForSequenceClassification': score()}


def read_config(theirs: Mapping[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
  theirs = fields.complete(FIELDS, theirs)
  overrides = gpt.shared_config(theirs, names, activation=_ACTIVATIONS[theirs['afn']])
  return {'vocab_size': theirs['vocab_size'], 'variant': 'gpt', 'overrides': overrides}


def write_config(trunk: Gpt, heads: Sequence[str]) -> dict[str, Any]:
  c = trunk.config
  if c.norm_placement != 'post' or c.mlp_dim != 4 * c.hidden_dim:
    raise ValueError("GPT needs norm_placement='post' and mlp_dim = 4 * hidden_dim")
  activations = {'gelu_tanh': 'gelu', 'relu': 'relu', 'silu': 'silu'}
  if c.activation not in activations:
    raise ValueError(f'GPT has no activation {c.activation!r}; choices are {", ".join(activations)}')
  return {
    'model_type': 'openai-gpt',
    'architectures': [f'OpenAIGPT{gpt.kind_of(trunk, heads)}'],
    **gpt.shared_fields(trunk),
    'afn': activations[c.activation],
    'n_ctx': c.max_length,
  }


def entries(trunk: Gpt, heads: Sequence[str]) -> list[Entry]:
  tied = ('lm_head.weight',) if trunk.config.tied else ()
  own = trunk.gives_logits and not trunk.config.tied
  output = [Entry('trunk/output/table', 'lm_head.weight')] if own else []
  return [
    *output,
    Entry('trunk/token_embed/table', 'transformer.tokens_embed.weight', tied=tied),
    Entry('trunk/position_embed/table', 'transformer.positions_embed.weight'),
    *gpt.blocks(trunk),
    *of_task(HEADS, tasks(trunk), heads),
  ]
