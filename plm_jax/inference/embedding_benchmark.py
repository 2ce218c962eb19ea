"""Models for the package mteb (Muennighoff et al. 2023): sentence vectors and their similarity."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import mteb
import numpy as np
from mteb.models import ModelMeta

from plm_jax.config.load import call
from plm_jax.core.errors import ConfigError, suggest
from plm_jax.inference import vectors
from plm_jax.inference.model import Model
from plm_jax.io import files
from plm_jax.weights import sentences


class Encoder:
  """An encoder of mteb: `encode` and `similarity` of an open model, with mteb's prompts left out."""

  def __init__(self, model: Model):
    self._model = model
    folder, name = model.folder.folder, model.folder.similarity
    self._name = name if name in sentences.SIMILARITIES[:2] else 'cosine'  # the others are computed by mteb too
    self.mteb_model_meta = ModelMeta.create_empty(overwrites={'name': f'plm_jax/{folder.name}', 'revision': 'local'})

  def encode(self, inputs: Any, **settings: Any) -> np.ndarray:
    """Encode batches of texts: f32[n, d]."""
    return np.asarray(self._model.encode([text for batch in inputs for text in batch['text']]))

  def similarity(self, first: Any, second: Any) -> np.ndarray:
    """Compare all vectors: f32[n, m]."""
    return vectors.compare(self._name, np.asarray(first), np.asarray(second))

  def similarity_pairwise(self, first: Any, second: Any) -> np.ndarray:
    """Compare vectors with the same index: f32[n]."""
    return vectors.compare(self._name, np.asarray(first), np.asarray(second), pairs=True)


def run(model: Model, names: Sequence[str], *, include_path: str | None = None) -> dict[str, dict[str, Any]]:
  """Score a model on tasks of mteb and of Python files.

  `include_path` is a Python file, or a folder of them, with subclasses of `mteb.AbsTask`; it is executed. Returns task
  -> mteb's results, as `TaskResult.to_dict` gives them.

  Raises:
    ConfigError: no such task, or data that cannot be read.
  """
  own = {task.metadata.name: task for task in _tasks_of(include_path)} if include_path else {}
  known = {*own, *(task.metadata.name for task in mteb.get_tasks())}
  if unknown := [name for name in names if name not in known]:
    raise ConfigError(f'--tasks: mteb and --include_path have no task {unknown[0]!r}.{suggest(unknown[0], known)}')
  tasks = [own[name]() if name in own else mteb.get_task(name) for name in names]
  try:
    results = mteb.evaluate(Encoder(model), tasks, cache=None, co2_tracker=False, show_progress_bar=False)
  except (ConnectionError, FileNotFoundError) as error:
    raise ConfigError(f'mteb: the data of a task cannot be read: {error}') from error
  return {result.task_name: result.to_dict() for result in results.task_results}


def _tasks_of(place: str) -> list[type[mteb.AbsTask]]:
  path, found = files.path(place), []
  for file in sorted(files.listing(path, '*.py')) if files.is_folder(path) else [path]:
    found += call(file, lambda module: [each for each in vars(module).values() if _is_task(each, module)])
  return found


def _is_task(value: Any, module: ModuleType) -> bool:
  own = isinstance(value, type) and value.__module__ == module.__name__
  return own and issubclass(value, mteb.AbsTask) and 'metadata' in vars(value)
