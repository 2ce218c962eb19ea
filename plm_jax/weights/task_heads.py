"""Task heads: the correspondence between adapters and task classes of transformers.

A block of a config, `{'name': 'classify', 'classes': 3, ...}`, specifies how a head is computed; its parameters are
'head/...' next to the trunk. An architecture's `tasks` list which of these its task classes compute.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn

from plm_jax.checkpoint import Leaf
from plm_jax.checkpoint.tensor_files import WeightsError
from plm_jax.weights.class_heads import TaskHead
from plm_jax.weights.table import HEAD, POOLER, Architecture

Block = Mapping[str, Any]
# settings of adapters: the trunk's last states, pooled as in its paper, and a head of dense layers
_READING: Mapping[str, Sequence[Any]] = {
  'layer': (-1,),
  'layers': ([], [-1]),
  'join': ('concat', 'sum'),
  'pool': ('trunk',),
  'norms': (False,),
  'lstm_layers': (0, None),
  'crf': (False,),
}
ADAPTERS = ('classify', 'tag', 'choose', 'span')  # adapters whose heads have task classes
_OUTPUTS = {'choose': 1, 'span': 2}  # fixed number of outputs
NAMED = ('classify', 'tag')  # heads with class names
REGRESSION = 'regression'  # their problem_type, our kind
SEVERAL = 'multi_label_classification'


def find(architecture: Architecture, trunk: nn.Module, leaves: Mapping[str, Leaf], adapter: Block) -> str:
  """Find the task class that computes a head: its suffix ('ForTokenClassification').

  Args:
    leaves: by path ('trunk/...', 'head/...').
    adapter: the block of the adapter; if it is empty, the parameters have to determine the class.

  Raises:
    ValueError: there is none (the message has the difference and the settings to train with), or the parameters fit
      several tasks.
  """
  tasks, name = architecture.module.tasks(trunk), adapter.get('name')
  fitting = {end: task for end, task in tasks.items() if task.adapter in ((name,) if name else ADAPTERS)}
  if not fitting:
    has = ', '.join(dict.fromkeys(task.adapter for task in tasks.values())) or 'no adapter'
    raise ValueError(f'no task class has the head of adapter {name!r}; choices are {has}')
  reasons = {end: _difference(task, trunk, leaves, adapter) for end, task in fitting.items()}
  matching = {fitting[end].adapter: end for end, reason in reversed(reasons.items()) if not reason}
  if not matching:
    raise ValueError('; '.join(f'{end}: {reason}' for end, reason in reasons.items()))
  rows = reasons.get('ForSequenceClassification', '')
  if not name and 'head/bias' in rows:  # a head of texts in our form, or one of tokens
    others = ' or '.join(f'adapter={kind!r}' for kind in ADAPTERS if kind in matching)
    raise ValueError(f'ForSequenceClassification: {rows}; for tokens, pass {others}')
  return matching[name or _guessed({kind: fitting[end] for kind, end in matching.items()}, leaves)]


def _guessed(matching: Mapping[str, TaskHead], leaves: Mapping[str, Leaf]) -> str:
  """Choose a head's adapter by its parameters; raise ValueError for several matches.

  A head with a pooler is none of tokens. Texts and options may have the same names: then either is right.
  """
  last = next((leaves[path] for path in (f'{HEAD}/kernel', f'{HEAD}/out/kernel') if path in leaves), None)
  outputs = None if last is None else last.shape[-1]
  possible = [kind for kind in ADAPTERS if kind in matching and outputs in (None, _OUTPUTS.get(kind, outputs))]
  first, *others = possible or matching
  if first == 'classify':
    others = [kind for kind in others if kind == 'choose' and matching[kind].entries != matching[first].entries]
  if others:
    several = ' or '.join(map(repr, (first, *others)))
    raise ValueError(f'the parameters fit adapter {several}: pass one, adapter={first!r}')
  return first


def _difference(task: TaskHead, trunk: nn.Module, leaves: Mapping[str, Leaf], adapter: Block) -> str:
  """Describe how a class differs from our head; '' if equal."""
  usual = dict(_READING, end=(task.settings.get('end', 'independent'),))
  if own := {name: adapter[name] for name, values in usual.items() if adapter.get(name, values[0]) not in values}:
    settings = ', '.join(f'adapter.{name}={value}' for name, value in own.items())
    return f'it has no {settings}: train with the defaults'
  width, activation = trunk.hidden_dim, task.settings.get('activation')
  wanted = {entry.ours for entry in task.entries if entry.ours.startswith(f'{HEAD}/')}
  present = {path: leaf.shape for path, leaf in leaves.items() if path.startswith(f'{HEAD}/')}
  inner = f'{HEAD}/hidden/kernel'
  if inner in wanted and present.get(inner) != (width, width):
    first = '' if POOLER not in leaves else ", model.overrides.pooler='first'"
    return f'it has two dense layers: train with adapter.hidden={width}, adapter.activation={activation!r}{first}'
  if inner in present and inner not in wanted:
    return 'it has one dense layer: train with adapter.hidden=0'
  if extra := sorted(set(present) - wanted):
    fix = ': train with adapter.bias=False' if extra == [f'{HEAD}/bias'] else ''
    return f'it has no {", ".join(extra)}{fix}'
  if missing := sorted({entry.ours for entry in task.entries} - set(leaves)):
    return f'it also has {", ".join(missing)}'
  if activation and adapter.get('activation', activation) != activation:
    return (
      f'it has {activation} between the two layers of its head, not {adapter["activation"]}: train with '
      f'adapter.activation={activation}'
    )
  if task.pooler and POOLER not in leaves:
    return "it reads the trunk's pooler, which is missing: train with model.overrides.pooler='tanh'"
  return ''


def unlike(theirs: Block, ours: Block) -> str:
  """List the settings that differ between two blocks of an adapter."""
  names = [name for name in (*_READING, 'end', 'activation') if name in theirs and name in ours]
  names = [name for name in names if name != 'activation' or theirs.get('hidden')]
  return ', '.join(
    f'adapter.{name} is {theirs[name]!r} there and {ours[name]!r} here'
    for name in names
    if json.loads(json.dumps(theirs[name])) != json.loads(json.dumps(ours[name]))
  )


def to_fields(adapter: Block, labels: Sequence[str], outputs: int) -> dict[str, Any]:
  """Build a head's class names and problem type; `outputs` is its width."""
  if adapter and adapter['name'] not in NAMED:
    return {}
  names = list(labels) if len(labels) == outputs else [_placeholder(index) for index in range(outputs)]
  out: dict[str, Any] = {
    'id2label': {str(index): name for index, name in enumerate(names)},
    'label2id': {name: index for index, name in enumerate(names)},
  }
  if adapter.get('name') == 'classify':
    kinds = (REGRESSION, adapter.get('kind') == REGRESSION), (SEVERAL, adapter.get('several'))
    out['problem_type'] = next((kind for kind, is_kind in kinds if is_kind), 'single_label_classification')
  return out


