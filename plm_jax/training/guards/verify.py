"""Silent data corruption: a device that computes or stores wrong numbers without reporting it.

Every `verify_every` steps (`config.schema.Run`) the same compiled step runs twice from the same state and batch. Each
device computes a digest of its part of each array of both results. Digests of the two results are compared, and those
of devices that hold the same part. A bit that flipped in one copy of a parameter since the last check remains visible.
A number that is computed wrongly is found if that happens in one of the two steps. A wrong number that all devices
already used is in both results and cannot be found.

The results of a run do not change. A check costs one more step, a copy of the state, and memory for one more state
while the second step runs: about 1 % of the time every 100 steps, more for steps of milliseconds (1.7 % for 6 ms).
Steps must be repeatable, as on TPUs and CPUs; GPUs need XLA_FLAGS=--xla_gpu_deterministic_ops=true.
"""

import collections
import functools
import logging
import os
import shlex
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from plm_jax.core.errors import RunError
from plm_jax.core.param_paths import flat
from plm_jax.core.types import Array, PyTree
from plm_jax.io.run_paths import RunFolder
from plm_jax.training.guards.spikes import Saved
from plm_jax.training.hosts import join

log = logging.getLogger(__name__)

HOST_SECONDS = 30  # that processes wait for the names of the other hosts
SHOWN = 4  # arrays and devices that a message names
_SEEDS = (0x9E3779B9, 0x7F4A7C15)  # of the two sums of a digest
_REPEATABLE = 'xla_gpu_deterministic_ops=true'

Step = Callable[..., tuple[Any, Any, Any]]  # (state, metrics so far, batch, key) -> both after it, metrics of the step


class Found(NamedTuple):
  """Arrays whose digests differ."""

  arrays: Sequence[str]  # their names
  # places in the mesh of the devices that differ from the majority; of all concerned where there is none
  devices: Sequence[int]
  known: bool  # whether a majority says which devices are wrong
  twice: bool  # whether the two results of a step differ, else what devices hold of the same part


class Check:
  """Repetition of some steps, and comparison of their results."""

  def __init__(self, every: int | None, places: tuple[PyTree, Any], *, folder: RunFolder, saved: Saved):
    """Compile nothing before the first check; `every` None checks no step."""
    self._every, self._folder, self._saved = every, folder, saved
    self._devices = list(places[1].mesh.devices.flat)
    self._copy = jax.jit(functools.partial(jax.tree.map, jnp.copy), out_shardings=places)
    self._digests = jax.jit(functools.partial(digests, places=places))
    if every is not None and self._devices[0].platform == 'gpu' and _REPEATABLE not in os.environ.get('XLA_FLAGS', ''):
      log.warning(f'verify_every: steps on GPUs repeat their bits only with XLA_FLAGS=--{_REPEATABLE}')

  def of(self, step: Step, number: int) -> Step:
    """Return the compiled step `number`, which runs twice if it is checked."""
    if self._every is None or number % self._every:
      return step
    return functools.partial(self._twice, step, number)

  def _twice(self, step: Step, number: int, state: PyTree, summed: PyTree, batch: PyTree, key: Array) -> Any:
    """Run a step twice; return the first result.

    Raises RunError if the results differ, or devices that hold the same part of an array do.
    """
    kept = self._copy((state, summed))
    made = step(state, summed, batch, key)
    first = jax.device_get(self._digests(made[:2]))
    second = jax.device_get(self._digests(step(*kept, batch, key)[:2]))
    arrays = {**flat(made[0]), **{f'metrics/{name}': leaf for name, leaf in flat(made[1]).items()}}
    if found := [*between_results(first, second, list(arrays)), *between_devices(first, arrays, self._devices)]:
      raise RunError(self._message(number, found))
    return made

  def _message(self, number: int, found: Sequence[Found]) -> str:
    """Return which arrays differ on which devices, and the fix."""
    names = join.tell_all(f'host at the check of step {number}', socket.gethostname(), timeout=HOST_SECONDS)
    facts = '; '.join(_said(one, self._devices, names) for one in found[:SHOWN])
    more = f'; and {len(found) - SHOWN} more findings' if len(found) > SHOWN else ''
    log.error(f'step {number}: silent data corruption (verify_every): {facts}{more}')
    out = (
      'Leave out the hosts of these devices'
      if all(one.known for one in found)
      else 'If it comes again, leave out one host after another until it does not'
    )
    return (
      f'step {number}: numbers are wrong though no error was reported (verify_every): {facts}{more}. The step is not '
      f'saved. {out}. {self._way_on(number)}'
    )

  def _way_on(self, number: int) -> str:
    """Return how to resume: later steps may hold wrong numbers too."""
    assert self._every is not None
    self._saved.wait()
    steps = self._saved.steps()
    sound = [step for step in steps if step <= number - self._every]
    doubtful = [str(step) for step in steps if step > number - self._every]
    if not sound:
      return 'No step was saved before the last check: begin again in another --workdir'
    if not doubtful:
      return f'The same command resumes from step {sound[-1]}'
    return (
      f'What was saved since the last check (step {", ".join(doubtful)}) may be wrong as well: the same command '
      f'resumes from step {sound[-1]} after\n  plm-jax rewind --workdir={shlex.quote(str(self._folder.root))} '
      f'--to_step={sound[-1]}'
    )


