"""The parts of a run, built from its settings: vocabulary, trunk, task and data sources.

Settings are the plain dict that `config.resolve` returns and `config.json` stores. They stop here: the parts take
keywords.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import flax.linen as nn

from plm_jax import config, optim
from plm_jax.cli import signals
from plm_jax.config import annotations, build, signatures
from plm_jax.core import errors, sharding
from plm_jax.core.batch import BATCH, axes_of
from plm_jax.core.errors import ConfigError
from plm_jax.core.sharding import Layout
from plm_jax.core.types import Execution, Labels, PyTree, Source, Task, Template, Vocab
from plm_jax.io import downloads, files
from plm_jax.io.run_paths import RunFolder
from plm_jax.layers import positions
from plm_jax.runs import history
from plm_jax.text import recipe, tokenizer

log = logging.getLogger(__name__)

Settings = Mapping[str, Any]


class Parts(NamedTuple):
  """A vocabulary, a trunk and the task on it."""

  vocab: Vocab
  trunk: nn.Module  # a `trunk.Trunk`, without a head
  task: Task  # the objective or the adapter on the trunk
  user: str  # what the task is called in messages, such as "objective 'mlm'"
  reads: tuple[str, ...]  # the keys of a batch that the task reads
  # of the texts that are read, or of those that are written (`reads_second`), where `vocab` is not of both; else None
  second_vocab: Vocab | None = None
  others: 'Mapping[str, Parts]' = MappingProxyType({})  # name -> the parts of an evaluation with its own task

  def of(self, name: str) -> 'Parts':
    """Return the parts of an evaluation."""
    return self.others.get(name, self)

  def at(self, where: str) -> 'Parts':
    """Return the parts of a data block, 'data' or 'eval.NAME.data'."""
    return self.of(where.removeprefix('eval.').removesuffix('.data'))


def make_vocab(settings: Settings, folder: RunFolder | None = None) -> Vocab:
  """Load the vocabulary of the run folder or of the settings.

  Raises ConfigError: the two differ. A run keeps the ids that it began with.
  """
  kept_in = None if folder is None else folder.vocab
  return _kept_or_made('vocab', settings['vocab'], kept_in, settings)


def make_second_vocab(settings: Settings, folder: RunFolder | None = None) -> Vocab | None:
  """Load the second vocabulary, like `make_vocab`; None if the settings name none."""
  block = settings.get('second_vocab')
  kept_in = None if folder is None else folder.second_vocab
  return None if block is None else _kept_or_made('second_vocab', block, kept_in, settings)


def missing_vocab(settings: Settings, name: str = 'vocab', *, heads: Sequence[str] = ()) -> str:
  """Return how to make a missing local vocabulary, '' for others (`recipe.fix_of`)."""
  block = settings.get(name) or {}
  if 'path' not in block or files.is_address(block['path']) or tokenizer.exists(block['path']):
    return ''
  return f'{name}.path: there is no vocabulary in {block["path"]}. {recipe.fix_of(settings, name, heads=heads)}'


def _cache_of(block: Settings) -> str:
  """Return the cache of a data block, or of its first part."""
  return block['cache'] if 'cache' in block else _cache_of(next(iter(block['parts'].values())))


def _kept_or_made(name: str, block: Settings, kept_in: Path | None, settings: Settings) -> Vocab:
  """Load a vocabulary, and compare it with the run folder's."""

  def made() -> Vocab:
    if 'path' not in block or not files.is_address(block['path']):
      if lacking := missing_vocab(settings, name):
        raise FileNotFoundError(lacking)
      return build.make('text', block)
    copy = downloads.fetched(block['path'], _cache_of(settings['data']))
    return build.make('text', {**block, 'path': str(copy)})

  with errors.stage(name):
    if kept_in is None or not tokenizer.exists(kept_in):
      return made()
    kept = tokenizer.load(kept_in)
    try:
      asked = made()
    except FileNotFoundError:
      return kept
  if not tokenizer.same(asked, kept):
    raise ConfigError(
      f'{name}: {kept_in.parent} was begun with vocabulary {kept.digest[:12]}, and {block["path"]} holds '
      f'{asked.digest[:12]} now: name another --workdir, or put back what was there ({kept_in} has a copy)'
    )
  return kept


