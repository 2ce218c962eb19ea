"""Imports and exports of whole folders in bounded memory: what `plm-jax convert` does."""

import functools
import json
import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import numpy as np

from plm_jax.checkpoint import Leaf, Step, params, tensor_files
from plm_jax.checkpoint.tensor_files import WeightsError
from plm_jax.core import param_paths
from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Template
from plm_jax.io import checksums, files, run_paths
from plm_jax.text import tokenizer
from plm_jax.weights import bilm, folders, release, writer
from plm_jax.weights.folders import Part
from plm_jax.weights.table import HEAD, pieces

log = logging.getLogger(__name__)


def import_release(source: Path, target: Path, *, architecture: str | None = None, shard: int = 4 * 10**9) -> None:
  """Streams a Hugging Face folder into a parameter folder.

  Args:
    source: a Hugging Face folder.
    target: made if it is missing; left as it is if the import fails.
    architecture: a file of `architectures/`, where config.json leaves it open.
    shard: the most bytes per file of tensors.

  Raises:
    WeightsError: what is wrong with the source, by file and tensor.
  """
  if files.is_file(source / params.INDEX):
    raise WeightsError(f'{source} is an import already, which --config.model.from and every command read as it is')
  opened = folders.Published(source, architecture=architecture)
  reader = opened.reader
  layers = {path: leaf.shape[0] if reader.entries[path].stacked else None for path, leaf in opened.params.items()}
  about = {
    'model': reader.model,
    'vocab_size': reader.vocab_size,
    'architecture': reader.architecture.name,
    'heads': reader.heads,
    'token_ids': opened.token_ids,
    'adapter': opened.adapter,
    'labels': opened.labels,
    'source': str(source),
  }
  copied: list[str] = []
  reasons: list[str] = []

  def put_vocab(vocab: Path) -> None:
    copied.extend(release.copy_tokenizer(source, vocab))
    if copied:
      copied.extend(_put_generation(vocab, opened))
      checksums.seal(vocab, copied)
      reasons.extend(_unread(vocab, run_paths.RunFolder(target).vocab))

  _save(target, _plans(opened.params, layers), layers, about=about, put_vocab=put_vocab, shard=shard)
  count = sum(math.prod(shape) for shape in reader.shapes.values())
  log.info(f'{target}: {reader.architecture.name}, {count:,} parameters, heads: {", ".join(reader.heads) or "none"}')
  log.info(f'tokenizer: {", ".join(copied) or "the source has none"}')
  for reason in reasons:
    log.warning(
      f'the tokenizer is copied and cannot be read here: {reason}. The parameters can be used with ids '
      '(weights.load, convert export); all that reads or compares tokens says the same'
    )
  log.info(f'its model in a config: {" ".join(_flags(reader.model, spare=_multiple(reader.vocab_size, source)))}')


def _unread(vocab: Path, place: Path) -> list[str]:
  """Why texts cannot be read by a tokenizer, as its first use would say it; empty where they can.

  Args:
    vocab: folder of the tokenizer.
    place: where it will stand.
  """
  if not tokenizer.exists(vocab):
    return []
  try:
    tokenizer.load(vocab)
    tokenizer.marked(vocab)
  except ValueError as error:
    return [str(error).replace(str(vocab), str(place))]
  return []


def import_bilm(source: Path, target: Path, *, shard: int = 4 * 10**9) -> None:
  """Streams a folder of ELMo's published files into a parameter folder.

  Args:
    source: options, HDF5 weights and, if it is there, the vocabulary.
    target: made if it is missing; left as it is if the import fails.
    shard: the most bytes per file of tensors.

  Raises:
    WeightsError: what is wrong with the source, by file and field or dataset.
  """
  with bilm.opened(source) as found:
    block, vocab = found.block, found.vocab
    layers = {
      path: leaf.shape[0] if param_paths.is_stacked(path, leaf) else None for path, leaf in found.leaves.items()
    }
    about = {'model': block, 'vocab_size': vocab.size, 'heads': [], 'source': str(source)}

    def put_vocab(folder: Path) -> None:
      vocab.save(folder, template=bilm.TEMPLATE)

    _save(target, _plans(found.leaves, layers), layers, about=about, put_vocab=put_vocab, shard=shard)
  count = sum(math.prod(leaf.shape) for leaf in found.leaves.values())
  log.info(f'{target}: bilm, {count:,} parameters, heads: none, as such files hold no softmax')
  log.info(f'vocabulary: {vocab.size:,} words')
  log.info(f'its model in a config: {" ".join(_flags(block, spare=None))}')


