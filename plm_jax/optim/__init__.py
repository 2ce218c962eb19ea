from plm_jax.optim.optimiser import Optimiser, make, merge, norms

__all__ = ['Optimiser', 'make', 'merge', 'norms']
