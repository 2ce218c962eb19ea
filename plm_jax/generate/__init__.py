"""Text from a trunk with a decode cache; `python -m plm_jax.generate` is the command.

    from plm_jax.generate import generate

What the names below need is loaded with the first of them, so that the command can answer without jax.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from plm_jax.generate.decode import generate
  from plm_jax.generate.rules import Generated

__all__ = ['Generated', 'generate']


def __getattr__(name: str) -> Any:
  """`Generated` and `generate` of `decode.py`."""
  if name not in __all__:  # a submodule too, so that it can be imported below
    raise AttributeError(f'plm_jax.generate has no {name!r}')
  from plm_jax.generate import decode, rules

  return {'Generated': rules.Generated, 'generate': decode.generate}[name]
