"""Settings of generation as the command and Python take them: which there are, their defaults, mistakes in them."""

from collections.abc import Mapping, Sequence
from typing import Any

from plm_jax.errors import ConfigError
from plm_jax.plugins import values

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

# what each takes; those of a method may be None, which leaves them to it. Of beams and draws a batch has so many rows.
_TOKEN = 'str | None'
BOUNDS: Mapping[str, str] = {
  'max_new': "Annotated[int, '1 <= x']",
  'min_new': "Annotated[int, '0 <= x']",
  'no_repeat': "Annotated[int, '0 <= x']",
  'seed': "Annotated[int, '0 <= x < 4_294_967_296']",
  'temperature': "Annotated[float, '1e-6 <= x <= 1e6'] | None",
  'top_k': "Annotated[int, '1 <= x'] | None",
  'top_p': "Annotated[float, '0 < x <= 1'] | None",
  'draws': "Annotated[int, '1 <= x <= 65_536'] | None",
  'beams': "Annotated[int, '1 <= x <= 1_024'] | None",
  'length_penalty': "Annotated[float, '-100 <= x <= 100'] | None",
  'trace': "Annotated[int, '1 <= x'] | None",
  'start': _TOKEN,
  'first': _TOKEN,
  'last': _TOKEN,
}


def check(settings: Mapping[str, Any], prompts: Sequence[str], *, dash: str = '') -> None:
  """Raises ConfigError for mistakes that settings alone show.

  Args:
    settings: all of `DEFAULTS`, and those of the command.
    prompts: the texts.
    dash: what stands before the name of a setting in messages.
  """
  for method, names in OF_METHOD.items():
    if settings['method'] != method and (odd := [name for name in names if settings[name] is not None]):
      raise ConfigError(
        f'{dash}{odd[0]}={settings[odd[0]]}: belongs to {dash}method={method}, and the method is {settings["method"]}'
      )
  for name, bound in BOUNDS.items():
    if name in settings:
      _check_one(f'{dash}{name}', settings[name], bound)
  if settings['min_new'] > settings['max_new']:
    raise ConfigError(f'{dash}min_new={settings["min_new"]}: must be from 0 to {dash}max_new, {settings["max_new"]}')
  if not all(text.strip() for text in prompts):
    raise ConfigError(f'{dash}prompt: is empty; give a text to begin with')


def _check_one(name: str, value: Any, bound: str) -> None:
  """Raises ConfigError where a value is not within its bound."""
  try:
    values.coerce(bound, value)
  except TypeError:
    given = value if isinstance(value, int | float) else repr(value)
    raise ConfigError(f'{name}={given}: expected {values.readable(bound).removesuffix(" | None")}') from None
