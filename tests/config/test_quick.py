"""`file.py:quick`: what every block takes from the `QUICK` of its file."""

import pytest

from plm_jax import config
from plm_jax.config import annotations, quick, signatures
from plm_jax.config.values import fits

FILE = """
def get_config(arg=''):
  return dict(
    steps=5,
    vocab=dict(name='byte_bpe', path='here'),
    model=dict(name='bert', variant='bert-base', overrides=dict(num_layers=3, pooler='first')),
    data=dict(name='mixture', length=512, batch_size=32, parts=dict(
      one=dict(name='stream', path='one'), two=dict(name='labelled', path='two', buckets=(8,)))),
    objective=dict(name='rtd', generator=dict(name='bert', variant='bert-large')),
    optim=dict(rate=1.0),
  )
"""


@pytest.fixture
def file(tmp_path):
  (tmp_path / 'file.py').write_text(FILE)
  return tmp_path / 'file.py'


def test_blocks_inside_blocks_shrink_too(file):
  whole, small = (config.load(f'{file}:{argument}') for argument in ('', 'other,quick'))
  assert whole['data']['length'] == 512
  assert small['model'] == {'name': 'bert', 'variant': 'tiny', 'overrides': {'pooler': 'first'}}
  assert small['objective']['generator'] == {'name': 'bert', 'variant': 'tiny', 'overrides': {}}
  assert (small['data']['length'], small['data']['batch_size']) == (64, 8)
  one, two = small['data']['parts'].values()
  assert (one['path'], two['buckets']) == ('pydocs', [])
  assert 'length' not in one and 'batch_size' not in two


def test_a_config_that_is_wrong_is_left_for_the_check():
  assert quick.shrink({'model': {'name': 'brt'}, 'data': 3}) == {'model': {'name': 'brt'}, 'data': 3}


@pytest.mark.parametrize('folder', ['models', 'objectives', 'adapters', 'data', 'text'])
def test_every_quick_holds_keywords_of_its_file(folder):
  for name in signatures.names(folder):
    known = signatures.signature(folder, name)
    for key, value in (signatures.literal(f'{folder}.{name}', 'QUICK') or {}).items():
      assert fits(known[key].annotation, value), f'{folder}/{name}.py: QUICK[{key!r}]'
      assert not [part for part in annotations.parts(known[key].annotation) if part.form == 'block']
