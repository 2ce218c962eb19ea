"""Blocks of a config: the keys of each, and their defaults.

Everything is checked here, before jax is loaded, against signatures that are read from source.
"""

import contextlib
import math
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from plm_jax.config import annotations, build, signatures
from plm_jax.config.aliases import EVALUATION
from plm_jax.config.signatures import Keyword, Missing
from plm_jax.config.values import check_keywords, fits
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.io import files

WHOLE = 'config.schema:Run'  # the kind of the whole config
PARTIAL = (':Config', ':filter_documents')  # ends of kinds of which a config holds what it sets, without defaults
LISTED = '--list'
NAMES = ('name', 'schedule')  # keys of a block whose values decide which other keys there are
_EXAMPLES = (1, 0.5, True, 'VALUE')  # of values, for a flag that a user can type as it stands
NOT_INHERITED = ('split', 'per_class', 'per_target')  # keywords of the training data that evaluations do not inherit
# Keywords of a `make` that the run gives and that no config may set. The run also gives every keyword without a default
# of a function that a block names, such as those of noise/.
GIVEN = {
  'models': ('vocab_size', 'execution'),
  'objectives': ('trunk', 'vocab', 'second_vocab', 'heads', 'template'),
  'adapters': ('trunk', 'vocab', 'second_vocab'),
  'data': ('vocab', 'second_vocab', 'characters', 'sequences', 'seed', 'host', 'hosts'),
  'optim.optimiser:make': ('params', 'steps', 'trains'),
  'data.corpora.filters:filter_documents': ('text',),
}


class Block(NamedTuple):
  """Keys that one block may have."""

  known: dict[str, Keyword]  # its keywords, `name` included where there is one
  elsewhere: Mapping[str, str] = {}  # keyword -> what takes it, of all functions that the block could name


def block(kind: str, settings: Mapping[str, Any], label: str) -> Block:
  """Return the keywords of a block of a kind (see `config/annotations.py`).

  Raises ConfigError: the block names no file or function of its kind.
  """
  module, _, definition = kind.partition(':')
  if definition:
    return _block_of_definition(kind, settings, label)
  places, functions = signatures.places(kind), signatures.names_functions(kind)
  name = _name(label, 'function' if functions else build.singular(kind), settings, places)
  module, definition = places[name], name if functions else 'make'
  known = signatures.keywords(module, definition)
  required = [key for key, keyword in known.items() if keyword.default is Missing.REQUIRED]
  given = required if functions else GIVEN.get(module.rpartition('.')[0], ())
  own = {key: keyword for key, keyword in known.items() if key not in given}
  return Block({'name': Keyword('str')} | _with_kinds(kind, module, own))


def named_files(kind: str, settings: Mapping[str, Any]) -> list[str]:
  """List files that keywords of a block name: 'data.rows.kinds.words' for 'words'."""
  found = []
  for key, keyword in block(kind, settings, kind).known.items():
    value = settings.get(key, keyword.default)
    part = annotations.part(keyword.annotation, value)
    if part and part.form == 'name' and ':' not in part.inner and value in (places := signatures.places(part.inner)):
      found.append(places[value])
  return found


def _block_of_definition(kind: str, settings: Mapping[str, Any], label: str) -> Block:
  """Return the block of a class or function, with keywords of `**rest`."""
  module, _, definition = kind.partition(':')
  whole = signatures.keywords(module, definition)
  own = {key: keyword for key, keyword in whole.items() if key not in GIVEN.get(kind, ())}
  if not signatures.passes_on(module, definition):
    return Block(own)
  rest: dict[str, Keyword] = {}
  elsewhere: dict[str, str] = {}
  for key, keyword in own.items():
    for _, named in (part for part in annotations.parts(keyword.annotation) if part.form == 'name'):
      places, name = signatures.places(named), settings.get(key, keyword.default)
      errors.check_choice(f'{label}.{key}', 'value', name, places)
      rest |= {k: v for k, v in signatures.keywords(places[name], name).items() if k not in whole}
      for other, file in places.items():
        for k in signatures.keywords(file, other):
          elsewhere[k] = f'{elsewhere[k]}, {key}={other!r}' if k in elsewhere else f'{key}={other!r}'
  return Block(own | rest, elsewhere)


