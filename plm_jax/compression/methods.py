"""Names of compression methods on the command line: `int8`, `prune:0.5`, `layers:0.5+int8`."""

from collections.abc import Sequence
from typing import NamedTuple

from plm_jax.core.errors import ConfigError, suggest

# name -> description for --help and messages; methods of SHARES take the share to remove, as in prune:0.5
SHARES = {
  'prune': 'set the smallest weights of all dense layers together to 0',
  'prune_matrix': 'set the smallest weights of each matrix to 0',
  'heads': 'set the heads of each layer with the smallest output projections (L2 norm) to 0',
  'heads_gradient': 'set the heads of each layer that the loss depends on least to 0 (Michel et al. 2019)',
  'layers': 'remove every other layer, or another evenly spread share; the network becomes smaller',
  'top_layers': 'remove the highest layers; the network becomes smaller',
}
WHOLE = {'int8': 'store dense layers and vocabulary tables in 8 bits, with a scale per output channel'}


class Method(NamedTuple):
  """One step of a method chain."""

  name: str  # a key of `SHARES` or `WHOLE`
  share: float = 0.0  # of weights, heads or layers to remove; 0 for a method without one


def read(text: str) -> dict[str, tuple[Method, ...]]:
  """Parse a comma-separated list of methods.

  Each is one method, or several joined by '+' and applied in order.

  Returns:
    The text of each item -> its steps.

  Raises:
    ConfigError: an unknown name, a share outside of 0 ... 1, or the same item twice.
  """
  methods: dict[str, tuple[Method, ...]] = {}
  for word in filter(None, (word.strip() for word in text.split(','))):
    if word in methods:
      raise ConfigError(f'--methods: {word} is listed twice: list each method once')
    methods[word] = tuple(_method(part) for part in word.split('+'))
    _check_order(word, methods[word])
  if not methods:
    raise ConfigError(f'--methods is empty: choose from {_choices()}')
  return methods


def _method(word: str) -> Method:
  name, colon, share = word.partition(':')
  if name not in SHARES and name not in WHOLE:
    raise ConfigError(
      f'--methods: there is no method {name!r}.{suggest(name, [*WHOLE, *SHARES])} Methods: {_choices()}'
    )
  if name in WHOLE:
    if colon:
      raise ConfigError(f'--methods: {word}: {name} takes no share; write {name}')
    return Method(name)
  try:
    value = float(share)
  except ValueError:
    raise ConfigError(f'--methods: {word}: {name} needs the share to remove, as in {name}:0.5') from None
  if not 0 < value < 1:
    raise ConfigError(f'--methods: {word}: the share to remove is between 0 and 1, as in {name}:0.5')
  return Method(name, value)


def _check_order(word: str, steps: Sequence[Method]) -> None:
  if any(step.name == 'int8' for step in steps[:-1]):
    raise ConfigError(f'--methods: {word}: int8 has to be last, since the others compare weights')
  if any(step.name == 'heads_gradient' for step in steps[1:]):
    raise ConfigError(
      f'--methods: {word}: heads_gradient has to be first, since it needs gradients of the original network'
    )


def _choices() -> str:
  return ', '.join([*WHOLE, *(f'{name}:SHARE' for name in SHARES)])