def save_changed(
  target: Path,
  opened: folders.Weights,
  leaves: Mapping[str, np.ndarray],
  *,
  block: Mapping[str, Any],
  template: Template | None = None,
  shard: int = 4 * 10**9,
) -> None:
  """Writes changed parameters of a folder in the form of an import, which every command opens that takes one.

  Args:
    target: made if it is missing; left as it is if the writing fails.
    opened: where the parameters are from; its vocabulary goes along.
    leaves: all of them by path, of any dtype; leaves in 8 bits have their scales beside them.
    block: of the model that they belong to now.
    template: what stands around a text, where it is not what the vocabulary says.
    shard: the most bytes per file of tensors.
  """
  layers = {path: leaf.shape[0] if param_paths.is_stacked(path, leaf) else None for path, leaf in leaves.items()}
  about = {
    'model': block,
    'vocab_size': opened.model.vocab_size,
    'heads': sorted({path.partition('/')[0] for path in leaves} - {'trunk'}),
    'token_ids': opened.token_ids,
    'labels': opened.labels,
    'adapter': opened.adapter,
    'source': str(opened.folder),
  }

  def put_vocab(vocab: Path) -> None:
    files.make_folder(vocab)
    if template is not None:
      tokenizer.load(opened.vocab).save(vocab, template=template)
    for file in files.listing(opened.vocab) if template is None else ():
      if files.is_file(file):
        files.copy(file, vocab / file.name)
    _put_generation(vocab, opened)

  _save(target, _arrays(leaves, layers), layers, about=about, put_vocab=put_vocab, shard=shard)


def _put_generation(vocab: Path, opened: folders.Weights) -> list[str]:
  """Writes the settings of generation that stand in a config.json, where no file has them; returns its name if so."""
  if not opened.generation or files.exists(vocab / release.GENERATION):
    return []
  files.write_json(vocab / release.GENERATION, {**opened.token_ids, **opened.generation})
  return [release.GENERATION]


def _save(
  target: Path,
  plans: Iterable[tuple[str, tensor_files.Plan]],
  layers: Mapping[str, int | None],
  *,
  about: Mapping[str, Any],
  put_vocab: Callable[[Path], None],
  shard: int,
) -> None:
  """Writes an import.

  Args:
    target: made if it is missing; left as it is if the writing fails.
    plans: name -> tensor.
    layers: leaf path -> number of layers of a stacked leaf, None for others.
    about: the content of model.json.
    put_vocab: writes the vocabulary into a folder, which it makes.
    shard: the most bytes per file of tensors.
  """
  with release.making(target) as partial:
    for number, group in enumerate(tensor_files.shards(plans, shard), start=1):
      tensor_files.write(partial / f'params-{number:05}.safetensors', group)
    files.write_json(partial / folders.MODEL, dict(about))
    put_vocab(run_paths.RunFolder(partial).vocab)
    params.write_index(partial, layers)
    checksums.seal(partial, (folders.MODEL, params.INDEX))
    gone = [file.name for file in files.listing(target, 'params-*.safetensors')]
    release.put_in_place(partial, target, mark=params.INDEX, replaced=gone)


def export(
  source: Path,
  target: Path,
  *,
  architecture: str | None = None,
  step: Step = 'best',
  part: Part = 'trunk',
  heads: Sequence[str] | None = None,
  template: Template | None = None,
  shard: int = 4 * 10**9,
) -> None:
  """Writes a run's or an import's parameters, tokenizer included, as a Hugging Face folder.

  An import is streamed, a tensor at a time; the parameters of a run are read whole.

  Args:
    source: a run folder or an import.
    target: made if it is missing; left as it is if the export fails.
    architecture: a file of `architectures/`, where several have a place for the trunk.
    step: which step of a run.
    part: which trunk of a run that trains two, or which task of one that learned several.
    template: what stands around a text in the rows of a run that does not say so itself.
    heads: to write beside the trunk; None takes those of pre-training that a published form has, and names the others
      in the log, and of a task all.
    shard: the most bytes per file of tensors.

  Raises:
    ConfigError: the run learned several tasks, and `part` names none of them.
    WeightsError: no published form has a place for the trunk and its heads, or computes what the head of a task does.
    CheckpointError: the parameters are damaged.
  """
  opened = folders.open(source, step=step, part=part)
  if heads is None or heads:
    opened.check_one()
  trunk = opened.trunk()
  present = set(opened.heads)
  _check_heads(source, heads or (), present=present)
  if heads is None:
    kept = present if opened.adapter else present & ({HEAD} | writer.heads_with_a_place(trunk, opened.params))
  else:
    kept = set(heads)
  if left := sorted(present - kept):
    log.info(f'left out: {", ".join(left)}')
  leaves = {path: leaf for path, leaf in opened.params.items() if path.partition('/')[0] in {'trunk', *kept}}
  if kept and opened.adapter:
    _check_head(source, trunk, leaves, architecture, opened.adapter)
  writer.save_leaves(
    target,
    trunk,
    leaves,
    architecture=architecture,
    tokenizer=opened.vocab,
    template=template,
    token_ids=opened.token_ids,
    adapter=opened.adapter,
    labels=opened.labels,
    shard=shard,
  )
  log.info(f'{target}: {", ".join(file.name for file in files.listing(target))}')
  if not files.is_folder(opened.vocab):
    log.info(f'{source} has no vocabulary to go with it')


