"""ModernBERT, MPNet and ERNIE: parity with Hugging Face, packing, the window of local layers, pooling."""

import jax
import numpy as np
import pytest

from plm_jax.models import bert, modernbert
from tests import tiny
from tests.models import parity

CASES = ('modernbert', 'modernbert-global', 'mpnet', 'ernie')
SIZES = {'hidden_dim': 16, 'num_heads': 2, 'mlp_dim': 24, 'global_every': 100}


@pytest.mark.parametrize('name', CASES)
def test_the_numbers_of_hugging_face(name: str) -> None:
  parity.check_stored(name)


@pytest.mark.parametrize('name', CASES)
def test_hugging_face_as_installed(name: str) -> None:
  parity.check_live(name)


def test_a_local_layer_sees_half_the_window_on_each_side() -> None:
  sizes = SIZES | {'num_layers': 3, 'window': 7, 'global_every': 2}
  trunk = modernbert.make(vocab_size=61, variant='modernbert-base', overrides=sizes)
  tokens = np.arange(7, 28)[None].astype(np.int32)
  ones = np.ones_like(tokens)
  params = trunk.init(jax.random.key(0), tokens, segment_ids=ones)
  sown = trunk.apply(params, tokens, segment_ids=ones, mutable=['attention'])[1]['attention']
  local, last = sown['layers']['weights'][0]
  distance = np.abs(np.arange(21)[:, None] - np.arange(21))
  np.testing.assert_array_equal(np.asarray(local)[0, 0] > 0, distance <= 3)
  for whole in (sown['first']['weights'][0], last):
    assert (np.asarray(whole) > 0).all()


@pytest.mark.parametrize('kind', ['modernbert', 'mpnet'])
def test_packed_texts_are_read_as_alone(kind: str) -> None:
  if kind == 'modernbert':
    sizes = SIZES | {'num_layers': 3, 'window': 4, 'global_every': 2}
    trunk = modernbert.make(vocab_size=61, variant='modernbert-base', overrides=sizes)
  else:
    sizes = {'hidden_dim': 16, 'num_heads': 2, 'mlp_dim': 24, 'num_layers': 2, 'max_length': 32}
    trunk = bert.make(vocab_size=61, variant='mpnet-base', overrides=sizes)
  tokens = np.random.default_rng(0).integers(7, 61, (1, 17)).astype(np.int32)
  packed = np.asarray([[1] * 9 + [2] * 6 + [0] * 2], np.int32)
  params = trunk.init(jax.random.key(0), tokens, segment_ids=packed)
  together = trunk.apply(params, tokens, segment_ids=packed)['hidden']
  for start, stop in ((0, 9), (9, 15)):
    one = np.ones((1, stop - start), np.int32)
    alone = trunk.apply(params, tokens[:, start:stop], segment_ids=one)['hidden']
    assert tiny.worst(together[:, start:stop], alone) < 1e-5


def test_a_head_of_an_odd_size_is_refused() -> None:
  with pytest.raises(ValueError, match=r'3 components.*even'):
    modernbert.make(vocab_size=61, variant='tiny', overrides={'hidden_dim': 6, 'num_heads': 2})
