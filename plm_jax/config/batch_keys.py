"""Keys of a batch that an objective or adapter reads, and keys that a data source gives.

Files of `objectives/` and `adapters/` declare `READS`, files of `data/` declare `GIVES`, both with names of `BATCH`.
`READS_WITH` adds keys if a setting is given, or removes them: {'several': ('classes', '-label')}. `MAY_READ` are keys
that a source may leave out. All are read from source.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from plm_jax.config import annotations, blocks, build, signatures
from plm_jax.config.signatures import literal
from plm_jax.core.errors import ConfigError

ROLES = {'objective': 'objectives', 'adapter': 'adapters'}


def name_of(entry: str) -> str:
  """Return the key of an entry of `READS`: 'tokens' of 'tokens[bkl]'."""
  return entry.partition('[')[0]


def reads(settings: Mapping[str, Any]) -> tuple[str, ...]:
  """Return the `READS` of a complete config, with those of inner blocks."""
  found = (key for _, keys in _readers(settings) for key in keys)
  return tuple(dict.fromkeys(found))


def check(settings: Mapping[str, Any]) -> None:
  """Raise ConfigError if a data source lacks keys that a config reads."""
  for where, block in blocks.of_data(settings).items():
    task = blocks.own_task(settings, where)
    for role, folder in {} if task else ROLES.items():
      if settings.get(role):
        _check(folder, settings[role], block, where=where)
    if task:
      _check(signatures.folder_of('adapters | objectives', task['name']), task, block, where=where)


def _check(folder: str, reader: Mapping[str, Any], block: Mapping[str, Any], *, where: str) -> None:
  """Check an objective or adapter, part by part, and a data block."""
  given: tuple[str, ...] | None = gives(block)
  own: dict[str, Any] = {}
  inside = [(kind, inner) for kind, inner in blocks_in(folder, reader) if kind in ROLES.values()]
  if _joins(block):
    parts = {name: part for _, inner in inside for name, part in (inner.get('parts') or {}).items()}
    own = {name: part for name, part in parts.items() if name in block['parts']}
  for name, part in own.items():
    part_folder = signatures.folder_of('adapters | objectives', part['name'])
    _check(part_folder, part, block['parts'][name], where=f'{where}.parts.{name}')
  for kind, inner in inside:
    keys = _read_by(kind, inner)
    missing = [name_of(key) for key in keys if given is not None and name_of(key) not in given]
    if missing:
      raise ConfigError(
        f'{where}: {build.singular(kind)} {inner["name"]!r} reads {", ".join(map(name_of, keys))}; '
        f'data {block["name"]!r} does not give {", ".join(missing)}, only {", ".join(given or ())}. '
        f'{_setting(kind, inner, given or ())}{_fix(kind, block["name"], missing)}'
      )
    if keys:
      _check_windows(kind, inner, block, where=where)
    may_read = literal(f'{kind}.{inner["name"]}', 'MAY_READ') or ()
    if keys and block.get('stride') and 'overlap' in (given or ()) and 'overlap' not in may_read:
      raise ConfigError(
        f'{where}.stride={block["stride"]}: {build.singular(kind)} {inner["name"]!r} would score tokens of two '
        'sequences twice: remove it'
      )
    places = {where: block} if own else _sources(block, where)
    for place, source in places.items() if keys else ():
      if source.get('segmenter'):
        _check_words(kind, inner, source['segmenter'], where=place)


def _sources(block: Mapping[str, Any], where: str) -> dict[str, Mapping[str, Any]]:
  """Return a data block, or the sources that it mixes, by place."""
  if 'parts' not in block:
    return {where: block}
  parts = [_sources(part, f'{where}.parts.{name}') for name, part in block['parts'].items()]
  return {place: source for part in parts for place, source in part.items()}


def _check_windows(kind: str, inner: Mapping[str, Any], block: Mapping[str, Any], *, where: str) -> None:
  """Raise ConfigError if only one of data and task has windows."""
  role, windows, pool = build.singular(kind), block.get('windows'), inner.get('pool_windows')
  if windows is not None and 'pool_windows' not in signatures.signature(kind, inner['name']):
    raise ConfigError(f'{where}.windows={windows}: {role} {inner["name"]!r} reads texts without windows: remove it')
  if (windows is None) != (pool is None):
    lacking = f"{role}.pool_windows='mean' or 'max'" if pool is None else f'{where}.windows, such as 4'
    given = f'{where}.windows={windows}' if pool is None else f'{role}.pool_windows={pool!r}'
    raise ConfigError(f'{given}: also set {lacking}, or remove it')


def _check_words(kind: str, inner: Mapping[str, Any], segmenter: str, *, where: str) -> None:
  """Raise ConfigError if a task ignores the words of a segmenter."""
  problem, blocks = f'{where}.segmenter={segmenter!r} marks words', (inner, *(inner.get('denoisers') or ()))
  noises = [each.get('where') or {'name': 'whole_word'} for each in blocks if each is inner or each.get('where')]
  if 'word_marks' not in (literal(f'{kind}.{inner["name"]}', 'MAY_READ') or ()):
    users = [name for name in signatures.names(kind) if 'word_marks' in (literal(f'{kind}.{name}', 'MAY_READ') or ())]
    raise ConfigError(
      f'{problem}, but {build.singular(kind)} {inner["name"]!r} does not read them: remove it, or choose '
      f'{", ".join(users) or "objective mlm"}'
    )
  whole = signatures.functions('noise.where.whole_words')
  if not any(noise['name'] in whole or noise.get('units') == 'words' for noise in noises):
    raise ConfigError(
      f"{problem}, but where {noises[0]['name']!r} chooses tokens: set objective.where.name='whole_word', or remove it"
    )


def _setting(kind: str, inner: Mapping[str, Any], given: tuple[str, ...]) -> str:
  """Return the setting with which a task reads only given keys."""
  for key in literal(f'{kind}.{inner["name"]}', 'READS_WITH') or {}:
    if set(map(name_of, _read_by(kind, {**inner, key: True}))) <= set(given):
      return f'Set {build.singular(kind)}.{key}. '
  return ''


def _readers(settings: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], tuple[str, ...]]]:
  """Yield ((folder, name), `READS`) of a task and of inner ones."""
  for role, folder in ROLES.items():
    if settings.get(role):
      for kind, block in blocks_in(folder, settings[role]):
        if kind in ROLES.values():
          yield (kind, block['name']), _read_by(kind, block)


def _read_by(kind: str, block: Mapping[str, Any]) -> tuple[str, ...]:
  """Return the `READS` of a task, with those that its settings add."""
  place = f'{kind}.{block["name"]}'
  more = literal(place, 'READS_WITH') or {}
  added = [key for setting, keys in more.items() if block.get(setting) for key in keys]
  return tuple(key for key in (*(literal(place, 'READS') or ()), *added) if f'-{key}' not in added and key[0] != '-')


def gives(block: Mapping[str, Any]) -> tuple[str, ...] | None:
  """Return the keys that every example of a data block may have.

  None if a file does not declare them. A mixture gives what each of its parts gives, or what any gives if its `UNION`
  says so, and its own keys. Files that a keyword names, such as a kind of labelled examples, give more.
  """
  own = literal(f'data.{block["name"]}', 'GIVES')
  parts = [gives(inner) for kind, inner in blocks_in('data', block)[1:] if kind == 'data']
  if own is None or None in parts:
    return None
  more = [key for module in blocks.named_files('data', block) for key in literal(module, 'GIVES') or ()]
  every = [key for part in parts for key in part or ()]
  shared = [key for key in every if _joins(block) or all(key in (part or ()) for part in parts)]
  return tuple(dict.fromkeys([*own, *more, *shared]))


def _joins(block: Mapping[str, Any]) -> bool:
  """Return True if batches have the keys of every part (`UNION`)."""
  settings = literal(f'data.{block["name"]}', 'UNION')
  return settings is not None and all(block.get(key) == value for key, value in settings.items())


def blocks_in(kind: str, settings: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
  """Yield a block and all blocks in it, each with its kind."""
  found = [(kind if ':' in kind else signatures.folder_of(kind, settings['name']), settings)]

  def collect(part: annotations.Part, value: Any, label: str) -> Any:
    found.extend(blocks_in(part.inner, value) if part.form == 'block' else ())
    return value

  for key, keyword in blocks.block(kind, settings, kind).known.items():
    annotations.rebuild(keyword.annotation, settings.get(key), collect, key)
  return found


def _fix(folder: str, source: str, missing: list[str]) -> str:
  """Return sources that fit the task, and tasks that fit the source."""
  sources = [how for name in signatures.names('data') for how, keys in _ways(name) if set(missing) <= keys]
  can_give = {key for _, keys in _ways(source) for key in keys}
  fits = {name: literal(f'{folder}.{name}', 'READS') for name in signatures.names(folder)}
  served = [name for name, keys in fits.items() if keys is not None and set(map(name_of, keys)) <= can_give]
  noun = build.singular(folder)
  return (
    f'Sources that give it (data.name): {", ".join(sources) or "none"}. '
    f'What {source!r} can serve ({noun}.name): {", ".join(served) or "none"}.'
  )


def _ways(source: str) -> list[tuple[str, set[str]]]:
  """Yield how to name a source, with the keys it gives."""
  own = set(literal(f'data.{source}', 'GIVES') or ())
  ways = [
    (f'{source} with {key}={name!r}', own | set(literal(file, 'GIVES') or ()))
    for key, keyword in signatures.signature('data', source).items()
    for part in annotations.parts(keyword.annotation)
    if part.form == 'name'
    for name, file in signatures.places(part.inner).items()
    if literal(file, 'GIVES')
  ]
  return ways or [(source, own)]
