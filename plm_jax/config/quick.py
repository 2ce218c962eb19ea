"""Smoke-test sizes for every block of a config (`--config=file.py:quick`).

A plug-in file states them as a literal, `QUICK = dict(length=64, batch_size=8)`: keywords of its `make` that replace
those of the config. A file that a keyword names, such as a kind of labelled examples, states keywords of the block that
names it. Every file of `models/` has a size 'tiny'. Other keys, such as the number of steps and the vocabulary, are
left to the config.
"""

from collections.abc import Collection, Mapping
from typing import Any

from plm_jax.config import annotations, blocks, signatures
from plm_jax.core.errors import ConfigError


def shrink(config: Mapping[str, Any]) -> dict[str, Any]:
  """Apply the `QUICK` of every file that a config names."""
  return _shrink(blocks.WHOLE, config)


def _shrink(kind: str, settings: Mapping[str, Any], *, around: Collection[str] = ()) -> dict[str, Any]:
  """Apply a block file's `QUICK`, except keywords of the mixture around it."""
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
    return _shrink(part.inner, value, around=known) if part.form == 'block' else value

  for key, keyword in known.items():
    value = smaller.get(key, keyword.default)
    changed = annotations.rebuild(keyword.annotation, value, inside, key)
    if changed != value:
      smaller[key] = changed
  return smaller


def _literal(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
  """Collect the `QUICK` of the files that a block names."""
  if ':' in kind:
    return {}
  found: dict[str, Any] = {}
  for module in (*blocks.named_files(kind, settings), signatures.places(kind)[settings['name']]):
    found |= signatures.literal(module, 'QUICK') or {}
  return found
