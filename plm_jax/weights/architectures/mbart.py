"""Names and shapes of mBART and mBART-50 in Hugging Face folders: BART's, and a final norm of each stack."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from plm_jax.models.bart import Bart
from plm_jax.weights import fields
from plm_jax.weights.architectures import bart
from plm_jax.weights.table import Derived

MODEL = 'bart'
HEADS: tuple[str, ...] = ()
MODEL_TYPES = ('mbart',)
PREFIX = bart.PREFIX

FIELDS: fields.Fields = MappingProxyType(
  {
    **bart.SHARED,
    'decoder_start_token_id': fields.token_id(),
    'normalize_before': fields.fixed(True),
    'add_final_layer_norm': fields.fixed(True),
  }
)
tasks, entries = bart.tasks, bart.entries
DERIVED: Mapping[str, Derived] = bart.DERIVED
UNUSED = bart.UNUSED


def read_config(theirs: Mapping[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
  """Keywords of `models.bart.make` for a config.json.

  Raises:
    ValueError: it describes what the trunk does not have.
  """
  theirs = fields.complete(FIELDS, theirs)
  if 'classification_head.dense.bias' in {name.removeprefix(PREFIX) for name in names}:
    raise ValueError(
      'MBartForSequenceClassification reads the state at </s> (eos_token_id), and a text of mBART ends with its '
      'language, whose state is read here. Save the trunk alone, with '
      '`AutoModel.from_pretrained(FOLDER).save_pretrained(OTHER)`, and train a head on it'
    )
  overrides = bart.shared_config(theirs) | {'norm_placement': 'pre'}
  return {'vocab_size': theirs['vocab_size'], 'variant': 'mbart-large-cc25', 'overrides': overrides}


def write_config(trunk: Bart, heads: Sequence[str]) -> dict[str, Any]:
  """A config.json for the trunk.

  Raises:
    ValueError: the published form has no place for its structure or for a head.
  """
  if trunk.config.norm_placement != 'pre':
    raise ValueError("mBART has its norms before the sublayers; norm_placement='post' is BART's")
  return {
    'model_type': 'mbart',
    'architectures': [f'MBart{bart.kind_of(heads)}'],
    **bart.shared_fields(trunk, heads),
  }