def _with_kinds(kind: str, module: str, known: Mapping[str, Keyword]) -> dict[str, Keyword]:
  """Give kinds to the keywords `variant` and `overrides` of models."""
  kinds = {'overrides': f'{module}:Config', 'variant': f'{module}:CONFIGS'} if kind == 'models' else {}
  return {
    key: keyword._replace(annotation=annotations.with_kind(keyword.annotation, kinds[key])) if key in kinds else keyword
    for key, keyword in known.items()
  }


def of_data(settings: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
  """Return the data blocks of a config by key: 'data', 'eval.NAME.data'."""
  return {'data': settings['data']} | {f'eval.{name}.data': block['data'] for name, block in settings['eval'].items()}


def own_task(settings: Mapping[str, Any], where: str) -> Mapping[str, Any] | None:
  """Return the separate task of an evaluation's data block, if any."""
  return None if where == 'data' else settings['eval'][where.split('.')[1]].get('task')


def steps_between(settings: Mapping[str, Any], name: str) -> int:
  """Return the number of steps between two runs of an evaluation."""
  return settings['eval'][name]['every'] or settings['eval_every']


def complete(kind: str, settings: Any, label: str, *, outer: Collection[str] = ()) -> Any:
  """Fill in every default of a block, as plain data.

  Raises ConfigError: an unknown, missing or wrongly typed key, anywhere below.

  Args:
    settings: what the config has there.
    label: the dotted key of the block, for messages.
    outer: keywords of the data block that this data block is a part of, which come from there.
  """
  if not isinstance(settings, Mapping):
    raise ConfigError(
      f'{errors.key_of(label)}: expected a block, as in dict(name=..., ...), got {errors.shown(settings)}.'
    )
  known, elsewhere = block(kind, settings, label)
  # overrides change single fields, and the parts of a mixture take the length and the like from it
  optional = known if kind.endswith(PARTIAL) else outer if kind == 'data' else ()
  known = {k: v._replace(default=Missing.COMPUTED) if k in optional and k != 'name' else v for k, v in known.items()}
  values = check_keywords(label, known, settings, elsewhere=elsewhere, fix=as_keys)
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
  """Fill in the defaults of every block in a value."""

  def fill(part: annotations.Part, inner: Any, place: str) -> Any:
    if part.form == 'block':
      return complete(part.inner, inner, place, outer=outer)
    _check_name(part.inner, inner, place)
    return inner

  return plain(annotations.rebuild(annotation, value, fill, label), label)


def as_keys(annotation: str, value: Any, label: str, *, there: Any = None, readings: Sequence[Any] = ()) -> str:
  """Return the end of a message: how to set a block's keys.

  Returns two sentences behind a space; empty where no block belongs there.

  Args:
    value: what was given for it.
    label: its dotted key, such as 'config.spikes'.
    there: what the config has there, or the default.
    readings: what a value that was typed may mean, the likeliest first.
  """
  kind = next((part.inner for part in annotations.parts(annotation) if part.form == 'block'), None)
  if kind is None or kind == WHOLE:
    return ''
  names = [] if ':' in kind else list(signatures.places(kind))
  settings = there if isinstance(there, Mapping) else {}
  known = block(kind, settings, label).known if not names or settings.get('name') in names else {}
  key, chosen = _one_key(known, readings or [value], names)
  empties: tuple[Any, ...] = ({}, ())
  form = next(found.form for empty in empties if (found := annotations.part(annotation, empty)))
  entry = next((reading for reading in readings if isinstance(reading, Mapping)), {key: chosen})
  flag = {
    'sequence': f'--{label}={shlex.quote(files.json_text([entry], indent=None).strip())}',
    'mapping': f'--{label}.{next(iter(settings), EVALUATION)}.{key}={chosen}',
  }.get(form, f'--{label}.{key}={chosen}')
  keys = errors.listed(known) if known else f'name ({errors.listed(names)}) and the keys of that name'
  return f'. It is a block: set one key at a time, as in {flag}. Keys: {keys}'


def _one_key(known: Mapping[str, Keyword], readings: Sequence[Any], names: Sequence[str]) -> tuple[str, Any]:
  """Choose a key of a block and a value for an example."""
  if named := [reading for reading in readings if reading in names]:
    return 'name', named[0]
  for reading in readings:
    for key, keyword in known.items():
      if not (names and key == 'name') and reading is not None and _takes(keyword.annotation, reading):
        return key, reading
  if names:
    return 'name', next(iter(errors.near(str(readings[0]), names)), names[0])
  plain_ones = ((key, known[key].default) for key in known if isinstance(known[key].default, bool | int | float | str))
  single = next((key for key in known if not annotations.parts(known[key].annotation)), next(iter(known)))
  examples = (example for example in _EXAMPLES if _takes(known[single].annotation, example))
  return next(plain_ones, (single, next(examples, _EXAMPLES[-1])))


def _takes(annotation: str, value: Any) -> bool:
  """Return whether an annotation takes a plain value or a known name."""
  named = [part for part in annotations.parts(annotation) if part.form == 'name'] if isinstance(value, str) else []
  with contextlib.suppress(ConfigError):
    plain(value, 'value')  # no number that is not finite
    for part in named:
      _check_name(part.inner, value, 'name')
    return fits(annotation, value)
  return False


def _check_name(kind: str, name: str, label: str) -> None:
  module, _, table = kind.partition(':')
  choices = signatures.table(module, table) if table else signatures.places(kind)
  if choices:
    key = next(part for part in reversed(label.split('.')) if not part.isdigit())  # 'scores' of 'scores.0'
    noun = 'value' if label.endswith(key) else build.singular(key)
    errors.check_choice(label, noun, name, choices, see=LISTED)


def with_inherited(config: Mapping[str, Any]) -> dict[str, Any]:
  """Let evaluations inherit keywords of the training data."""
  data, evaluations = config.get('data'), config.get('eval')
  if not isinstance(data, Mapping) or not isinstance(evaluations, Mapping):
    return dict(config)
  filled = {}
  for name, evaluation in evaluations.items():
    own = evaluation.get('data', {}) if isinstance(evaluation, Mapping) else None
    filled[name] = {**evaluation, 'data': _inherit(own, data)} if isinstance(own, Mapping) else evaluation
  return {**config, 'eval': filled}


def _inherit(block: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
  """Return an evaluation's data block with keywords of the training data.

  The split and the number of examples are not inherited. An evaluation with another source inherits nothing.
  """
  if block.get('name', data.get('name')) != data.get('name'):
    return dict(block)
  return {**{key: value for key, value in data.items() if key not in NOT_INHERITED}, **block}


def plain(value: Any, label: str) -> Any:
  """Convert a value to JSON types, or raise ConfigError."""
  if label.count('.') > files.DEEPEST:
    raise ConfigError(f'{errors.shown(label)}: is nested more than {files.DEEPEST} levels deep, or contains itself.')
  if isinstance(value, Mapping):
    if strange := [key for key in value if not isinstance(key, str)]:
      raise ConfigError(f'{label}: keys are text, not {errors.shown(strange[0])}.')
    return {key: plain(item, f'{label}.{key}') for key, item in value.items()}
  if isinstance(value, list | tuple):
    return [plain(item, f'{label}.{index}') for index, item in enumerate(value)]
  if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
    return value
  raise ConfigError(f'{label}: a config holds finite numbers, text, None, lists and dicts, not {errors.shown(value)}.')


def _name(label: str, what: str, settings: Mapping[str, Any], choices: Collection[str]) -> str:
  if 'name' not in settings:
    raise ConfigError(f'missing key {errors.key_of(label)}.name. Choices: {errors.listed(choices, see=LISTED)}.')
  errors.check_choice(f'{label}.name', what, settings['name'], choices, see=LISTED)
  return settings['name']
