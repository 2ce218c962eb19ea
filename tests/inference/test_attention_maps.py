"""Attention weights of every head, for every trunk with a single attention stack."""

import types
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
import pytest

from plm_jax.commands import heads
from plm_jax.core.errors import ConfigError
from plm_jax.inference import attention_maps, opened
from tests import test_contract, tiny

IDS = [2, 9, 20, 31, 42, 3]
ONE_STACK = {'t5 decoder': ('t5', {'structure': 'decoder'}), 't5 prefix': ('t5', {'structure': 'prefix'})}
ONE_STACK |= {'t5 encoder': ('t5', {'structure': 'encoder'})}
ONE_STACK |= {name: (name, {}) for name in test_contract.MODELS}
QUICK = ('bert', 't5 decoder', 't5 encoder')


def make_trunk(name: str):
  model, fields = ONE_STACK[name]
  trunk = test_contract.make_trunk(model, **fields)
  if trunk.ATTENTION in ('encoder-decoder', 'none'):
    pytest.skip('is refused')
  return trunk


@pytest.mark.parametrize(
  'name', [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ONE_STACK]
)
def test_every_head_of_every_layer_is_there_in_order(name):
  trunk = make_trunk(name)
  shapes = jax.eval_shape(lambda: trunk.init(jax.random.key(0), method='init_all'))['params']
  params = tiny.draw(nn.unbox(shapes))
  if name in ('awd_lstm', 'cnn', 'cove', 'cvt', 'elmo', 'lstm'):
    with pytest.raises(ConfigError, match=f'{name}.*attention weights'):
      attention_maps._weights(trunk, params, IDS)
    return
  weights = attention_maps._weights(trunk, params, IDS)
  assert weights.shape == (2, 2, 6, 6)
  np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-5)


class Reads(NamedTuple):
  """A fake opened model whose tokens are characters."""

  trunk: nn.Module
  vocab: Any = tiny.VOCAB
  params: Any = None

  def read(self, texts):
    return [opened.Read([2, *map(ord, text)], [0] * (len(text) + 1), 1, 0) for text in texts]


def test_a_text_of_more_tokens_than_positions_is_refused():
  trunk = test_contract.make_trunk('bert')
  room = min(map(len, trunk.position_rows.values()))
  with pytest.raises(ConfigError, match=f'text.*{room} tokens'):
    attention_maps.look(Reads(trunk), text='a' * room)


def test_one_head_is_selected_and_keeps_its_index():
  trunk = test_contract.make_trunk('bert')
  params = tiny.draw(nn.unbox(jax.eval_shape(lambda: trunk.init(jax.random.key(0), method='init_all'))['params']))
  model = Reads(trunk, types.SimpleNamespace(decode=lambda ids: str(ids)), params)
  every, one = attention_maps.look(model, text='abc'), attention_maps.look(model, text='abc', layer=1, head=1)
  np.testing.assert_array_equal(one.weights, every.weights[1:, 1:])
  assert [(head.layer, head.head) for head in attention_maps.measure(one)] == [(1, 1)]
  assert attention_maps.measure(one) == attention_maps.measure(every)[-1:]
  for wrong in ({'layer': 2}, {'head': -1}):
    with pytest.raises(ConfigError, match=rf'--{next(iter(wrong))}=.* 0 to 1'):
      attention_maps.look(model, text='abc', **wrong)


@pytest.mark.parametrize(
  ('name', 'said'), [('none/heads.png', r'none\b.*folder|folder.*none\b'), ('', 'is a folder'), ('heads.xyz', r'\.png')]
)
def test_a_picture_that_cannot_be_written_is_refused_before_the_model_is_opened(name, said, tmp_path, monkeypatch):
  monkeypatch.setattr(opened, 'open', lambda *rest, **more: pytest.fail('the model was opened'))
  with pytest.raises(ConfigError, match=f'--out=.*{said}'):
    heads.main([f'--weights={tmp_path}', '--text=a', f'--out={tmp_path / name}'])


def test_tokens_with_dollars_are_drawn_as_they_are(tmp_path):
  maps = attention_maps.Maps(['$_{$', 'b'], np.full((1, 1, 2, 2), 0.5), [0], [0])
  attention_maps.draw(maps, tmp_path / 'x.png')
  assert (tmp_path / 'x.png').read_bytes().startswith(b'\x89PNG')


def test_blocks_outside_the_scan_stand_before_and_behind_it():
  leaf = lambda layers, value: {'attention': {'weights': (np.full((layers, 1, 2, 3, 3), value),)}}  # noqa: E731
  first, last = ({'attention': {'weights': (np.full((1, 2, 3, 3), value),)}} for value in (1, 4))
  sown = {'stack': {'last': last, 'layers': leaf(2, 2), 'first': first}}
  assert [int(part.flat[0]) for part in attention_maps._in_order(sown)] == [1, 2, 4]
  assert [len(part) for part in attention_maps._in_order(sown)] == [1, 2, 1]
