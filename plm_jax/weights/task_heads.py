"""Heads of tasks, between adapters and classes of transformers: which class has the head of a run, and what reads one.

A block of a config, `{'name': 'classify', 'classes': 3, ...}`, says how a head is computed; its parameters are
'head/...' beside the trunk. An architecture's `tasks` say which of these its classes for tasks compute.
"""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import flax.linen as nn

from plm_jax.checkpoint import Leaf
from plm_jax.checkpoint.tensor_files import WeightsError
from plm_jax.weights.table import HEAD, POOLER, Architecture, TaskHead

Block = Mapping[str, Any]
# settings of the adapters that say: the trunk's last states, pooled as its paper does, and a head of dense layers
_READING: Mapping[str, Sequence[Any]] = MappingProxyType(
  {
    'layer': (-1,),
    'layers': ([], [-1]),
    'join': ('concat', 'sum'),
    'pool': ('trunk',),
    'norms': (False,),
    'lstm_layers': (0,),
    'crf': (False,),
  }
)
ADAPTERS = ('classify', 'tag', 'choose', 'span')  # those whose heads have classes of theirs
_OUTPUTS = {'choose': 1, 'span': 2}  # of heads that always have so many
NAMED = ('classify', 'tag')  # and names for what they tell apart
REGRESSION = 'regression'  # problem_type in theirs, kind in ours


def find(architecture: Architecture, trunk: nn.Module, leaves: Mapping[str, Leaf], adapter: Block) -> str:
  """The end of the name of the class of theirs that computes what a head does, such as 'ForTokenClassification'.

  Args:
    architecture: that of the published form.
    trunk: whose head it is.
    leaves: by path ('trunk/...', 'head/...').
    adapter: the block of the adapter; empty where it is not known: then the parameters have to say it.

  Raises:
    ValueError: there is none, and the message says what differs and what to train with; or parameters alone do not say
      what the head is for.
  """
  known, name = architecture.module.tasks(trunk), adapter.get('name')
  fitting = {end: task for end, task in known.items() if task.adapter in ((name,) if name else ADAPTERS)}
  if not fitting:
    has = ', '.join(dict.fromkeys(task.adapter for task in known.values())) or 'no adapter'
    raise ValueError(f'no class has the head of adapter {name!r}; there are classes with the heads of {has}')
  reasons = {end: _difference(task, trunk, leaves, adapter) for end, task in fitting.items()}
  found = {fitting[end].adapter: end for end, reason in reversed(reasons.items()) if not reason}
  if not found:
    raise ValueError('; '.join(f'{end}: {reason}' for end, reason in reasons.items()))
  rows = reasons.get('ForSequenceClassification', '')
  if not name and 'head/bias' in rows:  # a head of rows as ours has them, or one of tokens
    others = ' or '.join(f'adapter={one!r}' for one in ADAPTERS if one in found)
    raise ValueError(f'ForSequenceClassification: {rows}; if it is for tokens, say so: {others}')
  return found[name or _guessed({one: fitting[end] for one, end in found.items()}, leaves)]


def _guessed(found: Mapping[str, TaskHead], leaves: Mapping[str, Leaf]) -> str:
  """The adapter that a head is of by its parameters alone, one of those found.

  Where the pooler is there, a head is none of tokens. Heads of rows and of options may have the same names in files:
  then either will do.

  Raises:
    ValueError: heads of several adapters have such parameters.
  """
  last = next((leaves[path] for path in (f'{HEAD}/kernel', f'{HEAD}/out/kernel') if path in leaves), None)
  outputs = None if last is None else last.shape[-1]
  possible = [one for one in ADAPTERS if one in found and outputs in (None, _OUTPUTS.get(one, outputs))]
  first, *others = possible or found
  if first == 'classify':
    others = [one for one in others if one == 'choose' and found[one].entries != found[first].entries]
  if others:
    several = ' or '.join(map(repr, (first, *others)))
    raise ValueError(f'by its parameters it may be the head of adapter {several}: say which, adapter={first!r}')
  return first


