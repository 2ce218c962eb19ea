"""Lower bounds of the memory of a run, from shapes alone, against the memory that is free."""

import contextlib
import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax

from plm_jax import optim
from plm_jax.core import sharding
from plm_jax.core.errors import ConfigError, lacking
from plm_jax.core.param_paths import path_name
from plm_jax.core.sharding import Layout
from plm_jax.core.trunk import Attends
from plm_jax.io import files
from plm_jax.training.step import TrainState

_CONTROL_GROUPS = (  # the limit of a container and what counts against it: version 2, version 1
  ('/sys/fs/cgroup/memory.max', '/sys/fs/cgroup/memory.stat', 'anon'),
  ('/sys/fs/cgroup/memory/memory.limit_in_bytes', '/sys/fs/cgroup/memory/memory.stat', 'rss'),
)


class Leaf(NamedTuple):
  """An array of a tree: its part ('parameters'), path, shape, and bytes on one device."""

  part: str
  path: str
  shape: tuple[int, ...]
  bytes: int


class Free(NamedTuple):
  """Free bytes of the host and of each device; None if unknown."""

  host: int | None
  device: int | None


def free(devices: Iterable[jax.Device]) -> Free:
  """Return free memory of this host and of devices, None on CPUs."""
  stats = [device.memory_stats() or {} for device in devices]
  limits = [one['bytes_limit'] for one in stats if 'bytes_limit' in one]
  known = [room for room in (_of_machine(), _of_control_group()) if room is not None]
  return Free(min(known, default=None), min(limits, default=None))


def in_use(devices: Sequence[jax.Device]) -> dict[str, float]:
  """Return GiB in use by the fullest device and by this process.

  Returns 'device_memory_gib' and 'device_memory_peak_gib' where devices have a memory of their own that they tell of;
  'host_memory_gib' where the system has /proc.
  """
  found = {}
  for name, key in (('device_memory_gib', 'bytes_in_use'), ('device_memory_peak_gib', 'peak_bytes_in_use')):
    known = [stats[key] for device in devices if key in (stats := device.memory_stats() or {})]
    if known:
      found[name] = max(known) / 2**30
  if resident := re.search(r'^VmRSS:\s+(\d+) kB', _read('/proc/self/status'), re.MULTILINE):
    found['host_memory_gib'] = int(resident[1]) / 2**20
  return found


