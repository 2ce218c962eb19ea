"""Settings of generation for the command and for Python: their names, defaults, bounds and checks."""

import logging
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from plm_jax.core.errors import ConfigError

log = logging.getLogger(__name__)

OLD_NAMES = {'draws': 'num_samples'}  # accepted for one release
# settings that belong to one method
OF_METHOD = {
  'sample': ('temperature', 'top_k', 'top_p', 'num_samples'),
  'beam': ('beams', 'length_penalty', 'early_stop'),
}
# every setting with its default, in Python and in the command
DEFAULTS: Mapping[str, Any] = {
  'method': 'greedy', 'max_new': 40, 'min_new': 0, 'no_repeat': 0, 'seed': 0,
  **dict.fromkeys(('temperature', 'top_k', 'top_p', 'beams', 'length_penalty', 'early_stop', 'num_samples')),
  **dict.fromkeys(('start', 'first', 'last')),
}  # fmt: skip


class Bound(NamedTuple):
  """Type and bound of a setting; a setting of a method may also be None, for the method's default."""

  kind: type  # int (no floats), float (ints allowed) or str
  words: str = ''  # the bound, human-readable
  holds: Callable[[Any], bool] = lambda value: True  # True for a number within the bound; nan is never within


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
  # a batch has this many rows per prompt
  'num_samples': Bound(int, '1 <= x <= 65_536', lambda value: 1 <= value <= 65_536),
  'beams': Bound(int, '1 <= x <= 1_024', lambda value: 1 <= value <= 1_024),
  'length_penalty': Bound(float, '-100 <= x <= 100', lambda value: -100 <= value <= 100),
  'trace': _COUNT,
  **dict.fromkeys(('start', 'first', 'last'), Bound(str)),
}


def rename_old(given: Mapping[str, Any], *, dash: str = '') -> dict[str, Any]:
  """Replace old names of settings and log each; ConfigError for both names.

  An old name with the value None counts as not given.
  """
  renamed = {name: value for name, value in given.items() if name not in OLD_NAMES}
  for old, new in OLD_NAMES.items():
    if (value := given.get(old)) is None:
      continue
    if renamed.get(new) is not None:
      raise ConfigError(f'{dash}{old}={value}: is the old name of {dash}{new}={renamed[new]}; remove {dash}{old}')
    log.warning(f'{dash}{old} is now called {dash}{new}; the old name will be removed in the next release')
    renamed[new] = value
  return renamed


def check(settings: Mapping[str, Any], prompts: Sequence[str], *, dash: str = '') -> None:
  """Raise ConfigError for invalid settings or prompts; `dash` precedes their names."""
  stop = settings['early_stop']
  if not (stop is None or isinstance(stop, bool) or stop == 'never'):  # the search takes neither 1 nor numpy's True
    raise ConfigError(f"{dash}early_stop={stop!r}: expected True, False or 'never'")
  for method, names in OF_METHOD.items():
    if settings['method'] != method and (odd := [name for name in names if settings[name] is not None]):
      raise ConfigError(
        f'{dash}{odd[0]}={settings[odd[0]]}: belongs to {dash}method={method}, and the method is '
        f'{settings["method"]}: change one of them'
      )
  for name, bound in BOUNDS.items():
    value = settings.get(name)
    if value is not None or DEFAULTS.get(name) is not None:
      _check_value(f'{dash}{name}', value, bound)
  if settings['min_new'] > settings['max_new']:
    raise ConfigError(f'{dash}min_new={settings["min_new"]}: must be in 0..{settings["max_new"]}, {dash}max_new')
  if not all(text.strip() for text in prompts):
    raise ConfigError(f'{dash}prompt is empty: give the beginning of a text')


def _check_value(name: str, value: Any, bound: Bound) -> None:
  kinds = {int: numbers.Integral, float: numbers.Real}  # includes numpy's
  if not isinstance(value, kinds.get(bound.kind, bound.kind)) or isinstance(value, bool) or not bound.holds(value):
    given = value if isinstance(value, int | float) else repr(value)
    raise ConfigError(f'{name}={given}: expected {bound.kind.__name__}{bound.words and f" ({bound.words})"}')