def make_parts(settings: Settings, vocab: Vocab, folder: RunFolder | None = None) -> Parts:
  """Build the trunk and its task.

  The second vocabulary comes from the run folder if it has one. Raises ConfigError: the trunk cannot serve the
  objective, or examples are longer than its learned positions. Neither data nor parameters exist yet.
  """
  execution = Execution(**settings['execution'])
  with errors.stage('model'):
    trunk = build.make('models', settings['model'], vocab_size=vocab.size, execution=execution)
  return parts_of(trunk, settings, vocab, folder)


def make_layout(settings: Settings, devices: Sequence[Any] | None = None, *, described: bool = False) -> Layout:
  """Build the mesh and the sharding rules of the settings.

  Raises ConfigError: the mesh does not fit the devices, or there are no such rules.

  Args:
    devices: to place it on; None takes those of this process's backend.
    described: they are descriptions of devices (`sharding.Layout`).
  """
  block = settings['sharding']
  with errors.stage('sharding'):
    mesh = sharding.make_mesh(block['mesh'], devices)
    return sharding.make_layout(mesh, block['rules'], described=described)


def make_template(settings: Settings, vocab: Vocab) -> Template | None:
  """Return the special tokens around texts, None if examples have several forms."""
  rows, settings = build.template('data', settings['data'], vocab=vocab), build.unwrapped(settings)
  own = settings.get('objective') and build.template('objectives', settings['objective'], vocab=vocab, rows=rows)
  return own or rows


def reads_second(settings: Settings) -> bool:
  """Return whether texts are read in the second vocabulary."""
  if not settings.get('second_vocab'):
    return False
  parts = settings['data'].get('parts', {'': settings['data']}).values()
  return not any(block.get('second') == 'targets' for block in parts)


def parts_of(
  trunk: nn.Module, settings: Settings, vocab: Vocab, folder: RunFolder | None = None, **offered: Any
) -> Parts:
  """Build the task on an existing trunk; raises like `make_parts`.

  `offered` has keywords for a task that takes them, such as `heads`.
  """
  role = 'objective' if settings.get('objective') else 'adapter'
  second = make_second_vocab(settings, folder)
  with errors.stage(role):
    offered |= {'second_vocab': second}
    task = build.make(f'{role}s', settings[role], trunk=trunk, vocab=vocab, offered=offered)
  if task.couples_rows and settings['accumulate'] > 1:
    raise ConfigError(
      f'accumulate={settings["accumulate"]}: {role} {settings[role]["name"]!r} couples the rows of a batch, '
      'so that it cannot be cut: set accumulate=1'
    )
  if task.keeps and settings['data']['batch_size'] == 1:
    raise ConfigError(
      f'data.batch_size=1: {role} {settings[role]["name"]!r} has norms over the rows of a batch, and one row has no '
      'variance: take more rows, or another norm'
    )
  for where, block in config.of_data(settings).items():
    if not config.own_task(settings, where):
      check_length(trunk, task.row_length(block['length']), where=where)
  reads = _with_characters(config.reads(settings), trunk)
  return Parts(vocab, trunk, task, f'{role} {settings[role]["name"]!r}', reads, second)


def _with_characters(reads: tuple[str, ...], trunk: nn.Module) -> tuple[str, ...]:
  """Add the characters of tokens if the trunk reads words by them."""
  if 'characters' not in trunk.INPUTS or 'characters' in reads:
    return reads
  axes = dict(map(axes_of, reads)).get('tokens', BATCH['tokens'].axes)
  return (*reads, f'characters[{axes}c]')


