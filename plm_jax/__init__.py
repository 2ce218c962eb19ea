"""Classic pre-trained language models in JAX: every objective, every way downstream, one training loop.

    model = plm_jax.load(FOLDER)
    vectors = model.encode(['one text', 'another'])

The package is imported without jax, which the first call of `load` loads.
"""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from plm_jax.inference.model import Model

__version__ = '0.1.0'


def load(folder: str | os.PathLike[str], **settings: Any) -> 'Model':
  """Opens a run, an import or a folder in Hugging Face's form to ask it something.

  Args:
    folder: which one.
    **settings: keywords of `plm_jax.inference.model.load`: `step`, `part`, `batch_size`, `dtype`.
  """
  from plm_jax.inference import model

  return model.load(folder, **settings)
