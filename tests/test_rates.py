"""A rate at which nothing is left of a network, its inputs or its labels is refused where the keyword stands."""

import pytest

from plm_jax import config
from plm_jax.config import overrides, signatures, values
from plm_jax.core.errors import ConfigError

WHOLE = {('models', 'awd_lstm', 'dropout')}  # a factor on the rates, of which 1 changes none


def lost_shares():
  """(folder, file, keyword, annotation) of each rate of dropout and smoothing in models, objectives and adapters."""
  for folder in ('models', 'objectives', 'adapters'):
    for name in signatures.places(folder):
      known = signatures.signature(folder, name)
      if folder == 'models':
        known = signatures.keywords(f'models.{name}', 'Config')
      for key, keyword in known.items():
        if key.endswith(('dropout', 'smoothing')) and 'float' in keyword.annotation:
          yield folder, name, key, keyword.annotation


def test_a_rate_that_leaves_nothing_is_refused():
  found = [one for one in lost_shares() if one[:3] not in WHOLE]
  assert len(found) > 40
  assert not [one for one in found if values.fits(one[3], 1.0) or not values.fits(one[3], 0.99)]
  settings = config.load(str(signatures.ROOT.parent / 'experiments/bert/base.py'))
  with pytest.raises(ConfigError, match=r'model\.overrides\.dropout: expected float \(0 <= x < 1\)'):
    overrides.apply(settings, [('model.overrides.dropout', '1.0')])
