"""Opens parameters of every kind: Hugging Face's form, a run, a converted checkpoint, or parameters saved alone.

`open` detects the kind of folder and returns `Weights`, which reads the rest when it is used.
"""

import os

import flax.linen as nn
import jax
import numpy as np

from plm_jax.checkpoint import Params, Step
from plm_jax.checkpoint.tensor_files import WeightsError as WeightsError
from plm_jax.core import errors
from plm_jax.core.param_paths import nested
from plm_jax.core.types import Execution, PyTree
from plm_jax.io import files, model_folders
from plm_jax.weights.derived_leaves import SUMS as SUMS
from plm_jax.weights.published_weights import GENERATION as GENERATION
from plm_jax.weights.published_weights import Published as Published
from plm_jax.weights.run_weights import MODEL as MODEL
from plm_jax.weights.run_weights import TRUNKS
from plm_jax.weights.run_weights import Part as Part
from plm_jax.weights.run_weights import Weights as Weights


def open(
  folder: str | os.PathLike[str], *, step: Step = None, part: Part | None = None, architecture: str | None = None
) -> Weights:
  """Open a folder of weights.

  Args:
    folder: one in Hugging Face's form, a run folder, a converted checkpoint (`plm-jax convert import`), or the output
      of `checkpoint.save_params` (which does not specify a model).
    step: of a run: a number, 'newest' or 'best'; None is the best if steps have scores, else the newest.
    part: of a run that trains two trunks (replaced token detection): the 'trunk' for use alone, or the 'generator'; of
      a multi-task run: a task, with its head. None gives all parameters by their names in the run.
    architecture: a file of `architectures/`, if the config.json of a published folder fits several.

  Returns:
    `Weights`; errors in the folder are found when its model or its parameters are used.
  """
  path = model_folders.main_folder(files.path(folder))
  if model_folders.is_published(path):
    if part is not None:
      errors.check_choice(f'part={part}', 'part', part, TRUNKS, place=f'{path} (no run)')
    return Published(path, architecture=architecture)
  return Weights(path, step=step, part=part)


def load(
  folder: str | os.PathLike[str],
  *,
  step: Step = None,
  part: Part = 'trunk',
  execution: Execution = Execution(),
  device: jax.Device | jax.sharding.Sharding | None = None,
) -> tuple[nn.Module, PyTree]:
  """Load the trunk of a folder and its parameters onto a device.

  Args:
    folder: a Hugging Face folder, a run folder, or a converted checkpoint (`plm-jax convert import`).
    step: of a run folder; None is the best if one was saved, else the newest.
    part: 'generator' is the second trunk of a run of replaced token detection; see `open`.
    execution: how the trunk computes.
    device: where every leaf is placed, or how it is sharded; None is the default device.

  Returns:
    (trunk, parameters): nested dicts of float32 arrays on the device (int8 with scales if they are saved in 8 bits).
      They hold the trunk and, next to it, each head by its name ('mlm', 'rtd', 'head'); `trunk.apply({'params':
      parameters}, ...)` ignores heads.

  Raises:
    WeightsError: an unknown architecture, or a tensor that is missing, damaged or of another shape.
    CheckpointError: damaged parameters of a run or a converted checkpoint.
  """
  opened = open(folder, step=step, part=part)
  trunk = opened.trunk(execution)
  params = placed(opened.to_run, device=device)
  return trunk, {**params['trunk'], **{name: tree for name, tree in params.items() if name != 'trunk'}}


def placed(params: Params, *, device: jax.Device | jax.sharding.Sharding | None = None) -> PyTree:
  """Put all parameters on a device, one by one, as nested dicts."""
  arrays = ((path, array, np.int8 if array.dtype == np.int8 else np.float32) for path, array in params.each())
  return nested({path: jax.device_put(np.asarray(array, dtype), device) for path, array, dtype in arrays})
