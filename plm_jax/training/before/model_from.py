"""`model.from` in a config: the model, vocabulary and parameters of a folder.

The folder is a Hugging Face folder, a converted checkpoint or a run. Its content is written to the blocks `model`,
`vocab` and `init_from`, so that `config.json` of a run is complete. Mistakes that can be found without jax are found
before it is loaded; only the sizes of a Hugging Face folder need the code of `weights/`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plm_jax import config
from plm_jax.cli import malloc, signals
from plm_jax.config import build, signatures
from plm_jax.config.overrides import apply
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError, stage
from plm_jax.io import checksums, files, model_folders, other_forms
from plm_jax.io.run_paths import RunFolder

if TYPE_CHECKING:
  from plm_jax.text.vocab import Vocab

KEY = 'from'
LABEL = f'model.{KEY}'
RELEASE, IMPORT = 'config.json', files.IMPORT  # the files that say what a folder is
PLACES = ('', 'trunk')  # of `init_from`, that hold the trunk
HEAD = 'head'
# adapters whose heads are read with a folder, and the settings that say how such a head is built
TASKS = ('classify', 'tag', 'choose', 'span')
BUILT = ('hidden', 'activation', 'bias', 'end', 'start')
# overrides that say how a model is trained for a task and not what it is: rates of dropout, what stands for a text
OF_TRAINING = re.compile(r'(.*_)?dropout|pooler')


def expand(
  settings: Mapping[str, Any], changes: Sequence[tuple[str, str]], folder: RunFolder | None
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
  """Return a config and its changes without `model.from`.

  A flag replaces the model of the file. If the folder has the same family, the rates of dropout and the pooler of the
  file remain: they belong to the task. Raises ConfigError: no such folder, one that holds no model or no vocabulary, or
  any other mistake in the config.

  Args:
    settings: as a config file gives them.
    changes: (dotted key, value as text) pairs; those of `model`, `vocab` and `init_from` override the folder.
    folder: of the run: one that has begun keeps what it found then, should the folder be gone.
  """
  model = settings.get('model')
  own = dict(model) if isinstance(model, Mapping) else {}
  # the folder: of a flag, else of the file
  given = [value for key, value in changes if key == f'model.{KEY}']
  rest = [change for change in changes if change[0] != f'model.{KEY}']
  source = given[-1] if given else own.pop(KEY, None)
  if source is None:
    return dict(settings), rest
  if not isinstance(source, str) or not source:
    raise ConfigError(f'{LABEL}={source!r}: name a folder: a release, an import or a run.')
  if (began := _begun(source, folder)) is not None:
    return {**settings, **began}, rest
  from plm_jax.text import tokenizer  # no command loads it without need

  # what the folder has: its tokenizer, then its sizes
  about = _model_json(source)
  block = _vocab_block(source, settings, rest)
  with stage('vocab'):
    vocab = tokenizer.load(block['path'], extra=block.get('extra', ()), roles=block.get('roles'))
  _dry_run(settings, own, vocab.kind, block, rest)
  name, variant, overrides, rows = _sizes(source) if about is None else about
  same_family = own.get('name', name) == name
  if not given and not same_family:
    raise ConfigError(f'{LABEL}={source} is a {name!r}, and model.name={own["name"]!r}: leave the name out.')
  on_top = own.get('overrides', {})
  if given:  # a flag replaces the model of the file
    kept = on_top if same_family and isinstance(on_top, Mapping) else {}
    on_top = {key: value for key, value in kept.items() if OF_TRAINING.fullmatch(key)}
  multiple = _multiple(vocab.size, rows, overrides.get('vocab_multiple', 1))
  overrides = {**overrides, **({} if multiple == 1 else {'vocab_multiple': multiple}), **on_top}
  more = vocab.size > rows
  head = _head_of(source) if _task_of(settings).get('name') in TASKS and _takes_a_head(folder) else {}
  settings = _built_alike(_built_alike(settings, head), _start_of(source, settings, vocab, folder))
  return {
    **settings,
    'model': {'name': name, 'variant': variant, 'overrides': overrides},
    'vocab': {**block, 'name': vocab.kind},
    'init_from': _entries(source, settings, more=more, head=head),
  }, rest


def asked(words: Sequence[str]) -> str | None:
  """Return the folder of `--config.model.from` in a command."""
  flag = f'--config.{LABEL}'
  pairs = zip(words, [*words[1:], ''], strict=True)
  found = [word.removeprefix(f'{flag}=') if word != flag else after for word, after in pairs if word.startswith(flag)]
  return found[-1] if found else None


def _begun(source: str, folder: RunFolder | None) -> dict[str, Any] | None:
  """Return a resumed run's blocks if its source is gone, else None."""
  if files.is_folder(files.path(source)) or folder is None or not files.is_file(folder.config):
    return None
  kept = config.load(str(folder.root))
  return {key: kept[key] for key in ('model', 'vocab', 'init_from') if key in kept}


