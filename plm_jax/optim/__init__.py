from plm_jax.optim.optimiser import Optimiser, arrays, make, merge, norms

__all__ = ['Optimiser', 'arrays', 'make', 'merge', 'norms']
