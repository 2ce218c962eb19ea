"""Configs of earlier versions, converted to the current form."""

from collections.abc import Mapping
from typing import Any

from plm_jax.config import blocks, values
from plm_jax.core.errors import ConfigError


def current(config: Mapping[str, Any]) -> dict[str, Any]:
  """Return a config in the current form.

  Earlier versions wrote every keyword of every update rule and schedule into `optim`, null if it was not set. Nulls of
  keywords that the named rule and schedule do not take, or take with another default, are removed. So is `nonmonotone`
  of an asgd with a `start`, which does not wait; its default was 5.
  """
  optim = config.get('optim')
  if not isinstance(optim, Mapping):
    return dict(config)
  try:
    known, elsewhere = blocks.block('optim.optimiser:make', optim, 'optim')
  except ConfigError:  # it is reported where the config is checked
    return dict(config)

  def stays(key: str, value: Any) -> bool:
    if key == 'nonmonotone' and optim.get('name') == 'asgd' and optim.get('start') is not None and value == 5:
      return False
    return value is not None or (key not in elsewhere if key not in known else values.fits(known[key].annotation, None))

  return {**config, 'optim': {key: value for key, value in optim.items() if stays(key, value)}}
