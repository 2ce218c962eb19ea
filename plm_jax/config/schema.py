"""The keys of a config: what may stand in it, and how defaults are filled in.

A config is plain data: blocks that name a file (`name`) and give keywords of its `make`, and the fixed keys of `Run`.
Everything is checked here, before jax is loaded, against signatures read from source.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Literal, NamedTuple

from plm_jax import errors
from plm_jax.errors import ConfigError
from plm_jax.plugins import build, signatures
from plm_jax.plugins.signatures import Keyword, Missing
from plm_jax.plugins.values import check_keywords


class Run:
  """The top level of a config.

  Attributes:
    vocab: a file of `text/` and its keywords.
    model: a file of `models/` and its keywords.
    data: a file of `data/` and its keywords; `length` is the raw row, `batch_size` is global.
    optim: keywords of `optim.make`.
    objective: a file of `objectives/`; exactly one of objective and adapter is given.
    adapter: a file of `adapters/`.
    seed: of parameters, data order, noise and dropout.
    steps: updates; the horizon of the schedule. Exactly one of steps and epochs is given.
    epochs: passes over the data; the run turns them into steps.
    accumulate: micro-batches that one update is made of.
    log_every: steps between lines of metrics.
    eval_every: steps between evaluations.
    save_every: steps between checkpoints.
    keep: newest checkpoints kept, beside the best one.
    best: (metric such as 'validation/loss', 'min' or 'max') whose best checkpoint is kept as well.
    early_stop: evaluations without a better `best` after which the run ends; None never.
    max_skipped: updates with a gradient that is not finite in a row after which the run counts as diverged; None never.
    log: where metrics go beside metrics.jsonl, of 'tensorboard' and 'wandb'.
    sharding: see `Sharding`.
    execution: see `types.Execution`.
    eval: name -> see `Evaluation`.
    init_from: see `checkpoint.init_from.Entry`; later entries overwrite earlier ones.
  """

  vocab: Mapping[str, Any]
  model: Mapping[str, Any]
  data: Mapping[str, Any]
  optim: Mapping[str, Any]
  objective: Mapping[str, Any] | None = None
  adapter: Mapping[str, Any] | None = None
  seed: int = 0
  steps: int | None = None
  epochs: float | None = None
  accumulate: int = 1
  log_every: int = 100
  eval_every: int = 1000
  save_every: int = 1000
  keep: int = 2
  best: tuple[str, Literal['min', 'max']] | None = None
  early_stop: int | None = None
  max_skipped: int | None = 10
  log: Sequence[Literal['tensorboard', 'wandb']] = ('tensorboard',)
  sharding: Mapping[str, Any] = field(default_factory=dict)
  execution: Mapping[str, Any] = field(default_factory=dict)
  eval: Mapping[str, Any] = field(default_factory=dict)
  init_from: Sequence[Mapping[str, Any]] = ()


class Sharding:
  """How a run is spread over devices.

  Attributes:
    mesh: mesh axis ('data', 'model') -> devices along it; one of them may be -1.
    rules: a table of `sharding.RULES`, or (axis, mesh axis) pairs.
  """

  mesh: Mapping[str, int] = field(default_factory=lambda: {'data': -1})
  rules: str | Sequence[tuple[str, str | None]] = 'data'


class Evaluation:
  """One evaluation, by its name in `eval`.

  Attributes:
    data: like the block `data`; keywords left out, the name among them, are those of `data`.
    every: steps between runs of it; None is `eval_every`.
    units: words, or whatever else published figures count, in the text: gives 'unit_perplexity', exp of the nats of all
      predicted tokens over this number, and 'bits_per_unit' (GPT-2 §3.1). It does not depend on the vocabulary.
  """

  data: Mapping[str, Any]
  every: int | None = None
  units: int | None = None


# Which kind of block stands under a key. A kind is a folder ('models'), a noise file ('noise.where'), a definition
# ('config.schema:Run'), or a collection of another kind.
COLLECTIONS = {'evaluations': 'config.schema:Evaluation', 'inits': 'checkpoint.init_from:Entry'}
BLOCKS = {
  'config.schema:Run': {
    'vocab': 'text',
    'model': 'models',
    'objective': 'objectives',
    'adapter': 'adapters',
    'data': 'data',
    'optim': 'optim.optimiser:make',
    'sharding': 'config.schema:Sharding',
    'execution': 'types:Execution',
    'eval': 'evaluations',
    'init_from': 'inits',
  },
  'config.schema:Evaluation': {'data': 'data'},
}
NOT_INHERITED = ('split', 'per_class')  # keywords of the training data that an evaluation does not take over
# Keywords of a `make` that the run gives and no config may set.
GIVEN = {
  'text': (),
  'models': ('vocab_size', 'execution'),
  'objectives': ('trunk', 'vocab'),
  'adapters': ('trunk', 'vocab'),
  'data': ('vocab', 'seed', 'host', 'hosts'),
  'optim.optimiser:make': ('params', 'steps'),
}


class Block(NamedTuple):
  """What may stand in one block: where its keywords are defined, and the keywords."""

  owner: str
  known: dict[str, Keyword]


def block(kind: str, settings: Mapping[str, Any], label: str) -> Block:
  """The keywords of a block, `name` included where it has one."""
  if kind in COLLECTIONS:
    return Block('the config', {str(key): Keyword('Mapping[str, Any]') for key in settings})
  module, _, definition = kind.partition(':')
  if definition:
    known = signatures.keywords(module, definition)
    owner = 'a config' if module == 'config.schema' else f'{definition} in {signatures.path(module)}'
    given = GIVEN.get(kind, ())
  elif module.startswith('noise.'):
    places = signatures.places(module)
    name = _name(label, 'function', settings, list(places), place=signatures.path(module))
    module = places[name]
    known = signatures.keywords(module, name)
    owner = f'{name} in {signatures.path(module)}'
    given = tuple(key for key, keyword in known.items() if keyword.default is Missing.REQUIRED)  # ids and the like
  else:
    noun = build.singular(module)
    name = _name(label, noun, settings, signatures.names(module), place=signatures.path(module))
    known = signatures.signature(module, name)
    owner = f'make in {signatures.path(f"{module}.{name}")}'
    given = GIVEN[module]
  named = {} if definition else {'name': Keyword('str')}
  return Block(owner, named | {key: keyword for key, keyword in known.items() if key not in given})


def is_named(kind: str) -> bool:
  """True where a block chooses its file or function by `name`."""
  return (kind in GIVEN and ':' not in kind) or kind.startswith('noise.')


def child(kind: str, key: str, settings: Mapping[str, Any]) -> str | None:
  """The kind of block under a key; None where a plain value stands there."""
  if kind in COLLECTIONS:
    return COLLECTIONS[kind]
  if kind in BLOCKS:
    return BLOCKS[kind].get(key)
  if key == 'inner':  # a wrapper and what it wraps are of one kind
    return kind
  if key == 'overrides' and kind == 'models' and signatures.has(f'models.{settings["name"]}', 'Config'):
    return f'models.{settings["name"]}:Config'
  if kind in ('objectives', 'adapters') and signatures.places(f'noise.{key}'):
    return f'noise.{key}'
  return None


def complete(kind: str, settings: Any, label: str) -> Any:
  """A block with every default filled in, as plain data.

  Raises:
    ConfigError: an unknown, missing or wrongly typed key, anywhere below.
  """
  if kind in COLLECTIONS:
    if isinstance(settings, Mapping):
      return {key: complete(COLLECTIONS[kind], value, f'{label}.{key}') for key, value in settings.items()}
    return [complete(COLLECTIONS[kind], value, f'{label}.{index}') for index, value in enumerate(settings)]
  if kind.startswith('noise.') and isinstance(settings, list | tuple):  # functions applied one after the other
    return [complete(kind, one, f'{label}.{index}') for index, one in enumerate(settings)]
  if not isinstance(settings, Mapping):
    raise ConfigError(f'{label}: expected a block, as in dict(name=..., ...), got {settings!r}.')
  owner, known = block(kind, settings, label)
  partial = kind.endswith(':Config')  # overrides change single fields
  if partial:
    known = {key: Keyword(keyword.annotation, None) for key, keyword in known.items()}
  values = check_keywords(label, owner, known, settings)
  _check_choices(kind, values, label)
  for key, keyword in known.items():
    if not partial and keyword.default is not Missing.COMPUTED:
      values.setdefault(key, keyword.default)
  below = {key: child(kind, key, values) for key in values}
  return {
    key: complete(below[key], values[key], f'{label}.{key}')  # type: ignore[arg-type]
    if below[key] and values[key] is not None
    else plain(values[key], f'{label}.{key}')
    for key in known
    if key in values
  }


def with_inherited(config: Mapping[str, Any]) -> dict[str, Any]:
  """A config whose evaluations have the keywords of the training data that they leave out."""
  data, evaluations = config.get('data'), config.get('eval')
  if not isinstance(data, Mapping) or not isinstance(evaluations, Mapping):
    return dict(config)
  filled = {}
  for name, evaluation in evaluations.items():
    own = evaluation.get('data', {}) if isinstance(evaluation, Mapping) else None
    filled[name] = {**evaluation, 'data': _inherit(own, data)} if isinstance(own, Mapping) else evaluation
  return {**config, 'eval': filled}


def _inherit(block: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
  """The data block of an evaluation, with the keywords of the training data where it has none of its own.

  Which part of the data it is, and how much of it, stays its own; another source inherits nothing.
  """
  if block.get('name', data.get('name')) != data.get('name'):
    return dict(block)
  return {**{key: value for key, value in data.items() if key not in NOT_INHERITED}, **block}


def plain(value: Any, label: str) -> Any:
  """A value as JSON holds it: lists for tuples, dicts with text keys.

  Raises:
    ConfigError: for anything that JSON does not hold.
  """
  if isinstance(value, Mapping):
    if strange := [key for key in value if not isinstance(key, str)]:
      raise ConfigError(f'{label}: keys are text, not {strange[0]!r}.')
    return {key: plain(item, f'{label}.{key}') for key, item in value.items()}
  if isinstance(value, list | tuple):
    return [plain(item, f'{label}.{index}') for index, item in enumerate(value)]
  if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
    return value
  raise ConfigError(f'{label}: a config holds finite numbers, text, None, lists and dicts, not {value!r}.')


def _name(label: str, what: str, settings: Mapping[str, Any], choices: Sequence[str], *, place: str) -> str:
  if 'name' not in settings:
    raise ConfigError(f'{label}: needs a name, as in dict(name=..., ...). Names: {", ".join(choices)}.')
  errors.check_choice(f'{label}.name', what, settings['name'], choices, place=place)
  return settings['name']


def _check_choices(kind: str, values: Mapping[str, Any], label: str) -> None:
  """Names that stand for a function or a row of a table elsewhere."""
  choices: dict[str, tuple[str, list[str]]] = {}  # key -> file, names in it
  if kind == 'models':
    choices['variant'] = f'models.{values["name"]}', signatures.table(f'models.{values["name"]}', 'CONFIGS')
  elif kind == 'optim.optimiser:make':
    choices['name'] = 'optim.rules', signatures.functions('optim.rules', first=('context',))
    choices['schedule'] = 'optim.schedules', signatures.functions('optim.schedules', first=('step',))
  elif kind == 'config.schema:Sharding' and isinstance(values.get('rules'), str):
    choices['rules'] = 'sharding', signatures.table('sharding', 'RULES')
  for key, (module, names) in choices.items():
    if names and values.get(key) is not None:
      errors.check_choice(f'{label}.{key}', key, values[key], names, place=signatures.path(module))
