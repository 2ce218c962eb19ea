"""Conversion of whole folders in bounded memory, for `plm-jax convert`."""

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
from plm_jax.config import build
from plm_jax.core import param_paths
from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Template
from plm_jax.io import checksums, files, model_folders, other_forms, run_paths
from plm_jax.text import tokenizer
from plm_jax.weights import bilm, folders, release, sentences, writer
from plm_jax.weights.folders import Part
from plm_jax.weights.reader import Reader
from plm_jax.weights.table import HEAD, pieces

log = logging.getLogger(__name__)


def import_release(source: Path, target: Path, *, architecture: str | None = None, shard: int = 4 * 10**9) -> None:
  """Convert published weights, one tensor at a time.

  Args:
    target: the parameter folder, created if missing; unchanged if the conversion fails.
    architecture: a file of `architectures/`, if config.json fits several.
    shard: maximum bytes per file of tensors.

  Raises:
    WeightsError: an error in the source; the message names file and tensor.
  """
  if files.is_file(source / params.INDEX):
    raise WeightsError(f'{source} is converted already: use it in --config.model.from and in every command')
  with files.temporary_folder() as folder:
    opened = _opened(source, folder, architecture)
    _import(source, target, opened, shard=shard)


def _opened(source: Path, folder: Path, architecture: str | None) -> folders.Published:
  """Open a published folder, or weights in a form of `forms/`."""
  form, weights_file, _ = other_forms.form_of(source if files.is_file(source) else model_folders.main_folder(source))
  if form:
    tensors = build.import_file(f'weights.forms.{form}').read(weights_file, folder)
    opened = folders.Published(folder if files.listing(folder) else tensors.folder, architecture=architecture)
    opened.reader = Reader(tensors, architecture=architecture)
    return opened
  weights = folders.open(source, architecture=architecture)
  if not isinstance(weights, folders.Published):
    raise WeightsError(other_forms.explain(source) or f'{source} is a run: `plm-jax convert export {source} NEW`')
  return weights


def _import(source: Path, target: Path, opened: folders.Published, *, shard: int) -> None:
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
    copied.extend(release.copy_tokenizer(opened.vocab, vocab))
    if copied:
      copied.extend(_put_generation(vocab, opened))
      checksums.seal(vocab, copied)
      reasons.extend(_unread(vocab, run_paths.RunFolder(target).vocab))

  finish = _sentence_files(source if files.is_folder(source) else opened.folder, opened, reader.trunk)
  _save(target, _plans(opened.params, layers), layers, about=about, put_vocab=put_vocab, shard=shard, finish=finish)
  count = sum(math.prod(shape) for shape in reader.shapes.values())
  log.info(f'{target}: {reader.architecture.name}, {count:,} parameters, heads: {", ".join(reader.heads) or "none"}')
  log.info(f'tokenizer: {", ".join(copied) or "the source has none"}')
  for reason in reasons:
    log.warning(
      f'the tokenizer is copied, but cannot be used here: {reason}. The parameters work with ids (weights.load, '
      'convert export); commands that read tokens give this error'
    )
  log.info(f'flags for its model: {" ".join(_flags(reader.model, spare=_multiple(reader.vocab_size, opened.vocab)))}')


def _unread(vocab: Path, final_path: Path) -> list[str]:
  """List the errors of a tokenizer's first use; empty if it works."""
  if not tokenizer.exists(vocab):
    return []
  try:
    tokenizer.load(vocab)
    tokenizer.marked(vocab)
  except ValueError as error:
    return [str(error).replace(str(vocab), str(final_path))]
  return []


