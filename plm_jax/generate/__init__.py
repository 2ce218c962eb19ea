"""Text from a trunk with a decode cache; `plm-jax generate` is the command.

    from plm_jax.generate import generate

`generate` and `Generated` are imported when they are first used, so that the command answers `--help` and mistakes
without jax.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from plm_jax.generate.constraints import Generated
  from plm_jax.generate.decode import generate

__all__ = ['Generated', 'generate']


def __getattr__(name: str) -> Any:
  """`generate` of `decode.py` and `Generated` of `rules.py`."""
  if name not in __all__:  # submodules among them: the import below then finds the file
    raise AttributeError(f'plm_jax.generate has no {name!r}')
  from plm_jax.generate import constraints, decode

  return {'Generated': constraints.Generated, 'generate': decode.generate}[name]