def export_own(
  source: Path,
  target: Path,
  *,
  step: Step = 'best',
  part: Part = 'trunk',
  heads: Sequence[str] = (),
  template: Template | None = None,
  shard: int = 4 * 10**9,
) -> None:
  """Writes a run's trunk, with its vocabulary, in the form of an import; also of models without a published form.

  Args:
    source: a run folder or an import.
    target: made if it is missing; left as it is if the export fails.
    step: which step of a run.
    part: which trunk of a run that trains two, or which task of one that learned several.
    heads: to write beside the trunk.
    template: what stands around a text in the rows of one task of several, which the vocabulary of the run may not say.
    shard: the most bytes per file of tensors.

  Raises:
    ConfigError: the source has no such head.
    CheckpointError: the parameters are damaged.
  """
  opened = folders.open(source, step=step, part=part)
  _check_heads(source, heads, present=opened.heads)
  kept = {'trunk', *heads}
  leaves = {path: leaf.read(None) for path, leaf in opened.params.items() if path.partition('/')[0] in kept}
  template = template if opened.task else None
  save_changed(target, opened, leaves, block=opened.model.block, template=template, shard=shard)
  log.info(f'{target}: {", ".join(file.name for file in files.listing(target))}')


def _check_heads(source: Path, heads: Sequence[str], *, present: Collection[str]) -> None:
  """Raises ConfigError where a folder lacks a head that is asked for."""
  if missing := sorted(set(heads) - set(present)):
    there = ', '.join(sorted(present)) or 'none'
    raise ConfigError(f'--heads: {source} has no {", ".join(missing)}; heads that it has: {there}')


def _check_head(
  source: Path, trunk: nn.Module, leaves: Mapping[str, Leaf], architecture: str | None, adapter: Mapping[str, Any]
) -> None:
  """Raises WeightsError where no published form computes what the head of a task does, and names the way out."""
  try:
    writer.published_form(trunk, leaves, architecture, adapter=adapter)
  except WeightsError as error:
    raise WeightsError(
      f'{source} was trained with adapter {adapter["name"]!r}: {error}\n--heads=none writes its trunk alone'
    ) from error


def _plans(leaves: Mapping[str, Leaf], layers: Mapping[str, int | None]) -> Iterator[tuple[str, tensor_files.Plan]]:
  """(name, tensor) of what an import writes, float32: a leaf as `path`, a stacked one as `path@0`, `path@1`, ..."""

  def plan(leaf: Leaf, layer: int | None) -> tensor_files.Plan:
    shape = leaf.shape if layer is None else leaf.shape[1:]
    return tensor_files.Plan(np.dtype(np.float32), shape, lambda: pieces(leaf.read(layer)))

  for path, leaf in leaves.items():
    count = layers[path]
    for layer in (None,) if count is None else range(count):
      yield path if layer is None else f'{path}@{layer}', plan(leaf, layer)


def _arrays(
  leaves: Mapping[str, np.ndarray], layers: Mapping[str, int | None]
) -> Iterator[tuple[str, tensor_files.Plan]]:
  """As `_plans`, of arrays in memory and in their own dtype."""
  for path, leaf in leaves.items():
    count = layers[path]
    for layer in (None,) if count is None else range(count):
      array = np.asarray(leaf if layer is None else leaf[layer], order='C')
      plan = tensor_files.Plan(array.dtype, array.shape, functools.partial(iter, (array,)))
      yield path if layer is None else f'{path}@{layer}', plan


def _multiple(rows: int, source: Path) -> int | None:
  """The smallest power of two that pads the ids of the source's tokenizer to the rows of its table; None for none."""
  size = release.tokenizer_size(source) or rows
  multiples = (2**power for power in range(3, 11))
  return next((one for one in multiples if size < rows == -(-size // one) * one), None)


def _flags(model: Mapping[str, Any], *, spare: int | None) -> list[str]:
  """The flags that give a config the model of a release."""
  overrides = model['overrides'] | ({} if spare is None else {'vocab_multiple': spare})
  flags = {'name': model['name'], 'variant': model['variant'], 'overrides': f"'{json.dumps(overrides)}'"}
  return [f'--config.model.{name}={value}' for name, value in flags.items()]
