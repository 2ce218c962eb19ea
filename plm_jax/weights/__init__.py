"""Published weights in and out: Hugging Face folders of safetensors <-> our trunks and parameters.

    trunk, params = weights.load(FOLDER)
    out = trunk.apply({'params': params}, tokens=tokens, segment_ids=segment_ids)
    weights.save(OTHER, trunk, params)

One file per architecture says which tensor is which; see `weights/table.py`.
"""

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import numpy as np

from plm_jax import build, param_files, whole
from plm_jax.param_files import Leaf, flat, nested
from plm_jax.tensor_files import Plan, WeightsError
from plm_jax.types import Execution, PyTree
from plm_jax.weights import release, table
from plm_jax.weights.release import Release
from plm_jax.weights.table import Entry

log = logging.getLogger('plm_jax')

_NOT_ARCHITECTURES = ('release', 'table')
_TOKENS = 'trunk/token_embed/table'
Part = Literal['trunk', 'generator']
_PIECE = 2**20  # elements converted at a time
# of buffers that older releases hold beside their parameters
_BUFFERS = (
  '.position_ids',
  '.attn.bias',
  '.attn.masked_bias',
  '.rotary_emb.inv_freq',
  'final_logits_bias',
  '.token_type_ids',
)


class Architecture(NamedTuple):
  """What a file of `weights/` offers; see `table`."""

  name: str
  module: Any


def architectures() -> list[Architecture]:
  """Every architecture whose names are known."""
  names = sorted(file.stem for file in Path(__file__).parent.glob('[a-z]*.py') if file.stem not in _NOT_ARCHITECTURES)
  return [Architecture(name, build.import_file(f'weights.{name}')) for name in names]


def load(
  folder: str | os.PathLike[str],
  *,
  step: param_files.Step = 'best',
  part: Part = 'trunk',
  execution: Execution = Execution(),
) -> tuple[nn.Module, PyTree]:
  """The trunk of a folder and its parameters.

  Args:
    folder: a Hugging Face folder, a run folder, or a folder written by `python -m plm_jax.convert import`.
    step: of a run folder; the best where one was kept, else the newest.
    part: 'generator' is the second trunk of a run folder of replaced token detection.
    execution: how the trunk computes.

  Returns:
    (trunk, parameters): nested dicts of float32 numpy arrays, those of the trunk and, beside them, a head by its name
    ('mlm', 'rtd') where the folder has one; `trunk.apply({'params': parameters}, ...)` leaves heads alone.

  Raises:
    WeightsError: an architecture that is not known, or a tensor that is missing, damaged or of another shape.
  """
  path = Path(folder).expanduser()
  if release.is_release(path):
    source = Release(path)
    reader = Reader(source, execution=execution)
    return reader.trunk, _flat_heads(nested({name: reader.leaf(name) for name in reader.shapes}))
  trunk, leaves = open_own(path, step=step, part=part, execution=execution)
  return trunk, _flat_heads(nested({name: np.asarray(leaf.read(None), np.float32) for name, leaf in leaves.items()}))


def open_own(
  path: Path, *, step: param_files.Step = 'best', part: Part = 'trunk', execution: Execution = Execution()
) -> tuple[nn.Module, dict[str, Leaf]]:
  """The trunk of a run folder or an import, and its parameters by path; those of an import are read when asked for.

  Raises:
    WeightsError: it is neither, or has no such part.
    CheckpointError: its parameters are damaged.
  """
  model, vocab_size = _own_model(path, part)
  trunk = build.make('models', model, vocab_size=vocab_size, execution=execution)
  if (path / param_files.INDEX).is_file():
    return trunk, param_files.open_index(path)
  params = param_files.load_params(path, step=step)
  return trunk, in_memory(nested(_part_of(flat(params), trunk, part)))


