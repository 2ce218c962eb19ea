"""Classic pre-trained language models in JAX: every objective, every way downstream, one training loop.

    model = plm_jax.load(FOLDER)
    vectors = model.encode(['one text', 'another'])

Importing the package does not import jax; the first call of `load` does.
"""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from plm_jax.inference.model import Model

__version__ = '0.1.0'


def load(folder: str | os.PathLike[str], **settings: Any) -> 'Model':
  """Open a trained model, to call it from Python.

  Example:
    model = plm_jax.load('runs/bert/base', step='best')
    model.fill('Paris is the [MASK] of France .')

  Args:
    folder: a run, a converted checkpoint (`plm-jax convert import`), or a model in Hugging Face's format with its
      tokenizer.
    **settings: keywords of `plm_jax.inference.model.load`: `step` (a step, 'newest' or 'best'), `part` (task of a
      multi-task run), `batch_size` (examples, 32), `dtype` ('float32', 'bfloat16' or 'float16').

  Returns:
    A `Model`. It supports the methods that its network was trained for: `encode`, `fill`, `score`, `generate`,
    `classify`, `tag`, `parse`, `answer`, `choose`.

  Raises:
    ConfigError: the folder, its model or its vocabulary is missing, or the run has no such step or task.
  """
  from plm_jax.inference import model

  return model.load(folder, **settings)
