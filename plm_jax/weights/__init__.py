"""Published weights in and out: folders in Hugging Face's form <-> trunks and parameters of this package.

A trunk is the backbone: the network without a task head.

    trunk, params = weights.load(FOLDER)
    out = trunk.apply({'params': params}, tokens=tokens, segment_ids=segment_ids)
    weights.save(OTHER, trunk, params)

`open` reads parameters from a folder of any kind and returns `Weights`; `load` and `save` are its short forms. A file
of `architectures/` maps the tensors of published checkpoints to our parameters (see `table.py`). `release.py` reads and
writes the files of a published folder, `reader.py` and `writer.py` convert parameters, and `convert.py` converts whole
folders in bounded memory.
"""

from plm_jax.checkpoint.tensor_files import WeightsError
from plm_jax.weights.folders import SUMS, Part, Weights, load, open, placed
from plm_jax.weights.writer import save

__all__ = ['SUMS', 'Part', 'Weights', 'WeightsError', 'load', 'open', 'placed', 'save']
