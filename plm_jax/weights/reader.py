"""Reader of published checkpoints: tensors as parameters of this package, by leaf or layer."""

import functools
import hashlib
import logging
import re
from collections.abc import Mapping, Sequence

import numpy as np

from plm_jax.checkpoint import Leaf
from plm_jax.checkpoint.tensor_files import WeightsError
from plm_jax.config import build
from plm_jax.core.errors import ConfigError
from plm_jax.weights import release, shapes, table
from plm_jax.weights.class_heads import TaskHead
from plm_jax.weights.release import Release
from plm_jax.weights.table import HEAD, POOLER, TOKENS, Architecture, Entry, architectures, entries_of, pieces

log = logging.getLogger(__name__)


class Reader:
  """The correspondence between a published checkpoint and our parameters.

  Building one checks every name and shape.

  Attributes:
    source: the published folder.
    architecture: the one that describes it.
    model: the model block of a config: name, variant, overrides.
    vocab_size: number of ids of the vocabulary.
    trunk: the trunk of this package.
    heads: names of the heads in the folder; that of a task is 'head'.
    task: suffix of the name of their class for a task ('ForTokenClassification'), if there is the head of one.
    task_head: that head, or None.
    entries: leaf path -> its tensors.
    shapes: leaf path -> our shape, stacked axis included.
    ignored: names of tensors that no computation reads, here or in transformers.

  Raises:
    WeightsError: an unknown architecture, an unsupported field of config.json, or a tensor that is missing, of another
      shape, unknown here, or not equal to a tied or derived one.
  """

  def __init__(self, source: Release, *, architecture: str | None = None):
    self.source = source
    self.architecture = _architecture_of(source, architecture)
    module = self.architecture.module
    starts = (module.PREFIX, *getattr(module, 'OTHER_PREFIXES', ()))
    self._prefix = '' if any(name.startswith(starts) for name in source) else module.PREFIX
    try:
      fields = dict(module.read_config(source.config, frozenset(f'{self._prefix}{name}' for name in source)))
      name = fields.pop('name', None) or module.MODEL
      self.vocab_size = int(fields.pop('vocab_size'))
      self.model = {'name': name, **fields}
      self.trunk = build.make('models', self.model, vocab_size=self.vocab_size)
      self._trunk_shapes = {f'trunk/{path}': shape for path, shape in shapes.shapes(self.trunk).items()}
    except (KeyError, TypeError, ValueError, ConfigError) as error:
      problem = f'no {error}' if isinstance(error, KeyError) else str(error)
      raise WeightsError(f'{source.folder / release.CONFIG}: {problem}') from error
    heads = tuple(head for head in module.HEADS if self._has(module.entries(self.trunk, (head,)), head))
    tasks = module.tasks(self.trunk)
    self.task = self._find_task(tasks)
    self.task_head = None if self.task is None else tasks[self.task]
    self.heads = heads if self.task is None else (*heads, HEAD)
    candidates = entries_of(self.architecture, self.trunk, heads if self.task is None else (*heads, self.task))
    entries = [entry for entry in candidates if entry.zeros is None]
    self.entries = {entry.ours: entry for entry in entries if not entry.optional or self._is_there(entry)}
    self.shapes = {path: self._trunk_shapes.get(path) or self._head_shape(path) for path in self.entries}
    self._check()
    self.ignored = self._without_a_place()
    self._check_copies()

  def _find_task(self, tasks: Mapping[str, TaskHead]) -> str | None:
    """Find config.json's task head, else the one with most tensors."""
    named = self.source.config.get('architectures')
    classes = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    bare = {entry.ours: entry for entry in self.architecture.module.entries(self.trunk, ())}
    pooler = POOLER in bare and self._is_there(bare[POOLER])
    complete: dict[str, int] = {}
    for end, task in tasks.items():
      present = [self._short(self._name_of(entry)) in self.source for entry in task.entries]
      if any(present) and any(name.endswith(end) for name in classes):
        return end
      if all(present) and (pooler or not task.pooler):
        complete[end] = len(present)
    return max(complete, key=lambda end: complete[end], default=None)

  def _check(self) -> None:
    """Raise for missing tensors, other shapes or ids; nothing is read."""
    for path, entry in self.entries.items():
      shape = self.shapes[path]
      for layer in range(shape[0]) if entry.stacked else [None]:
        name = self._name_of(entry, layer)
        nothing = np.broadcast_to(np.float32(0), self._shape_of(name, entry))
        self._as_ours(entry, name, nothing, shape if layer is None else shape[1:])
    table = self._name_of(self.entries[TOKENS])
    release.check_tokenizer(self.source.folder, self.vocab_size, where=self.source.where(self._short(table)))

  def _without_a_place(self) -> list[str]:
    """List tensors that no computation reads; raise WeightsError for unknown ones."""
    module, folder = self.architecture.module, self.source.folder
    used = {self._short(name) for entry in self.entries.values() for name in self._all_names(entry)}
    unused = []
    for name in sorted(set(self.source) - used):
      if any(re.search(pattern, name) for pattern in getattr(module, 'UNUSED', ())):
        unused.append(name)
        continue
      derived = next((holds for end, holds in module.DERIVED.items() if name.endswith(end)), None)
      if derived is None:
        heads = ', '.join((*module.HEADS, *module.tasks(self.trunk))) or 'none'
        raise WeightsError(
          f'{self.source.where(name)} is not part of our {self.model["name"]} or its heads ({heads}). Read the trunk '
          'alone: save it with `AutoModel.from_pretrained(FOLDER).save_pretrained(OTHER)`'
        )
      if not derived(self.trunk, self.source.read(name)):
        raise WeightsError(
          f'{self.source.where(name)} differs from what {self.architecture.name} computes, and cannot be read: fetch '
          'the file again'
        )
    if unused:
      log.info('%s: tensors that are unused, as in transformers: %s', folder, ', '.join(unused[:12]))
    return unused

  def _check_copies(self) -> None:
    """Raise if the names of one leaf have different numbers."""
    main = {entry.theirs for entry in self.entries.values()}
    for entry in self.entries.values():
      layers = range(self.shapes[entry.ours][0]) if entry.stacked else [None]
      for layer in layers if set(entry.tied) - main else ():
        names = [
          name
          for name in self._names(entry, layer)
          if self._short(name) in self.source and name not in {*main, *entry.spare}
        ]
        names = [*dict.fromkeys([self._name_of(entry, layer), *names])]
        if len(names) > 1 and len({self._digest(name) for name in names}) > 1:
          raise WeightsError(
            f'{self.source.where(self._short(names[1]))} differs from {self._short(names[0])!r}, but {release.CONFIG} '
            'ties them (tie_word_embeddings): correct config.json or fetch the file again'
          )

  def _digest(self, name: str) -> bytes:
    """Hash shape and numbers of a tensor, with one tensor in memory."""
    tensor = self.source.read(self._short(name))
    out = hashlib.sha256(str(tensor.shape).encode())
    for piece in pieces(tensor):
      out.update((piece + 0.0).tobytes())  # turn -0.0 into 0.0
    return out.digest()

  def leaves(self) -> dict[str, Leaf]:
    """Open our parameters by path; reads take one tensor at a time."""
    return {path: Leaf(shape, functools.partial(self._read, path)) for path, shape in self.shapes.items()}

  def _read(self, path: str, layer: int | None) -> np.ndarray:
    """Read a leaf or layer as a view; stacked leaves as float32."""
    entry, shape = self.entries[path], self.shapes[path]
    if not entry.stacked:
      leaf = self._view(entry, self._name_of(entry), shape)
      return leaf if layer is None else leaf[layer]
    if layer is not None:
      return self._view(entry, self._name_of(entry, layer), shape[1:])
    out = np.empty(shape, np.float32)
    for index in range(shape[0]):
      out[index] = self._view(entry, self._name_of(entry, index), shape[1:])
    return out

  def _view(self, entry: Entry, name: str, shape: Sequence[int]) -> np.ndarray:
    """Read a tensor in our shape; raise WeightsError unless finite."""
    tensor = self.source.read(self._short(name))
    if not all(np.isfinite(piece).all() for piece in pieces(tensor)):
      raise WeightsError(f'{self.source.where(self._short(name))} has values that are not finite: fetch the file again')
    return self._as_ours(entry, name, tensor, shape).reshape(tuple(shape))

  def _as_ours(self, entry: Entry, name: str, tensor: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    try:
      return table.view(entry, tensor, shape)
    except ValueError as error:
      sizes = f'vocab_size {self.vocab_size}' if entry.ours == TOKENS else 'sizes'
      raise WeightsError(
        f'{self.source.where(self._short(name))}: {error}, by {sizes} in {release.CONFIG} (for {entry.ours}). The two '
        'files belong to different models: fetch both again'
      ) from error

  def _shape_of(self, name: str, entry: Entry) -> tuple[int, ...]:
    short = self._short(name)
    if short not in self.source:
      raise WeightsError(
        f'{self.source.where(short)} is missing (for {entry.ours}): fetch the file again, or correct the number of '
        f'layers in {release.CONFIG}'
      )
    return self.source.shape(short)

  def _is_there(self, entry: Entry) -> bool:
    return self._short(self._name_of(entry, 0 if entry.stacked else None)) in self.source

  def _head_shape(self, path: str) -> tuple[int, ...]:
    entry = self.entries[path]
    shape = self._shape_of(self._name_of(entry), entry)
    return shape[::-1] if entry.form in ('linear', 'reversed') else shape

  def _short(self, name: str) -> str:
    return name.removeprefix(self._prefix)

  def _name_of(self, entry: Entry, layer: int | None = None) -> str:
    """Return the present name of a tensor, else the main name."""
    names = self._names(entry, layer)
    return next((name for name in names if self._short(name) in self.source), names[0])

  def _names(self, entry: Entry, layer: int | None) -> list[str]:
    names = (entry.theirs, *entry.tied, *entry.spare)
    return list(names) if layer is None else [entry._replace(theirs=name).name(layer) for name in names]

  def _all_names(self, entry: Entry) -> list[str]:
    layers = range(self.shapes[entry.ours][0]) if entry.stacked else [None]
    return [name for layer in layers for name in self._names(entry, layer)]

  def _has(self, entries: Sequence[Entry], head: str) -> bool:
    own = [entry for entry in entries if entry.ours.startswith(f'{head}/')]
    return any(self._short(self._name_of(entry)) in self.source for entry in own)


def _architecture_of(source: Release, name: str | None) -> Architecture:
  choices = architectures()
  model_type = source.config.get('model_type')
  types = sorted({own for architecture in choices for own in architecture.module.MODEL_TYPES})
  for architecture in choices:
    if model_type in architecture.module.MODEL_TYPES and name in (None, architecture.name):
      return architecture
  if name is not None and name not in [architecture.name for architecture in choices]:
    raise WeightsError(f'no architecture {name!r}; choices are {", ".join(a.name for a in choices)}')
  restriction = f' by {name!r}' if model_type in types else ''
  raise WeightsError(
    f'{source.folder / release.CONFIG}: model_type {model_type!r} is not supported{restriction}; choices are '
    f'{", ".join(types)}'
  )