def to_adapter(
  task: TaskHead, shapes: Mapping[str, Sequence[int]], config: Mapping[str, Any], labels: Sequence[str]
) -> dict[str, Any]:
  """Build the block of the adapter that computes a published head.

  Args:
    shapes: of our parameters, by path.
    config: config.json of the folder.
    labels: names of its classes, if they have any; WeightsError if their number is not that of the classes.
  """
  block: dict[str, Any] = {'name': task.adapter, **task.settings}
  if f'{HEAD}/hidden/kernel' in shapes:
    block['hidden'] = shapes[f'{HEAD}/hidden/kernel'][-1]
  outputs = shapes[f'{HEAD}/out/kernel' if 'hidden' in block else f'{HEAD}/kernel'][-1] if 'end' not in block else 0
  if labels and outputs > 1 and len(labels) != outputs:
    raise WeightsError(
      f'config.json: id2label has {len(labels)} classes, but the head has {outputs}: correct config.json'
    )
  if task.adapter == 'tag':
    block['tags'] = list(labels) or [_placeholder(index) for index in range(outputs)]
  if task.adapter == 'classify':
    problem = config.get('problem_type')
    several = problem == SEVERAL
    kind = REGRESSION if problem == REGRESSION or (outputs == 1 and not several) else 'class'
    if problem not in (None, 'single_label_classification', SEVERAL, REGRESSION):
      raise WeightsError(f'config.json: problem_type is {problem!r}, and must be {REGRESSION}, {SEVERAL} or null')
    if kind == REGRESSION and outputs > 1:
      raise WeightsError(
        f'config.json: problem_type is {REGRESSION}, but the head has {outputs} outputs, which is not supported: of '
        'classes, correct problem_type'
      )
    block |= {'several': True} if several else {}
    block |= {'kind': kind, 'bias': 'hidden' in block or f'{HEAD}/bias' in shapes}
    block |= {} if kind == REGRESSION else {'classes': outputs}
  return block


def labels_of(config: Mapping[str, Any]) -> tuple[str, ...]:
  """Read the class names of a config.json, by class index; else empty."""
  names = config.get('id2label')
  if not isinstance(names, dict):
    return ()
  listed = [name for index in range(len(names)) if isinstance(name := names.get(str(index)), str)]
  return tuple(listed) if len(set(listed)) == len(names) else ()


def named(labels: Sequence[str]) -> tuple[str, ...]:
  """Normalise class names for comparison; placeholders of transformers are dropped."""
  placeholders = [_placeholder(index) for index in range(len(labels))]
  return () if list(labels) == placeholders else tuple(name.casefold() for name in labels)


def _placeholder(index: int) -> str:
  return f'LABEL_{index}'
