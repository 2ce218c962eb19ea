"""The steps of runs that count epochs, before any of their rows is made.

A finished run knows the steps of an epoch over the same data. Else the rows of a task are counted where they are here,
and the tokens of a text are estimated from some of its documents. Nothing is downloaded, tokenised as a whole or kept.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plm_jax.core.errors import ConfigError
from plm_jax.data import made
from plm_jax.data.corpora import sources, splits
from plm_jax.io import files
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import run_folder
from plm_jax.studies.tables import runs
from plm_jax.studies.tables.runs import Run
from plm_jax.training import parts

SAMPLE = 300  # documents, evenly spread, whose tokens are counted


class Epochs:
  """Steps of epochs; what several runs read is counted once.

  Attributes:
    estimated: the texts whose tokens were estimated.
  """

  def __init__(self, needed: Sequence[Run], folders: Mapping[str, RunFolder | None]) -> None:
    """Reads what finished runs know.

    Args:
      needed: runs.
      folders: of those that are finished, by digest.
    """
    self.estimated: set[str] = set()
    self._folders = folders
    self._steps: dict[str, int | str] = {}  # what decides an epoch -> its steps, or why they are not known
    for run in needed:
      folder = folders.get(run.digest)
      known = run_folder.read_json(folder.data).get('steps_per_epoch') if folder is not None else None
      if known:
        self._steps.setdefault(_key(run), known)

  def steps(self, run: Run) -> int:
    """All steps of a run.

    Raises:
      ConfigError: they are not known; says why.
    """
    settings = run.settings
    if settings['steps'] is not None:
      return int(settings['steps'])
    key = _key(run)
    if key not in self._steps:
      self._steps[key] = self._counted(run)
    found = self._steps[key]
    if isinstance(found, str):
      raise ConfigError(f'it counts epochs, and {found}')
    return max(1, round(settings['epochs'] * found))

  def _counted(self, run: Run) -> int | str:
    """The steps of an epoch, or why they are not known."""
    block = run.settings['data']
    path, name = block.get('path') or '', block['name']
    if files.is_address(path):
      return f'{path} is not fetched to count its rows'
    try:
      with made.watching(makes=False):
        split = block.get('split') or sources.training_and_held_out(path)[0]
        if not sources.opens_quickly(path, split=split):
          return f'{path} is too large to be counted here'
        if name == 'labelled' and block.get('kind', 'class') != 'spans':
          return _steps_of(_rows(path, split, run.settings), block)
        if name in ('bptt', 'stream') and not block.get('both_directions'):
          return _steps_of(self._tokens(path, split, run) / (block.get('stride') or block['length']), block)
    except made.Unmade:
      return f'{path} is not on this machine; --data=DIR names a folder of task sets'
    except (ConfigError, ValueError, OSError, ModuleNotFoundError) as error:
      return f'its rows cannot be counted: {error}'
    return f'how many rows {path} gives ({name}) is known once a run was made'

  def _tokens(self, path: str, split: str, run: Run) -> float:
    """The tokens of a text, with one at the end of each document, by those of some of its documents."""
    block, first = run.settings['data'], runs.pretraining_of(run)
    vocab = parts.make_vocab(first.settings, self._folders.get(first.digest))
    asked = {key: block[key] for key in ('text', 'quality') if block.get(key) is not None}
    texts = sources.documents(path, split=split, by_tokens=True, **asked, **_opening(block))
    chosen = np.unique(np.linspace(0, len(texts) - 1, SAMPLE).astype(int))
    found = sum(len(ids) + 1 for ids in vocab.encode_batch([texts[int(number)] for number in chosen]))
    self.estimated.add(f'{path} ({split})')
    total = found * len(texts) / len(chosen)
    return total if texts.split is None else len(splits.tokens_of(texts.split, path=path, tokens=round(total)))


def _key(run: Run) -> str:
  """A text of all that the steps of an epoch depend on."""
  return json.dumps([run.settings['data'], runs.pretraining_of(run).settings['vocab']], sort_keys=True)


def _opening(block: Mapping[str, Any]) -> dict[str, Any]:
  return {key: block[key] for key in ('cache', 'documents', 'max_bytes') if key in block}


def _rows(path: str, split: str, settings: Mapping[str, Any]) -> int:
  """The rows of a split, but for those that lack a label."""
  block, count = settings['data'], len(sources.open_source(path, split=split, **_opening(settings['data'])))
  classes = settings['adapter'].get('classes')
  return min(count, block['per_class'] * classes) if block.get('per_class') and classes else count


def _steps_of(rows: float, block: Mapping[str, Any]) -> int:
  return int(-(-rows // block['batch_size']))
