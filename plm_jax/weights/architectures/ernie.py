"""Tensors and config fields of ERNIE 1 to 3 in Hugging Face's form: BERT's, with a table of tasks."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from plm_jax.models.bert import Bert
from plm_jax.weights import fields
from plm_jax.weights.architectures import bert
from plm_jax.weights.table import Derived, Entry

MODEL = 'bert'
MODEL_TYPES = ('ernie',)
TYPED = True
PREFIX = 'ernie.'
HEADS = bert.HEADS
FIELDS: fields.Fields = {**bert.SHARED, 'task_type_vocab_size': fields.size(3), 'use_task_id': fields.flag(False)}
DERIVED: Mapping[str, Derived] = bert.DERIVED
tasks = bert.tasks


def read_config(theirs: Mapping[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
  theirs = fields.complete(FIELDS, theirs)
  made = bert.read_config(theirs, names)
  num_tasks = theirs['task_type_vocab_size'] if theirs['use_task_id'] else 0
  return {**made, 'overrides': made['overrides'] | {'num_tasks': num_tasks, 'model_type': 'ernie'}}


def write_config(trunk: Bert, heads: Sequence[str]) -> dict[str, Any]:
  c = trunk.config
  if c.model_type != 'ernie':
    raise ValueError("ERNIE needs model_type='ernie'")
  config = bert.write_config(trunk.clone(config=dataclasses.replace(c, num_tasks=0, model_type='')), heads)
  classes = [name.replace('Bert', 'Ernie') for name in config['architectures']]
  task_fields = {'use_task_id': c.num_tasks > 0, 'task_type_vocab_size': c.num_tasks or 3}
  return config | {'model_type': 'ernie', 'architectures': classes} | task_fields


def entries(trunk: Bert, heads: Sequence[str]) -> list[Entry]:
  out = renamed(bert.entries(trunk, heads), {bert.PREFIX: PREFIX})
  if trunk.config.num_tasks:
    out.append(Entry('trunk/task_embed/table', 'ernie.embeddings.task_type_embeddings.weight'))
  return out


def renamed(entries: Sequence[Entry], names: Mapping[str, str]) -> list[Entry]:
  """Replace parts of the names of tensors."""

  def new(name: str) -> str:
    for old, own in names.items():
      name = name.replace(old, own, 1)
    return name

  return [entry._replace(theirs=new(entry.theirs), tied=tuple(map(new, entry.tied))) for entry in entries]