def check_length(trunk: nn.Module, length: int, *, where: str) -> None:
  """Raise ConfigError if examples are longer than learned positions."""
  if tables := trunk.position_rows.values():
    with errors.stage(where):
      positions.check_length(length, max_length=min(map(len, tables)), model=type(trunk).__name__)


def make_source(
  block: Settings,
  vocab: Vocab,
  *,
  seed: int,
  share: tuple[int, int] = (0, 1),
  reader: Parts | None = None,
  second_vocab: Vocab | None = None,
  where: str = 'data',
) -> Source:
  """Build the data source of a data block.

  Raises ConfigError: the rows have no key that the task of `reader` reads, or labels that it has no class for.

  Args:
    block: `data` of the settings, or that of an evaluation.
    seed: of the order of the rows.
    share: which part of each batch, of how many equal ones; see `feed.host_share`.
    reader: what will read the rows; None for nothing in particular.
    second_vocab: of the run; None takes that of the reader, if any.
    where: what messages call the block.
  """
  host, hosts = share
  spelt = reader is not None and 'characters' in dict(map(axes_of, reader.reads))
  offered: dict[str, Any] = {
    'second_vocab': second_vocab or (reader and reader.second_vocab),
    'characters': spelt or None,
  }
  offered['sequences'] = reader and reader.task.sentences
  with errors.stage(where), signals.raising():
    source = build.make('data', block, offered=offered, vocab=vocab, seed=seed, host=host, hosts=hosts)
  if reader is not None:
    check_keys(reader, source, block, where=where)
    with errors.stage(where):
      check_labels(reader.task, source, path=block.get('path', block['name']))
  return source


def make_evaluations(
  settings: Settings,
  vocab: Vocab,
  *,
  share: tuple[int, int] = (0, 1),
  reader: Parts,
  names: Collection[str] | None = None,
) -> dict[str, Source]:
  """Build the sources of evaluations; raises like `make_source`."""
  return {
    name: make_source(
      settings['eval'][name]['data'],
      vocab,
      seed=settings['seed'],
      share=share,
      reader=reader.of(name),
      where=f'eval.{name}.data',
    )
    for name in (settings['eval'] if names is None else names)
  }


def fit(parts: Parts, sources: Iterable[Source]) -> Parts:
  """Return parts whose task has room for all documents of an example."""
  if parts.task.for_documents is None:
    return parts
  with errors.stage(parts.user):
    return parts._replace(task=parts.task.for_documents(max((source.documents for source in sources), default=1)))


def check_rows(parts: Parts, sources: Mapping[str, Source]) -> None:
  """Raise ConfigError if a task cannot use a first batch."""
  for where, source in sources.items():
    task = parts.at(where).task
    if task.check is not None:
      with errors.stage(where):
        task.check(next(source.read(0)))


def check_keys(reader: Parts, source: Source, block: Settings, *, where: str) -> None:
  """Raise ConfigError if batches lack a key that the task reads.

  A config is rejected for the same reason if its data source can never give a key (`config/batch_keys.py`). What a
  source gives may also depend on its settings and its data.
  """
  expected = dict(map(axes_of, reader.reads))
  missing = [key for key in expected if key not in source.spec]
  if missing:
    role = reader.user.partition(' ')[0]
    raise ConfigError(
      f'{where}: {reader.user} reads {", ".join(expected)}; data {block["name"]!r} does not give '
      f'{", ".join(missing)}, only {", ".join(source.spec)}. Set {_settings_that_give(missing, block, where=where)} to '
      f'one that gives it, or {role}.name to one that needs no {", ".join(missing)}'
    )
  for name, axes in expected.items():
    shape = source.spec[name].shape
    if len(shape) != len(axes):
      raise ConfigError(
        f'{where}: {reader.user} reads {name} with axes [{", ".join(axes)}], and data {block["name"]!r} gives '
        f'the shape {shape}: choose another {where}.kind or {reader.user.partition(" ")[0]}.name'
      )


