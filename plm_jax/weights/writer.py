"""Writes a trunk and its parameters as a release, a folder in Hugging Face's form."""

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import flax.linen as nn
import numpy as np

from plm_jax import files
from plm_jax.checkpoint import Leaf, in_memory
from plm_jax.checkpoint.tensor_files import Plan, WeightsError
from plm_jax.types import PyTree, Template
from plm_jax.weights import release, shapes, table
from plm_jax.weights.table import TOKENS, Architecture, Entry, architectures, pieces

log = logging.getLogger(__name__)


def save(
  folder: str | os.PathLike[str],
  trunk: nn.Module,
  params: PyTree,
  *,
  architecture: str | None = None,
  tokenizer: str | os.PathLike[str] | None = None,
) -> Path:
  """Writes a folder in Hugging Face's form.

  Args:
    folder: made if it is missing; weights in it are replaced.
    trunk: a trunk of this package.
    params: as `load` gives them, or `{'trunk': ..., <head>: ...}` as a run has them.
    architecture: a file of `architectures/`; by default the first whose published form has a place for everything.
    tokenizer: a folder whose tokenizer is copied, such as the one that was loaded.

  Raises:
    WeightsError: no published form has a place for the trunk and its heads, or a parameter is missing or of another
      shape.
  """
  path = files.path(folder).absolute()
  extra = None if tokenizer is None else files.path(tokenizer)
  save_leaves(path, trunk, in_memory(_split_heads(trunk, params)), architecture=architecture, tokenizer=extra)
  return path


def save_leaves(
  path: Path,
  trunk: nn.Module,
  leaves: Mapping[str, Leaf],
  *,
  architecture: str | None = None,
  tokenizer: Path | None = None,
  template: Template | None = None,
  token_ids: Mapping[str, int | None] = MappingProxyType({}),
  labels: Sequence[str] = (),
  shard: int = release.SHARD,
) -> None:
  """As `save`, from leaves that are read one at a time.

  Args:
    path: the folder to write.
    trunk: a trunk of this package.
    leaves: by path ('trunk/...', '<head>/...').
    architecture: as in `save`.
    tokenizer: a folder whose tokenizer is copied.
    template: what stands around a text in its rows, where that folder does not say so.
    token_ids: fields of config.json such as pad_token_id, in place of the usual ones of the architecture.
    labels: names of the classes of a head that classifies.
    shard: the most bytes per file of tensors.
  """
  heads = sorted({name.split('/')[0] for name in leaves} - {'trunk'})
  chosen, config = published_form(trunk, heads, architecture)
  try:
    chosen.module.read_config({**config, **token_ids})
    config |= token_ids
  except ValueError as error:
    log.warning(
      'The ids of the special tokens are left out of config.json, because the published form fixes them (%s). If '
      'positions depend on them, pass position_ids to models that read the folder', error
    )  # fmt: skip
  if 'head' in heads:
    config |= classifier(config, leaves, chosen, labels)
  release.write(
    path,
    config,
    plans(trunk, leaves, chosen),
    shard=shard,
    tokenizer=tokenizer,
    template=template,
    types=getattr(chosen.module, 'TYPED', False),
  )


