"""Facts of one host about itself and about a run; `doctor.py` compares hosts."""

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from plm_jax import config
from plm_jax.checkpoint import saved_steps
from plm_jax.config import resume, signatures
from plm_jax.core import sharding
from plm_jax.core.errors import ConfigError, RunError
from plm_jax.data import made
from plm_jax.io import files
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import run_folder
from plm_jax.training import feed, outcome, trained_part
from plm_jax.training.before import from_data, preflight
from plm_jax.training.cost import memory
from plm_jax.training.parts import Parts, make_layout, make_parts, make_source, make_vocab

Settings = Mapping[str, Any]

# variables that change the programs of a process; those that are of one host by their nature are left out
_OF_PROGRAMS = ('XLA_FLAGS', 'LIBTPU_INIT_ARGS', 'JAX_')
_HOST_WORDS = ('COORDINATOR', 'PROCESS', 'LOCAL', 'PARTITION', 'SLICE', 'COMPILATION_CACHE')
_OF_A_HOST = tuple(f'JAX_{word}_' for word in _HOST_WORDS)
_COPIES = 2  # of the state on disk, beside those that `keep` leaves: the best one, and the one that is being written
_SHOWN = 12  # letters of a digest


class Answer(NamedTuple):
  """Answer of a host to one question."""

  value: str = ''  # what all hosts have to agree on, where they have to, in words
  note: str = ''  # more to read, which may differ by host
  detail: Mapping[str, str] = {}  # what `value` stands for, where it is a digest: name -> value
  problem: str = ''  # what is wrong on this host, in a sentence; empty where nothing is


def asked(question: Callable[[], Answer]) -> Answer:
  """Answer a question; errors of users and disks are answers too."""
  return asked_several('', lambda: {'': question()})['']


def asked_several(name: str, question: Callable[[], dict[str, Answer]]) -> dict[str, Answer]:
  """Answer a question with several answers; an error gets this name."""
  try:
    return question()
  except (ConfigError, RunError) as error:
    return {name: Answer(problem=str(error))}
  except OSError as error:
    return {name: Answer(problem=f'{error.filename or "a file"}: {error.strerror}' if error.strerror else str(error))}


def code() -> Answer:
  """Digest the source of the package."""
  package = signatures.ROOT
  found = {
    file.relative_to(package).as_posix(): files.sha256(file)[:_SHOWN]
    for file in files.files_below(package)
    if file.suffix == '.py'
  }
  return Answer(_digest(found), f'{len(found)} files', found)


def settings_of(settings: Settings) -> Answer:
  """Digest the config with every default."""
  found = {key: str(value) for key, value in resume.leaves(settings).items()}
  return Answer(_digest(found), f'{len(found)} keys', found)


def versions() -> Answer:
  """Collect the versions of packages that numbers depend on."""
  found = outcome.versions()
  for name in ('libtpu', 'tokenizers', 'tensorstore'):
    with contextlib.suppress(metadata.PackageNotFoundError):
      found[name] = metadata.version(name)
  return Answer(_digest(found), f'jax {found["jax"]}, plm_jax {found["plm_jax"]}, Python {found["python"]}', found)


def environment() -> Answer:
  """Collect variables that change compiled programs."""
  found = {
    name: value
    for name, value in sorted(os.environ.items())
    if name.startswith(_OF_PROGRAMS) and not name.startswith(_OF_A_HOST)
  }
  return Answer(_digest(found), ', '.join(found) or 'none', found)


def flags(**given: Any) -> Answer:
  """Collect the flags of the command besides the config."""
  found = {name: str(value) for name, value in given.items() if value is not None}
  return Answer(_digest(found), ', '.join(f'{name}={value}' for name, value in found.items()) or 'none', found)


def devices(found: Sequence[jax.Device]) -> Answer:
  """Count the devices of this process and of all processes."""
  own = [device for device in found if device.process_index == jax.process_index()]
  return Answer(f'{len(own)} x {own[0].device_kind}', f'{len(found)} of all processes')


