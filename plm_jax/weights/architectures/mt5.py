"""Tensors and config fields of mT5 in Hugging Face's form: T5 1.1's, with untied tables for any config.json."""

from collections.abc import Collection, Mapping, Sequence
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

FIELDS: fields.Fields = {
  **t5.FIELDS,
  'feed_forward_proj': fields.choice('gated-gelu', tuple(t5.FORMS)),
  # transformers overwrites these; old files have false
  'tie_word_embeddings': fields.inert(),
  'scale_decoder_outputs': fields.inert(),
}
DERIVED: Mapping[str, Derived] = t5.DERIVED
UNUSED = t5.UNUSED


def read_config(theirs: Mapping[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
  theirs = fields.complete(FIELDS, theirs)
  overrides = t5.shared_config(theirs, names, tied=False) | {'model_type': 'mt5'}
  return {'vocab_size': theirs['vocab_size'], 'variant': 'mt5-small', 'overrides': overrides}


def write_config(trunk: T5 | T5Encoder, heads: Sequence[str]) -> dict[str, Any]:
  if trunk.config.tied:
    raise ValueError('mT5 needs an untied output matrix and unscaled logits (tied=False)')
  return {'model_type': 'mt5', 'architectures': [f'MT5{t5.kind_of(trunk, heads)}'], **t5.shared_fields(trunk)}
