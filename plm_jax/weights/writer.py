"""Writer of trunks and their parameters as folders in Hugging Face's form."""

import contextlib
import dataclasses
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
from plm_jax.weights.class_heads import check_heads, is_task
from plm_jax.weights.table import HEAD, OUTPUT, TOKENS, Architecture, Entry, architectures, entries_of, pieces

log = logging.getLogger(__name__)

_ROLES = ('pad', 'bos', 'eos')  # special tokens whose ids are in config.json
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
  """Write a folder in Hugging Face's form.

  Args:
    folder: created if missing; weights in it are replaced.
    params: as `load` returns them, or `{'trunk': ..., <head>: ...}` as in a run.
    architecture: a file of `architectures/`; by default the first that can express everything.
    tokenizer: a folder whose tokenizer is copied, such as the one that was loaded. If it has a config.json, the ids of
      the tokens that begin, end and pad texts are taken from it; classes for classification by decoders (Llama) need
      them.
    adapter: computes the head of a task ('tag'), which determines the class; by default classification of texts, or of
      tokens if the parameters show it.

  Raises:
    WeightsError: no published form can express the trunk and its heads, or a parameter is missing or of another shape.
  """
  path = files.absolute(files.path(folder))
  extra = None if tokenizer is None else files.path(tokenizer)
  leaves, block = in_memory(_split_heads(trunk, params)), {'name': adapter} if adapter else {}
  theirs = {} if extra is None else files.read_json(extra / 'config.json', default={})
  own = {} if extra is None else release.token_ids(extra)  # for a vocabulary of this package
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
  finish: Callable[[Path], None] = lambda folder: None,
) -> None:
  """Write a folder as `save`, reading one leaf at a time.

  Args:
    leaves: by path ('trunk/...', '<head>/...').
    template: special tokens around a text, if that folder does not specify them.
    token_ids: fields of config.json such as pad_token_id, instead of the architecture's defaults.
    adapter: the block of the adapter that computes the head of a task, if it is known.
    labels: class names of a classification head.
    shard: maximum bytes per file of tensors.
    finish: as in `release.write`.
  """
  chosen, heads, config = published_form(trunk, leaves, architecture, adapter=adapter)
  pad = token_ids.get('pad_token_id')
  if getattr(chosen.module, 'AFTER_PADDING', False) and pad is not None and pad != config['pad_token_id']:
    trunk, leaves = _after_padding(trunk, leaves, pad + 1)
    chosen, heads, config = published_form(trunk, leaves, architecture, adapter=adapter)
  if any(map(is_task, heads)):
    leaves = {path: leaf for path, leaf in leaves.items() if path != OUTPUT}  # their task classes have none
    token_ids = _ends(trunk, config, token_ids, template)
    if any(task.unpadded for head, task in chosen.module.tasks(trunk).items() if head in heads):
      _check_padding({**config, **token_ids}, template)
      if {**config, **token_ids}.get('pad_token_id') is None:
        log.warning(
          'config.json of %s has no pad_token_id, so transformers can only classify one text at a time: give the '
          'folder of the tokenizer, weights.save(..., tokenizer=FOLDER)', path
        )  # fmt: skip
  tensors = plans(trunk, leaves, chosen, heads)
  token_ids = _unforced(chosen, token_ids)
  try:
    chosen.module.read_config({**config, **token_ids}, tensors.keys())
    config |= token_ids
  except ValueError as error:
    log.warning(
      'config.json has no ids of special tokens, since the published form fixes them (%s). If positions depend on '
      'them, pass position_ids to models that read the folder', error
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
    finish=finish,
  )


def _after_padding(trunk: Any, leaves: Mapping[str, Leaf], offset: int) -> tuple[nn.Module, dict[str, Leaf]]:
  """Move the rows of positions so that position 0 is row `offset`."""
  path, c = 'trunk/position_embed/table', trunk.config
  positions = leaves[path]

  def read(layer: int | None) -> np.ndarray:
    rows = positions.read(layer)
    return np.concatenate([np.zeros_like(rows, shape=(offset, *rows.shape[1:])), rows[c.position_offset :]])

  moved = trunk.clone(config=dataclasses.replace(c, position_offset=offset))
  return moved, {**leaves, path: Leaf((offset + c.max_length, *positions.shape[1:]), read)}