def import_bilm(
  source: Path, target: Path, *, shard: int = 4 * 10**9, read: Callable[[Path], Any] = bilm.opened
) -> None:
  """Convert published files of a recurrent network, one tensor at a time.

  Args:
    source: a folder of ELMo: options, HDF5 weights and optionally the vocabulary; or what `read` reads.

  Raises:
    WeightsError: an error in the source; the message names file and field or dataset.
  """
  with read(source) as source_files:
    block, vocab = source_files.block, source_files.vocab
    layers = {
      path: leaf.shape[0] if param_paths.is_stacked(path, leaf) else None for path, leaf in source_files.leaves.items()
    }
    about = {'model': block, 'vocab_size': vocab.size, 'heads': [], 'source': str(source)}

    def put_vocab(folder: Path) -> None:
      vocab.save(folder, template=bilm.TEMPLATE if read == bilm.opened else None)

    _save(target, _plans(source_files.leaves, layers), layers, about=about, put_vocab=put_vocab, shard=shard)
  count = sum(math.prod(leaf.shape) for leaf in source_files.leaves.values())
  log.info(f'{target}: {block["name"]}, {count:,} parameters, no heads')
  log.info(f'vocabulary: {vocab.size:,} words')
  if block['name'] == 'elmo':
    log.info(
      'each sentence starts from zero states. bilm-tf and allennlp carry states from sentence to sentence: after the '
      'first, their vectors differ by design'
    )
  log.info(f'flags for its model: {" ".join(_flags(block, spare=None))}')


