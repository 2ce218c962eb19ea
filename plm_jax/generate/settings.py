"""Settings of generation as the command and Python take them: which there are, their defaults, mistakes in them."""

import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from plm_jax.core.errors import ConfigError

# settings that belong to one method
OF_METHOD = {
  'sample': ('temperature', 'top_k', 'top_p', 'draws'),
  'beam': ('beams', 'length_penalty', 'early_stop'),
}
# every setting with its default, which the command has as well
DEFAULTS: Mapping[str, Any] = {
  'method': 'greedy', 'max_new': 40, 'min_new': 0, 'no_repeat': 0, 'seed': 0,
  **dict.fromkeys(('temperature', 'top_k', 'top_p', 'beams', 'length_penalty', 'early_stop', 'draws')),
  **dict.fromkeys(('start', 'first', 'last')),
}  # fmt: skip


class Bound(NamedTuple):
  """What a setting takes; those of a method may be None, which leaves them to it.

  Attributes:
    kind: int, which floats are not; float, which ints are; or str.
    words: the bound.
    holds: whether a number is within it; nan is within none.
  """

  kind: type
  words: str = ''
  holds: Callable[[Any], bool] = lambda value: True


_COUNT = Bound(int, '1 <= x', lambda value: 1 <= value < 2**31)
_WHOLE = Bound(int, '0 <= x', lambda value: 0 <= value < 2**31)
BOUNDS: Mapping[str, Bound] = {
  'method': Bound(str),
  'max_new': _COUNT,
  'min_new': _WHOLE,
  'no_repeat': _WHOLE,
  'seed': Bound(int, '0 <= x < 4_294_967_296', lambda value: 0 <= value < 2**32),
  'temperature': Bound(float, '1e-6 <= x <= 1e6', lambda value: 1e-6 <= value <= 1e6),
  'top_k': _COUNT,
  'top_p': Bound(float, '0 < x <= 1', lambda value: 0 < value <= 1),
  # of beams and draws a batch has so many rows
  'draws': Bound(int, '1 <= x <= 65_536', lambda value: 1 <= value <= 65_536),
  'beams': Bound(int, '1 <= x <= 1_024', lambda value: 1 <= value <= 1_024),
  'length_penalty': Bound(float, '-100 <= x <= 100', lambda value: -100 <= value <= 100),
  'trace': _COUNT,
  **dict.fromkeys(('start', 'first', 'last'), Bound(str)),
}


def check(settings: Mapping[str, Any], prompts: Sequence[str], *, dash: str = '') -> None:
  """Raises ConfigError for mistakes that settings alone show.

  Args:
    settings: all of `DEFAULTS`, and those of the command.
    prompts: the texts.
    dash: what stands before the name of a setting in messages.
  """
  stop = settings['early_stop']
  if not (stop is None or isinstance(stop, bool) or stop == 'never'):  # 1 and numpy's True are others to the search
    raise ConfigError(f"{dash}early_stop={stop!r}: expected True, False or 'never'")
  for method, names in OF_METHOD.items():
    if settings['method'] != method and (odd := [name for name in names if settings[name] is not None]):
      raise ConfigError(
        f'{dash}{odd[0]}={settings[odd[0]]}: belongs to {dash}method={method}, and the method is {settings["method"]}'
      )
  for name, bound in BOUNDS.items():
    value = settings.get(name)
    if value is not None or DEFAULTS.get(name) is not None:
      _check_one(f'{dash}{name}', value, bound)
  if settings['min_new'] > settings['max_new']:
    raise ConfigError(f'{dash}min_new={settings["min_new"]}: must be from 0 to {dash}max_new, {settings["max_new"]}')
  if not all(text.strip() for text in prompts):
    raise ConfigError(f'{dash}prompt: is empty; give a text to begin with')


def _check_one(name: str, value: Any, bound: Bound) -> None:
  """Raises ConfigError where a value is not within its bound."""
  kinds = {int: numbers.Integral, float: numbers.Real}  # numpy's are as well
  if not isinstance(value, kinds.get(bound.kind, bound.kind)) or isinstance(value, bool) or not bound.holds(value):
    given = value if isinstance(value, int | float) else repr(value)
    raise ConfigError(f'{name}={given}: expected {bound.kind.__name__}{bound.words and f" ({bound.words})"}')