def plans(
  trunk: nn.Module, leaves: Mapping[str, Leaf], architecture: Architecture, heads: Sequence[str]
) -> dict[str, Plan]:
  """Plan how to write each tensor; leaves are read layer by layer.

  Raises:
    WeightsError: a parameter is missing, of another shape, or cannot be expressed.
  """
  entries = entries_of(architecture, trunk, heads)
  zeros = {entry.theirs: entry.zeros for entry in entries if entry.zeros is not None}
  entries = [entry for entry in entries if entry.zeros is None and not (entry.optional and entry.ours not in leaves)]
  if missing := sorted({entry.ours for entry in entries} - set(leaves)):
    raise WeightsError(f'parameter {missing[0]!r} is missing (1 of {len(missing)}): save all parameters of the trunk')
  if unsupported := sorted(set(leaves) - {entry.ours for entry in entries}):
    raise WeightsError(f'the published form of {architecture.name} has no {", ".join(unsupported[:8])}: leave them out')
  expected = {f'trunk/{path}': shape for path, shape in shapes.shapes(trunk).items()}
  for path, leaf in leaves.items():
    if leaf.shape != expected.get(path, leaf.shape):
      raise WeightsError(
        f'parameter {path!r} has shape {list(leaf.shape)}, this trunk has {list(expected[path])}: use its parameters'
      )
  leaves = {path: _unpadded(path, leaf, trunk) for path, leaf in leaves.items()}
  groups: dict[str, list[tuple[Entry, int | None]]] = {}
  for entry in entries:
    layers: list[int | None] = [*range(leaves[entry.ours].shape[0])] if entry.stacked else [None]
    for layer in layers:
      for name in (entry.theirs if layer is None else entry.name(layer), *entry.spare):
        groups.setdefault(name, []).append((entry, layer))
  empty = {name: table.plan_of(np.zeros(shape, np.float32)) for name, shape in zeros.items()}
  return {name: _plan(group, leaves) for name, group in groups.items()} | empty


def task_fields(leaves: Mapping[str, Leaf], adapter: Mapping[str, Any], labels: Sequence[str]) -> dict[str, Any]:
  """Build the fields of config.json for a task head (`task_heads.to_fields`)."""
  last = next((path for path in (f'{HEAD}/out/kernel', f'{HEAD}/kernel') if path in leaves), None)
  return {} if last is None else task_heads.to_fields(adapter, labels, leaves[last].shape[-1])


def _ends(
  trunk: nn.Module, config: Mapping[str, Any], token_ids: Mapping[str, int | None], template: Template | None
) -> dict[str, int | None]:
  """Set where a labelling decoder starts and is read (`texts.both_sides`)."""
  if not config.get('is_encoder_decoder'):
    return dict(token_ids)
  last = template.single[-1][0] if template is not None else None
  given = {**config, **{name: value for name, value in token_ids.items() if value is not None}}
  end = last if isinstance(last, int) else given['eos_token_id']
  start, own_end = getattr(trunk.config, 'label_start', None), getattr(trunk.config, 'label_end', None)
  end = end if own_end is None else own_end
  return {**token_ids, 'eos_token_id': end, 'decoder_start_token_id': end if start is None else start}


def _unforced(chosen: Architecture, token_ids: Mapping[str, int | None]) -> dict[str, int | None]:
  """Set the forced last token to null unless the vocabulary has it."""
  end, fields = token_ids.get('eos_token_id'), chosen.module.FIELDS
  differs = _LAST in fields and end is not None and end != fields[_LAST].default
  return {_LAST: None, **token_ids} if differs else dict(token_ids)


def _check_padding(config: Mapping[str, Any], template: Template | None) -> None:
  pad, last = config.get('pad_token_id'), None if template is None else template.single[-1][0]
  if isinstance(last, int) and last == pad:
    raise WeightsError(
      f'token {last} both ends and pads the sequences of this run, but ForSequenceClassification reads the last token '
      'that is no padding: train with data.layout=bare, or begin if the vocabulary has a BOS token'
    )


def _split_heads(trunk: nn.Module, params: Mapping[str, Any]) -> dict[str, Any]:
  """Separate the heads of the output of `load`: {'trunk': ..., <head>: ...}."""
  if 'trunk' in params:
    return dict(params)
  own = {path.split('/')[0] for path in shapes.shapes(trunk)}
  heads = {name: tree for name, tree in params.items() if name not in own}
  return {'trunk': {name: tree for name, tree in params.items() if name in own}, **heads}


