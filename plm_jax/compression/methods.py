"""How a person names ways to make a network smaller: `int8`, `prune:0.5`, `layers:0.5+int8`."""

from collections.abc import Sequence
from typing import NamedTuple

from plm_jax.core.errors import ConfigError, suggest

# name -> what it does, for --help and messages; those of SHARES take the share that goes, as in prune:0.5
SHARES = {
  'prune': 'the smallest weights of all dense layers together become 0',
  'prune_matrix': 'the smallest weights of each matrix become 0',
  'heads': 'the heads of each layer with the smallest output projections become 0 (L2 norm)',
  'heads_gradient': 'the heads of each layer that the loss depends on least become 0 (Michel et al. 2019)',
  'layers': 'every other layer, or as many as that, evenly spread; the network becomes smaller',
  'top_layers': 'the highest layers; the network becomes smaller',
}
WHOLE = {'int8': 'dense layers and vocabulary tables in 8 bits, a scale per output channel'}


class Method(NamedTuple):
  """One step of a way: its name, and the share of weights, heads or layers that go; 0 where it takes none."""

  name: str
  share: float = 0.0


def read(text: str) -> dict[str, tuple[Method, ...]]:
  """The ways that a text names, separated by commas; a way is one method, or several joined by '+' and done in order.

  Raises:
    ConfigError: a name that does not exist, a share outside of 0 ... 1, or the same way twice.
  """
  ways: dict[str, tuple[Method, ...]] = {}
  for word in filter(None, (word.strip() for word in text.split(','))):
    if word in ways:
      raise ConfigError(f'--methods: {word} stands there twice: name each way once')
    ways[word] = tuple(_method(part) for part in word.split('+'))
    _check_order(word, ways[word])
  if not ways:
    raise ConfigError(f'--methods is empty: name some of {_choices()}')
  return ways


def _method(word: str) -> Method:
  name, colon, share = word.partition(':')
  if name not in SHARES and name not in WHOLE:
    raise ConfigError(
      f'--methods: there is no method {name!r}.{suggest(name, [*WHOLE, *SHARES])} There are {_choices()}'
    )
  if name in WHOLE:
    if colon:
      raise ConfigError(f'--methods: {word}: {name} takes no share: write {name}')
    return Method(name)
  try:
    number = float(share)
  except ValueError:
    raise ConfigError(f'--methods: {word}: {name} takes the share that goes, as in {name}:0.5') from None
  if not 0 < number < 1:
    raise ConfigError(f'--methods: {word}: the share that goes lies between 0 and 1, as in {name}:0.5')
  return Method(name, number)


def _check_order(word: str, steps: Sequence[Method]) -> None:
  if any(step.name == 'int8' for step in steps[:-1]):
    raise ConfigError(f'--methods: {word}: int8 comes last, since the others compare weights')
  if any(step.name == 'heads_gradient' for step in steps[1:]):
    raise ConfigError(f'--methods: {word}: heads_gradient comes first, since it asks the network of the run')


def _choices() -> str:
  return ', '.join([*WHOLE, *(f'{name}:SHARE' for name in SHARES)])
