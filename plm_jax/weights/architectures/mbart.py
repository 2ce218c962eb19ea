"""Tensors and config fields of mBART and mBART-50 in Hugging Face's form: BART's, with a final norm of each stack."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from plm_jax.models.bart import Bart
from plm_jax.weights import fields
from plm_jax.weights.architectures import bart
from plm_jax.weights.table import Derived

MODEL = 'bart'
HEADS: tuple[str, ...] = ()
MODEL_TYPES = ('mbart',)
PREFIX = bart.PREFIX

FIELDS: fields.Fields = {
  **bart.SHARED,
  'decoder_start_token_id': fields.token_id(),
  'normalize_before': fields.fixed(True),
  'add_final_layer_norm': fields.fixed(True),
}
tasks, entries = bart.tasks, bart.entries
DERIVED: Mapping[str, Derived] = bart.DERIVED
UNUSED = bart.UNUSED


def read_config(theirs: Mapping[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
  theirs = fields.complete(FIELDS, theirs)
  overrides = bart.shared_config(theirs) | {'norm_placement': 'pre'}
  if 'classification_head.dense.bias' in names:  # it reads the state at </s>, before the token of the language
    overrides['label_end'] = 2 if theirs['eos_token_id'] is None else theirs['eos_token_id']
  return {'vocab_size': theirs['vocab_size'], 'variant': 'mbart-large-cc25', 'overrides': overrides}


def write_config(trunk: Bart, heads: Sequence[str]) -> dict[str, Any]:
  if trunk.config.norm_placement != 'pre':
    raise ValueError("mBART needs norm_placement='pre'; 'post' is BART's")
  return {'model_type': 'mbart', 'architectures': [f'MBart{bart.kind_of(heads)}'], **bart.shared_fields(trunk)}