def _part_of(leaves: Mapping[str, Any], trunk: nn.Module, part: Part) -> dict[str, Any]:
  """The parameters of one of two trunks that were trained together, with what it shares and its own head."""
  second = any(path.startswith('generator/') for path in leaves)
  if part == 'generator':
    if not second:
      raise WeightsError('this run has no parameters of a generator')
    own = {
      f'trunk/{path}': leaves.get(f'generator/{path}', leaves.get(f'trunk/{path}')) for path in whole.shapes(trunk)
    }
    heads = {path: leaf for path, leaf in leaves.items() if path.startswith('mlm/')}
    return {path: leaf for path, leaf in own.items() if leaf is not None} | heads
  out = dict(leaves)
  if 'delta/table' in out:  # what the table of tokens is beyond the generator's
    out[_TOKENS] = out.pop('delta/table') + out['generator/token_embed/table']
  theirs = ('generator/', 'mlm/') if second else ()
  return {path: leaf for path, leaf in out.items() if not path.startswith(theirs)}


def in_memory(params: PyTree) -> dict[str, Leaf]:
  """The leaves of a tree by path."""
  return {path: _leaf(array) for path, array in flat(params).items()}


def _leaf(array: Any) -> Leaf:
  return Leaf(tuple(np.shape(array)), lambda layer: np.asarray(array if layer is None else array[layer]))


def save(
  folder: str | os.PathLike[str],
  trunk: nn.Module,
  params: PyTree,
  *,
  architecture: str | None = None,
  tokenizer: str | os.PathLike[str] | None = None,
) -> Path:
  """Writes the Hugging Face form.

  Args:
    folder: made where it is missing; weights in it are replaced.
    trunk: of this package.
    params: as `load` gives them, or `{'trunk': ..., <head>: ...}` as a run has them.
    architecture: a file of `weights/`; by default the first whose published form has room for the trunk.
    tokenizer: a folder, such as the one that was loaded, whose tokenizer goes along.

  Raises:
    WeightsError: no published form has room for the trunk and its heads, or a parameter is missing or of another shape.
  """
  path = Path(folder).expanduser().absolute()
  extra = None if tokenizer is None else Path(tokenizer).expanduser()
  save_leaves(path, trunk, in_memory(_split_heads(trunk, params)), architecture=architecture, tokenizer=extra)
  return path


def save_leaves(
  path: Path,
  trunk: nn.Module,
  leaves: Mapping[str, Leaf],
  *,
  architecture: str | None = None,
  tokenizer: Path | None = None,
  token_ids: Mapping[str, int | None] = MappingProxyType({}),
  shard: int = release.SHARD,
) -> None:
  """`save` of leaves that are read one at a time.

  Args:
    path: the folder.
    trunk: of this package.
    leaves: by path ('trunk/...', '<head>/...').
    architecture: as in `save`.
    tokenizer: a folder.
    token_ids: fields of config.json such as pad_token_id, in place of those that are usual for the architecture.
    shard: bytes of a file after which the next one begins.
  """
  heads = sorted({name.split('/')[0] for name in leaves} - {'trunk'})
  chosen, config = _choose(trunk, heads, architecture)
  try:
    chosen.module.read_config({**config, **token_ids})
    config |= token_ids
  except ValueError as error:
    log.warning(
      'The ids of the special tokens are left out of config.json, for the published form fixes them (%s): where '
      'positions depend on them, give its models position_ids', error
    )  # fmt: skip
  release.write(path, config, plans(trunk, leaves, chosen), shard=shard, tokenizer=tokenizer)


