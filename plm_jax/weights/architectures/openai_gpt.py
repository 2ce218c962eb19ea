"""Names and shapes of GPT (2018) in Hugging Face folders."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from plm_jax.models.gpt import Gpt
from plm_jax.weights import fields
from plm_jax.weights.architectures import gpt
from plm_jax.weights.table import Derived, Entry, check_heads, counts_up

MODEL = 'gpt'
MODEL_TYPES = ('openai-gpt',)
PREFIX = 'transformer.'
HEADS: tuple[str, ...] = ()
# what they call gelu is the tanh form
_ACTIVATIONS: Mapping[str, str] = MappingProxyType(
  {'gelu': 'gelu_new', 'relu': 'relu', 'silu': 'silu', 'swish': 'silu'}
)
FIELDS: fields.Fields = MappingProxyType(
  {**gpt.SHARED, 'afn': fields.choice('gelu', tuple(_ACTIVATIONS)), 'tie_word_embeddings': fields.fixed(True)}
)
DERIVED: Mapping[str, Derived] = MappingProxyType({**gpt.DERIVED, 'position_ids': counts_up})
UNUSED: tuple[str, ...] = ()


def read_config(theirs: Mapping[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
  """Keywords of `models.gpt.make` for a config.json.

  Raises:
    ValueError: it describes what the trunk does not have.
  """
  del names
  theirs = fields.complete(FIELDS, theirs)
  overrides = gpt.shared_config(theirs, activation=_ACTIVATIONS[theirs['afn']])
  return {'vocab_size': theirs['vocab_size'], 'variant': 'gpt', 'overrides': overrides}


def write_config(trunk: Gpt, heads: Sequence[str]) -> dict[str, Any]:
  """A config.json for the trunk.

  Raises:
    ValueError: the published form has no place for its structure or for a head.
  """
  c = trunk.config
  if c.norm_placement != 'post' or not c.tied or c.mlp_dim != 4 * c.hidden_dim:
    raise ValueError('GPT has its norms after the sums, a tied output matrix and a feed-forward width of four times d')
  check_heads(heads, HEADS)
  if c.activation not in ('gelu_tanh', 'relu'):
    raise ValueError(f'GPT has no activation {c.activation!r}')
  return {
    'model_type': 'openai-gpt',
    'architectures': ['OpenAIGPTLMHeadModel'],
    **gpt.shared_fields(trunk),
    'afn': {'gelu_tanh': 'gelu', 'relu': 'relu'}[c.activation],
    'n_ctx': c.max_length,
  }


def entries(trunk: Gpt, heads: Sequence[str]) -> list[Entry]:
  """Every parameter of the trunk.

  Raises:
    ValueError: there is no place for a head.
  """
  check_heads(heads, HEADS)
  return [
    Entry('trunk/token_embed/table', 'transformer.tokens_embed.weight', tied=('lm_head.weight',)),
    Entry('trunk/position_embed/table', 'transformer.positions_embed.weight'),
    *gpt.blocks(trunk),
  ]
