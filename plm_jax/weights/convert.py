"""Imports and exports of whole folders in bounded memory: what `python -m plm_jax.convert` does."""

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from plm_jax.errors import ConfigError

if TYPE_CHECKING:
  import numpy as np

  from plm_jax.weights.reader import Reader

TOKEN_IDS = ('pad_token_id', 'bos_token_id', 'eos_token_id', 'decoder_start_token_id', 'forced_eos_token_id')


def import_release(source: Path, target: Path, *, architecture: str | None = None, shard: int = 4 * 10**9) -> None:
  """Streams a Hugging Face folder into a parameter folder.

  Args:
    source: a Hugging Face folder.
    target: made where it is missing; left as it is where the import fails.
    architecture: a file of `weights/`, where config.json leaves it open.
    shard: bytes of a file after which the next one begins.

  Raises:
    WeightsError: what is wrong with the source, by file and tensor.
  """
  import json
  import math

  import numpy as np

  from plm_jax import files
  from plm_jax.checkpoint import params, tensor_files
  from plm_jax.weights import release
  from plm_jax.weights.reader import Reader

  reader = Reader(release.Release(source), architecture=architecture)
  groups: list[dict[str, tensor_files.Plan]] = [{}]
  places: dict[str, int | None] = {}
  size = 0
  for path, shape in reader.shapes.items():
    stacked = reader.entries[path].stacked
    places[path] = shape[0] if stacked else None
    for layer in range(shape[0]) if stacked else (None,):
      own = shape if layer is None else shape[1:]
      plan = tensor_files.Plan(np.dtype(np.float32), tuple(own), _slice(reader, path, layer))
      if groups[-1] and size + plan.size > shard:
        groups.append({})
        size = 0
      groups[-1][path if layer is None else f'{path}@{layer}'] = plan
      size += plan.size
  with release.making(target) as partial:
    for number, group in enumerate(groups, start=1):
      tensor_files.write(partial / f'params-{number:05}.safetensors', group)
    about = {
      'model': reader.model,
      'vocab_size': reader.vocab_size,
      'architecture': reader.architecture.name,
      'heads': reader.heads,
      'token_ids': {name: value for name, value in reader.source.config.items() if name in TOKEN_IDS},
      'source': str(source),
    }
    files.write_text(partial / 'model.json', json.dumps(about, indent=1))
    copied = release.copy_tokenizer(source, partial / 'vocab')
    params.write_index(partial, places)
    shutil.rmtree(target, ignore_errors=True)
    partial.replace(target)
  count = sum(math.prod(shape) for shape in reader.shapes.values())
  log = logging.getLogger('plm_jax')
  log.info(f'{target}: {reader.architecture.name}, {count:,} parameters, heads: {", ".join(reader.heads) or "none"}')
  log.info(f'tokenizer: {", ".join(copied) or "the source has none"}')
  log.info(f'its model in a config: {" ".join(_flags(reader.model, spare=_multiple(reader.vocab_size, source)))}')


def export(
  source: Path,
  target: Path,
  *,
  architecture: str | None = None,
  step: int | Literal['newest', 'best'] = 'best',
  part: Literal['trunk', 'generator'] = 'trunk',
  heads: Sequence[str] | None = None,
  shard: int = 4 * 10**9,
) -> None:
  """Writes a run's or an import's parameters, tokenizer included, as a Hugging Face folder.

  An import is streamed, a tensor at a time; the parameters of a run are read whole.

  Args:
    source: a run folder or an import.
    target: made where it is missing; left as it is where the export fails.
    architecture: a file of `weights/`, where several have room for the trunk.
    step: of a run.
    part: of a run that trains two trunks.
    heads: to write beside the trunk; None takes those that a published form has, and names the others in the log.
    shard: bytes of a file after which the next one begins.

  Raises:
    WeightsError: no published form has room for the trunk and its heads.
    CheckpointError: the parameters are damaged.
  """
  from plm_jax.weights import folders, writer

  log = logging.getLogger('plm_jax')
  trunk, leaves = folders.open_own(source, step=step, part=part)
  present = {path.split('/')[0] for path in leaves} - {'trunk'}
  if missing := sorted(set(heads or ()) - present):
    there = ', '.join(sorted(present)) or 'none'
    raise ConfigError(f'--heads: {source} has no {", ".join(missing)}; heads that it has: {there}')
  kept = present & (writer.heads_with_a_place(trunk) if heads is None else set(heads))
  if left := sorted(present - kept):
    log.info(f'left out: {", ".join(left)}')
  leaves = {path: leaf for path, leaf in leaves.items() if path.split('/')[0] in {'trunk', *kept}}
  vocab = source / 'vocab'
  writer.save_leaves(
    target, trunk, leaves, architecture=architecture, tokenizer=vocab, token_ids=_token_ids(source), shard=shard
  )
  log.info(f'{target}: {", ".join(sorted(file.name for file in target.iterdir()))}')
  if not vocab.is_dir():
    log.info(f'{source} has no vocabulary to go with it')


def _token_ids(source: Path) -> dict[str, int | None]:
  """The fields of config.json that name special tokens: those of the release, or of a run's vocabulary."""
  import json

  from plm_jax.weights import release

  if (source / 'model.json').is_file():
    return json.loads((source / 'model.json').read_text(encoding='utf-8')).get('token_ids', {})
  settings = json.loads((source / 'config.json').read_text(encoding='utf-8'))
  ids = release.token_ids(source / 'vocab')
  found: dict[str, int | None] = {f'{role}_token_id': ids.get(role) for role in ('pad', 'bos', 'eos')}
  start = (settings.get('objective') or {}).get('start')  # of a decoder
  return found | ({'decoder_start_token_id': ids[start]} if start in ids else {})


def _multiple(rows: int, source: Path) -> int | None:
  """The smallest power of two that pads the ids of the source's tokenizer to the rows of its table; None for none."""
  from plm_jax.weights import release

  size = release.tokenizer_size(source) or rows
  multiples = (2**power for power in range(3, 11))
  return next((one for one in multiples if size < rows == -(-size // one) * one), None)


def _flags(model: Mapping[str, Any], *, spare: int | None) -> list[str]:
  """What makes the model of any config that of a release."""
  import json

  overrides = model['overrides'] | ({} if spare is None else {'vocab_multiple': spare})
  flags = {'name': model['name'], 'variant': model['variant'], 'overrides': f"'{json.dumps(overrides)}'"}
  return [f'--config.model.{name}={value}' for name, value in flags.items()]


def _slice(reader: 'Reader', path: str, layer: int | None) -> 'Callable[[], Iterator[np.ndarray]]':
  return lambda: reader.slice(path, layer)
