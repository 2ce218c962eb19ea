"""Which keys of a batch an objective or adapter reads, and which ones a source of data gives, read from source.

Files of `objectives/` and `adapters/` declare `READS`, files of `data/` declare `GIVES`, both names of `types.BATCH`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from plm_jax.config import blocks
from plm_jax.errors import ConfigError
from plm_jax.plugins import annotations, build, signatures

ROLES = {'objective': 'objectives', 'adapter': 'adapters'}


def name_of(entry: str) -> str:
  """The key that an entry of `READS` is about: 'tokens' of 'tokens' and of 'tokens[bkl]'."""
  return entry.partition('[')[0]


def reads(settings: Mapping[str, Any]) -> tuple[str, ...]:
  """The entries of `READS` of the objective or adapter of a complete config, and of the blocks in it."""
  found = (key for _, keys in _readers(settings) for key in keys)
  return tuple(dict.fromkeys(found))


def check(settings: Mapping[str, Any]) -> None:
  """Raises ConfigError where the training data or those of an evaluation do not give what a complete config reads."""
  for where, block in blocks.of_data(settings).items():
    given = gives(block)
    for (folder, name), keys in _readers(settings):
      if given is not None and (missing := [name_of(key) for key in keys if name_of(key) not in given]):
        raise ConfigError(
          f'config.{where}: {build.singular(folder)} {name!r} reads {", ".join(map(name_of, keys))}; '
          f'data {block["name"]!r} does not give {", ".join(missing)}, only {", ".join(given)}. '
          f'{_cure(folder, block["name"], missing)}'
        )


def _readers(settings: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], tuple[str, ...]]]:
  """(folder, name) and `READS` of the objective or adapter, and of those in it."""
  for role, folder in ROLES.items():
    if settings.get(role):
      for kind, block in _blocks(folder, settings[role]):
        if kind in ROLES.values():
          yield (kind, block['name']), _declared(f'{kind}.{block["name"]}', 'READS') or ()


def gives(block: Mapping[str, Any]) -> tuple[str, ...] | None:
  """What every row of a data block may have; None where a file does not say so.

  A mixture gives what each of its parts gives, and what is its own. Files that a keyword names, such as a kind of
  labelled rows, give more.
  """
  own = _declared(f'data.{block["name"]}', 'GIVES')
  parts = [gives(inner) for kind, inner in _blocks('data', block)[1:] if kind == 'data']
  if own is None or None in parts:
    return None
  more = [key for module in blocks.named_files('data', block) for key in _declared(module, 'GIVES') or ()]
  shared = [key for key in parts[0] or () if all(key in (part or ()) for part in parts)] if parts else []
  return tuple(dict.fromkeys([*own, *more, *shared]))


def _blocks(kind: str, settings: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
  """A block and all blocks in it, each with its kind."""
  found = [(kind if ':' in kind else signatures.folder_of(kind, settings['name']), settings)]

  def collect(part: annotations.Part, value: Any, label: str) -> Any:
    del label
    found.extend(_blocks(part.inner, value) if part.form == 'block' else ())
    return value

  for key, keyword in blocks.block(kind, settings, kind).known.items():
    annotations.rebuild(keyword.annotation, settings.get(key), collect, key)
  return found


def _cure(folder: str, source: str, missing: list[str]) -> str:
  """Which sources would do for the objective or adapter, and which of these the source would do for."""
  sources = [how for name in signatures.names('data') for how, keys in _ways(name) if set(missing) <= keys]
  can_give = {key for _, keys in _ways(source) for key in keys}
  fits = {name: _declared(f'{folder}.{name}', 'READS') for name in signatures.names(folder)}
  served = [name for name, keys in fits.items() if keys is not None and set(map(name_of, keys)) <= can_give]
  noun = build.singular(folder)
  return (
    f'Sources that give it (data.name): {", ".join(sources) or "none"}. '
    f'What {source!r} can serve ({noun}.name): {", ".join(served) or "none"}.'
  )


def _ways(source: str) -> list[tuple[str, set[str]]]:
  """How to name a file of `data/`, with each file that its keywords can name, and what it then gives."""
  own = set(_declared(f'data.{source}', 'GIVES') or ())
  ways = [
    (f'{source} with {key}={name!r}', own | set(_declared(file, 'GIVES') or ()))
    for key, keyword in signatures.signature('data', source).items()
    for part in annotations.parts(keyword.annotation)
    if part.form == 'name'
    for name, file in signatures.places(part.inner).items()
    if _declared(file, 'GIVES')
  ]
  return ways or [(source, own)]


def _declared(module: str, name: str) -> tuple[str, ...] | None:
  return signatures.literal(module, name)