def leaves(state: TrainState, tx: optim.Optimiser, batch: Mapping[str, Any], *, layout: Layout) -> list[Leaf]:
  """List every array of an update except activations.

  `state` has shapes with shardings (`Maker.abstract`), `batch` those of a global batch.
  """
  rows = sharding.row_places(layout.mesh)
  trained, _ = tx.split(state.params)
  trees = {
    'parameters': state.params,
    'optimiser state': state.opt_state,
    'gradients': trained,
    'recurrent state': state.carry,
    'batch': dict(batch),
  }
  return [
    Leaf(part, path_name(path), tuple(leaf.shape), _bytes(leaf) // (rows if part == 'batch' else 1))
    for part, tree in trees.items()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  ]


def check(found: list[Leaf], trunk: nn.Module, settings: Mapping[str, Any], *, layout: Layout) -> None:
  """Raise ConfigError if the arrays do not fit in memory.

  The message names the largest of them, sizes of `trunk`, and what would lower it. The devices of this process in
  `layout` must have room.
  """
  devices = layout.mesh.local_devices
  room = free(devices)
  needed = sum(leaf.bytes for leaf in found)
  if room.device is not None:
    where, limit = 'each device has', room.device
  elif room.host is not None:
    where, limit, needed = 'this machine has free', room.host, needed * len(devices)
  else:
    return
  if needed <= limit:
    return
  parts: dict[str, int] = {}
  for leaf in found:
    parts[leaf.part] = parts.get(leaf.part, 0) + leaf.bytes
  largest = max(found, key=lambda leaf: leaf.bytes)
  shares = ', '.join(
    f'{part} {in_words(size)}' for part, size in sorted(parts.items(), key=lambda one: -one[1]) if size
  )
  raise ConfigError(
    f'config: the run needs at least {in_words(needed)} of memory, and {where} {in_words(limit)}: '
    f'{shares}. The largest array is {largest.path} {list(largest.shape)} ({largest.part}): '
    f'{_fix(largest, trunk, settings)}'
  )


def check_table(trunk: nn.Module, settings: Mapping[str, Any], *, layout: Layout) -> None:
  """Check the token table and its gradient before tracing the trunk."""
  if lacking(trunk, Attends):
    return
  shape = (trunk.vocab_size, trunk.token_dim)
  size = 4 * math.prod(shape) // layout.mesh.shape['model']
  check([Leaf('parameters', 'trunk/token_embed', shape, size)], trunk, settings, layout=layout)


def check_batch(batch: Mapping[str, Any], trunk: nn.Module, settings: Mapping[str, Any], *, layout: Layout) -> None:
  """Check a global batch before tracing the trunk."""
  places = sharding.row_places(layout.mesh)
  found = [Leaf('batch', key, leaf.shape, _bytes(leaf) // places) for key, leaf in batch.items()]
  check(found, trunk, settings, layout=layout)


def _bytes(leaf: Any) -> int:
  shape = leaf.shape if getattr(leaf, 'sharding', None) is None else leaf.sharding.shard_shape(tuple(leaf.shape))
  return math.prod(shape) * leaf.dtype.itemsize


def in_words(size: float) -> str:
  """Format bytes: '1.5 GiB'."""
  return f'{size / 2**30:,.1f} GiB' if size >= 2**30 else f'{size / 2**20:,.1f} MiB'


def _fix(largest: Leaf, trunk: nn.Module, settings: Mapping[str, Any]) -> str:
  """Return the keys that make the largest array smaller."""
  data = settings['data']
  if largest.part in ('batch', 'prepared rows'):
    negatives = (settings.get('objective') or {}).get('negatives')
    others = f', objective.negatives={negatives}' if negatives else ''
    return f'lower data.batch_size={data["batch_size"]}{others} or data.length={data["length"]}'
  if largest.part == 'recurrent state':
    return f'lower data.batch_size={data["batch_size"]}, or the memory of the model (model.overrides)'
  sizes = dataclasses.asdict(trunk.config)
  sizes = {key: size for key, size in sizes.items() if isinstance(size, int) and size > 1 and size in largest.shape}
  keys = [f'model.overrides.{key}={size}' for key, size in sorted(sizes.items(), key=lambda one: -one[1])[:2]]
  if largest.shape and max(largest.shape) >= trunk.vocab_size and max(largest.shape) not in sizes.values():
    keys.insert(0, f'the vocabulary ({trunk.vocab_size:,} ids, rounded up to model.overrides.vocab_multiple)')
  return f'lower {" or ".join(keys) or "the sizes in model.overrides"}, or choose a smaller model.variant'


def _of_machine() -> int | None:
  """Return bytes that the system can hand out, with swap, if known."""
  text = _read('/proc/meminfo')
  found = dict(re.findall(r'^(MemAvailable|SwapFree):\s+(\d+) kB', text, re.MULTILINE))
  return 1024 * sum(map(int, found.values())) if 'MemAvailable' in found else None


def _of_control_group() -> int | None:
  """Return the bytes a container's limit leaves, caches free, or None."""
  for limit, stat, used in _CONTROL_GROUPS:
    most = _read(limit).strip()
    if most.isdecimal():
      taken = re.search(rf'^{used} (\d+)$', _read(stat), re.MULTILINE)
      return int(most) - (int(taken[1]) if taken else 0)
  return None


def _read(name: str) -> str:
  """Read a system file; '' if it does not exist."""
  with contextlib.suppress(OSError):
    return files.read_text(files.path(name))
  return ''
