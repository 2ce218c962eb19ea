"""Settings of generation as the command and Python take them: which there are, their defaults, mistakes in them."""

from collections.abc import Mapping, Sequence
from typing import Any

from plm_jax.errors import ConfigError

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
  for name in ('max_new', 'temperature', 'top_k', 'beams', 'draws', 'trace'):
    if settings.get(name) is not None and settings[name] <= 0:
      raise ConfigError(f'{dash}{name}={settings[name]}: must be above 0')
  if settings['top_p'] is not None and not 0 < settings['top_p'] <= 1:
    raise ConfigError(f'{dash}top_p={settings["top_p"]}: must be above 0 and at most 1')
  if not 0 <= settings['min_new'] <= settings['max_new']:
    raise ConfigError(f'{dash}min_new={settings["min_new"]}: must be from 0 to {dash}max_new, {settings["max_new"]}')
  if settings['no_repeat'] < 0:
    raise ConfigError(f'{dash}no_repeat={settings["no_repeat"]}: must not be below 0')
  if not all(text.strip() for text in prompts):
    raise ConfigError(f'{dash}prompt: is empty; give a text to begin with')