class Reader:
  """Our parameters as a release holds them, leaf by leaf or layer by layer.

  Attributes:
    source: the folder.
    architecture: that reads it.
    model: a model block, `{'name', 'variant', 'overrides'}`.
    vocab_size: ids.
    trunk: of this package.
    heads: names of the heads that the release has.
    shapes: leaf path -> shape, stacked axis included.
  """

  def __init__(self, source: Release, *, execution: Execution = Execution(), architecture: str | None = None):
    self.source = source
    self.architecture = _architecture_of(source, architecture)
    module = self.architecture.module
    try:
      made = dict(module.read_config(source.config))
      name = made.pop('name', None) or module.MODEL
      self.vocab_size = int(made.pop('vocab_size'))
      self.model = {'name': name, **made}
      self.trunk = build.make('models', self.model, vocab_size=self.vocab_size, execution=execution)
    except (KeyError, TypeError, ValueError) as error:
      what = f'no {error}' if isinstance(error, KeyError) else str(error)
      raise WeightsError(f'{source.folder / release.CONFIG}: {what}') from error
    self._prefix = '' if any(name.startswith(module.PREFIX) for name in source) else module.PREFIX
    self.heads = tuple(head for head in module.HEADS if self._has(module.entries(self.trunk, (head,)), head))
    entries = [entry for entry in module.entries(self.trunk, self.heads) if entry.zeros is None]
    self._trunk_shapes = {f'trunk/{path}': shape for path, shape in whole.shapes(self.trunk).items()}
    self.entries = {entry.ours: entry for entry in entries if not entry.optional or self._is_there(entry)}
    self.shapes = {path: self._trunk_shapes.get(path) or self._head_shape(path) for path in self.entries}
    self._check()
    known = {self._short(name) for entry in self.entries.values() for name in self._all_names(entry)}
    self.ignored = sorted(name for name in source if name not in known and not name.endswith(_BUFFERS))
    if self.ignored:
      log.info('%s: not read, for we have no such part: %s', source.folder, ', '.join(self.ignored[:12]))

  def _check(self) -> None:
    """Everything is there and of its shape, and the tokenizer has a row for each id; reads no tensor."""
    for path, entry in self.entries.items():
      shape = self.shapes[path]
      for layer in range(shape[0]) if entry.stacked else [None]:
        name = self._name_of(entry, layer)
        nothing = np.broadcast_to(np.float32(0), self._shape_of(name, entry))
        self._as_ours(entry, name, nothing, shape if layer is None else shape[1:])
    table = self._name_of(self.entries[_TOKENS])
    release.check_tokenizer(self.source.folder, self.vocab_size, where=self.source.where(self._short(table)))

  def leaf(self, path: str) -> np.ndarray:
    """One parameter, float32, whole."""
    entry, shape = self.entries[path], self.shapes[path]
    if not entry.stacked:
      return np.ascontiguousarray(self._view(entry, self._name_of(entry), shape), np.float32)
    out = np.empty(shape, np.float32)
    for layer in range(shape[0]):
      out[layer] = self._view(entry, self._name_of(entry, layer), shape[1:])
    return out

  def slice(self, path: str, layer: int | None) -> Iterator[np.ndarray]:
    """One parameter, or a layer of a stacked one, as float32 pieces in order, from one source tensor."""
    entry, shape = self.entries[path], self.shapes[path]
    name = self._name_of(entry, layer)
    yield from _pieces(self._matrix(entry, name, shape if layer is None else shape[1:]))

  def _view(self, entry: Entry, name: str, shape: Sequence[int]) -> np.ndarray:
    return self._matrix(entry, name, shape).reshape(tuple(shape))

  def _matrix(self, entry: Entry, name: str, shape: Sequence[int]) -> np.ndarray:
    """A view of the tensor, transposed where needed, whose elements in order are those of ours."""
    return self._as_ours(entry, name, self.source.read(self._short(name)), shape)

  def _as_ours(self, entry: Entry, name: str, tensor: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    try:
      return table.view(entry, tensor, shape)
    except ValueError as error:
      sizes = f'vocab_size {self.vocab_size}' if entry.ours == _TOKENS else 'the sizes'
      raise WeightsError(
        f'{self.source.where(self._short(name))}: {error}, as {sizes} in {release.CONFIG} would have it for our '
        f'{entry.ours}: the two files are not of one model; fetch both again'
      ) from error

  def _shape_of(self, name: str, entry: Entry) -> tuple[int, ...]:
    short = self._short(name)
    if short not in self.source:
      raise WeightsError(
        f'{self.source.where(short)} is missing, of which our {entry.ours} is made: fetch the file again, or put the '
        f'layers that it has into {release.CONFIG}'
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
    """The first of the names of a tensor under which the release has it; the main one where it has none."""
    names = self._names(entry, layer)
    return next((name for name in names if self._short(name) in self.source), names[0])

  def _names(self, entry: Entry, layer: int | None) -> list[str]:
    names = (entry.theirs, *entry.tied)
    return list(names) if layer is None else [entry._replace(theirs=name).name(layer) for name in names]

  def _all_names(self, entry: Entry) -> list[str]:
    layers = range(self.shapes[entry.ours][0]) if entry.stacked else [None]
    return [name for layer in layers for name in self._names(entry, layer)]

  def _has(self, entries: Sequence[Entry], head: str) -> bool:
    own = [entry for entry in entries if entry.ours.startswith(f'{head}/')]
    return any(self._short(self._name_of(entry)) in self.source for entry in own)


def plans(trunk: nn.Module, leaves: Mapping[str, Leaf], architecture: Architecture) -> dict[str, Plan]:
  """What to write for each tensor of the published form; a leaf is read, layer by layer, when its tensor is written.

  Args:
    trunk: of this package.
    leaves: by path ('trunk/...', '<head>/...').
    architecture: of the form.

  Raises:
    WeightsError: a parameter is missing, of another shape, or has no place.
  """
  heads = sorted({path.split('/')[0] for path in leaves} - {'trunk'})
  entries = architecture.module.entries(trunk, heads)
  zeros = {entry.theirs: entry.zeros for entry in entries if entry.zeros is not None}
  entries = [entry for entry in entries if entry.zeros is None and not (entry.optional and entry.ours not in leaves)]
  if missing := sorted({entry.ours for entry in entries} - set(leaves)):
    raise WeightsError(f'parameter {missing[0]!r} is missing ({len(missing)} in all)')
  if homeless := sorted(set(leaves) - {entry.ours for entry in entries}):
    raise WeightsError(f'the published form of {architecture.name} has no place for {", ".join(homeless[:8])}')
  expected = {f'trunk/{path}': shape for path, shape in whole.shapes(trunk).items()}
  for path, leaf in leaves.items():
    if leaf.shape != expected.get(path, leaf.shape):
      raise WeightsError(f'parameter {path!r} is {list(leaf.shape)}, and this trunk has {list(expected[path])}')
  leaves = {path: _unpadded(path, leaf, trunk) for path, leaf in leaves.items()}
  groups: dict[str, list[tuple[Entry, int | None]]] = {}
  for entry in entries:
    layers: list[int | None] = [*range(leaves[entry.ours].shape[0])] if entry.stacked else [None]
    for layer in layers:
      name = entry.theirs if layer is None else entry.name(layer)
      groups.setdefault(name, []).append((entry, layer))
  empty = {name: Plan(np.dtype(np.float32), shape, _zeros(shape)) for name, shape in zeros.items()}
  return {name: _plan(group, leaves) for name, group in groups.items()} | empty


def _unpadded(path: str, leaf: Leaf, trunk: nn.Module) -> Leaf:
  """Without the rows that `vocab_multiple` adds to a table of tokens."""
  if path not in (_TOKENS, 'trunk/output/table'):
    return leaf
  return Leaf((trunk.vocab_size, *leaf.shape[1:]), lambda layer: leaf.read(layer)[: trunk.vocab_size])


def _zeros(shape: tuple[int, ...]) -> Callable[[], Iterator[np.ndarray]]:
  return lambda: iter([np.zeros(shape, np.float32)])


def _plan(group: Sequence[tuple[Entry, int | None]], leaves: Mapping[str, Leaf]) -> Plan:
  def part(entry: Entry, layer: int | None) -> np.ndarray:
    return table.to_theirs(entry, leaves[entry.ours].read(layer))

  first, layer = group[0]
  own = leaves[first.ours].shape
  shape = list(table.shape_of_theirs(first, own if layer is None else own[1:]))
  if first.part is None:
    return Plan(np.dtype(np.float32), tuple(shape), lambda: _pieces(part(first, layer)))
  joined = first.part
  shape[joined.axis] = joined.total * joined.groups
  if sum(entry.part.stop - entry.part.start for entry, _ in group if entry.part) != joined.total:
    raise WeightsError(f'the parts of {first.theirs!r} do not fill it: {", ".join(entry.ours for entry, _ in group)}')

  def join() -> Iterator[np.ndarray]:
    whole = np.empty(shape, np.float32)
    for entry, layer in group:
      assert entry.part is not None
      place = table.section(whole, entry.part)
      place[...] = part(entry, layer).reshape(place.shape)
    yield from _pieces(whole)

  return Plan(np.dtype(np.float32), tuple(shape), join)


def _pieces(view: np.ndarray) -> Iterator[np.ndarray]:
  """The elements of a view in order, float32, some rows at a time."""
  if view.ndim == 0:
    yield np.asarray(view, np.float32)
    return
  rows = max(1, _PIECE // max(1, view[0].size)) if len(view) else 1
  for start in range(0, len(view), rows):
    yield np.ascontiguousarray(view[start : start + rows], np.float32)


def _architecture_of(source: Release, name: str | None) -> Architecture:
  """The architecture of a folder, by its config.json or by name."""
  known = architectures()
  model_type = source.config.get('model_type')
  types = sorted({own for architecture in known for own in architecture.module.MODEL_TYPES})
  for architecture in known:
    if model_type in architecture.module.MODEL_TYPES and name in (None, architecture.name):
      return architecture
  if name is not None and name not in [architecture.name for architecture in known]:
    raise WeightsError(f'there is no architecture {name!r}; choices are {", ".join(a.name for a in known)}')
  what = f', and not one of {name!r}' if model_type in types else ''
  raise WeightsError(
    f'{source.folder / release.CONFIG}: model_type {model_type!r} is not known here{what}; known are {", ".join(types)}'
  )


def heads_with_a_place(trunk: nn.Module) -> set[str]:
  """The heads that published forms of the trunk have, all taken together."""
  own = type(trunk).__module__.rpartition('.')[2]
  return {head for a in architectures() if own == a.module.MODEL for head in a.module.HEADS}


def _choose(trunk: nn.Module, heads: Sequence[str], name: str | None) -> tuple[Architecture, dict[str, Any]]:
  """The architecture whose published form has room for a trunk and its heads, and its config.json."""
  own = type(trunk).__module__.rpartition('.')[2]
  known = [a for a in architectures() if own == a.module.MODEL and name in (None, a.name)]
  reasons = []
  for architecture in sorted(known, key=lambda architecture: architecture.name != own):
    try:
      return architecture, architecture.module.write_config(trunk, heads)
    except ValueError as error:
      reasons.append(f'{architecture.name}: {error}')
  if name is not None and not known:
    raise WeightsError(f'{name!r} is not a published form of a {type(trunk).__name__}')
  raise WeightsError(
    f'no published form has room for this {type(trunk).__name__} with heads {", ".join(heads) or "none"}'
    + ''.join(f'\n  {reason}' for reason in reasons)
  )


def _own_model(path: Path, part: Part) -> tuple[dict[str, Any], int]:
  """The model block and the vocabulary size of a run folder or of an import."""
  try:
    if (path / param_files.INDEX).is_file():
      about = json.loads((path / 'model.json').read_text(encoding='utf-8'))
      return about['model'], about['vocab_size']
    settings = json.loads((path / 'config.json').read_text(encoding='utf-8'))
    vocab = json.loads((path / 'vocab' / 'vocab.json').read_text(encoding='utf-8'))
    model = settings['model'] if part == 'trunk' else (settings['objective'] or {}).get('generator')
  except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
    raise WeightsError(
      f'{path} is neither a Hugging Face folder (config.json with a model_type) nor a run folder nor an import: {error}'
    ) from error
  if model is None:
    raise WeightsError(f'{path / "config.json"}: the objective of this run has no generator')
  return model, vocab['size']


def _flat_heads(params: Mapping[str, Any]) -> PyTree:
  """{'trunk': ..., <head>: ...} -> the trunk's own tree with the heads beside its parts."""
  heads = {name: tree for name, tree in params.items() if name != 'trunk'}
  return {**params['trunk'], **heads}


def _split_heads(trunk: nn.Module, params: Mapping[str, Any]) -> dict[str, Any]:
  """Undoes `_flat_heads`; leaves the parameters of a run as they are."""
  if 'trunk' in params:
    return dict(params)
  own = {path.split('/')[0] for path in whole.shapes(trunk)}
  heads = {name: tree for name, tree in params.items() if name not in own}
  return {'trunk': {name: tree for name, tree in params.items() if name in own}, **heads}
