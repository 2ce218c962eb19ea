"""Published weights in and out: folders in Hugging Face's form <-> trunks and parameters of this package.

    trunk, params = weights.load(FOLDER)
    out = trunk.apply({'params': params}, tokens=tokens, segment_ids=segment_ids)
    weights.save(OTHER, trunk, params)

Public names: `open` is the one door to parameters, whatever kind of folder they are in, and returns `Weights`; `load`
and `save` are its short forms. A file of `architectures/` says which tensor of a release is which parameter (see
`table.py`), `release.py` knows the files of a release, `reader.py` and `writer.py` go from one to the other, and
`convert.py` converts whole folders in bounded memory.
"""

from plm_jax.checkpoint.tensor_files import WeightsError
from plm_jax.weights.folders import SUMS, Part, Weights, load, open, placed
from plm_jax.weights.writer import save

__all__ = ['SUMS', 'Part', 'Weights', 'WeightsError', 'load', 'open', 'placed', 'save']
