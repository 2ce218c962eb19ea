"""Text generation by a trunk with a decode cache; the command is `plm-jax generate`.

    from plm_jax.generate import generate

`generate` and `Generated` are imported on first use, so that `plm-jax generate` shows `--help` and usage errors without
jax.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from plm_jax.generate.constraints import Generated
  from plm_jax.generate.decode import generate

__all__ = ['Generated', 'generate']


def __getattr__(name: str) -> Any:
  """Import `generate` of `decode.py` and `Generated` of `constraints.py`."""
  if name not in __all__:  # also for submodules: the import below then finds the file
    raise AttributeError(f'plm_jax.generate has no {name!r}')
  from plm_jax.generate import constraints, decode

  return {'Generated': constraints.Generated, 'generate': decode.generate}[name]
