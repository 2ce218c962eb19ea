"""The keys of a config: what may stand in it, and how defaults are filled in.

A config is plain data: blocks that name a file (`name`) and give keywords of its `make`, and the fixed keys of `Run`.
Everything is checked here, before jax is loaded, against signatures read from source.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, Literal, NamedTuple

from plm_jax import errors
from plm_jax.errors import ConfigError
from plm_jax.plugins import annotations, build, signatures
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

  vocab: Annotated[Mapping[str, Any], 'text']
  model: Annotated[Mapping[str, Any], 'models']
  data: Annotated[Mapping[str, Any], 'data']
  optim: Annotated[Mapping[str, Any], 'optim.optimiser:make']
  objective: Annotated[Mapping[str, Any], 'objectives'] | None = None
  adapter: Annotated[Mapping[str, Any], 'adapters'] | None = None
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
  sharding: Annotated[Mapping[str, Any], 'config.schema:Sharding'] = field(default_factory=dict)
  execution: Annotated[Mapping[str, Any], 'types:Execution'] = field(default_factory=dict)
  eval: Mapping[str, Annotated[Mapping[str, Any], 'config.schema:Evaluation']] = field(default_factory=dict)
  init_from: Sequence[Annotated[Mapping[str, Any], 'checkpoint.init_from:Entry']] = ()


class Sharding:
  """How a run is spread over devices.

  Attributes:
    mesh: mesh axis ('data', 'model') -> devices along it; one of them may be -1.
    rules: a table of `sharding.RULES`, or (axis, mesh axis) pairs.
  """

  mesh: Mapping[str, int] = field(default_factory=lambda: {'data': -1})
  rules: Annotated[str, 'sharding:RULES'] | Sequence[tuple[str, str | None]] = 'data'


class Evaluation:
  """One evaluation, by its name in `eval`.

  Attributes:
    data: like the block `data`; keywords left out, the name among them, are those of `data`.
    every: steps between runs of it; None is `eval_every`.
    units: words, or whatever else published figures count, in the text: gives 'unit_perplexity', exp of the nats of all
      predicted tokens over this number, and 'bits_per_unit' (GPT-2 §3.1). It does not depend on the vocabulary.
  """

  data: Annotated[Mapping[str, Any], 'data']
  every: int | None = None
  units: int | None = None


NAMES = ('name', 'schedule')  # keys of a block whose values say which other keys there are
NOT_INHERITED = ('split', 'per_class')  # keywords of the training data that an evaluation does not take over
# Keywords of a `make` that the run gives and no config may set. Of a function that a block names, such as one of
# noise/, the run gives every keyword without a default.
GIVEN = {
  'models': ('vocab_size', 'execution'),
  'objectives': ('trunk', 'vocab'),
  'adapters': ('trunk', 'vocab'),
  'data': ('vocab', 'seed', 'host', 'hosts'),
  'optim.optimiser:make': ('params', 'steps'),
}


class Block(NamedTuple):
  """What may stand in one block.

  Attributes:
    owner: where its keywords are defined, for messages.
    known: its keywords, `name` included where it has one.
    elsewhere: keyword -> who takes it, where the block could name another function that does.
  """

  owner: str
  known: dict[str, Keyword]
  elsewhere: Mapping[str, str] = {}


def block(kind: str, settings: Mapping[str, Any], label: str) -> Block:
  """The keywords of a block of a kind (see `plugins/annotations.py`).

  Raises:
    ConfigError: the block names no file or function of its kind.
  """
  module, _, definition = kind.partition(':')
  if definition:
    return _block_of_definition(kind, settings, label)
  places, functions = signatures.places(kind), signatures.names_functions(kind)
  name = _name(label, 'function' if functions else build.singular(kind), settings, places, place=signatures.path(kind))
  module, definition = places[name], name if functions else 'make'
  known = signatures.keywords(module, definition)
  required = [key for key, keyword in known.items() if keyword.default is Missing.REQUIRED]
  given = required if functions else GIVEN.get(kind, ())
  own = {key: keyword for key, keyword in known.items() if key not in given}
  owner = f'{definition} in {signatures.path(module)}'
  return Block(owner, {'name': Keyword('str')} | _with_kinds(kind, module, own))


def named_files(kind: str, settings: Mapping[str, Any]) -> list[str]:
  """The files that keywords of a block name, such as 'data.rows.kinds.words' where `kind` is 'words'."""
  found = []
  for key, keyword in block(kind, settings, kind).known.items():
    value = settings.get(key, keyword.default)
    part = annotations.part(keyword.annotation, value)
    if part and part.form == 'name' and ':' not in part.inner and value in (places := signatures.places(part.inner)):
      found.append(places[value])
  return found


def _block_of_definition(kind: str, settings: Mapping[str, Any], label: str) -> Block:
  """The block of a class or function; one with `**rest` takes the keywords of the functions that it names as well."""
  module, _, definition = kind.partition(':')
  whole = signatures.keywords(module, definition)
  own = {key: keyword for key, keyword in whole.items() if key not in GIVEN.get(kind, ())}
  owner = 'a config' if module == 'config.schema' else f'{definition} in {signatures.path(module)}'
  if not signatures.passes_on(module, definition):
    return Block(owner, own)
  chosen: list[str] = []
  rest: dict[str, Keyword] = {}
  elsewhere: dict[str, str] = {}
  for key, keyword in own.items():
    for _, named in (part for part in annotations.parts(keyword.annotation) if part.form == 'name'):
      places, name = signatures.places(named), settings.get(key, keyword.default)
      errors.check_choice(f'{label}.{key}', key, name, places, place=signatures.path(named))
      chosen.append(f'{key}={name!r}')
      rest |= {k: v for k, v in signatures.keywords(places[name], name).items() if k not in whole}
      for other, file in places.items():
        for k in signatures.keywords(file, other):
          elsewhere[k] = f'{elsewhere[k]}, {key}={other!r}' if k in elsewhere else f'{key}={other!r}'
  return Block(f'{owner} with {" and ".join(chosen)}', own | rest, elsewhere)


def _with_kinds(kind: str, module: str, known: Mapping[str, Keyword]) -> dict[str, Keyword]:
  """Keywords with the kinds that every model has: `variant` is a row of `CONFIGS`, `overrides` are fields of `Config`."""
  kinds = {'overrides': f'{module}:Config', 'variant': f'{module}:CONFIGS'} if kind == 'models' else {}
  return {
    key: keyword._replace(annotation=annotations.with_kind(keyword.annotation, kinds[key])) if key in kinds else keyword
    for key, keyword in known.items()
  }


def complete(kind: str, settings: Any, label: str, *, outer: Collection[str] = ()) -> Any:
  """A block with every default filled in, as plain data.

  Args:
    kind: of the block.
    settings: what the config has there.
    label: the dotted key of the block, for messages.
    outer: keywords of the block around it, where both are of one kind of data: those come from there.

  Raises:
    ConfigError: an unknown, missing or wrongly typed key, anywhere below.
  """
  if not isinstance(settings, Mapping):
    raise ConfigError(f'{label}: expected a block, as in dict(name=..., ...), got {settings!r}.')
  owner, known, elsewhere = block(kind, settings, label)
  # overrides change single fields, and rows of a mixture are as the mixture says
  optional = known if kind.endswith(':Config') else outer if kind == 'data' else ()
  known = {k: v._replace(default=Missing.COMPUTED) if k in optional and k != 'name' else v for k, v in known.items()}
  values = check_keywords(label, owner, known, settings, elsewhere=elsewhere)
  for key, keyword in known.items():
    if keyword.default is not Missing.COMPUTED:
      values.setdefault(key, keyword.default)
  around = known if kind == 'data' else ()
  return {
    key: _filled(keyword.annotation, values[key], f'{label}.{key}', outer=around)
    for key, keyword in known.items()
    if key in values
  }


def _filled(annotation: str, value: Any, label: str, *, outer: Collection[str]) -> Any:
  """A value with the defaults of every block in it filled in, as plain data."""
  part = annotations.part(annotation, value)
  if value is None or part is None:
    return plain(value, label)
  if part.form == 'block':
    return complete(part.inner, value, label, outer=outer)
  if part.form == 'sequence':
    return [_filled(part.inner, item, f'{label}.{index}', outer=outer) for index, item in enumerate(value)]
  if part.form == 'mapping':
    return {key: _filled(part.inner, item, f'{label}.{key}', outer=outer) for key, item in value.items()}
  if part.form == 'name':
    _check_name(part.inner, value, label)
  return plain(value, label)


def _check_name(kind: str, name: str, label: str) -> None:
  """Raises ConfigError where a text names nothing of its kind: a row of a table, a file or a function."""
  module, _, table = kind.partition(':')
  choices = signatures.table(module, table) if table else signatures.places(kind)
  if choices:
    errors.check_choice(label, label.rpartition('.')[2], name, choices, place=signatures.path(module))


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


def _name(label: str, what: str, settings: Mapping[str, Any], choices: Collection[str], *, place: str) -> str:
  if 'name' not in settings:
    raise ConfigError(f'{label}: needs a name, as in dict(name=..., ...). Names: {", ".join(choices)}.')
  errors.check_choice(f'{label}.name', what, settings['name'], choices, place=place)
  return settings['name']
