"""Names and shapes of mT5 in Hugging Face folders: as T5 1.1's, whatever config.json says of tied tables."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from plm_jax.models.t5 import T5, T5Encoder
from plm_jax.weights import fields
from plm_jax.weights.architectures import t5
from plm_jax.weights.table import Derived

MODEL = 't5'
HEADS: tuple[str, ...] = ()
MODEL_TYPES = ('mt5',)
PREFIX = t5.PREFIX
tasks, entries = t5.tasks, t5.entries

FIELDS: fields.Fields = MappingProxyType(
  {
    **t5.FIELDS,
    'feed_forward_proj': fields.choice('gated-gelu', tuple(t5.FORMS)),
    # which transformers overwrites, and old files hold as false
    'tie_word_embeddings': fields.inert(),
    'scale_decoder_outputs': fields.inert(),
  }
)
DERIVED: Mapping[str, Derived] = t5.DERIVED
UNUSED = t5.UNUSED


def read_config(theirs: Mapping[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
  """Keywords of `models.t5.make` for a config.json.

  Raises:
    ValueError: it describes what the trunk does not have.
  """
  theirs = fields.complete(FIELDS, theirs)
  overrides = t5.shared_config(theirs, names, tied=False) | {'model_type': 'mt5'}
  return {'vocab_size': theirs['vocab_size'], 'variant': 'mt5-small', 'overrides': overrides}


def write_config(trunk: T5 | T5Encoder, heads: Sequence[str]) -> dict[str, Any]:
  """A config.json for the trunk.

  Raises:
    ValueError: the published form has no place for its structure or for a head.
  """
  if trunk.config.tied:
    raise ValueError('mT5 has an output matrix of its own, and logits that are not scaled; the trunk is tied')
  return {'model_type': 'mt5', 'architectures': [f'MT5{t5.kind_of(trunk, heads)}'], **t5.shared_fields(trunk, heads)}