def _settings_that_give(keys: Collection[str], block: Settings, *, where: str) -> str:
  """Return settings that give `keys`, such as "data.kind ('words')", or the block."""
  found = []
  for setting, keyword in signatures.signature('data', block['name']).items():
    named = annotations.part(keyword.annotation, block.get(setting))
    if named is not None and named.form == 'name':
      known = signatures.files_of(named.inner)
      gives = {file: set(signatures.literal(file, 'GIVES') or ()) for file in known}
      giving = [file for file in known if set(keys) <= gives[file]]
      # no more than asked
      giving = [file for file in giving if not any(gives[other] < gives[file] for other in giving)]
      if giving:
        found.append(f'{where}.{setting} ({", ".join(repr(file.rpartition(".")[2]) for file in giving)})')
  return ' or '.join(found) or f'{where}.name'


def make_optimiser(settings: Settings, params: PyTree, task: Task, steps: int | None = None) -> optim.Optimiser:
  """Build the optimiser of a task, for a schedule of `steps`."""
  with errors.stage('optim'):
    steps = steps or settings['steps'] or history.MOST_STEPS
    return optim.make(params=params, steps=steps, trains=task.trains, **settings['optim'])


def check_labels(task: Task, source: Source | Labels, *, path: str) -> None:
  """Raise ValueError if labels do not fit the task."""
  if task.parts and set(task.parts) != set(source.parts):
    found = f'has the parts {", ".join(sorted(source.parts))}' if source.parts else 'has no parts'
    raise ValueError(
      f'the task trains the parts {", ".join(task.parts)}, each on its own rows, and {path} {found}: name the same '
      "parts in data.name='mixture' with data.per='step'"
    )
  for name, part in task.parts.items():
    with errors.part(name):
      check_labels(part, source.parts[name], path=f'{path}, part {name!r}')
  for name, labels in source.mixed.items() if isinstance(source, Labels) else ():
    check_labels(task, labels, path=f'{path}, part {name!r}')
  if 0 < task.classes < source.classes:
    where = f' in {source.largest}' if isinstance(source, Labels) and source.largest else ''
    raise ValueError(
      f'labels of {path} reach {source.classes - 1}{where}, and the adapter has {task.classes} classes, 0 to '
      f'{task.classes - 1}: give it more (adapter.classes, adapter.tags or adapter.relations, whichever it has)'
    )
  if task.class_names and source.names and task.class_names != source.names:
    raise ValueError(
      f'labels of {path} are {source.names}, in this order, and adapter.tags={task.class_names} (of a parser, '
      'adapter.relations)'
    )


def check_names(names: Mapping[str, Source | Labels]) -> None:
  """Raise ValueError if two sources order the same classes differently.

  Args:
    names: place in the config, such as 'data' and 'eval.test.data' -> labels; the first is the training data.
  """
  (first, training), *others = names.items()
  for where, source in others:
    for part in training.parts:
      if part in source.parts:
        check_names({f'{first}.parts.{part}': training.parts[part], f'{where}.parts.{part}': source.parts[part]})
    if source.places or training.places:
      continue
    if source.classes and training.classes and bool(source.names) != bool(training.names):
      named, numbered = (where, first) if source.names else (first, where)
      raise ValueError(
        f'{named} names its classes ({", ".join(source.names or training.names)}), and {numbered} numbers them, which '
        'may be another order: put a labels.json with one list beside both, as {"label": ["no", "yes"]}'
      )
    if source.names != training.names and set(source.names) & set(training.names):
      raise ValueError(
        f'{where}: its classes are {", ".join(source.names)}, and those of {first} are {", ".join(training.names)}, so '
        'that their numbers mean others: put a labels.json with one list beside both, as {"label": ["no", "yes"]}'
      )
