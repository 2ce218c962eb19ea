"""Estimate the steps of runs that are given in epochs, before any of them is made.

A finished run knows the steps of an epoch over the same data. Otherwise the examples of a local task are counted, and
the tokens of a text are estimated from some of its documents. Nothing is downloaded, tokenized as a whole or stored.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plm_jax.config import signatures
from plm_jax.core.errors import ConfigError
from plm_jax.data import made
from plm_jax.data.corpora import sources, splits
from plm_jax.io import files
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import run_folder
from plm_jax.studies.tables import runs
from plm_jax.studies.tables.runs import Run
from plm_jax.training import parts

SAMPLE = 300  # evenly spread documents whose tokens are counted


class Epochs:
  """Steps of epochs; data of several runs is counted once.

  Attributes:
    estimated: texts whose tokens were estimated.
  """

  def __init__(self, needed: Sequence[Run], folders: Mapping[str, RunFolder | None]) -> None:
    """Read steps per epoch; `folders` maps digests to finished runs' folders."""
    self.estimated: set[str] = set()
    self._folders = folders
    self._steps: dict[str, int | str] = {}  # key of the data -> steps per epoch, or why they are unknown
    for run in needed:
      folder = folders.get(run.digest)
      steps = run_folder.read_json(folder.data).get('steps_per_epoch') if folder is not None else None
      if steps:
        self._steps.setdefault(_key(run), steps)

  def steps(self, run: Run) -> int:
    """Compute a run's steps; raise ConfigError with the reason if unknown."""
    settings = run.settings
    if settings['steps'] is not None:
      return int(settings['steps'])
    key = _key(run)
    if key not in self._steps:
      self._steps[key] = self._counted(run)
    per_epoch = self._steps[key]
    if isinstance(per_epoch, str):
      raise ConfigError(f'its length is given in epochs, and {per_epoch}')
    return max(1, round(settings['epochs'] * per_epoch))

  def _counted(self, run: Run) -> int | str:
    """Count the steps of an epoch, or return why they are unknown."""
    block = run.settings['data']
    path, name = block.get('path') or '', block['name']
    if files.is_address(path):
      return f'{path} is not downloaded to count its examples'
    try:
      with made.watching(makes=False):
        split = block.get('split') or sources.training_and_held_out(path)[0]
        if not sources.opens_quickly(path, split=split):
          return f'{path} is too large to be counted'
        counts = signatures.literal(f'data.{name}', 'EPOCH')
        windows = 'kind' in block and signatures.literal(f'data.rows.kinds.{block["kind"]}', 'WINDOWS')
        if counts == 'examples' and not windows:
          return _steps_of(_rows(path, split, run.settings), block)
        if counts == 'tokens' and not block.get('both_directions'):
          return _steps_of(self._tokens(path, split, run) / (block.get('stride') or block['length']), block)
    except made.Unmade:
      return f'{path} is not on this machine: name the folder of task data by --data=DIR'
    except (ConfigError, ValueError, OSError, ModuleNotFoundError) as error:
      return f'its examples cannot be counted: {error}'
    return f'the number of examples of {path} ({name}) is known only after a run'

  def _tokens(self, path: str, split: str, run: Run) -> float:
    """Estimate a text's tokens, one more per document, from a sample."""
    block, first = run.settings['data'], runs.pretraining_of(run)
    vocab = parts.make_vocab(first.settings, self._folders.get(first.digest))
    options = {key: block[key] for key in ('text', 'quality') if block.get(key) is not None}
    texts = sources.documents(path, split=split, by_tokens=True, **options, **_opening(block))
    chosen = np.unique(np.linspace(0, len(texts) - 1, SAMPLE).astype(int))
    tokens = sum(len(ids) + 1 for ids in vocab.encode_batch([texts[int(index)] for index in chosen]))
    self.estimated.add(f'{path} ({split})')
    total = tokens * len(texts) / len(chosen)
    return total if texts.split is None else len(splits.tokens_of(texts.split, path=path, tokens=round(total)))


def _key(run: Run) -> str:
  return json.dumps([run.settings['data'], runs.pretraining_of(run).settings['vocab']], sort_keys=True)


def _opening(block: Mapping[str, Any]) -> dict[str, Any]:
  return {key: block[key] for key in ('cache', 'documents', 'max_bytes') if key in block}


def _rows(path: str, split: str, settings: Mapping[str, Any]) -> int:
  """Count the examples of a split, at most `per_class` of each class."""
  block, count = settings['data'], len(sources.open_source(path, split=split, **_opening(settings['data'])))
  classes = settings['adapter'].get('classes')
  return min(count, block['per_class'] * classes) if block.get('per_class') and classes else count


def _steps_of(rows: float, block: Mapping[str, Any]) -> int:
  return int(-(-rows // block['batch_size']))