def _model_json(source: str) -> tuple[str, str, dict[str, Any], int] | None:
  """Return name, variant, overrides and rows of a converted checkpoint or run.

  None for a Hugging Face folder. Raises ConfigError if the folder is none of them, or a release of an unknown kind.
  """
  if problem := other_forms.explain(source):
    raise ConfigError(f'{LABEL}: {problem}')
  path = model_folders.main_folder(files.path(source))
  found = {name: _read(path / name) for name in (RELEASE, IMPORT) if files.is_file(path / name)}
  try:
    if IMPORT in found:
      block, rows = found[IMPORT]['model'], found[IMPORT]['vocab_size']
    elif model_folders.is_published(path):
      _check_release(path, model_folders.config_of(model_folders.base_of(path)).get('model_type'))
      return None
    else:
      block, rows = found[RELEASE]['model'], _read(RunFolder(path).vocab / 'vocab.json')['size']
    if type(rows) is not int or rows < 1:
      raise ConfigError(f'{LABEL}={path}: vocab_size={rows!r} is not valid: import or train it again.')
    return block['name'], block['variant'], dict(block.get('overrides') or {}), rows
  except (KeyError, TypeError, AttributeError):
    raise ConfigError(
      f'{LABEL}={path}: is no release ({RELEASE} with a model_type), no import ({IMPORT}) and no run.'
    ) from None


def _read(file: Path) -> dict[str, Any]:
  try:
    content = checksums.read_json(file, default={})
  except (ValueError, OSError, RecursionError) as error:
    raise ConfigError(f'{LABEL}: {file} cannot be read: {error}.') from error
  return content if isinstance(content, dict) else {}


def _check_release(path: Path, model_type: Any) -> None:
  """Raise ConfigError for an unknown architecture."""
  names = [file.stem for file in files.listing(signatures.ROOT / 'weights' / 'architectures', '[a-z]*.py')]
  types = {one for name in names for one in signatures.literal(f'weights.architectures.{name}', 'MODEL_TYPES') or ()}
  errors.check_choice(f'{LABEL}={path}', 'model_type', model_type, sorted(types), place=RELEASE)


def _sizes(source: str) -> tuple[str, str, dict[str, Any], int]:
  """Return the same as `_model_json` for a Hugging Face folder."""
  signals.check()
  malloc.reuse()  # before jax is loaded
  weights = build.import_file('weights.folders')
  with stage(LABEL):
    model = weights.open(source).model
  signals.check()
  block = json.loads(json.dumps(model.block))  # plain data
  return block['name'], block['variant'], block['overrides'], model.vocab_size


def _takes_a_head(folder: RunFolder | None) -> bool:
  """Return whether a resumed run may have taken the head too."""
  if folder is None or not files.is_file(folder.config):
    return True
  return any(entry.get('to') == HEAD for entry in config.load(str(folder.root)).get('init_from') or ())


def _head_of(source: str) -> Mapping[str, Any]:
  """Return the adapter block that computes a folder's head, or {}."""
  path = files.path(source)
  if files.is_file(path / IMPORT):
    block = _read(path / IMPORT).get('adapter')
  elif model_folders.is_published(model_folders.main_folder(path)):
    weights = build.import_file('weights.folders')
    with stage(LABEL):
      block = weights.open(source).adapter
    signals.check()
  else:
    block = build.unwrapped(_read(path / RELEASE)).get('adapter')
  return block if isinstance(block, Mapping) and block.get('name') in TASKS else {}


def _built_alike(settings: Mapping[str, Any], head: Mapping[str, Any]) -> dict[str, Any]:
  """Fill in the layers of a folder's head in the adapter."""
  if not head or _task_of(settings).get('name') != head['name']:
    return dict(settings)
  built = {name: head[name] for name in BUILT if name in head}

  def inside(block: Mapping[str, Any]) -> dict[str, Any]:
    if block.get('name') == head['name']:
      return {**built, **{key: value for key, value in block.items() if value is not None or key not in built}}
    return {**block, 'inner': inside(block['inner'])}

  return {**settings, 'adapter': inside(settings['adapter'])}


