"""Classic pre-trained language models in JAX: every objective, every way downstream, one training loop."""

__version__ = '0.1.0'
