"""Names of compression methods, and messages for wrong names."""

import pytest

from plm_jax.compression import methods
from plm_jax.compression.methods import Method
from plm_jax.core.errors import ConfigError


def test_ways_are_read():
  assert methods.read('int8, prune:0.5,layers:.5+int8') == {
    'int8': (Method('int8'),),
    'prune:0.5': (Method('prune', 0.5),),
    'layers:.5+int8': (Method('layers', 0.5), Method('int8')),
  }


@pytest.mark.parametrize(
  ('text', 'said'),
  [
    ('prune:1.5', r'prune:1\.5.*0.*1'),
    ('prune:0', 'prune:0.*0.*1'),
    ('prune:nan', 'prune:nan.*0.*1'),
    ('prune', r'prune.*prune:0\.5'),
    ('prune:half', r'prune:0\.5'),
    ('int8:0.5', 'int8'),
    ('in8', "'in8'.*int8.*prune:SHARE"),
    ('int8+prune:0.5', 'int8.*last'),
    ('layers:0.5+heads_gradient:0.5', 'heads_gradient.*first'),
    ('int8,int8', 'int8'),
    (' ,', 'empty'),
  ],
)
def test_a_wrong_name_is_refused_by_name(text, said):
  with pytest.raises(ConfigError, match=said):
    methods.read(text)