def _start_of(source: str, settings: Mapping[str, Any], vocab: 'Vocab', folder: RunFolder | None) -> Mapping[str, Any]:
  """Return the adapter's `start` that is the folder's decoder_start_token_id.

  It is {} if the settings have one, or the default is the same. A resumed run keeps its own.
  """
  name = _task_of(settings).get('name')
  if not name or 'start' not in signatures.signature('adapters', name) or _task_of(settings).get('start'):
    return {}
  if folder is not None and files.is_file(folder.config):
    start = _task_of(config.load(str(folder.root))).get('start')
  else:
    weights = build.import_file('weights.folders')
    with stage(LABEL):
      token = weights.open(source).token_ids.get('decoder_start_token_id')
    ids = {token_id: role for role, token_id in (('eos', vocab.eos_id), ('bos', vocab.bos_id), ('pad', vocab.pad_id))}
    start = None if token is None else ids.get(token)
  return {'name': name, 'start': start} if start not in (None, 'pad') else {}


def _task_of(settings: Mapping[str, Any]) -> Mapping[str, Any]:
  """Return the adapter inside its wrappers; empty for an objective."""
  return build.unwrapped(settings).get('adapter') or {}


def _vocab_block(source: str, settings: Mapping[str, Any], changes: Sequence[tuple[str, str]]) -> dict[str, Any]:
  """Return the block of the folder's vocabulary with extra tokens."""
  from plm_jax.text import tokenizer

  found = next((str(place) for place in model_folders.tokenizer_places(source) if tokenizer.exists(place)), None)
  block = settings.get('vocab')
  kept = {'extra': block['extra']} if isinstance(block, Mapping) and block.get('extra') else {}
  changed, _ = apply(
    {'vocab': {'name': 'wordpiece', 'path': '', **kept}},
    [change for change in changes if change[0].startswith('vocab.') and change[0] != 'vocab.name'],
  )
  named = changed['vocab'].pop('path') or found
  changed['vocab'].pop('name')
  if named is None:
    raise ConfigError(f'{LABEL}={source}: the folder has no tokenizer: name one with --config.vocab.path=FOLDER.')
  return {'path': named, **changed['vocab']}


def _dry_run(
  settings: Mapping[str, Any], model: dict[str, Any], kind: str, vocab: Mapping[str, Any], changes: Sequence[Any]
) -> None:
  """Check the rest of a config whose model is not known yet."""
  if not {'name', 'variant'} <= model.keys():
    return
  others = [change for change in changes if change[0].partition('.')[0] not in ('model', 'vocab', 'init_from')]
  changed, _ = apply({**settings, 'model': model, 'vocab': {**vocab, 'name': kind}}, others)
  config.resolve(changed)


def _multiple(size: int, rows: int, own: int) -> int:
  """Return the multiple that pads a vocabulary to its table."""
  if size >= rows:
    return own if -(-size // own) * own == rows else 1
  powers = [2**power for power in range(3, 11)]
  return next((one for one in (own, *powers) if -(-size // one) * one == rows), rows)


def _entries(source: str, settings: Mapping[str, Any], *, more: bool, head: Mapping[str, Any]) -> list[dict[str, Any]]:
  """Return `init_from` with the folder's trunk, objective or same adapter's heads."""
  entries = [dict(entry) for entry in settings.get('init_from') or ()]
  is_trunk = [entry.get('to', 'trunk') in PLACES and entry.get('from_', 'trunk') in PLACES for entry in entries]
  task = _task_of(settings)
  part = 'trunk' if task else ''
  first = next((entry for entry, own in zip(entries, is_trunk, strict=True) if own), {'from_': part, 'to': part})
  kept = {key: value for key, value in first.items() if key in ('from_', 'to', 'resize', 'dtype')}
  entry = {'source': source, **kept, **({'resize': 'new_rows'} if more and 'resize' not in kept else {})}
  others = [one for one, own in zip(entries, is_trunk, strict=True) if not own]
  if head and task.get('name') == head['name'] and not any(one.get('to') == HEAD for one in others):
    others.append({'source': source, 'from_': HEAD, 'to': HEAD, 'fitting': True})
  return [*others, entry]