def _unpadded(path: str, leaf: Leaf, trunk: nn.Module) -> Leaf:
  """Return a leaf without the rows that `vocab_multiple` adds."""
  if path not in (TOKENS, OUTPUT):
    return leaf
  return Leaf((trunk.vocab_size, *leaf.shape[1:]), lambda layer: leaf.read(layer)[: trunk.vocab_size])


def _plan(group: Sequence[tuple[Entry, int | None]], leaves: Mapping[str, Leaf]) -> Plan:
  def part(entry: Entry, layer: int | None) -> np.ndarray:
    return table.to_theirs(entry, leaves[entry.ours].read(layer))

  first, layer = group[0]
  own_shape = leaves[first.ours].shape
  shape = list(table.shape_of_theirs(first, own_shape if layer is None else own_shape[1:]))
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
      target = table.section(whole, entry.part)
      target[...] = part(entry, layer).reshape(target.shape)
    yield from pieces(whole)

  return Plan(np.dtype(np.float32), tuple(shape), join)


def heads_with_a_place(trunk: nn.Module, paths: Collection[str]) -> set[str]:
  """Find the heads that a published form can fully express."""
  heads = set()
  for module in (a.module for a in architectures() if trunk.NAME == a.module.MODEL):
    for head in module.HEADS:
      with contextlib.suppress(ValueError):  # the trunk does not have this form
        ours = {entry.ours for entry in module.entries(trunk, (head,))}
        heads |= {head} if all(path in ours for path in paths if path.startswith(f'{head}/')) else set()
  return heads


class Form(NamedTuple):
  """A published form of a trunk: the architecture, its heads as `entries` takes them, config.json."""

  architecture: Architecture
  heads: list[str]
  config: dict[str, Any]


def published_form(
  trunk: nn.Module, leaves: Mapping[str, Leaf], name: str | None, *, adapter: Mapping[str, Any]
) -> Form:
  """Choose the published form that can express a trunk and its heads.

  Args:
    name: of the architecture; None takes the first that fits.
    adapter: the block of the adapter that computes the head of a task, if it is known.

  Raises:
    WeightsError: there is none; the message has the reason of each architecture.
  """
  heads = sorted({path.split('/')[0] for path in leaves} - {'trunk'})
  candidates = [a for a in architectures() if trunk.NAME == a.module.MODEL and name in (None, a.name)]
  reasons: dict[Architecture, str] = {}
  for architecture in sorted(candidates, key=lambda architecture: architecture.name != trunk.NAME):
    module = architecture.module
    try:
      task = [task_heads.find(architecture, trunk, leaves, adapter)] if HEAD in heads else []
      named = [head for head in heads if head != HEAD] + task
      check_heads(named, module.HEADS, module.tasks(trunk))
      return Form(architecture, named, module.write_config(trunk, named))
    except ValueError as error:
      reasons[architecture] = f'{architecture.name}: {error}'
  if name is not None and not candidates:
    raise WeightsError(f'{name!r} is not a published form of {type(trunk).__name__}: leave out the architecture')
  if HEAD in heads:  # reasons about the head only come from forms that fit the trunk
    reasons = {
      architecture: reason for architecture, reason in reasons.items() if _has_form(architecture, trunk)
    } or reasons
  raise WeightsError(
    f'no published form fits this {type(trunk).__name__} with heads {", ".join(heads) or "none"}'
    + (''.join(f'\n  {reason}' for reason in reasons.values()) or _other_forms(trunk))
  )


def _other_forms(trunk: nn.Module) -> str:
  own = '`plm-jax convert export RUN FOLDER --form=own` exports the trunk for this package'
  vectors = ', and `plm-jax vectors save --workdir=RUN --out=FILE` the word vectors for other libraries'
  return f': {own}{vectors if trunk.NAME == "static" else ""}'


def without_class(trunk: nn.Module, leaves: Mapping[str, Leaf], adapter: Mapping[str, Any]) -> str:
  """Explain why no class computes an adapter's head; empty if one does.

  Only shapes of leaves are used. A trunk without a published form also gives an empty text.
  """
  if not any(
    _has_form(architecture, trunk) for architecture in architectures() if trunk.NAME == architecture.module.MODEL
  ):
    return ''
  try:
    published_form(trunk, leaves, None, adapter=adapter)
  except WeightsError as error:
    return '; '.join(line.strip() for line in str(error).splitlines()[1:])
  return ''


def _has_form(architecture: Architecture, trunk: nn.Module) -> bool:
  try:
    architecture.module.write_config(trunk, ())
  except ValueError:
    return False
  return True