def plans(trunk: nn.Module, leaves: Mapping[str, Leaf], architecture: Architecture) -> dict[str, Plan]:
  """Tensor of the published form -> how to write it; a leaf is read, layer by layer, when its tensor is written.

  Args:
    trunk: a trunk of this package.
    leaves: by path ('trunk/...', '<head>/...').
    architecture: that of the published form.

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
  expected = {f'trunk/{path}': shape for path, shape in shapes.shapes(trunk).items()}
  for path, leaf in leaves.items():
    if leaf.shape != expected.get(path, leaf.shape):
      raise WeightsError(f'parameter {path!r} is {list(leaf.shape)}, and this trunk has {list(expected[path])}')
  leaves = {path: _unpadded(path, leaf, trunk) for path, leaf in leaves.items()}
  groups: dict[str, list[tuple[Entry, int | None]]] = {}
  for entry in entries:
    layers: list[int | None] = [*range(leaves[entry.ours].shape[0])] if entry.stacked else [None]
    for layer in layers:
      for name in (entry.theirs if layer is None else entry.name(layer), *entry.spare):
        groups.setdefault(name, []).append((entry, layer))
  empty = {name: Plan(np.dtype(np.float32), shape, _zeros(shape)) for name, shape in zeros.items()}
  return {name: _plan(group, leaves) for name, group in groups.items()} | empty


def classifier(
  config: Mapping[str, Any], leaves: Mapping[str, Leaf], architecture: Architecture, labels: Sequence[str]
) -> dict[str, Any]:
  """Fields of config.json for a head that classifies: the class of theirs, and the names of the labels.

  Raises:
    WeightsError: the head is built otherwise than any class of theirs.
  """
  kind = getattr(architecture.module, 'CLASSIFIER', None)
  one_layer, pooled = 'head/kernel' in leaves, 'trunk/pooler/kernel' in leaves
  if kind == 'pooler' and not one_layer:
    raise WeightsError(f'{architecture.name} classifies by one layer: train with adapter.hidden=0')
  if kind == 'two layers' and pooled:
    raise WeightsError(
      f'{architecture.name} classifies rows by two layers on the first token itself, and tokens by one: train with '
      "model.overrides.pooler='first' and, for rows, with adapter.hidden"
    )
  outputs = leaves['head/kernel' if one_layer else 'head/out/kernel'].shape[-1]
  names = list(labels) if len(labels) == outputs else [f'LABEL_{number}' for number in range(outputs)]
  out: dict[str, Any] = {
    'id2label': {str(number): name for number, name in enumerate(names)},
    'label2id': {name: number for number, name in enumerate(names)},
  }
  if kind and one_layer and not pooled:
    family = config['architectures'][0].removesuffix('ForSequenceClassification')
    out['architectures'] = [f'{family}ForTokenClassification']
  return out


def _split_heads(trunk: nn.Module, params: Mapping[str, Any]) -> dict[str, Any]:
  """{'trunk': ..., <head>: ...} of what `load` gives, where heads stand beside the parts of the trunk."""
  if 'trunk' in params:
    return dict(params)
  own = {path.split('/')[0] for path in shapes.shapes(trunk)}
  heads = {name: tree for name, tree in params.items() if name not in own}
  return {'trunk': {name: tree for name, tree in params.items() if name in own}, **heads}


def _unpadded(path: str, leaf: Leaf, trunk: nn.Module) -> Leaf:
  """A leaf without the rows that `vocab_multiple` adds to a table of tokens."""
  if path not in (TOKENS, 'trunk/output/table'):
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
    return Plan(np.dtype(np.float32), tuple(shape), lambda: pieces(part(first, layer)))
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
    yield from pieces(whole)

  return Plan(np.dtype(np.float32), tuple(shape), join)


def heads_with_a_place(trunk: nn.Module, paths: Collection[str]) -> set[str]:
  """The heads whose parameters, of `paths`, all have a place in a published form of the trunk."""
  found = set()
  for module in (a.module for a in architectures() if trunk.NAME == a.module.MODEL):
    for head in module.HEADS:
      with contextlib.suppress(ValueError):  # a form that this trunk has not
        places = {entry.ours for entry in module.entries(trunk, (head,))}
        found |= {head} if all(path in places for path in paths if path.startswith(f'{head}/')) else set()
  return found


def published_form(trunk: nn.Module, heads: Sequence[str], name: str | None) -> tuple[Architecture, dict[str, Any]]:
  """The architecture whose published form has a place for a trunk and its heads, and its config.json."""
  known = [a for a in architectures() if trunk.NAME == a.module.MODEL and name in (None, a.name)]
  reasons = []
  for architecture in sorted(known, key=lambda architecture: architecture.name != trunk.NAME):
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