def _difference(task: TaskHead, trunk: nn.Module, leaves: Mapping[str, Leaf], adapter: Block) -> str:
  """Why a class of theirs computes something else than a head of ours, with the cure; empty where it does not."""
  usual = dict(_READING, end=(task.settings.get('end', 'independent'),))
  if own := {name: adapter[name] for name, values in usual.items() if adapter.get(name, values[0]) not in values}:
    settings = ', '.join(f'adapter.{name}={value}' for name, value in own.items())
    return f'it does not read its trunk as {settings} does'
  width, activation = trunk.hidden_dim, task.settings.get('activation')
  wanted = {entry.ours for entry in task.entries if entry.ours.startswith(f'{HEAD}/')}
  there = {path: leaf.shape for path, leaf in leaves.items() if path.startswith(f'{HEAD}/')}
  inner = f'{HEAD}/hidden/kernel'
  if inner in wanted and there.get(inner) != (width, width):
    first = '' if POOLER not in leaves else ", model.overrides.pooler='first'"
    return f'it has two layers: train with adapter.hidden={width}, adapter.activation={activation!r}{first}'
  if inner in there and inner not in wanted:
    return 'it has one layer: train with adapter.hidden=0'
  if more := sorted(set(there) - wanted):
    cure = ': train with adapter.bias=False' if more == [f'{HEAD}/bias'] else ''
    return f'it has no place for {", ".join(more)}{cure}'
  if missing := sorted({entry.ours for entry in task.entries} - set(leaves)):
    return f'it has {", ".join(missing)} as well'
  if activation and adapter.get('activation', activation) != activation:
    return (
      f'it has {activation} between the two layers of its head, and this run {adapter["activation"]}: train with '
      f'adapter.activation={activation}'
    )
  if task.pooler and POOLER not in leaves:
    return "it reads the trunk's pooler, and this one has none: train with model.overrides.pooler='tanh'"
  return ''


def unlike(theirs: Block, ours: Block) -> str:
  """The settings by which two blocks of one adapter compute a head otherwise; empty where they do not."""
  names = [name for name in (*_READING, 'end', 'activation') if name in theirs and name in ours]
  names = [name for name in names if name != 'activation' or theirs.get('hidden')]
  return ', '.join(
    f'adapter.{name} is {theirs[name]!r} there and {ours[name]!r} here'
    for name in names
    if json.loads(json.dumps(theirs[name])) != json.loads(json.dumps(ours[name]))
  )


def to_fields(adapter: Block, labels: Sequence[str], outputs: int) -> dict[str, Any]:
  """Fields of config.json for the head of an adapter: the names of its classes, and whether it gives a number.

  Args:
    adapter: the block of the adapter; empty where it is not known.
    labels: names of the classes, if they have any.
    outputs: of the last layer.
  """
  if adapter and adapter['name'] not in NAMED:
    return {}
  names = list(labels) if len(labels) == outputs else [_placeholder(number) for number in range(outputs)]
  out: dict[str, Any] = {
    'id2label': {str(number): name for number, name in enumerate(names)},
    'label2id': {name: number for number, name in enumerate(names)},
  }
  if adapter.get('name') == 'classify':
    out['problem_type'] = REGRESSION if adapter.get('kind') == REGRESSION else 'single_label_classification'
  return out


def to_adapter(
  task: TaskHead, shapes: Mapping[str, Sequence[int]], config: Mapping[str, Any], labels: Sequence[str]
) -> dict[str, Any]:
  """The block of the adapter that computes what the head of a release does.

  Args:
    task: the head.
    shapes: of our parameters, by path.
    config: config.json of the release.
    labels: names of its classes, if they have any.

  Returns:
    the block; empty where no adapter does: each class has a probability of its own (`multi_label_classification`).

  Raises:
    WeightsError: there are more names or fewer than classes.
  """
  if config.get('problem_type') == 'multi_label_classification':
    return {}
  block: dict[str, Any] = {'name': task.adapter, **task.settings}
  if f'{HEAD}/hidden/kernel' in shapes:
    block['hidden'] = shapes[f'{HEAD}/hidden/kernel'][-1]
  outputs = shapes[f'{HEAD}/out/kernel' if 'hidden' in block else f'{HEAD}/kernel'][-1] if 'end' not in block else 0
  if labels and outputs > 1 and len(labels) != outputs:
    raise WeightsError(
      f'config.json: id2label names {len(labels)} classes, and the head has {outputs}: correct config.json'
    )
  if task.adapter == 'tag':
    block['tags'] = list(labels) or [_placeholder(number) for number in range(outputs)]
  if task.adapter == 'classify':
    kind = REGRESSION if config.get('problem_type') == REGRESSION or outputs == 1 else 'class'
    block |= {'kind': kind, 'bias': 'hidden' in block or f'{HEAD}/bias' in shapes}
    block |= {} if kind == REGRESSION else {'classes': outputs}
  return block


def labels_of(config: Mapping[str, Any]) -> tuple[str, ...]:
  """Names of the classes in a config.json, in the order of their numbers; empty where it has none of its own."""
  names = config.get('id2label')
  if not isinstance(names, dict):
    return ()
  known = [name for number in range(len(names)) if isinstance(name := names.get(str(number)), str)]
  return tuple(known) if len(set(known)) == len(names) else ()


def named(labels: Sequence[str]) -> tuple[str, ...]:
  """Names of classes to compare: in small letters, and none where transformers made them because nobody had."""
  made = [_placeholder(number) for number in range(len(labels))]
  return () if list(labels) == made else tuple(name.casefold() for name in labels)


def _placeholder(number: int) -> str:
  return f'LABEL_{number}'
