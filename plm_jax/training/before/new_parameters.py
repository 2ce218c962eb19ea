"""Parameters of a frozen trunk that no source of `init_from` has, such as the pooler of a masked language model.

Wrappers (`lora`, `prefix`, `bottleneck`) freeze the trunk. A parameter that nothing has trained would stay random, as
would the rows of new tokens. So `with_new` adds it, or their table, to `adapter.trained`, which `config.json` stores.
"""

import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any

from plm_jax import weights
from plm_jax.checkpoint import fit
from plm_jax.checkpoint.init_from import Entry, join
from plm_jax.config import signatures
from plm_jax.core.param_paths import flat, virtual_paths
from plm_jax.core.types import Vocab
from plm_jax.training.before import preflight
from plm_jax.training.init_sources import check_sources, has_new_tokens
from plm_jax.training.parts import make_parts, make_vocab
from plm_jax.weights import word_vectors

log = logging.getLogger(__name__)

Settings = Mapping[str, Any]


def with_new(settings: Settings, kept: Settings) -> dict[str, Any]:
  """Add the new parameters of a frozen trunk to `adapter.trained`.

  Those in `kept`, with which a run began, decide. Raises ConfigError: a source of `init_from` does not exist.
  """
  adapter = settings['adapter'] or {}
  if not (
    adapter.get('trained') and settings['init_from'] and signatures.literal(f'adapters.{adapter["name"]}', 'ADDS')
  ):
    return dict(settings)
  trained = list(adapter['trained'])
  if kept:
    before = list((kept.get('adapter') or {}).get('trained') or ())
    added = before[len(trained) :] if before[: len(trained)] == trained else []
  else:
    added = _new(settings, trained)
    if added:
      log.warning(f'init_from has no {", ".join(added)}: new and random, so adapter.trained includes them')
  return {**settings, 'adapter': {**adapter, 'trained': [*trained, *added]}}


def _new(settings: Settings, trained: list[str]) -> list[str]:
  """List frozen parameters of the trunk that no source has."""
  check_sources(settings['init_from'])
  parts = make_parts(settings, make_vocab(settings))
  here = flat(preflight.abstract_parameters(settings, parts))
  restored = {path for fields in settings['init_from'] for path in _paths(Entry.read(fields), here, parts.vocab)}
  wholes = {part for whole, pair in weights.SUMS.items() if whole in restored for part in pair}
  fixed, found = {f'trunk/{name}' for name in getattr(parts.trunk, 'FIXED', ())}, []
  for path, leaf in here.items():
    if not path.startswith('trunk/') or path in restored | wholes | fixed:
      continue
    found += [one for one in virtual_paths(path, leaf) if not any(re.fullmatch(pattern, one) for pattern in trained)]
  return found


def _paths(entry: Entry, here: Mapping[str, Any], vocab: Vocab) -> Iterator[str]:
  """Yield the paths of this model that an entry fills whole."""
  if word_vectors.is_vectors(entry.source):
    if not entry.fresh_zeros:
      yield join(entry.to, 'table')
    return
  below = entry.from_ and f'{entry.from_}/'
  leaves = weights.open(entry.source, step=entry.step).params.with_sums(weights.SUMS).items()
  shapes = {
    join(entry.to, path.removeprefix(entry.from_).removeprefix('/')): leaf.shape
    for path, leaf in leaves
    if path == entry.from_ or path.startswith(below)
  }
  if entry.fitting and any(path in here and here[path].shape != shape for path, shape in shapes.items()):
    return  # left out
  for path, shape in shapes.items():
    if path.endswith(fit.TOKEN_TABLE):
      is_whole = not has_new_tokens(entry, vocab, rows=shape[0])
    else:
      is_whole = path not in here or fit.longer_vocabulary(path, shape, here[path].shape) is None
    if is_whole:
      yield path