def digests(tree: PyTree, *, places: PyTree) -> Array:
  """Compute u32[devices, arrays, 2], the digests of all devices.

  All devices get the same array. Each digest covers the part of an array that a device holds. `places` are the
  shardings of `tree`; one may stand for a subtree.
  """
  mesh = jax.tree.leaves(places)[0].mesh

  def own(tree: PyTree) -> Array:
    parts = jnp.stack([_digest(part) for part in jax.tree.leaves(tree)])
    return jax.lax.all_gather(parts, mesh.axis_names)

  specs = jax.tree.map(lambda place: place.spec, places)
  return jax.shard_map(own, mesh=mesh, in_specs=(specs,), out_specs=PartitionSpec(), check_vma=False)(tree)


def _digest(part: Array) -> Array:
  """Compute two sums modulo 2**32 over the words of an array, u32[2].

  Each word is mixed with its position. The sums are exact and do not depend on the order. Changing one word changes
  both, since mixing is invertible; other changes are missed with a probability of about 2**-64. (Multiplying by an odd
  number instead would miss two changed signs: the highest bit gives the same product for all factors.)
  """
  if part.dtype == jnp.bool_:
    part = part.astype(jnp.uint8)
  width = {1: jnp.uint8, 2: jnp.uint16}.get(part.dtype.itemsize, jnp.uint32)
  words = jax.lax.bitcast_convert_type(part, width).astype(jnp.uint32)
  place, stride = jnp.zeros(words.shape, jnp.uint32), 1
  for axis in reversed(range(words.ndim)):  # no reshape, which would move the array on a TPU
    place += jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis) * jnp.uint32(stride % 2**32)
    stride *= words.shape[axis]
  return jnp.stack([jnp.sum(_mixed(words ^ _mixed(place + jnp.uint32(seed))), dtype=jnp.uint32) for seed in _SEEDS])


def _mixed(x: Array) -> Array:
  """Mix the bits of each word injectively (final steps of MurmurHash3)."""
  x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
  x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
  return x ^ (x >> 16)


def between_results(first: np.ndarray, second: np.ndarray, names: Sequence[str]) -> list[Found]:
  """Compare digests [devices, arrays, 2] of two results; one entry at most."""
  differs = (first != second).any(axis=-1)
  if not differs.any():
    return []
  devices = np.flatnonzero(differs.any(axis=1)).tolist()
  arrays = [names[index] for index in np.flatnonzero(differs.any(axis=0)).tolist()]
  return [Found(arrays, devices, known=2 * len(devices) < len(differs), twice=True)]


def between_devices(made: np.ndarray, arrays: Mapping[str, Array], devices: Sequence[Any]) -> list[Found]:
  """Compare devices that hold the same part, one entry per set.

  The digests `made` [devices, arrays, 2] have the order of `arrays` and `devices`.
  """
  found: dict[tuple[tuple[int, ...], bool], list[str]] = {}
  for index, (name, array) in enumerate(arrays.items()):
    for holders in _holders(array, devices):
      told = [tuple(made[device, index].tolist()) for device in holders]
      (value, most), *others = collections.Counter(told).most_common()
      if not others:
        continue
      known = most > others[0][1]
      odd = tuple(device for device, one in zip(holders, told, strict=True) if not known or one != value)
      there = found.setdefault((odd, known), [])
      if name not in there:
        there.append(name)
  return [Found(names, odd, known, twice=False) for (odd, known), names in found.items()]


def _holders(array: Array, devices: Sequence[Any]) -> list[list[int]]:
  """Return the mesh positions of the devices of each part."""
  parts: dict[Any, list[int]] = {}
  held = array.sharding.devices_indices_map(array.shape)
  for place, device in enumerate(devices):
    parts.setdefault(tuple((cut.start, cut.stop) for cut in held[device]), []).append(place)
  return list(parts.values())


def _said(found: Found, devices: Sequence[Any], names: Sequence[str | None]) -> str:
  """Format a finding; `names` are the hosts, by process."""
  arrays = ', '.join(found.arrays[:SHOWN])
  arrays += f' and {len(found.arrays) - SHOWN} more' if len(found.arrays) > SHOWN else ''
  chosen = [devices[place] for place in found.devices]
  where = ', '.join(
    f'device {device.id} of process {device.process_index} (host {names[device.process_index] or "unknown"})'
    for device in chosen[:SHOWN]
  )
  where += f' and {len(chosen) - SHOWN} more' if len(chosen) > SHOWN else ''
  unknown = '' if found.known else '; which of them is wrong is not known'
  if found.twice:
    return f'made again from the same state and batch, the step gave other bits of {arrays} on {where}{unknown}'
  if found.known:
    return f'{where} holds other bits of {arrays} than most devices that hold the same part'
  return f'{where} hold different bits of the same part of {arrays}{unknown}'
