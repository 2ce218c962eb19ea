"""Names and shapes of GPT (2018) in Hugging Face folders."""

from collections.abc import Mapping, Sequence
from typing import Any

from plm_jax.models.gpt import Gpt
from plm_jax.weights.architectures import gpt
from plm_jax.weights.table import Entry, check_heads

MODEL = 'gpt'
MODEL_TYPES = ('openai-gpt',)
PREFIX = 'transformer.'
HEADS: tuple[str, ...] = ()


def read_config(theirs: Mapping[str, Any]) -> dict[str, Any]:
  """Keywords of `models.gpt.make` for a config.json.

  Raises:
    ValueError: it describes what the trunk does not have.
  """
  # what they call gelu is the tanh form
  overrides = gpt.shared_config(theirs, activation={'gelu': 'gelu_new'}.get(theirs['afn'], theirs['afn']))
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
