"""`--config=file.py:quick`: every block of a config at the size of a smoke test.

A plug-in file states what shrinks it as a literal, `QUICK = dict(length=64, batch_size=8)`: keywords of its `make` that
replace those of the config. A file that is named by a keyword, such as a kind of labelled rows, states keywords of the
block that names it. Every file of `models/` has a size 'tiny'. What is not of one file, such as the number of steps and
the vocabulary, is left to the config.
"""

from collections.abc import Collection, Mapping
from typing import Any

from plm_jax.config import annotations, blocks, signatures
from plm_jax.core.errors import ConfigError


def shrink(config: Mapping[str, Any]) -> dict[str, Any]:
  """The config with the `QUICK` of every file that it names, those of blocks inside blocks included."""
  return _shrink(blocks.WHOLE, config)


def _shrink(kind: str, settings: Mapping[str, Any], *, around: Collection[str] = ()) -> dict[str, Any]:
  """A block with the `QUICK` of its file; keywords `around` are those of the mixture that the block is in."""
  try:
    known = blocks.block(kind, settings, 'config').known
  except ConfigError:  # it is reported where the config is checked
    return dict(settings)
  around = around if kind == 'data' else ()
  smaller = {**settings, **{key: value for key, value in _literal(kind, settings).items() if key not in around}}
  if kind == 'models':  # sizes become those of 'tiny'; the choices of structure are the overrides that are text
    overrides = settings.get('overrides') or {}
    smaller |= {'variant': 'tiny', 'overrides': {key: value for key, value in overrides.items() if type(value) is str}}

  def inside(part: annotations.Part, value: Any, label: str) -> Any:
    del label
    return _shrink(part.inner, value, around=known) if part.form == 'block' else value

  for key, keyword in known.items():
    value = smaller.get(key, keyword.default)
    changed = annotations.rebuild(keyword.annotation, value, inside, key)
    if changed != value:
      smaller[key] = changed
  return smaller


def _literal(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
  """The `QUICK` of the files that a block names: those of keywords such as `kind` first, then that of the block."""
  if ':' in kind:
    return {}
  found: dict[str, Any] = {}
  for module in (*blocks.named_files(kind, settings), signatures.places(kind)[settings['name']]):
    found |= signatures.literal(module, 'QUICK') or {}
  return found
