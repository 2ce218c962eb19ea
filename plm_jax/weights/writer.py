"""Writes a trunk and its parameters as a release, a folder in Hugging Face's form."""

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import flax.linen as nn
import numpy as np

from plm_jax.checkpoint import Leaf, in_memory
from plm_jax.checkpoint.tensor_files import Plan, WeightsError
from plm_jax.core.trunk import longest_row
from plm_jax.core.types import PyTree, Template
from plm_jax.io import files
from plm_jax.weights import release, shapes, table, task_heads
from plm_jax.weights.table import HEAD, OUTPUT, TOKENS, Architecture, Entry, architectures, entries_of, is_task, pieces

log = logging.getLogger(__name__)

_ROLES = ('pad', 'bos', 'eos')  # of special tokens, whose ids config.json has
_LAST = 'forced_eos_token_id'


def save(
  folder: str | os.PathLike[str],
  trunk: nn.Module,
  params: PyTree,
  *,
  architecture: str | None = None,
  tokenizer: str | os.PathLike[str] | None = None,
  adapter: str | None = None,
) -> Path:
  """Writes a folder in Hugging Face's form.

  Args:
    folder: made if it is missing; weights in it are replaced.
    trunk: a trunk of this package.
    params: as `load` gives them, or `{'trunk': ..., <head>: ...}` as a run has them.
    architecture: a file of `architectures/`; by default the first whose published form has a place for everything.
    tokenizer: a folder whose tokenizer is copied, such as the one that was loaded; its config.json, where it has one,
      says which tokens begin, end and pad rows, which classes for rows of decoders (Llama) have to know.
    adapter: that computes the head of a task ('tag'), which decides on its class; by default one that classifies rows,
      or tokens where its parameters say so.

  Raises:
    WeightsError: no published form has a place for the trunk and its heads, or a parameter is missing or of another
      shape.
  """
  path = files.absolute(files.path(folder))
  extra = None if tokenizer is None else files.path(tokenizer)
  leaves, block = in_memory(_split_heads(trunk, params)), {'name': adapter} if adapter else {}
  theirs = {} if extra is None else files.read_json(extra / 'config.json', default={})
  own = {} if extra is None else release.token_ids(extra)  # of a vocabulary of this package
  ids = {f'{role}_token_id': own[role] for role in _ROLES if role in own}
  ids |= {name: theirs[name] for name in release.TOKEN_IDS if isinstance(theirs.get(name), int | list)}
  save_leaves(path, trunk, leaves, architecture=architecture, tokenizer=extra, adapter=block, token_ids=ids)
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
  adapter: Mapping[str, Any] = MappingProxyType({}),
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
    adapter: the block of the adapter that computes the head of a task, where it is known.
    labels: names of the classes of a head that classifies.
    shard: the most bytes per file of tensors.
  """
  chosen, heads, config = published_form(trunk, leaves, architecture, adapter=adapter)
  if any(map(is_task, heads)):
    leaves = {path: leaf for path, leaf in leaves.items() if path != OUTPUT}  # their classes for tasks have none
    token_ids = _ends(config, token_ids, template)
    if any(task.unpadded for head, task in chosen.module.tasks(trunk).items() if head in heads):
      _check_padding({**config, **token_ids}, template)
      if {**config, **token_ids}.get('pad_token_id') is None:
        log.warning(
          'config.json of %s has no pad_token_id, without which transformers classifies one row at a time: name the '
          'folder of the tokenizer (weights.save(..., tokenizer=FOLDER))', path
        )  # fmt: skip
  tensors = plans(trunk, leaves, chosen, heads)
  token_ids = _unforced(chosen, token_ids)
  try:
    chosen.module.read_config({**config, **token_ids}, tensors.keys())
    config |= token_ids
  except ValueError as error:
    log.warning(
      'The ids of the special tokens are left out of config.json, because the published form fixes them (%s). If '
      'positions depend on them, pass position_ids to models that read the folder', error
    )  # fmt: skip
  release.write(
    path,
    config | task_fields(leaves, adapter, labels),
    tensors,
    shard=shard,
    tokenizer=tokenizer,
    template=template,
    types=getattr(chosen.module, 'TYPED', False),
    longest=longest_row(trunk),
  )


def plans(
  trunk: nn.Module, leaves: Mapping[str, Leaf], architecture: Architecture, heads: Sequence[str]
) -> dict[str, Plan]:
  """Tensor of the published form -> how to write it; a leaf is read, layer by layer, when its tensor is written.

  Args:
    trunk: a trunk of this package.
    leaves: by path ('trunk/...', '<head>/...').
    architecture: that of the published form.
    heads: as its `entries` take them.

  Raises:
    WeightsError: a parameter is missing, of another shape, or has no place.
  """
  entries = entries_of(architecture, trunk, heads)
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


def task_fields(leaves: Mapping[str, Leaf], adapter: Mapping[str, Any], labels: Sequence[str]) -> dict[str, Any]:
  """Fields of config.json for the head of a task among the leaves, if there is one; see `task_heads.to_fields`."""
  last = next((path for path in (f'{HEAD}/out/kernel', f'{HEAD}/kernel') if path in leaves), None)
  return {} if last is None else task_heads.to_fields(adapter, labels, leaves[last].shape[-1])


def _ends(
  config: Mapping[str, Any], token_ids: Mapping[str, int | None], template: Template | None
) -> dict[str, int | None]:
  """The ids of special tokens where a decoder labels a text: it starts with what ends a text (`texts.both_sides`)."""
  if not config.get('is_encoder_decoder') or 'decoder_start_token_id' not in config:
    return dict(token_ids)
  last = template.single[-1][0] if template is not None else None
  given = {**config, **{name: value for name, value in token_ids.items() if value is not None}}
  end = last if isinstance(last, int) else given['eos_token_id']
  return {**token_ids, 'eos_token_id': end, 'decoder_start_token_id': end}


def _unforced(chosen: Architecture, token_ids: Mapping[str, int | None]) -> dict[str, int | None]:
  """The ids of special tokens with null for the token that ends a text which was cut, where nobody names it.

  The default of the class is </s> of the published vocabulary, which is another token of another vocabulary.
  """
  end, known = token_ids.get('eos_token_id'), chosen.module.FIELDS
  other = _LAST in known and end is not None and end != known[_LAST].default
  return {_LAST: None, **token_ids} if other else dict(token_ids)


def _check_padding(config: Mapping[str, Any], template: Template | None) -> None:
  """Raises WeightsError where rows end with the token that pads them: a class of theirs would read the one before."""
  pad, last = config.get('pad_token_id'), None if template is None else template.single[-1][0]
  if isinstance(last, int) and last == pad:
    raise WeightsError(
      f'rows of this run end with the token {last}, which pads them as well, and ForSequenceClassification reads the '
      'last token that is no padding: train with data.layout=bare, or with data.layout=begin where the vocabulary has '
      'a token that begins a text'
    )


def _split_heads(trunk: nn.Module, params: Mapping[str, Any]) -> dict[str, Any]:
  """{'trunk': ..., <head>: ...} of what `load` gives, where heads stand beside the parts of the trunk."""
  if 'trunk' in params:
    return dict(params)
  own = {path.split('/')[0] for path in shapes.shapes(trunk)}
  heads = {name: tree for name, tree in params.items() if name not in own}
  return {'trunk': {name: tree for name, tree in params.items() if name in own}, **heads}


def _unpadded(path: str, leaf: Leaf, trunk: nn.Module) -> Leaf:
  """A leaf without the rows that `vocab_multiple` adds to a table of tokens."""
  if path not in (TOKENS, OUTPUT):
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


class Form(NamedTuple):
  """A published form of a trunk with its heads: the architecture, the heads as its `entries` take them, config.json."""

  architecture: Architecture
  heads: list[str]
  config: dict[str, Any]


def published_form(
  trunk: nn.Module, leaves: Mapping[str, Leaf], name: str | None, *, adapter: Mapping[str, Any]
) -> Form:
  """The published form that has a place for a trunk and its heads.

  Args:
    trunk: a trunk of this package.
    leaves: by path ('trunk/...', '<head>/...').
    name: of the architecture; None takes the first that fits.
    adapter: the block of the adapter that computes the head of a task, where it is known.

  Raises:
    WeightsError: there is none; the message has the reason of each architecture.
  """
  heads = sorted({path.split('/')[0] for path in leaves} - {'trunk'})
  known = [a for a in architectures() if trunk.NAME == a.module.MODEL and name in (None, a.name)]
  reasons: dict[Architecture, str] = {}
  for architecture in sorted(known, key=lambda architecture: architecture.name != trunk.NAME):
    try:
      task = [task_heads.find(architecture, trunk, leaves, adapter)] if HEAD in heads else []
      named = [head for head in heads if head != HEAD] + task
      return Form(architecture, named, architecture.module.write_config(trunk, named))
    except ValueError as error:
      reasons[architecture] = f'{architecture.name}: {error}'
  if name is not None and not known:
    raise WeightsError(f'{name!r} is not a published form of a {type(trunk).__name__}')
  if HEAD in heads:  # those that have not even a form of the trunk say nothing of the head
    reasons = {one: reason for one, reason in reasons.items() if _has_form(one, trunk)} or reasons
  raise WeightsError(
    f'no published form has room for this {type(trunk).__name__} with heads {", ".join(heads) or "none"}'
    + (''.join(f'\n  {reason}' for reason in reasons.values()) or _other_forms(trunk))
  )


def _other_forms(trunk: nn.Module) -> str:
  """What writes a trunk that has no published form, for a message."""
  own = '`plm-jax convert export RUN FOLDER --form=own` writes the trunk for use here'
  vectors = ', and `plm-jax vectors save --workdir=RUN --out=FILE` the word vectors for other libraries'
  return f': {own}{vectors if trunk.NAME == "static" else ""}'


def without_class(trunk: nn.Module, leaves: Mapping[str, Leaf], adapter: Mapping[str, Any]) -> str:
  """Why no class of a published form computes the head of an adapter; empty where one does, or the trunk has no form.

  Args:
    trunk: whose head it is.
    leaves: by path, of which the shapes count.
    adapter: its block.
  """
  if not any(_has_form(one, trunk) for one in architectures() if trunk.NAME == one.module.MODEL):
    return ''
  try:
    published_form(trunk, leaves, None, adapter=adapter)
  except WeightsError as error:
    return '; '.join(line.strip() for line in str(error).splitlines()[1:])
  return ''


def _has_form(architecture: Architecture, trunk: nn.Module) -> bool:
  """Whether an architecture has a published form of a trunk without heads."""
  try:
    architecture.module.write_config(trunk, ())
  except ValueError:
    return False
  return True