def begun(settings: Settings, folder: RunFolder) -> Answer:
  """Check where a run in the folder would start or resume."""
  if files.exists(folder.lock):
    with run_folder.claim(folder, main=jax.process_index() == 0):  # or another process trains there
      pass
  old = run_folder.begun(folder)
  if not old:
    return Answer('begins at step 0')
  run_folder.agree_with_folder(from_data.filled(settings, old), old)
  numbers = saved_steps.numbered(folder.checkpoints)
  return Answer(f'resumes from step {max(numbers, default=0)}')


def vocabulary(settings: Settings) -> Answer:
  """Digest the vocabulary of `vocab.path`."""
  vocab = make_vocab(settings)
  return Answer(vocab.digest[:_SHOWN], f'{vocab.size:,} ids')


def run(settings: Settings, folder: RunFolder) -> dict[str, Answer]:
  """Check that the run could start here; raise what `asked` takes."""
  settings = from_data.filled(settings, run_folder.begun(folder))
  preflight.check(settings)
  parts, layout = make_parts(settings, make_vocab(settings)), make_layout(settings)
  rows = feed.rows_per_device(settings['data']['batch_size'], accumulate=settings['accumulate'], mesh=layout.mesh)
  with sharding.use(layout):
    maker, tx = preflight.abstract_maker(settings, parts, layout)
  state = maker.abstract
  saved = trained_part.cut(state, tx) if settings['save'] == 'trained' else state
  size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(saved))
  count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state.params))
  mesh = ' x '.join(f'{name} {places}' for name, places in layout.mesh.shape.items())
  return {
    'run': Answer(f'{count:,} parameters, mesh {mesh}, {rows} rows per device'),
    'memory': _memory(size, layout.mesh),
    'disk': _disk(settings, folder, size),
  }


def _memory(size: int, mesh: Mesh) -> Answer:
  """Check the free memory for the host's part of a checkpoint."""
  room, needed = memory.free(mesh.local_devices).host, size // jax.process_count()
  if room is None:
    return Answer(note='free memory is not known')
  note = f'{memory.in_words(room)} free'
  if jax.default_backend() != 'cpu' and room < needed:  # on a CPU the state is in this memory: `preflight` counted it
    return Answer(note=note, problem=f'{note}, and a checkpoint passes {memory.in_words(needed)} through this host')
  return Answer(note=note)


def _disk(settings: Settings, folder: RunFolder, size: int) -> Answer:
  """Check the disk space for checkpoints and prepared text."""
  room, needed = files.free_bytes(folder.root), (settings['keep'] + _COPIES) * size
  if room is None:
    return Answer(note='room in the run folder is not known')
  note = f'{memory.in_words(room)} free, checkpoints take up to {memory.in_words(needed)}'
  return Answer(note=note, problem=f'{folder.root}: {note}' if room < needed else '')


def data(settings: Settings, folder: RunFolder) -> dict[str, Answer]:
  """Check what each data block is made from; make nothing large."""
  settings = from_data.filled(settings, run_folder.begun(folder))
  parts = make_parts(settings, make_vocab(settings))
  return {
    place: asked(lambda place=place, block=block: _rows(place, block, settings, parts))  # type: ignore[misc]
    for place, block in config.of_data(settings).items()
  }


def _rows(place: str, block: Settings, settings: Settings, parts: Parts) -> Answer:
  """Return the digest of a block's first input, before it is made."""
  with made.watching(makes=False) as told:
    try:
      source = make_source(block, parts.vocab, seed=settings['seed'], reader=parts, where=place)
    except made.Unmade as unmade:
      first = [*told, unmade.made][0]
      return Answer(
        f'{first.what} {first.digest[:_SHOWN]}',
        f'{unmade.made.what} are not made yet: `prepare` makes them ahead, else each host at the start',
      )
  first_digest = f'{told[0].what} {told[0].digest[:_SHOWN]}' if told else source.digest[:_SHOWN]
  return Answer(first_digest, f'{source.rows:,} rows, all made')


def facts(found: Mapping[str, Any]) -> Answer:
  """Return the vocabulary and data digests of `data.json`."""
  texts = {name: str(value) for name, value in found.items()}
  return Answer(_digest(texts), detail=texts)


def _digest(found: Mapping[str, str]) -> str:
  return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:_SHOWN]