def save_changed(
  target: Path,
  opened: folders.Weights,
  leaves: Mapping[str, np.ndarray],
  *,
  block: Mapping[str, Any],
  template: Template | None = None,
  shard: int = 4 * 10**9,
) -> None:
  """Write changed parameters of a folder as a converted checkpoint.

  The vocabulary of `opened` is copied. `block` is that of the model now, `template` of a text if the vocabulary
  differs.
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
  """Write generation settings to their own file; return written names."""
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
  finish: Callable[[Path], None] = lambda folder: None,
) -> None:
  """Write a converted checkpoint; an existing one is unchanged if this fails.

  `layers` maps a leaf's path to its number of layers, None if not stacked. `put_vocab` creates and fills a folder.
  """
  with release.making(target) as partial:
    for file_index, group in enumerate(tensor_files.shards(plans, shard), start=1):
      tensor_files.write(partial / f'params-{file_index:05}.safetensors', group)
    files.write_json(partial / folders.MODEL, dict(about))
    put_vocab(run_paths.RunFolder(partial).vocab)
    params.write_index(partial, layers)
    finish(partial)
    checksums.seal(partial, (folders.MODEL, params.INDEX))
    old_files = [file.name for file in files.listing(target, 'params-*.safetensors')]
    release.put_in_place(partial, target, mark=params.INDEX, replaced=old_files)


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
  """Export parameters and tokenizer as a Hugging Face folder.

  A converted checkpoint is read one tensor at a time; the parameters of a run are read whole.

  Args:
    source: a run folder or a converted checkpoint.
    target: created if missing; unchanged if the export fails.
    architecture: a file of `architectures/`, if several fit the trunk.
    step: which step of a run.
    part: which trunk of a run that trains two, or which task of a multi-task run.
    template: special tokens around a text, if the run's vocabulary does not specify them.
    heads: to export with the trunk; None takes the pre-training heads that a published form has, and logs the others,
      or all heads of a task.
    shard: maximum bytes per file of tensors.

  Raises:
    ConfigError: it is a multi-task run, and `part` names no task.
    WeightsError: no published form can express the trunk and its heads, or computes the head of the task.
    CheckpointError: the parameters are damaged.
  """
  opened = folders.open(source, step=step, part=part)
  if heads is None or heads:
    opened.check_one()
  trunk = opened.trunk()
  present = set(opened.heads)
  _check_heads(source, heads or (), present=present)
  if heads is None:
    exported = present if opened.adapter else present & ({HEAD} | writer.heads_with_a_place(trunk, opened.params))
  else:
    exported = set(heads)
  if omitted := sorted(present - exported):
    log.info(f'heads that are not exported: {", ".join(omitted)}')
  leaves = {path: leaf for path, leaf in opened.params.items() if path.partition('/')[0] in {'trunk', *exported}}
  if exported and opened.adapter:
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
    finish=_sentence_files(source, opened, trunk),
  )
  log.info(f'{target}: {", ".join(file.name for file in files.listing(target))}')
  if not files.is_folder(opened.vocab):
    log.info(f'{source} has no vocabulary to export')


def _sentence_files(source: Path, opened: folders.Weights, trunk: nn.Module) -> Callable[[Path], None]:
  """Return the writer of sentence-transformers files, if there are any."""
  objective, similarity, recipe = opened.objective, sentences.similarity(source), None
  try:
    is_run = files.is_folder(run_paths.RunFolder(source).checkpoints)
    made = sentences.of_objective(trunk, opened.params, objective) if is_run else None
    recipe = made if is_run else sentences.read(source, width=trunk.hidden_dim)
  except WeightsError as error:
    log.warning(f'sentence vectors are not converted: {error}')
  if recipe is None:
    return lambda folder: None
  similarity = objective.get('similarity_of', similarity)
  return functools.partial(sentences.write, recipe=recipe, width=trunk.hidden_dim, similarity=similarity)


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
  """Export a run's trunk and vocabulary as a converted checkpoint.

  This also works for models without a published form.

  The arguments are those of `export`; `template` is for one task of several.

  Raises:
    ConfigError: the source has no such head.
    CheckpointError: the parameters are damaged.
  """
  opened = folders.open(source, step=step, part=part)
  _check_heads(source, heads, present=opened.heads)
  exported = {'trunk', *heads}
  leaves = {path: leaf.read(None) for path, leaf in opened.params.items() if path.partition('/')[0] in exported}
  template = template if opened.task else None
  save_changed(target, opened, leaves, block=opened.model.block, template=template, shard=shard)
  log.info(f'{target}: {", ".join(file.name for file in files.listing(target))}')


def _check_heads(source: Path, heads: Sequence[str], *, present: Collection[str]) -> None:
  if missing := sorted(set(heads) - set(present)):
    choices = ', '.join(sorted(present)) or 'none'
    raise ConfigError(f'--heads: {source} has no head {", ".join(missing)}; choices are {choices}')


def _check_head(
  source: Path, trunk: nn.Module, leaves: Mapping[str, Leaf], architecture: str | None, adapter: Mapping[str, Any]
) -> None:
  """Raise WeightsError if no published form computes the task head."""
  try:
    writer.published_form(trunk, leaves, architecture, adapter=adapter)
  except WeightsError as error:
    raise WeightsError(
      f'{source} was trained with adapter {adapter["name"]!r}: {error}\n--heads=none exports the trunk alone'
    ) from error


def _plans(leaves: Mapping[str, Leaf], layers: Mapping[str, int | None]) -> Iterator[tuple[str, tensor_files.Plan]]:
  """Yield (name, float32 tensor): `path`, or `path@0`, `path@1`, ... of layers."""

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
  """Yield as `_plans` from arrays in memory, in their own dtype."""
  for path, leaf in leaves.items():
    count = layers[path]
    for layer in (None,) if count is None else range(count):
      array = np.asarray(leaf if layer is None else leaf[layer], order='C')
      plan = tensor_files.Plan(array.dtype, array.shape, functools.partial(iter, (array,)))
      yield path if layer is None else f'{path}@{layer}', plan


def _multiple(rows: int, source: Path) -> int | None:
  """Find the smallest power of two that pads ids to rows."""
  size = release.tokenizer_size(source) or rows
  multiples = (2**power for power in range(3, 11))
  return next((multiple for multiple in multiples if size < rows == -(-size // multiple) * multiple), None)


def _flags(model: Mapping[str, Any], *, spare: int | None) -> list[str]:
  overrides = model['overrides'] | ({} if spare is None else {'vocab_multiple': spare})
  flags = {'name': model['name'], 'variant': model['variant'], 'overrides': f"'{json.dumps(overrides)}'"}
  return [f'--config.model.{name}={value}' for name, value in flags.items()]
