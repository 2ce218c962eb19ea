from plm_jax.weights.folders import load
from plm_jax.weights.reader import Reader
from plm_jax.weights.writer import save

__all__ = ['Reader', 'load', 'save']
